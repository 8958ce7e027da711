from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import pytest
import torch
import torch_optimizer
from torch import Tensor, nn
from torchrl.data import Bounded
from torchrl.data import Categorical as Choices

from rl_twoclocks.config import AgcConfig, AlgoConfig, InterventionsConfig, ModelConfig, OptimConfig
from rl_twoclocks.configure import compose
from rl_twoclocks.models import ActorCritic
from rl_twoclocks.optim import FlatParameters, adaptive_clip
from rl_twoclocks.optim.agc import unit_norm
from rl_twoclocks.schedule import Schedule
from rl_twoclocks.update import FIELDS, READINGS, Controls, Update

RATE, CLIP = 3e-3, 0.2


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(discrete: bool = False, seed: int = 0) -> ActorCritic:
    spec = Choices(3, shape=(2,)) if discrete else Bounded(-torch.ones(2, 2), torch.ones(2, 2))
    config = ModelConfig(hidden=[8, 8], actor_gain=1.0)
    return ActorCritic(torch.Size([3]), spec, config, torch.Generator().manual_seed(seed))


def minibatch(
    model: ActorCritic, seed: int, n: int = 32, stale: float = 0.0, off: float = 0.0
) -> dict[str, Tensor]:
    """Frames of the model's own policy.

    `stale` and `off` are how far behaviour and proximal log-probabilities are from it.
    """
    g = torch.Generator().manual_seed(seed)
    observation = torch.randn(n, 3, generator=g)
    with torch.no_grad():
        params, value = model(observation)
        action = model.distribution.sample(params, g)
        proximal = model.distribution.log_prob(params, action)
    return {
        "observation": observation,
        "action": action,
        "behaviour_log_prob": proximal + stale * torch.randn(n, generator=g),
        "proximal_log_prob": proximal + off * torch.randn(n, generator=g),
        "advantage": torch.randn(n, generator=g),
        "target": value + torch.randn(n, generator=g),
        "old_value": value,
    }


def make_update(
    model: ActorCritic,
    name: str = "Adam",
    compile_step: bool = False,
    on_nonfinite: str = "stop",
    algo: dict | None = None,
    **optim,
) -> Update:
    update = Update(
        FlatParameters(model),
        AlgoConfig(**(algo or {})),
        OptimConfig(name=name, **optim),
        InterventionsConfig(on_nonfinite=on_nonfinite),
        compile_step=compile_step,
    )
    update.start_round(controls(update))
    return update


def controls(update: Update, **changes: float) -> Controls:
    algo, bound = update.algo, update.optim.max_grad_norm
    values = {
        "learning_rate": RATE,
        "clip_epsilon": CLIP,
        "entropy_coeff": algo.entropy_coeff,
        "max_grad_norm": math.inf if bound is None else bound,
        "kl_limit": 1.5 * algo.target_kl if algo.target_kl else math.inf,
    }
    return Controls(**(values | changes))


def step(update: Update, frames: dict[str, Tensor]) -> dict[str, float]:
    readings = update(*(frames[key] for key in FIELDS))
    return dict(zip(READINGS, readings[: len(READINGS)].tolist(), strict=True))


def hand_loss(model: ActorCritic, frames: dict[str, Tensor]) -> Tensor:
    (loc, scale), value = model(frames["observation"])
    normal = torch.distributions.Normal(loc, scale)
    log_prob = normal.log_prob(frames["action"]).sum(-1)
    weight = (frames["proximal_log_prob"] - frames["behaviour_log_prob"]).exp()
    ratio = (log_prob - frames["proximal_log_prob"]).exp()
    raw = frames["advantage"]
    advantage = (raw - raw.mean()) / (raw.std(correction=0) + 1e-8)
    surrogate = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    critic = (value - frames["target"]).pow(2).mean()
    return -(weight * surrogate).mean() + 0.5 * critic - 0.01 * normal.entropy().sum(-1).mean()


