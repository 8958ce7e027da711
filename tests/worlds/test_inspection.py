"""Inspection: the decision follows the hidden label, and no single frame gives it away."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rl_twoclocks.worlds import Inspection
from rl_twoclocks.worlds.inspection import (
    ACCEPT,
    DEFECTS,
    DOWN,
    KINDS,
    LEFT,
    MISSING,
    NEXT,
    REJECT,
    RIGHT,
    STAIN,
    UP,
)

PIXELS = 24 * 24


def begun(count: int, **settings: Any) -> tuple[Inspection, np.ndarray]:
    world = Inspection(count, **settings)
    return world, world.reset(seeds=list(range(count))).copy()


def scan(world: Inspection) -> np.ndarray:
    """Every frame of surfaces of four places: [8, N, pixels], those in diffuse light first."""
    for move in (LEFT, DOWN):
        world.step(np.full(world.num_envs, move))
    frames = []
    for move in (UP, RIGHT, DOWN, LEFT):
        observation = world.step(np.full(world.num_envs, move))[0]
        frames.append(observation.copy())
        observation = world.step(np.full(world.num_envs, NEXT))[0]
        frames.append(observation.copy())
    stacked = np.stack(frames)
    order = np.argsort(stacked[:, :, PIXELS + 2], axis=0, kind="stable")
    return np.take_along_axis(stacked, order[:, :, None], axis=0)[:, :, :PIXELS]


def test_half_of_the_surfaces_have_a_defect_of_each_kind_alike() -> None:
    world, _ = begun(4000)
    assert world.defective.mean() == pytest.approx(0.5, abs=0.03)
    kinds = np.bincount(world.defect[world.defective] % len(KINDS)) / world.defective.sum()
    assert kinds == pytest.approx([0.25] * 4, abs=0.04)
    world.reset()
    assert world.defective.mean() == pytest.approx(0.5, abs=0.03)
    assert begun(4000, share=0.1)[0].defective.mean() == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_rewards_follow_the_hidden_label(share: float) -> None:
    world, _ = begun(64, share=share, time_limit=5)
    rng = np.random.default_rng(0)
    time = np.zeros(64, int)
    for _ in range(60):
        # A surface has a defect if its image under either light differs from one without.
        label = world.bank.defects[world.defect].any((1, 2, 3))
        action = rng.integers(0, 7, 64)
        _, reward, terminated, truncated = world.step(action)
        time += 1
        for i in range(64):
            if action[i] in (ACCEPT, REJECT):
                right = (action[i] == REJECT) == label[i]
                expected = (1.0 if right else -1.0), True, False, right
            else:
                late = time[i] == 5
                expected = (-1.0 if late else 0.0), late, False, False
            assert (reward[i], terminated[i], truncated[i], world.success[i]) == expected
        time[terminated | truncated] = 0
        world.reset(terminated | truncated)
    assert 0 < world.successes < world.episodes


def test_moves_by_hand() -> None:
    world, observation = begun(1, places=3, stride=12, time_limit=10)
    for _ in range(2):
        for action in (UP, LEFT):
            observation, reward, *_ = world.step(np.array([action]))
    assert reward[0] == 0
    assert list(observation[0, PIXELS : PIXELS + 2]) == [0.0, 0.0]
    light = observation[0, PIXELS + 2]
    expected = [(DOWN, 0.5, 0.0), (RIGHT, 0.5, 0.5), (RIGHT, 0.5, 1.0), (RIGHT, 0.5, 1.0)]
    for k, (action, line, column) in enumerate(expected):
        observation, *_ = world.step(np.array([action]))
        np.testing.assert_allclose(observation[0, PIXELS:], [line, column, light, 0.5 - k / 10])
    observation, *_ = world.step(np.array([NEXT]))
    assert observation[0, PIXELS + 2] == 1 - light


def test_the_trail_tells_which_frames_were_looked_at() -> None:
    world, observation = begun(40, places=3, stride=12, trail=True)
    looked: list[set[tuple[int, int, int]]] = [set() for _ in range(40)]
    rng = np.random.default_rng(6)
    for _ in range(60):
        for i in range(40):
            line, column, light = observation[i, PIXELS : PIXELS + 3]
            looked[i].add((round(2 * line), round(2 * column), int(light)))
            told = observation[i, PIXELS + 4 :].reshape(3, 3, 2)
            assert {tuple(map(int, place)) for place in np.argwhere(told)} == looked[i]
        observation, _, ended, _ = world.step(rng.choice(7, 40, p=[0.19] * 5 + [0.025] * 2))
        if ended.any():
            observation = world.reset(ended)
        for i in np.flatnonzero(ended):
            looked[i].clear()
    _, plain = begun(40)
    assert plain.shape[1] == PIXELS + 4


def test_views_are_cut_out_of_one_surface() -> None:
    world, observation = begun(50, noise=0.0, share=1.0)
    margin, grid = world.margin, world.grid
    for _ in range(6):
        for i in range(50):
            top, left = world.origin[:, i]
            texture = world.bank.textures[world.texture[i], world.light[i]]
            surface = texture[top : top + grid, left : left + grid] + 0.5
            surface = surface + world.defect_image(i)
            down, across = margin + 20 * world.line[i], margin + 20 * world.column[i]
            view = surface[down : down + 24, across : across + 24].clip(0, 1)
            np.testing.assert_allclose(observation[i, :PIXELS], view.ravel(), atol=1e-6)
        observation = world.step(np.random.default_rng(1).integers(0, 5, 50))[0]


def test_defects_lie_anywhere_on_the_surface() -> None:
    world, _ = begun(4000, share=1.0, noise=0.0)
    world.light = np.where(np.isin(world.defect % len(KINDS), (STAIN, MISSING)), 0, 1)
    middles = []
    for i in range(4000):
        weight = np.abs(world.defect_image(i))
        lines, columns = np.indices(weight.shape)
        middles.append([(weight * lines).sum(), (weight * columns).sum()] / weight.sum())
    places = np.array(middles) - world.margin
    surface = world.grid - 2 * world.margin
    # Nowhere is preferred: as many in each quarter of each axis; whole ones lie off the edge.
    for axis in places.T:
        inside = axis[(axis > 6) & (axis < surface - 6)]
        counts = np.histogram(inside, 4)[0] / len(inside)
        assert counts == pytest.approx([0.25] * 4, abs=0.05)
    again = world.shift.copy()
    world.reset()
    assert (world.shift != again).mean() > 0.9


def test_every_frame_has_noise_of_its_own() -> None:
    world, first = begun(20, noise=0.05)
    world.step(np.full(20, NEXT))
    again = world.step(np.full(20, NEXT))[0]
    difference = (again - first)[:, :PIXELS]
    assert difference.std() == pytest.approx(0.05 * 2**0.5, rel=0.05)


def test_a_defect_shows_under_one_light_and_mostly_outside_the_first_view() -> None:
    world, observation = begun(2000, share=1.0, noise=0.0)
    sound, plain = begun(2000, share=0.0, noise=0.0)
    first = np.abs(observation - plain)[:, :PIXELS].max(1) > 0.15
    assert 0.02 < first.mean() < 0.3
    frames, without = scan(world), scan(sound)
    shows = np.abs(frames - without).max(2) > 0.15
    assert shows.any(0).mean() > 0.99
    coloured = np.isin(world.defect % len(KINDS), (STAIN, MISSING))
    assert not shows[:4, ~coloured].any()
    assert not shows[4:, coloured].any()


def fitted(features: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Decisions of ridge regression on standardised features, each half judged by the other."""
    features = (features - features.mean(0)) / (features.std(0) + 1e-6)
    features = np.column_stack([features, np.ones(len(label))])
    half = len(label) // 2
    decided = np.zeros(len(label), dtype=bool)
    for fit, judge in ((slice(half), slice(half, None)), (slice(half, None), slice(half))):
        known = features[fit]
        inverse = np.linalg.inv(known.T @ known + 30 * np.eye(known.shape[1]))
        decided[judge] = features[judge] @ (inverse @ known.T @ (label[fit] - 0.5)) > 0
    return decided


