"""`python -m rl_twoclocks.report <run dir ...>`: one self-contained HTML page about one run or several.

The page needs no network: verdict, curves with gradient norm and KL first, events, findings, data
flow and, of several runs, what differs between their configurations. Runs that differ in their seed
alone are pooled. A run may be unfinished. `--live <runs dir>` serves the same page on this machine
alone, about the runs below a folder, and renews it while they go on.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rl_twoclocks.cli import check_options, explain
from rl_twoclocks.config import ConfigError
from rl_twoclocks.output import outlive_readers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rl_twoclocks.reporting.runs import Run


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; --help says what there is")


def main() -> None:
    """Run the command; exit codes are those of the other commands."""
    outlive_readers()
    try:
        options = _options(sys.argv[1:])
        if options.live is not None:
            from rl_twoclocks.reporting.live import serve

            serve(Path(options.live).expanduser(), options.port)
            return
        from rl_twoclocks.reporting.runs import read_runs

        runs = read_runs(options.directories)
        out = write(runs, Path(options.out))
        print(f"{out}: {out.stat().st_size / 1e6:.2f} MB")
        if options.png is not None:
            drawn = draw(runs, Path(options.png))
            print(f"{options.png}: {len(drawn)} pictures")
    except Exception as error:
        sys.exit(explain(error))


def write(runs: Sequence[Run], out: Path) -> Path:
    """Write the page about some runs; return its file.

    Raises:
        ConfigError: the file cannot be written.
    """
    from rl_twoclocks.reporting.page import page
    from rl_twoclocks.rundir import write_text

    out = out.expanduser().absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, page(runs, out.parent))
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from error
    return out


def draw(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write every figure of the report as a PNG; return the files.

    Raises:
        ConfigError: the folder cannot be written to.
    """
    from rl_twoclocks.reporting.png import export

    try:
        return export(runs, folder.expanduser())
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from error


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="python -m rl_twoclocks.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("directories", nargs="*", metavar="run_dir", help="what training wrote")
    parser.add_argument("--out", default="report.html", help="the page (default: report.html)")
    parser.add_argument("--png", metavar="DIR", help="every figure as a PNG, too")
    parser.add_argument("--live", metavar="DIR", help="serve a page about all runs below a folder")
    parser.add_argument("--port", type=int, default=0, help="of --live (default: a free one)")
    check_options(arguments, ("--out", "--png", "--live", "--port", "--help", "-h"))
    options = parser.parse_args(arguments)
    if options.live is not None and options.directories:
        raise ConfigError(
            f"--live shows all runs below one folder: leave {options.directories[0]} out"
        )
    return options


if __name__ == "__main__":
    main()
