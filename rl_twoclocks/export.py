"""`python -m rl_twoclocks.export checkpoint=...`: ship a policy as ONNX and as a torch program.

Normaliser and action bounds are inside: raw observations [n, ...] go in, actions that the environment
takes come out, deterministic. What was written is run again and compared with the policy.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_twoclocks.cli import run_plain
from rl_twoclocks.config import ConfigError
from rl_twoclocks.config_commands import ExportCommandConfig

Tensors = tuple[Tensor, ...]
NEEDED = ("onnx", "onnxscript", "onnxruntime")
"""Packages that ONNX needs."""
ENDINGS = (".pt2", ".onnx")
AGREE = 1e-5
"""Largest difference between an exported action and the policy's, relative to its range."""


class DeployedPolicy(nn.Module):
    """The deterministic policy of a checkpoint: raw observations [n, ...] to actions [n, A] or [n].

    Raises:
        ValueError: observations of another shape.
    """

    inputs: tuple[str, ...] = ("observation",)
    outputs: tuple[str, ...] = ("action",)
    shift: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor
    start: Tensor

    def __init__(self, saved: dict[str, Any]) -> None:
        """Build from a loaded checkpoint; its environment is made once, to read its spaces."""
        super().__init__()
        from rl_twoclocks.collect import BehaviourPolicy
        from rl_twoclocks.envs import make_env
        from rl_twoclocks.models import ActionMap
        from rl_twoclocks.state import configuration, learned

        config = configuration(saved)
        collect = config.collect.model_copy(
            update={"backend": "gymnasium", "vectorization": "sync"}
        )
        env = make_env(config.task, collect, 1, [0])
        try:
            policy = BehaviourPolicy.fresh(config, env, None)
            space = env.backend.action_space
            self.layout = None if env.encoding.plain else env.encoding.layout()
            self.action_map = ActionMap(env.action_spec, config.model.squash, "cpu")
            self.shape = tuple(env.observation_shape)
            self.dtype = torch.uint8 if env.image else torch.float32
        finally:
            env.close()
        parameters, normalizer = learned(config, policy, saved)
        policy.publish(parameters, normalizer, 0)
        self.network = policy.network
        self.network.critic = nn.Sequential()
        self.actor = self.network.layers("actor")
        self.normalizes = normalizer.config.observation
        self.clip = normalizer.config.observation_clip
        self.real = self.action_map.real
        self.whole = self.real and np.issubdtype(space.dtype, np.integer)
        """Whether the environment takes whole numbers, which training rounds to."""
        self.action_shape = tuple(space.shape or ())
        self.register_buffer("shift", policy.shift.clone())
        self.register_buffer("scale", policy.scale.clone())
        for name in ("low", "high", "start"):
            self.register_buffer(name, torch.as_tensor(np.array(getattr(space, name, 0))))

    def forward(self, observation: Tensor) -> Tensor:
        """Actions for raw observations [n, ...] in float32; images in bytes."""
        x = self.normalized(observation)
        return self.action(self.actor(x), x)

    def normalized(self, observation: Tensor) -> Tensor:
        """What the network takes, [n, obs] or images."""
        if tuple(observation.shape[1:]) != self.shape:
            raise ValueError(
                f"observations must be [n, {', '.join(map(str, self.shape))}], "
                f"not {list(observation.shape)}"
            )
        x = observation
        if self.normalizes:
            x = ((x - self.shift) * self.scale).clamp(-self.clip, self.clip)
        return x if self.dtype == torch.uint8 else x.flatten(1)

    def action(self, output: Tensor, x: Tensor) -> Tensor:
        """The environment's actions for the actor's output [n, A]."""
        params = self.network.head(output, x)
        action = self.action_map(self.network.distribution.mode(params))
        if self.whole:
            action = action.round()
        return action.reshape(-1, *self.action_shape) + (0 if self.real else self.start)

    def examples(self, n: int = 64) -> Tensors:
        """Inputs of every kind, n of each."""
        return (random_observations(self, n),)

    def output(self) -> dict[str, Any]:
        """What comes out, for those who read the file that describes the export."""
        shape = ["n", *self.action_shape]
        if not self.real:
            return {"dtype": "int64", "shape": shape, "start": self.start.tolist()}
        # JSON has no infinity: where there is no bound, null.
        bounds = {"low": _plain(self.low), "high": _plain(self.high)}
        return {"dtype": "float32", "shape": shape, **bounds}


class DeployedMemoryPolicy(DeployedPolicy):
    """A policy that remembers: its state [n, S] goes in, 0 at an episode's beginning, and comes out."""

    inputs = ("observation", "memory")
    outputs = ("action", "next_memory")

    def forward(self, observation: Tensor, memory: Tensor) -> Tensors:  # type: ignore[override]
        """Actions for raw observations [n, ...] in float32, and the next state."""
        x = self.normalized(observation)
        features, following = self.network.recall(x, memory)
        return self.action(self.actor(features), x), following

    def examples(self, n: int = 64) -> Tensors:
        """Inputs of every kind, n of each."""
        assert self.network.memory is not None
        generator = torch.Generator().manual_seed(1)
        memory = torch.randn(n, self.network.memory.size, generator=generator).tanh()
        return random_observations(self, n), memory


def deployed(saved: dict[str, Any]) -> DeployedPolicy:
    """The policy of a loaded checkpoint, ready to be exported.

    Raises:
        CheckpointError: it is incomplete, or of another version.
    """
    from rl_twoclocks.state import configuration

    remembers = configuration(saved).model.memory != "none"
    return (DeployedMemoryPolicy if remembers else DeployedPolicy)(saved).eval()


