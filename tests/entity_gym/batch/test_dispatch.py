"""Batched actions reach the environments in the environments' own ids."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from entity_gym import (
    Action,
    ActionMask,
    ActionSpace,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityAction,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.pools.pool import ListEnv
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper
from tests.worlds import Script, choose, making

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "minesweeper_internals.json").read_text())
T, F = True, False

# The cats may be selected; they come after the walls and the dogs, so entity index and position among the actees differ.
YARD = ObsSpace({"Wall": Entity(["x"]), "Dog": Entity(["x"]), "Cat": Entity(["x"])})
ACTIONS: dict[str, ActionSpace] = {
    "walk": CategoricalActionSpace(["stay", "left", "right"]),
    "chase": SelectEntityActionSpace(),
    "weather": GlobalCategoricalActionSpace(["sun", "rain"]),
}


def yard(dogs: int = 0, cats: int = 0, walls: int = 0, **actions: ActionMask) -> Observation:
    features = {"Wall": [[0.0]] * walls, "Dog": [[0.0]] * dogs, "Cat": [[0.0]] * cats}
    ids = {"Dog": [f"dog{i}" for i in range(dogs)], "Cat": [f"cat{i}" for i in range(cats)]}
    return Observation(features=features, ids=ids, actions=actions)


def plain(actions: Mapping[str, Action]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, action in actions.items():
        if isinstance(action, CategoricalAction):
            result[name] = (list(action.actors), list(action.actions))
        elif isinstance(action, SelectEntityAction):
            result[name] = (list(action.actors), list(action.actees))
        else:
            result[name] = (action.action, action.label)
    return result


# --- The seed's example


class RecordingMineSweeper(PythonMineSweeper):
    """Starts from one of the golden states and keeps what it is told."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__(num_mines=1, num_robots=1, **GOLDEN["env_kwargs"])
        self.start = state
        self.received: dict[str, Action] = {}

    def reset(self) -> Observation:
        return self.golden(self.start)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.received = dict(actions)
        return super().act(actions)


def test_the_golden_actions_arrive_as_in_the_golden_table() -> None:
    envs = [RecordingMineSweeper(state) for state in GOLDEN["states"]]
    vec_env = ListEnv(making(*envs), 3)
    vec_env.reset()
    obs = vec_env.act(
        {
            **choose("Move", [[c for (c,) in row] for row in GOLDEN["move_head"]["ragged_actions"]]),
            **choose("Fire Orbital Cannon", [[c for (c,) in row] for row in GOLDEN["fire_head"]["ragged_actions"]]),
        }
    )
    for env, expected in zip(envs, GOLDEN["env_actions"], strict=True):
        move, fire = env.received["Move"], env.received["Fire Orbital Cannon"]
        assert isinstance(move, CategoricalAction) and isinstance(fire, SelectEntityAction)
        assert move.actors == [tuple(actor) for actor in expected["Move"]["actors"]]
        assert move.actions.tolist() == expected["Move"]["actions"]
        assert fire.actors == [tuple(actor) for actor in expected["Fire Orbital Cannon"]["actors"]]
        assert fire.actees == [tuple(actee) for actee in expected["Fire Orbital Cannon"]["actees"]]
        assert set(env.received) == {"Move", "Fire Orbital Cannon"}
    # the cannon of the second environment shot its only mine
    assert (obs.done.tolist(), obs.reward.tolist()) == ([F, T, F], [0.0, 1.0, 0.0])


# --- The conventions of each kind


def test_environments_are_told_in_their_own_ids_and_in_the_order_of_their_offers() -> None:
    offers: list[dict[str, ActionMask]] = [
        # indices: walls 0 1, dogs 2 3, cats 4 5 6; among the actees cat1 is at position 1
        {"chase": SelectEntityActionMask(actor_types=["Dog"], actee_types=["Cat"])},
        # dogs 2 3, cats 4 5 6
        {"chase": SelectEntityActionMask(actor_ids=["cat1", "cat0", "dog0"], actee_ids=["cat2", "cat0", "dog1"])},
        {"walk": CategoricalActionMask(actor_ids=["cat1", "dog0"]), "weather": GlobalCategoricalActionMask()},
        {"walk": CategoricalActionMask(actor_types=["Cat"]), "weather": GlobalCategoricalActionMask()},
    ]
    envs = [Script([yard(walls=2, dogs=2, cats=3, **offer), Observation()], YARD, ACTIONS) for offer in offers]
    vec_env = ListEnv(making(*envs), len(envs))
    vec_env.reset()
    chase, walk = choose("chase", [[5, 4], [6, 4, 3], [], []]), choose("walk", [[], [], [2, 0], [1, 1, 0]])
    vec_env.act(chase | walk | choose("weather", [[], [], [1], [0]]))
    assert [plain(env.received[-1]) for env in envs] == [
        {"chase": (["dog0", "dog1"], ["cat1", "cat0"])},
        {"chase": (["cat1", "cat0", "dog0"], ["cat2", "cat0", "dog1"])},
        {"walk": (["cat1", "dog0"], [2, 0]), "weather": (1, "rain")},
        {"walk": (["cat0", "cat1", "cat2"], [1, 1, 0]), "weather": (0, "sun")},
    ]
    told = envs[2].received[-1]
    assert told["walk"].labels == ["right", "stay"] and isinstance(told["weather"], GlobalCategoricalAction)
