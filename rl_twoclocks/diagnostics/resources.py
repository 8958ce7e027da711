"""Memory creep and idle devices: readings of the machine, so they are under `time/`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rl_twoclocks.diagnostics.alarm import Alarm
from rl_twoclocks.diagnostics.history import History
from rl_twoclocks.diagnostics.limits import Limits


def memory_readings(device: torch.device) -> dict[str, float]:
    """Resident memory of this process and memory allocated on its device, in MB."""
    import psutil

    readings = {"time/memory_host": psutil.Process().memory_info().rss / 2**20}
    if device.type == "cuda":
        readings["time/memory_device"] = torch.cuda.memory_allocated(device) / 2**20
    return readings


def utilisation_readings(device: torch.device) -> dict[str, float]:
    """How busy a CUDA device was over the last sample period, in percent; nothing elsewhere."""
    if device.type != "cuda":
        return {}
    try:
        return {"time/device_utilisation": float(torch.cuda.utilization(device))}
    except Exception:
        # NVIDIA's management library is not installed or refuses, as it does in some containers, with
        # errors of its own: unknown is not idle.
        return {}


def creep(megabytes: Sequence[float] | np.ndarray) -> float:
    """Steady growth in MB per round: the median of all pairwise slopes (Theil 1950, Sen 1968).

    Robust to one-off jumps (a first evaluation, a compiled graph): they touch few of the pairs.
    0 for fewer than 8 values; long series are thinned to 64 first.
    """
    y = np.asarray(megabytes, dtype=np.float64)
    if y.size < 8:
        return 0.0
    at = np.unique(np.linspace(0, y.size - 1, min(y.size, 64)).round().astype(int))
    i, j = np.triu_indices(at.size, k=1)
    return float(np.median((y[at][j] - y[at][i]) / (at[j] - at[i])))


def memory_alarm(history: History, limits: Limits) -> Alarm | None:
    """Memory that grows steadily, after the window has filled."""
    if history.round < 3 * history.newest("clock/ratio", 1.0):
        return None
    for name in ("time/memory_host", "time/memory_device"):
        series = history.series(name)
        if name not in history or series.size < 32 or history.round % 8:
            continue
        recent = series[-32:]
        per_round = creep(recent)
        rises = float((np.diff(recent) > 0).mean())
        if per_round > limits.memory and rises > 0.5:
            return Alarm(
                "memory_creep",
                "warn",
                {"MB": series[-1], "MB per round": per_round},
                "memory grows with every round: something keeps tensors;",
                "look for lists that only grow, in the environment and in wrappers.",
            )
    return None


def idle_alarm(history: History, limits: Limits) -> Alarm | None:
    """A device that waits for data."""
    if not history.all_beyond("time/device_utilisation", limits.idle, 3, below=True):
        return None
    return Alarm(
        "idle_device",
        "watch",
        {"percent": history.newest("time/device_utilisation")},
        "the device waits for frames most of the time;",
        "collect with more environments, or learn on the CPU (device=cpu).",
    )
