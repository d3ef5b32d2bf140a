"""Environments by name: `bind`, `make`, `make_spec`, `register` and `list_envs`."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entity_gym import registry
from entity_gym.actions.choices import random_actions
from entity_gym.envs.minesweeper import MineSweeper
from entity_gym.pools.vec_env import VecEnv
from entity_gym.registry import bind, list_envs, make, make_spec, register
from tests.entity_gym.bridges.out_worlds import Depot, Hall, Packers
from tests.entity_gym.pools.kinds_of_pools import Counter, content, play_together
from tests.entity_gym.pools.processes.thread_workers import threads as threads

ZOO = [
    "CartPole-v0",
    "CartPole-v1",
    "CherryPick",
    "ConnectFour",
    "Corridor",
    "Count",
    "FloorIsLava",
    "Knapsack",
    "Minefield",
    "MineSweeper",
    "MoveToOrigin",
    "MultiArmedBandit",
    "MultiSnake",
    "NotHotdog",
    "Pairs",
    "PickMatchingBalls",
    "RockPaperScissors",
    "Route",
    "Shells",
    "Skirmish",
    "TreasureHunt",
    "Xor",
]


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget after a test what it has registered."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An importable `my_worlds` with a class and a function, and a `my_broken_worlds` that imports what is not there."""
    lines = ["from entity_gym import Environment", "class Meadow(Environment): pass", "def make(): pass", "number = 3"]
    (tmp_path / "my_worlds.py").write_text("\n".join(lines))
    (tmp_path / "my_broken_worlds.py").write_text("import a_package_that_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_worlds", raising=False)
    return "my_worlds"


# ---- names


@pytest.mark.parametrize("name", ["CartPole-v0", "MineSweeper", "Skirmish"])
def test_every_name_makes_a_pool_that_plays(name: str) -> None:
    assert set(ZOO) <= set(list_envs())
    assert list_envs() == sorted(list_envs(), key=str.lower)
    with make(name, 3, seed=1, compile=False) as pool:
        obs = pool.reset()
        for _ in range(3):
            obs = pool.act(random_actions(obs, np.random.default_rng(0), pool.action_space()))
        assert len(obs) == 3
        assert make_spec(name).obs_space == pool.obs_space()
        assert make_spec(name).action_space == pool.action_space()


def test_a_class_a_description_and_its_place_make_the_same() -> None:
    place = "entity_gym.envs.minesweeper:MineSweeper"
    seen = []
    for env in ("MineSweeper", place, MineSweeper, MineSweeper(width=4)):
        with make(env, 2, seed=5, compile=False, width=4) as pool:
            seen.append([content(obs) for obs in play_together(pool, 10)])
    assert seen[0] == seen[1] == seen[2] == seen[3]


def test_a_class_or_a_function_is_found_in_its_module(module: str) -> None:
    assert bind(f"{module}:Meadow").name == "Meadow"
    assert bind(f"{module}:make").name == "make"


