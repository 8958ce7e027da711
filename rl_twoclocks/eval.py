"""`python -m rl_twoclocks.eval checkpoint=...`: returns of a trained policy, and a video of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl_twoclocks.cli import run_plain
from rl_twoclocks.config import Config, ConfigError
from rl_twoclocks.config_commands import EvalCommandConfig
from rl_twoclocks.display import without_display
from rl_twoclocks.rundir import nearest_runs


def main() -> None:
    """Run the command; exit codes are in `rl_twoclocks.cli`."""
    run_plain("eval", EvalCommandConfig, evaluate_checkpoint)


def evaluate_checkpoint(command: EvalCommandConfig) -> float:
    """Evaluate a checkpoint by the mode and by samples; print and store both.

    Returns:
        The mean return of the deterministic policy.

    Raises:
        CheckpointError: there is no such checkpoint, or it is incomplete.
        ConfigError: its environment cannot be made here.
    """
    if command.video:
        without_display()
    from rl_twoclocks import state
    from rl_twoclocks.record import checkpoint
    from rl_twoclocks.rundir import write_text
    from rl_twoclocks.seeding import env_seeds

    path = find(Path(command.checkpoint).expanduser())
    saved = checkpoint.load(path)
    config = state.configuration(saved)
    results: dict[str, Any] = {"checkpoint": str(path), "frames": saved["clocks"]["frames"]}
    if command.changed:
        results["changed"] = command.changed
    config = _asked(command, config)
    seed = config.seed if config.eval.seed is None else config.eval.seed
    results["env_seeds"] = env_seeds(seed, "evaluation", min(command.num_envs, command.episodes))
    if command.video:
        # Before the evaluation, which may take long.
        from rl_twoclocks.record.video import drawable

        drawable(config).close()
    for kind in ("deterministic", "stochastic"):
        evaluation = _evaluate(config, saved, deterministic=kind == "deterministic")
        results[kind] = evaluation.readings() | {"returns": evaluation.returns}
        mean, std = evaluation.mean, results[kind]["eval/return_std"]
        print(f"{kind:<14} {mean:.2f} +- {std:.2f} over {len(evaluation.returns)} episodes")
    if path.name == "best.pt" and command.seed is None and not command.changed:
        # The best of many evaluations is better than its policy: luck was chosen too.
        print(f"{'episodes':<14} those that it was chosen by; seed=<another> draws fresh ones")
    # Beside the plain evaluation, not in its place.
    kind = "eval-changed" if command.changed else "eval"
    out = path.with_name(f"{kind}-{path.stem}.json")
    write_text(out, json.dumps(results, indent=2) + "\n")
    print(f"{'stored in':<14} {out}")
    if command.video:
        from rl_twoclocks.record.video import record_episode

        name = f"{path.stem}-changed.mp4" if command.changed else f"{path.stem}.mp4"
        target = Path(command.video_path or path.with_name(name))
        frames = record_episode(config, saved, target)
        print(f"{'video':<14} {target} ({frames} frames)")
    return results["deterministic"]["eval/return_mean"]


def find(path: Path) -> Path:
    """Resolve a file or a run directory to a checkpoint file.

    Raises:
        ConfigError: a directory without checkpoints.
    """
    from rl_twoclocks.record import checkpoint

    if not path.is_dir():
        return path
    if (path / "best.pt").is_file():
        return path / "best.pt"
    listed = checkpoint.listed(path)
    if not listed:
        raise ConfigError(f"no checkpoint in {path}{nearest_runs(path)}")
    return listed[-1]


def _asked(command: EvalCommandConfig, config: Config) -> Config:
    """A run's configuration with the evaluation that the command asks for."""
    changes = {
        "episodes": command.episodes,
        "num_envs": command.num_envs,
        "seed": config.eval.seed if command.seed is None else command.seed,
        "changed": command.changed,
    }
    return config.model_copy(update={"eval": config.eval.model_copy(update=changes)})


def _evaluate(config: Config, saved: dict[str, Any], deterministic: bool) -> Any:
    from rl_twoclocks.evaluate import Evaluator, under_changed_conditions
    from rl_twoclocks.state import learned

    acting = config.eval.model_copy(update={"deterministic": deterministic})
    config = config.model_copy(update={"eval": acting})
    evaluator = Evaluator(under_changed_conditions(config))
    try:
        return evaluator(*learned(config, evaluator.policy, saved))
    finally:
        evaluator.close()


if __name__ == "__main__":
    main()
