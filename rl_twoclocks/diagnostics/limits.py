"""The levels of all alarms, in two named sets.

`seed` holds the write-ups' own numbers, on their estimators. `calibrated` was tuned on runs of
Pendulum and Walker2d and scored on HalfCheetah, Hopper and CartPole (docs/signs.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from rl_twoclocks.config import Config, ConfigError
from rl_twoclocks.nearest import did_you_mean


@dataclass(frozen=True)
class Limits:
    """One level per sign; a sign is bad beyond it."""

    first_ratio_mean: float = 1e-5
    """|log ratio| on the newest rollout before the first step, mean."""
    first_ratio_max: float = 1e-4
    """The same, maximum."""
    lag_watch: float = 1.0
    """Versions by which the newest data is older than the learner."""
    lag_warn: float = 4.0
    """The same, a warning."""
    lag_danger: float = 8.0
    """The same, danger (asynchronous PPO holds 4 to 8 with a decoupled objective)."""
    publish_late: float = 1.0
    """Versions that the collectors' policy may lag behind; never less than `clocks.publish_interval`."""
    ratio_watch: float = 10.0
    """Measured clock ratio."""
    ratio_danger: float = 50.0
    """Measured clock ratio at which failure is expected."""
    entropy_low: float = 2.5
    """Bits of A's estimator (`seed`), or bits below the run's own start (`calibrated`)."""
    entropy_danger: float = 2.0
    """The same, danger."""
    entropy_floor: float = 0.3
    """Share of the most bits that so many frames can have, below which any run is too narrow."""
    places: float = 1.5
    """Places (2 to the entropy) per environment, below which each environment stands still."""
    entropy_sudden: float = 4.0
    """Bits lost from one rollout to the next that are a fault however well the task is learnt."""
    entropy_relative: float = 1.0
    """1: `entropy_low` and `entropy_danger` count from the run's own start; 0: they are absolute."""
    duplicates: float = 0.5
    """Share of frames that are exact copies, where states are continuous."""
    drift: float = 3.0
    """KL between consecutive rollouts' states, nats."""
    kl_watch: float = 0.015
    """KL(behaviour || current) after a round, nats per action dimension and version spanned."""
    kl_warn: float = 0.02
    """The same, warn."""
    kl_danger: float = 0.1
    """The same, danger."""
    chi_warn: float = 0.035
    """1 / ESS - 1 after a round, per action dimension and version spanned."""
    chi_danger: float = 0.3
    """The same, danger."""
    clip_fraction: float = 0.18
    """Share of frames outside the trust region, mean over a round, per root of action dimensions."""
    gradient_norm: float = 5.0
    """Gradient norm of a layer (healthy below 3)."""
    gradient_relative: float = 0.0
    """... and this many times the run's own median ..."""
    gradient_ceiling: float = 100.0
    """... or beyond this, whatever is usual in the run."""
    participation: float = 1.5
    """Participation ratio of minibatch gradients."""
    score_residual: float = 30.0
    """Mean score over its sampling noise."""
    baseline_leak: float = 0.5
    """Share of the gradient's variance that is leak."""
    periodicity: float = 0.25
    """Share of the detrended critic loss's power at one period."""
    critic_jump: float = 0.2
    """Relative jump of the critic loss of the first pass, alone."""
    critic_jump_narrow: float = 0.15
    """The same while the rollout entropy is low."""
    critic_jump_noise: float = 0.0
    """... and this many times the usual jump of the run."""
    staircase: float = 5.0
    """Windows for which the reward variance stays above its alert line."""
    staircase_rise: float = 3.0
    """Level of the variance of scaled returns (`seed`), or times the run's own median."""
    staircase_relative: float = 0.0
    """1: `staircase_rise` counts in the run's own median; 0: it is absolute."""
    cliff_rounds: float = 5.0
    """Rounds in a row with a score below half of its best."""
    dead_units: float = 0.25
    """Share of hidden units that do not vary."""
    rank_fall: float = 0.5
    """Feature rank over its own highest."""
    blind: float = 0.05
    """Variance of the policy over states, relative to its own highest."""
    memory: float = 1.0
    """Growth of memory in MB per round."""
    idle: float = 30.0
    """Utilisation of the device in percent below which it idles."""
    gap: float = 0.5
    """Score under changed conditions over the score in training."""


