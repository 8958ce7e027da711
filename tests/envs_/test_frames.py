"""The ring of frames: what is looked up is what was put in, as long as it is there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_twoclocks.envs.frames import FrameStack, FrameStore


def frame(value: int, n: int = 1) -> np.ndarray:
    return np.full((n, 2, 3), value, dtype=np.uint8)


def test_a_new_episode_is_filled_with_its_first_frame() -> None:
    stack = FrameStack(2, 3, (2, 3))
    frames = [np.concatenate([frame(10 + t), frame(20 + t)]) for t in range(4)]
    shown = [stack.begin(frames[0], None), *(stack.push(f) for f in frames[1:3])]
    # The second environment begins an episode; the first goes on.
    shown += [stack.begin(frames[3], np.array([False, True])), stack.push(frames[1])]
    values = [[list(env[:, 0, 0]) for env in s] for s in shown]
    assert values == [
        [[10, 10, 10], [20, 20, 20]],
        [[10, 10, 11], [20, 20, 21]],
        [[10, 11, 12], [20, 21, 22]],
        [[10, 11, 12], [23, 23, 23]],
        [[11, 12, 11], [23, 23, 21]],
    ]


def test_stacks_by_number_are_the_stacks_themselves() -> None:
    rng = np.random.default_rng(0)
    dense, numbered = FrameStack(3, 4, (2, 3)), FrameStack(3, 4, (2, 3), remember=50)
    seen = []
    for t in range(50):
        images = rng.integers(256, size=(3, 2, 3), dtype=np.uint8)
        mask = rng.random(3) < 0.3
        if t == 0 or mask.any():
            pair = [s.begin(images, None if t == 0 else mask) for s in (dense, numbered)]
        else:
            pair = [s.push(images) for s in (dense, numbered)]
        seen.append(pair)
    for stack, numbers in seen:
        assert np.array_equal(stack, numbered.store.stacks(torch.from_numpy(numbers)).numpy())


def test_the_ring_holds_what_it_promises_even_where_every_decision_ends_an_episode() -> None:
    stack = FrameStack(2, 4, (2, 3), remember=10)
    everywhere = np.ones(2, bool)
    numbers = [stack.begin(frame(0, 2), None)]
    for t in range(1, 10):
        stack.push(frame(100 + t, 2))
        numbers.append(stack.begin(frame(t, 2), everywhere))
    first = stack.store.stacks(torch.from_numpy(numbers[0]))
    assert bool((first == 0).all())


def test_the_ring_does_not_grow_where_episodes_are_long() -> None:
    stack = FrameStack(2, 4, (2, 3), remember=10)
    size = len(stack.store.frames)
    stack.begin(frame(0, 2), None)
    for t in range(200):
        stack.push(frame(t, 2))
    assert len(stack.store.frames) == size <= 2 * 17


def test_a_frame_that_is_gone_is_not_replaced_by_another() -> None:
    store = FrameStore(3, 1, 2, 3)
    old = torch.from_numpy(store.add(frame(1), decides=True))
    for value in range(2, 9):
        store.add(frame(value), decides=True)
    with pytest.raises(RuntimeError, match="overwritten"):
        store.stacks(old)


@pytest.mark.parametrize("decisions", [5, 8, 13])
def test_a_saved_ring_is_read_into_one_of_any_size(decisions: int) -> None:
    store = FrameStore(8, 1, 2, 3)
    for value in range(11):
        store.add(frame(value), decides=True)
    other = FrameStore(decisions, 1, 2, 3)
    other.load_state_dict(store.state_dict())
    newest = torch.arange(11 - min(decisions, 8), 11)
    assert other.stacks(newest)[:, 0, 0].tolist() == newest.tolist()
    assert other.add(frame(11), decides=True).tolist() == [11]
    assert other.stacks(newest[1:])[:, 0, 0].tolist() == newest[1:].tolist()


def test_a_ring_that_has_grown_is_restored_whole() -> None:
    """Where every decision ends an episode, the ring grows beyond what was foreseen."""
    everywhere = np.ones(2, bool)
    stacks = [FrameStack(2, 4, (2, 3), remember=10) for _ in range(2)]
    numbers = [stacks[0].begin(frame(1, 2), None)]
    for t in range(1, 10):
        stacks[0].push(frame(100 + t, 2))
        numbers.append(stacks[0].begin(frame(1 + t, 2), everywhere))
    stacks[1].store.load_state_dict(stacks[0].store.state_dict())
    for t in range(6):
        shown = [stack.store.add(frame(50 + t, 2), decides=True) for stack in stacks]
        assert np.array_equal(*shown)
        for old in numbers[t + 1 :]:
            one, other = (stack.store.stacks(torch.from_numpy(old)) for stack in stacks)
            assert torch.equal(one, other) and int(one.min()) > 0


def test_the_ring_remembers_more_decisions_when_told_to() -> None:
    stack = FrameStack(2, 4, (2, 3), remember=10)
    stack.begin(frame(0, 2), None)
    numbers = [stack.push(frame(t, 2)) for t in range(1, 9)]
    stack.store.remember(200)
    for t in range(9, 150):
        stack.push(frame(t, 2))
    for t, each in enumerate(numbers, 1):
        newest = stack.store.stacks(torch.from_numpy(each))[:, -1]
        assert bool((newest == t).all())
    capacity = len(stack.store.frames)
    stack.store.remember(10)
    stack.push(frame(150, 2))
    assert len(stack.store.frames) == capacity  # never forgets sooner than it was told to
