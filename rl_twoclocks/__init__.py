"""rl_twoclocks: PPO on TorchRL that watches the policy's and the environment's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_twoclocks import train
    from rl_twoclocks.config import Config, ConfigError
    from rl_twoclocks.configure import compose
    from rl_twoclocks.result import Result

__version__ = "0.1.0"
__all__ = ["Config", "ConfigError", "Result", "compose", "train"]

_HOMES = {"compose": "configure", "Config": "config", "ConfigError": "config", "Result": "result"}


def __getattr__(name: str) -> Any:
    # Importing the package stays instant; torch and TorchRL come with the first use.
    from importlib import import_module

    if name == "train":
        # The command's module, which can be called: `rl_twoclocks.train(config)`.
        return import_module("rl_twoclocks.train")
    if name in _HOMES:
        return getattr(import_module(f"rl_twoclocks.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'rl_twoclocks' has no attribute {name!r}")
