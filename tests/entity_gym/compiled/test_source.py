"""The generated source: short, formatted, and with names instead of abbreviations."""

import ast
import re

import pytest

from entity_gym.compiled.generate import source_of
from entity_gym.envs.minesweeper import MineSweeper
from tests.entity_gym.compiled.worlds import Everything


@pytest.mark.parametrize("world", [MineSweeper, Everything, Everything(windy=False)])
def test_it_is_python_in_short_lines_with_a_docstring_for_each_function(world: object) -> None:
    source = source_of(world)  # type: ignore[arg-type]
    tree = ast.parse(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert [each.name for each in functions] == ["check", "show", "advance", "plan", "copy", "work"]
    assert all(ast.get_docstring(each) for each in (tree, *functions))
    assert max(map(len, source.splitlines())) <= 125


def test_its_arrays_are_called_by_what_they_hold_and_whose_they_are() -> None:
    names = set(re.findall(r"\ba\.(\w+)", source_of(Everything)))
    assert {"features_Cat", "visible_Cat", "global_features", "actees_Chase", "mask_Chase", "choices_Walk"} <= names
    assert min(map(len, names)) > 2