def test_environments_of_other_libraries_are_found_by_their_prefix() -> None:
    view = {"entities": {"Cart": {"count": 1, "features": ["x", "speed"]}}, "ignore": "rest"}
    assert "Cart" in bind("gymnasium:CartPole-v1", {"view": view}).spaces()[0].entities
    with make("gymnasium:CartPole-v1", 2) as pool:
        assert pool.reset().features["Agent"].values.shape == (2, 4)
    with pytest.raises(ValueError, match="'CartPol-v1' is no environment that Gymnasium knows"):
        bind("gymnasium:CartPol-v1")
    with pytest.raises(ValueError, match="program:x: .*unexpected keyword argument 'commnd'"):
        bind("program:x", {"commnd": "ls"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Minesweeper",
            "'Minesweeper', which is no known one; allowed: .*did you mean 'MineSweeper'.*my_package.my_module",
        ),
        (
            "my_worlds:Medow",
            r"my_worlds has no class or function 'Medow'; allowed: 'Meadow', 'make'; did you mean 'Meadow'\?",
        ),
        ("no_such_module:MyEnv", "there is no module 'no_such_module' to import"),
        (":MyEnv", "':MyEnv'; .*my_package.my_module:MyEnv"),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_the_nearest(name: str, message: str, module: str) -> None:
    with pytest.raises(ValueError, match=message):
        bind(name, option="env.id")
    with pytest.raises(ValueError, match="env.id is"):
        bind(name, option="env.id")


def test_an_error_inside_the_module_is_not_mistaken_for_a_missing_module(module: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="a_package_that_nobody_has"):
        bind("my_broken_worlds:MyEnv")


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(ValueError, match="3 is no environment"):
        make(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one Counter object; give what makes one, such as the class Counter"):
        make(Counter())  # type: ignore[arg-type]


# ---- parameters and options


@pytest.mark.parametrize(("given", "meant"), [("num_env", "num_envs"), ("widht", "width"), ("max_step", "max_steps")])
def test_an_unknown_keyword_is_answered_with_the_nearest_option_or_parameter(given: str, meant: str) -> None:
    for function in (make, make_spec):
        with pytest.raises(ValueError, match=rf"has no parameter '{given}'.*did you mean '{meant}'\?"):
            function("MineSweeper", **{given: 3})


def sized(size: int, *, limit: int = 3) -> Counter:
    return Counter(limit=limit)


def test_a_python_environments_keywords_are_looked_at_too() -> None:
    with pytest.raises(
        ValueError, match=r"Counter has no parameter 'limits'.*'limit', 'error'.*did you mean 'limit'\?"
    ):
        make(Counter, limits=3)
    with pytest.raises(ValueError, match=r"sized\(size.*\{'limit': 4\}: the parameter 'size' has no value"):
        bind(sized, {"limit": 4})
    assert bind(sized, {"size": 1}).values == {"size": 1, "limit": 3}


def test_episodes_are_truncated_after_max_episode_steps() -> None:
    with make("MultiArmedBandit", max_episode_steps=2, compile=False) as pool:
        assert isinstance(pool, VecEnv) and not pool.slots.options.compile
        ends = [obs.truncated.tolist() for obs in play_together(pool, 4)]
    assert ends == [[False], [False], [True], [False], [True]]


def limited(max_steps: int = 5) -> Counter:
    return Counter(limit=max_steps)


def limited_otherwise(max_episode_steps: int = 5) -> Counter:
    return Counter(limit=max_episode_steps)


def test_max_episode_steps_is_a_python_environments_max_steps() -> None:
    with make(limited, max_episode_steps=2) as pool:
        assert pool.slots.envs[0].limit == 2  # type: ignore[attr-defined]
    register("Otherwise", limited_otherwise, max_episode_steps=3)
    assert bind("Otherwise").values == {"max_episode_steps": 3}
    assert make_spec(limited).config.max_episode_steps == 5
    with pytest.raises(ValueError, match="max_episode_steps is 2, but Counter has no parameter 'max_steps'"):
        make(Counter, max_episode_steps=2)
    for env in ("MineSweeper", limited):
        with pytest.raises(ValueError, match="max_steps=3 and max_episode_steps=4: give one of them"):
            make(env, max_steps=3, max_episode_steps=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 3, "num_envs": 2}, "batch_size is 3; it must be a whole number from 1 to num_envs=2"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0; it must be a whole number of at least 1"),
        ({"num_processes": 2, "num_threads": 2}, "num_processes is 2, so num_threads=2 .*would not be used"),
        ({"width": 0}, "width=0"),
        ({"max_entities": {"Mines": 3}}, "max_entities names 'Mines'; .*did you mean 'Mine'"),
        ({"max_actors": {"Move": 0}}, "max_actors\\['Move'\\] is 0; it must be a whole number of at least 1"),
    ],
)
def test_an_option_that_cannot_be_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_spec("MineSweeper", **options)


