"""`python -m rl_twoclocks.worlds.gazebo [FOLDER]`: install Gazebo 11 into a folder and try it."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from rl_twoclocks.worlds.gazebo import Installation
from rl_twoclocks.worlds.gazebo.installation import HERE, VARIABLE, default_folder
from rl_twoclocks.worlds.gazebo.world import GazeboCartpole


def main() -> int:
    """Install, build the plugin, step a world; return the exit code."""
    parser = argparse.ArgumentParser(prog="rl_twoclocks.worlds.gazebo", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help=f"default: {default_folder()}")
    folder = parser.parse_args().folder
    folder = default_folder() if folder is None else folder.expanduser().absolute()
    if subprocess.run(["bash", str(HERE / "install.sh"), str(folder)]).returncode:
        return 1
    found = Installation(folder)
    try:
        print(f"plugin  {found.plugin()}")
        rate = steps_per_second(found)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"works   {rate:,.0f} decisions of 20 iterations per second, one server")
    if folder != default_folder():
        print(f"use it  export {VARIABLE}={folder}")
    return 0


def steps_per_second(installation: Installation, decisions: int = 400) -> float:
    """Step the cart-pole with an idle cart, from reset to reset."""
    world = GazeboCartpole(1, installation=installation)
    try:
        started = time.perf_counter()
        world.reset(seeds=[0])
        for _ in range(decisions):
            _, _, terminated, truncated = world.step(np.zeros((1, 1)))
            if terminated[0] or truncated[0]:
                world.reset()
        return decisions / (time.perf_counter() - started)
    finally:
        world.close()


if __name__ == "__main__":
    sys.exit(main())
