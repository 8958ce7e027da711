"""Inspection of surfaces, N at once: look around, change the light, then accept or reject.

The camera sees a part of the surface. Diffuse light shows colour (stains, missing parts), grazing
light shows relief (scratches, dents): so no single frame tells whether a surface is sound.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.lib.stride_tricks import sliding_window_view

from rl_twoclocks.worlds.base import (
    Array,
    Index,
    World,
    below,
    mix,
    one_of,
    uniform,
    whole,
    within,
)

UP, DOWN, LEFT, RIGHT, NEXT, ACCEPT, REJECT = range(7)
RIGHT_DECISION, WRONG_DECISION, TIME_OUT = 1.0, -1.0, -1.0
LIGHTS = DIFFUSE, GRAZING = 0, 1
KINDS = SCRATCH, DENT, STAIN, MISSING = range(4)
TEXTURES, DEFECTS = 64, 512
"""How many textures and defects are prepared; their places and labels are drawn anew."""
LARGEST = 192
"""Rows of a surface, pixels: its defects take half a gigabyte."""
EDGE = 4
"""Least distance of a defect's middle from the edge of the surface, pixels."""
ANGLES = 41
"""Directions prepared between the smallest and the largest rotation."""
_NOISES = 2**16

# Purposes of hashes, so that no two draws share one.
_SHADE, _LABEL, _DEFECT, _TEXTURE, _LINE, _COLUMN, _PLACE, _LIGHT, _ANGLE, _NOISE = range(1, 11)
_DEFECT_LINE, _DEFECT_COLUMN = 11, 12


@dataclass(frozen=True)
class Bank:
    """Prepared images, as differences from a grey of one half.

    Attributes:
        textures: float32 [TEXTURES, lights, side, side].
        defects: float32 [DEFECTS + 1, lights, side, side], each in the middle; the last one is none.
        noise: float32, a long line of standard normal numbers to cut frames' noise from.
    """

    textures: Array
    defects: Array
    noise: Array


@functools.lru_cache(maxsize=4)
def bank(surface: int, margin: int, pixels: int, split: str) -> Bank:
    """Prepare the images of a split; made once per process.

    Args:
        surface: rows and columns of a surface in pixels.
        margin: pixels around it that a rotated view may see.
        pixels: of a view.
        split: train or test, which share no seed.
    """
    # Not by stages of one stream: train and test share nothing.
    rng = np.random.default_rng([_SHADE, ("train", "test").index(split)])
    grid = surface + 2 * margin
    noise = rng.standard_normal(_NOISES + pixels, dtype=np.float32)
    return Bank(_textures(rng, 2 * grid), _defects(rng, surface, margin), noise)


def _textures(rng: np.random.Generator, side: int) -> Array:
    """Draw smooth noise of deviation 0.06: cloudy under diffuse, brushed under grazing light."""
    noise = np.fft.rfft2(rng.standard_normal((TEXTURES, len(LIGHTS), side, side), np.float32))
    down, across = np.fft.fftfreq(side)[:, None] * side, np.fft.rfftfreq(side) * side
    cloudy = np.exp(-((down / 12) ** 2) - (across / 12) ** 2)
    brushed = np.exp(-((down / (side / 3)) ** 2) - (across / 6) ** 2)
    smooth = np.fft.irfft2(noise * np.stack([cloudy, brushed]), s=(side, side))
    smooth -= smooth.mean((2, 3), keepdims=True)
    return (0.06 * smooth / smooth.std((2, 3), keepdims=True)).astype(np.float32)


def _defects(rng: np.random.Generator, surface: int, margin: int) -> Array:
    """Draw as many defects of each kind, and no defect last; a part of each image is a surface's."""
    room = _room(surface)
    side = surface + 2 * margin + room - 1
    images = np.zeros((DEFECTS + 1, len(LIGHTS), side, side), dtype=np.float32)
    for number in range(DEFECTS):
        centre = margin + EDGE + room - 1 + rng.uniform(0, 1, 2)
        lines = np.arange(side)[:, None] - centre[0]
        columns = np.arange(side) - centre[1]
        angle = rng.uniform(0, np.pi)
        along = lines * np.sin(angle) + columns * np.cos(angle)
        beside = lines * np.cos(angle) - columns * np.sin(angle)
        kind, size = KINDS[number % len(KINDS)], rng.uniform(0.8, 1.2)
        if kind == SCRATCH:
            light, shade = GRAZING, 0.45 * np.exp(-(beside**2)) * (np.abs(along) < 7 * size)
        elif kind == DENT:
            # Light from the left: one slope is dark and the other bright.
            spot = np.exp(-(lines**2 + columns**2) / (2 * (2.5 * size) ** 2))
            light, shade = GRAZING, 0.7 * columns / (2.5 * size) * spot
        elif kind == STAIN:
            light, shade = DIFFUSE, -0.4 * np.exp(-((along / 4) ** 2 + (beside / 3) ** 2) / size)
        else:
            # With edges as soft as a pixel, so that no two of them are drawn the same.
            within_ends = (4 * size - np.abs(along) + 0.5).clip(0, 1)
            within_sides = (2.5 * size - np.abs(beside) + 0.5).clip(0, 1)
            light, shade = DIFFUSE, -0.4 * within_ends * within_sides
        images[number, light] = shade
    return images


