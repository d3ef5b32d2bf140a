"""Programs that own their main loop are environments like any other to the trainer."""

from __future__ import annotations

import enum
import gc
import pickle
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from entity_gym.agents import Agent, Obs, TrainEnv
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.pools.slots import SlotOptions
from entity_gym.pools.vec_env import VecEnv
from entity_gym.registry import bind
from tests.entity_gym.agents.programs import (
    Goal,
    Log,
    Move,
    Visit,
    Walker,
    hang_after_one_step,
    ignore_none,
    keep_log,
    leave_after_one_game,
    leave_by_exit,
    make,
    moves,
    raise_after_one_step,
    walk,
)
from tests.entity_gym.pools.kinds_of_pools import contents, play_together


def pool_of(main: Any, num_envs: int = 2, config: Any = None, **options: Any) -> ThreadedVecEnv:
    return ThreadedVecEnv(make(main, config, **options), num_envs)


def still_running(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.endswith(name)]


def soon(condition: Any) -> bool:
    """Return whether the condition becomes true within 10 seconds."""
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())


# ---- what the trainer sees


def test_the_reward_is_the_change_of_the_score_and_an_episode_is_a_game() -> None:
    pool = pool_of(walk, 1)
    obs = pool.reset(1)
    goal = float(obs.features["Goal"].values[0, 0])
    towards, away = (2, 0) if goal > 0 else (0, 2)
    assert abs(goal) >= 2, "the moves below do not pass the goal"
    assert obs.reward.tolist() == [0.0]  # the score begins at 100, which is no reward

    rewards, dones, places = [], [], []
    for choice in (towards, away, towards):
        obs = pool.act(moves(obs, choice))
        rewards.append(float(obs.reward[0]))
        dones.append(bool(obs.done[0]))
        places.append(float(obs.features["Walker"].values[0, 0]))
    assert rewards == [1.0, -1.0, 1.0]
    assert dones == [False, False, True]
    assert places == [np.sign(goal), 0.0, 0.0]  # the last one is where the next game begins
    assert obs.metrics["steps"].mean == 3.0
    assert obs.elapsed_step.tolist() == [0]

    obs = pool.act(moves(obs, 1))
    assert (obs.reward.tolist(), obs.done.tolist()) == ([-1.0], [False])  # the score of the game before counts no more
    pool.close()


def cut_short(agent: Agent, config: Any, seed: int) -> None:
    for score in range(1000):
        if agent.act(Obs(Move, score=score, actors=[Walker(score)])) is None:
            return
        agent.game_over(Obs(Move, score=score + 5, entities=[Walker(50 + score)]), truncated=True)


def test_a_game_that_is_cut_short_keeps_its_last_observation_to_bootstrap_from() -> None:
    pool = pool_of(cut_short, 1)
    obs = pool.act(moves(pool.reset(), 0))
    assert (obs.done.tolist(), obs.truncated.tolist(), obs.reward.tolist()) == ([True], [True], [5.0])
    assert obs.final is not None
    assert obs.final.features["Walker"].values.tolist() == [[50.0]]
    assert obs.features["Walker"].values.tolist() == [[1.0]]
    pool.close()


def visit_goals(agent: Agent, config: Any, seed: int) -> None:
    """The score is the places of the goals that were visited, with the last one's digit last; the second walker may not."""
    score = 0.0
    while True:
        goals, walkers = [Goal(4), Goal(5), Goal(6)], [Walker(1), Walker(2)]
        visits = agent.act_each(Obs(Visit, score=score, entities=goals, actors=walkers, allowed=[goals[1:], []]))
        if visits is None:
            return
        assert visits[1] == []
        score += int("".join(str(goal.x) for goal in visits[0]) or 0)


def test_sets_of_entities_are_told_as_lists_of_objects() -> None:
    pool = ThreadedVecEnv(TrainEnv(visit_goals, [Walker, Goal], [Visit]), 1)
    offered = pool.reset().action_masks["Visit"]
    assert offered.mask is not None and offered.mask.values[:, 0].tolist() == [True, True, False, False]
    for places, reward in (([2, 1, 0, 0], 65.0), ([0, 1, 0, 0], 6.0), ([0, 0, 0, 0], 0.0)):
        values = RaggedBuffer(np.array(places)[:, None], offered.pair_offsets)
        assert pool.act({"Visit": values}).reward.tolist() == [reward]
    pool.close()


class Paint(enum.Enum):
    RED = 0
    BLUE = 1


