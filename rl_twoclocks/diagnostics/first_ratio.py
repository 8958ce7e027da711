"""The first importance ratio: on the newest rollout, before any step, the two policies are one."""

from __future__ import annotations

from torch import Tensor

from rl_twoclocks.diagnostics.alarm import Alarm

_CAUSES = {
    "weights": "the learner's weights are not the ones that collected the newest rollout",
    "normaliser": "the normaliser's statistics moved between collection and learning",
    "mode": "weights and statistics agree, so the network computes differently (mode or precision)",
}


def first_ratio(
    log_ratio: Tensor, moved: str, mean_limit: float, max_limit: float
) -> tuple[dict[str, float], Alarm | None]:
    """Measure |log(proximal / behaviour)| on the newest rollout.

    Args:
        log_ratio: [N, T], proximal minus behaviour log-probability, newest rollout only, in nats.
        moved: which clock differs: weights, normaliser or mode.
        mean_limit, max_limit: levels of mean and maximum above which the alarm sounds.

    Returns:
        `clock/first_ratio_error` (mean), `clock/first_ratio_error_max`, and the alarm if any.
    """
    error = log_ratio.abs()
    mean, largest = float(error.mean()), float(error.max())
    readings = {"clock/first_ratio_error": mean, "clock/first_ratio_error_max": largest}
    # Written so that NaN alarms too.
    if mean <= mean_limit and largest <= max_limit:
        return readings, None
    return readings, Alarm(
        name="first_ratio",
        severity="danger",
        values={"mean |log ratio|": mean, "max": largest},
        cause=f"{_CAUSES[moved]};",
        cure="change weights and statistics only by publishing them together.",
    )
