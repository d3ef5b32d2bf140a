"""Mistakes that can be seen in the source: names that are not declared, parameters that are written to, what cannot be compiled.

The compiler would find most of them too, later and in other words; as ordinary Python some would only show at run time.
"""

from __future__ import annotations

import ast
import inspect
import random
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from entity_gym.compiled.declare import Kind
from entity_gym.compiled.description import Description
from entity_gym.compiled.explain import CompileError
from entity_gym.compiled.layout import ENGINE_FIELDS, Layout
from entity_gym.errors import nearest

_ARGUMENTS = {"reset": ("s",), "step": ("s", "act"), "observe": ("s", "obs")}
_DRAWS = "draw with rand_int(s, n), rand_float(s) or rand_normal(s)"
#: What compiled code cannot do.
_UNKNOWN: dict[type[ast.AST], str] = {
    ast.GeneratorExp: "a generator: write a for loop",
    ast.Yield: "yield: a function returns once",
    ast.With: "a with statement",
    ast.Import: "an import: write it at the top of the file",
    ast.ImportFrom: "an import: write it at the top of the file",
}


def check_source(env: type[Description], layout: Layout, functions: Iterable[FunctionType]) -> None:
    """Look through `reset`, `step`, `observe`, and all that they call.

    Args:
        env: the class.
        layout: of the class.
        functions: of the user, all that are compiled.

    Raises:
        CompileError: naming the file, the line and what is wrong there.
    """
    roles = {getattr(env, name): name for name in _ARGUMENTS}
    for function, name in roles.items():
        given = list(inspect.signature(function).parameters)
        if len(given) != len(_ARGUMENTS[name]):
            raise CompileError(
                f"{env.__name__}.{name}({', '.join(given)}) takes {len(given)} arguments; it is written "
                f"{name}({', '.join(_ARGUMENTS[name])}), without self "
                f"({function.__code__.co_filename}, line {function.__code__.co_firstlineno})"
            )
    others = sorted(set(functions) - roles.keys(), key=lambda function: (function.__module__, function.__qualname__))
    for function in (*roles, *others):
        try:
            lines, start = inspect.getsourcelines(function)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue  # no source to look at: the compiler will
        role, problems = roles.get(function), list[tuple[int, str]]()
        arguments = dict(zip(_ARGUMENTS[role] if role else (), inspect.signature(function).parameters, strict=False))
        for node in ast.walk(tree):
            found = [
                *_construct_problems(node, function),
                *(_name_problems(node, role, arguments, layout) if role else ()),
            ]
            problems += [(getattr(node, "lineno", 0), problem) for problem in found]
        if problems:
            line, problem = min(problems)
            place = f"{inspect.getsourcefile(function)}, line {start + line - 1}: `{lines[line - 1].strip()}`"
            where = function.__qualname__ if role is None else f"{env.__name__}.{role}"
            raise CompileError(f"{where}: {problem} ({place})")


def _construct_problems(node: Any, function: FunctionType) -> Iterator[str]:
    """Say what cannot be compiled, or draws random numbers that no seed reaches."""
    unknown = _UNKNOWN.get(type(node))
    if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
        unknown = "an f-string with a format"
    if unknown:
        yield f"not available in compiled code: {unknown}"
    path = _path(node)
    if not path or path[0] in function.__code__.co_varnames:
        return
    value: Any = function.__globals__.get(path[0])
    for name in path[1:]:
        value = getattr(value, name, None) if isinstance(value, ModuleType) else value
    if path[0] == "self":
        yield f"there is no self: the world's fields are in s; {_DRAWS}"
    is_module = value is random or value is np.random
    if is_module or isinstance(getattr(value, "__self__", None), random.Random | np.random.RandomState):
        yield f"{'.'.join(path)} draws random numbers that no seed reaches; {_DRAWS}"


def _name_problems(node: Any, function: str, arguments: Mapping[str, str], layout: Layout) -> Iterator[str]:
    """Say which names are not declared, or may not be written to."""
    if isinstance(node, ast.Return) and function == "step":
        values = node.value.elts if isinstance(node.value, ast.Tuple) else None
        if node.value is None or (values is not None and len(values) != 3):
            yield "step returns three values on every path: reward, terminated, truncated"
    if not isinstance(node, ast.Attribute):
        return
    root, *path = _path(node) or [""]
    if root == arguments["s"] and len(path) == 1:
        [name] = path
        if name not in (layout.record.names or ()):
            yield f"there is no field {name!r}; {nearest(name, layout.record.names or ())}"
        elif isinstance(node.ctx, ast.Store) and (name in layout.parameters or name in ENGINE_FIELDS):
            yield f"{name!r} is read-only: it is a parameter, or the engine's; copy it to a field of `state`"
        elif isinstance(node.ctx, ast.Store) and function == "observe":
            yield f"observe must not change the state, and writes {name!r}; do that in reset or step"
    elif root == arguments.get("obs"):
        yield from _obs_problems(path, layout)
    elif root == arguments.get("act"):
        allowed = ["first", *(action.attribute for action in layout.actions)]
        if len(path) == 1 and path[0] not in allowed:
            yield f"there is no action {path[0]!r}; {nearest(path[0], allowed)}"
        elif len(path) == 2 and path[0] == "first" and path[1] not in layout.entities:
            yield f"there is no entity type {path[1]!r}; {nearest(path[1], layout.entities)}"


def _obs_problems(path: list[str], layout: Layout) -> Iterator[str]:
    """Say what is wrong with `obs.<path>`."""
    actions = {action.attribute: action for action in layout.actions}
    kinds = {"visible": (Kind.VISIBLE, "hideable"), "ids": (Kind.IDS, "ids")}
    name, part = path[0], path[1] if len(path) == 2 else ""
    if len(path) == 1:
        known = ["n", "visible", "ids", "global_features", *layout.entities, *actions]
        if name not in known:
            yield f"the observation has no {name!r}; {nearest(name, known)}"
        elif name == "global_features" and not layout.obs_space.global_features:
            yield "there are no global features: declare `global_features`"
        elif name in layout.entities and not layout.entities[name].features:
            yield f"entities of type {layout.entity_names[name]!r} have no features to write"
    elif name == "n" and part and part not in layout.count_names:
        yield f"there is nothing called {part!r} to count; {nearest(part, layout.count_names)}"
    elif name in kinds and part and part not in [slot.owner for slot in layout.of_kind(kinds[name][0])]:
        yield f"{part!r} has no {name} to write: declare it with Entity(..., {kinds[name][1]}=True)"
    elif name in actions and part and part not in (written := actions[name].written):
        filled = [listed.role for listed in actions[name].lists]
        if part == "mask" and actions[name].space.discrete:
            yield f"{actions[name].name!r} has no mask to write: declare the action with masked=True"
        elif part in filled and not actions[name].space.is_global:
            yield f"{actions[name].name!r} has no {part} to write: the declared {part} are filled in for you"
        else:
            yield f"an action's observation has no {part!r}; {nearest(part, written)}"


def _path(node: ast.AST) -> list[str]:
    """["obs", "n", "Mine"] for `obs.n.Mine`; empty for anything that does not start with a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []
