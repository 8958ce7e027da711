"""`python -m rl_twoclocks.lab scenario=policy_lag budget=short`: run a failure, and its cure.

Runs every arm of a scenario (configs/lab) over its seeds, in parallel, goes on where it was broken off,
and writes a page with curves, intervals, times to collapse, alarms and one conclusion, drawn from the
numbers by the rule in `rl_twoclocks.scenario`.
"""

from __future__ import annotations

import sys

from rl_twoclocks.cli import run_plain
from rl_twoclocks.config_commands import LabCommandConfig


def main() -> None:
    """Run the command; exit codes are in `rl_twoclocks.cli`."""
    run_plain("lab", LabCommandConfig, experiment)


def experiment(command: LabCommandConfig) -> None:
    """Run a scenario and write its page.

    Raises:
        ConfigError: there is no such scenario or budget, or an arm cannot be run.
        RuntimeError: runs failed; the finished ones are kept, and the same command goes on.
    """
    from pathlib import Path

    from rl_twoclocks import scenario

    found = scenario.load(command.scenario)
    place = Path(command.out or f"lab/{command.scenario}-{command.budget}").expanduser()
    failed = scenario.run(found, command.budget, place, command.jobs)
    if failed:
        raise RuntimeError(f"{len(failed)} runs failed, the logs say why: {', '.join(failed)}")
    conclusion = scenario.conclude(found, command.budget, place)
    scenario.write(found, conclusion, place)
    print(f"\n{conclusion.text}\npage        {place / 'index.html'}")


if __name__ == "__main__":
    main()
    sys.exit(0)
