"""Spaces say once what there is; a mistake in them, or in an observation, is found when they are made."""

import pytest

from entity_gym import (
    CategoricalActionSpace,
    Entity,
    Flag,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
)


def test_a_space_does_not_change_with_the_lists_that_it_was_made_from() -> None:
    features, entities, choices = ["x"], {"A": Entity()}, ["stay"]
    entity, obs_space, action = Entity(features), ObsSpace(entities), CategoricalActionSpace(choices)
    features.append("y")
    entities["B"] = Entity()
    choices.append("go")
    assert (list(entity.features), list(obs_space.entities), list(action.choices)) == (["x"], ["A"], ["stay"])


def test_the_name_of_the_global_entity_is_reserved() -> None:
    with pytest.raises(ValueError, match="'__global__' is reserved"):
        ObsSpace({"__global__": Entity(["x"])})


def test_an_entity_type_that_is_no_entity_is_named() -> None:
    with pytest.raises(ValueError, match=r"entities\['Cat'\] is \['x'\]; it must be an Entity"):
        ObsSpace({"Cat": ["x"]})  # type: ignore[dict-item]


def test_a_string_in_place_of_a_list_of_names_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Entity.features is 'xy'; it must be a list"):
        Entity("xy")
    with pytest.raises(ValueError, match=r"CategoricalActionSpace.choices is 'stay'"):
        CategoricalActionSpace("stay")


def test_names_are_looked_at_once_each_however_many_there_are() -> None:
    compared = []

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(self)
            return super().__eq__(other)

    CategoricalActionSpace([Name(k) for k in range(300)])
    names = [Name(k) for k in range(300)]
    Entity(names, {name: Flag(name) for name in names})
    assert len(compared) < 3000, "each with each would be 180,000"


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Entity.features names \['x'\] more than once"):
        Entity(["x", "y", "x"])
    with pytest.raises(ValueError, match=r"ObsSpace.global_features names \['time'\] more than once"):
        ObsSpace(global_features=["time", "time"])


@pytest.mark.parametrize("space", [CategoricalActionSpace, GlobalCategoricalActionSpace])
def test_an_action_without_choices_is_refused(space: type) -> None:
    with pytest.raises(ValueError, match=f"{space.__name__}.choices is empty"):
        space([])


# --- Observations


def test_a_truncated_observation_is_done() -> None:
    with pytest.raises(ValueError, match=r"truncated=True, done=False.*done must be True"):
        Observation(truncated=True)
    assert Observation(done=True, truncated=True).done


def test_actees_are_given_by_id_or_by_type() -> None:
    with pytest.raises(ValueError, match=r"both actee_ids=\[2\] and actee_types=\['B'\]; give one"):
        SelectEntityActionMask(actor_ids=[1], actee_ids=[2], actee_types=["B"])
