"""How far the current policy is from the one that collected the data, in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_twoclocks.diagnostics.alarm import Alarm, Severity
from rl_twoclocks.diagnostics.history import History
from rl_twoclocks.diagnostics.limits import Limits
from rl_twoclocks.distributions import Distribution, Params


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
    ess = effective_sample_size(log_ratio)
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
    """A policy that left its data behind within a round."""
    ratio = max(history.newest("clock/ratio_measured", 1.0), 1.0)
    beyond: list[tuple[Severity, float]] = [
        (severity, level * ratio)
        for severity, level in _kl_levels(limits)
        if history.all_beyond("diag/kl_behaviour", level * ratio, 2)
    ]
    if not beyond:
        return None
    severity, level = beyond[0]
    values = {"nats": history.newest("diag/kl_behaviour"), "level": level}
    values |= {"first pass beyond": first} if (first := history.newest("diag/kl_pass", 0)) else {}
    return Alarm(
        "policy_kl",
        severity,
        values,
        "the policy moves too far from the data within one round;",
        "lower optim.learning_rate or clocks.update_epochs, or set algo.target_kl.",
    )


def _kl_levels(limits: Limits) -> list[tuple[Severity, float]]:
    return [("danger", limits.kl_danger), ("warn", limits.kl_warn), ("watch", limits.kl_watch)]


def ess_alarm(history: History, limits: Limits) -> Alarm | None:
    """Importance weights that rest on few frames."""
    level, severity = limits.ess_danger, "danger"
    if not history.all_beyond("diag/ess", level, 2, below=True):
        level, severity = limits.ess_warn, "warn"
        if not history.all_beyond("diag/ess", level, 2, below=True):
            return None
    return Alarm(
        "effective_sample_size",
        "danger" if severity == "danger" else "warn",
        {"share": history.newest("diag/ess"), "level": level},
        "few frames carry most of the weight: the data is too old for this policy;",
        "lower the clock ratio, or the step size.",
    )


def clip_alarm(history: History, limits: Limits) -> Alarm | None:
    """Much of the window outside the trust region."""
    if not history.all_beyond("train/clip_fraction", limits.clip_fraction, 2):
        return None
    return Alarm(
        "clip_fraction",
        "warn",
        {"share": history.newest("train/clip_fraction")},
        "most frames stand at the edge of the trust region: further passes fit noise;",
        "lower clocks.update_epochs or optim.learning_rate.",
    )