def run_by_hand(
    model: ActorCritic, optimizer: torch.optim.Optimizer, batches: list[dict[str, Tensor]]
) -> Tensor:
    for frames in batches:
        optimizer.zero_grad()
        hand_loss(model, frames).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters())


@pytest.mark.parametrize(
    ("name", "cls", "kwargs"),
    [
        ("Adam", torch.optim.Adam, {"eps": 1e-5}),
        ("Adam", torch.optim.Adam, {"betas": (0.8, 0.95), "weight_decay": 0.1}),
        ("AdamW", torch.optim.AdamW, {"eps": 1e-5, "weight_decay": 0.1}),
        ("AdamW", torch.optim.AdamW, {"eps": 1e-5}),
        ("RAdam", torch.optim.RAdam, {}),
        ("SGD", torch.optim.SGD, {"momentum": 0.9}),
        ("Lamb", torch_optimizer.Lamb, {}),
        ("DiffGrad", torch_optimizer.DiffGrad, {"eps": 1e-5}),
    ],
)
def test_twenty_steps_equal_autograd_clipping_and_the_optimizer(name, cls, kwargs) -> None:
    model = network()
    reference = copy.deepcopy(model)
    start = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    batches = [minibatch(model, seed, stale=0.1, off=0.1) for seed in range(20)]
    expected = run_by_hand(reference, cls(reference.parameters(), lr=RATE, **kwargs), batches)
    update = make_update(model, name, algo={"entropy_coeff": 0.01}, kwargs=kwargs)
    update.start_round(controls(update))
    readings = [step(update, frames) for frames in batches]
    assert all(r["applied"] == 1 for r in readings)
    assert max(r["clip_fraction"] for r in readings) > 0
    assert (expected - start).abs().max() > 1e-3
    torch.testing.assert_close(update.flat.vector, expected.detach(), atol=1e-6, rtol=0)


def test_the_model_sees_the_stepped_parameters() -> None:
    model = network()
    update = make_update(model)
    before = [p.detach().clone() for p in model.parameters()]
    step(update, minibatch(model, 0))
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    vector = nn.utils.parameters_to_vector(model.parameters())
    assert torch.equal(vector.detach(), update.flat.vector)


