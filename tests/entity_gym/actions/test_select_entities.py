"""Selecting sets of entities: the space, what is offered, which sets are allowed and drawn, and what environments are told."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_gym import (
    CategoricalActionSpace,
    Entity,
    Observation,
    ObsSpace,
    SelectEntitiesAction,
    SelectEntitiesActionMask,
    SelectEntitiesActionSpace,
)
from entity_gym.actions.chains import decision_order
from entity_gym.actions.choices import random_actions
from entity_gym.batch.batching import batch_observations
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.saving import spaces_from_dict, spaces_to_dict
from entity_gym.batch.vec_obs import VecActionMask, VecObs
from entity_gym.compiled import SelectEntities
from entity_gym.pools.pool import ListEnv
from tests.worlds import Script, making

YARD = ObsSpace({"Wall": Entity([]), "Cat": Entity([])})
FREE, OTHERS = SelectEntitiesActionSpace(), SelectEntitiesActionSpace(exclude_self=True)
ORDERED = SelectEntitiesActionSpace(ordered=True)
SOME, SOME_ORDERED = SelectEntitiesActionSpace(min=1, max=2), SelectEntitiesActionSpace(min=1, max=2, ordered=True)
T, F = True, False


def yard(cats: int, *, walls: int = 1, offer: Any = None, **mask: Any) -> Observation:
    """The walls come first, so cat i has entity index walls + i; every cat may select cats, unless `mask` says otherwise."""
    mask = {"actor_types": ["Cat"], "actee_types": ["Cat"], **mask}
    if "actor_ids" in mask:
        del mask["actor_types"]
    if "actee_ids" in mask:
        del mask["actee_types"]
    return Observation(
        features={"Wall": np.zeros((walls, 0)), "Cat": np.zeros((cats, 0))},
        ids={"Wall": [f"wall{i}" for i in range(walls)], "Cat": [f"cat{i}" for i in range(cats)]},
        actions={"groom": SelectEntitiesActionMask(**mask)} if offer is None else offer,
    )


def shown(space: SelectEntitiesActionSpace, *frames: Observation) -> VecObs:
    return batch_observations(frames, YARD, {"groom": space})


def offered(space: SelectEntitiesActionSpace, *frames: Observation) -> VecActionMask:
    mask = shown(space, *frames).action_masks["groom"]
    return mask


def sets(*frames: list[list[int]]) -> dict[str, RaggedBuffer[np.int64]]:
    """A list for each frame, with the numbers of each of its actors."""
    flat = [[number for numbers in actors for number in numbers] for actors in frames]
    values = np.array([number for numbers in flat for number in numbers], np.int64).reshape(-1, 1)
    return {"groom": RaggedBuffer.from_flattened(values, [len(numbers) for numbers in flat])}


def pool(space: SelectEntitiesActionSpace, *frames: Observation) -> tuple[ListEnv, list[Script]]:
    envs = [Script([obs, Observation()], YARD, {"groom": space}) for obs in frames]
    vec_env = ListEnv(making(*envs), len(envs))
    vec_env.reset()
    return vec_env, envs


# --- The space


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min": -1}, r"SelectEntitiesActionSpace.min is -1; it must be a whole number of at least 0"),
        ({"min": True}, r"min is True; it must be a whole number"),
        ({"max": 0}, r"SelectEntitiesActionSpace.max is 0; it must be a whole number of at least 1"),
        ({"min": 3, "max": 2}, r"max is 2; it must be a whole number of at least 3"),
        ({"max": 2.0}, r"max is 2.0; it must be a whole number"),
        ({"ordered": 1}, r"SelectEntitiesActionSpace.ordered is 1; it must be True or False"),
        ({"exclude_self": "no"}, r"SelectEntitiesActionSpace.exclude_self is 'no'"),
        ({"cost": 3, "budget": "money"}, r"SelectEntitiesActionSpace.cost is 3; it must be the name of a feature"),
        ({"cost": "price", "budget": ["money"]}, r"budget is \['money'\]; it must be the name of a feature"),
        ({"cost": "price", "ordered": True}, r"cost='price' and budget=None; give both or neither"),
        ({"cost": "price", "budget": "money"}, r"cost and budget are of ordered sets; give ordered=True"),
        ({"cost": "price", "budget": "money", "ordered": True, "min": 1}, r"min is 1; with a budget it must be 0: nothing may"),
        ({"after": ["walk", "actors"]}, r"after names 'actors', but actors select their sets at the same time"),
        ({"allowed": {"walk": [[True]]}, "after": "walk"}, r"allowed\['walk'\]: a select entities action has no table"),
    ],
)  # fmt: skip
def test_a_space_refuses_what_it_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SelectEntitiesActionSpace(**options)
    if "allowed" not in options:
        with pytest.raises(ValueError, match=message):
            SelectEntities(actors="Cat", actees="Cat", **options)


def test_a_space_is_saved_without_what_is_left_at_its_default() -> None:
    spaces: dict[str, Any] = {
        "free": FREE,
        "all": SelectEntitiesActionSpace(True, 0, 4, True, "price", "money", after=["free"]),
    }
    saved = spaces_to_dict(YARD, spaces)
    assert saved["actions"] == [
        {"name": "free", "type": "SelectEntitiesActionSpace"},
        {
            "name": "all",
            "type": "SelectEntitiesActionSpace",
            "after": ["free"],
            "exclude_self": True,
            "max": 4,
            "ordered": True,
            "cost": "price",
            "budget": "money",
        },
    ]
    assert spaces_from_dict(saved) == (YARD, spaces)
    assert decision_order(spaces) == ["free", "all"]


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (FREE, FREE, []),
        (FREE, OTHERS, ["action 'groom' may no longer select the actor itself"]),
        (OTHERS, FREE, ["action 'groom' may now select the actor itself"]),
        (FREE, SOME, ["action 'groom' now selects 1 to 2 entities"]),
        (SOME, FREE, ["action 'groom' now selects 0 to all entities"]),
    ],
)
def test_a_trained_policy_goes_on_with_other_limits(
    before: SelectEntitiesActionSpace, now: SelectEntitiesActionSpace, said: list[str]
) -> None:
    assert list(now.changes_since(before, "groom")) == said


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        (FREE, ORDERED, "the action 'groom' selects ordered sets now"),
        (ORDERED, FREE, "the action 'groom' selects unordered sets now"),
        (
            ORDERED,
            SelectEntitiesActionSpace(ordered=True, cost="price", budget="money"),
            "the action 'groom' has another cost or budget now: 'price', 'money'",
        ),
    ],
)
def test_a_trained_policy_cannot_go_on_with_sets_of_another_sort(
    before: SelectEntitiesActionSpace, now: SelectEntitiesActionSpace, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        list(now.changes_since(before, "groom"))


def test_no_other_action_has_a_mask_after_a_set() -> None:
    spaces: dict[str, Any] = {"groom": FREE, "walk": CategoricalActionSpace(["x"], after="groom")}
    assert decision_order(spaces) == ["groom", "walk"]
    with pytest.raises(
        ValueError, match=r"allowed\['groom'\] has 1 rows; that select entities action has no fixed choices"
    ):
        decision_order(
            {"groom": FREE, "walk": CategoricalActionSpace(["x"], after="groom", allowed={"groom": [[True]]})}
        )


@pytest.mark.parametrize(
    ("cost", "budget", "message"),
    [
        ("price", "money", None),
        ("price", "purse", None),  # a global feature
        ("prize", "money", r"Script: action 'buy': cost='prize' is no feature; .*; did you mean 'price'\?"),
        ("purse", "money", r"action 'buy': cost='purse' is no feature"),  # entities have prices
        ("price", "monet", r"action 'buy': budget='monet' is no feature; allowed: 'price', 'money', 'purse'"),
    ],
)  # fmt: skip
def test_a_world_whose_costs_or_budgets_are_no_features_is_refused(cost: str, budget: str, message: str | None) -> None:
    space = ObsSpace({"Ware": Entity(["price"]), "Buyer": Entity(["money"])}, ["purse"])
    buy = SelectEntitiesActionSpace(ordered=True, cost=cost, budget=budget)

    def make() -> ListEnv:
        return ListEnv(making(Script([], space, {"buy": buy})), 1)

    if message is None:
        make()
    else:
        with pytest.raises(ValueError, match=message):
            make()


# --- What is offered


def pairs(mask: VecActionMask) -> list[list[bool]] | None:
    return None if mask.mask is None else [frame[:, 0].tolist() for frame in mask.mask]


def test_actors_and_actees_are_found_by_ids_and_by_types_in_the_order_of_the_offer() -> None:
    by_ids = yard(2, actor_ids=["cat1"], actee_ids=["cat0", "wall0", "cat1"])
    mask = offered(FREE, yard(2), by_ids, yard(2, walls=0, actee_types=["Wall", "Cat"]))
    assert mask.actees is not None
    assert mask.actors.to_list() == [[[1], [2]], [[2]], [[0], [1]]]
    assert mask.actees.to_list() == [[[1], [2]], [[1], [0], [2]], [[0], [1]]]
    assert mask.mask is None
    assert mask.pair_offsets.tolist() == [0, 4, 7, 11]
    assert mask.pair_actors.tolist() == [0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4]


def test_a_pair_of_an_actor_with_itself_is_closed_only_with_exclude_self() -> None:
    assert pairs(offered(OTHERS, yard(2))) == [[F, T, T, F]]
    assert pairs(offered(OTHERS, yard(2, mask=[[T, F], [T, T]]))) == [[F, F, T, F]]
    assert pairs(offered(OTHERS, yard(1), yard(0), yard(2, actee_ids=["wall0"]))) == [[F], [], [T, T]]
    assert pairs(offered(FREE, yard(2, mask=[[T, F], [T, T]]))) == [[T, F, T, T]]


def test_everything_may_be_closed_to_an_actor_and_there_may_be_no_actors_or_actees() -> None:
    for space in (FREE, SOME, SOME_ORDERED):
        assert pairs(offered(space, yard(2, mask=[[F, F], [T, F]]))) == [[F, F, T, F]]
    nobody, nothing = yard(2, actor_ids=[]), yard(2, actee_ids=[])
    mask = offered(FREE, nobody, nothing, yard(2, offer={}))
    assert mask.actees is not None
    assert (mask.actors.size1().tolist(), mask.actees.size1().tolist()) == ([0, 2, 0], [0, 0, 0])
    assert mask.pair_offsets.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ({"actee_ids": ["cat7"]}, r"action 'groom': actee_ids names 'cat7', which no entity has"),
        ({"actee_types": ["Dog"]}, r"actee_types names the unknown entity type 'Dog'"),
        ({"actor_ids": ["cat0", "cat0"]}, r"actor_ids \['cat0', 'cat0'\] lists an entity twice"),
        ({"actee_ids": ["cat0", "cat0"]}, r"actee_ids \['cat0', 'cat0'\] lists an entity twice"),
        ({"mask": [[T, T]]}, r"action 'groom': mask has shape \(1, 2\) and type bool; expected bools of shape \(2, 2\)"),
        ({"mask": [[1, 0], [0, 1]]}, r"mask has shape \(2, 2\) and type int64; expected bools"),
    ],
)  # fmt: skip
def test_an_offer_that_does_not_fit_is_refused(mask: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        offered(FREE, yard(2, **mask))


# --- What is allowed


def is_allowed(space: SelectEntitiesActionSpace, numbers: list[int], is_open: list[bool]) -> bool:
    """The definition, for one actor."""
    selected = [number for number in numbers if number != 0]
    if any(number != 0 and not each for number, each in zip(numbers, is_open, strict=True)):
        return False
    num_open = sum(is_open)
    most = num_open if space.max is None else min(space.max, num_open)
    if not min(space.min, num_open) <= len(selected) <= most:
        return False
    return sorted(selected) == ([*range(1, len(selected) + 1)] if space.ordered else [1] * len(selected))


@st.composite
def spaces(draw: st.DrawFn) -> SelectEntitiesActionSpace:
    least = draw(st.integers(0, 3))
    most = draw(st.none() | st.integers(max(1, least), 4))
    return SelectEntitiesActionSpace(min=least, max=most, ordered=draw(st.booleans()))


@st.composite
def offers(draw: st.DrawFn) -> tuple[VecActionMask, list[list[bool]]]:
    """The offers of some frames, and what is open to each of their actors."""
    shapes = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=4))
    num_pairs = [actors * actees for actors, actees in shapes]
    flags = draw(st.none() | st.lists(st.booleans(), min_size=sum(num_pairs), max_size=sum(num_pairs)))
    actors, actees = (
        RaggedBuffer.from_flattened(np.array([i for n in counts for i in range(n)], np.int64).reshape(-1, 1), counts)
        for counts in ([shape[0] for shape in shapes], [shape[1] for shape in shapes])
    )
    is_open = np.ones(sum(num_pairs), np.bool_) if flags is None else np.array(flags, np.bool_)
    mask = None if flags is None else RaggedBuffer.from_flattened(is_open[:, None], num_pairs)
    widths = [actees for actors, actees in shapes for _ in range(actors)]
    rows = [row.tolist() for row in np.split(is_open, np.cumsum(widths)[:-1])] if widths else []
    return VecActionMask(actors, actees, mask), rows


@given(space=spaces(), offer=offers(), data=st.data())
def test_a_set_is_allowed_exactly_where_the_definition_says_so(
    space: SelectEntitiesActionSpace, offer: Any, data: st.DataObject
) -> None:
    mask, rows = offer
    sets_: list[list[int]] = []
    for is_open in rows:
        order = data.draw(st.permutations(range(len(is_open))))
        size = data.draw(st.integers(0, len(is_open)))
        numbers = [0] * len(is_open)
        for place, column in enumerate(order[:size], 1):  # of any size, of open and closed ones
            numbers[column] = place if space.ordered else 1
        if numbers and data.draw(st.booleans()):  # a place that is missing, there twice, negative or too large
            numbers[data.draw(st.integers(0, len(numbers) - 1))] = data.draw(st.integers(-2, 7) | st.just(-(2**63)))
        sets_.append(numbers)
    values = np.array([number for numbers in sets_ for number in numbers], np.int64).reshape(-1, 1)
    expected = [is_allowed(space, numbers, is_open) for numbers, is_open in zip(sets_, rows, strict=True)]
    assert space.is_allowed(values, mask).tolist() == expected


@given(space=spaces(), is_open=st.lists(st.booleans(), max_size=5), data=st.data())
def test_the_closest_set_is_allowed_and_an_allowed_one_is_closest_to_itself(
    space: SelectEntitiesActionSpace, is_open: list[bool], data: st.DataObject
) -> None:
    given_ = data.draw(st.lists(st.integers(0, 6), min_size=len(is_open), max_size=len(is_open)))
    places, flags = np.array([given_], np.int64).reshape(1, -1), np.array([is_open], np.bool_).reshape(1, -1)
    (found,) = space.closest(places, flags).tolist()
    assert is_allowed(space, found, is_open)
    assert space.closest(np.array([found], np.int64).reshape(1, -1), flags).tolist() == [found]
    kept = [place > 0 and each for place, each in zip(given_, is_open, strict=True)]
    if sum(kept) <= sum(number > 0 for number in found):  # nothing that is open was left out
        assert all(number > 0 for number, each in zip(found, kept, strict=True) if each)


@pytest.mark.parametrize(
    ("space", "places", "closest"),
    [
        (FREE, [2, 0, 1, 3], [1, 0, 1, 0]),  # the last is closed
        (SOME, [2, 3, 1, 0], [1, 0, 1, 0]),  # at most two, and the third is the first
        (SOME, [0, 0, 0, 4], [1, 0, 0, 0]),
        (ORDERED, [5, 0, 2, 1], [2, 0, 1, 0]),
        (ORDERED, [3, 3, 3, 0], [1, 2, 3, 0]),
    ],
)
def test_of_a_set_that_is_not_allowed_as_much_is_left_as_there_can_be(
    space: SelectEntitiesActionSpace, places: list[int], closest: list[int]
) -> None:
    assert space.closest(np.array([places]), np.array([[T, T, T, F]])).tolist() == [closest]


@pytest.mark.parametrize(
    ("space", "numbers", "allowed"),
    [
        (FREE, [0, 0, 0], T),
        (FREE, [1, 1, 0], T),
        (FREE, [1, 1, 1], F),  # the last is closed
        (FREE, [2, 0, 0], F),
        (FREE, [-1, 0, 0], F),
        (SOME, [0, 0, 0], F),
        (SelectEntitiesActionSpace(max=1), [1, 1, 0], F),
        (SelectEntitiesActionSpace(min=5), [1, 0, 0], F),
        (SelectEntitiesActionSpace(min=5), [1, 1, 0], T),  # all that are open
        (ORDERED, [2, 1, 0], T),
        (ORDERED, [1, 0, 0], T),
        (ORDERED, [1, 1, 0], F),
        (ORDERED, [2, 0, 0], F),
        (ORDERED, [1, 3, 0], F),
        (ORDERED, [1, -1, 0], F),
    ],
)
def test_sets_of_an_actor_to_whom_the_third_of_three_is_closed(
    space: SelectEntitiesActionSpace, numbers: list[int], allowed: bool
) -> None:
    env, _ = pool(space, yard(3, actor_ids=["cat0"], mask=[[T, T, F]]))
    if allowed:
        env.act(sets([numbers]))
    else:
        with pytest.raises(ValueError, match="action 'groom' of entity 1 is "):
            env.act(sets([numbers]))


@pytest.mark.parametrize(
    ("space", "numbers", "message"),
    [
        (FREE, [0, 2], r"is \[0, 2\], a number for each actee; expected 1 for 0 to all open actees, and 0 for the others$"),
        (SOME, [0, 0], r"is \[0, 0\], .* expected 1 for 1 to 2 open actees, or for all where fewer are open, and 0 for the"),
        (ORDERED, [2, 0], r"is \[2, 0\], .* expected places from 1 on for 0 to all open actees, and 0 for the others$"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_environment_the_action_the_entity_and_the_numbers(
    space: SelectEntitiesActionSpace, numbers: list[int], message: str
) -> None:
    env, envs = pool(space, yard(2, offer={}), yard(2))
    with pytest.raises(ValueError, match=r"^Script \(environment 1\): action 'groom' of entity 2 " + message):
        env.act(sets([], [[1, 0], numbers]))
    assert [each.received for each in envs] == [[], []]


def test_a_refusal_of_a_set_among_very_many_stays_short() -> None:
    env, _ = pool(FREE, yard(1000, actor_ids=["cat0"]))
    with pytest.raises(ValueError, match=r"is \[2, 2, .*, and 0 for the others$") as caught:
        env.act(sets([[2] * 1000]))
    assert len(str(caught.value)) < 500


def test_there_is_a_number_for_every_pair() -> None:
    env, _ = pool(FREE, yard(2, offer={}), yard(2))
    with pytest.raises(ValueError, match=r"environment 1\): action 'groom' has 2 values, and 4 are needed"):
        env.act(sets([], [[1, 0]]))


# --- Random sets


@given(space=spaces(), offer=offers(), seed=st.integers(0, 2**32))
def test_random_sets_are_allowed(space: SelectEntitiesActionSpace, offer: Any, seed: int) -> None:
    mask, rows = offer
    drawn = [("drawn", space.sample(mask, np.random.default_rng(seed))), *space.rare_choices(mask)]
    for what, values in drawn:
        assert values.shape == (sum(map(len, rows)), 1) and values.dtype == np.int64
        sets_ = np.split(values[:, 0], np.cumsum(list(map(len, rows)))[:-1]) if rows else []
        for numbers, is_open in zip(sets_, rows, strict=True):
            assert is_allowed(space, numbers.tolist(), is_open), what


def test_sets_that_are_rare_at_random_are_the_smallest_and_the_largest() -> None:
    mask = offered(SOME, yard(3, mask=[[T, T, T], [F, F, T], [F, F, F]]))
    smallest, largest = (values[:, 0].reshape(3, 3).sum(axis=1).tolist() for _, values in SOME.rare_choices(mask))
    assert (smallest, largest) == ([1, 1, 0], [2, 1, 0])


DRAWS = 6000


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(("least", "most", "sizes"), [(0, None, range(4)), (2, None, [2, 3]), (0, 2, [0, 1, 2])])
def test_sizes_entities_and_places_are_uniform(ordered: bool, least: int, most: int | None, sizes: Any) -> None:
    """Three of four actees are open to the second of two actors. Bounds are five standard deviations."""
    space = SelectEntitiesActionSpace(min=least, max=most, ordered=ordered)
    obs = shown(space, yard(4, actor_ids=["cat3", "cat0"], mask=[[F] * 4, [T, F, T, T]]))
    rng, seen, selected, first = np.random.default_rng(0), Counter[int](), Counter[int](), Counter[int]()
    for _ in range(DRAWS):
        drawn = random_actions(obs, rng, {"groom": space})["groom"].values[:, 0].reshape(2, 4)
        assert not drawn[0].any()
        seen[int((drawn[1] > 0).sum())] += 1
        selected.update(np.flatnonzero(drawn[1]).tolist())
        first.update(np.flatnonzero(drawn[1] == 1).tolist() if ordered else [])

    def assert_uniform(counts: Counter[int], over: Any) -> None:
        assert set(counts) == set(over)
        each = sum(counts.values()) / len(counts)
        assert all(abs(n - each) < 5 * each**0.5 for n in counts.values()), counts

    assert_uniform(seen, sizes)
    assert_uniform(selected, [0, 2, 3])
    if ordered:
        assert_uniform(first, [0, 2, 3])


# --- What the environment is told


def test_a_world_is_told_the_sets_in_its_own_ids() -> None:
    offer = {"actor_ids": ["cat1", "cat0"], "actee_ids": ["cat2", "wall0", "cat0"]}
    env, (free, silent) = pool(FREE, yard(3, **offer), yard(3, offer={}))
    env.act(sets([[1, 0, 1], [0, 0, 0]], []))
    assert free.received == [{"groom": SelectEntitiesAction(["cat1", "cat0"], [["cat2", "cat0"], []])}]  # as offered
    assert silent.received == [{}]
    env, (ordered,) = pool(ORDERED, yard(3, **offer))
    env.act(sets([[3, 1, 2], [0, 2, 1]]))
    told = SelectEntitiesAction(["cat1", "cat0"], [["wall0", "cat0", "cat2"], ["cat0", "wall0"]])
    assert ordered.received == [{"groom": told}]


def test_a_set_without_an_order_is_told_in_the_order_of_the_offer_however_large_it_is() -> None:
    backwards = [f"cat{i}" for i in range(99, -1, -1)]
    env, (world,) = pool(FREE, yard(100, actor_ids=["cat0"], actee_ids=backwards))
    env.act(sets([[1] * 100]))
    assert world.received == [{"groom": SelectEntitiesAction(["cat0"], [backwards])}]


def test_an_actor_without_actees_is_told_an_empty_set() -> None:
    env, (alone,) = pool(SOME, yard(2, actee_ids=[]))
    env.act(sets([[], []]))
    assert alone.received == [{"groom": SelectEntitiesAction(["cat0", "cat1"], [[], []])}]
