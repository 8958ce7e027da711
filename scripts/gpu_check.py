"""The steps of scripts/gpu_check.sh, which runs each under a time limit.

    python scripts/gpu_check.py versions
    python scripts/gpu_check.py agreement OUT
    python scripts/gpu_check.py train OUT cpu|cuda|cuda-compiled|cuda-graphs
    python scripts/gpu_check.py speed OUT

Exit codes: 0 passed, 1 failed, 2 there is no CUDA device (`versions` only).
"""

from __future__ import annotations

import json
import math
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FRAMES = 40_960
"""Frames of each training: 20 rounds of the classic clocks."""
WARM_UP = 3
"""Rounds left out of the speed: statistics only, compilation, first captures."""
AGREE = 1e-3
"""Largest difference of the parameters of CPU and GPU after round 2, relative to their norm."""
MAY_BE_INFINITE = ("diag/noise_scale", "diag/grad_condition")
"""Ratios whose denominator may vanish in a healthy run."""
VARIANTS = {
    "cpu": ["device=cpu", "compile=false"],
    "cuda": ["device=cuda", "compile=false"],
    "cuda-compiled": ["device=cuda", "compile=true"],
    "cuda-graphs": ["device=cuda", "compile=true", "cuda_graphs=true"],
}


def versions() -> int:
    """Print versions and device; 2 without a CUDA device."""
    import torch

    print(f"python     {platform.python_version()}")
    print(f"torch      {torch.__version__}, built for CUDA {torch.version.cuda}")
    if not torch.cuda.is_available():
        print(
            "error: no CUDA device: this check needs one NVIDIA GPU, its driver and a torch built "
            "for CUDA",
            file=sys.stderr,
        )
        return 2
    import gymnasium
    import mujoco
    import tensordict
    import torchrl

    import rl_twoclocks

    for module in (torchrl, tensordict, gymnasium, mujoco, rl_twoclocks):
        print(f"{module.__name__:<13}{module.__version__}")
    device = torch.cuda.get_device_properties(0)
    print(
        f"device     {device.name}, {device.total_memory / 2**30:.0f} GiB, {device.major}.", end=""
    )
    print(f"{device.minor}")
    return 0


def train_variant(out: Path, name: str, *overrides: str) -> list[dict[str, Any]]:
    """Train HalfCheetah with a variant's overrides; return the rows of its metrics."""
    import rl_twoclocks
    from rl_twoclocks.record import read_metrics

    common = [
        "task=halfcheetah",
        "logger=jsonl",
        "logger.display=plain",
        "eval=off",
        "diagnostics.pictures=false",
        f"run_dir={out / name}",
        "on_existing=overwrite",
    ]
    rl_twoclocks.train(rl_twoclocks.compose([*common, *overrides]))
    return read_metrics(out / name / "metrics.jsonl")


def check_metrics(rows: list[dict[str, Any]]) -> list[str]:
    """List what is wrong with a run's metrics: numbers that are not finite, first ratios off."""
    wrong = []
    for row in rows:
        at = f"at {row['frames']:,} frames"
        missing = [
            key for key, value in row.items() if value is None and key not in MAY_BE_INFINITE
        ]
        wrong += [f"{key} is not finite {at}" for key in missing]
        wrong += [f"{key} {at}" for key in row if key == "alarm/first_ratio"]
    if not any("train/loss" in row for row in rows):
        wrong.append("no round learned anything")
    return wrong


def report(wrong: list[str]) -> int:
    """Print what is wrong; the exit code."""
    for line in wrong[:10]:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong else 0


def agreement(out: Path) -> int:
    """Train two rounds on CPU and GPU from one seed; compare parameters and first ratios.

    The first round only estimates statistics, and the policy acts on the CPU, so both learn from the
    very same frames in the second: what differs is the arithmetic of one round.
    """
    import torch

    from rl_twoclocks.record import checkpoint

    frames = 2 * 2048
    vectors, wrong = {}, []
    for device in ("cpu", "cuda"):
        name = f"agreement-{device}"
        rows = train_variant(
            out, name, f"device={device}", "compile=false", f"total_frames={frames}"
        )
        wrong += [f"{device}: {text}" for text in check_metrics(rows)]
        vectors[device] = checkpoint.load(out / name / f"checkpoint-{frames:012d}.pt")["parameters"]
        errors = [row["clock/first_ratio_error_max"] for row in rows]
        print(f"{device:<6} largest |log first ratio| by round: {errors}")
    difference = float((vectors["cuda"] - vectors["cpu"]).norm() / vectors["cpu"].norm())
    largest = float((vectors["cuda"] - vectors["cpu"]).abs().max())
    print(
        f"parameters after round 2: difference {difference:.2e} of their norm, at most {largest:.2e}"
    )
    if not (math.isfinite(difference) and difference <= AGREE):
        wrong.append(f"CPU and GPU differ by {difference:.2e}, more than {AGREE:.0e}")
    if not torch.isfinite(vectors["cuda"]).all():
        wrong.append("parameters from cuda are not finite")
    return report(wrong)


def train(out: Path, name: str) -> int:
    """Train one variant and keep its speed."""
    rows = train_variant(out, name, *VARIANTS[name], f"total_frames={FRAMES}")
    speed: dict[str, Any] = {
        "frames_per_second": statistics.median(
            row["time/frames_per_second"] for row in rows[WARM_UP:]
        ),
        "update_seconds": statistics.median(row["time/update_seconds"] for row in rows[WARM_UP:]),
        "first_update_seconds": rows[1]["time/update_seconds"],
    }
    if name == "cuda-graphs":
        # Inductor leaves a graph out without an error where it cannot capture it.
        from torch._dynamo.utils import counters

        found = counters["inductor"]
        speed["graphs_skipped"] = found["cudagraph_skips"] + max(
            found["cudagraph_partitions"] - 1, 0
        )
    (out / f"{name}.json").write_text(json.dumps(speed) + "\n")
    wrong = check_metrics(rows)
    if speed.get("graphs_skipped"):
        wrong.append("CUDA graphs were asked for, and Inductor did not capture the step in one")
    return report(wrong)


def speed(out: Path) -> int:
    """Print the speed of every variant that ran, and store all in speed.json."""
    table = {}
    print(f"{'variant':<15}{'frames/s':>10}{'update, s':>11}{'first update, s':>17}")
    for name in VARIANTS:
        path = out / f"{name}.json"
        if not path.is_file():
            print(f"{name:<15}{'-':>10}")
            continue
        row = table[name] = json.loads(path.read_text())
        print(
            f"{name:<15}{row['frames_per_second']:>10,.0f}{row['update_seconds']:>11.3f}"
            f"{row['first_update_seconds']:>17.2f}"
        )
    (out / "speed.json").write_text(json.dumps(table, indent=2) + "\n")
    return 0 if table else 1


def main(words: list[str]) -> int:
    """Run the step that the command line names."""
    steps: dict[str, tuple[int, Callable[..., int]]] = {
        "versions": (0, versions),
        "agreement": (1, agreement),
        "train": (2, train),
        "speed": (1, speed),
    }
    if not words or words[0] not in steps or len(words) - 1 != steps[words[0]][0]:
        print(__doc__, file=sys.stderr)
        return 1
    arguments: list[Any] = words[1:]
    if arguments:
        arguments[0] = Path(arguments[0])
    return steps[words[0]][1](*arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
