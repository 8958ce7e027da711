"""`python -m rl_twoclocks.doctor <run dir | checkpoint | overrides>`: what is out of step, what to do.

Given overrides, as for training, it checks the configuration before a run; given a run directory, it
reads what the run wrote, while it goes on or afterwards; given a checkpoint, it measures the window
that is saved in it. `--json` prints the same as one JSON object. `--map` draws the data flow instead,
with the lag predicted (and, of a run, measured); `--svg` prints that as a picture.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rl_twoclocks.cli import check_options, explain
from rl_twoclocks.config import ConfigError
from rl_twoclocks.output import outlive_readers
from rl_twoclocks.rundir import nearest_runs

if TYPE_CHECKING:
    from rl_twoclocks.findings import Report
    from rl_twoclocks.flowmap import FlowMap


def main() -> None:
    """Run the command; exit codes are those of the other commands."""
    outlive_readers()
    arguments = [a for a in sys.argv[1:] if a not in _OPTIONS]
    options = {a for a in sys.argv[1:] if a in _OPTIONS}
    if "--help" in arguments or "-h" in arguments:
        print(__doc__)
        sys.exit(0)
    try:
        check_options(arguments, (*_OPTIONS, "--help"))
        report = draw(arguments) if options & {"--map", "--svg"} else examine(arguments)
        text = report.svg() if "--svg" in options else report.text()  # type: ignore[union-attr]
    except Exception as error:
        sys.exit(explain(error))
    print(json.dumps(report.as_dict(), indent=2) if "--json" in options else text)
    sys.exit(0)


_OPTIONS = ("--json", "--map", "--svg")


def draw(arguments: list[str]) -> FlowMap:
    """The data-flow map of a run directory, or of the configuration that overrides ask for.

    Raises:
        ConfigError: an argument is neither a place nor an override.
    """
    from rl_twoclocks import flowmap
    from rl_twoclocks.configure import compose
    from rl_twoclocks.safety import settle

    path = _place(arguments)
    if path is not None:
        if not _is_run(path):
            raise ConfigError(f"{path} is no run directory{nearest_runs(path)}")
        return flowmap.of_run(path)
    return flowmap.of_configuration(*settle(compose(arguments)))


def examine(arguments: list[str]) -> Report:
    """Examine a run directory, a checkpoint, or the configuration that overrides ask for.

    Raises:
        ConfigError: an argument is neither a place nor an override, or a file is no checkpoint.
    """
    from rl_twoclocks import findings
    from rl_twoclocks.record.checkpoint import CheckpointError

    path = _place(arguments)
    if path is None:
        return findings.of_configuration(arguments)
    if path.is_file():
        try:
            return findings.of_window(path)
        except CheckpointError as error:
            run = path.absolute().parent
            hint = f"; a run is given by its directory: {run}" if _is_run(run) else ""
            raise ConfigError(f"{error}{hint}") from error
    if _is_run(path):
        return findings.of_run(path)
    raise ConfigError(f"{path} is no run directory and no checkpoint{nearest_runs(path)}")


def _is_run(path: Path) -> bool:
    return (path / "metrics.jsonl").is_file()


def _place(arguments: list[str]) -> Path | None:
    """The run directory or checkpoint that is asked for; None where it is a configuration.

    Raises:
        ConfigError: there is something beside it.
    """
    if len(arguments) == 1:
        path = Path(arguments[0]).expanduser()
        # A run directory may be named after an override.
        if "=" not in arguments[0] or path.exists():
            return path
    for word in arguments:
        if "=" not in word and Path(word).expanduser().exists():
            others = " ".join(a for a in arguments if a != word)
            raise ConfigError(
                f"{word} is read as it is, one at a time: leave out {others}; "
                "or leave out the directory, to check a configuration before a run"
            )
    return None


if __name__ == "__main__":
    main()
