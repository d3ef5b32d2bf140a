"""Observations of programs that ask for actions, and the agent that plays at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from entity_gym import SelectEntitiesAction
from entity_gym.agents import Obs, Selection, random_agent
from tests.entity_gym.agents.programs import Goal, Move, Visit, Walker


def obs(**changes: Any) -> Obs[Move]:
    return Obs(**{"action": Move, "score": 0.0, "entities": [Goal(4)], "actors": [Walker(1)], **changes})


def test_actors_are_entities_too_and_have_ids() -> None:
    shown = obs(entities=[Goal(4), Walker(7), Goal(5)], actors=[Walker(1), Walker(2)]).to_observation(0.5)
    assert {name: np.asarray(rows).tolist() for name, rows in shown.features.items()} == {
        "Goal": [[4.0], [5.0]],
        "Walker": [[7.0], [1.0], [2.0]],
    }
    assert shown.ids == {"Walker": [None, 0, 1]}
    assert list(shown.actions["Move"].actor_ids) == [0, 1]  # type: ignore[union-attr, arg-type]
    assert (shown.reward, shown.done) == (0.5, False)
    shown = obs(entities=[], actors=[Walker(1), Goal(2), Walker(3)]).to_observation(done=True)
    assert shown.ids == {"Walker": [0, 2], "Goal": [1]}
    assert shown.actions == {}, "nobody acts on the last observation of a game"


def test_objects_may_be_changed_once_they_were_shown() -> None:
    walker = Walker(1)
    shown = obs(actors=[walker]).to_observation()
    walker.x = 9
    assert np.asarray(shown.features["Walker"]).tolist() == [[1.0]]


def test_a_random_agent_takes_every_action_sooner_or_later_and_the_same_ones_with_the_same_seed() -> None:
    def played(seed: int) -> list[Move | None]:
        agent = random_agent(seed)
        return [agent.act(obs()) for _ in range(50)]

    assert set(played(0)) == set(Move)
    assert played(0) == played(0)
    assert played(0) != played(1)


def test_each_of_several_actors_gets_an_allowed_action_of_its_own() -> None:
    agent = random_agent(0)
    assert agent.act_each(obs(actors=[])) == []
    allowed = [[Move.LEFT], [Move.STAY, Move.RIGHT]]
    taken = [agent.act_each(obs(actors=[Walker(1), Walker(2)], allowed=allowed)) for _ in range(30)]
    assert {each[0] for each in taken if each} == {Move.LEFT}
    assert {each[1] for each in taken if each} == {Move.STAY, Move.RIGHT}


def test_act_needs_exactly_one_actor() -> None:
    for actors in ([], [Walker(1), Walker(2)]):
        with pytest.raises(ValueError, match=f"has {len(actors)} actors; it must have exactly one, or use act_each"):
            random_agent(0).act(obs(actors=actors))


# ---- sets of entities

GOALS = [Goal(4), Goal(5), Goal(4)]  # two are equal, and different objects


def tour(**changes: Any) -> Obs[Visit]:
    return Obs(**{"action": Visit, "score": 0.0, "entities": GOALS, "actors": [Walker(1), Walker(2)], **changes})


def test_entities_that_may_be_selected_have_the_numbers_after_those_of_the_actors() -> None:
    shown = tour().to_observation()
    assert shown.ids == {"Goal": [2, 3, 4], "Walker": [0, 1]}
    offered: Any = shown.actions["Visit"]
    assert (list(offered.actor_ids), offered.actee_ids, offered.mask) == ([0, 1], [2, 3, 4], None)


def test_allowed_lists_objects_and_not_equal_ones_of_entities_and_of_actors() -> None:
    walkers = [Walker(1), Walker(2)]
    offered: Any = tour(actors=walkers, allowed=[[GOALS[2], walkers[1]], []]).to_observation().actions["Visit"]
    assert offered.actee_ids == [4, 1]
    assert offered.mask.tolist() == [[True, True], [False, False]]
    with pytest.raises(ValueError, match=r"Goal\(x=4\) is no Visit; it is not in entities or actors"):
        tour(allowed=[[Goal(4)], []]).to_observation()


def test_the_answer_is_a_list_of_the_programs_own_objects() -> None:
    first, second = tour().chosen({"Visit": SelectEntitiesAction([0, 1], [[4, 2], []])})
    assert isinstance(first, Visit) and list(map(id, first)) == [id(GOALS[2]), id(GOALS[0])]
    assert second == []
    assert tour(actors=[]).chosen({}) == []


def test_a_random_agent_selects_every_set_sooner_or_later() -> None:
    class Take(Selection, min=1):
        pass

    def columns(selected: Any) -> tuple[int, ...]:
        return tuple([id(each) for each in GOALS].index(id(each)) for each in selected)

    agent, numbers = random_agent(0), range(3)
    visits = {columns(each) for _ in range(200) for each in agent.act_each(tour()) or ()}
    assert visits == {(), *((a,) for a in numbers), *((a, b) for a in numbers for b in numbers if a != b)}
    takes = {columns(agent.act(tour(action=Take, actors=[Walker(1)]))) for _ in range(200)}
    assert takes == {(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)}
    assert agent.act(tour(action=Take, actors=[Walker(1)], allowed=[[]])) == []


def test_a_selection_has_the_options_of_its_action() -> None:
    with pytest.raises(ValueError, match="SelectEntitiesActionSpace.max is 0"):

        class Wrong(Selection, max=0):
            pass


@dataclass
class Inner:
    y: int


Inner.__name__ = "Goal"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"action": str}, "the action is .*; it must be an Enum"),
        ({"allowed": [[Move.LEFT], [Move.LEFT]]}, "allowed has 2 collections of actions for 1 actors"),
        ({"allowed": [["LEFT"]]}, "'LEFT' is no Move"),
        ({"entities": [{"x": 4}]}, "<class 'dict'> is no dataclass, of which entities are objects"),
        ({"entities": [Goal(1), Inner(2)]}, "two types of entity are called 'Goal'"),
    ],
)
def test_an_observation_that_cannot_be_is_refused_even_by_a_random_agent(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        random_agent(0).act(obs(**changes))
