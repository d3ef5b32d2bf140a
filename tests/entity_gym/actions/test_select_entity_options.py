"""Selecting entities without oneself, and nobody at all times: what is open, what is refused, and what environments are told."""

from typing import Any

import numpy as np
import pytest

from entity_gym import (
    Entity,
    Observation,
    ObsSpace,
    SelectEntityAction,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.actions.choices import random_actions
from entity_gym.batch.batching import batch_observations
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecActionMask, VecObs
from entity_gym.compiled import SelectEntity
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
from tests.entity_gym.actions.harbour import Harbour
from tests.worlds import Script, choose, making

YARD = ObsSpace({"Wall": Entity([]), "Cat": Entity([])})
PLAIN, OTHERS, FREE = (
    SelectEntityActionSpace(),
    SelectEntityActionSpace(exclude_self=True),
    SelectEntityActionSpace(nobody=True),
)
BOTH = SelectEntityActionSpace(exclude_self=True, nobody=True)
T, F = True, False


def yard(cats: int, *, mask: Any = None, actees: Any = None, walls: int = 1) -> Observation:
    """The walls come first, so cat i has entity index walls + i."""
    offered = SelectEntityActionMask(actor_types=["Cat"], actee_ids=actees, mask=mask)
    if actees is None:
        offered.actee_types = ["Cat"]
    features = {"Wall": np.zeros((walls, 0)), "Cat": np.zeros((cats, 0))}
    ids = {"Wall": [f"wall{i}" for i in range(walls)], "Cat": [f"cat{i}" for i in range(cats)]}
    return Observation(features=features, ids=ids, actions={"groom": offered})


def offered(space: SelectEntityActionSpace, *frames: Observation) -> VecActionMask:
    mask = batch_observations(frames, YARD, {"groom": space}).action_masks["groom"]
    return mask


def pairs(mask: VecActionMask) -> list[list[bool]] | None:
    return None if mask.mask is None else [frame[:, 0].tolist() for frame in mask.mask]


def pool(space: SelectEntityActionSpace, *frames: Observation) -> tuple[ListEnv, list[Script]]:
    envs = [Script([obs, Observation()], YARD, {"groom": space}) for obs in frames]
    vec_env = ListEnv(making(*envs), len(envs))
    vec_env.reset()
    return vec_env, envs


# --- The space


def test_options_are_off_and_are_bools() -> None:
    assert SelectEntityActionSpace(exclude_self=False, nobody=False) == PLAIN != OTHERS
    with pytest.raises(ValueError, match="SelectEntityActionSpace.nobody is 1; it must be True or False"):
        SelectEntityActionSpace(nobody=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="SelectEntityActionSpace.exclude_self is 'no'"):
        SelectEntity(actors="Ship", actees="Ship", exclude_self="no")  # type: ignore[arg-type]


# --- What is open


def test_pairs_of_an_actor_with_itself_are_closed() -> None:
    assert pairs(offered(OTHERS, yard(2))) == [[F, T, T, F]]
    assert pairs(offered(OTHERS, yard(2, mask=np.array([[T, F], [T, T]])))) == [[F, F, T, F]]
    assert pairs(offered(OTHERS, yard(2, actees=["cat1", "wall0"]))) == [[T, T, F, T]]
    assert pairs(offered(OTHERS, yard(1), yard(0), yard(2, actees=["wall0"]))) == [[F], [], [T, T]]


def test_everything_may_be_masked_only_where_nobody_is_a_choice() -> None:
    closed = yard(2, mask=np.array([[F, F], [T, T]]))
    with pytest.raises(ValueError, match="every one of the 2 actees of actor 'cat0' is masked"):
        offered(PLAIN, closed)
    assert pairs(offered(OTHERS, closed)) == [[F, F, T, F]]
    assert pairs(offered(FREE, closed)) == [[F, F, T, T]]


# --- What is allowed


def allowed(space: SelectEntityActionSpace, obs: Observation) -> list[list[int]]:
    """Return for each actor the values from -2 to 4 that a pool takes."""
    env, _ = pool(space, obs)
    good = random_actions(env.show(np.zeros(1, int)), np.random.default_rng(0), {"groom": space})["groom"].values[:, 0]
    found: list[list[int]] = []
    for actor in range(len(good)):
        found.append([])
        for value in range(-2, 5):
            tried = good.copy()
            tried[actor] = value
            try:
                env.slots.check(choose("groom", [tried.tolist()]), np.zeros(1, int))
                found[-1].append(value)
            except ValueError:
                pass
    return found


@pytest.mark.parametrize(
    ("space", "obs", "expected"),
    [
        (PLAIN, yard(2), [[1, 2], [1, 2]]),
        (OTHERS, yard(2), [[2], [1]]),
        (FREE, yard(2), [[-1, 1, 2], [-1, 1, 2]]),
        (BOTH, yard(2), [[-1, 2], [-1, 1]]),
        (BOTH, yard(2, mask=np.array([[T, F], [T, T]])), [[-1], [-1, 1]]),
        (BOTH, yard(1), [[-1]]),
        (OTHERS, yard(2, mask=np.array([[T, F], [T, T]])), [[-1], [1]]),
        (FREE, yard(1, mask=np.array([[F]])), [[-1]]),
        (FREE, yard(2, actees=[]), [[-1], [-1]]),
    ],
)
def test_a_pool_takes_what_is_open_and_nothing_else(
    space: SelectEntityActionSpace, obs: Observation, expected: list[list[int]]
) -> None:
    assert allowed(space, obs) == expected


def test_what_may_be_selected_is_said() -> None:
    env, _ = pool(BOTH, yard(2))
    with pytest.raises(ValueError, match="of entity 1 is 1; expected the index of an entity that .*, or -1 for nobody"):
        env.act(choose("groom", [[1, -1]]))
    env, _ = pool(OTHERS, yard(2))
    with pytest.raises(ValueError, match="of entity 1 is -1; expected .* or -1 where it may select none"):
        env.act(choose("groom", [[-1, 1]]))


def test_an_actor_that_selects_nobody_is_listed_with_none() -> None:
    env, (chosen, had_to) = pool(BOTH, yard(3), yard(1))
    env.act(choose("groom", [[-1, 3, -1], [-1]]))
    assert chosen.received == [{"groom": SelectEntityAction(["cat0", "cat1", "cat2"], [None, "cat2", None])}]
    assert had_to.received == [{"groom": SelectEntityAction(["cat0"], [None])}]


# --- Compiled environments


def told(mask: VecActionMask, *, nobody: bool) -> list[set[int]]:
    """Return for each actor the selections that the definition allows."""
    result = []
    for i in range(len(mask.actors)):
        actees = mask.actees[i].values[:, 0]
        assert mask.mask is not None
        for row in mask.mask[i].values.reshape(-1, len(actees)):
            result.append({*actees[row].tolist(), *([-1] if nobody or not row.any() else [])})
    return result


@pytest.mark.parametrize("mute", [True, False])
def test_compiled_worlds_close_and_take_what_a_pool_of_plain_environments_does(mute: bool) -> None:
    check_selections(mute, compile_=False)


def check_selections(mute: bool, *, compile_: bool) -> None:
    env = ThreadedVecEnv(Harbour(mute=mute), 3, compile=compile_)
    plain = ListEnv(Harbour(mute=mute).as_environment, 3)
    obs, other = env.reset(seed=5), plain.reset(seed=5)
    rng = np.random.default_rng(0)
    for _ in range(6):
        for name in ("tow", "call"):
            assert obs.action_masks[name] == other.action_masks[name]
        actions = random_actions(obs, rng, env.action_space())
        _try_everything(env, obs, actions)
        obs, other = env.act(actions), plain.act(actions)
        assert obs.reward.tolist() == other.reward.tolist()


def _try_everything(env: ThreadedVecEnv, obs: VecObs, actions: dict[str, Any]) -> None:
    """Check every value of every actor without stepping."""
    for name in ("tow", "call"):
        for item, open_ in enumerate(told(obs.action_masks[name], nobody=name == "tow")):
            for value in range(-2, 7):
                tried = actions[name].clone()
                tried.values[item] = value
                try:
                    env.slots.check({**actions, name: tried}, np.arange(3))
                    was_taken = True
                except ValueError:
                    was_taken = False
                assert was_taken == (value in open_), (name, item, value)


def test_the_rules_of_a_compiled_world_see_minus_one() -> None:
    # One ship: it tows nobody and has nobody to call, so the reward is its turn + 2 * thrust + 100 + 1000.
    env = ThreadedVecEnv(Harbour(ships=1), 1, compile=False)
    obs = env.reset()
    actions = random_actions(obs, np.random.default_rng(0), env.action_space())
    actions["steer"].values[:] = (0.5, 1)
    assert actions["call"].to_list() == [[[-1]]]
    actions["tow"] = RaggedBuffer.from_array([[[-1]]])
    assert env.act(actions).reward.tolist() == [1102.5]
