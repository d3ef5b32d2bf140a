"""Entities with ids: numbers that stay with an entity for the whole episode, in batches and in plain observations."""

from typing import Any

import numpy as np

from entity_gym.actions import CategoricalAction
from entity_gym.batch.vec_obs import VecObs
from entity_gym.compiled import Categorical, CompiledEnvironment, Entity, new_id
from entity_gym.envs.skirmish import Skirmish
from entity_gym.pools.pool import ListEnv
from entity_gym.pools.slots import SlotOptions
from entity_gym.replay.build import build_view
from tests.entity_gym.compiled.comparing import Playing


class Queue(CompiledEnvironment):
    """A queue in which the first customer leaves in each step and another one joins: positions change, ids do not."""

    entities = {"Clerk": Entity(["busy"], max=1), "Customer": Entity(["served"], max=3, ids=True)}
    actions = {"Serve": Categorical(["slowly", "fast"], actors="Customer")}
    max_steps = 4
    state = [("customers", np.int64, (3,))]

    def reset(s: Any) -> None:
        for i in range(3):
            s.customers[i] = new_id(s)

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.customers[0] = s.customers[1]
        s.customers[1] = s.customers[2]
        s.customers[2] = new_id(s)
        return 0.0, False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Clerk = 1
        obs.Clerk[0, 0] = 1.0
        obs.n.Customer = 3
        for i in range(3):
            obs.Customer[i, 0] = 0.0
            obs.ids.Customer[i] = s.customers[i]


def ids_of(obs: VecObs, name: str) -> list[list[int]]:
    return [row[:, 0].tolist() for row in obs.ids[name]]


def test_batches_have_the_ids_that_observe_has_written_and_they_begin_anew_with_each_episode() -> None:
    playing = Playing(Queue().make_slots(2, SlotOptions(final_observations="all", compile=False)))
    assert ids_of(playing.obs, "Customer") == [[0, 1, 2]] * 2
    assert list(playing.obs.ids) == ["Customer"]  # clerks have none
    seen = [playing.step() for _ in range(4)]
    assert [ids_of(obs, "Customer")[0] for obs in seen] == [[1, 2, 3], [2, 3, 4], [3, 4, 5], [0, 1, 2]]
    assert seen[-1].final is not None and ids_of(seen[-1].final, "Customer")[0] == [4, 5, 6]
    assert seen[0].ids["Customer"].values.dtype == np.int64


def test_a_plain_observation_names_entities_by_their_ids() -> None:
    env = Queue().as_environment()
    assert env.reset().ids == {"Clerk": [("Clerk", 0)], "Customer": [("Customer", i) for i in range(3)]}
    obs = env.show()
    obs = env.act({"Serve": CategoricalAction(obs.ids["Customer"], np.zeros(3, np.int64))})
    assert obs.ids["Customer"] == [("Customer", i) for i in (1, 2, 3)]
    obs = env.act(
        {"Serve": CategoricalAction([("Customer", 3), ("Customer", 1), ("Customer", 2)], np.ones(3, np.int64))}
    )
    assert obs.ids["Customer"] == [("Customer", i) for i in (2, 3, 4)]


def test_ids_of_skirmish_reach_its_replays() -> None:
    pool = ListEnv(Skirmish(num_units=2, opponent=0), 1, compile=False)
    obs = pool.reset()
    view = build_view(obs, 0, pool.obs_space(), pool.slots.world_ids(0))
    assert (
        view["ids"]
        == {"Unit": [str(number) for number in obs.ids["Unit"].values[:, 0]]}
        == {"Unit": ["0", "1", "2", "3"]}
    )
