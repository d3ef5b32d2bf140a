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
from entity_gym.batch.ragged import RaggedBuffer  # noqa: E402
from entity_gym.batch.vec_obs import VecObs  # noqa: E402
from entity_gym.bridges.gymnasium.incoming import (  # noqa: E402
    GymFactory,
    GymnasiumEnvironment,
    GymWorld,  # noqa: E402
    from_gymnasium,
    gymnasium_worlds,
)
from entity_gym.envs.cart_pole import CartPole  # noqa: E402
from entity_gym.errors import NoPictureError  # noqa: E402
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv  # noqa: E402
from tests.entity_gym.bridges.gym_worlds import (  # noqa: E402
    Fails,
    Grows,
    Line,
    Old,
    OldTimeLimit,
    Shows,
    Unseedable,
    register,
)

LEFT, RIGHT = 0, 1


@pytest.fixture
def pools() -> Iterator[Any]:
    """`from_gymnasium`, whose pools are closed."""
    made: list[Any] = []

    def make(*arguments: Any, **options: Any) -> Any:
        made.append(from_gymnasium(*arguments, **options))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def choose(*choices: int) -> dict[str, RaggedBuffer[np.int64]]:
    """One choice for each environment."""
    return {"action": RaggedBuffer.from_array(np.array(choices).reshape(-1, 1, 1))}


def agents(obs: VecObs) -> list[list[float]]:
    """What the agents show, one an environment."""
    assert obs.features["Agent"].size1().tolist() == [1] * len(obs)
    return obs.features["Agent"].values.tolist()  # type: ignore[no-any-return]


def mask_of(obs: VecObs) -> list[list[bool]] | None:
    mask = obs.action_masks["action"]
    return None if mask.mask is None else mask.mask.values.tolist()


# ---- episodes


def test_environment_i_is_seeded_with_seed_plus_i(pools: Any) -> None:
    pool = pools(Line, 3, seed=5)
    assert agents(pool.reset()) == [[5, 0], [6, 0], [7, 0]]
    assert agents(pool.reset(seed=20)) == [[20, 0], [21, 0], [22, 0]]
    assert agents(pool.reset()) == [[20, 0], [21, 0], [22, 0]], (
        "without a seed the random numbers go on, and Line has none"
    )


def test_a_step_shows_rewards_ends_and_the_first_observation_of_the_next_episode(pools: Any) -> None:
    pool = pools(Line, 2, limit=2)
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


def test_an_episode_that_ends_at_its_limit_ended_by_its_own_rules(pools: Any) -> None:
    pool = pools(Line, 1, limit=1)
    pool.reset(env_info={"place": [-1]})
    obs = pool.act(choose(LEFT))
    assert (obs.done.tolist(), obs.truncated.tolist()) == ([True], [False])


def test_env_info_goes_to_the_options_of_every_reset_from_then_on(pools: Any) -> None:
    env = Line(limit=1)
    pool = pools([env])
    pool.reset()
    pool.reset(env_info={"place": [3]})
    pool.act(choose(RIGHT))
    assert env.options == [None, {"place": 3}, {"place": 3}]
    pool.configure([{"place": 8}])
    obs = pool.act(choose(RIGHT))
    assert agents(obs) == [[8, 0]]


def test_without_autoreset_the_batch_shrinks_as_episodes_end(pools: Any) -> None:
    pool = pools(Line, 3, autoreset=False, limit=2)
    obs = pool.reset(env_info={"place": [0, -1, 4]})
    assert agents(obs) == [[0, 0], [-1, 0], [4, 0]]
    obs = pool.act(choose(LEFT, LEFT, LEFT))
    assert obs.done.tolist() == [False, True, False]
    assert agents(obs) == [[-1, 1], [-2, 1], [3, 1]], "the last observation is shown, and no new episode begins"
    assert [len(actors) for actors in obs.action_masks["action"].actors.to_list()] == [1, 0, 1]
    obs = pool.act(choose(RIGHT, RIGHT), [0, 2])
    assert obs.truncated.tolist() == [True, True] and agents(obs) == [[0, 2], [4, 2]]


