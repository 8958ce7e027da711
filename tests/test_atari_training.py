"""Atari in a run: training, resumption, whole games, export; and the network of images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_twoclocks
from rl_twoclocks import findings
from rl_twoclocks.build import Parts, build
from rl_twoclocks.collect import make_source
from rl_twoclocks.config import ConfigError, ModelConfig
from rl_twoclocks.distributions import Categorical
from rl_twoclocks.models import ActorCritic
from rl_twoclocks.record import checkpoint, read_metrics
from rl_twoclocks.safety import settle

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

SMALL = (
    "task=pong",
    "debug=smoke",
    "logger.display=none",
    "num_envs=2",
    "clocks.batch_size=64",
    "clocks.update_frequency=32",
    "clocks.update_epochs=1",
    "clocks.minibatch_size=32",
    "optim.anneal_frames=128",
    "eval.enabled=false",
)


def train(place: Path, *more: str) -> list[dict[str, Any]]:
    words = [*SMALL, f"run_dir={place}", *more]
    rl_twoclocks.train(rl_twoclocks.compose(words))
    return read_metrics(place / "metrics.jsonl")


def parts_of(*more: str) -> Parts:
    return build(*settle(rl_twoclocks.compose([*SMALL, *more])))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    place = tmp_path_factory.mktemp("pong") / "run"
    return place, train(place, "total_frames=128")


def test_a_run_measures_everything_and_counts_both_kinds_of_frames(
    run: tuple[Path, list[dict[str, Any]]],
) -> None:
    rows = run[1]
    assert [row["clock/frames"] for row in rows] == [32, 64, 96, 128]
    assert [row["clock/simulator_frames"] for row in rows] == [128, 256, 384, 512]
    assert all(row["clock/first_ratio_error_max"] < 1e-4 for row in rows)
    names = ("rollout_entropy", "policy_variance", "feature_rank", "kl_behaviour")
    for name in names:
        assert np.isfinite(rows[0][f"diag/{name}"])
    assert "diag/state_drift" in rows[-1]
    assert rows[-1]["diag/rollout_entropy"] > 0
    # Bytes repeat by nature, and ReLUs that see one scene stand still.
    assert "diag/duplicates" not in rows[-1] and "diag/dead_units" not in rows[-1]


def test_a_resumed_run_goes_on_bit_for_bit(
    run: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """The window holds two rollouts: its older images come from the checkpoint."""
    train(tmp_path, "total_frames=64")
    rows = train(tmp_path, "total_frames=128")
    assert [row["train/loss"] for row in rows] == [row["train/loss"] for row in run[1]]
    saved = [checkpoint.load(checkpoint.listed(place)[-1]) for place in (run[0], tmp_path)]
    assert torch.equal(saved[0]["parameters"], saved[1]["parameters"])


def test_the_doctor_measures_a_checkpoints_window_and_predicts_its_memory(
    run: tuple[Path, list[dict[str, Any]]],
) -> None:
    report = findings.of_window(checkpoint.listed(run[0])[-1])
    assert any(fact.startswith("64 frames") for fact in report.facts)
    # 1,024 frames of 7,056 bytes, two stacks of four numbers each and 11 values: 6.9 + 0.1 MB.
    facts = findings.of_configuration(["task=pong"]).facts
    assert any("window 7.0 MB" in fact or "window 7.1 MB" in fact for fact in facts)


def test_a_checkpoint_plays_whole_games_and_is_exported(
    run: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """A game of Pong ends with 21 points for one side: its raw score is their difference."""
    from rl_twoclocks.config_commands import EvalCommandConfig, ExportCommandConfig
    from rl_twoclocks.eval import evaluate_checkpoint
    from rl_twoclocks.export import export

    path = checkpoint.listed(run[0])[-1]
    command = EvalCommandConfig(checkpoint=str(path), episodes=1, num_envs=1)
    mean = evaluate_checkpoint(command)
    assert -21 <= mean <= 21
    result = json.loads(path.with_name(f"eval-{path.stem}.json").read_text())
    assert result["deterministic"]["eval/length_mean"] > 500
    pytest.importorskip("onnxscript")
    written = export(ExportCommandConfig(checkpoint=str(path), out=str(tmp_path), format="onnx"))
    import onnxruntime

    session = onnxruntime.InferenceSession(str(written[0]))
    images = np.random.default_rng(0).integers(256, size=(3, 4, 84, 84), dtype=np.uint8)
    assert session.get_inputs()[0].type == "tensor(uint8)"
    assert session.run(None, {"observation": images})[0].shape == (3,)


def test_rewards_count_by_their_sign_and_returns_are_raw() -> None:
    parts = parts_of("task=breakout", "total_frames=64")
    raw = torch.tensor([[-7.0, 0.0, 4.0, 1.0]])
    assert parts.normalizer.scale_reward(raw).tolist() == [[-1.0, 0.0, 1.0, 1.0]]
    done = torch.tensor([[False, False, True, False]])
    parts.episodes.update(raw.expand(2, 4), done.expand(2, 4))
    assert parts.episodes.readings()["rollout/return_mean"] == -3.0
    parts.close()


@pytest.mark.parametrize("backend", ["gymnasium", "envpool"])
def test_images_looked_up_by_number_are_those_that_were_acted_on(backend: str) -> None:
    """Acting anew on a rollout's images, episodes' ends included, gives the very same logits."""
    if backend == "envpool":
        pytest.importorskip("envpool")
    more = ("task=breakout", f"collect.backend={backend}", "total_frames=1024")
    sizes = ("clocks.batch_size=512", "clocks.update_frequency=256")
    config, derived = settle(rl_twoclocks.compose([*SMALL, *more, *sizes]))
    parts = build(config, derived)
    parts.source = make_source(parts.env, parts.behaviour, config, 256, 0)
    for _ in range(3):
        parts.window.append(parts.source.next(0, None)[0])
    window = parts.window.take()
    assert bool(window["terminated"].any())
    assert window["observation"].dtype == torch.int64
    ready = parts.learner.prepare(window)
    assert float(ready.log_ratio.abs().max()) < 1e-4
    # The images that follow are the next decision's, except where an episode ended.
    look = parts.learner.look
    going = ~(window["terminated"] | window["truncated"])[:, :-1]
    following = look(window["next_observation"][:, :-1][going])
    assert torch.equal(following, look(window["observation"][:, 1:][going]))
    parts.close()


def test_frames_take_less_than_a_third_of_what_stacks_would() -> None:
    """Numbers and frames of a rollout of 8 x 128 decisions, beside one copy of its stacks."""
    parts = build(*settle(rl_twoclocks.compose(["task=pong"])))
    ring = parts.env.frames
    assert ring is not None
    stacks = 1024 * 4 * 84 * 84
    assert ring.frames.numel() + 2 * 1024 * 4 * 8 < 0.3 * stacks
    parts.close()


def network(shape: tuple[int, ...] = (4, 84, 84)) -> ActorCritic:
    from torchrl.data import Categorical as Choices

    config = rl_twoclocks.compose(["task=pong"]).model
    choices = Choices(6, shape=(1,), dtype=torch.int64)
    return ActorCritic(torch.Size(shape), choices, config, torch.Generator().manual_seed(0))


def test_the_network_has_the_papers_layers() -> None:
    """Weights and biases by hand: 8 x 8 x 4 x 32 and so on; 7 x 7 x 64 = 3,136 inputs to 512 units."""
    sizes = [8 * 8 * 4 * 32 + 32, 4 * 4 * 32 * 64 + 64, 3 * 3 * 64 * 64 + 64]
    sizes += [3136 * 512 + 512, 512 * 6 + 6, 512 + 1]
    model = network()
    assert sum(p.numel() for p in model.parameters()) == sum(sizes)
    images = torch.randint(256, (5, 4, 84, 84), dtype=torch.uint8)
    (logits,), value = model(images)
    assert (logits.shape, value.shape) == ((5, 6), (5,))
    assert torch.equal(model.policy(images)[0], logits)
    assert torch.equal(model.value(images), value)
    assert model.distribution is Categorical


def test_the_network_computes_what_stable_baselines3s_does() -> None:
    torch_layers = pytest.importorskip("stable_baselines3.common.torch_layers")
    import gymnasium as gym

    model = network()
    space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    theirs = torch_layers.NatureCNN(space, 512)
    own = [p for name, p in model.named_parameters() if name.startswith("trunk")]
    for mine, other in zip(own, theirs.parameters(), strict=True):
        other.data.copy_(mine.data)
    images = torch.randint(256, (5, 4, 84, 84), dtype=torch.uint8)
    expected = theirs(images.float() / 255)
    assert torch.allclose(model.trunk(images), expected, atol=1e-5)


def test_images_with_channels_last_are_turned() -> None:
    first, last = network((3, 96, 96)), network((96, 96, 3))
    images = torch.randint(256, (2, 3, 96, 96), dtype=torch.uint8)
    assert torch.equal(first.trunk(images), last.trunk(images.movedim(1, -1)))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["task=pong", "model=mlp"], "write model=cnn normalize.observation=false"),
        (["task=pong", "normalize=default"], "write model=cnn normalize.observation=false"),
        (["task=cartpole", "model=cnn"], "write model=mlp"),
        (["task=pong", "model.convolutions=[[32,8,4],[64,30,2]]"], "too small"),
    ],
)
def test_a_network_that_does_not_fit_is_refused(words: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        build(*settle(rl_twoclocks.compose(words)))


def test_a_trunk_needs_a_layer_to_stand_on() -> None:
    config = ModelConfig(convolutions=[[32, 8, 4]], hidden=[])
    from torchrl.data import Categorical as Choices

    choices = Choices(6, shape=(1,), dtype=torch.int64)
    with pytest.raises(ConfigError, match="hidden"):
        ActorCritic(torch.Size((4, 84, 84)), choices, config, torch.Generator())
