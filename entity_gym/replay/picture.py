"""A picture of what an environment shows, drawn by the hints of its `draw()` as the page of a replay draws it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from entity_gym.batch.vec_obs import VecObs
from entity_gym.replay.hints import SHAPES, check_hints
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace

SIDE, STRIP, TILE = 320, 64, 32  # pixels: of the plane's longer side, of the height of a row of entities, of one in it
GROUND, LINE, INK, WHITE = "#e8e4d8", "#b0aa9c", "#28282c", "#ffffff"
#: Colours of the page, for entity types and for the numbers of `color_by`.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
#: Corners of the shapes with a radius of 1, as (along, across) of the heading.
OUTLINES = {
    "square": [(0.88, -0.88), (0.88, 0.88), (-0.88, 0.88), (-0.88, -0.88)],
    "triangle": [(1.1, 0), (-0.75, 0.85), (-0.75, -0.85)],
    "diamond": [(1.1, 0), (0, 0.85), (-1.1, 0), (0, -0.85)],
    "cross": [
        *((1, 0.35), (0.35, 0.35), (0.35, 1), (-0.35, 1), (-0.35, 0.35), (-1, 0.35)),
        *((-1, -0.35), (-0.35, -0.35), (-0.35, -1), (0.35, -1), (0.35, -0.35), (1, -0.35)),
    ],
}


class Mark(NamedTuple):
    """Place, shape and colour of one entity in the picture."""

    place: tuple[float, float] | None  # in the world
    size: float  # diameter, in units of the world
    shape: str
    color: str
    label: str
    heading: float  # radians
    is_hidden: bool
    layer: int


def draw_frame(obs: VecObs, hints: Mapping[str, Any], obs_space: ObsSpace, where: str) -> NDArray[np.uint8]:
    """Draw the entities of one frame.

    Those with a position lie in the rectangle of `bounds`, or in one around them all. Other types stand in rows below it.

    Args:
        obs: one frame.
        hints: what `draw()` returned.
        obs_space: of the world.
        where: name of the environment, for messages.

    Returns:
        (height, width, 3) image, of the same size in all steps of an episode.

    Raises:
        ValueError: the hints are not what the format allows.
    """
    checked = check_hints(hints, obs_space, where) or {}
    styles, y_up, has_grid = checked.get("types", {}), checked.get("y_up", False), checked.get("grid", False)
    features = {name: entity.features for name, entity in obs_space.entities.items()}
    if GLOBAL_ENTITY in styles:
        features[GLOBAL_ENTITY] = obs_space.global_features
    marks = {
        name: _marks(obs, name, number, styles.get(name, {}), names, y_up)
        for number, (name, names) in enumerate(features.items())
    }
    in_rows = [name for name, names in features.items() if _position(styles.get(name, {}), names) is None]
    in_plane = [mark for name in marks if name not in in_rows for mark in marks[name]]
    left, top, right, bottom = _shown(checked, in_plane)
    scale = (SIDE - 1) / max(right - left, bottom - top)  # pixels of a unit of the world
    # Even numbers, as films need them.
    width, height = (max(2 * round((length * scale + 1) / 2), TILE) for length in (right - left, bottom - top))
    if len(in_rows) == len(features):
        width, height = SIDE, 0

    def pixel(x: float, y: float) -> tuple[float, float]:
        """Return the pixel of (x, y), from the left and from above."""
        return (x - left) * scale, ((bottom - y) if y_up else (y - top)) * scale

    image = Image.new("RGB", (width, height + STRIP * len(in_rows)), GROUND)
    pen = ImageDraw.Draw(image)
    if has_grid and height and scale >= 4:
        for x in np.arange(left, right + 0.5):
            pen.line([pixel(x, top), pixel(x, bottom)], LINE)
        for y in np.arange(top, bottom + 0.5):
            pen.line([pixel(left, y), pixel(right, y)], LINE)
    for mark in sorted(in_plane, key=lambda mark: mark.layer):
        assert mark.place is not None
        _draw(pen, mark, *pixel(*mark.place), max(mark.size * scale / 2, 2.0))
    for row, name in enumerate(in_rows):  # from left to right, smaller where there are many
        side = TILE
        while side > 4 and (width // side) * (STRIP // side) < len(marks[name]):
            side -= 1
        for i, mark in enumerate(marks[name]):
            down, across = divmod(i, width // side)
            _draw(pen, mark, (across + 0.5) * side, height + STRIP * row + (down + 0.5) * side, 0.4 * side)
    return np.asarray(image)


def _shown(hints: Mapping[str, Any], marks: Sequence[Mark]) -> tuple[float, float, float, float]:
    """Return the left, top, right and bottom of the rectangle of the world that is shown."""
    places = np.array([mark.place for mark in marks] or [(0.0, 0.0)])
    left, top, right, bottom = hints.get("bounds", [*places.min(axis=0), *places.max(axis=0)])
    if hints.get("grid", False):
        return left - 0.5, top - 0.5, right + 0.5, bottom + 0.5
    if "bounds" not in hints:  # a square: its pixels do not depend on the entities
        side = 1.1 * max(right - left, bottom - top) or 1.0
        left, top = (left + right - side) / 2, (top + bottom - side) / 2
        return left, top, left + side, top + side
    return left, top, right, bottom


def _position(style: Mapping[str, Any], features: Sequence[str]) -> tuple[int, int] | None:
    """Return the columns of a type's x and y, or None if it has none."""
    x, y = style.get("position", ("x", "y"))
    return (list(features).index(x), list(features).index(y)) if x in features and y in features else None


