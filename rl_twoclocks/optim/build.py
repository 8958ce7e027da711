"""Find and build an optimizer of torch or torch_optimizer by its class name."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from rl_twoclocks.config import ConfigError, OptimConfig
from rl_twoclocks.nearest import did_you_mean

FUSED = {
    "Adam": {"lr", "betas", "eps", "weight_decay"},
    "AdamW": {"lr", "betas", "eps", "weight_decay"},
}
"""Optimizers that run inside the compiled step, and the arguments that this form knows."""

# Steps by closure, for sparse gradients only, and by second derivatives.
_UNUSABLE = {"Optimizer", "LBFGS", "SparseAdam", "Adahessian"}


def optimizer_class(name: str) -> Any:
    """Look a class up in torch.optim, then in torch_optimizer.

    Raises:
        ConfigError: there is none of that name; names near ones.
    """
    import torch_optimizer

    known: dict[str, type[torch.optim.Optimizer]] = {}
    for module in (torch_optimizer, torch.optim):
        for key, value in vars(module).items():
            if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer):
                known[key] = value
    for key in _UNUSABLE:
        known.pop(key, None)
    if name in known:
        return known[name]
    hint = did_you_mean(name, known, most=3) or f"known are {sorted(known)}"
    raise ConfigError(f"optim.name={name!r} is in neither torch.optim nor torch_optimizer: {hint}")


def check_optimizer(config: OptimConfig) -> None:
    """Build the optimizer on a throw-away parameter, so that bad arguments show at once.

    Raises:
        ConfigError: the name or one of `optim.kwargs` is wrong.
    """
    probe = nn.Linear(2, 2)
    make_optimizer(config, probe)


def make_optimizer(config: OptimConfig, module: nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer over a module's parameters.

    Raises:
        ConfigError: the name or one of `optim.kwargs` is wrong.
    """
    cls = optimizer_class(config.name)
    allowed = [p for p in inspect.signature(cls).parameters if p not in ("params", "lr")]
    for key in config.kwargs:
        if key not in allowed:
            hint = did_you_mean(key, allowed) or f"known are {allowed}"
            raise ConfigError(
                f"optim.kwargs.{key} is no argument of {config.name}: {hint}; "
                f"~optim.kwargs.{key} drops it"
            )
    try:
        return cls(module.parameters(), lr=config.learning_rate, **config.kwargs)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optim.name={config.name}: {error}") from error
