"""What the commands share: Hydra's entry point, errors in plain words, exit codes, `--help`.

Exit codes: 0 the budget is used up; 1 the run failed; 2 the configuration cannot be run; 3 a number
is not finite; 128 + n stopped by signal n with its state saved (143 for SIGTERM, 130 for SIGINT).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rl_twoclocks.config import ConfigError
from rl_twoclocks.nearest import did_you_mean
from rl_twoclocks.output import outlive_readers

FAILED, BAD_CONFIG, NOT_FINITE = 1, 2, 3


class Stopped(Exception):
    """A signal ended the run; its state is saved, if a round had ended."""

    def __init__(self, name: str, saved: bool = True) -> None:
        """Keep the signal's name."""
        after = (
            "; the same command goes on from the checkpoint"
            if saved
            else " before the first round ended: nothing is saved, the same command begins anew"
        )
        super().__init__(f"stopped by {name}{after}")
        self.exit_code = 128 + signal.Signals[name].value


@contextlib.contextmanager
def stoppable() -> Iterator[threading.Event]:
    """Let SIGINT, SIGTERM and SIGHUP end what waits for other processes, as KeyboardInterrupt(number).

    The event tells the threads that wait for them.
    """
    stop = threading.Event()

    def interrupt(number: int, frame: Any) -> None:
        stop.set()
        raise KeyboardInterrupt(number)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # What somebody ignores on purpose stays ignored (`nohup`).
    heard = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Sweep:
    """What became of the jobs of one sweep, whichever processes they ran in."""

    VARIABLE = "RL_TWOCLOCKS_SWEEP"

    def __init__(self, jobs: int | None) -> None:
        """Begin a record; jobs find it through the environment, so the launcher does not matter.

        It lies where the runs go: a cluster's nodes share that folder with the submitting machine,
        but not its /tmp.

        Args:
            jobs: how many will be launched; None: not known beforehand.
        """
        self.jobs = jobs
        folder = Path("runs").absolute()
        folder.mkdir(exist_ok=True)
        handle, self.path = tempfile.mkstemp(prefix=".sweep-", suffix=".jsonl", dir=folder)
        os.close(handle)
        os.environ[self.VARIABLE] = self.path

    @classmethod
    def note(cls, code: int, error: Exception | None = None) -> None:
        """Write down how the present job ended."""
        from hydra.core.hydra_config import HydraConfig

        job = HydraConfig.get()
        lines = str(error).strip().splitlines() if error is not None else []
        row = {
            "job": int(job.job.num),
            "overrides": list(job.overrides.task),
            "code": code,
            "error": lines[0] if lines else type(error).__name__,
        }
        # One short write: jobs in other processes append to the same file.
        with open(os.environ[cls.VARIABLE], "a") as file:
            file.write(json.dumps(row) + "\n")

    @property
    def begun(self) -> bool:
        """Whether any job has said how it ended."""
        return os.path.getsize(self.path) > 0

    def close(self) -> int:
        """Say which jobs failed, as the last lines; return the first failure's exit code, or 0.

        A job that was launched and has not said how it ended counts as failed.
        """
        notes = [json.loads(line) for line in Path(self.path).read_text().splitlines()]
        # A job that a scheduler stopped and put back into its queue has two: the last one counts.
        rows = list({row["job"]: row for row in notes}.values())
        os.unlink(self.path)
        failed = sorted((row for row in rows if row["code"]), key=lambda row: row["job"])
        jobs = len(rows) if self.jobs is None else self.jobs
        silent = sorted(set(range(jobs)) - {row["job"] for row in rows})
        print(f"\nsweep       {len(rows) - len(failed)} of {jobs} jobs done")
        for row in failed:
            words = " ".join(row["overrides"])
            print(f"failed      job {row['job']}, exit code {row['code']}: {words}: {row['error']}")
        if silent:
            numbers = ", ".join(map(str, silent))
            print(
                f"silent      job {numbers}: not begun or killed; the launcher's logs may say why"
            )
        return failed[0]["code"] if failed else FAILED if silent else 0


