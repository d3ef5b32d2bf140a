"""NotHotdog: is it a hotdog?"""

from __future__ import annotations

from typing import Any

import numpy as np

from entity_gym.compiled import Categorical, CompiledEnvironment, Entity, rand_int
from entity_gym.envs.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    Image,
    cell,
    disc,
    grid,
    line,
    name_of,
    rectangle,
)

HOTDOG, NOT_HOTDOG = 0, 1  # the choices of `classify`
NOTHING = -1


class NotHotdog(CompiledEnvironment):
    """Tell a hotdog from other objects. It is shown in two ways: by a feature, or by the type of the entity.

    **Observation.** One `Player` [step], 0 and then 1, and either an `Object` [is_hotdog] or a `Hotdog`, without
    features. Half of the episodes have a hotdog, shown as a `Hotdog` or as an `Object` with is_hotdog 1, equally often;
    anything else is an `Object` with is_hotdog 0.

    **Actions.** `classify`: the player picks `hotdog` (0) or `not_hotdog` (1). `unused_action` is never offered to
    anybody, and a policy must cope with that.

    **Reward.** 1 for the right choice, `hotdog` for a hotdog and `not_hotdog` for anything else; otherwise 0.

    **End.** After one step.

    **Best score.** 1; always giving the same answer scores 0.5.
    """

    entities = {"Player": Entity(["step"], max=1), "Object": Entity(["is_hotdog"], max=1), "Hotdog": Entity([], max=1)}
    actions = {
        "classify": Categorical(["hotdog", "not_hotdog"], actors="Player"),
        "unused_action": Categorical(["0", "1"], actors="Player"),
    }
    state = [
        ("is_hotdog", np.bool_),
        ("by_type", np.bool_),  # a hotdog is shown as a Hotdog, not as an Object
        ("answer", np.int64),  # for render
    ]
    reward_threshold = 0.99

    def reset(s: Any) -> None:
        s.is_hotdog = rand_int(s, 2) == 1
        s.by_type = rand_int(s, 2) == 1
        s.answer = NOTHING

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.answer = act.classify[0]
        right = HOTDOG if s.is_hotdog else NOT_HOTDOG
        return (1.0 if s.answer == right else 0.0), True, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Player = 1
        obs.Player[0, 0] = s.steps
        if s.is_hotdog and s.by_type:
            obs.n.Object = 0
            obs.n.Hotdog = 1
        else:
            obs.n.Object = 1
            obs.n.Hotdog = 0
            obs.Object[0, 0] = 1.0 if s.is_hotdog else 0.0
        obs.n.unused_action = 0

    def draw(s: Any) -> dict[str, Any]:
        """Hints for replays."""
        return {
            "types": {
                "Player": {"shape": "square", "color": name_of(BLUE)},
                "Object": {"shape": "circle", "color": name_of(GREY), "label": "hotdog: {is_hotdog}"},
                "Hotdog": {"shape": "diamond", "color": name_of(ORANGE)},
            }
        }

    def render(s: Any) -> Image:
        """A (33, 65, 3) image: the thing, then the answer in green or red. A hotdog is a hotdog, anything else a disc."""
        image = grid(2, 1)
        thing, answer = cell(image, 0, 0), cell(image, 1, 0)
        if s.is_hotdog:
            line(thing, (7, 15), (23, 15), ORANGE, 12)
            line(thing, (4, 15), (26, 15), RED, 5)
        else:
            disc(thing, 15, 15, 9, GREY)
        if s.answer != NOTHING:
            right = (s.answer == HOTDOG) == bool(s.is_hotdog)
            rectangle(answer, 5, 5, 21, 21, GREEN if right else RED)
        return image
