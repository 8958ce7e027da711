"""The signs that the doctor reads: healthy values, urgency, and the command line that changes them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import ValidationError

from rl_twoclocks.config import Config, ConfigError
from rl_twoclocks.diagnostics import Limits
from rl_twoclocks.diagnostics.policy_shift import clip_level
from rl_twoclocks.safety import ratio_cap, settle, unit


@dataclass(frozen=True)
class Finding:
    """One row of the five-minute table."""

    symptom: str
    part: str
    """The part that is out of step: data, policy, critic, gradient, clocks, machine."""
    reading: str
    healthy: str
    urgency: str
    """fine, watch, warn or danger."""
    change: str
    """Overrides to type; empty where nothing is to be done or no override can do it."""
    advice: str = ""
    """What to do, in words, where it is more than overrides."""

    @property
    def todo(self) -> str:
        """What to type and what else to do, in one line."""
        return "; ".join(text for text in (self.change, self.advice) if text)


@dataclass(frozen=True)
class Check:
    """How one reading is judged: a warning beyond `watch`, an emergency beyond `danger`."""

    symptom: str
    part: str
    name: str
    watch: float
    danger: float
    change: str
    alarm: str = ""
    """The alarm that watches the same sign."""
    usual: str = ""
    """What most healthy runs show, in words; the bound is said anyway."""
    below: bool = False
    """Small values are the bad ones."""

    @property
    def healthy(self) -> str:
        """The values that are called fine."""
        bound = f"{'>=' if self.below else '<='} {self.watch:.2g}"
        return f"{bound} (usually {self.usual})" if self.usual else bound

    def finding(self, value: float) -> Finding:
        """Judge a value."""
        sign = -1 if self.below else 1
        urgency = "fine"
        if sign * value > sign * self.watch:
            urgency = "danger" if sign * value > sign * self.danger else "warn"
        change = self.change if urgency != "fine" else ""
        text = f"{self.name} {value:.3g}"
        return Finding(self.symptom, self.part, text, self.healthy, urgency, change)


def checks(config: Config, level: Limits, versions: float, dims: float) -> list[Check]:
    """All checks of a run, in reading order: gradient norm and KL first.

    Args:
        config: of the run; commands are in its numbers.
        level: of its alarms.
        versions: that the data spans, see `policy_shift.spanned`.
        dims: action dimensions, 1 for a discrete choice.
    """
    kl = versions * max(dims, 1.0)
    warn, danger = (1 / (1 + chi * kl) for chi in (level.chi_warn, level.chi_danger))
    clip = clip_level(level, max(dims, 1.0), config.algo.clip_epsilon)
    c = config.clocks
    slower = lower_rate(config)
    fewer = f"clocks.update_epochs={c.update_epochs // 2}" if c.update_epochs > 1 else slower
    half = c.batch_size // 2
    smaller = window_of(config, half) if half >= c.update_frequency else fewer
    fresher = f"clocks.update_frequency={min(2 * c.update_frequency, c.batch_size)}"
    if c.update_frequency >= c.batch_size:
        doubled = 2 * c.update_frequency
        fresher = f"clocks.update_frequency={doubled} clocks.batch_size={doubled}"
    bounded = f"optim.max_grad_norm={min(0.25, (config.optim.max_grad_norm or 0.5) / 2):.2g}"
    # The stop comes at 1.5 x the target: at the edge of what is healthy.
    target = min(0.03, level.kl_watch * kl / 1.5, (config.algo.target_kl or 1.0) / 2)
    calmer = f"algo.target_kl={max(target, 1e-4):.2g} {slower}"
    # Where the governor acts already, no override helps.
    guarded = "" if config.interventions.governor == "guard" else "interventions=guard"
    younger = "clocks.lag=0 clocks.publish_interval=1"
    if c.lag + c.publish_interval == 1:
        # What waits for the learner is as old as `max_staleness` lets it be.
        younger = f"collect.max_staleness={max(int(level.lag_watch), 1)}"
    more = f"num_envs={2 * config.num_envs}"
    cap = min(ratio_cap(config.task.family), level.ratio_watch)
    capped = window_of(config, int(cap * c.update_frequency))
    critic = f"algo.critic_coeff={2 * config.algo.critic_coeff or 0.5:.2g}"
    found = [
        Check("gradients explode", "gradient", "diag/grad_norm_max",
              4 * level.gradient_norm, 20 * level.gradient_norm,
              bounded, "gradient_norm", "below 5, in high dimensions up to 15"),
        Check("policy runs ahead of its data", "policy", "diag/kl_behaviour",
              level.kl_watch * kl, level.kl_danger * kl, calmer,
              "policy_kl"),
        Check("few frames carry the weight", "policy", "diag/ess", warn, danger, smaller,
              "effective_sample_size", below=True),
        Check("trust region is full", "policy", "train/clip_fraction", clip, 1.1, fewer,
              "clip_fraction"),
        Check("one frame serves too many versions", "clocks", "clock/ratio_measured",
              cap, max(level.ratio_danger, cap), capped, "clock_ratio"),
        Check("newest data is old", "clocks", "clock/staleness_min",
              level.lag_watch - 0.5, level.lag_danger, younger, "policy_lag", "0"),
        Check("policy is not published", "clocks", "clock/publish_lag",
              c.publish_interval - 0.5, c.publish_interval + 2.0, "", "publish_lag", "0"),
        Check("clocks moved apart between collection and learning", "clocks",
              "clock/first_ratio_error", level.first_ratio_mean, 100 * level.first_ratio_mean,
              "", "first_ratio"),
        Check("rollouts visit few places", "data", "diag/entropy_share",
              1.5 * level.entropy_floor, max(level.entropy_floor, 0.01),
              guarded, "diversity", "0.7 to 0.9", below=True),
        Check("episodes repeat", "data", "diag/duplicates",
              level.duplicates / 2, level.duplicates, guarded, "duplicates", "0"),
        Check("states drift between rollouts", "data", "diag/state_drift",
              level.drift / 2, level.drift, fresher, "state_drift", "below 0.3"),
        Check("stale data pulls by itself", "data", "diag/score_residual",
              level.score_residual, 3 * level.score_residual, smaller,
              "score_residual", "about 1"),
        Check("gradient noise is baseline leak", "gradient", "diag/baseline_leak",
              level.baseline_leak, (1 + level.baseline_leak) / 2, smaller, "baseline_leak", "below 0.1"),
        Check("gradients line up", "gradient", "diag/grad_participation",
              level.participation, 1.1, fresher, "gradients_aligned", "3 to 14", below=True),
        Check("critic explains nothing", "critic", "diag/explained_variance",
              0.02, -1.0, critic, usual="0.5 to 1", below=True),
        Check("hidden units are dead", "policy", "diag/dead_units",
              level.dead_units, 2 * level.dead_units, slower, "dead_units", "0"),
        Check("device idles", "machine", "time/device_utilisation",
              level.idle, level.idle / 3, more, "idle_device", below=True),
    ]  # fmt: skip
    return [replace(check, change=runnable(config, check.change)) for check in found]


USUAL_RATE, LARGE_RATE, DEFAULT_RATE = 3e-3, 9e-3, 3e-4
"""Learning rates of Adam: up to which presets and published settings for PPO go; 30 times the default,
with which the policy of every run of docs/benchmarks/faults.csv ran away from its data; the default."""


def rate_urgency(config: Config) -> str:
    """What is to be said of the learning rate, where steps are of its size whatever the gradient."""
    rate = config.optim.learning_rate
    if "adam" not in config.optim.name.lower() or rate <= USUAL_RATE:
        return "fine"
    return "warn" if rate < LARGE_RATE else "danger"


def lower_rate(config: Config) -> str:
    """Override for smaller steps: half of the rate, or the default where it is beyond usual ones."""
    rate = config.optim.learning_rate / 2 if rate_urgency(config) == "fine" else DEFAULT_RATE
    return f"optim.learning_rate={rate:.2g}"


def window_of(config: Config, frames: int) -> str:
    """Overrides for a window of at most so many frames, with what cannot be larger than it."""
    c, whole = config.clocks, unit(config)
    frames = max(frames // whole, 1) * whole
    words = [f"clocks.batch_size={frames}"]
    for key in ("update_frequency", "sample", "minibatch_size"):
        if (getattr(c, key) or 0) > frames:
            words.append(f"clocks.{key}={frames}")
    return " ".join(words)


def runnable(config: Config, overrides: str) -> str:
    """The overrides, if a run like this one could have them; else none: no advice is better."""
    values = config.model_dump()
    for word in overrides.split():
        key, _, value = word.partition("=")
        *path, last = key.split(".")
        if not path and key != "num_envs":
            continue  # a group, which holds for all
        inner = values
        for name in path:
            inner = inner[name]
        inner[last] = None if value == "null" else value
    try:
        settle(Config.model_validate(values, strict=False))
    except (ConfigError, ValidationError):
        return ""
    return overrides
