"""Features that are a category, an angle or a flag: what may be declared, which values get through, and who knows of it."""

import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_gym import (
    Angle,
    Category,
    Entity,
    Flag,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
)
from entity_gym.batch.batching import batch_observations
from entity_gym.batch.saving import spaces_difference, spaces_from_dict, spaces_to_dict
from entity_gym.registry import make_spec
from tests.worlds import Script

CARD = Entity(["x", Category("suit", 4), Angle("heading"), Flag("held")])
SPACE = ObsSpace({"Wall": Entity(["x"]), "Card": CARD}, ["time", Category("season", 4), Flag("night")])
ACTIONS = {"next": GlobalCategoricalActionSpace(["on", "again"])}
GOOD_CARD = [0.5, 3, -7.25, 1]
GOOD_WORLD = [2.5, 0, 1]

# --- Declaring


def test_an_entity_has_the_names_of_all_features_and_the_kinds_of_those_that_are_not_plain_numbers() -> None:
    assert CARD.features == ("x", "suit", "heading", "held")
    assert dict(CARD.kinds) == {"suit": Category("suit", 4), "heading": Angle("heading"), "held": Flag("held")}
    assert (SPACE.global_features, dict(SPACE.global_kinds)) == (
        ("time", "season", "night"),
        {"season": Category("season", 4), "night": Flag("night")},
    )


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickled": lambda space: pickle.loads(pickle.dumps(space)),
    "printed": lambda space: eval(repr(space)),
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("space", [CARD, SPACE, Entity([]), ObsSpace()])
def test_kinds_are_kept_by_whatever_copies_a_space(space: Any, way: str) -> None:
    assert COPIES[way](space) == space


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: Category("suit", 0), r"Category\('suit'\): num is 0; it must be a whole number from 1 to 16777216"),
        (lambda: Category("suit", 2**24 + 1), "num is 16777217; it must be a whole number from 1 to 16777216"),
        (lambda: Entity([Category(4, 4)]), r"Entity.features is \(4,\); it must be a list of names"),  # type: ignore[arg-type]
        (lambda: Entity(["x", Flag("x")]), r"Entity.features names \['x'\] more than once"),
        (
            lambda: Entity(["x", 3]),
            r"Entity.features is \['x', 3\]; it must be a list of feature names, or of Category",
        ),  # type: ignore[list-item]
        (
            lambda: Entity(["x", "y"], {"yy": Flag("yy")}),
            "kinds has 'yy', which is no feature; .*did you mean 'y'",
        ),
        (lambda: Entity(["x"], {"x": Flag("y")}), r"the kind of 'x' is Flag\(name='y'\); it must be its own"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(declare: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        declare()


# --- Which values get through


def show(card: Any = GOOD_CARD, world: Any = GOOD_WORLD) -> Observation:
    """Two walls, and three cards of which the second is `card`."""
    return Observation(
        features={"Wall": [[0.5], [9]], "Card": [GOOD_CARD, card, GOOD_CARD]},
        global_features=world,
        actions={"next": GlobalCategoricalActionMask()},
    )


def changed(row: list[float], name: str, value: Any) -> list[Any]:
    names = CARD.features if row is GOOD_CARD else SPACE.global_features
    return [value if each == name else old for each, old in zip(names, row, strict=True)]


@pytest.mark.parametrize(
    ("name", "value"), [("suit", 0), ("suit", 3), ("held", 0), ("held", True), ("heading", -1e6), ("heading", 0)]
)
def test_what_is_allowed_arrives_as_it_is(name: str, value: Any) -> None:
    card = changed(GOOD_CARD, name, value)
    obs = batch_observations([show(card)], SPACE, ACTIONS)
    assert obs.features["Card"].values[1].tolist() == card
    assert obs.features["Card"].values.dtype == np.float32


REFUSED = [
    ("suit", 4, "4; a category of 4 must be a whole number from 0 to 3"),
    ("suit", 1.5, "1.5; a category of 4 must be a whole number from 0 to 3"),
    ("suit", np.nan, "nan; a category of 4 must be a whole number from 0 to 3"),
    ("held", 2, "2; a flag must be 0 or 1"),
    ("heading", np.nan, "nan; an angle must be a finite number that float32 can hold"),
    ("x", np.inf, "inf; features must be finite numbers that float32 can hold"),
]


@pytest.mark.parametrize(("name", "value", "wrong"), REFUSED)
def test_a_refusal_names_environment_type_entity_feature_value_and_what_is_allowed(
    name: str, value: float, wrong: str
) -> None:
    with pytest.raises(ValueError) as caught:
        batch_observations([show(), show(changed(GOOD_CARD, name, value))], SPACE, ACTIONS, "Game")
    assert str(caught.value) == f"Game (environment 1): feature {name!r} of entity 1 of type 'Card' is {wrong}"


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("season", 7, "7; a category of 4 must be a whole number from 0 to 3"),
        ("night", -1, "-1; a flag must be 0 or 1"),
        ("time", np.nan, "nan; features must be finite numbers that float32 can hold"),
    ],
)
def test_global_features_are_checked_in_the_same_way(name: str, value: float, wrong: str) -> None:
    with pytest.raises(ValueError) as caught:
        batch_observations([show(), show(world=changed(GOOD_WORLD, name, value))], SPACE, ACTIONS, "Game")
    assert str(caught.value) == f"Game (environment 1): global feature {name!r} is {wrong}"


