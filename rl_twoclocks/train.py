"""`python -m rl_twoclocks.train task=halfcheetah`: train a policy from the command line.

The module can be called from Python too: `rl_twoclocks.train(rl_twoclocks.compose([...]))`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from rl_twoclocks.cli import Stopped, run_hydra
from rl_twoclocks.config import Config

if TYPE_CHECKING:
    from rl_twoclocks.result import Result


def main() -> None:
    """Run the command; exit codes are in `rl_twoclocks.cli`."""
    run_hydra("train", Config, _job)


def _job(config: Config) -> float | None:
    from rl_twoclocks.loop import train

    result = train(config)
    _print(result)
    if result.stopped_by is not None:
        raise Stopped(result.stopped_by, saved=result.checkpoint is not None)
    return result.return_mean


def _print(result: Result) -> None:
    print()
    if result.return_mean is not None:
        spread = f" +- {result.return_std:.1f}" if result.return_std is not None else ""
        print(f"return      {result.return_mean:.1f}{spread} (evaluation)")
        if result.best_return is not None:
            print(f"best        {result.best_return:.1f}")
    print(f"frames      {result.frames:,} in {result.rounds:,} rounds")
    print(f"time        {result.wall_seconds:.0f} s")
    if result.checkpoint is not None:
        print(f"checkpoint  {result.checkpoint}")
        print(f"evaluate    python -m rl_twoclocks.eval checkpoint={result.checkpoint}")


class _Callable(ModuleType):
    """Lets `rl_twoclocks.train` be the command's module and the library's function in one."""

    def __call__(self, config: Config) -> Result:
        """Train from a configuration; see `rl_twoclocks.loop.train`."""
        from rl_twoclocks.loop import train

        return train(config)


sys.modules[__name__].__class__ = _Callable

if __name__ == "__main__":
    main()
