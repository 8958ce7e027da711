from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rl_twoclocks
from rl_twoclocks.config_commands import EvalCommandConfig
from rl_twoclocks.eval import evaluate_checkpoint
from rl_twoclocks.evaluate import Evaluator
from rl_twoclocks.normalize import Normalizer
from rl_twoclocks.record import read_metrics
from rl_twoclocks.record.checkpoint import CheckpointError, listed
from tests.envs import REPOSITORY, run_config

EVAL = ("eval.enabled=true", "eval.episodes=4", "eval.num_envs=4")
LEARN = ("optim.learning_rate=1e-2", "total_frames=512")


def trained(path: Path, *more: str) -> rl_twoclocks.Result:
    return rl_twoclocks.train(run_config("Shifted", path, *LEARN, *EVAL, *more))


def command(checkpoint: str | Path, episodes: int = 4, num_envs: int = 4, **more) -> dict:
    path = Path(checkpoint)
    arguments = {"checkpoint": str(path), "episodes": episodes, "num_envs": num_envs, **more}
    evaluate_checkpoint(EvalCommandConfig(**arguments))
    return json.loads(path.with_name(f"eval-{path.stem}.json").read_text())


def digest(normalizer: Normalizer) -> str:
    state = normalizer.state_dict()
    parts = [state["discounted"]]
    for name in ("observation", "returns"):
        parts += [torch.tensor(state[name]["count"]), state[name]["mean"], state[name]["m2"]]
    parts += [normalizer.shift, normalizer.scale]
    return hashlib.sha256(b"".join(p.numpy().tobytes() for p in parts)).hexdigest()


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_command_equals_the_last_evaluation_of_the_run(
    deterministic: bool, tmp_path: Path
) -> None:
    result = trained(tmp_path, f"eval.deterministic={str(deterministic).lower()}")
    stored = command(result.checkpoint)
    kind = "deterministic" if deterministic else "stochastic"
    last = read_metrics(tmp_path / "metrics.jsonl")[-1]
    assert stored["frames"] == last["frames"] == 512
    assert result.return_mean == last["eval/return_mean"]
    for name in ("mean", "std", "min", "max"):
        key = f"eval/return_{name}"
        assert stored[kind][key] == pytest.approx(last[key], abs=1e-6)
    assert stored[kind]["eval/episodes"] == last["eval/episodes"] == 4
    assert stored["deterministic"]["returns"] != stored["stochastic"]["returns"]


def test_another_seed_gives_other_episodes_and_the_same_seed_the_same(tmp_path: Path) -> None:
    result = trained(tmp_path, "eval.seed=5")
    own = command(result.checkpoint)
    assert own["deterministic"]["eval/return_mean"] == pytest.approx(result.return_mean, abs=1e-6)
    assert command(result.checkpoint, seed=5) == own
    assert (
        command(result.checkpoint, seed=6)["deterministic"]["returns"]
        != (own["deterministic"]["returns"])
    )


def test_the_policy_needs_the_training_statistics(tmp_path: Path) -> None:
    result = trained(tmp_path)
    own = command(result.checkpoint)["deterministic"]["returns"]
    state = torch.load(result.checkpoint, weights_only=True)
    observation = state["normalizer"]["observation"]
    assert observation["count"] == 512
    assert observation["mean"].tolist() == pytest.approx([100.0] * 3, abs=1.0)
    observation["mean"].zero_()
    torch.save(state, tmp_path / "shifted.pt")
    assert command(tmp_path / "shifted.pt")["deterministic"]["returns"] != own


@pytest.mark.parametrize("deterministic", [True, False])
def test_evaluation_leaves_the_statistics_as_they_were(
    deterministic: bool, tmp_path: Path, monkeypatch
) -> None:
    pairs: list[tuple[str, str]] = []
    call = Evaluator.__call__

    def watched(self, parameters, normalizer, *rest):
        before = digest(normalizer)
        result = call(self, parameters, normalizer, *rest)
        pairs.append((before, digest(normalizer)))
        return result

    monkeypatch.setattr(Evaluator, "__call__", watched)
    trained(tmp_path, "eval.every_frames=64", f"eval.deterministic={str(deterministic).lower()}")
    assert len(pairs) == 8
    assert all(before == after for before, after in pairs)
    assert len({before for before, _ in pairs}) == 8


