"""How far the current policy is from the one that collected the data, in closed form."""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

from rl_twoclocks.diagnostics.alarm import Alarm, Severity
from rl_twoclocks.diagnostics.history import History
from rl_twoclocks.diagnostics.limits import Limits
from rl_twoclocks.distributions import Distribution, Params

AT_ONCE = 10.0
"""Times the level of danger of the KL that need not last: a policy that one round has destroyed may
never move again, and its KL is 0 from then on."""
LARGEST_LOG_RATIO = 1e4
"""What an infinite log ratio counts as: its frame carries all of the weight."""
OLDEST_USUAL = 4.0
"""Versions by which data may be older than the learner without anything being wrong."""


def effective_sample_size(log_ratio: Tensor) -> Tensor:
    """(sum w)^2 / (n sum w^2) of importance weights exp(log_ratio) [n], in (0, 1] (Kish 1965).

    By log-sum-exp: it must hold most of all where single weights overflow.
    """
    log_sum = torch.logsumexp(log_ratio, 0)
    log_squares = torch.logsumexp(2 * log_ratio, 0)
    return (2 * log_sum - log_squares).exp() / log_ratio.numel()


@torch.no_grad()
def policy_shift(
    distribution: Distribution, behaviour: Params, current: Params, log_ratio: Tensor
) -> dict[str, float]:
    """Compare behaviour and current policy on a window.

    Args:
        distribution: what the parameters mean.
        behaviour, current: parameters by frame, each [n, A].
        log_ratio: [n], current minus behaviour log-probability of the stored actions.

    Returns:
        `diag/kl_behaviour`: mean KL(b || current) in nats. `diag/kl_behaviour_reverse`: the other
        direction. `diag/ess`: effective sample size of the importance weights over n, in (0, 1]
        (Kish 1965). `diag/total_variation`: half of the mean |ratio - 1|, in [0, 1] in expectation.
        `diag/ratio_max`: largest importance weight.

    Raises:
        ValueError: there is no frame.
    """
    if log_ratio.numel() == 0:
        raise ValueError("no frames: the shift over an empty window is not defined")
    ratio = log_ratio.exp()
    ess = effective_sample_size(log_ratio.clamp(max=LARGEST_LOG_RATIO))
    values = torch.stack(
        [
            distribution.kl(behaviour, current).mean(),
            distribution.kl(current, behaviour).mean(),
            ess,
            0.5 * (ratio - 1).abs().mean(),
            ratio.max(),
        ]
    ).tolist()
    names = ("kl_behaviour", "kl_behaviour_reverse", "ess", "total_variation", "ratio_max")
    return {f"diag/{name}": value for name, value in zip(names, values, strict=True)}


def kl_alarm(history: History, limits: Limits) -> Alarm | None:
    """A policy that left its data behind within a round.

    Levels are per action dimension and per version that the data spans: the KL of a diagonal policy is
    a sum over dimensions, and data of several versions holds several rounds' moves.
    """
    size = action_dims(history) * versions_spanned(history)
    found = _worst(
        history, "diag/kl_behaviour", size, limits.kl_watch, limits.kl_warn, limits.kl_danger
    )
    if found is None:
        return None
    severity, level = found
    values = {"nats": history.newest("diag/kl_behaviour"), "level": level}
    values |= {"first pass beyond": first} if (first := history.newest("diag/kl_pass", 0)) else {}
    return Alarm(
        "policy_kl",
        severity,
        values,
        "the policy moves too far from the data within one round;",
        "lower optim.learning_rate or clocks.update_epochs, or set algo.target_kl.",
    )


def action_dims(history: History) -> float:
    """Dimensions of the action: 1 for choices, and where it was not said."""
    return max(history.newest("diag/action_dims", 1.0), 1.0)


def spanned(ratio: float, age: float) -> float:
    """Versions from the window's oldest data to the learner: clock ratio and age of the newest data.

    The age counts up to `OLDEST_USUAL`: beyond it the data itself is the fault.
    """
    return max(ratio, 1.0) + min(age, OLDEST_USUAL)


def versions_spanned(history: History) -> float:
    """The same, of the newest readings."""
    return spanned(
        history.newest("clock/ratio_measured", 1.0), history.newest("clock/staleness_min", 0.0)
    )


def _worst(
    history: History, name: str, size: float, watch: float, warn: float, danger: float
) -> tuple[Severity, float] | None:
    """The worst severity whose level x `size` the last two rounds were beyond, and that level.

    Far beyond the level of danger (`AT_ONCE`) one round is enough.
    """
    levels: tuple[tuple[Severity, float], ...] = (
        ("danger", danger * size),
        ("warn", warn * size),
        ("watch", watch * size),
    )
    if history.all_beyond(name, AT_ONCE * danger * size, 1):
        return levels[0]
    for severity, level in levels:
        if history.all_beyond(name, level, 2):
            return severity, level
    return None


def ess_level(chi_square: float, history: History) -> float:
    """Effective sample size at which chi^2 = 1 / ESS - 1 is `chi_square` per action dimension."""
    return 1 / (1 + chi_square * action_dims(history))


def ess_alarm(history: History, limits: Limits) -> Alarm | None:
    """Importance weights that rest on few frames."""
    ratio = versions_spanned(history)
    cause = (
        "the data is too old for this policy" if ratio > 1 else "one round moves the policy too far"
    )
    levels: tuple[tuple[Severity, float], ...] = (
        ("danger", ess_level(limits.chi_danger * ratio, history)),
        ("warn", ess_level(limits.chi_warn * ratio, history)),
    )
    # One frame of great weight stays for as long as the window holds it: two windows without a common
    # frame have to agree.
    rounds = history.rounds_of(2)
    for severity, level in levels:
        if history.all_beyond("diag/ess", level, rounds, below=True):
            return Alarm(
                "effective_sample_size",
                severity,
                {"share": history.newest("diag/ess"), "level": level},
                f"few frames carry most of the weight: {cause};",
                "lower optim.learning_rate, or the clock ratio where it is above 1.",
            )
    return None


USUAL_EPSILON = 0.2
"""Half-width of the trust region that the level of the clip fraction is made for."""


def clip_level(limits: Limits, dims: float, epsilon: float = USUAL_EPSILON) -> float:
    """Clip fraction that is too much: the joint ratio spreads as the square root of dimensions.

    In a narrower trust region as large a step leaves more frames outside: by how many a normal
    distribution of log ratios says.
    """
    level = limits.clip_fraction
    if level > 1:
        return level
    deviations = -NormalDist().inv_cdf(min(level * dims**0.5, 0.8) / 2)
    return 2 * NormalDist().cdf(-deviations * epsilon / USUAL_EPSILON)


def clip_alarm(history: History, limits: Limits) -> Alarm | None:
    """Much of the window outside the trust region."""
    epsilon = history.newest("train/clip_epsilon", USUAL_EPSILON)
    level = clip_level(limits, action_dims(history), epsilon)
    if not history.all_beyond("train/clip_fraction", level, 2):
        return None
    return Alarm(
        "clip_fraction",
        "warn",
        {"share": history.newest("train/clip_fraction"), "level": level},
        "many frames stand at the edge of the trust region: further passes fit noise;",
        "lower clocks.update_epochs or optim.learning_rate.",
    )
