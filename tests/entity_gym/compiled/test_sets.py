"""Sets of entities in compiled worlds: what `step` reads, what is refused, and mistakes in the rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from entity_gym import SelectEntitiesAction
from entity_gym.actions.choices import random_actions
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecActionMask, VecObs
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
from tests.entity_gym.actions.depot import WEIGHTS, Depot, LooksBack, LooksBackAtNobody, NoSuchCost
from tests.entity_gym.compiled.view import CompiledView
from tests.entity_gym.pools.kinds_of_pools import content


def rewards(obs: VecObs, actions: dict[str, Any]) -> list[float]:
    """Return what the depot pays, from what was sent."""
    earned = np.zeros(len(obs))
    for name, buffer in actions.items():
        mask = obs.action_masks[name]
        assert mask.actees is not None
        for i in range(len(obs)):
            numbers = buffer[i].values.reshape(mask.actors.size1()[i], mask.actees.size1()[i])
            places = [1 + np.arange(size) for size in numbers.shape]
            earned[i] += WEIGHTS[name] * (numbers * places[0][:, None] * places[1]).sum()
    return earned.tolist()


@pytest.mark.parametrize("num_threads", [1, 2])
def test_step_reads_the_number_of_each_pair(num_threads: int) -> None:
    check_rewards(num_threads, compile=False)


def check_rewards(num_threads: int = 1, *, compile: bool) -> None:
    seen = dict.fromkeys(Depot.actions, 0)
    with ThreadedVecEnv(Depot, 5, num_threads, compile=compile) as pool:
        obs, rng = pool.reset(seed=3), np.random.default_rng(0)
        for _ in range(20):
            actions = random_actions(obs, rng, pool.action_space())
            for name, buffer in actions.items():
                seen[name] = max(seen[name], buffer.values.max(initial=0))
            expected = rewards(obs, actions)
            obs = pool.act(actions)
            assert obs.reward.tolist() == expected
    assert seen["load"] > 40 and seen["check"] > 60 and seen["tow"] > 60, "there were large sets"


def test_some_of_the_environments_can_be_stepped() -> None:
    with ThreadedVecEnv(Depot(trucks=2), 4, compile=False) as pool:
        obs = pool.reset(seed=1).gather(np.array([3, 1]))
        actions = random_actions(obs, np.random.default_rng(0), pool.action_space())
        assert pool.act(actions, [3, 1]).reward.tolist() == rewards(obs, actions)


def test_environments_can_be_stepped_without_waiting() -> None:
    rng = np.random.default_rng(0)
    with ThreadedVecEnv(Depot(trucks=2), 4, num_threads=2, batch_size=2, compile=False) as pool:
        pool.async_reset()
        expected: dict[int, float] = {}
        for _ in range(12):
            obs = pool.recv()
            for i, reward in zip(obs.env_id.tolist(), obs.reward.tolist(), strict=True):
                assert reward == expected.get(i, 0.0)
            actions = random_actions(obs, rng, pool.action_space())
            expected |= dict(zip(obs.env_id.tolist(), rewards(obs, actions), strict=True))
            pool.send(actions, obs.env_id)


# --- What is refused


def of_each(mask: VecActionMask) -> list[tuple[int, int]]:
    """Return for each actor where its numbers begin and end."""
    ends = np.cumsum(np.bincount(mask.pair_actors, minlength=mask.actors.items()))
    return list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))


def test_what_a_pool_of_plain_environments_refuses_is_refused_with_the_same_words() -> None:
    check_refusals(compile=False)


def check_refusals(*, compile: bool) -> None:
    """Send actions in which numbers of one actor are no longer what is allowed: others, exchanged, or all 0."""
    source, rng, outcomes = Depot(trucks=2), np.random.default_rng(0), {True: 0, False: 0}
    listed = ListEnv(source.as_environment, 2, first_env=30)
    with ThreadedVecEnv(source, 2, first_env=30, compile=compile) as pool:
        obs, _ = pool.reset(seed=5), listed.reset(seed=5)
        before, ids = content(pool.slots.state()), np.arange(2)
        for name in list(Depot.actions) * 40:
            actions = random_actions(obs, rng, pool.action_space())
            values, places = actions[name].values.copy(), of_each(obs.action_masks[name])
            first, end = places[rng.integers(len(places))]
            some = rng.integers(first, end, 2) if end > first else np.zeros(0, np.int64)
            how = rng.integers(5)
            if how == 0:
                values[first:end] = 0
            elif how <= 2:
                values[some] = values[some[::-1]]
            else:
                values[some, 0] = rng.choice([0, 1, 2, 3, 61, 62, 66, -1, 2**40, -(2**63)], len(some))
            actions[name] = RaggedBuffer(values, actions[name].offsets)
            refused = []
            for each in (pool, listed):
                try:
                    each.slots.check(actions, ids)
                    refused.append("")
                except ValueError as error:
                    refused.append(str(error))
            assert refused[0] == refused[1], (name, values[first:end, 0].tolist())
            outcomes[refused[0] == ""] += 1
            if refused[0]:
                assert refused[0].startswith(
                    f"Depot (environment 3{int(first >= actions[name].offsets[1])}): action {name!r}"
                )
                with pytest.raises(ValueError):
                    pool.act(actions)
        assert content(pool.slots.state()) == before
    assert min(outcomes.values()) > 40, outcomes


# --- As a plain environment


def depot(**parameters: Any) -> CompiledView:
    env = CompiledView(Depot(trucks=2, crates=3, **parameters))
    env.rng = np.random.default_rng(0)
    env.reset()
    return env


TRUCKS, CRATES = [("Truck", 0), ("Truck", 1)], [("Crate", 0), ("Crate", 1), ("Crate", 2)]
#: What must be selected in the first step.
NEEDED = {
    "meet": SelectEntitiesAction(TRUCKS, [TRUCKS[1:], TRUCKS[:1]]),
    "check": SelectEntitiesAction(TRUCKS, [CRATES[2:], CRATES[:1]]),
}


def test_sets_are_given_by_ids_and_an_actor_that_is_left_out_selects_nothing() -> None:
    env, other = depot(), depot()
    needed = 2 * (1 * 2 + 2 * 1) + 4 * (2 * 1 + 1 * 3)  # truck 0 is the second to check; the last crate is the first
    assert env.act(NEEDED).reward == needed
    paint = SelectEntitiesAction([TRUCKS[1]], [[CRATES[2], TRUCKS[0]]])
    load = SelectEntitiesAction([TRUCKS[1], TRUCKS[0]], [[CRATES[1], CRATES[0]], []])
    # truck 1 paints entities 4 and 0, and loads crate 1 before crate 0
    assert other.act({**NEEDED, "paint": paint, "load": load}).reward == needed + 2 * (5 + 1) + 3 * 2 * (1 * 2 + 2 * 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"paint": SelectEntitiesAction(TRUCKS, [[("Crate", 7)], []])}, r"Depot: action 'paint' selects \('Crate', 7\), which"),
        ({"load": SelectEntitiesAction(TRUCKS, [TRUCKS, []])}, r"action 'load' selects \('Truck', 0\), which was not offered"),
        ({"paint": SelectEntitiesAction(TRUCKS, [CRATES[:1] * 2, []])}, r"action 'paint' selects \('Crate', 0\) twice"),
        ({"paint": SelectEntitiesAction(TRUCKS, [[]])}, r"action 'paint' has 1 sets for 2 actors"),
        ({"paint": SelectEntitiesAction([("Truck", 2)], [[]])}, r"action 'paint' names the actor \('Truck', 2\), which was not"),
        ({"paint": SelectEntitiesAction(TRUCKS[:1] * 2, [CRATES, TRUCKS])}, r"action 'paint' names an actor twice: \[\('Tr"),
        ({"load": SelectEntitiesAction(TRUCKS, [CRATES[:1], []])}, r"action 'load' of entity 0 is \[1, 0, 0\], .*places"),
        ({"meet": SelectEntitiesAction([], [])}, r"action 'meet' of entity 0 is \[0, 0\], .* for 1 to 1 open actees"),
    ],
)  # fmt: skip
def test_a_set_that_was_not_offered_is_refused_and_nothing_happens(change: dict[str, Any], message: str) -> None:
    env = depot()
    before = content(env.state())
    with pytest.raises(ValueError, match=message):
        env.act({**NEEDED, **change})
    assert content(env.state()) == before


# --- Rules


def test_only_where_nobody_may_be_selected_a_negative_index_is_a_mistake() -> None:
    with ThreadedVecEnv(LooksBack, 1, compile=False) as pool:
        pool.reset()
        meet = RaggedBuffer.from_array(np.array([[[0], [1], [0], [0]]]))
        assert pool.act({"meet": meet}).reward.tolist() == [2]
    with ThreadedVecEnv(LooksBackAtNobody, 1, compile=False) as pool:
        with pytest.raises(IndexError, match="the index -1 is negative; -1 stands for nobody"):
            pool.reset()


def test_a_cost_that_is_no_feature_is_refused() -> None:
    with pytest.raises(ValueError, match=r"NoSuchCost: action 'meet': cost='toll' is no feature; allowed: 'x'"):
        ThreadedVecEnv(NoSuchCost, 1, compile=False)
