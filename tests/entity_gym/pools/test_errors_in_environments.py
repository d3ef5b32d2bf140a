"""Messages about an environment's mistake name its class and index, the part, and the given and expected values."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from entity_gym import (
    Action,
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
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.pools.pool import ListEnv
from tests.worlds import Script, making

SPACE = ObsSpace({"Wall": Entity(["x"]), "Cat": Entity(["x", "y"]), "Dog": Entity(["x"])}, ["time", "wind"])
ACTIONS: dict[str, ActionSpace] = {
    "walk": CategoricalActionSpace(["stay", "left", "right"]),
    "chase": SelectEntityActionSpace(),
    "weather": GlobalCategoricalActionSpace(["sun", "rain"]),
}
NAN, INF = float("nan"), float("inf")
T, F = True, False


class Garden(Script):
    """Named in the messages below."""


def garden(**fields: Any) -> Observation:
    """Two walls without ids, the cats 'a' and 'b', and the dog 'd', with some fields replaced."""
    usual: dict[str, Any] = {
        "features": {"Wall": [[0.0], [1.0]], "Cat": [[0.0, 0.0], [1.0, 1.0]], "Dog": [[0.0]]},
        "ids": {"Cat": ["a", "b"], "Dog": ["d"]},
        "global_features": [0.0, 0.0],
    }
    return Observation(**{**usual, **fields})


def walk(*actor_ids: Any, **fields: Any) -> dict[str, ActionMask]:
    return {"walk": CategoricalActionMask(actor_ids=actor_ids if actor_ids else None, **fields)}


def chase(**fields: Any) -> dict[str, ActionMask]:
    return {"chase": SelectEntityActionMask(**{"actor_ids": ["d"], "actee_types": ["Cat"], **fields})}


def weather(mask: Any) -> dict[str, ActionMask]:
    return {"weather": GlobalCategoricalActionMask(mask=mask)}


FEATURES = {
    "a feature that is NaN": (
        garden(features={"Cat": [[0, 0], [1, NAN]], "Dog": [[0]]}),
        "feature 'y' of entity 1 of type 'Cat' is nan; features must be finite numbers",
    ),
    "rows that differ in length": (
        garden(features={"Cat": [[0, 0], [1]]}),
        "features of 'Cat' are not rows of 2 numbers each",
    ),
    "features that are texts": (
        garden(features={"Cat": [["0", "0"]]}),
        "features of 'Cat' are not rows of 2 numbers each: they are [['0', '0']]",
    ),
    "features of an unknown type": (
        garden(features={"Caat": [[0, 0]]}),
        "features of unknown entity type 'Caat'; allowed: 'Wall', 'Cat', 'Dog'; did you mean 'Cat'?",
    ),
    "too few global features": (
        garden(global_features=[0.0]),
        "global_features have shape (1, 1); expected (number of entities, 2): ['time', 'wind']",
    ),
    "a global feature that is NaN": (
        garden(global_features=[0.0, NAN]),
        "global feature 'wind' is nan; features must be finite numbers",
    ),
}
IDS = {
    "too few ids": (garden(ids={"Cat": ["a"]}), "entity type 'Cat' has 1 ids for 2 entities"),
    "an id twice across types": (
        garden(ids={"Cat": ["a", "d"], "Dog": ["d"]}),
        "id 'd' is given to two entities; ids must be unique across all types",
    ),
    "an id that cannot be one": (
        garden(ids={"Cat": [["a"], ["b"]]}),
        "ids are {'Cat': [['a'], ['b']]}; every id must be hashable",
    ),
}
VISIBLE = {
    "too few visibility flags": (
        garden(visible={"Cat": [T]}),
        "visible['Cat'] has shape (1,) and type bool; expected bools of shape (2,)",
    ),
}
ACTORS = {
    "an unknown action": (
        garden(actions={"wlak": CategoricalActionMask()}),
        "unknown action 'wlak'; allowed: 'walk', 'chase', 'weather'; did you mean 'walk'?",
    ),
    "an actor twice": (
        garden(actions=walk("a", "b", "a")),
        "action 'walk': actor_ids ['a', 'b', 'a'] lists an entity twice",
    ),
    "actors of a type twice": (
        garden(actions=walk(actor_types=["Cat", "Dog", "Cat"])),
        "action 'walk': actor_types ['Cat', 'Dog', 'Cat'] lists a type twice",
    ),
    "actors without ids": (
        garden(actions=walk(actor_types=["Wall"])),
        "action 'walk': entities of type 'Wall' are actors but have no ids; give Observation.ids['Wall']",
    ),
}
MASKS = {
    "a mask with too few choices": (
        garden(actions=walk("a", mask=[[T, F]])),
        "action 'walk': mask has shape (1, 2) and type bool; expected bools of shape (1, 3)",
    ),
    "a mask whose rows differ in length": (
        garden(actions=walk("a", "b", mask=[[T, T, T], [T]])),
        "action 'walk': mask is [[True, True, True], [True]]; expected bools of shape (2, 3)",
    ),
    "an actor whose choices are all masked": (
        garden(actions=walk("a", "b", mask=[[T, T, T], [F, F, F]])),
        "action 'walk': every one of the 3 choices of actor 'b' is masked; leave one open, or leave the actor out",
    ),
    "an actor whose actees are all masked": (
        garden(actions=chase(mask=[[F, F]])),
        "action 'chase': every one of the 2 actees of actor 'd' is masked; leave one open, or leave the actor out",
    ),
    "a global mask that closes everything": (
        garden(actions=weather([F, F])),
        "action 'weather': every one of the 2 choices of actor '__global__' is masked",
    ),
}
SCALARS = {
    "a reward that is NaN": (garden(reward=NAN), "reward is nan; it must be a finite number"),
    "a metric beyond all floats": (garden(metrics={"hp": 10**400}), "metrics['hp'] is 10000000000"),
}
WRONG = {**FEATURES, **IDS, **VISIBLE, **ACTORS, **MASKS, **SCALARS}


def pool(*scripts: list[Any]) -> ListEnv:
    envs = [Garden(script, SPACE, ACTIONS) for script in scripts]
    return ListEnv(making(*envs), len(envs), final_observations="all")


def nobody(num_envs: int) -> dict[str, RaggedBuffer[np.int64]]:
    return {name: RaggedBuffer.from_flattened(np.zeros((0, 1), np.int64), [0] * num_envs) for name in ACTIONS}


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (
            garden(features={"Cat": [[0, 1e39], [0, 0]], "Dog": [[0]]}),
            "feature 'y' of entity 0 of .*'Cat' is inf; .*float32",
        ),
        (garden(global_features=[0, -1e39]), "global feature 'wind' is -inf; .*float32 can hold"),
        (garden(reward=1e39), r"reward is 1e\+39; it must be a finite number that float32 can hold"),
    ],
)
def test_numbers_beyond_float32_are_refused(observation: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^Garden \(environment 1\): {message}"):
        pool([garden()], [observation]).reset()


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_in_the_first_observation_is_named(mistake: str) -> None:
    observation, message = WRONG[mistake]
    env = pool([garden()], [garden()], [observation])
    with pytest.raises(ValueError, match=f"^{re.escape('Garden (environment 2): ' + message)}"):
        env.reset()


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("mistake", ["a feature that is NaN", "a reward that is NaN"])
def test_a_mistake_in_a_later_observation_is_named(mistake: str, done: bool) -> None:
    observation, message = WRONG[mistake]
    env = pool([garden()], [garden(), replace(observation, done=done)])
    env.reset()
    with pytest.raises(ValueError, match=f"^{re.escape('Garden (environment 1): ' + message)}"):
        env.act(nobody(2))


def test_global_features_that_the_space_does_not_declare_are_refused() -> None:
    env = ListEnv(making(Garden([Observation(global_features=[1.0])])), 1)
    with pytest.raises(
        ValueError, match=r"Garden \(environment 0\): there are 1 global_features, and none in the space"
    ):
        env.reset()


@pytest.mark.parametrize(
    ("returned", "why"),
    [(None, "returned None; expected an Observation"), (garden(done=True), ".* expected .* that is not done")],
)
def test_an_episode_begins_with_an_observation_that_is_not_done(returned: Any, why: str) -> None:
    with pytest.raises(ValueError, match=rf"^Garden \(environment 1\): reset\(\) {why}"):
        pool([garden()], [returned]).reset()
    env = pool([garden()], [garden(), garden(done=True), returned])
    env.reset()
    with pytest.raises(ValueError, match=rf"^Garden \(environment 1\): reset\(\) {why}"):
        env.act(nobody(2))
    env = pool([garden()], [garden(), None])
    env.reset()
    with pytest.raises(ValueError, match=r"^Garden \(environment 1\): act\(\) returned None; expected an Observation"):
        env.act(nobody(2))


# --- The environment's own exceptions


class Fragile(Garden):
    def __init__(self) -> None:
        super().__init__([garden()], SPACE, ACTIONS)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        return Observation(truncated=True)

    def render(self) -> np.ndarray:
        raise RuntimeError("no screen")

    def state(self) -> dict[str, Any]:
        raise OSError("no disk")

    def load_state(self, state: Mapping[str, Any]) -> None:
        raise KeyError("position")


def test_every_method_of_an_environment_is_named_when_it_raises() -> None:
    env = ListEnv(Fragile, 2)
    env.reset()
    env_state = dict.fromkeys(("random", "observations", "numbers", "elapsed_step", "pending"), ())
    for act, error, note in (
        (pool([garden()], [garden()], [KeyError("x")]).reset, KeyError, "raised by Garden (environment 2) in reset()"),
        (lambda: env.act(nobody(2)), ValueError, "raised by Fragile (environment 0) in act()"),
        (lambda: env.render([1]), RuntimeError, "raised by Fragile (environment 1) in render()"),
        (lambda: (env.reset(), env.state()), OSError, "raised by Fragile (environment 0) in state()"),
        (
            lambda: env.load_state(env_state | {"environments": [{}, {}], "configured": [{}, {}]}),
            KeyError,
            "raised by Fragile (environment 0) in load_state()",
        ),
    ):
        with pytest.raises(error) as raised:
            act()
        assert raised.value.__notes__ == [note]
