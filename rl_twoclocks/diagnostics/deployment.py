"""Training against deployment: the curve is perfect, the deployment fails."""

from __future__ import annotations

from rl_twoclocks.diagnostics.alarm import Alarm
from rl_twoclocks.diagnostics.cliff import noise, normalised_score
from rl_twoclocks.diagnostics.history import History
from rl_twoclocks.diagnostics.limits import Limits


def deployment_alarm(history: History, limits: Limits) -> Alarm | None:
    """The return under changed conditions lies far below the one in training."""
    if "eval/changed_return_mean" not in history or "eval/return_mean" not in history:
        return None
    first = history.start("rollout/return_round")
    training, changed = (history.newest(f"eval/{k}return_mean") for k in ("", "changed_"))
    # Before anything is learnt there is no score to lose, and few returns do not show their noise.
    if min(first.size, history.series("rollout/return_round").size) < 5:
        return None
    if history.highest("eval/return_mean") <= first[0]:
        return None
    # A random policy's return is 0 and training's is 1.
    score = normalised_score(changed, float(first[0]), training)
    if training - first[0] <= noise(history) or score >= limits.gap:
        return None
    return Alarm(
        "deployment_gap",
        "warn",
        {"score": score, "training": training, "changed": changed},
        "the policy fits the training conditions only (false convergence);",
        "vary the conditions in training, and reseed the environments.",
    )
