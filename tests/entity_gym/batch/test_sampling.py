"""Random actions: only what is allowed, all of it, equally often."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from entity_gym import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.actions.choices import random_actions
from entity_gym.batch.batching import batch_observations

SPACE = ObsSpace({"Wall": Entity([]), "Cat": Entity([])})
WALK, SKY = CategoricalActionSpace(["stay", "left", "right"]), GlobalCategoricalActionSpace(["sun", "rain"])
CHASE, OTHERS = SelectEntityActionSpace(), SelectEntityActionSpace(exclude_self=True)
BOTH = SelectEntityActionSpace(exclude_self=True, nobody=True)
T, F = True, False
DRAWS = 1200


def yard(cats: int, mask: Any = None, walls: int = 0) -> Observation:
    features = {"Wall": np.zeros((walls, 0)), "Cat": np.zeros((cats, 0))}
    actions = {} if mask is None else {"do": mask}
    return Observation(features=features, ids={"Cat": list(range(cats))}, actions=actions)


def walk(**fields: Any) -> CategoricalActionMask:
    return CategoricalActionMask(actor_types=["Cat"], **fields)


def chase(actors: Any, actees: Any = None, **fields: Any) -> SelectEntityActionMask:
    chased = {"actee_types": ["Cat"]} if actees is None else {"actee_ids": actees}
    return SelectEntityActionMask(actor_ids=actors, **chased, **fields)


@pytest.mark.parametrize(
    ("space", "frames", "expected"),
    [
        (WALK, [yard(2, walk()), yard(0), yard(1, walk())], [[{0, 1, 2}] * 2, [], [{0, 1, 2}]]),
        (WALK, [yard(2, walk(mask=[[T, F, T], [F, T, F]])), yard(1, walk())], [[{0, 2}, {1}], [{0, 1, 2}]]),
        (
            SKY,
            [yard(0, GlobalCategoricalActionMask()), yard(1), yard(0, GlobalCategoricalActionMask(mask=[F, T]))],
            [[{0, 1}], [], [{1}]],
        ),
        # entities are drawn by their index in the frame
        (CHASE, [yard(2, chase([1, 0]), walls=3), yard(0), yard(3, chase([0], [2]))], [[{3, 4}, {3, 4}], [], [{2}]]),
        (
            CHASE,
            [
                yard(2, chase([0, 1], [])),
                yard(3, chase([0, 1], [2, 0, 1], mask=[[T, F, T], [F, T, F]])),
                yard(2, chase([0]), walls=1),
            ],
            [[{-1}, {-1}], [{2, 1}, {0}], [{1, 2}]],
        ),
        (OTHERS, [yard(3, chase([0, 1, 2]), walls=1), yard(1, chase([0]))], [[{2, 3}, {1, 3}, {1, 2}], [{-1}]]),
        (
            BOTH,
            [yard(3, chase([0, 1, 2]), walls=1), yard(1, chase([0]))],
            [[{-1, 2, 3}, {-1, 1, 3}, {-1, 1, 2}], [{-1}]],
        ),
    ],
    ids=["everything", "masked", "global", "entities", "pairs", "others", "others or nobody"],
)
def test_all_that_is_open_is_drawn_equally_often_and_nothing_else(
    space: ActionSpace, frames: list[Observation], expected: list[list[set[int]]]
) -> None:
    obs, rng = batch_observations(frames, SPACE, {"do": space}), np.random.default_rng(0)
    counts: list[list[Counter[int]]] = [[Counter() for _ in frame] for frame in expected]
    for _ in range(DRAWS):
        actions = random_actions(obs, rng, {"do": space})["do"]
        assert actions.offsets.tolist() == obs.action_masks["do"].actors.offsets.tolist()
        for frame, given in zip(counts, actions.to_list(), strict=True):
            for actor, (value,) in zip(frame, given, strict=True):
                actor[value] += 1
    assert [[set(actor) for actor in frame] for frame in counts] == expected
    for actor in sum(counts, []):
        each = DRAWS / len(actor)
        assert all(abs(n - each) < 5 * each**0.5 for n in actor.values())  # 5 standard deviations