def several_actors(agent: Agent, config: Any, seed: int) -> None:
    """Two walkers, of which the second may only stay; then they paint; then nobody acts."""
    score = 0.0
    while True:
        walkers = [Walker(1), Walker(2)]
        chosen = agent.act_each(Obs(Move, score=score, actors=walkers, allowed=[list(Move), [Move.STAY]]))
        if chosen is None:
            return
        score += 10 * chosen[0].value + chosen[1].value
        paint = agent.act(Obs(Paint, score=score, actors=[Goal(0)]))
        score += 0 if paint is None else 100 * paint.value
        agent.act_each(Obs(Move, score=score, entities=[Goal(1)]))


def test_actors_masks_and_actions_differ_from_step_to_step() -> None:
    env = TrainEnv(several_actors, [Walker, Goal], [Move, Paint])
    pool = ThreadedVecEnv(env, 1)
    obs = pool.reset()
    assert obs.action_masks["Move"].mask.values.tolist() == [[True] * 3, [False, True, False]]  # type: ignore[union-attr]
    assert obs.action_masks["Paint"].actors.items() == 0
    nothing = {name: mask.actors.clone() for name, mask in obs.action_masks.items()}
    first = pool.act(nothing | moves(obs, [2, 1]))
    assert first.reward.tolist() == [10.0]
    assert first.action_masks["Move"].actors.items() == 0

    nothing = {name: mask.actors.clone() for name, mask in first.action_masks.items()}
    painted = nothing["Paint"]
    painted.values[:] = 1
    second = pool.act(nothing)
    assert second.reward.tolist() == [100.0]
    third = pool.act({name: mask.actors.clone() for name, mask in second.action_masks.items()})
    assert third.action_masks["Move"].actors.size1().tolist() == [2]
    with pytest.raises(ValueError, match="Move"):  # the second walker may not go left
        pool.act({**{"Paint": third.action_masks["Paint"].actors}, **moves(third, [0, 0])})
    pool.close()


# ---- seeds and pools


@pytest.mark.filterwarnings("error")
def test_the_same_seed_plays_the_same_whatever_the_pool_and_another_does_not() -> None:
    played = []
    for seed in (1, 1, 2):
        pool = pool_of(walk, 4)
        played.append(contents(play_together(pool, 8, pool.reset(seed))))
        pool.close()
    threads = ThreadedVecEnv(make(walk), 4, num_threads=2)
    for _ in range(2):
        played.append(contents(play_together(threads, 8, threads.reset(1))))
    threads.close()
    assert played[0] == played[1] == played[3] == played[4]
    assert played[0] != played[2]


def test_programs_can_travel_to_worker_processes_and_play_the_same_there() -> None:
    env = pickle.loads(pickle.dumps(make(walk)))
    second_half = VecEnv(env.make_slots(2, SlotOptions(first_env=2)), seed=0)
    all_of_them = pool_of(walk, 4)
    expected, got = all_of_them.reset(5), second_half.reset(5)
    for _ in range(5):
        for name, features in got.features.items():
            assert features.values.tolist() == expected.features[name][[2, 3]].values.tolist()
        expected, got = all_of_them.act(moves(expected, 1)), second_half.act(moves(got, 1))
        assert got.reward.tolist() == expected.reward[2:].tolist()
    all_of_them.close()
    second_half.close()


def test_a_game_that_was_abandoned_ends_its_main_and_the_next_one_has_another_seed() -> None:
    log = Log()
    pool = pool_of(keep_log, 2, log)
    obs = pool.reset(0)
    pool.act(moves(obs, 1))
    assert log.left == []
    first = list(log.seeds)
    pool.reset()
    assert sorted(log.left) == sorted(first)
    assert len(set(log.seeds)) == 4
    pool.reset(0)
    assert sorted(log.seeds[4:]) == sorted(first)  # the pool's seed begins anew
    pool.close()
    assert sorted(log.left) == sorted(log.seeds)
    assert not still_running(".keep_log")
    pool.close()


def test_a_pool_that_is_dropped_lets_its_programs_leave() -> None:
    log = Log()
    pool = pool_of(keep_log, 2, log)
    pool.reset()
    del pool
    gc.collect()
    assert soon(lambda: len(log.left) == 2)


# ---- programs that do not behave


def test_what_a_program_raises_keeps_its_type_and_names_the_environment() -> None:
    pool = pool_of(raise_after_one_step)
    obs = pool.reset()
    with pytest.raises(LookupError, match="the map is lost") as caught:
        pool.act(moves(obs, 1))
    notes = " ".join(caught.value.__notes__)
    assert "raised in tests.entity_gym.agents.programs.raise_after_one_step" in notes
    assert "(environment 0)" in notes
    assert pool.reset().reward.tolist() == [0.0, 0.0]  # a new main, and a new game
    pool.close()


