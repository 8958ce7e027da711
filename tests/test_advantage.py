from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.objectives.value.functional import (
    generalized_advantage_estimate,
    vec_generalized_advantage_estimate,
)

import tests.envs  # noqa: F401
from rl_twoclocks.advantage import discounted_sum, estimate, gae, next_values
from rl_twoclocks.collect import make_collector
from rl_twoclocks.config import CollectConfig, TaskConfig
from rl_twoclocks.distributions import Gaussian
from rl_twoclocks.envs import BatchedEnv, make_env
from rl_twoclocks.window import Window, frames_of

GAMMA, LAMBDA = 0.9, 0.8


def loop_gae(value, next_value, reward, terminated, done, gamma, lam) -> tuple[Tensor, Tensor]:
    advantage = torch.zeros_like(value, dtype=torch.float64)
    for n in range(value.shape[0]):
        following = 0.0
        for t in reversed(range(value.shape[1])):
            bootstrap = 0.0 if terminated[n, t] else float(next_value[n, t])
            delta = float(reward[n, t]) + gamma * bootstrap - float(value[n, t])
            following = delta + (0.0 if done[n, t] else gamma * lam * following)
            advantage[n, t] = following
    return advantage, advantage + value


def random_case(seed: int, n: int, t: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    terminated = torch.rand(n, t, generator=g) < 0.15
    truncated = torch.rand(n, t, generator=g) < 0.15
    return {
        "value": torch.randn(n, t, generator=g),
        "next_value": torch.randn(n, t, generator=g),
        "reward": torch.randn(n, t, generator=g),
        "terminated": terminated,
        "done": terminated | truncated,
    }


class _ZeroPolicy(torch.nn.Module):
    """Acts with zeros, with every key that a rollout has."""

    in_keys = ("observation",)
    out_keys = ("action", "raw_action", "loc", "scale", "policy_version")

    def forward(self, td):
        n = td.batch_size[0]
        zero = torch.zeros(n, 1)
        return td.update(
            {
                "action": zero,
                "raw_action": zero,
                "loc": zero,
                "scale": zero + 1,
                "policy_version": torch.zeros(n, dtype=torch.int64),
            }
        )


def counter_env(num_envs: int = 1, seeds: list[int] | None = None, **kwargs) -> BatchedEnv:
    task = TaskConfig(name="counter", env_id="twoclocks-test/Counter-v0", kwargs=kwargs)
    return make_env(task, CollectConfig(), num_envs, seeds or list(range(num_envs)))


def collect(env: BatchedEnv, rollouts: int, length: int) -> list[TensorDict]:
    frames = length * env.batch_size[0]
    collector = make_collector(env, _ZeroPolicy(), frames, CollectConfig())
    try:
        batches = iter(collector)
        return [frames_of(next(batches), Gaussian, False) for _ in range(rollouts)]
    finally:
        collector.shutdown()


def segments(frames: TensorDict) -> TensorDict:
    done = frames["terminated"] | frames["truncated"] | frames["cut"]
    keys = ("observation", "next_observation", "reward", "terminated")
    return TensorDict({**{k: frames[k] for k in keys}, "done": done}, batch_size=frames.shape)


def step_index(observation: Tensor) -> Tensor:
    return observation.squeeze(-1)


def counter_deltas(ends: str, gamma: float = GAMMA) -> list[float]:
    inner = [1 + gamma * (k + 1) - k for k in range(7)]
    return [*inner, 1 + gamma * 8 - 7 if ends == "truncated" else 1.0 - 7.0]


def discounted(deltas: list[float], factor: float) -> list[float]:
    result, following = [], 0.0
    for delta in reversed(deltas):
        following = delta + factor * following
        result.append(following)
    return result[::-1]


@pytest.mark.parametrize("ends", ["terminated", "truncated", "both"])
def test_one_step_errors_of_the_step_counter_are_those_computed_by_hand(ends: str) -> None:
    (frames,) = collect(counter_env(ends=ends), 1, 16)
    advantage, target, value = estimate(segments(frames), step_index, GAMMA, 0.0)
    expected = torch.tensor([counter_deltas(ends) * 2])
    torch.testing.assert_close(advantage, expected)
    torch.testing.assert_close(value, torch.arange(8.0).repeat(1, 2))
    torch.testing.assert_close(target, expected + value)


def test_last_errors_have_their_three_known_values() -> None:
    last = {}
    for ends in ("terminated", "truncated", "both"):
        (frames,) = collect(counter_env(ends=ends), 1, 8)
        last[ends] = float(estimate(segments(frames), step_index, 0.5, 0.0)[0][0, 7])
    assert last == pytest.approx({"terminated": -6.0, "truncated": -2.0, "both": -6.0})


@pytest.mark.parametrize("ends", ["terminated", "truncated", "both"])
def test_ends_out_of_phase_in_four_environments_give_each_its_own_numbers(ends: str) -> None:
    seeds = [0, 3, 6, 5]
    (frames,) = collect(counter_env(4, seeds, ends=ends, stagger=True), 1, 19)
    advantage, _, value = estimate(segments(frames), step_index, GAMMA, LAMBDA)
    deltas = counter_deltas(ends)
    for env, start in enumerate(seeds):
        steps = [(start + t) % 8 for t in range(19)]
        assert value[env].tolist() == steps
        expected: list[float] = []
        for begin in [0, *[t for t in range(1, 19) if steps[t] == 0]]:
            stop = begin + 8 - steps[begin]
            episode = [deltas[k] for k in steps[begin : min(stop, 19)]]
            expected += discounted(episode, GAMMA * LAMBDA)
        torch.testing.assert_close(advantage[env], torch.tensor(expected))


@pytest.mark.parametrize("ends", ["terminated", "truncated", "both"])
def test_rewards_of_the_next_episode_do_not_leak(ends: str) -> None:
    (plain,) = collect(counter_env(ends=ends), 1, 16)
    (flipped,) = collect(counter_env(ends=ends, rewards=[1.0, -50.0]), 1, 16)
    one, two = (estimate(segments(f), step_index, GAMMA, 0.95)[0] for f in (plain, flipped))
    assert torch.equal(one[:, :8], two[:, :8])
    assert (one[:, 8:] - two[:, 8:] > 40).all()


def test_a_constant_critic_of_the_right_height_leaves_nothing_where_episodes_are_truncated() -> (
    None
):
    (frames,) = collect(counter_env(ends="truncated"), 1, 24)
    advantage, _, _ = estimate(
        segments(frames), lambda o: torch.full(o.shape[:-1], 1 / (1 - GAMMA)), GAMMA, 0.95
    )
    assert advantage.abs().max() < 1e-5


def test_a_constant_critic_leaves_minus_its_future_where_episodes_terminate() -> None:
    (frames,) = collect(counter_env(ends="terminated"), 1, 8)
    advantage, _, _ = estimate(segments(frames), lambda o: torch.full(o.shape[:-1], 10.0), 0.9, 0.0)
    assert advantage[0].tolist() == pytest.approx([0.0] * 7 + [-9.0], abs=1e-5)


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_a_window_over_consecutive_rollouts_equals_one_long_rollout(ends: str) -> None:
    seeds = [0, 3]
    parts = collect(counter_env(2, seeds, ends=ends, stagger=True), 4, 5)
    (whole,) = collect(counter_env(2, seeds, ends=ends, stagger=True), 1, 20)
    window = Window(40, 2)
    for rollout in parts:
        window.append(rollout)
    joined = estimate(segments(window.take()), step_index, GAMMA, LAMBDA)
    long = estimate(segments(whole), step_index, GAMMA, LAMBDA)
    for one, two in zip(joined, long, strict=True):
        assert torch.equal(one, two)


def test_a_cut_bootstraps_and_stops_the_sum_but_an_end_does_not_bootstrap() -> None:
    value = torch.tensor([[1.0, 2.0, 4.0]])
    following = torch.tensor([[10.0, 4.0, 8.0]])
    reward = torch.ones(1, 3)
    first = torch.tensor([[True, False, False]])
    never = torch.zeros(1, 3, dtype=torch.bool)
    cut, _ = gae(value, following, reward, never, first, 0.5, 1.0)
    end, _ = gae(value, following, reward, first, first, 0.5, 1.0)
    tail = [1 + 2 - 2 + 0.5 * (1 + 4 - 4), 1 + 4 - 4]
    assert cut[0].tolist() == pytest.approx([1 + 5 - 1, *tail])
    assert end[0].tolist() == pytest.approx([0.0, *tail])


def test_next_values_ask_the_critic_only_where_time_is_cut() -> None:
    asked = []

    def critic(observation: Tensor) -> Tensor:
        asked.append(observation.clone())
        return 100 + observation.squeeze(-1)

    value = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    done = torch.tensor([[False, True, False], [False, False, False]])
    result = next_values(value, done, torch.arange(6.0).view(2, 3, 1), critic)
    assert result.tolist() == [[2.0, 101.0, 102.0], [5.0, 6.0, 105.0]]
    assert asked[0].flatten().tolist() == [1.0, 2.0, 5.0]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("t", [1, 2, 5, 64, 100])
def test_gae_equals_torchrl_and_the_loop(n: int, t: int) -> None:
    case = random_case(100 * n + t, n, t)
    ours = gae(**case, gamma=0.99, gae_lambda=0.95)
    loop = loop_gae(**case, gamma=0.99, lam=0.95)
    columns = {k: case[k].unsqueeze(-1) for k in case}
    theirs = [
        function(
            0.99,
            0.95,
            columns["value"],
            columns["next_value"],
            columns["reward"],
            done=columns["done"],
            terminated=columns["terminated"],
        )
        for function in (generalized_advantage_estimate, vec_generalized_advantage_estimate)
    ]
    for index in (0, 1):
        for other in (loop, *theirs):
            expected = other[index].view(n, t).float()
            torch.testing.assert_close(ours[index], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_gae_equals_the_loop_on_random_shapes_and_discounts(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    n, t = (int(torch.randint(1, high, (1,), generator=g)) for high in (6, 40))
    gamma, lam = (float(torch.rand(1, generator=g)) for _ in range(2))
    case = random_case(seed, n, t)
    ours = gae(**case, gamma=gamma, gae_lambda=lam)
    loop = loop_gae(**case, gamma=gamma, lam=lam)
    for one, two in zip(ours, loop, strict=True):
        torch.testing.assert_close(one, two.float(), atol=1e-5, rtol=1e-5)


def test_permuted_environments_give_permuted_advantages() -> None:
    case = random_case(7, 5, 30)
    order = torch.tensor([3, 0, 4, 1, 2])
    straight = gae(**case, gamma=0.99, gae_lambda=0.95)
    permuted = gae(**{k: v[order] for k, v in case.items()}, gamma=0.99, gae_lambda=0.95)
    assert torch.equal(permuted[0], straight[0][order])
    assert torch.equal(permuted[1], straight[1][order])


@pytest.mark.parametrize("shape", [(12,), (3, 4, 1)])
def test_anything_but_environments_by_time_is_rejected(shape: tuple[int, ...]) -> None:
    case = {k: v.reshape(shape) for k, v in random_case(1, 3, 4).items()}
    with pytest.raises(ValueError, match="must be"):
        gae(**case, gamma=0.99, gae_lambda=0.95)


@pytest.mark.parametrize("name", ["value", "next_value", "reward", "terminated", "done"])
def test_one_argument_of_another_shape_is_named(name: str) -> None:
    case = random_case(1, 3, 4)
    case[name] = case[name][:, :1]
    with pytest.raises(ValueError, match=name if name != "value" else "must be"):
        gae(**case, gamma=0.99, gae_lambda=0.95)


def test_flattened_frames_would_have_leaked() -> None:
    case = random_case(3, 3, 4)
    case["done"][:, -1] = False
    right, _ = gae(**case, gamma=0.99, gae_lambda=0.95)
    leaked, _ = gae(**{k: v.reshape(1, 12) for k, v in case.items()}, gamma=0.99, gae_lambda=0.95)
    assert (leaked.view(3, 4) - right).abs().max() > 1e-2


def test_discounted_sum_by_hand() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    carry = torch.tensor([[0.5, 0.0, 0.5, 0.5]])
    assert discounted_sum(x, carry).tolist() == [[2.0, 2.0, 5.0, 4.0]]