def _marks(
    obs: VecObs, name: str, number: int, style: Mapping[str, Any], features: Sequence[str], y_up: bool
) -> list[Mark]:
    visible = obs.visible.get(name)
    position = _position(style, features)
    marks = []
    for i, row in enumerate(obs.features[name].values.tolist()):
        value = dict(zip(features, row, strict=True))
        place = None if position is None else (row[position[0]], row[position[1]])
        color = style.get("color", PALETTE[number % len(PALETTE)])
        if "color_by" in style:
            color = PALETTE[abs(round(value[style["color_by"]])) % len(PALETTE)]
        label = style.get("label", "")
        for feature, given in value.items():
            label = label.replace(f"{{{feature}}}", f"{given:.3g}")
        heading = value[style["angle"]] if "angle" in style else math.pi / 2 if y_up else -math.pi / 2
        is_hidden = visible is not None and not visible.values[i, 0]
        shape = style.get("shape", SHAPES[number % len(SHAPES)])
        size = style.get("size", 0.78)
        marks.append(
            Mark(place, size, shape, color, label, heading if y_up else -heading, is_hidden, style.get("layer", 0))
        )
    return marks


def _draw(pen: ImageDraw.ImageDraw, mark: Mark, x: float, y: float, radius: float) -> None:
    """Draw an entity with its middle at a pixel; one that the policy does not see is an outline."""
    fill, outline = (GROUND, mark.color) if mark.is_hidden or mark.shape == "ring" else (mark.color, GROUND)
    if mark.shape in OUTLINES:
        dx, dy = math.cos(mark.heading), -math.sin(mark.heading)
        corners = OUTLINES[mark.shape]
        pen.polygon(
            [(x + radius * (a * dx - b * dy), y + radius * (a * dy + b * dx)) for a, b in corners], fill, outline
        )
    else:
        pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill, outline, max(1, round(radius / 4)))
    if mark.label:
        font = ImageFont.load_default(min(max(radius, 9.0), 14.0))
        fits = pen.textlength(mark.label, font) <= 1.8 * radius
        is_dark = sum(int(fill[k : k + 2], 16) for k in (1, 3, 5)) < 3 * 140
        if fits or mark.place is not None:  # in rows there is no room beside an entity
            at = (x, y) if fits else (x, y - radius - 5)
            pen.text(at, mark.label, WHITE if fits and is_dark else INK, font, "mm")
