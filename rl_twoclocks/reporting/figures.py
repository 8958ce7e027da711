"""What is drawn, in reading order: gradient norm and KL first, then the return, then the clocks.

One run: a chart per panel, its metrics as lines. Several runs: a chart per metric and task, an
experiment's seeds as thin lines with their interquartile mean and its interval on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_twoclocks.reporting.runs import EMPTY, Experiment, Run, Series
from rl_twoclocks.reporting.statistics import downsample, pool

KINDS = ("danger", "rescue", "warn", "watch", "order")
"""What an event can be, worst first; other kinds count as orders."""
COLOURS, DASHES = 8, 4
"""How many a page tells apart."""
VARIANCE = "reward variance / alert line"


@dataclass(frozen=True)
class Panel:
    """One question to the data, and the metrics that answer it."""

    key: str
    title: str
    unit: str
    how: str
    """How to read it, one sentence."""
    metrics: tuple[tuple[str, str], ...]
    """Names with what they are called in the chart."""
    log: bool = False


PANELS = (
    Panel("gradient-norm", "Gradient norm", "L2 norm before clipping",
          "Level or slowly rising is healthy; steps and spikes that grow come before a collapse.",
          (("grad_norm/total", "all layers"), ("diag/grad_norm_max", "largest layer")), log=True),
    Panel("kl", "KL", "nats",
          "How far the policy moves from the one that collected its data; a rise leads a fall of "
          "the return.",
          (("diag/kl_behaviour", "behaviour to current"), ("train/kl", "proximal to current")),
          log=True),
    Panel("return", "Return", "reward per episode",
          "In training (newest 100 episodes) and in evaluation (deterministic policy).",
          (("rollout/return_mean", "training"), ("eval/return_mean", "evaluation"))),
    Panel("clocks", "The two clocks", "policy versions",
          "Policy clock against environment clock: a straight line is in step; a steeper one learns "
          "more often from each frame.",
          (("clock/policy_version", "policy version"),)),
    Panel("clock-ratio", "Clock ratio", "versions that a frame serves",
          "As configured and as measured; they should lie on each other, below 10.",
          (("clock/ratio", "configured"), ("clock/ratio_measured", "measured"))),
    Panel("staleness", "Staleness", "versions",
          "Age of the data when it is learnt from: 0 is fresh.",
          (("clock/staleness_mean", "mean"), ("clock/staleness_max", "largest"))),
    Panel("reward-variance", "Reward variance profile", "times the alert line",
          "Variance of the return from rollout to rollout. High at first, while little has been "
          "gained, is usual; a rise above 1 that comes later and stays is the staircase of desync.",
          ((VARIANCE, "rolling variance of 10"),), log=True),
    Panel("rollout-entropy", "Rollout entropy", "bits",
          "Over how many places the states are spread. A policy that learns visits fewer; a fall of "
          "several bits below its usual range, in both lines, means that few are left.",
          (("diag/rollout_entropy", "cells fixed at the start"),
           ("diag/rollout_entropy_own_range", "range of each rollout"))),
    Panel("policy-entropy", "Policy entropy", "nats",
          "How undecided the policy is; it falls as the policy learns, a plunge ends exploration.",
          (("train/entropy", "policy entropy"),)),
    Panel("explained-variance", "Explained variance", "share",
          "How much of the returns the critic foresees: 1 is all; 0 or less is none.",
          (("diag/explained_variance", "critic"),)),
    Panel("episode-length", "Episode length", "frames",
          "In training (newest 100 episodes) and in evaluation.",
          (("rollout/length_mean", "training"), ("eval/length_mean", "evaluation"))),
    Panel("learning-rate", "Learning rate", "per optimizer step",
          "As the schedule and the governor leave it.",
          (("train/learning_rate", "learning rate"),)),
    Panel("throughput", "Throughput", "frames / s",
          "Evaluations and checkpoints included; a slow decline can be a memory that fills.",
          (("time/frames_per_second", "frames per second"),)),
)  # fmt: skip


SIGNS: dict[str, tuple[str, str, str]] = {
    "state_blind": ("diag/policy_variance", "Policy variance over states", "squares of its width"),
    "duplicates": ("diag/duplicates", "Copies among the frames", "share"),
    "dead_units": ("diag/dead_units", "Dead hidden units", "share"),
    "feature_rank": ("diag/feature_rank", "Rank of the actor's features", "directions"),
    "first_ratio": ("clock/first_ratio_error", "First ratio error", "mean |log ratio|"),
    "effective_sample_size": ("diag/ess", "Effective sample size", "share of the frames"),
    "clip_fraction": ("train/clip_fraction", "Clipped frames", "share"),
    "state_drift": ("diag/state_drift", "Drift of the states", "nats"),
    "score_residual": ("diag/score_residual", "Score residual", "times its noise"),
    "baseline_leak": ("diag/baseline_leak", "Baseline leak", "share of the gradient's noise"),
    "gradients_aligned": ("diag/grad_participation", "Gradient participation", "directions"),
    "critic_jump": ("train/loss_critic", "Critic loss", "squared error"),
    "periodic_loss": ("train/loss_critic", "Critic loss", "squared error"),
    "reward_cliff": ("diag/reward_mean", "Reward per frame", "reward"),
    "memory_creep": ("time/memory_host", "Memory", "MB"),
}
"""What an alarm watches, where no panel shows it: metric, title and unit. Drawn where it was raised."""


@dataclass(frozen=True)
class Line:
    """One line of a figure, short enough to draw."""

    label: str
    series: Series
    colour: int
    """Which of the palette, from 0."""
    thin: bool = False
    """One seed of several."""
    dots: bool = False
    """Few points, each to be seen."""
    low: np.ndarray | None = None
    """Interval around it, at the same frames."""
    high: np.ndarray | None = None

    @property
    def dash(self) -> int:
        """Which dash goes with the colour, so that colour is never alone."""
        return 0 if self.thin else (self.colour + self.colour // COLOURS) % DASHES


@dataclass(frozen=True)
class Mark:
    """One event on the time axis."""

    frames: int
    kind: str
    text: str


@dataclass(frozen=True)
class Figure:
    """One chart, before it is drawn."""

    key: str
    title: str
    unit: str
    how: str
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...]
    log: bool = False
    reference: float | None = None
    """A level to compare with."""
    missing: str = ""
    """Why there is nothing to see, where there is nothing."""
    several: bool = False
    """More than one run is in it."""


def figures(experiments: Sequence[Experiment]) -> list[Figure]:
    """All figures of a report, in reading order."""
    runs = [run for experiment in experiments for run in experiment.runs]
    if len(runs) == 1:
        return [_of_one(panel, runs[0]) for panel in (*PANELS, *_signs(runs[0]))]
    tasks = list(dict.fromkeys(e.task for e in experiments))
    return [
        _of_many(panel, number, task if len(tasks) > 1 else "", experiments)
        for panel in PANELS
        for number in range(len(panel.metrics))
        for task in tasks
    ]


def _signs(run: Run) -> list[Panel]:
    """Panels of what raised alarms in a run, and is not drawn anyway."""
    found: dict[str, Panel] = {}
    for event in run.events:
        if event["kind"] == "alarm" and event["name"] in SIGNS:
            metric, title, unit = SIGNS[event["name"]]
            how = f"The alarm {event['name']} watches this."
            key = metric.replace("/", "-").replace("_", "-")
            panel = Panel(key, title, unit, how, ((metric, title.lower()),))
            if len(run.get(metric).finite):
                found.setdefault(metric, panel)
    return list(found.values())


def kind(event: dict[str, Any]) -> str:
    """What an event counts as: the severity of an alarm, else rescue or order.

    A number that is not finite is a danger; who collected and died, and what the governor would have
    ordered, are to be watched.
    """
    found = event.get("severity") or event.get("kind")
    if found == "nonfinite":
        return "danger"
    if found == "restart" or (found == "order" and not event.get("given", True)):
        return "watch"
    return str(found) if found in KINDS else "order"


def variance(run: Run) -> Series:
    """Reward variance profile of a run over its alert line; empty where there is too little."""
    from rl_twoclocks.diagnostics.limits import CALIBRATED, limits
    from rl_twoclocks.diagnostics.reward_profile import WINDOW, profile_and_level

    returns = run.get("rollout/return_round").finite
    if len(returns) <= WINDOW:
        return EMPTY
    level = CALIBRATED
    if run.config is not None:
        level = limits(run.config.diagnostics.thresholds, run.config.diagnostics.limits)
    found = profile_and_level(returns.values, float(returns.values[0]), level)
    if found is None or found[1] <= 0:
        return EMPTY
    return Series(returns.frames[WINDOW - 1 :], found[0] / found[1])


def _get(run: Run, name: str) -> Series:
    return variance(run) if name == VARIANCE else run.get(name)


def _of_one(panel: Panel, run: Run) -> Figure:
    lines = tuple(
        Line(label, downsample(series), number, dots=name.startswith("eval/"))
        for number, (name, label) in enumerate(panel.metrics)
        if len((series := _get(run, name)).finite)
    )
    return Figure(
        panel.key, panel.title, panel.unit, panel.how, lines, _marks([run]), panel.log,
        1.0 if panel.key == "reward-variance" else None,
        "" if lines else _missing(panel, [run]),
    )  # fmt: skip


def _of_many(panel: Panel, number: int, task: str, experiments: Sequence[Experiment]) -> Figure:
    name, label = panel.metrics[number]
    shown = [e for e in experiments if not task or e.task == task]
    lines: list[Line] = []
    for colour, experiment in enumerate(shown):
        lines += _lines(name, experiment, colour)
    runs = [run for experiment in shown for run in experiment.runs]
    title = panel.title if len(panel.metrics) == 1 else f"{panel.title}, {label}"
    key = f"{panel.key}--{number + 1}"
    if task:
        tasks = list(dict.fromkeys(e.task for e in experiments))
        title, key = f"{title}: {task}", f"{key}--{tasks.index(task) + 1}"
    return Figure(
        key, title, panel.unit, panel.how, tuple(lines), _marks(runs), panel.log,
        1.0 if panel.key == "reward-variance" else None,
        "" if lines else _missing(panel, runs), len(runs) > 1,
    )  # fmt: skip


def _lines(name: str, experiment: Experiment, colour: int) -> list[Line]:
    """The seeds of one experiment, and what they have in common."""
    all_series = [
        (run, series) for run in experiment.runs if len((series := _get(run, name)).finite)
    ]
    dots = name.startswith("eval/")
    pooled = pool([series for _, series in all_series])
    thin = pooled is not None
    lines = [
        Line(run.label, downsample(series), colour, thin, dots and not thin)
        for run, series in all_series
    ]
    if pooled is not None:
        label = f"{experiment.label}, {len(all_series)} seeds"
        lines.append(Line(label, pooled.centre, colour, False, dots, pooled.low, pooled.high))
    return lines


def _marks(runs: Sequence[Run]) -> tuple[Mark, ...]:
    return tuple(
        Mark(
            int(event["frames"]),
            kind(event),
            (f"{run.label}: " if len(runs) > 1 else "") + str(event.get("text", "")),
        )
        for run in runs
        for event in run.events
    )


def _missing(panel: Panel, runs: Sequence[Run]) -> str:
    names = " and ".join(name for name, _ in panel.metrics)
    if panel.key == "reward-variance":
        return "Not shown: it needs more than ten rollouts in which an episode ended, and a gain."
    sets = {run.config.diagnostics.name for run in runs if run.config is not None}
    if panel.metrics[0][0].startswith(("diag/", "clock/")) and sets & {"off", "minimal"}:
        return f"Not measured: diagnostics={'|'.join(sorted(sets))} leaves out {names}."
    return f"Not recorded: no reading of {names}."
