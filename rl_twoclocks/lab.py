"""`python -m rl_twoclocks.lab scenario=policy_lag budget=short`: run a failure, and its cure.

Runs every arm of a scenario (configs/lab) over its seeds, in parallel, goes on where it was broken off,
and writes a page with curves, intervals, times to collapse, alarms and one conclusion, drawn from the
numbers by the rules in `rl_twoclocks.verdict`.
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
        ConfigError: there is no such scenario, budget or arm, or an arm cannot be run.
        RuntimeError: runs failed; the finished ones are kept, and the same command goes on.
    """
    from pathlib import Path

    from rl_twoclocks import scenario, verdict

    found = scenario.load(command.scenario)
    place = Path(command.out or f"lab/{command.scenario}-{command.budget}").expanduser()
    failed = scenario.run(found, command.budget, place, command.jobs, command.arms)
    if failed:
        raise RuntimeError(f"{len(failed)} runs failed, the logs say why: {', '.join(failed)}")
    runs = scenario.read(found, place)
    conclusion = verdict.conclude(found, command.scenario, command.budget, runs)
    verdict.write(found, conclusion, runs, place)
    print(f"\n{conclusion.text}")
    for claim in conclusion.claims:
        print(f"{claim.claim}: {claim.verdict}")
    print(f"page        {place / 'index.html'}")


if __name__ == "__main__":
    main()
    sys.exit(0)
