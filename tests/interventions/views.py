"""Views of a run that never was, for tests of single cures."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from rl_twoclocks import compose
from rl_twoclocks.config import Config
from rl_twoclocks.diagnostics import Alarm, History
from rl_twoclocks.interventions import Orders, View
from rl_twoclocks.update import Controls


@functools.cache
def base() -> Config:
    """A tiny configuration of no family."""
    return compose(["debug=smoke", "task=cartpole", "task.family=other"])


def config(family: str = "other", num_envs: int = 4, **clocks: int) -> Config:
    """A configuration with these clocks, without any check across fields."""
    whole = base()
    return whole.model_copy(
        update={
            "num_envs": num_envs,
            "task": whole.task.model_copy(update={"family": family}),
            "clocks": whole.clocks.model_copy(update=clocks),
        }
    )


def alarms(*names: str, severity: str = "danger") -> dict[str, Alarm]:
    """Alarms of these names."""
    return {name: Alarm(name, severity, {"value": 1.0}, "because;", "do it.") for name in names}


def controls(**changes: float) -> Controls:
    """What a schedule would say."""
    values = {"learning_rate": 3e-4, "clip_epsilon": 0.2, "max_grad_norm": 0.5}
    return Controls(**(values | changes))


def view(
    round: int = 0,
    on: dict[str, Alarm] | None = None,
    settings: Config | None = None,
    history: History | None = None,
    ages: Tensor | None = None,
    cells: Tensor | None = None,
    rule: Controls | None = None,
    passes: int = 10,
    **orders: Any,
) -> View:
    """A view with the orders of the schedule, unless told otherwise."""
    settings = settings or base()
    clocks = {
        "batch_size": settings.clocks.batch_size,
        "update_frequency": settings.clocks.update_frequency,
    }
    return View(
        settings,
        round,
        on or {},
        history or History(),
        cells,
        torch.arange(9, -1, -1) if ages is None else ages,
        Orders(rule or controls(), passes, **(clocks | orders)),
    )


INFINITE = math.inf
