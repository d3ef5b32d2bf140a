"""The contract that every kind of action keeps: declared, offered, saved, sent, checked, and told to the environment."""

import functools
import json
from typing import Any

import numpy as np
import pytest

from entity_gym import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntitiesActionMask,
    SelectEntitiesActionSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.actions.choices import random_actions
from entity_gym.batch.batching import batch_observations
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.saving import (
    observation_from_state,
    observation_to_state,
    spaces_difference,
    spaces_from_dict,
    spaces_to_dict,
)
from entity_gym.batch.vec_obs import VecObs
from entity_gym.compiled import CompiledEnvironment
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
from entity_gym.pools.vec_env import VecEnv
from tests.entity_gym.actions.depot import Depot
from tests.entity_gym.actions.harbour import Harbour
from tests.entity_gym.pools.kinds_of_pools import contents
from tests.entity_gym.pools.processes.thread_workers import threads as threads
from tests.worlds import Script, making

YARD = ObsSpace({"Wall": Entity([]), "Cat": Entity(["x"])})
T, F = True, False

#: Kind -> a space, one that differs from it, and what offers the action to cats 1 and 0.
KINDS: dict[str, tuple[ActionSpace, ActionSpace, Any]] = {
    "categorical": (
        CategoricalActionSpace(["stay", "go", "hop"]),
        CategoricalActionSpace(["stay", "go"]),
        CategoricalActionMask(actor_ids=["cat1", "cat0"], mask=[[T, F, T], [T, T, T]]),
    ),
    "select entity": (
        SelectEntityActionSpace(),
        SelectEntityActionSpace(nobody=True),
        SelectEntityActionMask(actor_ids=["cat1", "cat0"], actee_types=["Cat"], mask=[[T, F], [T, T]]),
    ),
    "select entity, not oneself, or nobody": (
        SelectEntityActionSpace(exclude_self=True, nobody=True),
        SelectEntityActionSpace(exclude_self=True),
        SelectEntityActionMask(actor_ids=["cat1", "cat0"], actee_types=["Cat"]),
    ),
    "select entities": (
        SelectEntitiesActionSpace(exclude_self=True),
        SelectEntitiesActionSpace(exclude_self=True, max=1),
        SelectEntitiesActionMask(actor_ids=["cat1", "cat0"], actee_types=["Cat"], mask=[[T, F], [T, T]]),
    ),
    "select entities in order": (
        SelectEntitiesActionSpace(min=1, ordered=True),
        SelectEntitiesActionSpace(ordered=True),
        SelectEntitiesActionMask(actor_ids=["cat1", "cat0"], actee_types=["Cat"]),
    ),
    "continuous": (
        ContinuousActionSpace([-1, 0], [1, np.inf], ["turn", "thrust"]),
        ContinuousActionSpace([-1, 0], [1, 2], ["turn", "thrust"]),
        ContinuousActionMask(actor_ids=["cat1", "cat0"]),
    ),
    "global categorical": (
        GlobalCategoricalActionSpace(["sun", "rain"]),
        GlobalCategoricalActionSpace(["sun", "snow"]),
        GlobalCategoricalActionMask(mask=[T, F]),
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def yard(offer: Any = None, walls: int = 1, cats: int = 2) -> Observation:
    """The walls come first, so cat i has entity index walls + i."""
    return Observation(
        features={"Wall": np.zeros((walls, 0)), "Cat": [[0.0]] * cats},
        ids={"Cat": [f"cat{i}" for i in range(cats)]},
        actions={} if offer is None else {"do": offer},
    )


def batch(kind: str, *frames: Observation) -> VecObs:
    return batch_observations(frames, YARD, {"do": KINDS[kind][0]})


def pool(kind: str) -> tuple[ListEnv, VecObs, list[Script]]:
    """Two environments: one that does not offer the action, and one that does."""
    space, _, offer = KINDS[kind]
    envs = [Script([obs, Observation()], YARD, {"do": space}) for obs in (yard(), yard(offer))]
    made = ListEnv(making(*envs), 2)
    return made, made.reset(), envs


@every_kind
def test_a_space_comes_back_from_json_and_a_change_is_noticed(kind: str) -> None:
    space, other, _ = KINDS[kind]
    saved, changed = (spaces_to_dict(YARD, {"do": each}) for each in (space, other))
    text = json.dumps(saved, allow_nan=False)
    assert spaces_from_dict(json.loads(text)) == (YARD, {"do": space})
    assert spaces_difference(json.loads(text), saved) is None
    assert "actions['do'] was" in (spaces_difference(saved, changed) or "")
    assert space != other and hash(space) == hash(spaces_from_dict(saved)[1]["do"])


@every_kind
def test_actors_are_entity_indices_in_the_order_of_the_offer(kind: str) -> None:
    space, _, offer = KINDS[kind]
    mask = batch(kind, yard(), yard(offer, walls=3)).action_masks["do"]
    assert mask.actors.to_list() == [[], [[5]] if space.is_global else [[4], [3]]]
    assert (mask.actees is not None) == space.selects
    if not space.is_global:
        actees = {"actee_types": ["Cat"]} if space.selects else {}
        everybody = batch(kind, yard(type(offer)(actor_types=["Cat"], **actees))).action_masks["do"]
        assert everybody.actors.to_list() == [[[1], [2]]]


@every_kind
def test_an_offer_that_does_not_fit_is_refused(kind: str) -> None:
    space, _, offer = KINDS[kind]
    wrong = CategoricalActionMask() if not isinstance(offer, CategoricalActionMask) else ContinuousActionMask()
    name = type(space).__name__
    with pytest.raises(ValueError, match=f"action 'do': a {type(wrong).__name__} was given; {name} takes a"):
        batch(kind, yard(wrong))
    if not space.is_global:
        with pytest.raises(ValueError, match="action 'do': actor_ids names 'cat7', which no entity has"):
            batch(kind, yard(type(offer)(actor_ids=["cat7"])))
        with pytest.raises(ValueError, match="unknown entity type 'Cta'; .*did you mean 'Cat'"):
            batch(kind, yard(type(offer)(actor_types=["Cta"])))
        with pytest.raises(ValueError, match="was given both actor_ids"):
            type(offer)(actor_ids=[], actor_types=["Cat"])


@every_kind
def test_frames_are_put_together_and_taken_out(kind: str) -> None:
    offer = KINDS[kind][2]
    obs = batch(kind, yard(offer), yard(), yard(offer, walls=2))
    swapped = VecObs.cat([obs.gather(np.array([2])), obs.gather(np.array([0, 1]))])
    assert swapped.action_masks["do"] == batch(kind, yard(offer, walls=2), yard(offer), yard()).action_masks["do"]


@every_kind
def test_an_observation_is_saved_with_its_offer(kind: str) -> None:
    obs = yard(KINDS[kind][2])
    back = observation_from_state(observation_to_state(obs))
    assert batch(kind, back).action_masks["do"] == batch(kind, obs).action_masks["do"]


@every_kind
def test_random_actions_are_allowed_and_the_environment_is_told_in_its_own_ids(kind: str) -> None:
    space = KINDS[kind][0]
    env, obs, (silent, offering) = pool(kind)
    actions = random_actions(obs, np.random.default_rng(0), {"do": space})
    assert actions["do"].values.dtype == np.dtype(np.float32 if not space.discrete else np.int64)
    again = actions["do"].clone()
    env.act(actions)
    assert actions["do"] == again
    told = offering.received[-1]["do"]
    assert silent.received == [{}]
    if not space.is_global:
        assert list(told.actors) == ["cat1", "cat0"]


@every_kind
def test_choices_that_random_play_rarely_takes_are_allowed(kind: str) -> None:
    env, obs, _ = pool(kind)
    for _, values in KINDS[kind][0].rare_choices(obs.action_masks["do"]):
        env.slots.check({"do": type(random_of(obs, kind)).from_flattened(values, [0, len(values)])}, np.arange(2))


def random_of(obs: VecObs, kind: str) -> RaggedBuffer[Any]:
    return random_actions(obs, np.random.default_rng(0), {"do": KINDS[kind][0]})["do"]


@every_kind
def test_every_mistake_is_refused_and_nobody_steps(kind: str) -> None:
    env, obs, envs = pool(kind)
    good = random_of(obs, kind)
    for value in (9, -2, *([] if KINDS[kind][0].discrete else [np.nan, np.inf, np.nextafter(np.float32(-1), -2)])):
        values = good.values.copy()
        values[-1, 0] = value
        with pytest.raises(ValueError, match=r"Script \(environment 1\): action 'do' of entity \d"):
            env.act({"do": RaggedBuffer(values, good.offsets)})
    num, kind_of = len(good.values), type(good)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "action 'do' is missing"),
        ({"do": good, "od": good}, "unknown action 'od'; .*did you mean 'do'"),
        ({"do": good[:1]}, "action 'do' has 1 sequences for 2 environments"),
        (
            {"do": kind_of.from_flattened(good.values[:-1], [0, num - 1])},
            rf"has {num - 1} values, and {num} are needed",
        ),
        (
            {"do": kind_of.from_flattened(good.values, [1, num - 1])},
            r"environment 0\): .* has 1 values, and 0 are needed",
        ),
        ({"do": good.values}, "(?s)action 'do' is .*; expected a RaggedBuffer"),
        (
            {"do": RaggedBuffer.from_flattened(good.values > 0, good.size1())},
            "expected a RaggedBuffer of (int64|float32) with",
        ),
        ({"do": kind_of.from_flattened(np.zeros((num, 3), good.dtype), good.size1())}, "expected a RaggedBuffer"),
    ]
    for actions, message in wrong:
        with pytest.raises(ValueError, match=message):
            env.act(actions)
    assert [each.received for each in envs] == [[], []]
    env.act({"do": good})  # and it goes on


# --- The same in every pool

NUM_ENVS = 5
WORLDS = [Harbour, Depot]
POOLS = {"threads": {"num_threads": 2}, "processes": {"num_processes": 2}}


def played(env: VecEnv, steps: int = 12) -> list[Any]:
    rng = np.random.default_rng(0)
    seen = [env.reset(seed=1)]
    for _ in range(steps):
        seen.append(env.act(random_actions(seen[-1], rng, env.action_space())))
    for obs in [*seen, *(obs.final for obs in seen if obs.final is not None)]:
        obs.ids = {}  # as a plain environment, a compiled world names its entities
    return contents(seen)


@functools.cache
def as_plain_python(world: type[CompiledEnvironment]) -> list[Any]:
    return played(ThreadedVecEnv(world, NUM_ENVS, compile=False))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", POOLS)
def test_every_pool_shows_and_pays_the_same(name: str, world: type[CompiledEnvironment], threads: None) -> None:
    with ThreadedVecEnv(world().as_environment, NUM_ENVS, **POOLS[name]) as env:  # type: ignore[arg-type]
        assert played(env) == as_plain_python(world)
