"""Histories with chosen readings, for tests of alarm rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rl_twoclocks.diagnostics import CALIBRATED, History
from rl_twoclocks.diagnostics.periodicity import Period, strongest_period


def recorded(series: Mapping[str, Sequence[float]], now: int | None = None) -> History:
    """A history in which every series has one value per round and ends in round `now`."""
    length = max(len(values) for values in series.values())
    history = History()
    history.round = (length - 1 if now is None else now) - length
    for back in range(length, 0, -1):
        history.next_round()
        history.add({k: float(v[-back]) for k, v in series.items() if len(v) >= back})
    return history


def screened(series: np.ndarray, shared: int = 1) -> Period:
    """The strongest period; where the alarm cannot care, its chance is only bounded from below.

    The first of the random orders are the same however many there are, so what beats too many of
    them beats too many of all.
    """
    quick = strongest_period(series, permutations=0, shared=shared)
    if quick.share < CALIBRATED.periodicity:
        return quick
    some = strongest_period(series, permutations=100, shared=shared)
    beaten = round(some.p_value * 101) - 1
    if (1 + beaten) / 1001 > 0.02:
        return Period(some.length, some.share, (1 + beaten) / 1001)
    return strongest_period(series, shared=shared)
