"""Drawing for `render`: filled shapes on a (height, width, 3) uint8 image, with NumPy only.

Positions are pixels (x, y) from the left and from the top, as numbers that need not be whole; pixel (0, 0) covers the
square around that point. What lies outside an image is not drawn. Every function but `canvas` and `grid` draws in place.
Worlds in which y grows upwards translate with `cell` (boards of cells) or `Plane` (everything else).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Image: TypeAlias = NDArray[np.uint8]
Colour: TypeAlias = tuple[int, int, int]
Point: TypeAlias = tuple[float, float]

CELL = 32  # pixels from one cell of a grid to the next, one line included

GROUND, LINE, DARK, GREY = (232, 228, 216), (176, 170, 156), (40, 40, 44), (90, 90, 96)
ORANGE, RED, GREEN, BLUE, WHITE = (230, 150, 40), (210, 40, 40), (30, 150, 90), (38, 110, 200), (255, 255, 255)
#: Colours that are easily told apart, for robots, snakes, balls, players.
PALETTE: tuple[Colour, ...] = (
    (38, 110, 200),
    (30, 150, 90),
    (150, 70, 180),
    (200, 120, 30),
    (20, 150, 170),
    (190, 60, 110),
    (120, 90, 60),
    (90, 130, 20),
    (70, 70, 170),
    (240, 170, 150),
)

#: The rows of each digit from the top, with the left pixel as the highest of three bits.
_DIGITS = (
    (7, 5, 5, 5, 7),
    (2, 6, 2, 2, 7),
    (7, 1, 7, 4, 7),
    (7, 1, 7, 1, 7),
    (5, 5, 7, 1, 1),
    (7, 4, 7, 1, 7),
    (7, 4, 7, 5, 7),
    (7, 1, 1, 1, 1),
    (7, 5, 7, 5, 7),
    (7, 5, 7, 1, 7),
)


def name_of(colour: Colour) -> str:
    """Return a colour as the hints for drawing write it: "#rrggbb"."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def canvas(width: int, height: int, colour: Colour = GROUND) -> Image:
    """An image of `width` x `height` pixels in one colour."""
    image = np.empty((height, width, 3), np.uint8)
    image[:] = colour
    return image


def rectangle(image: Image, left: float, top: float, width: float, height: float, colour: Colour) -> None:
    """Fill the pixels left <= x < left + width, top <= y < top + height."""
    rows, columns = (
        slice(max(math.ceil(start), 0), max(math.ceil(start + length), 0))
        for start, length in ((top, height), (left, width))
    )
    image[rows, columns] = colour


def disc(image: Image, x: float, y: float, radius: float, colour: Colour) -> None:
    """Fill the pixels at most `radius` away from (x, y)."""
    window = _window(image, [(x, y)], radius)
    window.pixels[(window.x - x) ** 2 + (window.y - y) ** 2 <= radius**2] = colour


def line(image: Image, start: Point, end: Point, colour: Colour, thickness: float = 1.0) -> None:
    """Fill the pixels at most half a `thickness` away from the segment between two points."""
    window = _window(image, [start, end], thickness / 2)
    (x0, y0), dx, dy = start, end[0] - start[0], end[1] - start[1]
    along = ((window.x - x0) * dx + (window.y - y0) * dy) / max(dx * dx + dy * dy, 1e-12)
    along = np.clip(along, 0.0, 1.0)
    distance2 = (window.x - x0 - along * dx) ** 2 + (window.y - y0 - along * dy) ** 2
    window.pixels[distance2 <= (thickness / 2) ** 2] = colour


def polygon(image: Image, points: Sequence[Point], colour: Colour) -> None:
    """Fill a convex polygon, edges included; its corners may go round in either direction."""
    window = _window(image, points, 0.0)
    sides = np.array(
        [
            (x1 - x0) * (window.y - y0) - (y1 - y0) * (window.x - x0)
            for (x0, y0), (x1, y1) in zip(points, [*points[1:], points[0]], strict=True)
        ]
    )
    window.pixels[(sides >= 0).all(axis=0) | (sides <= 0).all(axis=0)] = colour


def bar(
    image: Image,
    left: int,
    top: int,
    width: int,
    height: int,
    fraction: float,
    colour: Colour,
    empty: Colour = GREY,
) -> None:
    """A horizontal bar of which a `fraction` in [0, 1] is filled, from the left."""
    rectangle(image, left, top, width, height, empty)
    rectangle(image, left, top, round(min(max(fraction, 0.0), 1.0) * width), height, colour)


def stripes(image: Image, left: int, top: int, size: int, colours: Sequence[Colour]) -> None:
    """A square of `size` pixels, shared by `colours` as upright stripes from left to right."""
    for part, colour in zip(np.array_split(np.arange(size), len(colours)), colours, strict=True):
        if len(part):
            rectangle(image, left + int(part[0]), top, len(part), size, colour)


def number(image: Image, x: float, y: float, value: int, colour: Colour, scale: int = 1) -> None:
    """Write a whole number of at least 0 with its middle at (x, y): digits of 3 x 5 pixels times `scale`, one pixel apart."""
    digits = str(value)
    left, top = x - ((4 * len(digits) - 1) * scale - 1) / 2, y - (5 * scale - 1) / 2
    for i, digit in enumerate(digits):
        for row, bits in enumerate(_DIGITS[int(digit)]):
            for column in range(3):
                if bits & (4 >> column):
                    rectangle(image, left + (4 * i + column) * scale, top + row * scale, scale, scale, colour)


def grid(width: int, height: int, ground: Colour = GROUND, lines: Colour = LINE) -> Image:
    """An empty board of `width` x `height` cells: (32 height + 1, 32 width + 1, 3). Draw in it through `cell`."""
    image = canvas(width * CELL + 1, height * CELL + 1, ground)
    image[::CELL] = lines
    image[:, ::CELL] = lines
    return image


def cell(board: Image, x: int, y: int) -> Image:
    """The 31 x 31 pixels inside cell (x, y) of a `grid`, as a view; y = 0 is the lowest row. Its middle is (15, 15)."""
    height = board.shape[0] // CELL
    top, left = (height - 1 - y) * CELL + 1, x * CELL + 1
    return board[top : top + CELL - 1, left : left + CELL - 1]


class Plane(NamedTuple):
    """A square piece of a world, low <= x, y <= high, on a `size` x `size` image. y grows upwards in the world."""

    low: float
    high: float
    size: int

    def pixel(self, x: float, y: float) -> Point:
        """Where the world's (x, y) is in the image."""
        return self.pixels(x - self.low), self.size - 1 - self.pixels(y - self.low)

    def pixels(self, length: float) -> float:
        """A length of the world, in pixels."""
        return length / (self.high - self.low) * (self.size - 1)


class _Window(NamedTuple):
    """The part of an image that a shape may touch, and the positions of its pixels."""

    pixels: Image  # (h, w, 3), a view
    x: NDArray[np.float64]  # (1, w)
    y: NDArray[np.float64]  # (h, 1)


def _window(image: Image, points: Sequence[Point], reach: float) -> _Window:
    height, width = image.shape[:2]
    left, right = (_inside(f(x for x, _ in points) + sign * reach, width) for f, sign in ((min, -1), (max, 1)))
    top, bottom = (_inside(f(y for _, y in points) + sign * reach, height) for f, sign in ((min, -1), (max, 1)))
    y, x = np.ogrid[top : bottom + 1, left : right + 1]
    return _Window(image[top : bottom + 1, left : right + 1], x.astype(np.float64), y.astype(np.float64))


def _inside(position: float, size: int) -> int:
    return min(max(round(position), 0), size - 1)
