"""A plain picture of a world, drawn with lines and dots: gzserver has no camera without a display."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from rl_twoclocks.worlds.gazebo.protocol import Array

Point = tuple[float, float]
INK, GOAL = "#1f2d3d", "#d1495b"


class Picture:
    """A view of a plane in metres, x to the right and y up.

    Args:
        centre: what is in the middle, m.
        width: of the view, m; it is as high as wide.
        pixels: of each side.
    """

    def __init__(self, centre: Point = (0.0, 1.0), width: float = 6.0, pixels: int = 320) -> None:
        self.pixels = pixels
        self.frame(centre, width)
        self._image = Image.new("RGB", (pixels, pixels), "white")
        self._draw = ImageDraw.Draw(self._image)

    def frame(self, centre: Point, width: float) -> None:
        """Choose what is seen; before anything is drawn."""
        self.scale = self.pixels / width
        self._left, self._top = centre[0] - width / 2, centre[1] + width / 2

    def line(self, start: Point, end: Point, width: float = 0.04, colour: str = INK) -> None:
        """Draw a line; its width in metres."""
        thick = max(1, round(width * self.scale))
        self._draw.line([self._at(start), self._at(end)], fill=colour, width=thick)

    def dot(self, centre: Point, radius: float, colour: str = INK) -> None:
        """Draw a filled circle; its radius in metres."""
        x, y = self._at(centre)
        r = max(1.0, radius * self.scale)
        self._draw.ellipse([x - r, y - r, x + r, y + r], fill=colour)

    def array(self) -> Array:
        """The image, uint8 [pixels, pixels, 3]."""
        return np.asarray(self._image).copy()

    def _at(self, point: Point) -> Point:
        right, down = float(point[0]) - self._left, self._top - float(point[1])
        return right * self.scale, down * self.scale
