"""When the optimizer step is compiled by itself."""

from __future__ import annotations

import shutil

import pytest

from rl_twoclocks.build import decide_compile
from rl_twoclocks.configure import compose
from rl_twoclocks.safety import settle

compiler = pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler")


@compiler
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        # The first command of the README must not run ten times as long as it has to.
        (["task=halfcheetah", "total_frames=200_000"], True),
        (["task=cartpole", "total_frames=4096"], False),
        (["task=halfcheetah", "total_frames=200_000", "compile=false"], False),
        (["task=cartpole", "total_frames=4096", "compile=true"], True),
    ],
)
def test_steps_are_compiled_where_it_pays(words: list[str], wanted: bool) -> None:
    config, derived = settle(compose(words))
    assert decide_compile(config, derived, gpu=False) is wanted
