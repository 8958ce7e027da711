"""A recurrent policy: resets, sequences, rollouts, minibatches, evaluation, resuming, export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

import rl_twoclocks
from rl_twoclocks.build import Parts, build
from rl_twoclocks.config import Config, ConfigError, ModelConfig
from rl_twoclocks.config_commands import EvalCommandConfig, ExportCommandConfig
from rl_twoclocks.eval import evaluate_checkpoint, find
from rl_twoclocks.export import DeployedMemoryPolicy, deployed, export
from rl_twoclocks.learner import Round
from rl_twoclocks.memory import Memory, starts, whole_sequences
from rl_twoclocks.record import checkpoint, read_metrics
from rl_twoclocks.safety import settle
from tests.envs import run_config
from tests.sources import collecting

CELLS = ("gru", "lstm")


def memory(kind: str, inputs: int = 3, units: int = 5) -> Memory:
    made = Memory(
        inputs, ModelConfig(memory=kind, memory_units=units), torch.Generator().manual_seed(1)
    )
    for name, parameter in made.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter.data, generator=torch.Generator().manual_seed(2))
    return made


def recurrent(name: str, place: Path, *more: str) -> Config:
    words = ["model=recurrent", "model.hidden=[16]", "model.memory_units=8", "model.sequence=4"]
    return run_config(name, place, *words, *more)


@pytest.mark.parametrize("kind", CELLS)
def test_a_sequence_equals_torchs_whole_layer_with_its_gradient(kind: str) -> None:
    cell = memory(kind)
    layer = (nn.GRU if kind == "gru" else nn.LSTM)(3, 5, batch_first=True)
    state = {f"{name}_l0": value for name, value in cell.cell.state_dict().items()}
    layer.load_state_dict(state)
    x = torch.randn(6, 9, 3, generator=torch.Generator().manual_seed(3))
    first = torch.randn(6, cell.size, generator=torch.Generator().manual_seed(4))
    stored = torch.cat([first.unsqueeze(1), torch.full((6, 8, cell.size), float("nan"))], 1)
    output = cell.unroll(x, stored, torch.zeros(6, 9, 1, dtype=torch.bool))
    given = first.unsqueeze(0)
    if kind == "lstm":
        given = tuple(part.contiguous() for part in given.split(5, -1))
    expected = layer(x, given)[0]
    torch.testing.assert_close(output, expected)
    ours = torch.autograd.grad(output.square().sum(), cell.cell.weight_hh)[0]
    theirs = torch.autograd.grad(expected.square().sum(), layer.weight_hh_l0)[0]
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", CELLS)
def test_weights_are_orthogonal_by_gate_and_follow_from_their_stream(kind: str) -> None:
    a, b = (Memory(3, ModelConfig(memory=kind), torch.Generator().manual_seed(k)) for k in (1, 1))
    for gate in a.cell.weight_hh.split(64):
        torch.testing.assert_close(gate @ gate.T, torch.eye(64), atol=1e-5, rtol=0)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert float(a.cell.bias_ih.detach().abs().max()) == 0.0


@pytest.mark.parametrize("kind", CELLS)
def test_stored_states_are_taken_up_exactly_where_time_is_cut(kind: str) -> None:
    cell, g = memory(kind), torch.Generator().manual_seed(0)
    x, stored = torch.randn(4, 12, 3, generator=g), torch.randn(4, 12, cell.size, generator=g)
    start = torch.rand(4, 12, 1, generator=g) < 0.25
    output = cell.unroll(x, stored, start)
    for n in range(4):
        state = stored[n, :1, :]
        for t in range(12):
            if start[n, t] or t == 0:
                state = stored[n, t : t + 1]
            expected, state = cell.step(x[n, t : t + 1], state)
            torch.testing.assert_close(output[n, t], expected[0])


def test_sequences_start_after_ends_and_cuts() -> None:
    done = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0]], dtype=torch.bool)
    assert starts(done).int().tolist() == [[1, 0, 1, 0], [1, 0, 0, 0]]


def test_trimmed_frames_become_the_sequences_that_hold_most_of_them() -> None:
    keep = torch.tensor([0, 5, 6, 7, 9, 12, 13, 14, 15])
    assert whole_sequences(keep, 16, 4).tolist() == [4, 5, 6, 7, 12, 13, 14, 15]
    assert whole_sequences(torch.tensor([3]), 16, 4).tolist() == [0, 1, 2, 3]


def by_hand(parts: Parts, rollouts: list[TensorDict], start: Tensor) -> None:
    """Run the cell frame by frame over rollouts, from states [N, S], and compare what was stored."""
    behaviour, dist = parts.behaviour, parts.model.distribution
    network = behaviour.network
    state = start
    for rollout in rollouts:
        for t in range(rollout.shape[1]):
            frame = rollout[:, t]
            assert torch.equal(frame["memory"], state)
            x = (frame["observation"] - behaviour.shift) * behaviour.scale
            output, state = network.memory.step(x.clamp(-10, 10), state)
            assert torch.equal(frame["next_memory"], state)
            features = torch.cat([x.clamp(-10, 10), output], -1)
            params = network.head(network.actor(features), x)
            for key, part in zip(dist.keys, params, strict=True):
                torch.testing.assert_close(frame[key], part)
            ended = (frame["terminated"] | frame["truncated"]).unsqueeze(1)
            state = torch.where(ended, 0.0, state)


@pytest.mark.parametrize("kind", CELLS)
@torch.no_grad()
def test_states_run_on_across_rollouts_and_are_0_exactly_after_ends(
    kind: str, tmp_path: Path
) -> None:
    # Episodes of 7 decisions, rollouts of 12: they end anywhere in them.
    more = ["task.kwargs.length=7", "clocks.update_frequency=48", "clocks.batch_size=48"]
    config = recurrent("Target", tmp_path, f"model.memory={kind}", *more)
    with collecting(config) as (parts, source):
        rollouts = [source.next(0, None)[0] for _ in range(3)]
        n = config.num_envs
        assert parts.model.memory is not None
        by_hand(parts, rollouts, torch.zeros(n, parts.model.memory.size))
        joined = torch.cat(rollouts, 1)
        ends = (joined["terminated"] | joined["truncated"])[:, :-1]
        zero = (joined["memory"] == 0).all(-1)
        assert torch.equal(zero[:, 1:], ends)
        assert int(ends.sum()) == 4 * 5
        # New episodes: from 0 again.
        source.begin_new_episodes(1, 5)
        assert bool((source.next(0, None)[0]["memory"][:, 0] == 0).all())


def ready(parts: Parts, rounds: int, *, move: float = 0.0) -> Round:
    """A window of rollouts of this many versions, made ready to learn from."""
    for _ in range(rounds):
        rollout = parts.source.next(parts.clocks.policy_version, None)[0]
        parts.window.append(rollout)
        parts.update_statistics(rollout)
        if move:
            noise = torch.randn(
                parts.flat.vector.shape, generator=torch.Generator().manual_seed(rounds)
            )
            parts.flat.vector.add_(move * noise)
        parts.publish()
    return parts.learner.prepare(parts.window.take())


def losses(parts: Parts, made: Round, length: int) -> tuple[Tensor, Tensor]:
    """The loss of a whole window in sequences of a length, and its critic's and policy's parts."""
    parts.learner.sequence = parts.model.sequence = length
    named = parts.flat.named(parts.flat.vector)
    loss, aux = parts.learner.update.loss(named, *parts.learner._units(made))
    return loss, torch.stack(aux)


@pytest.mark.parametrize("kind", CELLS)
def test_any_split_of_a_window_into_sequences_has_the_loss_of_the_whole(
    kind: str, tmp_path: Path
) -> None:
    config = recurrent("Lengths", tmp_path, f"model.memory={kind}", "algo.entropy_coeff=0.01",
                       "normalize.calibrate=false", "normalize.observation=false")  # fmt: skip
    with collecting(config) as (parts, _), torch.no_grad():
        made = ready(parts, 1)
        whole = losses(parts, made, 16)
        for length in (1, 2, 4, 8):
            part = losses(parts, made, length)
            torch.testing.assert_close(part[0], whole[0], atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(part[1], whole[1], atol=1e-6, rtol=1e-5)


def test_the_split_counts_once_the_policy_has_moved(tmp_path: Path) -> None:
    """Then sequences begin with states of the policy that acted: the test above is no tautology."""
    config = recurrent("Lengths", tmp_path, "normalize.observation=false")
    with collecting(config) as (parts, _), torch.no_grad():
        made = ready(parts, 1)
        parts.flat.vector.add_(0.3 * torch.randn_like(parts.flat.vector))
        assert not torch.allclose(losses(parts, made, 16)[0], losses(parts, made, 2)[0], atol=1e-4)


@torch.no_grad()
def test_recomputed_log_probabilities_equal_the_stored_ones(tmp_path: Path) -> None:
    config = recurrent("Lengths", tmp_path, "clocks.batch_size=128")
    with collecting(config) as (parts, _):
        made = ready(parts, 3)
        # The statistics moved with each rollout; of the newest one they are those that acted.
        made = parts.learner.prepare(parts.source.next(0, None)[0])
        assert float(made.log_ratio.abs().max()) < 1e-5


@torch.no_grad()
def test_values_after_a_time_limit_take_the_state_of_that_moment(tmp_path: Path) -> None:
    more = ["task.kwargs.ends=truncated", "task.kwargs.length=5", "algo.gae_lambda=0.0"]
    config = recurrent("Counter", tmp_path, *more, "normalize.reward=none",
                       "normalize.observation=false")  # fmt: skip
    with collecting(config) as (parts, source):
        rollout = source.next(0, None)[0]
        made = parts.learner.prepare(rollout)
        model, gamma = parts.model, config.algo.gamma
        targets = made.flat["target"].view(rollout.shape)
        for t in range(rollout.shape[1]):
            features, _ = model.recall(
                rollout["next_observation"][:, t], rollout["next_memory"][:, t]
            )
            value = model.critic(features).squeeze(-1)
            torch.testing.assert_close(targets[:, t], rollout["reward"][:, t] + gamma * value)


def test_gradients_of_minibatches_average_to_that_of_the_window(tmp_path: Path) -> None:
    more = ["algo.normalize_advantage=none", "clocks.minibatch_size=16", "normalize=none"]
    with collecting(recurrent("Choice", tmp_path, *more)) as (parts, _):
        with torch.no_grad():
            made = ready(parts, 1)
        each = parts.learner.gradients(made, 4)
        assert each.shape[0] == 4

        def loss(vector: Tensor) -> Tensor:
            units = parts.learner._units(made)
            return parts.learner.update.loss(parts.flat.named(vector), *units)[0]

        whole = torch.func.grad(loss)(parts.flat.vector)
        torch.testing.assert_close(each.mean(0), whole, atol=1e-5, rtol=1e-3)
        cell = [name for name in parts.flat.names if name.startswith("memory.")]
        sizes = dict(zip(parts.flat.names, parts.flat.split(whole), strict=True))
        assert len(cell) == 4
        assert all(float(sizes[name].abs().max()) > 0 for name in cell)


def test_minibatches_hold_whole_sequences_once_each(tmp_path: Path) -> None:
    with collecting(recurrent("Counter", tmp_path, "task.kwargs.length=99")) as (parts, _):
        with torch.no_grad():
            made = ready(parts, 1)
        made.flat["observation"] = torch.arange(64.0).unsqueeze(1)
        batches = [batch[0].squeeze(-1) for batch in parts.learner._minibatches(made)]
        assert [tuple(batch.shape) for batch in batches] == [(8, 4)] * 2
        rows = torch.cat(batches)
        assert bool((rows.diff(dim=1) == 1).all())
        assert bool((rows[:, 0] % 4 == 0).all())
        assert sorted(rows.flatten().tolist()) == list(range(64))
        made.keep = whole_sequences(torch.arange(40, 60), 64, 4)
        kept = torch.cat([batch[0] for batch in parts.learner._minibatches(made)])
        assert set(kept.flatten().tolist()) == set(range(40, 60))


RUNS = {
    "gru": ["model.memory=gru"],
    "lstm": ["model.memory=lstm"],
    "every option": [
        "algo=vtrace", "diagnostics=full", "clocks.batch_size=128", "algo.proximal=ewma",
        "interventions=guard", "optim=adam_agc", "normalize.calibrate=true",
    ],
    "centred": ["algo=centred", "clocks.lag=2", "clocks.lag_mode=ring"],
}  # fmt: skip


@pytest.mark.parametrize("case", RUNS)
@pytest.mark.parametrize("name", ["Target", "Choice"])
def test_a_resumed_run_goes_on_bit_for_bit_and_is_evaluated_and_exported(
    name: str, case: str, tmp_path: Path
) -> None:
    more = [*RUNS[case], "optim.anneal_frames=512", "eval.enabled=true", "eval.episodes=4"]
    more += ["task.kwargs.length=11", "eval.every_frames=128"]

    def to(frames: int, place: str) -> rl_twoclocks.Result:
        config = recurrent(name, tmp_path / place, *more, f"total_frames={frames}")
        return rl_twoclocks.train(config)

    whole = to(512, "whole")
    to(256, "parts")
    parts = to(512, "parts")
    a, b = (checkpoint.load(Path(str(run.checkpoint))) for run in (whole, parts))
    assert torch.equal(a["parameters"], b["parameters"])
    assert torch.equal(a["memory"], b["memory"])
    assert all(torch.equal(a["window"][key], b["window"][key]) for key in a["window"])
    rows = read_metrics(tmp_path / "whole" / "metrics.jsonl")
    if case != "centred":
        assert max(row["clock/first_ratio_error_max"] for row in rows) < 1e-4
    evaluated = evaluate_checkpoint(
        EvalCommandConfig(checkpoint=str(tmp_path / "whole"), episodes=4, num_envs=2)
    )
    assert evaluated == pytest.approx(a["best"], abs=1e-6)
    (file,) = export(ExportCommandConfig(checkpoint=str(tmp_path / "whole"), format="torch"))
    facts = json.loads(file.with_suffix(".json").read_text())
    size = 16 if case == "lstm" else 8
    assert facts["memory"]["shape"] == ["n", size]


@torch.no_grad()
def test_the_exported_policy_step_by_step_acts_like_the_evaluated_one(tmp_path: Path) -> None:
    from rl_twoclocks.evaluate import Evaluator
    from rl_twoclocks.state import learned

    pytest.importorskip("onnxruntime")
    config = recurrent("Target", tmp_path, "total_frames=128")
    rl_twoclocks.train(config)
    saved = checkpoint.load(find(tmp_path))
    export(ExportCommandConfig(checkpoint=str(tmp_path)))
    policy = deployed(saved)
    assert isinstance(policy, DeployedMemoryPolicy)
    evaluator = Evaluator(config)
    evaluator.policy.publish(*learned(config, evaluator.policy, saved), version=0)
    n = evaluator.env.batch_size[0]
    state, begun = torch.zeros(n, 8), torch.ones(n, 1, dtype=torch.bool)
    for t in range(6):
        observation = torch.randn(n, 3, generator=torch.Generator().manual_seed(t))
        begun[:] = t in (0, 3)
        state = torch.where(begun, 0.0, state)
        action, state = policy(observation, state)
        expected = evaluator.policy.act(observation, begun)[0]
        torch.testing.assert_close(action.to(expected), expected, atol=1e-6, rtol=1e-5)
    evaluator.close()


@pytest.mark.parametrize("mode", ["async"])
def test_workers_collect_with_a_memory(mode: str, tmp_path: Path) -> None:
    more = ["collect.workers=2", "task.kwargs.length=5"]
    config = recurrent("Target", tmp_path, f"collect={mode}", *more)
    with collecting(config) as (parts, source):
        found = source.next(0, None)
        assert found is not None
        rollout = found[0]
        states = rollout["memory"]
        ended = rollout["terminated"] | rollout["truncated"]
        assert torch.equal((states == 0).all(-1)[:, 1:], ended[:, :-1])
        with torch.no_grad():
            made = parts.learner.prepare(rollout)
        assert float(made.log_ratio.abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("clocks.minibatch_size=30", "nearest is 32"),
        ("clocks.sample=32", "write clocks.sample=null or model=mlp"),
        ("model.convolutions=[[8,4,2]]", "with model.convolutions is not supported yet"),
        ("model.sequence=7", "not divisible by num_envs=4 x model.sequence=7"),
        ("clocks.update_frequency=60", "nearest are 48 or 64"),
    ],
)
def test_what_cannot_be_cut_into_sequences_is_refused(
    override: str, text: str, tmp_path: Path
) -> None:
    more = ["clocks.minibatch_size=28"] if "sequence" in override else []
    with pytest.raises(ConfigError, match=text):
        settle(recurrent("Counter", tmp_path, *more, override))


@pytest.mark.slow
def test_the_compiled_step_is_the_eager_one(tmp_path: Path) -> None:
    rows = []
    for compiled in ("false", "true"):
        place = tmp_path / compiled
        rl_twoclocks.train(recurrent("Choice", place, f"compile={compiled}"))
        rows.append(read_metrics(place / "metrics.jsonl")[-1])
    for key in ("train/loss", "grad_norm/total", "train/kl"):
        assert rows[0][key] == pytest.approx(rows[1][key], rel=1e-3, abs=1e-6)


def test_restarted_collection_goes_on_with_the_same_states(tmp_path: Path) -> None:
    config, derived = settle(recurrent("Counter", tmp_path, "task.kwargs.length=99"))
    parts = build(config, derived)
    try:
        parts.start_source(config)
        before = parts.source.next(0, None)[0]
        parts.source.close()
        parts.env.hold()
        parts.start_source(config)
        after = parts.source.next(0, None)[0]
        assert torch.equal(after["memory"][:, 0], before["next_memory"][:, -1])
        assert torch.equal(after["observation"][:, 0], before["next_observation"][:, -1])
    finally:
        parts.close()


@pytest.mark.parametrize("kind", CELLS)
def test_a_step_is_that_of_torchs_own_cell(kind: str) -> None:
    made = memory(kind)
    for parameter in made.cell.parameters():
        nn.init.normal_(parameter, std=0.5)
    observation, state = torch.randn(6, 3), torch.randn(6, made.size)
    if kind == "gru":
        expected = (made.cell(observation, state),) * 2
    else:
        output, inner = made.cell(observation, state.split(made.units, -1))
        expected = (output, torch.cat([output, inner], -1))
    torch.testing.assert_close(made.step(observation, state), expected)