def extremes(frame: np.ndarray) -> np.ndarray:
    """What gives a defect away best: the darkest and brightest pixels, and the spread."""
    ordered = np.sort(frame, axis=1)
    ends = np.column_stack([ordered[:, [0, 3, 10, -11, -4, -1]], frame.std(1)])
    return np.column_stack([ends, ends**2])


def test_a_single_frame_does_not_tell_but_all_of_them_do() -> None:
    world, observation = begun(3000)
    label = world.defective.copy()
    first = observation[:, :PIXELS]
    frames = scan(world)
    by_pixels = fitted(np.column_stack([first, extremes(first)]), label)
    assert (by_pixels == label).mean() < 0.7
    for frame in frames:
        assert (fitted(extremes(frame), label) == label).mean() < 0.7
    # The strongest sign over all frames decides nearly always.
    signs = [f for light in (frames[:4], frames[4:]) for f in (light.min(0), light.max(0))]
    signs = np.column_stack([extremes(sign) for sign in signs])
    assert (fitted(signs, label) == label).mean() > 0.85


PRESET = {"view": 16, "stride": 12}


@pytest.mark.parametrize("settings", [{}, PRESET], ids=["default", "preset"])
def test_no_rule_on_one_frame_is_right_in_three_of_four(settings: dict[str, int]) -> None:
    """Where not one pixel differs, a frame of a defective surface is one of a sound surface."""
    _, marred = begun(8000, share=1.0, noise=0.0, **settings)
    _, sound = begun(8000, share=0.0, noise=0.0, **settings)
    seen = (np.abs(marred - sound) > 1e-3).any(1)
    # At best all sound surfaces and all defects in sight are known, and half of them are sound.
    assert 0.55 < 0.5 + 0.5 * seen.mean() < 0.75


