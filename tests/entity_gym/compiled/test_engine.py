"""Compiled environments show the same as ordinary Python, whoever steps them, in whatever order."""

from typing import Any

import numpy as np
import pytest

from entity_gym.actions.choices import random_actions
from entity_gym.compiled import Categorical
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.envs.minesweeper import MineSweeper
from entity_gym.pools.slots import SlotOptions, run_serially
from tests.entity_gym.compiled.comparing import (
    Playing,
    meaning,
    ordinary,
    play_pool,
)
from tests.entity_gym.compiled.worlds import Bare, Watching
from tests.entity_gym.pools.kinds_of_pools import content

# --- Compiled, and as ordinary Python


def test_the_compiled_form_shows_the_same_as_ordinary_python() -> None:
    compiled, python = (play_pool(Bare, 3, 20, seed=3, compile=compile) for compile in (True, False))
    assert [content(obs) for obs in compiled] == [content(obs) for obs in python]


# --- Any environments, in any order


def test_a_seed_can_be_given_again_and_another_one_differs() -> None:
    """A world whose `reset` writes all that it uses, in ordinary Python."""
    slots = ordinary(Bare, 4)
    first, again, other = [], [], []
    for seed, seen in ((1, first), (1, again), (2, other)):
        slots.seed(seed)
        playing = Playing(slots)
        for _ in range(20):
            seen.append(content(playing.step().reward))
    assert first == again != other


# --- Episodes


def test_a_step_limit_truncates_in_exactly_that_step() -> None:
    playing = Playing(ordinary(Watching(max_steps=3), 2))
    seen = [playing.step() for _ in range(7)]
    assert [obs.truncated.tolist() for obs in seen] == [[k % 3 == 2] * 2 for k in range(7)]
    assert [obs.done.tolist() for obs in seen] == [obs.truncated.tolist() for obs in seen]
    assert [obs.elapsed_step.tolist() for obs in seen] == [[(k + 1) % 3] * 2 for k in range(7)]
    assert [obs.reward.tolist() for obs in seen] == [[0.5, 0.5]] * 7


class Ending(Watching):
    """Ends by itself in its third step."""

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.t += 1
        return 0.0, s.t == 3, s.t == 3


def test_an_end_of_its_own_in_the_last_step_is_no_truncation() -> None:
    playing = Playing(ordinary(Ending(max_steps=3), 1, final_observations="all"))
    seen = [playing.step() for _ in range(3)][-1]
    assert seen.done.tolist() == [True] and seen.truncated.tolist() == [False]
    assert seen.final is not None and seen.final.truncated.tolist() == [False]


def test_after_the_end_the_first_observation_of_the_next_episode_is_shown_with_the_reward_of_the_last() -> None:
    playing = Playing(ordinary(Watching(max_steps=4), 1, final_observations="all"))
    obs = [playing.step() for _ in range(4)][-1]
    assert obs.reward.tolist() == [0.5] and obs.features["Star"].size1()[0] == 0
    assert obs.elapsed_step.tolist() == [0]
    assert obs.final is not None
    assert obs.final.elapsed_step.tolist() == [4] and obs.final.env_id.tolist() == [0]
    assert obs.final.features["Star"].values.tolist() == [[4.0]]
    assert obs.final.reward.tolist() == [0.5] and obs.final.done.tolist() == [True]


class Closing(Watching):
    """Closes every choice in its last observation."""

    actions = {"look": Categorical(["up", "down"], actors="Star", masked=True)}
    max_steps = 3

    def observe(s: Any, obs: Any) -> None:
        obs.n.Star = 1
        obs.Star[0, 0] = s.t
        obs.look.mask[0, 0] = s.t < 3
        obs.look.mask[0, 1] = s.t < 3


@pytest.mark.parametrize("autoreset", [True, False])
def test_masks_of_last_observations_are_not_checked_since_nobody_acts_there(autoreset: bool) -> None:
    playing = Playing(ordinary(Closing, 2, autoreset=autoreset, final_observations="all"))
    obs = [playing.step() for _ in range(3)][-1]
    assert obs.done.all()
    last = obs.final if autoreset else obs
    assert last is not None and last.action_masks["look"].actors.size1().tolist() == [0, 0]
    assert last.features["Star"].values.tolist() == [[3.0], [3.0]]


# --- Several callers at the same time


def test_steps_taken_in_the_background_change_nothing_of_a_step_taken_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = MineSweeper(width=4, height=4, num_mines=3, max_steps=1)
    slots = CompiledSlots(world, 4, SlotOptions(final_observations="all", num_workers=2, compile=False))
    everyone, mine, others = np.arange(4), np.arange(2), np.arange(2, 4)
    slots.reset(everyone)
    actions = {
        name: random_actions(slots.collect(ids, run_serially), np.random.default_rng(0), slots.action_space)
        for name, ids in (("mine", mine), ("others", others))
    }
    undisturbed = CompiledSlots(world, 4, slots.options)
    undisturbed.load_state(slots.state())
    alone = undisturbed.act(actions["mine"], mine)
    assert alone is not None
    run = slots._callers[0].run

    def run_while_others_step(*args: Any) -> None:
        run(*args)
        slots.step(actions["others"], others, 0, 2, worker=1)

    monkeypatch.setattr(slots._callers[0], "run", run_while_others_step)
    obs = slots.act(actions["mine"], mine)
    assert obs is not None
    assert obs.end_of_episode_info.keys() == {0, 1} and obs.final is not None
    assert obs.final.env_id.tolist() == [0, 1]
    assert meaning(obs) == meaning(alone)
