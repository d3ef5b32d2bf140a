"""Actions that are decided after others: the order, tables, masks after a selection, checks and random choices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from entity_gym import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionSpace,
    Entity,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    RaggedBuffer,
    SelectEntityActionMask,
    SelectEntityActionSpace,
    VecObs,
)
from entity_gym.actions.chains import decision_order
from entity_gym.actions.choices import check_actions, random_actions
from entity_gym.batch.batching import batch_observations
from entity_gym.batch.saving import spaces_from_dict, spaces_to_dict

SPACE = ObsSpace({"Robot": Entity([]), "Door": Entity([])})
AIM, USE, MOVE, FIRE, MODE = "aim", "use", "move", "fire", "mode"
TABLE = [[True, True], [True, False], [False, True]]  # stay: anything; left: no; right: yes
ACTIONS: dict[str, ActionSpace] = {
    FIRE: CategoricalActionSpace(["no", "yes"], after=MOVE, allowed={MOVE: TABLE}),
    MOVE: CategoricalActionSpace(["stay", "left", "right"], after="actors"),
    USE: CategoricalActionSpace(["look", "open", "lock"], after=AIM),
    AIM: SelectEntityActionSpace(nobody=True),
}


def frame(robots: int, doors: int, **actions: Any) -> Observation:
    return Observation(
        features={"Robot": np.zeros((robots, 0)), "Door": np.zeros((doors, 0))},
        ids={"Robot": [f"robot {i}" for i in range(robots)], "Door": [f"door {i}" for i in range(doors)]},
        actions=actions,
    )


def robots(**options: Any) -> CategoricalActionMask:
    return CategoricalActionMask(actor_types=["Robot"], **options)


TWO = CategoricalActionSpace(["x", "y"])
AIMS = SelectEntityActionMask(actor_types=["Robot"], actee_types=["Door"])


def shown(*frames: Observation, actions: Mapping[str, ActionSpace] = ACTIONS) -> VecObs:
    return batch_observations(frames, SPACE, actions)


def check(obs: VecObs, **chosen: list[list[int]]) -> None:
    """Check choices, a list for each frame; actions left out are taken by nobody."""
    nobody = {name: [[] for _ in range(len(obs))] for name in obs.action_masks}
    actions = {
        name: RaggedBuffer.from_flattened(
            np.array([choice for of_frame in each for choice in of_frame], np.int64).reshape(-1, 1),
            [len(own) for own in each],
        )
        for name, each in {**nobody, **chosen}.items()
    }
    check_actions(actions, obs.action_masks, ACTIONS, lambda k: f"world {k}")


# --- The declaration


def test_actions_are_decided_as_declared_but_each_after_those_that_it_is_after() -> None:
    assert decision_order(ACTIONS) == [MOVE, FIRE, AIM, USE]
    assert decision_order({name: CategoricalActionSpace(["x"]) for name in "cab"}) == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({MOVE: "mov"}, r"action 'move': after names the unknown action 'mov'; allowed: 'fire', 'actors'"),
        ({MOVE: MOVE}, r"action 'move': after names itself; allowed: 'fire', 'actors'"),
        ({MOVE: FIRE, FIRE: [MOVE, "actors"]}, r"the actions 'fire', 'move' wait for each other: after makes a circle"),
        ({MOVE: "actors", "actors": ()}, r"action 'move': after names 'actors', the actors before; rename the action"),
    ],
)
def test_an_order_that_cannot_be_is_an_error_that_names_it(actions: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decision_order(
            {name: CategoricalActionSpace(["x"], after=after) for name, after in {FIRE: (), **actions}.items()}
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CategoricalActionSpace(["x"], after=3), r"CategoricalActionSpace.after is 3; it must be a list of names"),
        (lambda: ContinuousActionSpace([0], [1], after=["a", "a"]), r"ContinuousActionSpace.after names \['a'\] more than once"),
        (lambda: GlobalCategoricalActionSpace(["x"], after="actors"), r"it has no actors in turn"),
        (lambda: CategoricalActionSpace(["x"], allowed={MOVE: [[True]]}), r"allowed\['move'\]: 'move' is not among the earlier"),
        (lambda: CategoricalActionSpace(["x"], after="actors", allowed={"actors": [[True]]}), r"'actors' is not among"),
        (lambda: CategoricalActionSpace(["x"], allowed=[True]), r"allowed is \[True\]; it must map earlier actions to tables"),
        (lambda: SelectEntityActionSpace(after=MOVE, allowed={MOVE: [[True]]}), r"a select entity action has no table"),
        (lambda: CategoricalActionSpace(["x", "y"], after=MOVE, allowed={MOVE: [[True]]}), r"must be rows of 2 bools"),
        (lambda: CategoricalActionSpace(["x", "y"], after=MOVE, allowed={MOVE: [[1, 0]]}), r"must be rows of 2 bools"),
        (lambda: CategoricalActionSpace(["x", "y"], after=MOVE, allowed={MOVE: [[True, True], [False, False]]}), r"row 1 closes"),
    ],
)  # fmt: skip
def test_a_space_refuses_what_it_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (TWO, CategoricalActionSpace, r"allowed\['first'\] has 3 rows; .* categorical action has 2"),
        (SelectEntityActionSpace(), CategoricalActionSpace, r"has 3 rows; that select entity action has no fixed choices"),
        (CategoricalActionSpace(["x", "y", "z"]), GlobalCategoricalActionSpace, r"every actor chooses there"),
    ],
)  # fmt: skip
def test_a_table_fits_the_earlier_action(first: ActionSpace, second: Any, message: str) -> None:
    later = second(["no", "yes"], after="first", allowed={"first": TABLE})
    with pytest.raises(ValueError, match=message):
        decision_order({"second": later, "first": first})


def test_two_tables_together_leave_something_open() -> None:
    no, yes = [[True, False], [True, True]], [[True, True], [False, True]]
    spaces: dict[str, ActionSpace] = {
        "do": CategoricalActionSpace(["no", "yes"], after=["a", "b"], allowed={"a": no, "b": yes}),
        "a": CategoricalActionSpace(["x", "y"]),
        "b": CategoricalActionSpace(["x", "y"]),
    }
    both = {name: robots() for name in spaces}
    with pytest.raises(
        ValueError, match=r"action 'do': every choice of entity 0 is closed after .* in action 'a' and 'b'; leave"
    ):
        shown(frame(1, 0, **both), actions=spaces)
    shown(frame(1, 0, **both | {"a": robots(mask=[[False, True]])}), actions=spaces)


def test_spaces_travel_as_plain_values() -> None:
    saved = spaces_to_dict(SPACE, ACTIONS)
    assert saved["actions"][0] == {
        "name": FIRE, "type": "CategoricalActionSpace", "after": [MOVE], "allowed": {MOVE: TABLE}, "choices": ["no", "yes"],
    }  # fmt: skip
    assert spaces_from_dict(saved) == (SPACE, ACTIONS)
    assert "after" not in spaces_to_dict(SPACE, {AIM: ACTIONS[AIM]})["actions"][0]


# --- Combinations that are closed


def test_a_closed_combination_is_refused_and_both_actions_are_named() -> None:
    obs = shown(frame(1, 0, move=robots(), fire=robots()), frame(2, 0, move=robots(), fire=robots()))
    check(obs, move=[[0], [1, 2]], fire=[[1], [0, 1]])
    with pytest.raises(ValueError, match=r"world 1: action 'fire' of entity 1 is 0 \('no'\), which is closed after its choice in action 'move'"):  # fmt: skip  # noqa: E501
        check(obs, move=[[0], [1, 2]], fire=[[1], [0, 0]])


def test_an_actor_that_has_not_chosen_before_may_take_any_choice() -> None:
    first = CategoricalActionMask(actor_ids=["robot 1"])
    check(shown(frame(2, 0, move=first, fire=robots())), move=[[1]], fire=[[1, 0]])
    with pytest.raises(ValueError, match=r"entity 1 is 1"):
        check(shown(frame(2, 0, move=first, fire=robots())), move=[[1]], fire=[[0, 1]])


def test_the_choice_of_the_frame_closes_choices_of_every_actor() -> None:
    spaces: dict[str, ActionSpace] = {
        MODE: GlobalCategoricalActionSpace(["peace", "war"]),
        FIRE: CategoricalActionSpace(["no", "yes"], after=MODE, allowed={MODE: [[True, False], [True, True]]}),
    }
    peace, war = (frame(3, 0, mode=GlobalCategoricalActionMask(mask=mask), fire=robots()) for mask in ([1, 0], [0, 1]) for mask in [np.array(mask, bool)])  # fmt: skip  # noqa: E501
    obs = shown(peace, war, frame(3, 0, fire=robots()), actions=spaces)
    drawn = [random_actions(obs, np.random.default_rng(seed), spaces)[FIRE].values[:, 0] for seed in range(50)]
    assert np.max(drawn, axis=0).tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1]


# --- Masks after a selection


def doors(*masks: Any) -> CategoricalActionMask:
    return robots(mask_after=np.array(masks, bool))


def test_the_choices_depend_on_the_entity_that_the_actor_has_selected() -> None:
    # robot 0 may open door 0, and lock door 1; robot 1 may only look at either
    use = doors([[1, 1, 0], [0, 0, 1]], [[1, 0, 0], [1, 0, 0]])
    empty = frame(0, 0, aim=AIMS, use=robots())
    obs = shown(empty, frame(2, 2, aim=AIMS, use=use), frame(1, 1, aim=AIMS, use=robots()))
    check(obs, aim=[[], [2, 3], [1]], use=[[], [1, 0], [2]])
    check(obs, aim=[[], [3, -1], [1]], use=[[], [2, 2], [2]])  # who selects nobody has every choice
    with pytest.raises(
        ValueError, match=r"action 'use' of entity 0 is 1 \('open'\), which is closed after its choice in action 'aim'"
    ):
        check(obs, aim=[[], [3, -1], [1]], use=[[], [1, 2], [2]])
    with pytest.raises(ValueError, match=r"action 'use' of entity 1 is 2"):
        check(obs, aim=[[], [3, 2], [1]], use=[[], [2, 2], [2]])


def test_random_choices_are_ones_that_earlier_choices_leave_open() -> None:
    use = doors([[1, 1, 0], [0, 0, 1]], [[1, 0, 0], [0, 1, 1]])
    everything = {"aim": AIMS, "use": use, "move": robots(), "fire": robots()}
    parts = [shown(frame(2, 2, **everything)), shown(frame(1, 1, aim=AIMS, use=robots()), frame(0, 3))]
    obs = VecObs.cat(parts)
    seen = set()
    for seed in range(200):
        actions = random_actions(obs, np.random.default_rng(seed), ACTIONS)
        check_actions(actions, obs.action_masks, ACTIONS, str)
        seen.add((int(actions[AIM].values[0, 0]), int(actions[USE].values[0, 0])))
    assert seen == {(2, 0), (2, 1), (3, 2), (-1, 0), (-1, 1), (-1, 2)}
    again = obs.gather(np.array([2, 0, 1, 0])).action_masks[USE].mask_after
    assert again is not None
    assert again.size1().tolist() == [0, 4, 0, 4]  # an empty sequence closes nothing
    assert again.values[:4].tolist() == again.values[4:].tolist() == [
        [True, True, False], [False, False, True], [True, False, False], [False, True, True],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({"aim": AIMS, "use": doors([[1, 0, 0]])}, r"mask_after \(actors, actees of 'aim', choices\) has shape \(1, 1, 3\)"),
        ({"use": robots(mask_after=np.ones((2, 2, 3), bool))}, r"expected bools of shape \(2, 0, 3\)"),
        ({"move": robots(), "fire": robots(mask_after=np.ones((2, 2, 2), bool))}, r"one select-entity action in after"),
        ({"aim": AIMS, "use": doors([[1, 0, 0], [0, 0, 0]], [[1, 1, 1], [1, 1, 1]])},
         r"action 'use': every choice of entity 0 is closed after choices that are open in action 'aim'; leave one open"),
        ({"aim": AIMS, "use": robots(mask=[[True, False, False]] * 2, mask_after=np.array([[[0, 1, 1]] * 2] * 2, bool))},
         r"action 'use': every choice of entity 0 is closed after"),
        ({"move": robots(), "fire": robots(mask=[[True, True], [False, True]])},
         r"action 'fire': every choice of entity 1 is closed after choices that are open in action 'move'"),
    ],
)  # fmt: skip
def test_an_observation_that_does_not_fit_is_refused(actions: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shown(frame(2, 2, **actions))


def test_choices_may_be_closed_after_a_choice_that_is_closed_itself() -> None:
    not_left = robots(mask=[[True, False, True]])
    check(shown(frame(1, 0, move=not_left, fire=robots(mask=[[False, True]]))), move=[[2]], fire=[[1]])
    only_door_1 = SelectEntityActionMask(actor_types=["Robot"], actee_types=["Door"], mask=[[False, True]])
    obs = shown(frame(1, 2, aim=only_door_1, use=doors([[0, 0, 0], [1, 0, 0]])))
    check(obs, aim=[[2]], use=[[0]])
