"""Environments that bring slots of their own: every pool uses them; `examples/walks.py` is the example, over NumPy arrays."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import numpy as np
import pytest

from entity_gym import make as make_env
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
from examples.walks import MAX_STEPS, Walks
from tests.entity_gym.pools.kinds_of_pools import content, contents, play_together
from tests.entity_gym.pools.processes.thread_workers import threads as threads

# --- A world over NumPy arrays

Walk = functools.partial(ListEnv, functools.partial(Walks, length=MAX_STEPS), seed=1, final_observations="all")


@pytest.mark.parametrize(
    "make",
    [
        lambda: ThreadedVecEnv(functools.partial(Walks, length=MAX_STEPS), 5, 2, seed=1, final_observations="all"),
        lambda: ThreadedVecEnv(
            functools.partial(Walks, length=MAX_STEPS), 5, num_processes=2, seed=1, final_observations="all"
        ),
        lambda: make_env("examples.walks:Walks", 5, seed=1, final_observations="all", length=MAX_STEPS),
    ],
    ids=["threads", "processes", "make"],
)
def test_a_world_over_arrays_plays_alike_in_every_pool(make: Any, threads: None) -> None:
    with Walk(num_envs=5) as env, make() as other:
        seen = play_together(env, 30)
        assert contents(play_together(other, 30)) == contents(seen)
        state = pickle.loads(pickle.dumps(env.state()))
        shown = other.load_state(state)
        expected = contents(play_together(env, 30))
        seen[-1].final = None  # belongs to the step that was taken before saving
        assert content(shown) == content(seen[-1])
        assert contents(play_together(other, 30)) == expected
        with pytest.raises(ValueError, match=r"does not implement configure\(\), so it takes no env_info"):
            other.configure([{"length": 1}] * 5)
    # Computed by hand: a walk pays at the goal alone, and its last frame offers nobody an action.
    x = {name: np.stack([obs.features[name].values[:, 0] for obs in seen]) for name in ("Walker", "Goal")}
    assert (np.abs(x["Goal"]) <= MAX_STEPS).all() and (x["Walker"] != x["Goal"]).all()
    for before, obs in zip(seen, seen[1:], strict=False):
        ended = before.elapsed_step + 1 == np.where(obs.elapsed_step == 0, before.elapsed_step + 1, 0)
        assert (ended == obs.done).all()
        assert (obs.final is None) == (not obs.done.any())
        if obs.final is not None:
            at_goal = (obs.final.features["Walker"].values == obs.final.features["Goal"].values)[:, 0]
            assert (at_goal == (obs.reward[obs.final.env_id] == 1)).all() and (at_goal != obs.final.truncated).all()
            assert obs.final.action_masks["walk"].actors.items() == 0