@pytest.mark.slow
def test_a_trained_classifier_of_one_frame_is_right_in_less_than_three_of_four() -> None:
    """The network of the preset, by supervision, judged on surfaces of the other split."""
    (world, frame), (judge, unseen) = (
        begun(count, split=split, **PRESET) for count, split in ((60_000, "train"), (6000, "test"))
    )
    mean, deviation = frame.mean(0), frame.std(0) + 1e-4
    inputs, judged = (torch.from_numpy((x - mean) / deviation) for x in (frame, unseen))
    label = torch.from_numpy(world.defective).float()
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(260, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    optimizer, best = torch.optim.Adam(net.parameters(), 1e-3), 0.0
    for _ in range(6):
        for rows in torch.randperm(len(label)).split(128):
            loss = nn.functional.binary_cross_entropy_with_logits(
                net(inputs[rows])[:, 0], label[rows]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            decided = (net(judged)[:, 0] > 0).numpy()
        best = max(best, float((decided == judge.defective).mean()))
    assert 0.55 < best < 0.75


def test_rotation_turns_the_image_and_nothing_else() -> None:
    straight, before = begun(200, split="test", noise=0.0, share=1.0)
    turned, after = begun(200, split="test", noise=0.0, share=1.0, rotation=5.0)
    for name in ("defective", "defect", "texture", "line", "column", "light"):
        np.testing.assert_array_equal(getattr(straight, name), getattr(turned, name))
    differs = (before != after)[:, :PIXELS].mean(1)
    upright = turned.angle == 20
    assert (differs[upright] == 0).all()
    assert (differs[np.abs(turned.angle - 20) > 10] > 0.1).all()
    np.testing.assert_array_equal(before[:, PIXELS:], after[:, PIXELS:])
    # Close to the middle nothing moves by a pixel at such angles.
    middle = np.s_[:, 10:14, 10:14]
    images = (a[:, :PIXELS].reshape(-1, 24, 24) for a in (before, after))
    np.testing.assert_array_equal(*(image[middle] for image in images))


def test_any_angle_is_what_it_says() -> None:
    world, observation = begun(30, noise=0.0, rotation=45.0, share=1.0)
    grid, margin = world.grid, world.margin
    for i in range(30):
        angle = np.deg2rad(np.linspace(-45, 45, 41)[world.angle[i]])
        top, left = world.origin[:, i]
        surface = world.bank.textures[world.texture[i], world.light[i]]
        surface = surface[top : top + grid, left : left + grid] + 0.5
        surface = (surface + world.defect_image(i)).clip(0, 1)
        for line, column in ((0, 0), (0, 23), (5, 17), (23, 2)):
            away = np.array([line - 11.5, column - 11.5])
            turn = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
            place = np.rint(turn @ away + 11.5).astype(int)
            place += margin + 20 * np.array([world.line[i], world.column[i]])
            assert observation[i, line * 24 + column] == pytest.approx(surface[*place], abs=1e-6)


def test_training_and_test_share_no_texture_and_no_defect() -> None:
    train, test = Inspection(1).bank, Inspection(1, split="test").bank
    for name in ("textures", "defects"):
        known = {image.tobytes() for image in getattr(train, name)[:DEFECTS]}
        assert len(known) == len(getattr(train, name)[:DEFECTS])
        assert not known & {image.tobytes() for image in getattr(test, name)[:DEFECTS]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stride": 25}, "stride=25 is outside 1 to 24: the nearest is 24"),
        ({"places": 1}, "places=1 is outside 2 to 16: the nearest is 2"),
        ({"rotation": 60.0}, "rotation=60.0 is outside 0.0 to 45.0: the nearest is 45.0"),
        ({"share": 2.0}, "share=2.0 "),
        ({"view": 24.5}, "view=24.5 is no whole number"),
        ({"trail": 2}, "trail=2 is neither true nor false"),
        ({"view": 96, "places": 16, "stride": 96}, "a surface of 1536 pixels: at most 192"),
        ({"split": "tset"}, "split='tset': did you mean test"),
        ({"time_limit": 0}, "time_limit=0 "),
    ],
)
def test_a_wrong_argument_names_the_nearest_right_value(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Inspection(1, **arguments)
