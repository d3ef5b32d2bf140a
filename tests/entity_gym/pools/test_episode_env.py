"""One episode in each environment: the batch shrinks until none is running."""

import numpy as np
import pytest

from entity_gym.actions.choices import random_actions
from entity_gym.batch.vec_obs import VecObs
from entity_gym.pools.episodes import EpisodeVecEnv
from entity_gym.pools.pool import ListEnv
from tests.entity_gym.pools.kinds_of_pools import Counter, add, content, pool_threads, totals
from tests.worlds import Zoo, making

NUM_THREADS = [1, 3]


def counters(*limits: int, num_threads: int = 1) -> EpisodeVecEnv:
    return EpisodeVecEnv(making(*(Counter(limit) for limit in limits)), len(limits), num_threads)


@pytest.mark.parametrize("num_threads", NUM_THREADS)
def test_the_batch_shrinks_as_episodes_end(num_threads: int) -> None:
    env = counters(2, 1, 3, num_threads=num_threads)
    obs, running = env.reset()
    assert (totals(obs), running.tolist(), len(env)) == ([0, 0, 0], [0, 1, 2], 3)

    (obs, was_running), (running_obs, still_running) = env.step(add(1, 2, 1))
    assert (totals(obs), was_running.tolist(), obs.done.tolist()) == ([1, 2, 1], [0, 1, 2], [False, True, False])
    assert (totals(running_obs), still_running.tolist()) == ([1, 1], [0, 2])

    (obs, was_running), (running_obs, still_running) = env.step(add(1, 2))
    assert (totals(obs), was_running.tolist(), obs.done.tolist()) == ([2, 3], [0, 2], [True, False])
    assert (totals(running_obs), still_running.tolist()) == ([3], [2])

    (obs, was_running), (running_obs, still_running) = env.step(add(2))
    assert (totals(obs), was_running.tolist(), obs.done.tolist()) == ([5], [2], [True])
    assert (totals(running_obs), still_running.tolist()) == ([], [])
    env.close()
    assert pool_threads() == []


def test_the_last_step_has_everything_but_actions() -> None:
    env = counters(1, 2)
    env.reset()
    before, after = env.step(add(2, 1))
    obs = before.obs
    assert (obs.reward.tolist(), obs.done.tolist(), obs.truncated.tolist()) == ([2, 1], [True, False], [True, False])
    assert obs.elapsed_step.tolist() == [1, 1]
    assert (obs.end_of_episode_info, obs.env_id.tolist(), obs.final) == ({0: {"total": 2}}, [0, 1], None)
    assert obs.action_masks["add"].actors.to_list() == [[], [[0]]]
    assert (after.obs.end_of_episode_info, after.obs.env_id.tolist()) == ({}, [1])
    assert after.obs.action_masks["add"].actors.to_list() == [[[0]]]


def test_what_is_returned_does_not_change_afterwards() -> None:
    env = counters(1, 2)
    obs, running = env.reset()
    first = content(obs)
    before, _ = env.step(add(1, 1))
    running[:] = 7
    before.env_id[:] = 7
    assert env.step(add(1)).was_running.env_id.tolist() == [1]
    env.reset()
    assert content(obs) == first
    assert before.obs.end_of_episode_info == {0: {"total": 1}}


def test_nobody_running_cannot_be_stepped() -> None:
    env = counters(1)
    with pytest.raises(ValueError, match="step was called before reset"):
        env.step(add(1))
    env.reset()
    env.step(add(1))
    with pytest.raises(ValueError, match="every episode has ended; call reset to start new ones"):
        env.step(add(1))
    with pytest.raises(ValueError, match="every episode has ended"):
        env.step({})
    assert totals(env.reset().obs) == [0]


def test_an_error_ends_the_round_and_reset_begins_another() -> None:
    env = EpisodeVecEnv(making(Counter(), Counter(error=ZeroDivisionError("oh no"))), 2)
    env.reset()
    with pytest.raises(ValueError, match=r"Counter \(environment 1\): action 'add' of entity 0 is 9"):
        env.step(add(1, 9))
    with pytest.raises(ZeroDivisionError, match="oh no"):
        env.step(add(1, 2))
    with pytest.raises(ValueError, match="call reset first"):
        env.step(add(1, 1))
    env.reset()
    assert totals(env.step(add(1, 1)).still_running.obs) == [1, 1]


def test_some_environments_can_be_started_alone() -> None:
    # 5 episodes on 3 environments are 3, and then 2
    env = counters(1, 2, 1)
    obs, running = env.reset(env_id=[2, 1])
    assert (obs.env_id.tolist(), running.tolist()) == ([1, 2], [1, 2])
    before, after = env.step(add(1, 2))
    assert (before.env_id.tolist(), totals(before.obs), after.env_id.tolist()) == ([1, 2], [1, 2], [1])
    with pytest.raises(ValueError, match="env_id names environment 3; there are 0 to 2"):
        env.reset(env_id=[3])


def test_episodes_can_differ_in_their_parameters() -> None:
    env = counters(1, 1, 1)
    env.reset(env_info=[{"limit": 3}, {"limit": 1}, {"limit": 2}])
    assert env.step(add(1, 1, 1)).still_running.env_id.tolist() == [0, 2]
    env.reset(env_info={"limit": [1, 2, 1]}, env_id=[0, 1])
    assert env.step(add(1, 1)).still_running.env_id.tolist() == [1]


def play_out(env: EpisodeVecEnv, seed: int) -> list[VecObs]:
    rng = np.random.default_rng(0)
    obs, running = env.reset(seed)
    seen = [obs]
    while len(running):
        (obs, _), (running_obs, running) = env.step(random_actions(obs, rng, env.action_space()))
        seen.append(obs)
        obs = running_obs
    return seen


@pytest.mark.parametrize("num_threads", NUM_THREADS)
def test_rounds_do_not_depend_on_the_number_of_threads(num_threads: int) -> None:
    expected = [content(obs) for obs in play_out(EpisodeVecEnv(Zoo, 6), 5)]
    env = EpisodeVecEnv(Zoo, 6, num_threads)
    assert [content(obs) for obs in play_out(env, 5)] == expected
    env.close()


def test_first_episodes_are_those_of_any_other_pool() -> None:
    episodes, list_env = EpisodeVecEnv(Zoo, 9, seed=3), ListEnv(Zoo, 9, seed=3, final_observations="all")
    obs, _ = episodes.reset()
    assert content(obs) == content(list_env.reset())
    actions = random_actions(obs, np.random.default_rng(0), list_env.action_space())
    (obs, _), _ = episodes.step(actions)
    expected = list_env.act(actions)
    assert (obs.reward.tolist(), obs.done.tolist()) == (expected.reward.tolist(), expected.done.tolist())
    ended = [int(i) for i in np.flatnonzero(obs.done)]
    assert ended and expected.final is not None
    for name, last in expected.final.features.items():
        assert [obs.features[name][i].to_list()[0] for i in ended] == last.to_list()


def test_arguments_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="num_threads is 'auto'"):
        EpisodeVecEnv(Counter, 2, "auto")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_envs is 0"):
        EpisodeVecEnv(Counter, 0)
    with pytest.raises(ValueError, match="seed is -3"):
        EpisodeVecEnv(Counter, 2, seed=-3)
