"""Plasticity: can the networks still tell states apart, and still learn?

Definitions of Moalla et al. 2024. A collapsed policy can show a high entropy and act alike in every
state: entropy alone is no detector.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_twoclocks.diagnostics.alarm import Alarm
from rl_twoclocks.diagnostics.cliff import score_now
from rl_twoclocks.diagnostics.history import History, median
from rl_twoclocks.diagnostics.limits import Limits
from rl_twoclocks.distributions import Distribution, Gaussian, Params


@torch.no_grad()
def hidden_features(network: nn.Sequential, inputs: Tensor) -> list[Tensor]:
    """Outputs [n, units] of every nonlinearity of a sequential network on inputs [n, d]."""
    features, x = [], inputs
    for layer in network:
        x = layer(x)
        if not isinstance(layer, (nn.Linear, nn.Conv2d, nn.Flatten)) and x.ndim == 2:
            features.append(x)
    return features


def dead_fraction(features: list[Tensor], tolerance: float = 1e-3) -> float:
    """Share of the units whose output does not vary over the batch: deviation below `tolerance`.

    Covers silent ReLUs and saturated tanhs alike; in [0, 1], 0 without hidden layers.
    """
    units = sum(f.shape[1] for f in features)
    if not units:
        return 0.0
    dead = sum((f.std(0, correction=0) < tolerance).sum() for f in features)
    return float(dead) / units


def feature_rank(features: Tensor, keep: float = 0.99) -> int:
    """Directions that hold `keep` of the variance of the penultimate features [n, units].

    0 for constant features, and for features that are not finite.
    """
    if not bool(torch.isfinite(features).all()):
        return 0
    wide = features.double()
    centred = wide - wide.mean(0)
    values = torch.linalg.eigvalsh(centred.T @ centred).flip(0).clamp(min=0)
    total = values.sum()
    if float(total) <= 1e-12 * max(float(wide.square().sum()), 1e-300):
        return 0
    return int((values.cumsum(0) < keep * total).sum()) + 1


def policy_variance(distribution: Distribution, params: Params) -> float:
    """How differently the policy acts in different states; 0 for a policy blind to them.

    Gaussian: mean over dimensions of Var_s(loc) / scale^2. Choices: sum over them of Var_s(p).

    Raises:
        ValueError: there is no state.
    """
    if params[0].shape[0] == 0:
        raise ValueError("no states: the variance over an empty window is not defined")
    if distribution is not Gaussian:
        return float(params[0].softmax(-1).var(0, correction=0).sum())
    loc, scale = params
    return float((loc.var(0, correction=0) / scale.square().mean(0)).mean())


def dead_alarm(history: History, limits: Limits) -> Alarm | None:
    """Hidden units that no longer vary."""
    if not history.all_beyond("diag/dead_units", limits.dead_units, 2):
        return None
    return Alarm(
        "dead_units",
        "warn",
        {"share": history.newest("diag/dead_units")},
        "hidden units have saturated or died: the networks lose what they could still learn;",
        "lower the learning rate, or train fewer passes.",
    )


def rank_alarm(history: History, limits: Limits) -> Alarm | None:
    """Features that have lost directions."""
    best = history.highest("diag/feature_rank")
    if not history.all_beyond("diag/feature_rank", limits.rank_fall * best, 2, below=True):
        return None
    return Alarm(
        "feature_rank",
        "watch",
        {"rank": history.newest("diag/feature_rank"), "highest": best},
        "the actor's features have lost half of their directions;",
        "lower the learning rate, or train fewer passes.",
    )


def blind_alarm(history: History, limits: Limits) -> Alarm | None:
    """A policy that acts alike in every state, and not because it has learnt to stay in one place."""
    best = history.highest("diag/policy_variance")
    if not history.all_beyond("diag/policy_variance", limits.blind * best, 2, below=True):
        return None
    before = history.series("diag/policy_variance")[-12:-2]
    at_once = bool(before.size) and history.newest("diag/policy_variance") < limits.blind * median(
        before
    )
    # Slowly, and with a return near its best, it has learnt to need few different actions.
    if score_now(history) > 0.8 and not at_once:
        return None
    return Alarm(
        "state_blind",
        "danger",
        {"variance over states": history.newest("diag/policy_variance"), "highest": best},
        "the policy acts alike in every state;",
        "go back to a checkpoint from before, with a lower learning rate.",
    )
