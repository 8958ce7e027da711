"""Drawing without a display."""

from __future__ import annotations

import os


def without_display() -> None:
    """Let MuJoCo draw where there is no display.

    To be called before anything imports it, as torchrl does: this module imports nothing.
    """
    if not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
