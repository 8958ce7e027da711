"""`-m sweep.jobs=2 seed=1,2,3`: the jobs of a sweep as processes of their own, several at a time.

Every job is checked before the first one starts. A job that fails or is killed takes no other along; a
signal lets the jobs under way save their state.
"""

from __future__ import annotations

import itertools
import json
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_twoclocks.batch import run_to_end, several
from rl_twoclocks.config import ConfigError


@dataclass
class Job:
    """One run of a sweep."""

    number: int
    overrides: list[str]
    place: Path
    code: int | None = None
    """Exit code; None: it has not begun."""

    @property
    def log(self) -> Path:
        """What it printed: `seed1.log` beside `seed1`."""
        return self.place.with_name(f"{self.place.name}.log")


def run_jobs(overrides: Sequence[str], at_a_time: int) -> int:
    """Train all combinations of swept values; print what became of each, and return an exit code.

    Args:
        overrides: of the training command; several values separated by commas.
        at_a_time: jobs that train at once, with one thread each.

    Raises:
        ConfigError: a job cannot be run, or two share a directory; nothing has been started.
        Stopped: a signal came; jobs that were under way have saved their state.
    """
    jobs = plan(overrides)
    print(f"sweep       {len(jobs)} jobs, {at_a_time} at a time", flush=True)
    several(_train, jobs, at_a_time)
    return summary(jobs)


def listed(override: Any) -> list[str] | None:
    """The words that a parsed override stands for, one per value; None where Hydra alone knows them."""
    from hydra.core.override_parser.types import ValueType

    if not override.is_sweep_override():
        return [override.input_line]
    if not override.is_discrete_sweep() or override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        return None
    key = override.get_key_element()
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def plan(overrides: Sequence[str]) -> list[Job]:
    """The jobs of a sweep, in the order of the last key first; each is checked.

    Raises:
        ConfigError: as of `run_jobs`.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from rl_twoclocks.configure import compose
    from rl_twoclocks.rundir import directory
    from rl_twoclocks.safety import settle

    values = []
    for o in OverridesParser.create().parse_overrides(list(overrides)):
        if (words_of := listed(o)) is None:
            raise ConfigError(f"{o.input_line}: with sweep.jobs, write the values one by one")
        values.append(words_of)
    jobs: list[Job] = []
    for number, words in enumerate(itertools.product(*values)):
        try:
            place = directory(settle(compose(list(words)))[0])
        except ConfigError as error:
            swept = [w for w, of_key in zip(words, values, strict=True) if len(of_key) > 1]
            raise ConfigError(f"job {number}, {' '.join(swept)}: {error}") from error
        same = next((job for job in jobs if job.place == place), None)
        if same is not None:
            raise ConfigError(
                f"jobs {same.number} and {number} are one experiment and would share {place}: "
                "run them one by one, each with a run_dir"
            )
        jobs.append(Job(number, list(words), place))
    return jobs


def _train(job: Job, stop: threading.Event) -> None:
    if stop.is_set():
        return
    job.place.parent.mkdir(parents=True, exist_ok=True)
    job.code = run_to_end([*job.overrides, "logger.display=none"], job.log, stop)
    print(f"job {job.number:<7} {_became(job)}: {' '.join(job.overrides)}", flush=True)


def _became(job: Job) -> str:
    if job.code is None:
        return "not begun"
    if job.code < 0:
        return f"killed by {signal.Signals(-job.code).name}"
    return "done" if job.code == 0 else f"exit code {job.code}"


def summary(jobs: Sequence[Job]) -> int:
    """Print returns and directories, and those that failed last; return the first failure's code."""
    done = [job for job in jobs if job.code == 0]
    print(f"\nsweep       {len(done)} of {len(jobs)} jobs done")
    for job in done:
        found = json.loads((job.place / "result.json").read_text()).get("return_mean")
        value = "" if found is None else f"{found:.6g}"
        print(f"job {job.number:<7} {value:<10} {job.place}")
    failed = [job for job in jobs if job.code != 0]
    for job in failed:
        said = job.log.read_text().strip().splitlines() if job.log.exists() else []
        why = f": {said[-1]}" if said and (job.code or 0) > 0 else ""
        words = " ".join(job.overrides)
        print(f"failed      job {job.number}, {_became(job)}{why}: {words}; see {job.log}")
    codes = [job.code for job in failed if job.code]
    return next((code if code > 0 else 128 - code for code in codes), 1 if failed else 0)
