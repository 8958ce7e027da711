"""The rules of the shipped worlds."""

from __future__ import annotations

import math

import numpy as np

from rl_twoclocks.worlds.gazebo.picture import GOAL, Picture
from rl_twoclocks.worlds.gazebo.protocol import Array, Start, State
from rl_twoclocks.worlds.gazebo.rules import Rules, Verdict


class Cartpole(Rules):
    """Keep a pole up for ten seconds: reward 1 per decision; success is reaching the time limit.

    It is over where the cart is 2.4 m from the middle or the pole 0.21 rad (12 degrees) from upright.
    """

    time_limit = 500
    reach, lean = 2.4, 0.21

    def begin(self, random: np.random.Generator) -> Start:
        """Anywhere within a metre of the middle, up to 6 degrees off, moving a little."""
        place, angle = random.uniform(-1.0, 1.0), random.uniform(-0.1, 0.1)
        speed, spin = random.uniform(-0.2, 0.2, 2)
        return Start(joints={"slider": (place, speed), "hinge": (angle, spin)})

    def observe(self, state: State) -> Array:
        """Place, angle, and their velocities."""
        return np.concatenate([state.positions, state.velocities])

    def judge(self, state: State, action: Array, late: bool) -> Verdict:
        """Judge by place and angle."""
        angle = abs(state.position("hinge"))
        fallen = angle > self.lean or abs(state.position("slider")) > self.reach
        return Verdict(1.0, fallen, late and not fallen)

    def draw(self, state: State, picture: Picture) -> None:
        """Draw it from the side."""
        x, angle = state.position("slider"), state.position("hinge")
        picture.line((-3, 1), (3, 1), 0.02)
        picture.line((x - 0.2, 1), (x + 0.2, 1), 0.15)
        picture.line((x, 1), (x + math.sin(angle), 1 + math.cos(angle)), 0.05, GOAL)


class Arm(Rules):
    """Bring the tip of a two-link arm to a target and hold it there, against gravity.

    Reward per decision at d metres from the target: -d + exp(-d / 0.1) / 2, less a little for effort.
    Success is a tip within 5 cm of the target at the end of the two seconds.
    """

    time_limit = 100
    upper, fore = 0.40, 0.35
    near = 0.05
    efforts = np.array([15.0, 5.0])
    """Limits in the world file, N m: shoulder, elbow."""

    def begin(self, random: np.random.Generator) -> Start:
        """Any angles, at rest; any target within reach, evenly over its area."""
        low, high = 0.25, 0.70
        radius = math.sqrt(random.uniform(low**2, high**2))
        angle = random.uniform(-math.pi, math.pi)
        self.target = (radius * math.cos(angle), radius * math.sin(angle))
        shoulder, elbow = random.uniform(-math.pi, math.pi, 2)
        return Start(joints={"shoulder": (shoulder, 0.0), "elbow": (elbow, 0.0)})

    def points(self, state: State) -> tuple[tuple[float, float], tuple[float, float]]:
        """Elbow and tip, x and z from the shoulder, m; the arm hangs down at angles of zero."""
        first = state.position("shoulder")
        second = first + state.position("elbow")
        x, z = -self.upper * math.sin(first), -self.upper * math.cos(first)
        return (x, z), (x - self.fore * math.sin(second), z - self.fore * math.cos(second))

    def observe(self, state: State) -> Array:
        """Elbow, tip, the joints' velocities, the target, and the way to it from the tip."""
        elbow, tip = self.points(state)
        way = self.target[0] - tip[0], self.target[1] - tip[1]
        return np.array([*elbow, *tip, *state.velocities, *self.target, *way])

    def judge(self, state: State, action: Array, late: bool) -> Verdict:
        """Judge by the distance between tip and target."""
        distance = math.dist(self.target, self.points(state)[1])
        effort = float(np.square(action / self.efforts).mean())
        reward = -distance + 0.5 * math.exp(-distance / 0.1) - 0.02 * effort
        return Verdict(reward, False, late and distance < self.near)

    def draw(self, state: State, picture: Picture) -> None:
        """Draw it from the side."""
        picture.frame((0.0, 0.0), 2.0)
        elbow, tip = self.points(state)
        picture.dot(self.target, self.near, GOAL)
        picture.line((0, 0), elbow, 0.05)
        picture.line(elbow, tip, 0.04)


class Diffdrive(Rules):
    """Drive a robot with two driven wheels to a place: +10 there, and the way made good, in metres.

    It is over at the goal (its middle within 20 cm) or where the robot has tipped over.
    """

    time_limit = 200
    near = 0.2

    def begin(self, random: np.random.Generator) -> Start:
        """Anywhere in a square of 4 m, any heading; a goal in that square, at least 0.7 m away."""
        x, y = random.uniform(-2.0, 2.0, 2)
        heading = random.uniform(-math.pi, math.pi)
        self.goal = np.array([x, y])
        while np.linalg.norm(self.goal - (x, y)) < 0.7:
            self.goal = random.uniform(-2.0, 2.0, 2)
        self.distance = float(np.linalg.norm(self.goal - (x, y)))
        return Start(models={"robot": (x, y, 0.1, heading)})

    def observe(self, state: State) -> Array:
        """The goal in the robot's own frame, direction and distance, and how the robot moves."""
        base = state.link("base")
        turn = base.heading
        forward = np.array([math.cos(turn), math.sin(turn)])
        left = np.array([-forward[1], forward[0]])
        way = self.goal - base.place[:2]
        distance = float(np.linalg.norm(way)) + 1e-9
        ahead, aside = float(way @ forward), float(way @ left)
        speed = float(base.velocity[:2] @ forward)
        own = [ahead, aside, ahead / distance, aside / distance, distance, speed, base.spin[2]]
        return np.concatenate([own, state.velocities])

    def judge(self, state: State, action: Array, late: bool) -> Verdict:
        """Judge by the distance to the goal, before and after."""
        base = state.link("base")
        before = self.distance
        self.distance = float(np.linalg.norm(self.goal - base.place[:2]))
        there, tipped = self.distance < self.near, base.upright < 0.5
        reward = before - self.distance - 0.01 + 10.0 * there
        return Verdict(reward, there or tipped, there)

    def draw(self, state: State, picture: Picture) -> None:
        """Draw it from above."""
        picture.frame((0.0, 0.0), 8.4)
        for a, b in (
            ((-4, -4), (4, -4)),
            ((4, -4), (4, 4)),
            ((4, 4), (-4, 4)),
            ((-4, 4), (-4, -4)),
        ):
            picture.line(a, b, 0.05)
        picture.dot((self.goal[0], self.goal[1]), self.near, GOAL)
        base = state.link("base")
        (x, y, _), turn = base.place, base.heading
        for name in ("left", "right"):
            wheel = state.link(name).place
            picture.dot((wheel[0], wheel[1]), 0.1)
        nose = (x + 0.3 * math.cos(turn), y + 0.3 * math.sin(turn))
        picture.line((x, y), nose, 0.15)
