"""Gymnasium environments in pools. What `gym_worlds` show and pay is worked out by hand."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium import spaces  # noqa: E402

from entity_gym import Environment  # noqa: E402
from entity_gym.actions.choices import random_actions  # noqa: E402
from entity_gym.batch.vec_obs import VecObs  # noqa: E402
from entity_gym.bridges.gymnasium.incoming import (  # noqa: E402
    from_gymnasium,
    gymnasium_worlds,
)
from entity_gym.errors import NoPictureError  # noqa: E402
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv  # noqa: E402
from tests.entity_gym.bridges.gym_worlds import Line, Shows, agents, choose  # noqa: E402
from tests.entity_gym.compiled.comparing import meaning  # noqa: E402

LEFT, RIGHT = 0, 1


def mask_of(obs: VecObs) -> list[list[bool]] | None:
    mask = obs.action_masks["action"]
    return None if mask.mask is None else mask.mask.values.tolist()


# ---- episodes


def test_environment_i_is_seeded_with_seed_plus_i() -> None:
    pool = from_gymnasium(Line, 3, seed=5)
    assert agents(pool.reset()) == [[5, 0], [6, 0], [7, 0]]
    assert agents(pool.reset(seed=20)) == [[20, 0], [21, 0], [22, 0]]
    assert agents(pool.reset()) == [[20, 0], [21, 0], [22, 0]], (
        "without a seed the random numbers go on, and Line has none"
    )


def test_a_step_shows_rewards_ends_and_the_first_observation_of_the_next_episode() -> None:
    pool = from_gymnasium(Line, 2, limit=2)
    pool.reset(env_info=[{"place": 5}, {"place": -1}])
    obs = pool.act(choose(RIGHT, LEFT))  # 6; and -2, where the episode ends
    assert obs.reward.tolist() == [6, -2]
    assert (obs.done.tolist(), obs.truncated.tolist()) == ([False, True], [False, False])
    assert agents(obs) == [[6, 1], [-1, 0]]
    assert obs.end_of_episode_info == {1: {"steps": 1, "place": -2}}
    assert obs.final is None, "nothing is kept of what ended by its own rules"
    obs = pool.act(choose(LEFT, RIGHT))  # 5, cut after two steps; 0
    assert (obs.done.tolist(), obs.truncated.tolist()) == ([True, False], [True, False])
    assert agents(obs) == [[5, 0], [0, 1]]
    assert obs.final is not None and obs.final.env_id.tolist() == [0]
    assert agents(obs.final) == [[5, 2]]
    assert obs.elapsed_step.tolist() == [0, 1]


def test_env_info_goes_to_the_options_of_every_reset_from_then_on() -> None:
    env = Line(limit=1)
    pool = from_gymnasium(lambda: env)
    pool.reset()
    pool.reset(env_info={"place": [3]})
    pool.act(choose(RIGHT))
    assert env.options == [None, {"place": 3}, {"place": 3}]
    pool.configure([{"place": 8}])
    obs = pool.act(choose(RIGHT))
    assert agents(obs) == [[8, 0]]


def test_a_pool_shows_the_same_as_one_environment_after_another() -> None:
    """The slots of its own and `as_environment`, which shows `Observation`s, are two ways to the same frames."""
    boxes = {"a": spaces.Box(-1, 1, (2,)), "b": spaces.Box(-1, 1, (1,))}
    space = spaces.Dict({**boxes, "things": spaces.Sequence(spaces.Discrete(4))}, seed=1)
    acting = spaces.Dict({"go": spaces.Discrete(3, start=1), "push": spaces.Box(-1, 1, (2,))})
    shown = [space.sample() for _ in range(5)]
    infos = [{"action_mask": {"go": np.array(mask), "push": None}} for mask in ([1, 0, 1], [1, 1, 1], [0, 0, 1])]

    def make() -> Shows:
        return Shows(space, shown, acting, [*infos, {}, {"note": 5}])

    view = {"entities": {"Me": {"features": {"b": ["x"]}}}, "actor": "Me", "ignore": ["things"]}
    for options in ({}, {"view": view}):  # with the view, "a" is global
        together = from_gymnasium(make, 2, final_observations="all", **options)
        alone = ListEnv(gymnasium_worlds(make, **options).as_environment, 2, final_observations="all")
        rng = np.random.default_rng(0)
        one, two = together.reset(1), alone.reset(1)
        assert bool(together.obs_space().global_features) == bool(options)
        for _ in range(9):
            assert meaning(one) == meaning(two)
            actions = random_actions(one, rng, together.action_space())
            one, two = together.act(actions), alone.act(actions)


# ---- actions


def test_closed_choices_of_the_info_are_masked_until_it_says_otherwise() -> None:
    infos = [{"action_mask": np.array([1, 0], np.int8)}, {}, {"action_mask": np.array([0, 0])}]
    pool = from_gymnasium(lambda: Shows(spaces.Discrete(9), [1, 2, 3], infos=infos), 1)
    assert mask_of(pool.reset()) == [[True, False]]
    with pytest.raises(
        ValueError, match=r"action 'action' of entity 0 is 1; expected a choice below 2 that is not masked"
    ):
        pool.act(choose(1))
    assert mask_of(pool.act(choose(0))) is None, "everything is open"
    obs = pool.act(choose(1))
    assert obs.done.tolist() == [True], "nobody acts on a last observation, so its mask does not matter"
    assert "action_mask" not in obs.end_of_episode_info.get(0, {})


# ---- environments as people have them


def test_environments_of_different_spaces_are_refused() -> None:
    wide = Shows(spaces.Box(-1, 1, (3,)), [np.zeros(3)])
    with pytest.raises(ValueError, match=r"same spaces: .* Line \(environment 0\) are .* Shows \(environment 1\)"):
        from_gymnasium(iter([Line(), wide]).__next__, 2)
    shifted = Line()
    shifted.action_space = spaces.Discrete(2, start=1)
    with pytest.raises(ValueError, match=r"same spaces"):
        from_gymnasium(iter([Line(), shifted]).__next__, 2)


# ---- where environments come from


def test_a_class_is_found_by_module_and_name_and_has_the_number_of_its_pool() -> None:
    source = gymnasium_worlds("tests.entity_gym.bridges.gym_worlds:Line", limit=7)
    assert isinstance(source.as_environment(), Environment)
    with ThreadedVecEnv(source, 2, seed=1, first_env=3) as pool:
        assert agents(pool.reset()) == [[4, 0], [5, 0]]


class OldReset(Line):
    def reset(self) -> Any:  # type: ignore[override]
        return self._observation()


class NoInfo(Line):
    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("CartPol-v1",), r"'CartPol-v1' is no environment that Gymnasium knows.*; ids of another package are .* package:id"),
        ((Line(),), r"the Gymnasium environment is <.*Line object.*>; expected a class or function"),
        ((lambda: 5,), r"int is no environment of Gymnasium's interface; expected .* older gym get it from shimmy"),
        ((type("Bare", (Line,), {"observation_space": None}),), r"Bare: the observation space is a NoneType, which has no form"),
        ((OldReset,), r"OldReset is no environment of Gymnasium's interface"),
        ((lambda: Shows(spaces.Text(3), [""]),), r"Shows: the observation space is a Text, which has no form as entities"),
    ],
)  # fmt: skip
def test_what_is_no_environment_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_gymnasium(*arguments)


def test_arguments_that_the_environment_does_not_take_are_told() -> None:
    with pytest.raises(ValueError, match=r"cannot make 'CartPole-v1' with \{'widht': 3\}: .*widht"):
        from_gymnasium("CartPole-v1", widht=3)


# ---- environments that go wrong


class Returns(Line):
    """Steps that return `result` in the second environment of a pool."""

    made = 0

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result if Returns.made % 2 else (np.zeros(2, np.float32), 0.0, False, False, {})
        Returns.made += 1

    def step(self, action: Any) -> Any:
        return self.result


def returned(
    observation: Any = (0, 0), reward: Any = 0.0, terminated: Any = False, truncated: Any = False, info: Any = None
) -> Any:
    """The result of a step."""
    return observation, reward, terminated, truncated, {} if info is None else info


NUMBER = "expected a finite number that float32 can hold"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((1, 2, 3), r"step\(\) returned \(1, 2, 3\); expected Gymnasium's .*environments of the older gym"),
        (returned(np.zeros(3)), r"the observation has shape \(3,\); expected \(2,\)"),
        (returned(np.array([0, np.inf])), r"feature '1' of entity 0 of type 'Agent' is inf"),
        (returned(reward="5"), f"reward='5'; {NUMBER}"),
        (returned(reward=[1, 2]), rf"reward=\[1, 2\]; {NUMBER}; an environment of several agents"),
        (returned(reward=[[1], [1, 2]]), f"; {NUMBER}"),
        (returned(reward=np.nan), f"reward=nan; {NUMBER}"),
        (returned(terminated="no"), "returned terminated='no'; expected a bool"),
        (returned(info=5), "returned the info 5; expected a dictionary"),
    ],
)  # fmt: skip
def test_what_a_step_may_not_return_is_named_with_the_environment(result: Any, message: str) -> None:
    Returns.made = 0
    pool = from_gymnasium(Returns, 2, result=result)
    pool.reset()
    with pytest.raises(ValueError, match=message) as error:
        pool.act(choose(0, 0))
    assert "environment 1" in "\n".join([str(error.value), *getattr(error.value, "__notes__", [])])


@pytest.mark.parametrize("one", [np.float64, np.bool_, int, np.array, lambda value: np.array([value])])
def test_the_scalars_of_any_library_are_numbers_and_flags(one: Any) -> None:
    Returns.made = 0
    obs = (
        pool := from_gymnasium(Returns, 2, result=returned(reward=one(1), terminated=one(1), truncated=one(0)))
    ).reset()
    obs = pool.act(choose(0, 0))
    assert (obs.reward.tolist(), obs.done.tolist(), obs.truncated.tolist()) == ([0, 1], [False, True], [False, False])


def test_a_category_out_of_range_and_a_reset_without_an_info_are_refused() -> None:
    with pytest.raises(ValueError, match=r"feature 'value' .* is 7; a category of 5 must be a whole number"):
        from_gymnasium(lambda: Shows(spaces.Discrete(5), [7])).reset()
    with pytest.raises(ValueError, match=r"reset\(\) returned array.*; expected Gymnasium's reset"):
        from_gymnasium(NoInfo).reset()


def test_a_world_that_draws_nothing_says_how_it_would() -> None:
    for world in ("CartPole-v1", lambda: Shows(spaces.Discrete(2), [1])):
        with from_gymnasium(world) as pool:  # type: ignore[arg-type]
            pool.reset()
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # it is not asked for pictures, which Gymnasium would warn of every time
                with pytest.raises(
                    NoPictureError, match=r"Make the environment with render_mode='rgb_array'; in training"
                ):
                    pool.render([0])
    with from_gymnasium(Line, 2) as pool:
        pool.reset()
        assert pool.render([1])[0].tolist() == np.full((2, 3, 3), 7).tolist()


def test_environments_are_closed_with_their_pool_and_when_one_cannot_be_made() -> None:
    envs = [Line() for _ in range(3)]
    from_gymnasium(iter(envs).__next__, 3).close()
    assert [env.closed for env in envs] == [1, 1, 1]
    made = [Line(), Line()]
    waiting: Iterator[Any] = iter([*made, 5])
    with pytest.raises(ValueError, match="int is no environment"):
        from_gymnasium(lambda: next(waiting), 3)
    assert [env.closed for env in made] == [1, 1]


def test_a_wrapper_that_keeps_statistics_is_named() -> None:
    normalize = "gymnasium.wrappers:NormalizeObservation"
    with pytest.warns(
        UserWarning, match="CartPole-v1: the wrapper NormalizeObservation keeps running statistics, .*Leave it out"
    ):
        from_gymnasium("CartPole-v1", 2, wrappers=[normalize, "gymnasium.wrappers:TimeLimit(max_episode_steps=3)"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_gymnasium("CartPole-v1", wrappers=["gymnasium.wrappers:TimeAwareObservation"])
