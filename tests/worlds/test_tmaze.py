"""The T-maze by hand, and that nothing but memory solves it."""

from __future__ import annotations

import numpy as np
import pytest

from rl_twoclocks.worlds import make_world
from rl_twoclocks.worlds.tmaze import BUMP, FORWARD, LEFT, RIGHT, TMaze


def sides(seen: np.ndarray) -> np.ndarray:
    """The action that the cue names."""
    return np.where(seen[:, 0] < 0, LEFT, RIGHT)


def test_an_episode_by_hand() -> None:
    world = TMaze(64, length=3)
    seen = world.reset(seeds=list(range(64))).copy()
    assert set(seen[:, 0].tolist()) == {-1.0, 1.0}
    named = sides(seen)
    # A wall on both sides: nothing moves, the cue is still there.
    again, reward, *_ = world.step(np.full(64, LEFT))
    assert np.array_equal(again, seen)
    assert reward.tolist() == [BUMP] * 64
    for place in (1, 2, 3):
        seen, reward, terminated, _ = world.step(np.full(64, FORWARD))
        assert np.array_equal(seen, np.tile([0.0, float(place == 3)], (64, 1)))
        assert not terminated.any()
        assert not reward.any()
    assert world.step(np.full(64, FORWARD))[1].tolist() == [BUMP] * 64
    turn = np.where(np.arange(64) % 2 == 0, named, LEFT + RIGHT - named)
    _, reward, terminated, truncated = world.step(turn)
    assert terminated.all()
    assert not truncated.any()
    assert reward.tolist() == [1.0, -1.0] * 32
    assert world.success.tolist() == [True, False] * 32


def test_who_stands_still_runs_out_of_time() -> None:
    world = TMaze(2, length=3)
    world.reset(seeds=[1, 2])
    for k in range(1, 13):
        _, _, terminated, truncated = world.step(np.full(2, RIGHT))
        assert not terminated.any()
        assert truncated.all() == (k == 12)


def test_sides_are_even_and_independent_of_the_batch() -> None:
    world = make_world("tmaze", num_envs=4000, length=1)
    drawn = sides(world.reset(seeds=list(range(4000))))
    assert abs(np.mean(drawn == LEFT) - 0.5) < 0.03
    alone = make_world("tmaze", num_envs=1, length=1)
    assert [int(sides(alone.reset(seeds=[k]))[0]) for k in range(20)] == drawn[:20].tolist()


def test_between_cue_and_junction_nothing_tells_the_side() -> None:
    world = TMaze(500, length=6)
    named = sides(world.reset(seeds=list(range(500))))
    for _ in range(6):
        seen = world.step(np.full(500, FORWARD))[0]
        assert len(np.unique(seen, axis=0)) == 1
    # So any rule of what is seen here turns right half of the time.
    assert 0.4 < np.mean(named == LEFT) < 0.6


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="length=0 is outside 1 to 1000"):
        TMaze(1, length=0)