CALIBRATED = Limits(
    entropy_low=3.0,
    entropy_danger=5.0,
    gradient_relative=4.0,
    critic_jump=1.0,
    critic_jump_narrow=0.5,
    critic_jump_noise=8.0,
    staircase=15.0,
    staircase_relative=1.0,
)
SEED = Limits(entropy_relative=0.0, entropy_floor=0.0, places=0.0)
LIMITS = {"calibrated": CALIBRATED, "seed": SEED}


def limits(thresholds: str, overrides: dict[str, float]) -> Limits:
    """One of the two sets, with single levels replaced.

    Raises:
        ConfigError: no set or level has that name, which names the nearest; or a level is no number, is
            negative, or lies beyond the next severe one.
    """
    if thresholds not in LIMITS:
        hint = did_you_mean(thresholds, LIMITS, cutoff=0.0)
        raise ConfigError(f"thresholds={thresholds!r} is no set of levels: {hint}")
    names = [field.name for field in fields(Limits)]
    for key in overrides:
        if key not in names:
            hint = did_you_mean(key, names, cutoff=0.0)
            raise ConfigError(f"diagnostics.limits.{key} is no level: {hint}")
        if not isinstance(overrides[key], (int, float)):
            raise ConfigError(f"diagnostics.limits.{key}={overrides[key]!r} is no number")
        if not overrides[key] >= 0:
            raise ConfigError(
                f"diagnostics.limits.{key}={overrides[key]}: a level is never negative"
            )
    found = replace(LIMITS[thresholds], **overrides)
    for mild, severe in _ORDER:
        if overrides.keys() & {mild, severe} and getattr(found, mild) > getattr(found, severe):
            raise ConfigError(
                f"diagnostics.limits.{mild}={getattr(found, mild):g} lies beyond "
                f"{severe}={getattr(found, severe):g}, and would never be said: set both"
            )
    return found


_ORDER = (
    ("kl_watch", "kl_warn"),
    ("kl_warn", "kl_danger"),
    ("chi_warn", "chi_danger"),
    ("lag_watch", "lag_warn"),
    ("lag_warn", "lag_danger"),
    ("ratio_watch", "ratio_danger"),
)
"""Levels of one sign, the milder one first."""


NEVER = 1.1
"""A share that nothing is beyond."""


def levels(config: Config) -> Limits:
    """The set that a run's alarms use; ages that its configuration asks for are no failures.

    Asynchronous slices are one version old in steady state, and a policy that is published every k
    rounds ages by up to k - 1 more. Where the learner is the slower side, slices wait in full slots for
    as many versions as there are rollouts in them: that is watched, and no warning.
    """
    found = limits(config.diagnostics.thresholds, config.diagnostics.limits)
    late = float(config.clocks.publish_interval)
    clocks, collect = config.clocks, config.collect
    overlap, waiting = 0.0, 0.0
    if collect.mode != "sync":
        # Half of what is dangerous is not called usual, however many slots there are.
        waiting = min(math.ceil(collect.slots / collect.workers), found.lag_danger // 2)
        overlap = 1.0
    stale = clocks.batch_size > clocks.update_frequency or clocks.lag > 0 or late + overlap > 1
    if config.algo.objective == "vaco" or (config.algo.objective == "clipped" and stale):
        # Their regions lie around the policy that collected: stale frames are outside from the start,
        # and fewer passes bring none of them back.
        found = replace(found, clip_fraction=max(found.clip_fraction, NEVER))
    return replace(
        found,
        publish_late=max(found.publish_late, late),
        lag_watch=max(found.lag_watch, late + overlap),
        lag_warn=max(found.lag_warn, late + waiting + 1),
    )
