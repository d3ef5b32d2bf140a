"""Random actions: only what is allowed, all of it, equally often."""

from collections import Counter

import numpy as np
import pytest

from entity_gym import (
    ActionMask,
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
ACTIONS: dict[str, ActionSpace] = {
    "walk": CategoricalActionSpace(["stay", "left", "right"]),
    "chase": SelectEntityActionSpace(),
    "weather": GlobalCategoricalActionSpace(["sun", "rain"]),
}
T, F = True, False
DRAWS = 1200


def yard(cats: int, walls: int = 0, **actions: ActionMask) -> Observation:
    features = {"Wall": np.zeros((walls, 0)), "Cat": np.zeros((cats, 0))}
    return Observation(features=features, ids={"Cat": list(range(cats))}, actions=actions)


def drawn(name: str, *frames: Observation) -> list[list[set[int]]]:
    """Return for each frame and actor the values that were drawn, all about equally often."""
    obs = batch_observations(frames, SPACE, ACTIONS)
    rng = np.random.default_rng(0)
    counts = [[Counter() for _ in range(n)] for n in obs.action_masks[name].actors.size1()]
    for _ in range(DRAWS):
        actions = random_actions(obs, rng, ACTIONS)[name]
        assert actions.offsets.tolist() == obs.action_masks[name].actors.offsets.tolist()
        for frame, given_ in zip(counts, actions.to_list(), strict=True):
            for actor, (value,) in zip(frame, given_, strict=True):
                actor[value] += 1
    for frame in counts:
        for actor in frame:
            expected = DRAWS / len(actor)
            assert all(abs(n - expected) < 5 * expected**0.5 for n in actor.values())  # 5 standard deviations
    return [[set(actor) for actor in frame] for frame in counts]


def test_every_choice_is_drawn_where_nothing_is_masked() -> None:
    everyone = CategoricalActionMask(actor_types=["Cat"])
    assert drawn("walk", yard(2, walk=everyone), yard(0), yard(1, walk=everyone)) == [[{0, 1, 2}] * 2, [], [{0, 1, 2}]]


def test_only_open_choices_are_drawn() -> None:
    masked = CategoricalActionMask(actor_types=["Cat"], mask=[[T, F, T], [F, T, F]])
    free = CategoricalActionMask(actor_types=["Cat"])
    assert drawn("walk", yard(2, walk=masked), yard(1, walk=free)) == [[{0, 2}, {1}], [{0, 1, 2}]]


def test_global_choices_are_drawn_where_they_are_offered() -> None:
    frames = [
        yard(0, weather=GlobalCategoricalActionMask()),
        yard(1),
        yard(0, weather=GlobalCategoricalActionMask(mask=[F, T])),
    ]
    assert drawn("weather", *frames) == [[{0, 1}], [], [{1}]]


def test_entities_are_drawn_by_their_index_in_the_frame() -> None:
    cats = SelectEntityActionMask(actor_ids=[1, 0], actee_types=["Cat"])
    others = SelectEntityActionMask(actor_ids=[0], actee_ids=[2])
    frames = [yard(2, walls=3, chase=cats), yard(0), yard(3, chase=others)]
    assert drawn("chase", *frames) == [[{3, 4}, {3, 4}], [], [{2}]]


def test_entities_are_drawn_by_pair_where_pairs_are_masked() -> None:
    pairs = SelectEntityActionMask(actor_ids=[0, 1], actee_ids=[2, 0, 1], mask=[[T, F, T], [F, T, F]])
    free = SelectEntityActionMask(actor_ids=[0], actee_types=["Cat"])
    nobody = SelectEntityActionMask(actor_ids=[0, 1], actee_ids=[])
    frames = [yard(2, chase=nobody), yard(3, chase=pairs), yard(2, walls=1, chase=free)]
    assert drawn("chase", *frames) == [[{-1}, {-1}], [{2, 1}, {0}], [{1, 2}]]


def test_an_actor_without_an_open_choice_is_refused() -> None:
    obs = batch_observations([yard(1, walk=CategoricalActionMask(mask=[[T, T, F]]))], SPACE, ACTIONS)
    mask = obs.action_masks["walk"].mask
    assert mask is not None
    mask.values[:] = False
    with pytest.raises(ValueError, match="every choice of action 'walk' is masked for actor 0 of the batch"):
        random_actions(obs, np.random.default_rng(0), ACTIONS)