def test_readings_by_hand() -> None:
    model = network()
    frames = minibatch(model, 0, stale=0.3)
    frames["proximal_log_prob"] = frames["proximal_log_prob"] + 0.25
    reference = copy.deepcopy(model)
    loss = hand_loss(reference, frames)
    loss.backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in reference.parameters()))
    got = step(make_update(model, algo={"entropy_coeff": 0.01}), frames)
    log_prob = frames["proximal_log_prob"] - 0.25
    weight = (log_prob - frames["behaviour_log_prob"]).exp()
    assert got["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert got["kl"] == pytest.approx(math.exp(-0.25) - 1 + 0.25, rel=1e-4)
    assert got["max_ratio"] == pytest.approx(math.exp(-0.25), rel=1e-5)
    assert got["clip_fraction"] == 1.0
    assert got["ess"] == pytest.approx(float(weight.sum() ** 2 / (weight**2).sum() / 32), rel=1e-5)
    assert got["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert got["finite"] == got["applied"] == 1.0


def test_layer_norms_add_up_to_the_total() -> None:
    model = network()
    update = make_update(model)
    frames = minibatch(model, 0)
    readings = update(*(frames[key] for key in FIELDS))
    layers = readings[len(READINGS) :]
    assert len(layers) == len(update.flat.names)
    total = readings[READINGS.index("grad_norm")]
    torch.testing.assert_close(layers.square().sum().sqrt(), total)


@pytest.mark.parametrize("objective", ["clipped", "decoupled", "geppo"])
@pytest.mark.parametrize("shift", [-1.0, 1.0])
def test_kl_is_never_negative_where_proximal_is_not_behaviour(objective: str, shift: float) -> None:
    model = network()
    frames = minibatch(model, 0)
    frames["proximal_log_prob"] = frames["proximal_log_prob"] + shift
    got = step(make_update(model, algo={"objective": objective}), frames)
    assert got["kl"] >= 0


def snapshot(update: Update) -> list[Tensor]:
    state = [update.flat.vector.clone()]
    if update.optimizer is None:
        return [*state, update.moments.clone(), update.steps.clone()]
    for values in update.optimizer.state_dict()["state"].values():
        state += [torch.as_tensor(v).clone() for v in values.values()]
    return state


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("name", ["Adam", "RAdam"])
@pytest.mark.parametrize("mode", ["stop", "skip"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("advantage", math.nan),
        ("advantage", math.inf),
        ("target", -math.inf),
        ("observation", math.nan),
    ],
)
def test_a_step_that_is_not_finite_changes_nothing(
    name: str, mode: str, field: str, value: float
) -> None:
    model = network()
    update = make_update(model, name, on_nonfinite=mode)
    step(update, minibatch(model, 0))
    before = snapshot(update)
    bad = minibatch(model, 1)
    bad[field].view(-1)[3] = value
    got = step(update, bad)
    assert (got["finite"], got["applied"]) == (0.0, 0.0)
    assert same(snapshot(update), before)
    after = step(update, minibatch(model, 2))
    assert after["applied"] == (1.0 if mode == "skip" else 0.0)
    assert same(snapshot(update), before) is (mode == "stop")


def test_a_new_round_lives_again_after_a_stop() -> None:
    model = network()
    update = make_update(model)
    bad = minibatch(model, 1)
    bad["advantage"][0] = math.nan
    step(update, bad)
    assert not update.alive
    update.start_round(controls(update))
    assert step(update, minibatch(model, 2))["applied"] == 1.0


@pytest.mark.parametrize("name", ["Adam", "RAdam"])
def test_no_step_follows_the_first_minibatch_over_the_kl_limit(name: str) -> None:
    model = network()
    update = make_update(model, name, algo={"target_kl": 1e-9})
    update.start_round(controls(update))
    frames = minibatch(model, 0)
    assert step(update, frames)["applied"] == 1.0
    before = snapshot(update)
    over = step(update, frames)
    assert over["kl"] > 1.5e-9
    assert (over["finite"], over["applied"]) == (1.0, 0.0)
    within = minibatch(model, 5)
    later = step(update, within)
    assert later["kl"] < 1.5e-9
    assert later["applied"] == 0.0
    assert same(snapshot(update), before)
    update.start_round(controls(update))
    assert step(update, within)["applied"] == 1.0


def test_the_kl_limit_is_one_and_a_half_times_the_target() -> None:
    model = network()
    frames = minibatch(model, 0)
    frames["proximal_log_prob"] = frames["proximal_log_prob"] + 0.1
    kl = math.exp(-0.1) - 1 + 0.1
    for factor, applied in ((0.98, 0.0), (1.02, 1.0)):
        update = make_update(copy.deepcopy(model), algo={"target_kl": factor * kl / 1.5})
        assert step(update, frames)["applied"] == applied


def test_a_kl_stop_that_never_fires_changes_no_bit() -> None:
    ends = []
    for target in (None, 1e9):
        model = network()
        update = make_update(model, algo={"target_kl": target})
        for seed in range(5):
            step(update, minibatch(model, seed))
        ends.append(snapshot(update))
    assert same(*ends)


@pytest.mark.parametrize("mode", ["off", "observe", "guard"])
def test_a_kl_stop_that_is_asked_for_holds_whatever_the_governor_does(mode: str) -> None:
    config = compose(["task=cartpole", "algo.target_kl=0.01", f"interventions={mode}"])
    assert Schedule(config)(0).kl_limit == pytest.approx(0.015)


def test_agc_bounds_every_unit_of_the_hidden_layers_and_nothing_else() -> None:
    model = network()
    reference = copy.deepcopy(model)
    frames = minibatch(model, 0)
    frames["target"] *= 100
    agc = AgcConfig(enabled=True, clipping=0.01)
    update = make_update(
        model, algo={"entropy_coeff": 0.01}, agc=agc, max_grad_norm=None, learning_rate=0.0
    )
    hand_loss(reference, frames).backward()
    grad, _ = update._clipped_gradient(*(frames[key] for key in FIELDS))
    parts = dict(zip(update.flat.names, update.flat.split(grad), strict=True))
    hidden = {f"{net}.{layer}.weight" for net in ("actor", "critic") for layer in (0, 2)}
    clipped = 0
    for name, parameter in reference.named_parameters():
        got, raw = parts[name], parameter.grad
        if name not in hidden:
            torch.testing.assert_close(got, raw, rtol=1e-4, atol=1e-5)
            continue
        limit = 0.01 * unit_norm(parameter).clamp(min=1e-3)
        assert (unit_norm(got) <= limit * (1 + 1e-5)).all()
        torch.testing.assert_close(
            got, adaptive_clip(parameter, raw, 0.01, 1e-3), rtol=1e-4, atol=1e-5
        )
        clipped += int((unit_norm(raw) > limit).sum())
    assert clipped > 8
    assert model.heads() == set(parts) - hidden


@pytest.mark.parametrize("name", ["Adam", "RAdam"])
def test_state_makes_a_round_trip(name: str) -> None:
    model = network()
    update = make_update(model, name)
    for seed in range(3):
        step(update, minibatch(model, seed))
    twin = copy.deepcopy(model)
    other = make_update(twin, name)
    other.load_state_dict(copy.deepcopy(update.state_dict()))
    for seed in range(3, 6):
        frames = minibatch(network(), seed)
        step(update, frames)
        step(other, frames)
    assert same(snapshot(update), snapshot(other))


@pytest.mark.parametrize(("one", "two"), [("Adam", "RAdam"), ("RAdam", "Adam")])
def test_the_state_of_another_kind_of_optimizer_is_refused(one: str, two: str) -> None:
    state = make_update(network(), one).state_dict()
    with pytest.raises(ValueError, match="another kind"):
        make_update(network(), two).load_state_dict(state)


def test_choices_take_steps_too() -> None:
    model = network(discrete=True)
    update = make_update(model)
    frames = minibatch(model, 0)
    got = [step(update, frames) for _ in range(3)]
    assert [g["applied"] for g in got] == [1.0] * 3
    assert got[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert got[2]["kl"] > 0


@pytest.mark.slow
def test_the_compiled_step_equals_the_eager_one() -> None:
    torch.compiler.reset()
    ends, rows = [], []
    for compiled in (False, True):
        model = network()
        algo = {"target_kl": 0.02, "entropy_coeff": 0.01, "value_clip": 0.2}
        update = make_update(
            model, compile_step=compiled, algo=algo, agc=AgcConfig(enabled=True, clipping=0.01)
        )
        update.start_round(controls(update))
        batches = [minibatch(model, seed, stale=0.1) for seed in range(8)]
        batches[6]["advantage"][0] = math.nan
        rows.append([step(update, frames) for frames in batches])
        update.start_round(controls(update))
        rows[-1].append(step(update, batches[0]))
        ends.append(snapshot(update))
    for one, two in zip(*ends, strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)
    assert [r["applied"] for r in rows[0]] == [r["applied"] for r in rows[1]]
    for one, two in zip(*rows, strict=True):
        assert one == pytest.approx(two, rel=1e-3, abs=1e-5, nan_ok=True)


@pytest.mark.slow
def test_a_second_compiled_step_in_one_process_has_its_own_settings() -> None:
    torch.compiler.reset()
    frames = minibatch(network(), 0, off=0.3)
    rows = []
    for target in (None, 1e-9):
        update = make_update(network(), compile_step=True, algo={"target_kl": target})
        rows.append(step(update, frames))
    assert rows[0]["kl"] > 1.5e-9
    assert [row["applied"] for row in rows] == [1.0, 0.0]