@pytest.mark.parametrize("options", [{"max_entities": {"Mine": 3}}, {"max_actors": {"Move": 1}}])
def test_make_does_not_pad(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="which is for make_gym and make_dm: make does not pad entities"):
        make("MineSweeper", **options)


# ---- registering


def test_a_registered_environment_has_the_given_defaults() -> None:
    register("TinyField", MineSweeper, max_episode_steps=9, reward_threshold=0.5, width=3, height=3)
    spec = make_spec("TinyField", height=4)
    assert (spec.config.max_episode_steps, spec.reward_threshold) == (9, 0.5)
    assert (spec.config.parameters["width"], spec.config.parameters["height"]) == (3, 4)
    assert make_spec("TinyField", max_steps=4).config.max_episode_steps == 4
    assert make_spec("TinyField", max_episode_steps=4, reward_threshold=666).reward_threshold == 666
    assert bind("TinyField").values["width"] == 3


def test_a_registered_place_is_imported_when_it_is_made() -> None:
    register("Nowhere", "no_such_package.module:World")
    with pytest.raises(ValueError, match="there is no module 'no_such_package.module' to import"):
        make("Nowhere")


def test_a_taken_name_is_refused_unless_it_is_for_the_same() -> None:
    register("Mine", Counter, limit=2)
    register("Mine", Counter, limit=2)
    for name in ("Mine", "CartPole-v1"):
        with pytest.raises(ValueError, match="is taken by"):
            register(name, Counter, limit=3)


@pytest.mark.parametrize(
    ("name", "env", "message"),
    [("a:b", Counter, "without ':'"), ("", Counter, "without ':'"), ("A", 3, "3 is no env"), ("A", "B", "my_package")],
)
def test_what_cannot_be_registered_is_refused(name: str, env: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        register(name, env)


# ---- specs


def test_a_spec_shows_configuration_observation_and_actions() -> None:
    shown = " ".join(
        repr(make_spec("MineSweeper", num_envs=4, batch_size=2, seed=7, reward_threshold=3, width=8)).split()
    )
    for part in (
        "num_envs=4, batch_size=2, num_threads=1",
        "num_processes=0, seed=7, max_episode_steps=100, reward_threshold=3",
        "width=8, height=6",
        "Mine: at most 64, features [x, y]",
        "Move: categorical, 0 to 4 (x+1, x-1, y+1, y-1, Defuse Mines), at most 16 actor(s), masked",
        "Fire Orbital Cannon: select entity, 0 to 80, at most 1 actor(s)",
    ):
        assert part in shown


def test_max_entities_decides_how_far_a_selection_can_reach() -> None:
    # rows of 3 doors, 2 guests and a lamp: 0 to 5; with 1 guest, 0 to 4, and one actor
    assert "enter: select entity, 0 to 5, at most 2 actor(s)" in repr(make_spec(Hall))
    assert "enter: select entity, 0 to 4, at most 1 actor(s)" in repr(make_spec(Hall, max_entities={"Guest": 1}))


def test_the_values_of_a_set_are_flags_or_places_of_rows() -> None:
    assert "load: select entities, 0 to 5, at most 2 actor(s), masked" in repr(make_spec(Depot))
    for options, values in (
        ({}, "0 to 1"),
        ({"ordered": True}, "0 to ?"),
        ({"ordered": True, "max": 2}, "0 to 2"),
    ):
        assert f"pack: select entities, {values}, any number of actors, masked" in repr(make_spec(Packers, **options))


def test_a_python_environment_has_a_spec_without_bounds_on_entities() -> None:
    spec = make_spec(Counter, limit=4)
    assert (spec.entities["Total"], spec.actions["add"]) == (None, None)
    assert "Total: any number" in repr(spec) and "add: categorical, 0 to 2" in repr(spec)
    assert spec.config.parameters["limit"] == 4
