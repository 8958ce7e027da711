"""Histories with chosen readings, for tests of alarm rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rl_twoclocks.diagnostics import History


def recorded(series: Mapping[str, Sequence[float]], now: int | None = None) -> History:
    """A history in which every series has one value per round and ends in round `now`."""
    length = max(len(values) for values in series.values())
    history = History()
    history.round = (length - 1 if now is None else now) - length
    for back in range(length, 0, -1):
        history.next_round()
        history.add({k: float(v[-back]) for k, v in series.items() if len(v) >= back})
    return history