def test_a_pool_shows_the_same_as_one_environment_after_another() -> None:
    """The slots of its own and `GymnasiumEnvironment`, which shows `Observation`s, are two ways to the same frames."""
    space = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "things": spaces.Sequence(spaces.Discrete(4))}, seed=1)
    acting = spaces.Dict({"go": spaces.Discrete(3, start=1), "push": spaces.Box(-1, 1, (2,))})
    shown = [space.sample() for _ in range(5)]
    infos = [{"action_mask": {"go": np.array(mask), "push": None}} for mask in ([1, 0, 1], [1, 1, 1], [0, 0, 1])]

    def make() -> Shows:
        return Shows(space, shown, acting, [*infos, {}, {"note": 5}])

    for options in ({}, {"global_features": True}):
        together = from_gymnasium(make, 2, final_observations="all", **options)
        alone = ListEnv(gymnasium_worlds(make, **options), 2, final_observations="all")
        rng = np.random.default_rng(0)
        one, two = together.reset(1), alone.reset(1)
        for _ in range(9):
            assert_same(one, two)
            actions = random_actions(one, rng, together.action_space())
            one, two = together.act(actions), alone.act(actions)


def assert_same(one: VecObs, two: VecObs) -> None:
    assert one.features == two.features
    assert one.reward.tolist() == two.reward.tolist() and one.done.tolist() == two.done.tolist()
    assert one.elapsed_step.tolist() == two.elapsed_step.tolist()
    assert one.end_of_episode_info == two.end_of_episode_info
    for name, mask in one.action_masks.items():
        other = two.action_masks[name]
        assert mask.actors == other.actors
        assert mask.spelled_out(3) == other.spelled_out(3)  # "go" has 3 choices
    assert (one.final is None) == (two.final is None)
    if one.final is not None and two.final is not None:
        assert_same(one.final, two.final)


# ---- actions


def test_closed_choices_of_the_info_are_masked_until_it_says_otherwise(pools: Any) -> None:
    infos = [{"action_mask": np.array([1, 0], np.int8)}, {}, {"action_mask": np.array([0, 0])}]
    pool = pools(lambda: Shows(spaces.Discrete(9), [1, 2, 3], infos=infos), 1)
    assert mask_of(pool.reset()) == [[True, False]]
    with pytest.raises(
        ValueError, match=r"action 'action' of entity 0 is 1; expected a choice below 2 that is not masked"
    ):
        pool.act(choose(1))
    assert mask_of(pool.act(choose(0))) == [[True, True]]
    obs = pool.act(choose(1))
    assert obs.done.tolist() == [True], "nobody acts on a last observation, so its mask does not matter"
    assert "action_mask" not in obs.end_of_episode_info.get(0, {})


def test_continuous_actions_arrive_as_the_space_has_them(pools: Any) -> None:
    env = Shows(spaces.Box(-1, 1, (1,)), [np.zeros(1)] * 3, spaces.Box(-2, 2, (2, 1), np.float64))
    pool = pools([env])
    pool.reset()
    pool.act({"action": RaggedBuffer.from_array(np.array([[[-1.5, 2.0]]], np.float32))})
    (taken,) = env.taken
    assert taken in env.action_space and taken.tolist() == [[-1.5], [2.0]]


# ---- environments as people have them


def test_an_environment_of_the_older_interface_is_seeded_inferred_and_stepped(pools: Any) -> None:
    envs = [Old() for _ in range(4)]
    pool = pools(envs, seed=80)
    obs = pool.reset()
    assert [env.seeds[-1] for env in envs] == [80, 81, 82, 83]
    assert pool.obs_space().entities["Agent"].features == ("x", "identifier")
    np.testing.assert_allclose(agents(obs), [[env.x, env.identifier] for env in envs], rtol=1e-6)
    obs = pool.reset(env_info={"x": [0.0, 0.5, 0.9, -0.9]})
    obs = pool.act(choose(RIGHT, RIGHT, RIGHT, RIGHT))
    np.testing.assert_allclose(obs.reward, [0.3, 0.8, 1.2, -0.6], rtol=1e-6)
    assert (obs.done.tolist(), obs.truncated.tolist()) == ([False, False, True, False], [False] * 4)


def test_the_older_interface_says_in_the_info_that_an_episode_was_cut(pools: Any) -> None:
    pool = pools(OldTimeLimit, 1)
    pool.reset()
    obs = pool.act(choose(RIGHT))
    assert (obs.done.tolist(), obs.truncated.tolist()) == ([True], [True])


def test_the_older_interface_without_autoreset_plays_each_environment_to_its_end(pools: Any) -> None:
    pool = pools([Old() for _ in range(4)], seed=80, autoreset=False)
    obs = pool.reset()
    lengths = np.zeros(4, np.int64)
    while len(obs):
        lengths[obs.env_id] += 1
        obs = pool.act(choose(*[RIGHT] * len(obs)), obs.env_id)
        obs = obs.gather(np.flatnonzero(~obs.done))
    xs = [np.random.default_rng(80 + i).random() * 2 - 1 for i in range(4)]
    assert lengths.tolist() == [int(np.floor((1 - x) / 0.3)) + 1 for x in xs]