@given(
    num=st.integers(1, 2**24),
    value=st.one_of(st.integers(-3, 2**24 + 3), st.floats(width=32)).map(np.float32),
    nearby=st.integers(-2, 2) | st.none(),
)
def test_a_category_takes_its_ids_and_nothing_else(num: int, value: np.float32, nearby: int | None) -> None:
    value = value if nearby is None else np.float32(num + nearby)
    space = ObsSpace({"Unit": Entity(["x", Category("id", num)])})
    obs = Observation(features={"Unit": [[0.5, value]]})
    if np.isfinite(value) and float(value).is_integer() and int(value) in range(num):
        assert batch_observations([obs], space, {}).features["Unit"].values[0, 1] == value
    else:
        with pytest.raises(ValueError, match="feature 'id' of entity 0 of type 'Unit' is "):
            batch_observations([obs], space, {})


# --- Saving


def test_kinds_come_back_from_json() -> None:
    saved = json.loads(json.dumps(spaces_to_dict(SPACE, ACTIONS)))
    assert spaces_from_dict(saved) == (SPACE, ACTIONS)


@pytest.mark.parametrize(
    ("entity", "global_features", "what"),
    [
        (Entity(["x", Category("suit", 5), Angle("heading"), Flag("held")]), SPACE.global_features, "entities['Card']"),
        (CARD, ["time", Category("season", 5), Flag("night")], "global_kinds"),
    ],
)
def test_a_difference_in_kind_is_a_difference(entity: Entity, global_features: Any, what: str) -> None:
    now = ObsSpace({"Wall": Entity(["x"]), "Card": entity}, global_features)
    difference = spaces_difference(spaces_to_dict(SPACE, ACTIONS), spaces_to_dict(now, ACTIONS))
    assert difference is not None and difference.startswith(what)


# --- Who else knows of them


def spec() -> Any:
    return make_spec(lambda: Script([], SPACE, ACTIONS), max_entities={"Wall": 2, "Card": 3})


def test_a_spec_says_what_the_features_are() -> None:
    text = repr(spec())
    assert "features [x, suit (category of 4), heading (angle), held (flag)]" in text
    assert "global features [time, season (category of 4), night (flag)]" in text


def test_the_gymnasium_form_has_bounds_where_there_are_any() -> None:
    pytest.importorskip("gymnasium")
    from entity_gym.bridges.gymnasium.envs import observation_space
    from entity_gym.bridges.padded import PaddedForm

    space = observation_space(PaddedForm(spec()))
    cards, world = space["entities/Card"], space["global"]
    assert cards.shape == (3, 4)
    for low, high in zip(cards.low, cards.high, strict=True):
        assert (low.tolist(), high.tolist()) == ([-np.inf, 0, -np.inf, 0], [np.inf, 3, np.inf, 1])
    assert (world.low.tolist(), world.high.tolist()) == ([-np.inf, 0, 0], [np.inf, 3, 1])
    walls = space["entities/Wall"]
    assert (np.isneginf(walls.low).all(), np.isposinf(walls.high).all()) == (True, True)
