"""Tests of the pictures' layout."""

from __future__ import annotations

import random

import pytest

from rl_twoclocks.record.pictures import _LINES, place_names


@pytest.mark.parametrize("seed", range(20))
def test_names_cover_each_other_only_where_there_is_no_room(seed: int) -> None:
    draw = random.Random(seed)
    names = sorted((draw.uniform(0, 100), draw.uniform(5, 30)) for _ in range(12))
    lines = place_names(names)
    for i, (start, _) in enumerate(names):
        reaching = {
            line for line, (s, w) in zip(lines[:i], names[:i], strict=True) if s + w > start
        }
        assert lines[i] not in reaching or len(reaching) == _LINES


def test_names_at_one_place_are_on_lines_of_their_own() -> None:
    assert place_names([(5.0, 10.0)] * 4) == [0, 1, 2, 3]