def _room(surface: int) -> int:
    """Lines, and columns, on which a defect may lie."""
    return surface - 2 * EDGE


class Inspection(World):
    """N surfaces; actions up, down, left, right, next frame, accept, reject.

    Observation, float32 [view * view + 4] in [0, 1]: grey pixels, the view's line and column, the
    light (0 diffuse, 1 grazing) and the share of time that is left; with `trail` at the end, for every
    line, column and light in this order, whether it has been looked at [2 * places * places]. The next
    frame has the other light; every frame has noise of its own.

    Rewards: +1 for rejecting a defect or accepting a sound surface, -1 for the opposite, and -1 when
    time is up; each ends the episode. Otherwise 0.

    Args:
        num_envs: N.
        view: rows and columns of the camera's image in pixels.
        places: places of the view along each axis.
        stride: pixels from one place to the next; at most `view`, so that nothing is hidden.
        rotation: the camera is turned by up to this many degrees either way, in each episode anew.
        noise: standard deviation of a frame's noise; the grey scale is 1.
        share: how many surfaces have a defect.
        trail: whether the observation says which frames have been looked at.
        split: train or test; they share no texture and no defect.
        time_limit: decisions until time is up.

    Raises:
        ValueError: an argument cannot be used; names the nearest right value.
    """

    fields = ("line", "column", "light", "looked")

    def __init__(
        self,
        num_envs: int,
        view: int = 24,
        places: int = 2,
        stride: int = 20,
        rotation: float = 0.0,
        noise: float = 0.03,
        share: float = 0.5,
        trail: bool = False,
        split: str = "train",
        time_limit: int = 20,
    ) -> None:
        whole("view", view, 8, 96)
        whole("places", places, 2, 16)
        whole("stride", stride, 1, view)
        if trail not in (True, False):
            raise ValueError(f"trail={trail!r} is neither true nor false")
        within("rotation", rotation, 0.0, 45.0)
        within("noise", noise, 0.0)
        within("share", share, 0.0, 1.0)
        one_of("split", split, ("train", "test"))
        frames = places * places * len(LIGHTS)
        space = Box(0.0, 1.0, (view * view + 4 + trail * frames,), np.float32)
        super().__init__(num_envs, time_limit, space, Discrete(7))
        self.view, self.places, self.stride = view, places, stride
        self.noise, self.share = noise, share
        surface = view + (places - 1) * stride
        if surface > LARGEST:
            raise ValueError(
                f"view={view}, places={places} and stride={stride} make a surface of {surface} pixels: "
                f"at most {LARGEST} fit into memory with all their defects"
            )
        # How far a corner of the view swings out at 45 degrees. At any angle, so that rotation
        # changes the image and nothing else.
        self.margin = int(np.ceil((view - 1) / 2 * (2**0.5 - 1)))
        self.grid = surface + 2 * self.margin
        self.bank = bank(surface, self.margin, view * view, split)
        self.side = self.bank.textures.shape[-1]
        turned = _turned(view, rotation) if rotation else None
        self._texture_seen = _camera(self.bank.textures, view, turned)
        self._defect_seen = _camera(self.bank.defects, view, turned)
        self._noise_of = sliding_window_view(self.bank.noise, view * view)
        self.line, self.column, self.light = np.zeros((3, num_envs), dtype=np.int64)
        self.looked = np.zeros((num_envs, trail * frames), dtype=bool)
        self._everyone = np.arange(num_envs)
        # What follows from an environment's key and episode.
        self.texture, self.defect, self.angle = np.zeros((3, num_envs), np.int64)
        self.room = _room(surface)
        self.origin, self.shift = np.zeros((2, 2, num_envs), np.int64)
        self.defective = np.zeros(num_envs, dtype=bool)

    def _begin(self, index: Array) -> None:
        def draw(purpose: int) -> Array:
            return mix(self.key[index], purpose, self.episode[index])

        room = self.side - self.grid + 1
        self.defective[index] = uniform(draw(_LABEL)) < self.share
        self.defect[index] = np.where(self.defective[index], below(draw(_DEFECT), DEFECTS), DEFECTS)
        self.texture[index] = below(draw(_TEXTURE), TEXTURES)
        self.origin[:, index] = below(draw(_LINE), room), below(draw(_COLUMN), room)
        self.shift[:, index] = (
            below(draw(_DEFECT_LINE), self.room),
            below(draw(_DEFECT_COLUMN), self.room),
        )
        self.angle[index] = below(draw(_ANGLE), ANGLES)
        self.line[index], self.column[index] = np.divmod(
            below(draw(_PLACE), self.places**2), self.places
        )
        self.light[index] = below(draw(_LIGHT), len(LIGHTS))
        self.looked[index] = False
        self._look(index)

    def _look(self, index: Array) -> None:
        """Note which frame is seen now."""
        if self.looked.shape[1]:
            place = self.line[index] * self.places + self.column[index]
            self.looked[index, place * len(LIGHTS) + self.light[index]] = True

    def _advance(self, action: Array, late: Array) -> tuple[Array, Array, Array]:
        last = self.places - 1
        self.line = np.clip(self.line + (action == DOWN) - (action == UP), 0, last)
        self.column = np.clip(self.column + (action == RIGHT) - (action == LEFT), 0, last)
        self.light = (self.light + (action == NEXT)) % len(LIGHTS)
        self._look(self._everyone)
        decided = action >= ACCEPT
        right = decided & ((action == REJECT) == self.defective)
        decision = np.where(right, RIGHT_DECISION, WRONG_DECISION)
        # No truncation: time that is up is a result with a reward of its own, and the observation
        # tells how much is left. Nothing would come after it to bootstrap from.
        return np.where(decided, decision, TIME_OUT * late), decided | late, right

    def _observe(self, index: Index) -> None:
        line, column, light = self.line[index], self.column[index], self.light[index]
        down, across = self.margin + line * self.stride, self.margin + column * self.stride
        angle, (top, left) = self.angle[index], self.origin[:, index]
        lower, aside = self.shift[:, index]
        layer = self.texture[index] * len(LIGHTS) + light
        image = self._texture_seen(layer, down + top, across + left, angle)
        layer = self.defect[index] * len(LIGHTS) + light
        image += self._defect_seen(layer, down + lower, across + aside, angle)
        if self.noise:
            bits = mix(self.key[index], _NOISE, self.episode[index], self.time[index])
            image += np.float32(self.noise) * self._noise_of[below(bits, _NOISES)]
        image += np.float32(0.5)
        area = self.view * self.view
        self._observation[index, :area] = np.clip(image, 0.0, 1.0)
        self._observation[index, area + 4 :] = self.looked[index]
        self._observation[index, area : area + 4] = np.stack(
            [
                line / (self.places - 1),
                column / (self.places - 1),
                light,
                1 - self.time[index] / self.time_limit,
            ],
            axis=1,
        )

    def defect_image(self, number: int) -> Array:
        """What a surface's defect adds to it under the present light, [grid, grid]."""
        whole = self.bank.defects[self.defect[number], self.light[number]]
        lower, aside = self.shift[:, number]
        return whole[lower : lower + self.grid, aside : aside + self.grid]

    def render(self, number: int = 0) -> Array:
        """Draw one surface under the present light, the view framed, and the view itself, enlarged."""
        light, margin, view = self.light[number], self.margin, self.view
        top, left = self.origin[:, number]
        whole = self.bank.textures[self.texture[number], light, top:, left:]
        whole = whole[: self.grid, : self.grid] + self.defect_image(number)
        whole = np.repeat((whole.clip(-0.5, 0.5) + 0.5)[:, :, None], 3, axis=2)
        y, x = (margin + self.stride * p for p in (self.line[number], self.column[number]))
        frame = np.zeros((self.grid, self.grid), dtype=bool)
        frame[y : y + view, x : x + view] = True
        frame[y + 1 : y + view - 1, x + 1 : x + view - 1] = False
        whole[frame] = (0.9, 0.5, 0.1)
        seen = self._observation[number, : view * view].reshape(view, view)
        panel = np.zeros((self.grid, view + 2, 3))
        panel[:view, 2:] = seen[:, :, None]
        picture = np.concatenate([whole, panel], axis=1)
        return (255 * np.kron(picture, np.ones((8, 8, 1)))).astype(np.uint8)


