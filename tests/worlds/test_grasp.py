"""Grasping: rewards by a rule written here anew, a grip by hand, and what friction decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_twoclocks.worlds import Grasp

REST = 0.02
"""Height of the middle of the object, a cube of 0.04 m, on the table."""


def parts(world: Grasp) -> tuple[np.ndarray, np.ndarray]:
    """Places of grippers and objects [N, 3], read from MuJoCo's own state: time, then positions."""
    return world.physics[:, 1:4] + (0.0, 0.0, 0.1), world.physics[:, 6:9]


class Hand:
    """Go above the object, down, close the fingers, and up: four phases of a controller by hand."""

    def __init__(self, world: Grasp, patience: int = 6) -> None:
        self.world, self.patience = world, patience
        self.closing = np.zeros(world.num_envs, int)

    def act(self) -> np.ndarray:
        gripper, thing = parts(self.world)
        away = thing - gripper
        above = np.abs(away[:, :2]).max(1) < 0.006
        low = away[:, 2] > -0.009
        self.closing += (above & low) | (self.closing > 0)
        action = np.zeros((self.world.num_envs, 4))
        action[:, :2] = np.clip(away[:, :2] / 0.016, -1, 1)
        action[:, 2] = np.where(above & ~low, -1.0, 0.0)
        action[:, 3] = np.where(self.closing > 0, 1.0, -1.0)
        up = self.closing > self.patience
        action[up, :3] = 0.0, 0.0, 0.5
        return action

    def results(self) -> np.ndarray:
        """Reward of the end of everyone's first episode [N]."""
        found = np.full(self.world.num_envs, np.nan)
        while np.isnan(found).any():
            _, reward, terminated, truncated = self.world.step(self.act())
            assert not truncated.any()
            new = terminated & np.isnan(found)
            found[new] = reward[new]
            self.closing[terminated] = 0
            self.world.reset(terminated)
        return found


def begun(count: int, **settings: Any) -> Grasp:
    world = Grasp(count, **settings)
    world.reset(seeds=list(range(count)))
    return world


def test_a_controller_by_hand_lifts_every_object() -> None:
    world = begun(64)
    assert (Hand(world).results() == 1.0).all()
    assert world.successes == world.episodes - (~world.success & world.ended).sum()


def test_a_random_policy_does_not() -> None:
    world = begun(128)
    rng = np.random.default_rng(0)
    while world.episodes < 400:
        _, _, terminated, _ = world.step(rng.uniform(-1, 1, (128, 4)))
        world.reset(terminated)
    assert world.successes / world.episodes < 0.05


def test_friction_decides() -> None:
    """Two fingers of 2 N hold 2 x friction x 2 N: the weight of 0.98 N needs 0.245."""
    assert (Hand(begun(32, friction=0.5)).results() == 1.0).all()
    assert (Hand(begun(32, friction=0.2)).results() == -1.0).all()
    assert (Hand(begun(32, friction=0.5, mass=0.3)).results() == -1.0).all()


def test_an_object_let_go_is_a_drop() -> None:
    world = begun(1)
    hand = Hand(world)
    while parts(world)[1][0, 2] - REST < 0.03:
        assert not world.step(hand.act())[2].any()
    rewards = []
    while not world.ended.any():
        rewards.append(float(world.step(np.array([[0.0, 0.0, 0.0, -1.0]]))[1][0]))
    assert rewards[-1] == -2.0
    assert not any(rewards[:-1])
    assert parts(world)[1][0, 2] - REST < 0.005


def test_the_rewards_follow_the_heights() -> None:
    world = begun(48, time_limit=45)
    hand = Hand(world, patience=3)  # some go up before they hold the object
    lifted, above, time = np.zeros(48, bool), np.zeros(48, int), np.zeros(48, int)
    seen = set()
    rng = np.random.default_rng(1)
    for _ in range(200):
        action = hand.act()
        loose = (hand.closing > 8) & (np.arange(48) % 3 == 0)
        action[loose, 3] = -1.0
        blind = np.arange(48) % 4 == 1
        action[blind] = rng.uniform(-1, 1, (blind.sum(), 4))
        _, reward, terminated, truncated = world.step(action)
        height = parts(world)[1][:, 2] - REST
        time += 1
        above = np.where(height > 0.08, above + 1, 0)
        down = lifted & (height < 0.005)
        lifted |= height > 0.02
        for i in range(48):
            late = time[i] == 45
            expected = 1.0 if above[i] == 5 else -2.0 if down[i] else -1.0 if late else 0.0
            assert (reward[i], terminated[i]) == (expected, expected != 0.0)
            assert world.success[i] == (expected == 1.0)
            seen.add(expected)
        assert not truncated.any()
        lifted[terminated], above[terminated], time[terminated] = False, 0, 0
        hand.closing[terminated] = 0
        world.reset(terminated)
    assert seen == {1.0, -2.0, -1.0, 0.0}


