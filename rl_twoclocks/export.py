"""`python -m rl_twoclocks.export checkpoint=...`: ship a policy as ONNX and as a torch program.

Normaliser and action bounds are inside: raw observations [n, ...] go in, actions that the environment
takes come out, deterministic. What was written is run again and compared with the policy.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_twoclocks.cli import run_plain
from rl_twoclocks.config import ConfigError
from rl_twoclocks.config_commands import ExportCommandConfig

AGREE = 1e-5
"""Largest difference between an exported action and the policy's, relative to its range."""


class DeployedPolicy(nn.Module):
    """The deterministic policy of a checkpoint: raw observations [n, ...] to actions [n, A] or [n].

    Raises:
        ValueError: observations of another shape.
    """

    shift: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, saved: dict[str, Any]) -> None:
        """Build from a loaded checkpoint; its environment is made once, to read its spaces."""
        super().__init__()
        from rl_twoclocks.collect import BehaviourPolicy
        from rl_twoclocks.config import Config
        from rl_twoclocks.envs import make_env
        from rl_twoclocks.state import learned

        config = Config.model_validate(saved["config"])
        collect = config.collect.model_copy(
            update={"backend": "gymnasium", "vectorization": "sync"}
        )
        env = make_env(config.task, collect, 1, [0])
        try:
            policy = BehaviourPolicy.fresh(config, env, None)
            space = env.backend.action_space
            self.shape = tuple(env.observation_shape)
            self.dtype = torch.uint8 if env.image else torch.float32
        finally:
            env.close()
        parameters, normalizer = learned(config, policy, saved)
        policy.publish(parameters, normalizer, 0)
        self.actor = policy.network.layers("actor")
        self.normalizes = normalizer.config.observation
        self.clip = normalizer.config.observation_clip
        self.bounded = hasattr(space, "low")
        self.start = int(getattr(space, "start", 0))
        self.squash = config.model.squash
        self.register_buffer("shift", policy.shift.clone())
        self.register_buffer("scale", policy.scale.clone())
        self.register_buffer("low", torch.as_tensor(np.array(getattr(space, "low", 0.0))))
        self.register_buffer("high", torch.as_tensor(np.array(getattr(space, "high", 0.0))))

    def forward(self, observation: Tensor) -> Tensor:
        """Actions for raw observations [n, ...] in float32; images in bytes."""
        if tuple(observation.shape[1:]) != self.shape:
            raise ValueError(
                f"observations must be [n, {', '.join(map(str, self.shape))}], "
                f"not {list(observation.shape)}"
            )
        x = observation
        if self.normalizes:
            x = ((x - self.shift) * self.scale).clamp(-self.clip, self.clip)
        output = self.actor(x if self.dtype == torch.uint8 else x.flatten(1))
        if not self.bounded:
            return output.argmax(-1) + self.start
        raw = torch.tanh(output) if self.squash == "tanh" else output.clamp(-1, 1)
        centre, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        # Rounding may push centre + half * 1 past the bound by one unit in the last place.
        return torch.minimum(torch.maximum(centre + half * raw, self.low), self.high)

    def output(self) -> dict[str, Any]:
        """What comes out, for those who read the file that describes the export."""
        if not self.bounded:
            return {"dtype": "int64", "shape": ["n"], "start": self.start}
        bounds = {"low": self.low.tolist(), "high": self.high.tolist()}
        return {"dtype": "float32", "shape": ["n", *self.low.shape], **bounds}


def export(command: ExportCommandConfig) -> list[Path]:
    """Write what is asked for, check it, and return the files.

    Raises:
        ConfigError: ONNX is asked for and its packages are not installed.
        CheckpointError: there is no such checkpoint, or it is incomplete.
    """
    from rl_twoclocks import state
    from rl_twoclocks.eval import find
    from rl_twoclocks.record import checkpoint

    path = find(Path(command.checkpoint).expanduser())
    saved = checkpoint.load(path)
    state.check(saved)
    out = Path(command.out).expanduser() if command.out else path.parent / "export"
    try:
        out.mkdir(parents=True, exist_ok=True)
        # Before the work, not after it: a folder that cannot be written to is found out here.
        (out / ".partial").touch()
        (out / ".partial").unlink()
    except OSError as error:
        raise ConfigError(f"out={out} cannot be written to: {error.strerror}") from error
    name = f"{saved['config']['task']['name']}-{path.stem}" if command.out else path.stem
    policy = DeployedPolicy(saved).eval()
    written = []
    if command.format in ("torch", "both"):
        written.append(_torch_program(policy, out / f"{name}.pt2"))
    if command.format in ("onnx", "both"):
        written.append(_onnx(policy, out / f"{name}.onnx"))
    facts = {
        "checkpoint": str(path.absolute()),
        "input": {
            "name": "observation",
            "dtype": str(policy.dtype).removeprefix("torch."),
            "shape": ["n", *policy.shape],
        },
        "output": {"name": "action", **policy.output()},
        "frames": saved["clocks"]["frames"],
        "task": saved["config"]["task"]["env_id"],
        "files": [str(file.absolute()) for file in written],
    }
    (out / f"{name}.json").write_text(json.dumps(facts, indent=2) + "\n")
    for file in written:
        print(f"{'exported':<10} {file}")
    return written


def random_observations(policy: DeployedPolicy, n: int = 64) -> Tensor:
    """Observations [n, ...] around those the policy knows, some far beyond them."""
    generator = torch.Generator().manual_seed(0)
    if policy.dtype == torch.uint8:
        return torch.randint(256, (n, *policy.shape), generator=generator, dtype=torch.uint8)
    noise = torch.randn(n, *policy.shape, generator=generator)
    noise[: n // 8] *= 100
    return (policy.shift + noise / policy.scale).float()


def _torch_program(policy: DeployedPolicy, file: Path) -> Path:
    batch = torch.export.Dim("n", min=1)
    example = random_observations(policy, 2)
    with warnings.catch_warnings():
        # torch's own, about its internals: nothing that a user could do anything about.
        warnings.simplefilter("ignore")
        program = torch.export.export(policy, (example,), dynamic_shapes=({0: batch},))
        torch.export.save(program, file)
        again = torch.export.load(file).module()
    _compare(policy, lambda x: again(x), file)
    return file


def _onnx(policy: DeployedPolicy, file: Path) -> Path:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"format=onnx needs {error.name}: pip install '.[export]'") from None
    import logging

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    batch = torch.export.Dim("n", min=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            policy,
            (random_observations(policy, 2),),
            str(file),
            input_names=["observation"],
            output_names=["action"],
            dynamic_shapes=({0: batch},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    _compare(
        policy,
        lambda x: torch.from_numpy(session.run(None, {"observation": x.numpy()})[0]),
        file,
    )
    return file


def _compare(policy: DeployedPolicy, exported: Any, file: Path) -> None:
    """Refuse a file whose actions are not the policy's."""
    observation = random_observations(policy)
    with torch.no_grad():
        expected, got = policy(observation), exported(observation)
    size = (policy.high - policy.low).abs().max() if policy.bounded else torch.tensor(1.0)
    difference = float((expected.double() - got.double()).abs().max() / size.clamp(min=1e-12))
    if not difference <= AGREE:
        file.unlink()
        raise RuntimeError(
            f"{file.name}: exported actions differ from the policy's by {difference:.2g}"
        )


def main() -> None:
    """Run the command; exit codes are in `rl_twoclocks.cli`."""
    run_plain("export", ExportCommandConfig, export)


if __name__ == "__main__":
    main()
