"""The clocks out of step: data that is too old for the policy that learns from it."""

from __future__ import annotations

from rl_twoclocks.diagnostics.alarm import Alarm, Severity
from rl_twoclocks.diagnostics.history import History
from rl_twoclocks.diagnostics.limits import Limits


def lag_alarm(history: History, limits: Limits) -> Alarm | None:
    """Even the newest frames are of an older policy than the learner's."""
    lag = history.newest("clock/staleness_min", 0.0)
    if not history.all_beyond("clock/staleness_min", limits.lag_watch - 0.5, 2):
        return None
    severity: Severity = "warn" if lag >= limits.lag_warn else "watch"
    if lag >= limits.lag_danger:
        severity = "danger"
    return Alarm(
        "policy_lag",
        severity,
        {"versions": lag},
        "the newest data was collected by a policy that is this many versions old;",
        "publish sooner, queue fewer rollouts, or learn from old data with algo=twoclocks.",
    )


def publish_alarm(history: History, limits: Limits) -> Alarm | None:
    """The collectors do not get the newest policy."""
    if not history.all_beyond("clock/publish_lag", limits.publish_late, 2):
        return None
    return Alarm(
        "publish_lag",
        "danger",
        {"versions": history.newest("clock/publish_lag")},
        "the learner goes on but its policy does not reach the collectors;",
        "check what publishes; stop and align.",
    )


def worker_alarm(history: History, limits: Limits) -> Alarm | None:
    """One of those who collect goes on with an old policy."""
    if not history.all_beyond("collect/worker_behind", 0.5, 2):
        return None
    worker = history.newest("collect/worker_worst")
    return Alarm(
        "worker_version",
        "danger",
        {"worker": worker, "publications": history.newest("collect/worker_behind")},
        f"worker {worker:.0f} does not take the policies that are published;",
        "end its process: it is replaced.",
    )


def ratio_alarm(history: History, limits: Limits) -> Alarm | None:
    """Frames serve too many policy versions."""
    ratio = history.newest("clock/ratio_measured", 0.0)
    if "clock/ratio_measured" not in history or ratio < limits.ratio_watch:
        return None
    return Alarm(
        "clock_ratio",
        "danger" if ratio >= limits.ratio_danger else "watch",
        {"measured": ratio, "in force": history.newest("clock/ratio")},
        "one frame serves this many policy versions: the policy clock runs ahead of the environment's;",
        "shrink the window (clocks.batch_size) or collect more per version (clocks.update_frequency).",
    )
