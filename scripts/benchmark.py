"""Measure the speed of this project and of its peers side by side, on one thread of one core.

    python scripts/benchmark.py --repeats 5 --rounds 20 --warmup 5

All contenders do the same work (see `benchmark_peers.py`), each in a fresh interpreter pinned to
the same core, one after the other: A B C A B C ..., so that the noise of a shared machine hits all
alike. Ratios are to be paired by repeat (`scripts/figures.py` does so).

This file imports the standard library only until a contender starts: on Linux a child's `ru_maxrss`
starts at the size of the parent that forked it, so a large runner would spoil the peak memory.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import importlib
import importlib.metadata
import json
import os
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONTENDER_NAMES = (
    "ours-classic",
    "ours-classic-envpool",
    "ours-default",
    "sb3",
    "sb3-vecnormalize",
    "torchrl",
    "torchrl-compiled",
)
PACKAGES = (
    "rl_twoclocks",
    "torch",
    "torchrl",
    "tensordict",
    "numpy",
    "gymnasium",
    "mujoco",
    "envpool",
    "stable-baselines3",
    "ale-py",
)
MEASURED = (
    "collect_fps",
    "update_seconds",
    "e2e_fps",
    "peak_rss_mb",
    "outside_seconds",
    "cpu_share",
)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclasses.dataclass(frozen=True)
class Protocol:
    """What is compared with what; `scripts/atari_speed.py` has another one."""

    script: Path
    """File that was started; its directory has the module `peers`."""
    peers: str = "benchmark_peers"
    """Module with `CONTENDERS`: by name, what measures one, given rounds and warm-up."""
    names: tuple[str, ...] = CONTENDER_NAMES
    measured: tuple[str, ...] = MEASURED
    out: Path = Path("docs/benchmarks/speed.csv")
    frames: int = 2048
    """Of a round."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the CSV file."""
        return ("contender", "repeat", "rounds", *self.measured, "cpu", "versions", "command")


CONTROL = Protocol(Path(__file__).resolve())


def parse_args(argv: list[str] | None = None, protocol: Protocol = CONTROL) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Measure the speed of PPO trainers side by side on one thread of one core.",
        epilog="contenders: " + ", ".join(protocol.names),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--repeats", type=int, default=5, help="fresh processes per contender")
    rounds = f"measured rounds of {protocol.frames:,} frames per process"
    add("--rounds", type=int, default=20, help=rounds)
    add("--warmup", type=int, default=5, help="rounds before them that are not measured")
    add("--contenders", default=",".join(protocol.names), help="names, separated by commas")
    add("--out", type=Path, default=protocol.out, help="CSV to (over)write")
    add("--core", type=int, default=None, help="core to pin to; none: the last one allowed")
    add("--timeout", type=float, default=1800.0, help="seconds after which a process is given up")
    add("--contender", default=None, help="run this one here, once, instead of starting processes")
    add("--json", type=Path, default=None, help="with --contender: file for its row")
    args = parser.parse_args(argv)
    args.contenders = [name for name in args.contenders.split(",") if name]
    unknown = {*args.contenders, args.contender or protocol.names[0]} - {*protocol.names}
    if unknown:
        parser.error(f"unknown contender {', '.join(sorted(unknown))}; {parser.epilog}")
    if min(args.repeats, args.rounds) < 1 or args.warmup < 0:
        parser.error("--repeats and --rounds must be at least 1, --warmup at least 0")
    return args


def run_contender(args: argparse.Namespace, protocol: Protocol = CONTROL) -> dict[str, object]:
    """Run one contender in this process, on one thread of one core; return its measured columns."""
    core = max(os.sched_getaffinity(0)) if args.core is None else args.core
    os.sched_setaffinity(0, {core})
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))  # read when the libraries load
    start, busy = time.perf_counter(), sum(os.times()[:4])
    import torch

    torch.set_num_threads(1)
    contenders = importlib.import_module(protocol.peers).CONTENDERS
    row = dataclasses.asdict(contenders[args.contender](args.rounds, args.warmup))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    row["peak_rss_mb"] = usage.ru_maxrss / 1024  # KiB on Linux
    # Processor time per wall time, with children (the compiler): well below 1, the core was shared
    # with someone else and the row says little.
    row["cpu_share"] = (sum(os.times()[:4]) - busy) / (time.perf_counter() - start)
    return row


def start_contender(
    name: str, args: argparse.Namespace, protocol: Protocol = CONTROL
) -> dict[str, object] | None:
    """Run one contender in a fresh interpreter; return None, with a printed reason, if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "row.json"
        command = [
            sys.executable,
            str(protocol.script),
            "--contender",
            name,
            "--json",
            str(result),
        ]
        command += ["--rounds", str(args.rounds), "--warmup", str(args.warmup)]
        if args.core is not None:
            command += ["--core", str(args.core)]
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}
        try:
            done = subprocess.run(  # in the folder: MuJoCo leaves its MUJOCO_LOG.TXT where it runs
                command,
                env=environment,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=args.timeout,
            )
        except subprocess.TimeoutExpired:
            print(f"{name}: no result after {args.timeout:g} s", flush=True)
            return None
        if done.returncode != 0 or not result.exists():
            tail = "\n".join(done.stderr.splitlines()[-15:])
            print(f"{name}: exit status {done.returncode}\n{tail}", flush=True)
            return None
        return json.loads(result.read_text())


def versions() -> str:
    """Return the versions of Python and the libraries in one line."""
    found = [f"python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def cpu_model() -> str:
    """Return the processor's name as Linux gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def print_table(rows: list[dict[str, object]]) -> None:
    """Print the median, minimum and maximum over repeats of each measured column."""
    print(f"\n{'contender':<22}{'n':>3}" + "".join(f"{name:>28}" for name in MEASURED[:4]))
    for contender in dict.fromkeys(row["contender"] for row in rows):
        mine = [row for row in rows if row["contender"] == contender]
        cells = []
        for name in MEASURED[:4]:
            values = [float(row[name]) for row in mine]
            form = ",.3f" if name == "update_seconds" else ",.0f"
            low, middle, high = (format(f(values), form) for f in (min, statistics.median, max))
            cells.append(f"{f'{middle} ({low}-{high})':>28}")
        print(f"{contender:<22}{len(mine):>3}" + "".join(cells))


def main(argv: list[str] | None = None, protocol: Protocol = CONTROL) -> int:
    """Run the benchmark; return 1 if a contender failed."""
    args = parse_args(argv, protocol)
    if args.contender:
        row = run_contender(args, protocol)
        if args.json:
            args.json.write_text(json.dumps(row))
        print(json.dumps(row))
        return 0
    given = sys.argv[1:] if argv is None else argv
    constant = {
        "cpu": cpu_model(),
        "versions": versions(),
        "command": shlex.join(["python", f"scripts/{protocol.script.name}", *given]),
    }
    rows, failures = [], 0
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, protocol.columns, lineterminator="\n")
        writer.writeheader()
        for repeat in range(1, args.repeats + 1):
            for name in args.contenders:
                row = start_contender(name, args, protocol)
                if row is None:
                    failures += 1
                    continue
                row = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}
                rows.append({"contender": name, "repeat": repeat, **row, **constant})
                writer.writerow(rows[-1])
                stream.flush()  # a killed benchmark keeps what it measured
                shown = ", ".join(f"{column} {row[column]}" for column in protocol.measured)
                print(f"repeat {repeat} {name}: {shown}", flush=True)
    print_table(rows)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