def test_an_environment_that_cannot_be_seeded_is_told_once_for_a_pool_where_that_was_made(pools: Any) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        pool = pools(Unseedable, 3)
        pool.reset()
        pool.reset(seed=1)
    (warning,) = told
    assert str(warning.message).startswith(
        "Unseedable cannot be seeded: it has neither reset(seed=...) nor seed(); its episodes differ"
    )
    assert warning.filename == __file__


def test_options_for_an_environment_that_takes_none_are_refused(pools: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pool = pools(Unseedable, 2)
        with pytest.raises(
            ValueError, match=r"Unseedable \(environment 0\) takes no env_info: its reset\(\) has neither"
        ):
            pool.reset(env_info={"x": [1, 2]})


def test_given_spaces_stand_in_place_of_the_environments_own(pools: Any) -> None:
    space = spaces.Dict({"x": spaces.Box(-2, 2, ()), "identifier": spaces.Box(0, 1, ())})
    pool = pools(Old, 1, observation_space=space, action_space=spaces.Discrete(2))
    assert set(pool.obs_space().entities["Agent"].features) == {"x", "identifier"}


def test_the_wrappers_of_gymnasium_change_nothing() -> None:
    def wrapped() -> Any:
        return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.wrappers.TimeLimit(Line(), 2))

    pool = from_gymnasium(wrapped, 1, seed=4)
    pool.reset()
    pool.act(choose(RIGHT))
    obs = pool.act(choose(RIGHT))
    assert obs.truncated.tolist() == [True]
    assert obs.end_of_episode_info[0]["episode"]["r"] == 5 + 6


# ---- where environments come from


def test_a_class_is_found_by_module_and_name(pools: Any) -> None:
    pool = pools("tests.entity_gym.bridges.gym_worlds:Line", 1, seed=2, limit=7)
    assert agents(pool.reset()) == [[2, 0]]


def test_the_factory_is_what_every_pool_takes() -> None:
    factory = GymFactory(Line)
    one = factory.as_environment()
    assert isinstance(one, GymnasiumEnvironment) and isinstance(one, Environment)
    with ThreadedVecEnv(factory, 2, seed=1, first_env=3) as pool:
        assert agents(pool.reset()) == [[4, 0], [5, 0]]
        assert pool.render([1])[0].tolist() == np.full((2, 3, 3), 7).tolist()
    assert not pool.can_save


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("CartPol-v1",), r"'CartPol-v1' is no environment that Gymnasium knows.*'CartPole-v1'"),
        (("no_such_module:Line",), r"there is no module 'no_such_module'"),
        (("entity_gym:Line-v0",), r"'entity_gym:Line-v0' is no environment that Gymnasium knows"),
        (("ALE/Pong-v5",), r"ids of ALE/ come with ale-py: install that, and name .*, as in ale_py:ALE/Pong-v5"),
        (("Sea/Fish-v0",), r"ids of Sea/ come with a package of their own: .*, as in its_module:Sea/Fish-v0"),
        (([Line, Line],), r"the list has Line, which makes environments; give Line itself, with num_envs=2, or a list"),
        (([lambda: Line()],), r"the list has <lambda>, which makes environments"),
        ((5,), r"env is 5; expected an id, a class, a function, or a list of environments"),
        (([],), r"expected an id, a class, a function, or a list"),
        ((Line(),), r"env is one Line object; give its class, a function that makes one, or a list of environments"),
        (([Line()], 2), r"num_envs asks for 2 environments, and the list has 1"),
        ((lambda: 5,), r"5 is no environment of Gymnasium's interface: it has no reset\(\) and step\(\)"),
        ((lambda: CartPole().as_environment(),), r"has entities already: give it to ListEnv"),
        ((Line, 0), r"num_envs is 0; it must be at least 1"),
        ((Line, 1, 0, "threads"), r"executor is 'threads'; allowed: 'list', 'thread', 'process'"),
    ],
)
def test_what_is_no_environment_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_gymnasium(*arguments)


