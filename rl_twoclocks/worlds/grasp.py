"""Grasping, N at once: a MuJoCo gripper lifts an object; +1 for it, -2 for a drop, -1 for no result.

The physics is MuJoCo's own batched rollout; the model is `grasp.xml` beside this file.
"""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
from gymnasium.spaces import Box
from mujoco.rollout import Rollout

from rl_twoclocks.worlds.base import Array, Index, World, mix, normal, one_of, uniform, within

SUCCESS, DROP, TIME_OUT = 1.0, -2.0, -1.0
LIFTED, DROPPED, GOAL = 0.02, 0.005, 0.08
"""Heights of the object's centre above where it rests, in metres."""
NEAR, TOUCH = 0.02, 0.02
"""From the object's middle to between the fingers, and a finger's way to its side, in metres."""
HOLD = 5
"""Decisions in a row above GOAL that make a success."""
SUBSTEPS = 10
"""Physics steps of 0.004 s per decision."""
_MODEL = Path(__file__).with_name("grasp.xml")
_STATE = mujoco.mjtState.mjSTATE_FULLPHYSICS

# Purposes of hashes, so that no two draws share one.
_X, _Y, _YAW, _HAND_X, _HAND_Y, _NOISE = range(1, 7)


class Grasp(World):
    """N grippers, each over an object; actions [4] in -1 to 1: speeds along x, y and z, and grip.

    Observation, float32 [19]: place of the gripper (3) and gap between the fingers, their speeds (4),
    the object from the gripper (3), its speed (3), cosine and sine of four times its yaw (a box looks
    the same after a quarter turn), lifted or not, share of the hold done, share of time left. Lengths
    are in tenths of a metre.

    The object begins on the table at a random place with a random yaw, the gripper above it at
    another. Rewards: +1 when the object has been held 0.08 m above the table for 5 decisions, -2 when it
    was lifted by 0.02 m and is down again, -1 when time is up; each ends the episode. Otherwise 0.

    Args:
        num_envs: N.
        friction: sliding friction of object and fingers. The fingers press with 2 N and the object
            weighs 1 N, so below 0.25 no grip holds.
        mass: of the object in kg.
        spread: the object's place is up to this far from the middle along x and y, in metres.
        reward: sparse; dense: also the progress of gripper to object, of fingers onto it and of object
            up; noisy: also Gaussian noise.
        noise: standard deviation of the noisy reward.
        shaping: reward per tenth of a metre of progress.
        time_limit: decisions of 0.04 s.

    Raises:
        ValueError: an argument cannot be used; names the nearest right value.
    """

    fields = ("physics", "lifted", "held")

    def __init__(
        self,
        num_envs: int,
        friction: float = 1.0,
        mass: float = 0.1,
        spread: float = 0.05,
        reward: str = "sparse",
        noise: float = 1.0,
        shaping: float = 1.0,
        time_limit: int = 60,
    ) -> None:
        within("friction", friction, 0.01, 5.0)
        within("mass", mass, 0.01, 1.0)
        within("spread", spread, 0.0, 0.08)
        within("noise", noise, 0.0)
        self.reward = one_of("reward", reward, ("sparse", "dense", "noisy"))
        self.spread, self.noise, self.shaping = spread, noise, shaping
        space = Box(-np.inf, np.inf, (19,), np.float32)
        super().__init__(num_envs, time_limit, space, Box(-1.0, 1.0, (4,), np.float32))

        self.model = _load(friction, mass)
        self.data = mujoco.MjData(self.model)
        self._rollout = Rollout(nthread=0)
        self._renderer: mujoco.Renderer | None = None
        self._range = self.model.actuator_ctrlrange[:, 1].copy()
        self._home = np.empty(mujoco.mj_stateSize(self.model, _STATE))
        mujoco.mj_getState(self.model, self.data, self._home, _STATE)
        # Time comes first in a state, then positions, then velocities.
        self._place = slice(1, 1 + self.model.nq)
        self._speed = slice(1 + self.model.nq, 1 + self.model.nq + self.model.nv)
        self.physics = np.tile(self._home, (num_envs, 1))
        self.lifted = np.zeros(num_envs, dtype=bool)
        self.held = np.zeros(num_envs, dtype=np.int64)

    def _begin(self, index: Array) -> None:
        def draw(purpose: int, reach: float) -> Array:
            bits = mix(self.key[index], purpose, self.episode[index])
            return reach * (2.0 * uniform(bits) - 1.0)

        places = np.tile(self._home[self._place], (len(index), 1))
        places[:, 0], places[:, 1] = draw(_HAND_X, self.spread), draw(_HAND_Y, self.spread)
        places[:, 5], places[:, 6] = draw(_X, self.spread), draw(_Y, self.spread)
        half = draw(_YAW, np.pi / 8)
        places[:, 8], places[:, 11] = np.cos(half), np.sin(half)
        self.physics[index] = self._home
        self.physics[index, self._place] = places
        self.lifted[index] = False
        self.held[index] = 0

    @property
    def height(self) -> Array:
        """How far each object's centre is above where it rests, in metres, [N]."""
        return self.physics[:, self._place][:, 7] - self._home[self._place][7]

    def _advance(self, action: Array, late: Array) -> tuple[Array, Array, Array]:
        before = self._way() if self.reward == "dense" else None
        control = self._range * np.clip(action, -1.0, 1.0)
        states, _ = self._rollout.rollout(
            self.model, self.data, self.physics, control[:, None], nstep=SUBSTEPS
        )
        self.physics = states[:, -1].copy()
        height = self.height
        dropped = self.lifted & (height < DROPPED)
        self.lifted |= height > LIFTED
        self.held = np.where(height > GOAL, self.held + 1, 0)
        success = self.held >= HOLD
        reward = np.select([success, dropped, late], [SUCCESS, DROP, TIME_OUT], 0.0)
        if before is not None:
            # An episode's progress adds up to what it brought nearer, however it went about it. A
            # potential that is 0 at every end (Ng, Harada and Russell 1999) would take that back when
            # time is up, and who never lifts would learn nothing.
            reward += self.shaping * (before - self._way())
        elif self.reward == "noisy":
            reward += self.noise * normal(mix(self.key, _NOISE, self.episode, self.time))
        # Time that is up is a result with a reward of its own, seen in the observation.
        return reward, success | dropped | late, success

    def _way(self) -> Array:
        """What is left of the way to the object, of closing and of the lift, tenths of a metre [N]."""
        places = self.physics[:, self._place]
        there = np.linalg.norm(_between(places), axis=1)
        # Fingers that close beside the object are no progress.
        open_ = np.where(there < NEAR, np.maximum(TOUCH - places[:, 3], 0.0), TOUCH)
        up = np.maximum(GOAL - self.height, 0.0)
        return 10.0 * (there + open_ + up)

    def _observe(self, index: Index) -> None:
        places, speeds = self.physics[index][:, self._place], self.physics[index][:, self._speed]
        # The object's turns about x and y are small while it lies or is held.
        yaw = 4.0 * 2.0 * np.arctan2(places[:, 11], places[:, 8])
        self._observation[index] = np.column_stack(
            [
                10.0 * places[:, :4],
                speeds[:, :4],
                10.0 * _between(places),
                speeds[:, 5:8],
                np.cos(yaw),
                np.sin(yaw),
                self.lifted[index],
                self.held[index] / HOLD,
                1.0 - self.time[index] / self.time_limit,
            ]
        )

    def render(self, number: int = 0) -> Array:
        """Draw one gripper from the side, uint8 [360, 480, 3].

        Raises:
            RuntimeError: MuJoCo finds no way to draw here; MUJOCO_GL=egl needs no display.
        """
        if self._renderer is None:
            try:
                self._renderer = mujoco.Renderer(self.model, 360, 480)
            except mujoco.FatalError as error:
                raise RuntimeError(f"MuJoCo cannot draw here: {error}") from error
        mujoco.mj_setState(self.model, self.data, self.physics[number], _STATE)
        mujoco.mj_forward(self.model, self.data)
        self._renderer.update_scene(self.data, camera="side")
        return self._renderer.render()

    def close(self) -> None:
        """Release threads and the renderer."""
        self._rollout.close()
        if self._renderer is not None:
            self._renderer.close()


def _load(friction: float, mass: float) -> mujoco.MjModel:
    """Make the model with another object."""
    spec = mujoco.MjSpec.from_file(str(_MODEL))
    spec.geom("object").mass = mass
    for name in ("object", "left", "right"):
        spec.geom(name).friction[0] = friction
    return spec.compile()


def _between(places: Array) -> Array:
    """From the middle of the fingers to the object, in metres [N, 3]."""
    gripper = places[:, :3] + (0.0, 0.0, 0.1)
    return places[:, 5:8] - gripper