def export(command: ExportCommandConfig) -> list[Path]:
    """Write what is asked for, check it, and return the files.

    Raises:
        ConfigError: ONNX is asked for and its packages are not installed.
        CheckpointError: there is no such checkpoint, or it is incomplete.
    """
    from rl_twoclocks.eval import find
    from rl_twoclocks.record import checkpoint
    from rl_twoclocks.rundir import write_text

    onnx, torch_too = (command.format in (kind, "both") for kind in ("onnx", "torch"))
    if onnx and (lack := [name for name in NEEDED if importlib.util.find_spec(name) is None]):
        raise ConfigError(f"format={command.format} needs {lack[0]}: pip install '.[export]'")
    path = find(Path(command.checkpoint).expanduser())
    saved = checkpoint.load(path)
    policy, sha256 = deployed(saved), hashlib.sha256(path.read_bytes()).hexdigest()
    out = Path(command.out).expanduser() if command.out else path.parent / "export"
    name = f"{saved['config']['task']['name']}-{path.stem}" if command.out else path.stem
    try:
        out.mkdir(parents=True, exist_ok=True)
        # Aside until all is written and checked: what was exported before stays whole if this fails.
        with tempfile.TemporaryDirectory(dir=out, prefix=".partial-") as aside:
            made = []
            if torch_too:
                made.append(_torch_program(policy, Path(aside) / f"{name}.pt2"))
            if onnx:
                made.append(_onnx(policy, Path(aside) / f"{name}.onnx"))
            _clear(out, name, sha256)
            written = [file.replace(out / file.name) for file in made]
    except OSError as error:
        raise ConfigError(f"out={out} cannot be written to: {error.strerror}") from error
    layout = {"layout": policy.layout} if policy.layout else {}
    facts = {
        "checkpoint": str(path.absolute()),
        "sha256": sha256,
        "input": {
            "name": "observation",
            "dtype": str(policy.dtype).removeprefix("torch."),
            "shape": ["n", *policy.shape],
            **layout,
        },
        "output": {"name": "action", **policy.output()},
        **_memory(policy),
        "frames": saved["clocks"]["frames"],
        "task": saved["config"]["task"]["env_id"],
        "files": [str(f.absolute()) for e in ENDINGS if (f := out / f"{name}{e}").exists()],
    }
    write_text(out / f"{name}.json", json.dumps(facts, indent=2) + "\n")
    for file in written:
        print(f"{'exported':<10} {file}")
    return written


def _clear(out: Path, name: str, sha256: str) -> None:
    """Remove what another checkpoint's export of this name left: one name is one policy."""
    try:
        facts = json.loads((out / f"{name}.json").read_text())
    except (OSError, ValueError):
        facts = {}
    # By content: `best.pt` is overwritten while the run goes on, and a run may be made anew.
    if facts.get("sha256") != sha256:
        for ending in (".json", *ENDINGS):
            (out / f"{name}{ending}").unlink(missing_ok=True)


def _memory(policy: DeployedPolicy) -> dict[str, Any]:
    if policy.network.memory is None:
        return {}
    shape = ["n", policy.network.memory.size]
    return {"memory": {"input": "memory", "output": "next_memory", "shape": shape, "first": 0.0}}


def _plain(bound: Tensor) -> Any:
    values = [float(x) if torch.isfinite(x) else None for x in bound.flatten()]
    return np.array(values, dtype=object).reshape(bound.shape).tolist()


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
    example = policy.examples(2)
    with warnings.catch_warnings():
        # torch's own, about its internals: nothing that a user could do anything about.
        warnings.simplefilter("ignore")
        shapes = tuple({0: batch} for _ in example)
        program = torch.export.export(policy, example, dynamic_shapes=shapes)
        torch.export.save(program, file)
        again = torch.export.load(file).module()
    _compare(policy, lambda *x: again(*x), file)
    return file


def _onnx(policy: DeployedPolicy, file: Path) -> Path:
    import logging

    import onnxruntime

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    batch = torch.export.Dim("n", min=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            policy,
            policy.examples(2),
            str(file),
            input_names=list(policy.inputs),
            output_names=list(policy.outputs),
            dynamic_shapes=tuple({0: batch} for _ in policy.inputs),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

    def run(*inputs: Tensor) -> Tensors:
        named = {name: x.numpy() for name, x in zip(policy.inputs, inputs, strict=True)}
        return tuple(torch.from_numpy(array) for array in session.run(None, named))

    _compare(policy, run, file)
    return file


def _compare(policy: DeployedPolicy, exported: Any, file: Path) -> None:
    """Refuse a file whose actions are not the policy's."""
    inputs = policy.examples()
    with torch.no_grad():
        expected, got = _tuple(policy(*inputs)), _tuple(exported(*inputs))
    sizes = [torch.tensor(1.0) for _ in expected]
    if policy.real and policy.action_map.bounded:
        sizes[0] = (policy.high - policy.low).abs().double().clamp(min=1e-12)
    elif policy.real:
        # What single precision can tell apart grows with the numbers.
        sizes[0] = expected[0].abs().amax(0).double().clamp(min=1)
    for name, a, b, size in zip(policy.outputs, expected, got, sizes, strict=True):
        difference = float(((a.double() - b.double()).abs() / size).max())
        if not difference <= AGREE:
            file.unlink()
            raise RuntimeError(f"{file.name}: {name} differs from the policy's by {difference:.2g}")


def _tuple(outputs: Tensor | Tensors) -> Tensors:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def main() -> None:
    """Run the command; exit codes are in `rl_twoclocks.cli`."""
    run_plain("export", ExportCommandConfig, export)


if __name__ == "__main__":
    main()
