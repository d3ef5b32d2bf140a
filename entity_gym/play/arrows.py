"""Choices that arrow keys stand for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from entity_gym.actions.kind import Choice

#: Arrow -> words in the names of choices, and the direction in the plane, with y upwards.
_ARROWS = {
    "↑": ({"up", "north", "forward", "y+1"}, (0, 1)),
    "↓": ({"down", "south", "back", "backward", "y-1"}, (0, -1)),
    "←": ({"left", "west", "x-1"}, (-1, 0)),
    "→": ({"right", "east", "x+1"}, (1, 0)),
}


def arrows_of_names(choices: Sequence[Choice]) -> dict[str, float]:
    """Arrow -> the value of the only choice with a word for its direction in the name, such as "up", "turn left" or "x+1"."""
    arrows = {}
    for arrow, (words, _) in _ARROWS.items():
        found = [choice.value for choice in choices if words.intersection(re.split(r"[\s_]+", choice.name.casefold()))]
        if len(found) == 1:
            arrows[arrow] = found[0]
    return arrows


def arrows_of_positions(
    choices: Sequence[Choice], actor: int, positions: Mapping[int, tuple[float, float]]
) -> dict[str, float]:
    """Arrow -> the nearest open entity in its direction from the actor: within 45 degrees of it.

    Args:
        choices: values are entity indices.
        actor: entity index.
        positions: entity index -> (x, y), of the entities that have one.
    """
    if actor not in positions:
        return {}
    x, y = positions[actor]
    arrows: dict[str, float] = {}
    for arrow, (_, (right, up)) in _ARROWS.items():
        distances = {}
        for choice in choices:
            if not choice.is_open or int(choice.value) not in positions:
                continue
            dx, dy = positions[int(choice.value)][0] - x, positions[int(choice.value)][1] - y
            along, across = dx * right + dy * up, dx * up - dy * right
            if along > 0 and abs(across) <= along:
                distances[choice.value] = math.hypot(dx, dy)
        if distances:
            arrows[arrow] = min(distances, key=lambda value: distances[value])
    return arrows
