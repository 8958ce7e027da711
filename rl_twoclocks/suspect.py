"""What probably broke, and when: told apart by how several signs changed together.

One alarm has many causes: a policy acts alike in every state because its network is broken, or because
all states are alike. What tells them apart is what else changed within the same rounds, and what did
not. Only changes within four rounds are explained: faults come at once, and no policy learns so fast.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl_twoclocks.checks import DEFAULT_RATE, rate_urgency
from rl_twoclocks.config import Config
from rl_twoclocks.record.records import values

Row = Mapping[str, Any]
AT_ONCE = 4
"""Rounds within which a change has to happen; alarms come up to two rounds after it."""
BEFORE, AFTER = 8, 4
"""Rows that tell how it was, and how it is now."""
BITS = 2.5
"""Bits of rollout entropy that are lost where states contract."""


@dataclass(frozen=True)
class Suspect:
    """The part that is suspected, on what evidence, and where to look."""

    part: str
    frames: int
    """When it began."""
    evidence: str
    look: str

    def __str__(self) -> str:
        """Three sentences for a person."""
        return (
            f"Suspected: {self.part}. From {self.frames:,} frames on {self.evidence}. "
            f"Look at {self.look}."
        )


def suspect(
    config: Config, rows: Sequence[Row], events: Sequence[Mapping[str, Any]]
) -> Suspect | None:
    """The suspect whose signs changed first; None where nothing that is known here happened.

    Args:
        config: of the run.
        rows: of its metrics, one per round.
        events: of the run; alarms of severity danger or warn are asked about.
    """
    first: dict[str, Mapping[str, Any]] = {}
    for event in events:
        if event["kind"] == "alarm" and event.get("severity") in ("danger", "warn"):
            first.setdefault(str(event["name"]), event)
    found = [_steps(config, rows, first)]
    for name, explain in _EXPLAIN.items():
        if name in first:
            turn = _Turn.at(rows, int(first[name]["frames"]))
            if turn is not None and not _reseeded(events, turn):
                found.append(explain(config, turn, first[name]))
    told = [each for each in found if each is not None]
    return min(told, key=lambda each: each.frames, default=None)


@dataclass(frozen=True)
class _Turn:
    """The rows around the moment at which an alarm began."""

    before: Sequence[Row]
    between: Sequence[Row]
    after: Sequence[Row]
    rest: Sequence[Row]
    """All rows from the alarm on."""

    @classmethod
    def at(cls, rows: Sequence[Row], frames: int) -> _Turn | None:
        number = next((i for i, row in enumerate(rows) if row["frames"] >= frames), None)
        if number is None or number < 2 * AT_ONCE:
            return None
        start = number - AT_ONCE + 1
        version = "clock/policy_version"
        rounds = rows[number].get(version, number) - rows[start].get(version, start)
        if rounds > 2 * AT_ONCE:
            return None  # too few rounds are on record (`logger.log_freq`) to say what came at once
        return cls(
            rows[max(start - BEFORE, 0) : start],
            rows[start:number],
            rows[number : number + AFTER],
            rows[number:],
        )

    def usual(self, name: str, default: float = 0.0) -> float:
        return _median(self.before, name, default)

    def now(self, name: str, default: float = 0.0) -> float:
        return _median(self.after, name, default)

    def lost(self, name: str) -> float:
        return self.usual(name) - self.now(name)

    def most(self, name: str) -> float:
        """The largest reading from just before the turn on."""
        found = [
            row[name] for row in [*self.before[-1:], *self.between, *self.after] if row.get(name)
        ]
        return max(found, default=0.0)

    def began(self, name: str) -> int:
        """Frames of the first row that is nearer to how it is now than to how it was."""
        usual, now = self.usual(name), self.now(name)
        for row in self.between:
            value = row.get(name)
            if value is not None and abs(value - now) < abs(value - usual):
                return int(row["frames"])
        return int(self.after[0]["frames"])


def _median(rows: Sequence[Row], name: str, default: float) -> float:
    found = values(rows, name)
    return statistics.median(found) if found else default


def _reseeded(events: Sequence[Mapping[str, Any]], turn: _Turn) -> bool:
    """Whether the governor began new episodes just then: that moves all states at once."""
    low, high = turn.before[-1]["frames"], turn.after[0]["frames"]
    return any(
        event["kind"] in ("order", "rescue", "restart")
        and event.get("given", True)
        and low <= event["frames"] < high
        for event in events
    )


def _steps(
    config: Config, rows: Sequence[Row], first: Mapping[str, Mapping[str, Any]]
) -> Suspect | None:
    """Steps that were too large from the start."""
    if (
        not rows
        or rate_urgency(config) == "fine"
        or not {"policy_kl", "effective_sample_size"} & set(first)
    ):
        return None
    rate = config.optim.learning_rate
    evidence = f"the learning rate is {rate:.2g}, {rate / DEFAULT_RATE:.0f} times the usual"
    return Suspect("the optimizer's steps", int(rows[0]["frames"]), evidence, "optim.learning_rate")


def _copies(config: Config, turn: _Turn, alarm: Mapping[str, Any]) -> Suspect | None:
    """Exact copies: of one environment in all, or of one observation in time."""
    share, n = turn.now("diag/duplicates"), config.num_envs
    if turn.usual("diag/duplicates") > 0.25:
        return None
    began = turn.began("diag/duplicates")
    if turn.now("diag/places_per_env", 2.0) <= 1.5:
        evidence = "each environment shows one observation again and again"
        return Suspect(
            "the observations", began, evidence, "a sensor or a simulator that stands still"
        )
    if n > 1 and abs(share - (1 - 1 / n)) < 0.02:
        evidence = f"all {n} environments give the same data"
        look = "how they are seeded, and code that copies rows between them"
        return Suspect("the environments", began, evidence, look)
    return None


def _narrow(config: Config, turn: _Turn, alarm: Mapping[str, Any]) -> Suspect | None:
    """States that contracted from one round to the next."""
    lost, own = turn.lost("diag/rollout_entropy"), turn.lost("diag/rollout_entropy_own_range")
    if lost < BITS:
        return None
    began = turn.began("diag/rollout_entropy")
    usual, highest = turn.usual("diag/kl_behaviour"), turn.most("diag/kl_behaviour")
    if highest > 10 * usual > 0:
        evidence = (
            f"states contracted, after one round had moved the policy by a KL of {highest:.2g}"
        )
        evidence += f" (usually {usual:.2g})"
        return Suspect(
            "an update of the policy", began, evidence, "the round before: its loss and steps"
        )
    if own < 1:
        evidence = (
            f"the states fill {lost:.1f} bits less of their space, and vary as before inside it"
        )
        look = "the observations' scale: units, a sensor, a transform before the policy"
        return Suspect("the observations", began, evidence, look)
    evidence, look = (
        "the states hardly change any more",
        "whether actions arrive, and what ends episodes",
    )
    name = "eval/return_mean"
    scores = values(turn.rest, name)
    if scores and scores[-1] > 0.5 * max(*scores, turn.most(name)) > 0:
        evidence += ", while evaluation goes well"
    return Suspect("the environments that train", began, evidence, look)


def _blind(config: Config, turn: _Turn, alarm: Mapping[str, Any]) -> Suspect | None:
    """A policy that acts alike on data that is as varied as before."""
    name = "diag/policy_variance"
    if turn.now(name) > 0.1 * turn.usual(name) or turn.lost("diag/rollout_entropy") > BITS / 2:
        return None
    evidence = "it acts alike in every state, and the states are as varied as before"
    look = "the actor's weights: overwritten, or so large that its units saturate"
    return Suspect("the policy's network", turn.began(name), evidence, look)


def _numbers(config: Config, turn: _Turn, alarm: Mapping[str, Any]) -> Suspect | None:
    """Collector and learner that do not compute the same probabilities."""
    look = "what changes weights or statistics between collection and learning"
    place = "the way from collection to learning"
    return Suspect(place, int(alarm["frames"]), str(alarm["cause"]), look)


def _queue(config: Config, turn: _Turn, alarm: Mapping[str, Any]) -> Suspect | None:
    """Data that became old at once."""
    name = "clock/staleness_min"
    if turn.usual(name) >= 0.5 * turn.now(name):
        return None
    waited = [row for row in (*turn.before, *turn.between) if (row.get(name) or 0.0) >= 1.0]
    began = int((waited or turn.after)[0]["frames"])
    evidence = (
        f"rollouts wait, and are {max(row.get(name) or 0 for row in turn.rest):.0f} versions old"
    )
    look = "queues, and how often the policy is published (doctor --map)"
    return Suspect("the way from collection to learning", began, evidence, look)


_EXPLAIN: dict[str, Callable[[Config, _Turn, Mapping[str, Any]], Suspect | None]] = {
    "duplicates": _copies,
    "diversity": _narrow,
    "state_blind": _blind,
    "first_ratio": _numbers,
    "policy_lag": _queue,
}
