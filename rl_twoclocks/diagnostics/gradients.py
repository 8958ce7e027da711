"""Gradients: norms by layer, and how minibatch gradients lie to each other."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_twoclocks.diagnostics.alarm import Alarm
from rl_twoclocks.diagnostics.history import History
from rl_twoclocks.diagnostics.limits import Limits


def gram_matrix(gradients: Tensor) -> Tensor:
    """Inner products [m, m] in float64 of m flat gradients [m, d]."""
    wide = gradients.double()
    return wide @ wide.T


def covariance_readings(gram: Tensor, minibatch_size: int) -> dict[str, float]:
    """Read the covariance of minibatch gradients from their Gram matrix [m, m], m >= 3.

    All gradients are taken at the same parameters, on disjoint minibatches of `minibatch_size`.

    Returns:
        `diag/grad_participation`: participation ratio of the covariance's spectrum, in [1, m - 1]; 1
        if all noise lies along one direction. `diag/grad_condition`: largest over smallest non-zero
        eigenvalue, >= 1 (inf if gradients are linearly dependent). `diag/grad_alignment`: mean cosine
        between two gradients, in [-1, 1]. `diag/noise_scale`: tr(Sigma) / |G|^2 in frames
        (McCandlish et al. 2018, B_simple); inf where the mean gradient drowns in noise. Spectra are
        bounded by m: compare only at the same m and minibatch size.

    Raises:
        ValueError: fewer than three gradients.
    """
    m = gram.shape[0]
    if m < 3:
        raise ValueError(f"a covariance needs at least 3 gradients, not {m}")
    if not bool(torch.isfinite(gram).all()):
        return dict.fromkeys(_NAMES, float("nan"))
    gram = gram.double()
    trace = gram.diagonal().sum()
    signal = (gram.sum() - trace) / (m * (m - 1))
    noise = minibatch_size * (trace / m - signal)
    centre = torch.eye(m, dtype=gram.dtype, device=gram.device) - 1.0 / m
    centred = centre @ gram @ centre
    spread = centred.square().sum()
    values = torch.linalg.eigvalsh(centred)
    # One eigenvalue is zero by centring; m - 1 remain.
    smallest, largest = values[1], values[-1]
    norms = gram.diagonal().clamp(min=0).sqrt()
    cosines = gram / (norms[:, None] * norms[None, :]).clamp(min=1e-300)
    flat = bool(largest <= 1e-12 * trace)
    readings = (
        1.0 if flat else float(centred.diagonal().sum().square() / spread),
        1.0 if flat else float(largest / smallest) if smallest > 1e-9 * largest else float("inf"),
        float((cosines.sum() - cosines.diagonal().sum()) / (m * (m - 1))),
        float(noise / signal) if signal > 0 else (0.0 if noise <= 0 else float("inf")),
    )
    return dict(zip(_NAMES, readings, strict=True))


_NAMES = (
    "diag/grad_participation",
    "diag/grad_condition",
    "diag/grad_alignment",
    "diag/noise_scale",
)


def gradient_alarm(history: History, limits: Limits) -> Alarm | None:
    """A layer's gradient that stays high, in absolute terms and against the run's own median."""
    name = "diag/grad_norm_max"
    usual = history.usual(name, leave_out=3)
    relative = limits.gradient_relative * usual if usual == usual else 0.0
    level = min(max(limits.gradient_norm, relative), limits.gradient_ceiling)
    if not history.all_beyond(name, level, 3):
        return None
    return Alarm(
        "gradient_norm",
        "warn",
        {"largest layer": history.newest(name)} | ({"usual": usual} if usual == usual else {}),
        "a layer's gradient stays far above healthy: stale or extreme samples dominate it;",
        "bound the gradient first (optim.max_grad_norm, optim=adam_agc), then look at the step size.",
    )


def alignment_alarm(history: History, limits: Limits) -> Alarm | None:
    """Minibatch gradients that differ along one direction only."""
    if not history.all_beyond("diag/grad_participation", limits.participation, 3, below=True):
        return None
    return Alarm(
        "gradients_aligned",
        "warn",
        {
            "participation": history.newest("diag/grad_participation"),
            "condition": history.newest("diag/grad_condition"),
        },
        "minibatches say the same thing: the window holds little that is different;",
        "collect more frames per version, and reseed the environments.",
    )
