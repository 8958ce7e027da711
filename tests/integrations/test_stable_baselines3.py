"""The callback for Stable-Baselines3 measures, and changes nothing."""

from __future__ import annotations

import pytest

sb3 = pytest.importorskip("stable_baselines3", reason="pip install '.[benchmark]' to run this")


def learned(env: str, callback=None, frames: int = 1024, **kwargs):
    model = sb3.PPO("MlpPolicy", env, n_steps=256, device="cpu", seed=1, **kwargs)
    return model.learn(frames, callback=callback)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_the_callback_reads_every_rollout_and_changes_no_bit(env: str) -> None:
    from rl_twoclocks.integrations.stable_baselines3 import TwoClocksCallback

    callback = TwoClocksCallback(verbose=0)
    watched, alone = learned(env, callback), learned(env)
    for one, other in zip(watched.policy.parameters(), alone.policy.parameters(), strict=True):
        assert one.equal(other)
    assert callback.history.series("diag/rollout_entropy").size == 4
    assert callback.history.series("diag/kl_behaviour").size == 3
    assert 0 < callback.history.newest("diag/ess") <= 1


def test_the_callback_sees_a_policy_that_runs_ahead() -> None:
    from rl_twoclocks.integrations.stable_baselines3 import TwoClocksCallback

    callback = TwoClocksCallback(verbose=0)
    learned("CartPole-v1", callback, frames=4096, learning_rate=3e-2)
    assert "policy_kl" in {alarm.name for _, alarm in callback.alarms}


def test_one_update_that_destroys_the_policy_is_seen_at_once() -> None:
    from rl_twoclocks.integrations.stable_baselines3 import TwoClocksCallback

    callback = TwoClocksCallback(verbose=0)
    learned("CartPole-v1", callback, learning_rate=1.0)
    assert "policy_kl" in {alarm.name for frames, alarm in callback.alarms if frames == 256}


def test_another_model_is_watched_from_its_start() -> None:
    from rl_twoclocks.integrations.stable_baselines3 import TwoClocksCallback

    callback = TwoClocksCallback(verbose=0)
    learned("Pendulum-v1", callback, frames=512)
    learned("CartPole-v1", callback, frames=512)
    assert callback.history.series("diag/rollout_entropy").size == 2


def test_algorithms_without_rollouts_and_unknown_levels_are_refused() -> None:
    from rl_twoclocks.integrations.stable_baselines3 import TwoClocksCallback

    with pytest.raises(ValueError, match="DQN learns from no rollouts"):
        sb3.DQN("MlpPolicy", "CartPole-v1").learn(10, callback=TwoClocksCallback())
    with pytest.raises(ValueError, match="did you mean calibrated"):
        TwoClocksCallback("calibratd")
