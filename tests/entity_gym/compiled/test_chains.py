"""Chained actions of compiled worlds: declared as in Python, checked and packed alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from entity_gym.actions.choices import check_actions, random_actions
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.compiled import Categorical, CompiledEnvironment, Entity, GlobalCategorical, SelectEntity
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv


class Doors(CompiledEnvironment):
    """Robots aim at a door and use it: even doors can be opened, odd ones locked. Who moves left may not fire."""

    entities = {"Robot": Entity([], max=3), "Door": Entity(["odd"], max=5)}
    actions = {
        "use": Categorical(["look", "open", "lock"], actors="Robot", after="aim", masked_after=True),
        "aim": SelectEntity(actors="Robot", actees="Door", nobody=True),
        "fire": Categorical(
            ["no", "yes"], actors="Robot", masked=True, after="move", allowed={"move": [[True, True], [True, False]]}
        ),
        "move": Categorical(["right", "left"], actors="Robot", masked=True, after="actors"),
        "mode": GlobalCategorical(["on", "off"], after="aim"),
    }
    parameters = {"must_fire": False}
    state = [("wrong", np.int64)]
    metrics = ["wrong"]
    max_steps = 5

    def reset(s: Any) -> None:
        s.wrong = 0

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        for j in range(len(act.use)):
            if act.aim[j] >= 0:
                odd = (act.aim[j] - act.first.Door) % 2
                if act.use[j] == 1 + (1 - odd):
                    s.wrong += 1
            if act.move[j] == 1 and act.fire[j] == 1:
                s.wrong += 1
        return 0.0, False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Robot = s.steps % 4
        obs.n.Door = s.steps
        for k in range(s.steps):
            obs.Door[k, 0] = k % 2
        for j in range(s.steps % 4):
            obs.fire.mask[j, 0] = not s.must_fire
            for k in range(s.steps):
                obs.use.mask_after[j, k, 1 + (1 - k % 2)] = False


@pytest.mark.parametrize("compile", [True, False])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_what_earlier_choices_close_is_never_drawn_and_always_refused(compile: bool, num_threads: int) -> None:
    pool, rng = ThreadedVecEnv(Doors, 6, num_threads=num_threads, compile=compile), np.random.default_rng(0)
    obs = pool.reset(0)
    for _ in range(12):
        actions = random_actions(obs, rng, pool.action_space())
        check_actions(actions, obs.action_masks, pool.action_space(), str)
        obs = pool.act(actions)
        assert obs.metrics["wrong"].max == 0
    while obs.features["Robot"].size1().min() < 2:
        obs = pool.act(random_actions(obs, rng, pool.action_space()))
    actions = random_actions(obs, rng, pool.action_space())
    doors = obs.action_masks["aim"].actees
    assert doors is not None
    first = doors.values[doors.offsets[:-1], 0]  # an even one: it cannot be locked
    for name, choice in (("aim", first[0]), ("use", 2)):
        values = actions[name].values.copy()
        values[0] = choice
        actions[name] = RaggedBuffer(values, actions[name].offsets)
    with pytest.raises(
        ValueError, match=r"environment 0\): action 'use' of entity 0 is 2 \('lock'\), which is closed after"
    ):
        pool.act(actions)
    pool.close()


def test_a_world_that_leaves_no_choice_is_named() -> None:
    pool = ThreadedVecEnv(Doors(must_fire=True), 2, compile=False)
    obs, rng = pool.reset(0), np.random.default_rng(0)
    with pytest.raises(
        ValueError, match=r"environment 0\): action 'fire': every choice of entity 0 is closed after choices"
    ):
        pool.act(random_actions(obs, rng, pool.action_space()))


def test_a_mask_after_no_selection_is_an_error_of_the_declaration() -> None:
    class Wrong(Doors):
        actions = {"use": Categorical(["look"], actors="Robot", masked_after=True)}

    with pytest.raises(ValueError, match=r"Wrong: action 'use': masked_after needs one select-entity action in after"):
        Wrong()


def test_a_circle_is_an_error_of_the_declaration() -> None:
    class Wrong(Doors):
        actions = {name: Categorical(["x"], actors="Robot", after=after) for name, after in (("a", "b"), ("b", "a"))}

    with pytest.raises(ValueError, match=r"the actions 'a', 'b' wait for each other"):
        Wrong()


def test_the_masks_are_those_of_the_same_world_as_a_python_object() -> None:
    whole, rng = ThreadedVecEnv(Doors, 2, compile=False), np.random.default_rng(0)
    single = ListEnv(lambda: Doors().as_environment(), 2, 0)
    obs, same = whole.reset(0), single.reset(0)
    for _ in range(6):
        for name, mask in obs.action_masks.items():
            after, again = mask.mask_after, same.action_masks[name].mask_after
            assert (after is None) == (name != "use")
            assert after == again or (again is None and after is not None and not len(after.values)), name
        actions = random_actions(obs, rng, whole.action_space())
        obs, same = whole.act(actions), single.act(actions)
