"""Plant faults in real training runs, and see whether the alarm named for each one sees it.

    python scripts/faults.py run --tasks halfcheetah hopper cartpole --seeds 1 2 3 4 5 --runs runs/faults
    python scripts/faults.py table --runs runs/faults
    python scripts/faults.py suspects --runs runs/faults

Every fault begins at 40 % of the run (`from_start` ones at once). The rule, written down before the
scored runs: a fault counts as detected if the alarm in `FAULTS` begins at or after the moment of
planting and before the run ends. The governor only watches (`interventions=observe`). Lead time is the
number of rounds from that alarm to the last good evaluation before a collapse, where there is one: three
in a row below half of a height that two in a row have held, of at least `HEIGHT` of what runs without a
fault gain; an alarm on another name is not counted. A run that ends because a number is not finite
collapses there. `table` writes docs/benchmarks/faults.csv, where rows of other runs stay.

`suspects` asks whom `rl_twoclocks.suspect` suspects in each run, and writes
docs/benchmarks/suspects.csv, where rows of other runs stay. Right is the part in `SUSPECTS`, from at
most two rounds before the fault was planted on. The rules were built on HalfCheetah with seed 6, which
is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import rows as kept
import torch
from training import over

from rl_twoclocks import batch
from rl_twoclocks.aggregate import interquartile_mean
from rl_twoclocks.config import Config

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "benchmarks" / "faults.csv"
HEIGHT = 0.3
FAULTS = {
    "frozen_from_start": "diversity",
    "frozen": "diversity",
    "contraction": "diversity",
    "duplicates": "duplicates",
    "learning_rate": "policy_kl",
    "lag": "policy_lag",
    "leak": "memory_creep",
    "periodic": "periodic_loss",
    "state_blind": "state_blind",
    "cliff": "reward_cliff",
    "normaliser": "first_ratio",
}
SUSPECTS = {
    "frozen": "the observations",
    "contraction": "the observations",
    "duplicates": "the environments",
    "learning_rate": "the optimizer's steps",
    "lag": "the way from collection to learning",
    "state_blind": "the policy's network",
    "cliff": "the environments that train",
    "normaliser": "the way from collection to learning",
    "none": "nobody",
}
BUILT_ON = ("halfcheetah", 6)
FRAMES = 60_000
RUN = ("task", "fault", "seed")
ROUND = 512
"""Frames per round (B = U): alarms count in rounds, so short rounds show a fault in fewer frames."""
LAG = 10
PERIOD = 8
"""Rounds in which the planted loss repeats."""


class FaultyBackend:
    """A vector backend whose answers are spoilt from a certain frame on."""

    def __init__(
        self, backend: Any, fault: str, begin: int, round_frames: int, end: float = math.inf
    ) -> None:
        """Wrap; `begin`, `end` and `round_frames` are in frames over all environments."""
        self.backend, self.fault, self.begin, self.end = backend, fault, begin, end
        self.round_frames = round_frames
        self.frames = 0
        self.sum: np.ndarray | None = None
        self.frozen: np.ndarray | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    @property
    def envs(self) -> None:
        """Simulators cannot be captured through this."""
        return None

    def reset(self, mask: np.ndarray | None = None, seeds: list[int] | None = None) -> np.ndarray:
        """Reset, then spoil the observation."""
        return self._spoil(np.array(self.backend.reset(mask, seeds)))

    def step(self, action: np.ndarray) -> tuple[np.ndarray, ...]:
        """Step, then spoil what comes back."""
        active = self.begin <= self.frames < self.end
        self.frames += self.backend.num_envs
        if active and self.fault == "cliff":
            # The actuators fail: the same choice for ever, or none at all.
            action = np.zeros_like(action)
        obs, reward, terminated, truncated = (np.array(x) for x in self.backend.step(action))
        if active and self.fault == "periodic":
            # One round in eight is collected at another reward scale.
            number = self.frames // self.round_frames
            reward = reward * (3.0 if number % PERIOD == 0 else 1.0)
        if active and self.fault == "duplicates":
            reward = np.repeat(reward[:1], len(reward), axis=0)
        return self._spoil(obs), reward, terminated, truncated

    def _spoil(self, obs: np.ndarray) -> np.ndarray:
        if self.frames < self.begin:
            mean = obs.mean(0)
            self.sum = mean if self.sum is None else 0.999 * self.sum + 0.001 * mean
            return obs
        if self.frames >= self.end:
            return obs
        if self.fault == "frozen":
            self.frozen = obs if self.frozen is None else self.frozen
            return self.frozen.copy()
        if self.fault == "contraction":
            centre = obs.mean(0) if self.sum is None else self.sum
            return (centre + 0.1 * (obs - centre)).astype(obs.dtype)
        if self.fault == "duplicates":
            return np.repeat(obs[:1], len(obs), axis=0)
        return obs


@contextlib.contextmanager
def planted(fault: str, begin: int, round_frames: int, end: float = math.inf) -> Iterator[None]:
    """Make every run inside this context a sick one, to its end or (spoilt observations) to `end`."""
    from rl_twoclocks import build
    from rl_twoclocks.envs import make_env
    from rl_twoclocks.learner import Learner
    from rl_twoclocks.session import Session

    learn, prepare, collect, record = (
        Learner.learn,
        Learner.prepare,
        Session.collect,
        Session.record,
    )
    rounds = begin // round_frames
    seen = {"rounds": 0}
    kept: list[torch.Tensor] = []
    queue: deque[Any] = deque()

    def faulty_env(*args: Any) -> Any:
        env = make_env(*args)
        name = "frozen" if fault.startswith("frozen") else fault
        env.backend = FaultyBackend(env.backend, name, begin, round_frames, end)
        return env

    def faulty_learn(self: Any, *args: Any) -> Any:
        readings = learn(self, *args)
        seen["rounds"] += 1
        if fault == "state_blind" and seen["rounds"] >= rounds:
            flat = self.update.flat
            flat.named(flat.vector)["actor.0.weight"].zero_()
        return readings

    def faulty_prepare(self: Any, window: Any) -> Any:
        if fault == "normaliser" and seen["rounds"] >= rounds:
            self.normalizer.observation.update(window["observation"].flatten(0, 1))
            self.normalizer.refresh()
        return prepare(self, window)

    def faulty_collect(self: Any, stop: Any) -> Any:
        if fault != "lag" or seen["rounds"] < rounds:
            return collect(self, stop)
        while len(queue) <= LAG:
            queue.append(collect(self, stop).clone())
        return queue.popleft()

    def faulty_record(self: Any, *args: Any) -> Any:
        if fault == "leak" and seen["rounds"] >= rounds:
            kept.append(torch.randn(1 << 19))  # 2 MB
        return record(self, *args)

    with (
        mock.patch.object(build, "make_env", faulty_env),
        mock.patch.object(Learner, "learn", faulty_learn),
        mock.patch.object(Learner, "prepare", faulty_prepare),
        mock.patch.object(Session, "collect", faulty_collect),
        mock.patch.object(Session, "record", faulty_record),
    ):
        yield


def settings(task: str, seed: int, place: Path) -> list[str]:
    """What all runs are trained with."""
    return [
        f"task={task}", "clocks=classic", f"seed={seed}", f"total_frames={FRAMES}",
        f"clocks.batch_size={ROUND}", f"clocks.update_frequency={ROUND}",
        "interventions=observe", "compile=true", "logger=jsonl", "logger.display=none",
        "diagnostics.pictures=false", f"eval.every_frames={FRAMES // 10}", "eval.episodes=4",
        "eval.num_envs=4", f"run_dir={place}", "on_existing=overwrite",
    ]  # fmt: skip


def train(job: tuple[Path, str, str, int, list[str]]) -> str:
    """Train one sick (or healthy) run in a process of its own."""
    runs, task, fault, seed, overrides = job
    place = runs / task / fault / f"seed{seed}"
    if batch.is_over(place):
        return f"{place}: done before"
    import rl_twoclocks

    words = [*settings(task, seed, place), *overrides]
    if fault == "learning_rate":
        words.append("optim.learning_rate=9e-3")
    config = rl_twoclocks.compose(words)
    begin = 0 if fault in ("frozen_from_start", "learning_rate") else int(0.4 * FRAMES)
    place.mkdir(parents=True, exist_ok=True)
    planted_file(place).write_text(json.dumps({"fault": fault, "begin": begin}) + "\n")
    with contextlib.ExitStack() as stack:
        if fault not in ("none", "learning_rate"):
            stack.enter_context(planted(fault, begin, config.clocks.update_frequency))
        return come_to(place, config)


def come_to(place: Path, config: Config) -> str:
    """Train one run to its end, or to a number that is not finite; say what it came to."""
    import rl_twoclocks
    from rl_twoclocks.envs import NonFiniteError

    try:
        result = rl_twoclocks.train(config)
    except NonFiniteError as error:
        # What the fault came to, and it would come to it again.
        batch.diverged_file(place).touch()
        return f"{place}: {error}"
    return f"{place}: return {result.return_mean:.1f}"


def planted_file(place: Path) -> Path:
    """What was planted, and from which frame on, beside the run."""
    return place.with_name(f"{place.name}.planted.json")


def table(runs: Path) -> None:
    """Write fault x alarm: detected, rounds from planting to alarm, lead time."""
    from rl_twoclocks.diagnostics.cliff import fallen_from
    from rl_twoclocks.record import read_metrics

    places = [place for place in over(runs, "*/*/seed*") if planted_file(place).is_file()]
    healthy: dict[str, list[float]] = {}
    for place in places:
        if place.parts[-2] == "none":
            values = [v for _, v in _evaluations(read_metrics(place / "metrics.jsonl"))]
            healthy.setdefault(place.parts[-3], []).append(values[-1])
    rows = []
    for place in places:
        task, fault, seed = place.parts[-3], place.parts[-2], int(place.name[4:])
        if task not in healthy:
            raise SystemExit(f"no run of {task} without a fault: a fall is measured by those")
        begin = json.loads(planted_file(place).read_text())["begin"]
        events = read_metrics(place / "events.jsonl")
        alarms = [e for e in events if e["kind"] == "alarm"]
        metrics = read_metrics(place / "metrics.jsonl")
        per_round = metrics[0]["frames"]
        name = FAULTS.get(fault, "")
        mine = [e for e in alarms if e["name"] == name and e["frames"] > begin]
        evaluations = _evaluations(metrics)
        first = next(
            (m["rollout/return_round"] for m in metrics if "rollout/return_round" in m), 0.0
        )
        gain = float(interquartile_mean(np.array(healthy[task]))) - first
        found = fallen_from([v for _, v in evaluations], first, first + HEIGHT * gain)
        # The fall lies between the last good evaluation and the first bad one.
        fallen = None if found is None else evaluations[found - 1][0]
        if fallen is None and batch.diverged_file(place).exists():
            fallen = metrics[-1]["frames"]
        others = sorted({e["name"] for e in alarms if e["frames"] > begin and e["name"] != name})
        before = sorted({e["name"] for e in alarms if e["frames"] <= begin})
        led = mine and fallen is not None and mine[0]["frames"] <= fallen
        lead = (fallen - mine[0]["frames"]) // per_round if led else ""
        delay = (mine[0]["frames"] - begin) // per_round if mine else ""
        rows.append(
            {
                "task": task,
                "fault": fault,
                "seed": seed,
                "alarm": name,
                "detected": int(bool(mine)),
                "severity": mine[-1]["severity"] if mine else "",
                "rounds_to_alarm": delay,
                "lead_rounds": lead,
                "danger": sum(e["severity"] == "danger" for e in alarms),
                "other_alarms": " ".join(others),
                "alarms_before": " ".join(before),
            }
        )
    for row in kept.merge(OUT, rows, RUN):
        print(*row.values(), sep="\t")


def _evaluations(metrics: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(m["frames"], m["eval/return_mean"]) for m in metrics if "eval/return_mean" in m]


def suspects(runs: Path) -> None:
    """Who is suspected in each finished run."""
    from rl_twoclocks.record.records import Records, stored_config
    from rl_twoclocks.suspect import suspect

    rows = []
    for place in over(runs, "*/*/seed*"):
        task, fault, seed = place.parts[-3], place.parts[-2], int(place.name[4:])
        if fault not in SUSPECTS or (task, seed) == BUILT_ON:
            continue
        begin = json.loads(planted_file(place).read_text())["begin"]
        records = Records.read(place)
        found = suspect(stored_config(place), records.rows, records.events)
        part = "nobody" if found is None else found.part
        timely = found is None or fault == "learning_rate" or found.frames >= begin - 2 * ROUND
        told = f"python scripts/faults.py run --tasks {task} --faults {fault} --seeds {seed}"
        rows.append(
            {
                "task": task,
                "fault": fault,
                "seed": seed,
                "suspected": part,
                "right": int(part == SUSPECTS[fault] and timely),
                "planted_at": begin,
                "since": "" if found is None else found.frames,
                "command": told,
            }
        )
    for row in kept.merge(ROOT / "docs" / "benchmarks" / "suspects.csv", rows, RUN):
        print(*list(row.values())[:-1], sep="\t")


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table", "suspects"])
    parser.add_argument("--tasks", nargs="+", default=["halfcheetah", "hopper", "cartpole"])
    parser.add_argument("--faults", nargs="+", default=[*FAULTS, "none"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--overrides", nargs="*", default=[])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "faults")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    args = parser.parse_args()
    if args.what == "table":
        table(args.runs)
        return 0
    if args.what == "suspects":
        suspects(args.runs)
        return 0
    jobs = [
        (args.runs, task, fault, seed, args.overrides)
        for seed in args.seeds
        for fault in args.faults
        for task in args.tasks
    ]
    each_apart(train, jobs, args.jobs)
    return 0


def each_apart(work: Callable[[Any], str], jobs: Sequence[Any], at_a_time: int) -> None:
    """Do every job in a fresh process: what a fault leaves behind must not reach the next one."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(at_a_time, maxtasksperchild=1) as pool:
        for line in pool.imap_unordered(work, jobs, chunksize=1):
            print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
