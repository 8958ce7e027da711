"""`python -m rl_twoclocks.doctor <run dir | checkpoint | overrides>`: what is out of step, what to do.

Given overrides, as for training, it checks the configuration before a run; given a run directory, it
reads what the run wrote, while it goes on or afterwards; given a checkpoint, it measures the window
that is saved in it. `--json` prints the same as one JSON object. `--map` draws the data flow instead,
with the lag predicted (and, of a run, measured); `--svg` prints that as a picture.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rl_twoclocks.cli import explain
from rl_twoclocks.config import ConfigError

if TYPE_CHECKING:
    from rl_twoclocks.findings import Report
    from rl_twoclocks.flowmap import FlowMap


def main() -> None:
    """Run the command; exit codes are those of the other commands."""
    arguments = [a for a in sys.argv[1:] if a not in _OPTIONS]
    strange = [a for a in arguments if a.startswith("-") and a not in ("--help", "-h")]
    if strange:
        known = ", ".join(_OPTIONS)
        sys.exit(explain(ConfigError(f"{strange[0]} is no option of the doctor: {known}, --help")))
    options = {a for a in sys.argv[1:] if a in _OPTIONS}
    if "--help" in arguments or "-h" in arguments:
        print(__doc__)
        sys.exit(0)
    try:
        report = draw(arguments) if options & {"--map", "--svg"} else examine(arguments)
        text = report.svg() if "--svg" in options else report.text()  # type: ignore[union-attr]
    except Exception as error:
        sys.exit(explain(error))
    with contextlib.suppress(BrokenPipeError):  # `| head`
        print(json.dumps(report.as_dict(), indent=2) if "--json" in options else text)
        sys.stdout.flush()
        sys.exit(0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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

    if len(arguments) == 1 and "=" not in arguments[0]:
        path = Path(arguments[0]).expanduser()
        if not (path / "metrics.jsonl").is_file():
            raise ConfigError(f"{arguments[0]} is no run directory")
        return flowmap.of_run(path)
    return flowmap.of_configuration(*settle(compose(arguments)))


def examine(arguments: list[str]) -> Report:
    """Examine a run directory, a checkpoint, or the configuration that overrides ask for.

    Raises:
        ConfigError: an argument is neither a place nor an override.
    """
    from rl_twoclocks import findings

    if len(arguments) == 1 and "=" not in arguments[0]:
        path = Path(arguments[0]).expanduser()
        if path.is_file():
            return findings.of_window(path)
        if (path / "metrics.jsonl").is_file():
            return findings.of_run(path)
        deeper = sorted(str(p.parent) for p in path.glob("**/metrics.jsonl"))[:5]
        hint = f"; there are runs in {', '.join(deeper)}" if deeper else ""
        raise ConfigError(f"{arguments[0]} is no run directory and no checkpoint{hint}")
    return findings.of_configuration(arguments)


if __name__ == "__main__":
    main()