@pytest.mark.parametrize(
    ("main", "message"),
    [
        (leave_after_one_game, "leave_after_one_game returned while the trainer goes on: it must play game after game"),
        (leave_by_exit, "leave_by_exit ended with SystemExit while the trainer goes on"),
    ],
)
def test_a_program_that_ends_is_an_error_that_says_what_it_must_do(main: Any, message: str) -> None:
    pool = pool_of(main)
    with pytest.raises(ValueError, match=message):
        obs = pool.reset()
        for _ in range(3):
            obs = pool.act(moves(obs, 1))
    pool.close()


def test_a_program_that_hangs_is_an_error() -> None:
    go_on = threading.Event()
    pool = pool_of(hang_after_one_step, 1, go_on, time_limit=0.2)
    obs = pool.reset()
    with pytest.raises(
        ValueError, match=r"neither asked for an action nor ended its game for 0\.2 seconds \(time_limit\)"
    ):
        pool.act(moves(obs, 1))
    with pytest.warns(RuntimeWarning, match=r"has not returned 0\.2 seconds after act returned None.*left behind"):
        pool.close()
    go_on.set()
    assert soon(lambda: not still_running("hang_after_one_step"))


def test_a_program_that_goes_on_after_none_is_an_error() -> None:
    pool = pool_of(ignore_none, 1)
    pool.act(moves(pool.reset(), 1))
    with pytest.raises(ValueError, match="after act had returned None: the trainer is gone, and main must return"):
        pool.reset()
    pool.reset()
    with pytest.raises(ValueError, match="main must return") as caught:
        pool.close()
    assert "ignore_none after act had returned None" in " ".join(caught.value.__notes__)
    assert not still_running("ignore_none")


@dataclass
class Stranger:
    x: int


def shows_a_stranger(agent: Agent, config: Any, seed: int) -> None:
    agent.act(Obs(Move, score=0, entities=[Stranger(1)], actors=[Walker(0)]))


def asks_for_more(agent: Agent, config: Any, seed: int) -> None:
    agent.act(Obs(Paint, score=0, actors=[Walker(0)]))


def shows_no_number(agent: Agent, config: Any, seed: int) -> None:
    agent.act(Obs(Move, score=0, actors=[Walker(float("nan"))]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("main", "message"),
    [
        (shows_a_stranger, "TrainEnv has no 'Stranger' in entity_types"),
        (asks_for_more, "TrainEnv has no 'Paint' in action_types"),
        (shows_no_number, r"shows_no_number \(environment 0\): feature 'x' of entity 0 of type 'Walker' is nan"),
    ],
)
def test_what_a_program_may_not_do_is_an_error(main: Any, message: str) -> None:
    pool = pool_of(main, 1)
    with pytest.raises(ValueError, match=message):
        pool.act(moves(pool.reset(), 1))
    pool.close()


def begins_at_its_end(agent: Agent, config: Any, seed: int) -> None:
    agent.game_over(Obs(Move, score=3))
    walk(agent, config, seed)


def test_a_game_in_which_nothing_was_asked_is_not_counted() -> None:
    pool = pool_of(begins_at_its_end, 1)
    assert pool.reset().done.tolist() == [False]
    pool.close()


# ---- what is declared


def test_what_cannot_be_declared_is_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"entity_types": [Walker, Walker]}, "entity_types has .*Walker.*, which is no class, or"),
        ({"action_types": [Move, Move]}, "action_types has .*Move.*, which is no class, or"),
    ]
    for changes, message in wrong:
        with pytest.raises(ValueError, match=message):
            TrainEnv(**{"main": walk, "entity_types": [Walker], "action_types": [Move], **changes})


@dataclass(frozen=True)
class Length:
    steps: int = 2


def walk_as_long(agent: Agent, config: Length, seed: int) -> None:
    walk(agent, config.steps, seed)


def test_fields_of_the_config_can_be_set_to_other_values() -> None:
    env = make(walk_as_long, Length())
    pool = ThreadedVecEnv(bind(env, {"steps": 4}), 1)
    obs = pool.reset()
    for steps in (1, 2, 3, 4):
        obs = pool.act(moves(obs, 1))
        assert obs.done.tolist() == [steps == 4]
    pool.close()
    with pytest.raises(
        ValueError, match="walk_as_long has no parameter 'stpes'; allowed: 'steps'; did you mean 'steps'"
    ):
        bind(env, {"stpes": 4})
    with pytest.raises(ValueError, match="walk has no parameter 'size'; allowed: nothing"):
        bind(make(walk), {"size": 4})
