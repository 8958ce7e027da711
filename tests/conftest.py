"""Settings for all tests."""

import os
import signal
from collections.abc import Iterator

import pytest
import torch

# Tiny tensor operations on two threads are many times slower on a busy machine.
torch.set_num_threads(1)

# Started by nohup or with `&` these would be ignored, and by whatever a test starts too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _a_display_as_before() -> Iterator[None]:
    """What a command sets for its own process must not tell the next test that it can draw."""
    before = os.environ.get("MUJOCO_GL")
    yield
    if before is None:
        os.environ.pop("MUJOCO_GL", None)
    else:
        os.environ["MUJOCO_GL"] = before
