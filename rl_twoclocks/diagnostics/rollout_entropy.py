"""Rollout entropy: over how many different places the newest frames are spread, in bits.

Two estimators (docs/signs.md). `entropy_by_own_range` is the write-up's: projection and range are
fitted to the very frames that it measures, so it sees a pile-up but not a contraction. `Grid` is
fitted once, early in a run: cells keep their size, so a contraction leaves fewer of them occupied,
and frames beyond the first range still find cells of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_twoclocks.diagnostics.alarm import Alarm, Severity
from rl_twoclocks.diagnostics.cliff import score_now
from rl_twoclocks.diagnostics.history import History, median
from rl_twoclocks.diagnostics.limits import Limits

MOST = 64
"""Observations of more dimensions (images) are first projected to this many, at random but fixed."""
REACH = 3
"""A histogram covers the first range so many times in each direction; beyond, frames share its edge."""
FEW = 64
"""Values of a dimension up to which states may be those of a grid."""
BEFORE = 5
"""Values of the entropy that say what was usual just before."""


@dataclass(frozen=True)
class Grid:
    """A fixed map from states to cells: two principal axes, and cells of a fixed size."""

    scale: Tensor
    """[obs], multiplies raw observations: the normaliser's of the time of the fit."""
    shift: Tensor
    """[d], subtracted from a state, d = min(obs, MOST)."""
    axes: Tensor
    """[d, 2], orthonormal columns."""
    low: Tensor
    """[2], lower corner of the first range."""
    width: Tensor
    """[2], size of a cell; 0 where the first states did not vary at all."""
    bins: int
    """Cells per axis over the first range."""
    discrete: bool = False
    """Whether the first states lay on few values, as in grids, where states repeat by nature."""
    distinct: int = 0
    """How many different ones the first states were, if `discrete`."""

    @property
    def side(self) -> int:
        """Cells per axis in all."""
        return self.bins * REACH

    def within(self, places: Tensor) -> Tensor:
        """Cell numbers [n] (int64, row-major) of places [n, 2]; beyond the histogram, at its edge."""
        index = (places + self.bins * (REACH - 1) // 2).clamp(0, self.side - 1)
        return index[:, 0] * self.side + index[:, 1]

    def places(self, observation: Tensor) -> Tensor:
        """Row and column [n, 2] (int64) of raw observations [n, ...], however far they lie outside."""
        states = reduce(flat_states(observation) * self.scale)
        # What is not finite must not become a random index.
        place = ((states.double() - self.shift) @ self.axes).nan_to_num(0.0, 1e6, -1e6)
        step = torch.where(self.width > 0, self.width, torch.ones_like(self.width))
        index = ((place - self.low) / step).floor().clamp(-1e6, 1e6)
        # Where nothing varied at first, cells of size 1 lie around that place, not at its edge.
        centred = (place - self.low + 0.5).floor().clamp(-1e6, 1e6)
        return torch.where(self.width > 0, index, centred).long()

    def state_dict(self) -> dict[str, Tensor | int | bool]:
        """All fields, for a checkpoint."""
        return dict(vars(self))

    @classmethod
    def from_state(cls, state: dict) -> Grid:
        """Restore what `state_dict` gave."""
        return cls(**state)


def flat_states(observation: Tensor) -> Tensor:
    """States [n, d] in float32 from observations [n, ...] of any kind.

    Raises:
        ValueError: there is no frame.
    """
    if observation.shape[0] == 0:
        raise ValueError("no frames: the entropy of an empty rollout is not defined")
    return observation.reshape(observation.shape[0], -1).float()


def thumbnails(images: Tensor) -> Tensor:
    """Images of bytes [n, C, H, W] at a quarter of their sides, flat [n, d], in [0, 1]."""
    return torch.nn.functional.avg_pool2d(images.float() / 255, 4).flatten(1)


def reduce(states: Tensor) -> Tensor:
    """States [n, d] in at most `MOST` dimensions, by a fixed Gaussian projection."""
    d = states.shape[1]
    if d <= MOST:
        return states
    projection = torch.randn(d, MOST, generator=torch.Generator().manual_seed(0))
    return states @ (projection / MOST**0.5).to(states)


def principal_axes(states: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [d] and the two directions of largest variance [d, 2] of states [n, d].

    States of rank below two, constant ones included, give axes that are valid but arbitrary. States
    of one dimension get an empty second axis.
    """
    # float64 throughout: products of badly scaled states overflow or cancel in single precision.
    wide = states.double()
    mean = wide.mean(0)
    centred = wide - mean
    covariance = centred.T @ centred / max(states.shape[0], 1)
    axes = torch.linalg.eigh(covariance).eigenvectors[:, -2:].flip(1)
    if axes.shape[1] < 2:
        axes = torch.cat([axes, torch.zeros_like(axes)], dim=1)
    return mean, axes


def bins_for(frames: int) -> int:
    """Cells per axis for a rollout of `frames`: about one cell per frame, between 8 and 50.

    With many more cells than frames every frame has a cell of its own, and the entropy says nothing
    but log2(frames).
    """
    return max(8, min(50, round(math.sqrt(frames))))


def fit_grid(observation: Tensor, scale: Tensor | None = None, bins: int | None = None) -> Grid:
    """Fit projection and cells to the first frames of a run.

    The range runs between the 1 % and 99 % quantiles, so that no outlier can widen the cells. Frames
    that are not finite are left out; with none left, everything shares one cell.

    Args:
        observation: raw observations [n, ...].
        scale: [obs], to bring dimensions to one size; None: they have it.
        bins: cells per axis over the range; None: fit for n.
    """
    states = flat_states(observation)
    scale = torch.ones_like(states[0]) if scale is None else scale.flatten().to(states)
    states = _finite(reduce(states * scale))
    if states.shape[0] == 0:
        d = min(scale.numel(), MOST)
        wide = scale.double()
        zeros = wide.new_zeros(2)
        return Grid(scale, wide.new_zeros(d), wide.new_zeros(d, 2), zeros, zeros, bins or 8)
    shift, axes = principal_axes(states)
    place = (states.double() - shift) @ axes
    quantiles = torch.tensor([0.01, 0.99], dtype=place.dtype, device=place.device)
    low, high = torch.quantile(place[: 1 << 16], quantiles, dim=0)
    bins = bins or bins_for(states.shape[0])
    width = torch.where(high - low > _rounding(states), (high - low) / bins, 0.0)
    return Grid(scale, shift, axes, low, width, bins, on_few_values(flat_states(observation)))


def on_few_values(states: Tensor) -> bool:
    """Whether states [n, d] are integers, or take at most `FEW` values in every dimension at first.

    Environments that run the same episode, by a shared seed, take as many as one of them. States that do
    not move at all are no grid.
    """
    if bool((states[:FEW] == states[:FEW].round()).all()):
        return True
    ordered = states[: 8 * FEW].sort(0).values
    values = 1 + (ordered[1:] != ordered[:-1]).sum(0)
    return bool(1 < values.max() <= FEW) if ordered.shape[0] > FEW else False


def entropy_in_cells(cells: Tensor, total_cells: int) -> tuple[float, Tensor]:
    """Shannon entropy in bits of the cell numbers [n], and the counts [total_cells]."""
    counts = torch.bincount(cells, minlength=total_cells)
    return entropy_of_counts(counts), counts


def entropy_of_places(places: Tensor) -> float:
    """Shannon entropy in bits of places [n, 2]: states that spread beyond the first ones count too."""
    _, counts = torch.unique(places[:, 0] * (1 << 22) + places[:, 1], return_counts=True)
    return entropy_of_counts(counts)


def entropy_of_counts(counts: Tensor) -> float:
    """Shannon entropy in bits, in [0, log2 of the occupied cells]; 0 if nothing was counted."""
    occupied = counts[counts > 0].double()
    if occupied.numel() == 0:
        return 0.0
    p = occupied / occupied.sum()
    # abs: a single cell would give -0.
    return abs(float(-(p * p.log2()).sum()))


def coarse_map(counts: Tensor, side: int) -> Tensor:
    """The histogram [side / REACH, side / REACH] with REACH x REACH cells merged, for a picture."""
    n = side // REACH
    return counts.view(n, REACH, n, REACH).sum((1, 3))


def entropy_by_own_range(observation: Tensor, bins: int = 50) -> tuple[float, Tensor]:
    """The write-up's estimator: entropy in bits and counts [bins, bins] of frames [n, ...].

    Two principal components, `bins` x `bins` cells over their own range. A healthy rollout of 1,000 to
    2,048 frames scores 8 to 10 bits, a constant one 0. Frames that are not finite are left out.
    """
    states = _finite(reduce(flat_states(observation)))
    if states.shape[0] == 0:
        return 0.0, torch.zeros(bins, bins, dtype=torch.int64)
    shift, axes = principal_axes(states)
    place = (states.double() - shift) @ axes
    low, high = place.amin(0), place.amax(0)
    spread = torch.where(high - low > _rounding(states), high - low, torch.inf)
    index = ((place - low) / spread * bins).long().clamp(0, bins - 1)
    entropy, counts = entropy_in_cells(index[:, 0] * bins + index[:, 1], bins * bins)
    return entropy, counts.view(bins, bins)


def with_actions(observation: Tensor, action: Tensor, choices: int | None = None) -> Tensor:
    """Joint features [n, d + a]: observations [n, ...] and actions [n, a], or choices one-hot."""
    states = flat_states(observation)
    if choices is not None:
        action = torch.nn.functional.one_hot(action.long(), choices)
    return torch.cat([states, action.reshape(states.shape[0], -1).to(states)], dim=1)


def duplicate_fraction(observation: Tensor) -> float:
    """Share of the frames [n, ...] that are exact copies of another one, in [0, 1).

    0 for a continuous environment whose episodes differ; 1 - 1/k where k of them run in parallel on
    one seed. Meaningless where few states exist (grids, boards): compare with the run's own start.
    """
    return 1.0 - visits_of_states(observation).numel() / observation.shape[0]


def visits_of_states(observation: Tensor) -> Tensor:
    """How often each different state was visited [states], from frames [n, ...]."""
    # What is no number is equal to itself here.
    states = flat_states(observation).double().nan_to_num(nan=1.7e38, posinf=1.6e38, neginf=-1.6e38)
    # Exact equality by one random projection: a sort of scalars instead of rows.
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(states.shape[1], generator=generator, dtype=torch.float64)
    # A row-wise sum, not a product: there, equal rows may round differently.
    key = (states * direction.to(states.device)).sum(1)
    return torch.unique(key, return_counts=True)[1]


def _rounding(states: Tensor) -> Tensor:
    """Below this there is no range: a constant rollout must not be blown up to one."""
    wide = states.double()
    spread = (wide.amax(0) - wide.amin(0)).amax()
    # Dimensions that vary are rounded in float32; those that do not are exact, however large.
    return torch.maximum(1e-6 * spread, 1e-12 * wide.abs().amax()).clamp(min=1e-300)


def _finite(states: Tensor) -> Tensor:
    return states[torch.isfinite(states).all(1)]


def diversity_alarm(history: History, limits: Limits) -> Alarm | None:
    """Few different states: below the absolute floor, below the run's own start, or three falls."""
    if "diag/rollout_entropy" not in history:
        return None
    own = history.newest("diag/rollout_entropy_own_range")
    severity: Severity
    values = {"bits": history.newest("diag/rollout_entropy"), "bits, own range": own}
    # Narrow because it has learnt to hold still or to run straight: that is success.
    learnt = score_now(history) > 0.8
    floors = {"diag/entropy_share": limits.entropy_floor, "diag/places_per_env": limits.places}
    rounds = history.rounds_of(3)
    low = [n for n, floor in floors.items() if history.all_beyond(n, floor, rounds, below=True)]
    if low and not learnt:
        return _diversity("danger", values, "the rollouts visit almost one place only")
    if not limits.entropy_relative:
        series = history.series("diag/rollout_entropy_own_range")
        if own < limits.entropy_danger or own < limits.entropy_low:
            severity = "danger" if own < limits.entropy_danger else "warn"
            return _diversity(severity, values, "the rollouts visit few places")
        falls = -np.diff(series[-4:])
        if own < 2.8 and falls.size == 3 and (falls > 0.15).all():
            return _diversity("watch", values, "rollout entropy fell three times in a row")
        return None
    series = history.series("diag/rollout_entropy")
    start = median(history.start("diag/rollout_entropy"))
    values |= {"bits at the start": start}
    if (lost := _lost_at_once(series, rounds)) > limits.entropy_sudden:
        # Whatever the return: no policy learns so fast.
        cause = "the states contracted from one rollout to the next"
        return _diversity("danger", values | {"bits lost": lost}, cause)
    fall = start - median(series[-rounds:])
    if series.size < 8 or fall < limits.entropy_low or learnt:
        return None
    severity = "danger" if fall > limits.entropy_danger else "warn"
    return _diversity(
        severity, values, "the states have contracted to a small part of the first ones"
    )


def _lost_at_once(series: np.ndarray, rounds: int) -> float:
    """Bits by which each of the newest `rounds` values is below what was usual just before them."""
    before = series[:-rounds][-BEFORE:]
    return float(median(before) - series[-rounds:].max()) if before.size == BEFORE else 0.0


def narrowed(history: History, limits: Limits) -> bool:
    """Whether half of what `diversity` calls low is reached, and not because the task is learnt."""
    if score_now(history) > 0.8:
        return False
    if not limits.entropy_relative:
        return history.newest("diag/rollout_entropy_own_range") < limits.entropy_low
    series, start = (f("diag/rollout_entropy") for f in (history.series, history.start))
    newest = series[-history.rounds_of(3) :]
    return bool(series.size and median(start) - median(newest) > 0.5 * limits.entropy_low)


def _diversity(severity: Severity, values: dict[str, float], cause: str) -> Alarm:
    cure = "reseed the environments and learn from less of the window (trim)."
    return Alarm("diversity", severity, values, cause + ";", cure)


def duplicates_alarm(history: History, limits: Limits) -> Alarm | None:
    """Exact copies of states in a task whose states are continuous."""
    if not history.all_beyond("diag/duplicates", limits.duplicates, 2):
        return None
    cause = "the environments run the same episode: they share a seed or a state;"
    cure = "reseed each environment from a stream of its own."
    if history.newest("diag/places_per_env", 2.0) <= 1.5:
        cause = "each environment shows one observation again and again;"
        cure = "look for a sensor or a simulator that stands still; new episodes may wake it."
    values = {"share of copies": history.newest("diag/duplicates")}
    return Alarm("duplicates", "danger", values, cause, cure)