def test_evaluation_changes_no_bit_of_training(tmp_path: Path) -> None:
    ends = []
    for name, more in (
        ("never", ("eval.enabled=false",)),
        ("always", ("eval.every_frames=64", "eval.deterministic=false")),
    ):
        trained(tmp_path / name, *more)
        rows = read_metrics(tmp_path / name / "metrics.jsonl")
        state = torch.load(listed(tmp_path / name)[-1], weights_only=True)
        ends.append((state, rows))
    (one, rows), (two, other) = ends
    assert torch.equal(one["parameters"], two["parameters"])
    assert torch.equal(one["update"]["moments"], two["update"]["moments"])
    for name in ("policy", "minibatch"):
        assert torch.equal(one["random"][name], two["random"][name])
    for a, b in zip(rows, other, strict=True):
        keys = {k for k in a if not k.startswith("time/")}
        assert {k: a[k] for k in keys} == {k: b[k] for k in keys}


def test_evaluation_leaves_global_random_numbers_alone(tmp_path: Path) -> None:
    config = run_config("Shifted", tmp_path, *EVAL, "eval.deterministic=false")
    evaluator = Evaluator(config)
    normalizer = Normalizer((3,), 1, 0.9, config.normalize)
    before = torch.get_rng_state()
    first = evaluator(evaluator.policy.flat.vector.clone(), normalizer)
    again = evaluator(evaluator.policy.flat.vector.clone(), normalizer)
    evaluator.close()
    assert torch.equal(torch.get_rng_state(), before)
    assert first == again


def test_a_told_evaluation_stops(tmp_path: Path) -> None:
    config = run_config("Shifted", tmp_path, *EVAL)
    evaluator = Evaluator(config)
    normalizer = Normalizer((3,), 1, 0.9, config.normalize)
    assert evaluator(evaluator.policy.flat.vector.clone(), normalizer, lambda: True) is None
    evaluator.close()


@pytest.mark.parametrize(
    "gone",
    [("normalizer",), ("normalizer", "observation"), ("normalizer", "observation", "count")],
)
def test_a_checkpoint_without_statistics_is_refused(gone: tuple[str, ...], tmp_path: Path) -> None:
    result = trained(tmp_path / "run")
    state = torch.load(result.checkpoint, weights_only=True)
    inner = state
    for key in gone[:-1]:
        inner = inner[key]
    del inner[gone[-1]]
    path = tmp_path / "without.pt"
    torch.save(state, path)
    with pytest.raises(CheckpointError, match=r"lacks.*normalizer"):
        evaluate_checkpoint(EvalCommandConfig(checkpoint=str(path)))
    assert not path.with_name("eval-without.json").exists()


def test_a_resume_from_a_checkpoint_without_statistics_is_refused(tmp_path: Path) -> None:
    result = trained(tmp_path)
    state = torch.load(result.checkpoint, weights_only=True)
    del state["normalizer"]
    for path in listed(tmp_path):
        torch.save(state, path)
    with pytest.raises(CheckpointError, match="lacks normalizer"):
        trained(tmp_path, "total_frames=1024")


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    result = trained(tmp_path / "run")
    state = torch.load(result.checkpoint, weights_only=True)
    state["parameters"] = state["parameters"][:-1]
    torch.save(state, tmp_path / "short.pt")
    with pytest.raises(CheckpointError, match="another network"):
        evaluate_checkpoint(EvalCommandConfig(checkpoint=str(tmp_path / "short.pt")))


@pytest.mark.slow
def test_the_command_line_stores_the_last_evaluation_of_the_run(tmp_path: Path) -> None:
    result = trained(tmp_path)
    arguments = [f"checkpoint={result.checkpoint}", "episodes=4", "num_envs=4"]
    done = subprocess.run(
        [sys.executable, "-m", "rl_twoclocks.eval", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    path = Path(result.checkpoint)
    stored = json.loads(path.with_name(f"eval-{path.stem}.json").read_text())
    assert stored["deterministic"]["eval/return_mean"] == pytest.approx(
        result.return_mean, abs=1e-6
    )