def test_objects_lie_anywhere_with_any_yaw() -> None:
    world = begun(2000)
    gripper, thing = parts(world)
    for places in (gripper[:, :2], thing[:, :2]):
        assert abs(places).max() <= 0.05
        assert places.std(0) == pytest.approx([0.1 / 12**0.5] * 2, rel=0.05)
    yaw = 2 * np.arctan2(world.physics[:, 12], world.physics[:, 9])
    assert yaw.std() == pytest.approx(np.pi / 2 / 12**0.5, rel=0.05)
    assert abs(np.corrcoef(thing[:, 0], gripper[:, 0])[0, 1]) < 0.06
    assert (thing[:, 2] == REST).all()


def test_the_observation_says_where_everything_is() -> None:
    world = begun(20)
    for _ in range(10):
        observation = world.step(np.tile([0.5, -0.5, -0.5, 0.5], (20, 1)))[0]
    gripper, thing = parts(world)
    np.testing.assert_allclose(observation[:, :3] / 10 + (0, 0, 0.1), gripper, atol=1e-6)
    np.testing.assert_allclose(observation[:, 8:11] / 10, thing - gripper, atol=1e-6)
    np.testing.assert_allclose(observation[:, 18], 1 - 10 / 60)


def test_the_dense_reward_adds_up_to_what_came_nearer() -> None:
    sparse, dense = begun(6, reward="sparse"), begun(6, reward="dense", shaping=0.5)
    hands = Hand(sparse), Hand(dense)
    total, open_ = np.zeros(6), np.ones(6, bool)
    gripper, thing = parts(dense)
    before = 10 * (np.linalg.norm(thing - gripper, axis=1) + 0.02 + 0.08)
    after = np.zeros(6)
    while open_.any():
        plain, shaped = (hand.world.step(hand.act()) for hand in hands)
        total += np.where(open_, shaped[1] - plain[1], 0.0)
        gripper, thing = parts(dense)
        left = np.maximum(0.08 + REST - thing[:, 2], 0)
        # The object is between the fingers: what they have left to close counts too.
        left += np.maximum(0.02 - dense.physics[:, 4], 0)
        new = open_ & plain[2]
        after[new] = 10 * (np.linalg.norm(thing - gripper, axis=1) + left)[new]
        open_ &= ~plain[2]
        for hand in hands:
            hand.closing[plain[2]] = 0
            hand.world.reset(plain[2])
    np.testing.assert_allclose(total, 0.5 * (before - after), atol=1e-6)
    assert (after < 0.2).all()


def test_closing_the_fingers_counts_where_the_object_is() -> None:
    near, far = begun(1, reward="dense"), begun(1, reward="dense")
    hand = Hand(near)
    while not hand.closing.all():
        near.step(hand.act())
    for world, brings in ((near, True), (far, False)):
        gained = np.zeros(1)
        gripper, thing = parts(world)
        away = np.linalg.norm(thing - gripper, axis=1)
        for _ in range(4):
            gained += world.step(np.array([[0.0, 0.0, 0.0, 1.0]]))[1]
        gripper, thing = parts(world)
        gained -= 10 * (away - np.linalg.norm(thing - gripper, axis=1))
        assert ((gained > 0.05) == brings).all()


def test_noise_has_the_deviation_asked_for() -> None:
    plain, noisy = begun(500, time_limit=30), begun(500, time_limit=30, reward="noisy", noise=0.3)
    action = np.zeros((500, 4))
    noise = np.array([noisy.step(action)[1] - plain.step(action)[1] for _ in range(8)])
    assert noise.std() == pytest.approx(0.3, rel=0.05)
    assert noise.mean() == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"friction": 0.0}, "friction=0.0 is outside 0.01 to 5.0: the nearest is 0.01"),
        ({"mass": 2.0}, "mass=2.0 is outside 0.01 to 1.0: the nearest is 1.0"),
        ({"spread": 0.1}, "spread=0.1 is outside 0.0 to 0.08: the nearest is 0.08"),
        ({"reward": "spars"}, "reward='spars': did you mean sparse"),
    ],
)
def test_a_wrong_argument_names_the_nearest_right_value(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Grasp(1, **arguments)
