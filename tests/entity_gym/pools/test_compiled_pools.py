"""Steps of a compiled world that several callers take at the same time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from entity_gym.actions.choices import random_actions
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.envs.minesweeper import MineSweeper
from entity_gym.pools.slots import SlotOptions, run_serially
from tests.entity_gym.compiled.comparing import meaning
from tests.entity_gym.pools.processes.thread_workers import threads as threads


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
    alone = slots.clone().act(actions["mine"], mine)
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