def test_arguments_that_the_environment_does_not_take_are_told() -> None:
    with pytest.raises(ValueError, match=r"cannot make 'CartPole-v1' with \{'widht': 3\}: .*widht"):
        from_gymnasium("CartPole-v1", widht=3)
    with pytest.raises(
        ValueError, match=r"arguments \['limit'\] are for making environments; those in the list are made"
    ):
        from_gymnasium([Line()], limit=3)
    with pytest.raises(ValueError, match=r"num_workers is 2, which is for executor='thread' or 'process'"):
        from_gymnasium(Line, num_workers=2)
    for num_workers in (0, -3):
        with pytest.raises(ValueError, match=f"num_workers is {num_workers}; it must be at least 1, or None"):
            from_gymnasium(Line, 2, executor="thread", num_workers=num_workers)


def test_one_environment_twice_in_a_list_is_refused() -> None:
    line = Line()
    with pytest.raises(ValueError, match=r"the list has the same Line object twice"):
        from_gymnasium([line, line])


def test_environments_of_different_spaces_are_refused() -> None:
    wide = Shows(spaces.Box(-1, 1, (3,)), [np.zeros(3)])
    with pytest.raises(ValueError, match=r"same spaces: as entities, the observation space of environment 0 \(Line\)"):
        from_gymnasium([Line(), wide])
    shifted = Line()
    shifted.action_space = spaces.Discrete(2, start=1)
    with pytest.raises(ValueError, match=r"action space of environment 0 .* that of environment 1"):
        from_gymnasium([Line(), shifted])


def test_a_vector_environment_is_refused() -> None:
    with pytest.raises(ValueError, match=r"is a vector environment; give what makes one single environment"):
        from_gymnasium(lambda: gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync"))


def test_an_environment_that_needs_another_package_says_which() -> None:
    def lacking(**_: Any) -> Any:
        raise gymnasium.error.DependencyNotInstalled('pip install "gymnasium[robots]"')

    register()
    gymnasium.registry["Lacking-v0"] = gymnasium.envs.registration.EnvSpec("Lacking-v0", lacking)
    try:
        with pytest.raises(
            ValueError, match=r"Gymnasium cannot make 'Lacking-v0': pip install \"gymnasium\[robots\]\""
        ):
            from_gymnasium("Lacking-v0")
    finally:
        del gymnasium.registry["Lacking-v0"]


# ---- environments that go wrong


def shows(*values: Any, space: Any = None, reward: Any = 0.0) -> Any:
    def make() -> Shows:
        env = Shows(space, list(values))
        env.reward = reward
        return env

    return make


REAL = spaces.Box(-np.inf, np.inf, (2,))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            shows(np.zeros(2), None, space=REAL),
            r"Shows \(environment 1\): step\(\) does not fit the observation space: .* is None",
        ),
        (
            shows(np.zeros(2), np.zeros(3), space=REAL),
            r"step\(\) does not fit the observation space: .*\(3,\); expected \(2,\)",
        ),
        (
            shows({"a": 1.0}, {"a": None}),
            r"does not fit the first observation, since no observation_space is declared: a is None",
        ),
        (shows(np.zeros(2), np.zeros(4)), r"the first observation, since no observation_space is declared: .*\(4,\)"),
        (shows(np.zeros(2), np.zeros(2), space=REAL, reward="5"), r"the reward '5'; expected a number"),
        (shows(np.zeros(2), np.zeros(2), space=REAL, reward=[1, 2]), r"the reward \[1, 2\]; expected a number"),
        (shows(np.zeros(2), np.zeros(2), space=REAL, reward=np.nan), r"the reward nan; it must be a finite number"),
        (shows(np.zeros(2), np.zeros(2), space=REAL, reward=1e39), r"the reward 1e\+39; .* that float32 can hold"),
        (shows(np.zeros(2), np.zeros(2), space=REAL, reward=-(10**400)), r"the reward -10+; .* that float32 can hold"),
        (shows(np.zeros(2), np.array([0, np.inf]), space=REAL), r"feature '1' of entity 0 of type 'Agent' is inf"),
        (shows(3, 7, space=spaces.Discrete(5)), r"feature 'value' .* is 7; a category of 5 must be a whole number"),
    ],
)
def test_what_a_step_may_not_return_is_named_with_the_environment(make: Any, message: str) -> None:
    good = shows(*([make().shown[0]] * 3), space=getattr(make(), "observation_space", None))
    envs = iter([good(), make(), make()])
    factory = GymFactory(lambda: next(envs))
    pool = ThreadedVecEnv(factory, 2)
    pool.reset()
    with pytest.raises(ValueError, match=message) as error:
        pool.act(choose(0, 0))
    told = "\n".join([str(error.value), *getattr(error.value, "__notes__", [])])
    assert "environment 1" in told


def test_none_as_the_first_observation_of_an_undeclared_space_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Shows: the observation is None; where there is nothing to show"):
        from_gymnasium(shows(None))


