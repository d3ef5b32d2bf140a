"""Environments are found by name, or by where they are."""

import sys
from pathlib import Path
from typing import Any

import pytest

from entity_gym.envs.minesweeper import MineSweeper
from entity_gym.registry import look_up
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An importable `my_worlds` with a class and a factory, and a `my_broken_worlds` that imports what is not there."""
    lines = ["from entity_gym import Environment", "class Meadow(Environment): pass", "def make(): pass", "number = 3"]
    (tmp_path / "my_worlds.py").write_text("\n".join(lines))
    (tmp_path / "my_broken_worlds.py").write_text("import a_package_that_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_worlds", raising=False)
    return "my_worlds"


def find_environment(env_id: str) -> Any:
    return look_up(env_id, "env.id").load("env.id")


def test_minesweeper_is_known_by_name() -> None:
    assert find_environment("MineSweeper") is MineSweeper


def test_a_class_or_a_factory_is_found_in_its_module(module: str) -> None:
    assert find_environment("tests.entity_gym.envs.minesweeper_python:PythonMineSweeper") is PythonMineSweeper
    assert find_environment(f"{module}:Meadow").__name__ == "Meadow"
    assert find_environment(f"{module}:make").__name__ == "make"


@pytest.mark.parametrize("name", ["Minesweeper", "mine_sweeper", "MineSweper"])
def test_an_unknown_name_is_answered_with_the_nearest(name: str) -> None:
    with pytest.raises(
        ValueError, match=f"'{name}'.*allowed: .*did you mean 'MineSweeper'.*my_package.my_module:MyEnv"
    ):
        find_environment(name)


def test_an_unknown_class_is_answered_with_the_classes_of_the_module(module: str) -> None:
    with pytest.raises(ValueError, match=rf"'{module}:Medow', but {module} has no .*'Medow'; .*did you mean 'Meadow'"):
        find_environment(f"{module}:Medow")
    with pytest.raises(ValueError, match=r"allowed: 'Meadow'; did"):  # and not Environment, which it imports
        find_environment(f"{module}:Medow")
    with pytest.raises(ValueError, match="no class or function 'number'"):
        find_environment(f"{module}:number")


def test_what_makes_the_environments_of_a_game_is_offered_and_named_where_its_main_was_given() -> None:
    games = "tests.entity_gym.agents.games"
    assert find_environment(f"{games}:line").main.__name__ == "play"
    with pytest.raises(ValueError, match=f"env.id is '{games}:play', which is the main of {games}:line; name that"):
        find_environment(f"{games}:play")
    with pytest.raises(ValueError, match="has no class or function 'lime'; allowed: 'line'; did you mean 'line'"):
        find_environment(f"{games}:lime")


@pytest.mark.parametrize("name", ["no_such_module", "no_such_package.module", "entity_gym.no_such_module"])
def test_a_module_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"there is no module '{name}' to import"):
        find_environment(f"{name}:MyEnv")


@pytest.mark.parametrize("env_id", [":MyEnv", ".worlds:MyEnv"])
def test_a_module_is_named_in_full(env_id: str) -> None:
    with pytest.raises(ValueError, match=rf"'{env_id}'; .*my_package.my_module:MyEnv"):
        find_environment(env_id)


def test_an_error_inside_the_module_is_not_mistaken_for_a_missing_module(module: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="a_package_that_nobody_has"):
        find_environment("my_broken_worlds:MyEnv")
