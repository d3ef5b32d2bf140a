"""How programs that own their main loop are made to leave, and what is said of those that do not."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from entity_gym.agents import Agent, Obs
from entity_gym.agents.train_env import World
from entity_gym.errors import NoPictureError
from entity_gym.pools.pool import SlotVecEnv, ThreadedVecEnv
from tests.entity_gym.agents.programs import Move, Walker, hang_after_one_step, make, moves, wait_for, walk


def closes_soon(pool: ThreadedVecEnv) -> bool:
    """Whether it is closed within 10 seconds."""
    closing = threading.Thread(target=pool.close, daemon=True)
    closing.start()
    closing.join(10)
    return not closing.is_alive()


@pytest.mark.filterwarnings("ignore:.*it is left behind:RuntimeWarning")
def test_programs_that_hang_are_waited_for_all_at_once_and_not_one_after_the_other() -> None:
    go_on = threading.Event()
    pool = ThreadedVecEnv(make(hang_after_one_step, go_on, time_limit=0.5), 40)
    obs = pool.reset()
    with pytest.raises(ValueError, match=r"\(time_limit\)"):
        pool.act(moves(obs, 1))
    assert closes_soon(pool)  # half a second for all of them, and not for each
    go_on.set()


class CtrlC:
    """A queue at which the user presses Ctrl-C."""

    def get(self, timeout: float) -> Any:
        raise KeyboardInterrupt

    def put(self, obs: Any) -> None:
        pass


def test_a_program_that_was_not_waited_for_any_longer_has_little_time_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entity_gym.agents.train_env.LEAVING_AT_ONCE", 0.1)
    go_on = threading.Event()
    slots: Any = make(hang_after_one_step, go_on).make_slots(
        2, first_env=0, autoreset=True, final_observations="none", entity_ids=False
    )
    pool = SlotVecEnv(slots)
    obs = pool.reset()
    slots.envs[0].world._run.observations[0] = CtrlC()
    with pytest.raises(KeyboardInterrupt):
        pool.act(moves(obs, 1))
    with pytest.warns(RuntimeWarning, match="has not returned 0.1 seconds after .* left behind"):
        pool.close()
    go_on.set()


def catches_everything(agent: Agent, config: threading.Event, seed: int) -> None:
    while not config.is_set():
        try:
            agent.act(Obs(Move, score=0, actors=[Walker(0)]))
        except Exception:
            wait_for(config)


def test_where_a_program_is_means_its_own_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entity_gym.agents.train_env.LEAVING", 0.1)
    leave = threading.Event()
    pool = ThreadedVecEnv(make(catches_everything, leave), 1)
    pool.reset()
    with pytest.warns(
        RuntimeWarning, match=r"it is at (programs|test_leaving)\.py:\d+ in (wait_for|catches_every\w+)\(\)"
    ):
        pool.close()
    leave.set()


def waits_in_our_lines(agent: Agent, config: threading.Event, seed: int) -> None:
    agent.act(Obs(Move, score=0, actors=[Walker(0)]))


def test_a_program_that_waits_for_us_is_told_at_the_line_that_asked() -> None:
    world = World(make(waits_in_our_lines))
    world.begin_game(0)
    world.receive(0)
    assert "test_leaving.py" in world._running().position()
    assert "in waits_in_our_lines()" in world._running().position()
    world.close()


def nobody_acts(agent: Agent, config: Any, seed: int) -> None:
    while agent.act_each(Obs(Move, score=0, entities=[Walker(0)])) is not None:
        agent.game_over(Obs(Move, score=1))


def test_a_game_in_which_nobody_acts_is_warned_of() -> None:
    pool = ThreadedVecEnv(make(nobody_acts), 1)
    obs = pool.reset()
    with pytest.warns(UserWarning, match="nobody_acts: nobody acted in a whole game, so nothing can be learned"):
        pool.act({name: mask.actors.clone() for name, mask in obs.action_masks.items()})
    pool.close()


def test_a_program_that_is_shown_nonsense_at_the_end_of_a_game_is_told() -> None:
    def ends_with(agent: Agent, config: Any, seed: int) -> None:
        agent.act(Obs(Move, score=0, actors=[Walker(0)]))
        agent.game_over(config)

    for nonsense in (None, 3, {"score": 1}):
        pool = ThreadedVecEnv(make(ends_with, nonsense), 1)
        with pytest.raises(ValueError, match="is no Obs; agents are shown Obs"):
            pool.act(moves(pool.reset(), 1))
        pool.close()


def test_a_program_has_no_picture_and_a_name() -> None:
    env = make(walk)
    assert env.__name__ == "tests.entity_gym.agents.programs.walk"  # the title of whoever plays it
    pool = ThreadedVecEnv(env, 1)
    pool.reset()
    with pytest.raises(
        NoPictureError, match=r"walk draws itself, if at all, in its own loop: there is nothing to film"
    ):
        pool.render([0])
    pool.close()