def test_an_environment_without_an_action_space_says_what_to_give() -> None:
    class NoActions(Line):
        action_space = None

    with pytest.raises(ValueError, match=r"NoActions declares no action space: give action_space="):
        from_gymnasium(NoActions)


def test_a_space_that_changes_is_refused(pools: Any) -> None:
    pool = pools(Grows, 1)
    pool.reset()
    with pytest.raises(
        ValueError, match=r"Grows \(environment 0\): observation_space was Box.* and is Box.*must not change"
    ):
        pool.reset()


def test_an_action_space_that_changes_is_advised_to_close_choices(pools: Any) -> None:
    line = Line()
    pool = pools([line])
    line.action_space = spaces.Discrete(3)
    with pytest.raises(
        ValueError, match=r"action_space was Discrete\(2\) and is Discrete\(3\).*all actions, and close"
    ):
        pool.reset()


def test_an_unsupported_space_is_refused_with_the_environments_name() -> None:
    with pytest.raises(ValueError, match=r"Shows: the observation space is a Text, which has no form as entities"):
        from_gymnasium(shows("a", space=spaces.Text(3)))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((1, 2, 3), r"step\(\) returned \(1, 2, 3\); expected \(observation, reward, terminated, truncated, info\)"),
        (None, r"step\(\) returned None"),
        ((np.zeros(2), 0.0, "no", False, {}), r"returned terminated='no'; expected a bool"),
        ((np.zeros(2), 0.0, False, False, 5), r"returned the info 5; expected a dictionary"),
    ],
)
def test_a_step_that_returns_something_else_is_refused(result: Any, message: str) -> None:
    line = Line()
    world = GymWorld(line)
    rows = world.observations.empty()
    world.reseed(0)
    world.reset(rows)
    line.step = lambda action: result  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=message):
        world.step(0, rows)


def test_what_an_environment_raises_keeps_its_type_and_says_where(pools: Any) -> None:
    pool = pools(lambda: Fails(), 3)
    pool.reset()
    with pytest.raises(RuntimeError, match="the motor is gone") as error:
        pool.act(choose(0, 0, 0))
    assert error.value.__notes__ == ["raised by Fails (environment 0) in step()"]
    assert agents(pool.reset(seed=9)) == [[9, 0], [10, 0], [11, 0]], "the pool is of use again after a reset"


def test_a_world_that_draws_nothing_says_how_it_would() -> None:
    with ThreadedVecEnv(GymFactory("CartPole-v1"), 1) as pool:
        pool.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it is not asked for pictures, which Gymnasium would warn of every time
            with pytest.raises(
                NoPictureError, match=r"Make the environment with render_mode='rgb_array'; in training with env\.kwargs"
            ):
                pool.render([0])


def test_environments_are_closed_with_their_pool_and_when_one_cannot_be_made() -> None:
    envs = [Line() for _ in range(3)]
    from_gymnasium(envs).close()
    assert [env.closed for env in envs] == [1, 1, 1]
    made = [Line(), Line()]
    waiting: Iterator[Any] = iter([*made, 5])
    with pytest.raises(ValueError, match="5 is no environment"):
        from_gymnasium(lambda: next(waiting), 3)
    assert [env.closed for env in made] == [1, 1]


def test_a_pool_of_them_cannot_be_copied_and_says_so(pools: Any) -> None:
    pool = pools(Line, 1)
    pool.reset()
    with pytest.raises(ValueError, match="a copy needs environments that can be saved; Line cannot be"):
        pool.clone()


# ---- parity


# ---- infos that are no results


class Told(gymnasium.Env[Any, Any]):
    """One step, whose info has `prob` and `score`."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {"prob": 1, "score": 0}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, True, False, {"prob": 0.5, "score": 3}


@pytest.mark.parametrize("executor", ["list", "one"])
def test_the_probability_of_a_transition_in_toy_text_is_no_result_of_an_episode(executor: str) -> None:
    def infos(env: Any, **kwargs: Any) -> dict[str, Any]:
        factory = gymnasium_worlds(env, **kwargs)
        pool = ListEnv(factory if executor == "list" else factory.as_environment, 1)
        obs, rng = pool.reset(1), np.random.default_rng(0)
        while not obs.done.any():
            obs = pool.act(random_actions(obs, rng, pool.action_space()))
        return dict(obs.end_of_episode_info.get(0, {}))

    assert infos("FrozenLake-v1") == infos("Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3") == {}
    assert infos(Told) == {"prob": 0.5, "score": 3}  # of a world that is no toy text