def _camera(
    images: Array, view: int, turned: tuple[Array, Array] | None
) -> Callable[[Array, Array, Array, Array], Array]:
    """Make a function that cuts views [N, view * view] out of images [..., lights, side, side].

    It takes the layers (image x lights + light), lines and columns of the views' corners, and the
    numbers of their angles, all [N].
    """
    side = images.shape[-1]
    layers = images.reshape(-1, side, side)
    if turned is None:
        # Whole lines are copied: four times as fast as pixel by pixel.
        windows = sliding_window_view(layers, (view, view), axis=(1, 2))

        def straight(layer: Array, line: Array, column: Array, angle: Array) -> Array:
            return windows[layer, line, column].reshape(len(layer), -1)

        return straight
    offsets = turned[0] * side + turned[1]

    def askew(layer: Array, line: Array, column: Array, angle: Array) -> Array:
        corner = (layer * side + line) * side + column
        return layers.take(corner[:, None] + offsets[angle])

    return askew


def _turned(view: int, rotation: float) -> tuple[Array, Array]:
    """Give lines and columns of a view's pixels from its corner, for each angle [angles, pixels]."""
    angle = np.deg2rad(np.linspace(-rotation, rotation, ANGLES))[:, None]
    middle = (view - 1) / 2
    lines, columns = np.divmod(np.arange(view * view), view) - np.array(middle)
    down = lines * np.cos(angle) + columns * np.sin(angle) + middle
    across = columns * np.cos(angle) - lines * np.sin(angle) + middle
    return np.rint(down).astype(np.int64), np.rint(across).astype(np.int64)
