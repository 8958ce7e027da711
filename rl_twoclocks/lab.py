"""`python -m rl_twoclocks.lab scenario=policy_lag budget=short`: run a failure, and its cure.

Runs every arm of a scenario (configs/lab) over its seeds, in parallel, goes on where it was broken off,
and writes a page with curves, intervals, times to collapse, alarms and one conclusion, drawn from the
numbers by the rules in `rl_twoclocks.verdict`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rl_twoclocks.cli import run_plain
from rl_twoclocks.config import ConfigError
from rl_twoclocks.config_commands import LabCommandConfig

if TYPE_CHECKING:
    from rl_twoclocks.config_commands import ScenarioConfig


def main() -> None:
    """Run the command; exit codes are in `rl_twoclocks.cli`."""
    run_plain("lab", LabCommandConfig, experiment)


def experiment(command: LabCommandConfig) -> None:
    """Run a scenario and write its page.

    Raises:
        ConfigError: there is no such scenario, budget or arm, an arm cannot be run, or the place cannot
            be used.
        WorkerError: runs failed; what the others came to is written, and the same command goes on.
    """
    from rl_twoclocks import scenario
    from rl_twoclocks.envs import WorkerError
    from rl_twoclocks.rundir import held

    found = scenario.load(command.scenario)
    place = Path(command.out or f"lab/{command.scenario}-{command.budget}").expanduser()
    try:
        with held(place, "running the lab", "out"):
            failed = scenario.run(found, command.budget, place, command.jobs, command.arms)
            _conclude(command, found, place)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from error
    if failed:
        raise WorkerError(f"{len(failed)} runs failed, the logs say why: {', '.join(failed)}")


def _conclude(command: LabCommandConfig, found: ScenarioConfig, place: Path) -> None:
    """Write what the finished runs came to; a conclusion once all three arms have some."""
    from rl_twoclocks import scenario, verdict

    runs = scenario.read(found, place)
    if not runs:
        raise ConfigError(f"{place} has no finished run of {command.scenario}")
    scenario.write_results(found, command.budget, runs, place / "results.csv")
    # What was concluded before may be from runs that are no longer there.
    for name in ("conclusion.json", "index.html", "curves.png", "further-arms.png"):
        (place / name).unlink(missing_ok=True)
    missing = [arm for arm in found.arms if all(run.arm != arm for run in runs)]
    if missing:
        print(f"\nno verdict yet: no run of {', '.join(missing)} is finished")
        return
    conclusion = verdict.conclude(found, command.scenario, command.budget, runs)
    verdict.write(found, conclusion, runs, place)
    print(f"\n{conclusion.text}")
    for claim in conclusion.claims:
        print(f"{claim.claim}: {claim.verdict}")
    print(f"page        {place / 'index.html'}")


if __name__ == "__main__":
    main()
    sys.exit(0)