def run_hydra(name: str, schema: type[BaseModel], job: Callable[[Any], Any]) -> None:
    """Run a job on the configuration that the command line asks for, under Hydra; then exit.

    Args:
        name: the primary configuration in `configs/`.
        schema: what it must be.
        job: what to do with a validated configuration; its result is what a sweep optimises.
    """
    outlive_readers()
    arguments = sys.argv[1:]
    _offer_help(name, schema, arguments)
    swept = [a for a in arguments if a.startswith("sweep=")]
    multirun = any(a in _MULTIRUN for a in arguments)
    if (swept or multirun) and (word := next((a for a in arguments if _LOGIN.search(a)), None)):
        key = word.partition("=")[0]
        error = (
            f"a sweep writes its words down: give the password of {key} in RL_TWOCLOCKS_REDIS_URL"
        )
        sys.exit(explain(ConfigError(error)))
    if swept:
        sys.exit(_search(swept[-1].partition("=")[2], [a for a in arguments if a not in swept]))
    code, begun = 0, False
    if any(a.startswith(_JOBS) for a in arguments):
        sys.exit(_at_once(arguments, multirun, schema))

    def attempt(values: Any) -> Any:
        nonlocal code, begun
        from rl_twoclocks.configure import validate

        begun = True
        # Hydra's quiet logging would also hide what loggers have to say.
        logging.getLogger().setLevel(logging.WARNING)
        try:
            result = job(validate(values, schema))
        except Exception as error:
            code = explain(error)
            if multirun:
                Sweep.note(code, error)
                if isinstance(error, Stopped):
                    # A signal is meant for the whole sweep.
                    sys.exit(code)
            return None
        if multirun:
            Sweep.note(0)
        return result

    import hydra

    from rl_twoclocks.configure import check_overrides, config_dir, free_form

    try:
        check_options(_flags(arguments), _HYDRA)
        check_overrides(_overrides(arguments), schema)
        jobs = _jobs(arguments, multirun)
    except ConfigError as error:
        sys.exit(explain(error))
    # Hydra takes the flag before or after all overrides, not between them.
    flags = [a for a in arguments if a in _MULTIRUN]
    sys.argv[1:] = flags[:1] + free_form([a for a in arguments if a not in _MULTIRUN])
    run = hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=name)(attempt)
    if not multirun:
        try:
            run()
        except SystemExit as error:
            # Hydra has said what is wrong with the command line, in its own words.
            sys.exit(BAD_CONFIG if error.code == FAILED and not begun else error.code)
        sys.exit(code)
    sweep = Sweep(jobs)
    try:
        run()
    except SystemExit as error:
        if error.code == FAILED and not sweep.begun:
            # Hydra has said what is wrong with its own settings.
            os.unlink(sweep.path)
            sys.exit(BAD_CONFIG)
        raise
    finally:
        if os.path.exists(sweep.path):
            code = sweep.close()
    sys.exit(code)


def _search(name: str, overrides: list[str]) -> int:
    from rl_twoclocks.sweep import run_sweep

    try:
        return run_sweep(name, overrides)
    except Exception as error:
        return explain(error)


def _at_once(arguments: list[str], multirun: bool, schema: type[BaseModel]) -> int:
    """Run `-m sweep.jobs=<n> ...` in processes of its own; return an exit code."""
    from rl_twoclocks.configure import check_overrides
    from rl_twoclocks.multirun import run_jobs

    number = next(a for a in reversed(arguments) if a.startswith(_JOBS)).removeprefix(_JOBS)
    words = [a for a in arguments if not a.startswith(_JOBS) and a not in _MULTIRUN]
    try:
        if not multirun:
            raise ConfigError(f"{_JOBS}{number} is for several runs: add -m, or sweep=optuna")
        if not number.isdigit() or int(number) < 1:
            raise ConfigError(f"{_JOBS}{number}: how many jobs at a time, 1 or more")
        if mixed := [a for a in words if a.startswith(("-", "hydra", "run_dir="))]:
            raise ConfigError(f"{mixed[0]} does not go with {_JOBS}{number}: leave one of them out")
        check_overrides(words, schema)
        return run_jobs(words, int(number))
    except Exception as error:
        return explain(error)


