"""The lock-step plugin's protocol, whose layout `lockstep.cc` tells: requests, and replies as states."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rl_twoclocks.nearest import there_are

Array = np.ndarray
VERSION = 2
HELLO = b"H"


class Names:
    """Scoped names such as `arm::elbow`; each can also be called by its last part, if that is unique."""

    def __init__(self, kind: str, scoped: Sequence[str]) -> None:
        """Take the names in the order of their numbers; `kind` is what messages call them."""
        self.kind, self.scoped = kind, list(scoped)
        last = [name.rsplit("::", 1)[-1] for name in scoped]
        self._number = {name: i for i, name in enumerate(last) if last.count(name) == 1}
        self._number |= {name: i for i, name in enumerate(scoped)}

    def __len__(self) -> int:
        return len(self.scoped)

    def __getitem__(self, name: str) -> int:
        """The number of a name.

        Raises:
            ValueError: there is no such name, or several; names the nearest.
        """
        if name in self._number:
            return self._number[name]
        known = there_are(name, self._number)
        raise ValueError(f"the world has no one {self.kind} {name!r}: {known}")


@dataclass(frozen=True)
class Hello:
    """What a world is made of."""

    joints: Names
    efforts: Array
    """Largest effort per joint, N or N m, [J]; infinite where the world gives none."""
    links: Names
    models: Names
    step: float
    """Seconds per iteration."""

    @classmethod
    def parse(cls, body: bytes) -> Hello:
        """Read a reply.

        Raises:
            ValueError: it is of another version of the plugin.
        """
        values = json.loads(body)
        if values.get("protocol") != VERSION:
            raise ValueError(f"the plugin speaks version {values.get('protocol')}, not {VERSION}")
        limits = np.array(values["efforts"], dtype=np.float64)
        return cls(
            Names("joint", values["joints"]),
            # Gazebo says -1, or 1e16, for "no limit".
            np.where((limits < 0) | (limits > 1e15), np.inf, limits),
            Names("link", values["links"]),
            Names("model", values["models"]),
            values["dt"],
        )

    def state(self, body: bytes) -> State:
        """Read a reply to a reset or a step."""
        iterations, time = struct.unpack_from("<Qd", body)
        numbers = np.frombuffer(body, "<f8", offset=16)
        n = len(self.joints)
        return State(
            time,
            iterations,
            numbers[:n],
            numbers[n : 2 * n],
            numbers[2 * n :].reshape(-1, 13),
            self,
        )


class Link(NamedTuple):
    """Where a link is and how it moves, in the world's frame."""

    place: Array
    """x, y, z of its own frame's origin, m."""
    orientation: Array
    """Quaternion w, x, y, z."""
    velocity: Array
    """m/s, of that origin."""
    spin: Array
    """rad/s."""

    @property
    def heading(self) -> float:
        """Angle of its x axis in the world's x-y plane, rad."""
        w, x, y, z = self.orientation
        return math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))

    @property
    def upright(self) -> float:
        """Share of its z axis that points up: 1 upright, 0 on its side, -1 upside down."""
        _, x, y, _ = self.orientation
        return float(1 - 2 * (x * x + y * y))


@dataclass(frozen=True)
class State:
    """A world at one instant."""

    time: float
    """Simulated seconds since the reset."""
    iterations: int
    """Of the physics, since the reset."""
    positions: Array
    """Of all joints, rad (whole turns counted) or m, [J]."""
    velocities: Array
    """Of all joints, rad/s or m/s, [J]."""
    links: Array
    """Per link: place, orientation, velocity, spin, [L, 13]."""
    names: Hello = field(repr=False)

    def position(self, joint: str) -> float:
        """A joint's angle, rad, or way, m."""
        return float(self.positions[self.names.joints[joint]])

    def velocity(self, joint: str) -> float:
        """A joint's velocity, rad/s or m/s."""
        return float(self.velocities[self.names.joints[joint]])

    def link(self, name: str) -> Link:
        """A link of a model that is not static."""
        row = self.links[self.names.links[name]]
        return Link(row[:3], row[3:7], row[7:10], row[10:])


@dataclass(frozen=True)
class Start:
    """How an episode begins; what is not named is as in the world file, at rest."""

    joints: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Position and velocity by joint, rad or m."""
    models: Mapping[str, tuple[float, float, float, float]] = field(default_factory=dict)
    """x, y, z in m and heading in rad, by model; only of models that no joint ties to the world."""


def reset_request(hello: Hello, seed: int, start: Start) -> bytes:
    """Begin anew.

    Raises:
        ValueError: a joint or model is not in the world.
    """
    joints = np.zeros((2, len(hello.joints)))
    for name, values in start.joints.items():
        joints[:, hello.joints[name]] = values
    poses = np.full((len(hello.models), 7), np.nan)
    for name, (x, y, z, heading) in start.models.items():
        turn = (math.cos(heading / 2), 0.0, 0.0, math.sin(heading / 2))
        poses[hello.models[name]] = (x, y, z, *turn)
    return struct.pack("<cQ", b"R", seed) + joints.tobytes() + poses.tobytes()


def step_request(iterations: int, efforts: Array) -> bytes:
    """Go on for some iterations with constant efforts [J], N or N m."""
    return struct.pack("<cI", b"S", iterations) + np.asarray(efforts, "<f8").tobytes()


def framed(payload: bytes) -> bytes:
    """Put the length in front."""
    return struct.pack("<I", len(payload)) + payload
