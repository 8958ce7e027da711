"""What the commands share: Hydra's entry point, errors in plain words, exit codes, `--help`.

Exit codes: 0 the budget is used up; 1 the run failed; 2 the configuration cannot be run; 3 a number
is not finite; 128 + n stopped by signal n with its state saved (143 for SIGTERM, 130 for SIGINT).
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from rl_twoclocks.config import Config, ConfigError

FAILED, BAD_CONFIG, NOT_FINITE = 1, 2, 3


class Stopped(Exception):
    """A signal ended the run; its state is saved."""

    def __init__(self, name: str) -> None:
        """Keep the signal's name."""
        super().__init__(f"stopped by {name}; the same command goes on from the checkpoint")
        self.exit_code = 128 + signal.Signals[name].value


def run_command(name: str, job: Callable[[Config], Any]) -> None:
    """Run a job on the configuration that the command line asks for, under Hydra.

    Args:
        name: the primary configuration, `train`.
        job: what to do with a validated configuration; its result is what a sweep optimises.
    """
    arguments = sys.argv[1:]
    if "--help" in arguments or "-h" in arguments:
        from rl_twoclocks.help import train_help

        print(train_help())
        return
    multirun = "-m" in arguments or "--multirun" in arguments
    code = 0

    def attempt(values: Any) -> Any:
        nonlocal code
        from rl_twoclocks.configure import validate

        try:
            return job(validate(values))
        except Exception as error:
            code = explain(error)
            if not multirun:
                return None
            if isinstance(error, Stopped):
                # A signal is meant for the whole sweep.
                sys.exit(code)
            raise

    code = _hydra(name, arguments, attempt) or code
    sys.exit(code)


def _hydra(name: str, arguments: list[str], attempt: Callable[[Any], Any]) -> int:
    import hydra

    from rl_twoclocks.configure import check_overrides, config_dir

    try:
        check_overrides([a for a in arguments if not a.startswith("-")])
    except ConfigError as error:
        return explain(error)
    hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=name)(attempt)()
    return 0


def explain(error: Exception) -> int:
    """Print an error for a person and return the exit code that it stands for."""
    from rl_twoclocks.envs import NonFiniteError, WorkerError
    from rl_twoclocks.record.checkpoint import CheckpointError

    if isinstance(error, Stopped):
        print(f"\n{error}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, ConfigError):
        print(f"\nerror: {error}", file=sys.stderr)
        return BAD_CONFIG
    if isinstance(error, NonFiniteError):
        print(f"\nerror: {error}", file=sys.stderr)
        return NOT_FINITE
    if isinstance(error, (WorkerError, CheckpointError)):
        print(f"\nerror: {error}", file=sys.stderr)
        return FAILED
    traceback.print_exception(error)
    return FAILED
