"""The exported policy acts exactly like the checkpoint's."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_twoclocks import export as exporting
from rl_twoclocks.config import ConfigError
from rl_twoclocks.config_commands import ExportCommandConfig
from rl_twoclocks.eval import find
from rl_twoclocks.export import DeployedPolicy, export, random_observations
from rl_twoclocks.record import checkpoint
from tests.command_envs import command, run

TASKS = {
    "pendulum": ["task=pendulum"],
    "cartpole": ["task=cartpole"],
    "hopper, clipped actions": ["task=hopper", "model.squash=clip"],
    "no normaliser": ["task=pendulum", "normalize=none"],
}


@pytest.fixture(scope="module", params=list(TASKS))
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    run(folder, *TASKS[request.param], "optim.learning_rate=1e-2", rounds=3)
    return folder


def acting(policy: torch.nn.Module, observation: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return policy(torch.from_numpy(observation.astype(np.float32))).numpy()


def episode(env_id: str, act, steps: int = 200) -> float:
    env = gym.make(env_id)
    observation, _ = env.reset(seed=3)
    total = 0.0
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = env.step(act(observation[None])[0])
        total += float(reward)
        if terminated or truncated:
            break
    env.close()
    return total


def test_both_files_act_like_the_policy_in_a_gymnasium_loop(trained: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    program, onnx = export(ExportCommandConfig(checkpoint=str(trained)))
    saved = checkpoint.load(find(trained))
    policy, env_id = DeployedPolicy(saved), saved["config"]["task"]["env_id"]
    module = torch.export.load(program).module()
    session = onnxruntime.InferenceSession(str(onnx), providers=["CPUExecutionProvider"])

    def by_onnx(observation: np.ndarray) -> np.ndarray:
        return session.run(None, {"observation": observation.astype(np.float32)})[0]

    expected = episode(env_id, lambda o: acting(policy, o))
    assert episode(env_id, lambda o: acting(module, o)) == pytest.approx(expected, abs=1e-3)
    assert episode(env_id, by_onnx) == pytest.approx(expected, abs=1e-3)


def test_the_deployed_policy_is_the_one_that_is_evaluated(trained: Path) -> None:
    from rl_twoclocks.config import Config
    from rl_twoclocks.evaluate import Evaluator
    from rl_twoclocks.state import learned

    saved = checkpoint.load(find(trained))
    evaluator = Evaluator(Config.model_validate(saved["config"]))
    evaluator.policy.publish(*learned(evaluator_config(saved), evaluator.policy, saved), version=0)
    policy = DeployedPolicy(saved)
    seen = random_observations(policy, evaluator.env.batch_size[0])
    expected = evaluator.policy.act(seen)[0]
    with torch.no_grad():
        got = policy(seen)
    evaluator.close()
    torch.testing.assert_close(got.to(expected), expected, atol=1e-6, rtol=1e-5)


def evaluator_config(saved: dict):
    from rl_twoclocks.config import Config

    return Config.model_validate(saved["config"])


def test_actions_stay_inside_the_bounds_far_from_what_was_seen(trained: Path) -> None:
    policy = DeployedPolicy(checkpoint.load(find(trained)))
    with torch.no_grad():
        action = policy(1e6 * random_observations(policy))
    if policy.real:
        assert bool((action >= policy.low).all() and (action <= policy.high).all())
    else:
        assert set(action.tolist()) <= {0, 1}


def test_another_shape_is_refused_by_name(trained: Path) -> None:
    policy = DeployedPolicy(checkpoint.load(find(trained)))
    with pytest.raises(ValueError, match=r"observations must be \[n, \d+\], not \[4, 99\]"):
        policy(torch.zeros(4, 99))


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    done = command([f"checkpoint={tmp_path / 'none.pt'}"], tmp_path, "export")
    assert done.returncode == 2
    assert "none.pt" in done.stderr
    wrong = command(["checkpoint=x", "format=onix"], tmp_path, "export")
    assert wrong.returncode == 2
    assert "format" in wrong.stderr


def test_a_name_never_stands_for_two_policies(tmp_path: Path) -> None:
    out = tmp_path / "shared"
    for seed in (1, 2):
        run(tmp_path / f"seed{seed}", "task=pendulum", f"seed={seed}", rounds=2)
    first, second = (find(tmp_path / f"seed{seed}") for seed in (1, 2))
    assert first.name == second.name
    (out).mkdir()
    export(ExportCommandConfig(checkpoint=str(first), out=str(out), format="torch"))
    stale = next(out.glob("*.pt2")).with_suffix(".onnx")
    stale.write_text("of the first policy")
    export(ExportCommandConfig(checkpoint=str(first), out=str(out), format="torch"))
    assert stale.exists()
    facts = json.loads(stale.with_suffix(".json").read_text())
    assert [Path(file).suffix for file in facts["files"]] == [".pt2", ".onnx"]
    # The same path and number of frames, another policy.
    first.write_bytes(second.read_bytes())
    export(ExportCommandConfig(checkpoint=str(first), out=str(out), format="torch"))
    assert not stale.exists()
    stale.write_text("of the first policy")
    run(tmp_path / "seed2", "task=pendulum", "seed=3", "on_existing=overwrite", rounds=2)
    export(ExportCommandConfig(checkpoint=str(second), out=str(out), format="torch"))
    assert not stale.exists()


def test_what_onnx_lacks_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "run", "task=pendulum", "seed=1", rounds=2)
    monkeypatch.setattr(exporting, "NEEDED", ("no_such_package",))
    with pytest.raises(ConfigError, match="format=both needs no_such_package"):
        export(ExportCommandConfig(checkpoint=str(tmp_path / "run"), out=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("breaks", ["_compare", "_torch_program"])
def test_an_export_that_fails_leaves_the_one_before_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    run(tmp_path / "run", "task=pendulum", rounds=2)
    wanted = ExportCommandConfig(checkpoint=str(tmp_path / "run"), format="torch")
    export(wanted)
    before = {p.name: p.read_bytes() for p in (tmp_path / "run" / "export").iterdir()}
    run(tmp_path / "run", "task=pendulum", "seed=3", "on_existing=overwrite", rounds=2)
    (tmp_path / "run" / "export").mkdir(exist_ok=True)
    for name, data in before.items():
        (tmp_path / "run" / "export" / name).write_bytes(data)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"rl_twoclocks.export.{breaks}", full)
    with pytest.raises(ConfigError, match="cannot be written to: No space left"):
        export(wanted)
    after = {p.name: p.read_bytes() for p in (tmp_path / "run" / "export").iterdir()}
    assert after == before and {Path(name).suffix for name in before} == {".pt2", ".json"}