def run_plain(name: str, schema: type[BaseModel], job: Callable[[Any], Any]) -> None:
    """Run a job on key=value arguments alone, for commands without groups or sweeps; then exit."""
    outlive_readers()
    arguments = sys.argv[1:]
    _offer_help(name, schema, arguments)
    from omegaconf import OmegaConf

    from rl_twoclocks.configure import check_overrides, validate

    try:
        check_options(arguments, ("--help", "-h"))
        check_overrides(arguments, schema)
        job(validate(OmegaConf.from_dotlist(arguments), schema))
    except Exception as error:
        sys.exit(explain(error))
    sys.exit(0)


def _jobs(arguments: list[str], multirun: bool) -> int | None:
    """How many runs the command asks for; None: Hydra alone knows.

    Raises:
        ConfigError: several values without -m, one run_dir for several runs, or as of `plan`.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from rl_twoclocks.multirun import listed, plan

    overrides = OverridesParser.create().parse_overrides(_overrides(arguments))
    swept = [o for o in overrides if o.is_sweep_override()]
    if not multirun and swept:
        raise ConfigError(f"{swept[0].input_line} has several values: add -m to run them all")
    if multirun and any(o.key_or_group == "run_dir" for o in overrides):
        raise ConfigError("run_dir cannot be given with -m: the runs would share one directory")
    own_sweeper = any(o.key_or_group.startswith("hydra/sweeper") for o in overrides)
    if own_sweeper or any(listed(o) is None for o in swept):
        return None
    if not multirun:
        return 1
    ours = [str(o.input_line) for o in overrides if not o.key_or_group.startswith("hydra")]
    return len(plan(ours))


_MULTIRUN = ("-m", "--multirun")
_JOBS = "sweep.jobs="
_LOGIN = re.compile(r"://[^@\s]*:\S*@|://\S*[?&]password=")
"""An address with a password."""


def _overrides(arguments: list[str]) -> list[str]:
    """The key=value arguments: not the flags, and not the value of `--cfg job`."""
    before = ["", *arguments]
    return [
        a
        for a, previous in zip(arguments, before, strict=False)
        if not a.startswith("-") and previous not in _VALUED
    ]


def _flags(arguments: list[str]) -> list[str]:
    """The options among the arguments: not the values of options."""
    before = ["", *arguments]
    pairs = zip(arguments, before, strict=False)
    return [a for a, previous in pairs if a.startswith("-") and previous not in _VALUED]


_VALUED = {
    "--cfg",
    "-c",
    "--package",
    "-p",
    "--config-dir",
    "-cd",
    "--config-name",
    "-cn",
    "--info",
}
"""Hydra's flags that take a value of their own."""
_HYDRA = {
    *_VALUED, *_MULTIRUN, "--help", "-h", "--hydra-help", "--version", "--resolve", "--run", "-r",
    "--shell-completion", "-sc", "--config-path", "-cp", "--experimental-rerun", "-i",
}  # fmt: skip
"""All flags of Hydra."""


def check_options(arguments: Sequence[str], known: Collection[str]) -> None:
    """Check the names of options, the words that begin with a dash.

    Raises:
        ConfigError: there is no such option; names the nearest.
    """
    for word in arguments:
        name = word.partition("=")[0]
        if not word.startswith("-") or name in known:
            continue
        hint = did_you_mean(name, known) or "--help says what there is"
        raise ConfigError(f"unknown option {name}: {hint}")


def _offer_help(name: str, schema: type[BaseModel], arguments: list[str]) -> None:
    if "--help" in arguments or "-h" in arguments:
        from rl_twoclocks.help import help_text

        print(help_text(name, schema))
        sys.exit(0)


def explain(error: Exception) -> int:
    """Print an error for a person and return the exit code that it stands for."""
    if isinstance(error, ConfigError):
        print(f"\nerror: {error}", file=sys.stderr)
        return BAD_CONFIG
    from rl_twoclocks.envs import NonFiniteError, WorkerError
    from rl_twoclocks.record.checkpoint import CheckpointError

    if isinstance(error, Stopped):
        print(f"\n{error}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, NonFiniteError):
        print(f"\nerror: {error}", file=sys.stderr)
        return NOT_FINITE
    if isinstance(error, (WorkerError, CheckpointError)):
        print(f"\nerror: {error}", file=sys.stderr)
        return FAILED
    traceback.print_exception(error)
    return FAILED
