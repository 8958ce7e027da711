"""Settings for all tests."""

import os
from collections.abc import Iterator

import pytest
import torch

# Tiny tensor operations on two threads are many times slower on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _a_display_as_before() -> Iterator[None]:
    """What a command sets for its own process must not tell the next test that it can draw."""
    before = os.environ.get("MUJOCO_GL")
    yield
    if before is None:
        os.environ.pop("MUJOCO_GL", None)
    else:
        os.environ["MUJOCO_GL"] = before
