"""Mistakes that can be seen in the source: names that are not declared, parameters that are written to.

The compiler would find most of them too, in other words; as ordinary Python some would only show at run time.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from entity_gym.compiled.declare import Kind
from entity_gym.compiled.description import Description
from entity_gym.compiled.explain import CompileError
from entity_gym.compiled.layout import ENGINE_FIELDS, Layout
from entity_gym.errors import nearest

_ARGUMENTS = {"reset": ("s",), "step": ("s", "act"), "observe": ("s", "obs")}


def check_source(env: type[Description], layout: Layout) -> None:
    """Look through `reset`, `step` and `observe`.

    Raises:
        CompileError: naming the file, the line and what is wrong there.
    """
    for name, roles in _ARGUMENTS.items():
        function: Callable[..., Any] = getattr(env, name)
        given = list(inspect.signature(function).parameters)
        if len(given) != len(roles):
            raise CompileError(
                f"{env.__name__}.{name}({', '.join(given)}) takes {len(given)} arguments; it is written "
                f"{name}({', '.join(roles)}), without self "
                f"({function.__code__.co_filename}, line {function.__code__.co_firstlineno})"
            )
        try:
            lines, start = inspect.getsourcelines(function)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue  # no source to look at: the compiler will
        arguments = dict(zip(roles, given, strict=True))
        for node, problem in _problems(tree, name, arguments, layout):
            line = start + node.lineno - 1
            code = lines[node.lineno - 1].strip()
            raise CompileError(
                f"{env.__name__}.{name}: {problem} ({inspect.getsourcefile(function)}, line {line}: `{code}`)"
            )


def _problems(
    tree: ast.AST, function: str, arguments: Mapping[str, str], layout: Layout
) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    record = list(layout.record.names or ())
    definition = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and function == "step":
            values = node.value.elts if isinstance(node.value, ast.Tuple) else None
            if node.value is None or (values is not None and len(values) != 3):
                yield node, "step returns three values on every path: reward, terminated, truncated"
        if not isinstance(node, ast.Attribute):
            continue
        path = _path(node)
        if path[:1] == [arguments["s"]] and len(path) == 2:
            yield from _record_problems(node, path[1], function, record, layout)
        elif path[:1] == [arguments.get("obs")]:
            yield from _obs_problems(node, path[1:], layout)
        elif path[:1] == [arguments.get("act")]:
            allowed = ["first", *(action.attribute for action in layout.actions)]
            if len(path) == 2 and path[1] not in allowed:
                yield node, f"there is no action {path[1]!r}; {nearest(path[1], allowed)}"
            elif len(path) == 3 and path[1] == "first" and path[2] not in layout.entities:
                yield node, f"there is no entity type {path[2]!r}; {nearest(path[2], layout.entities)}"
    if function == "step" and not _always_returns(definition.body):
        last = definition.body[-1] if any(isinstance(node, ast.Return) for node in ast.walk(tree)) else definition
        yield last, "step returns three values on every path, reward, terminated, truncated; one path ends without"


def _always_returns(body: Sequence[ast.stmt]) -> bool:
    """Whether control never falls off the end of `body`, as far as can easily be told; otherwise the compiler will say."""
    last = body[-1]
    if isinstance(last, ast.If):
        return bool(last.orelse) and _always_returns(last.body) and _always_returns(last.orelse)
    if isinstance(last, ast.While) and not last.orelse:  # only one that goes on for ever
        forever = isinstance(last.test, ast.Constant) and bool(last.test.value)
        return forever and not any(isinstance(node, ast.Break) for node in ast.walk(last))
    if isinstance(last, ast.For):
        return bool(last.orelse)
    return not isinstance(last, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr | ast.Pass)


def _record_problems(
    node: ast.Attribute, name: str, function: str, record: list[str], layout: Layout
) -> Iterator[tuple[ast.expr, str]]:
    if name not in record:
        yield node, f"there is no field {name!r}; {nearest(name, record)}"
    elif isinstance(node.ctx, ast.Store):
        if name in layout.parameters or name in ENGINE_FIELDS:
            yield node, f"{name!r} is read-only: it is a parameter, or the engine's; copy it to a field of `state`"
        elif function == "observe":
            yield node, f"observe must not change the state, and writes {name!r}; do that in reset or step"


def _obs_problems(node: ast.Attribute, path: list[str], layout: Layout) -> Iterator[tuple[ast.expr, str]]:
    actions = {action.attribute: action for action in layout.actions}
    if len(path) == 2 and path[0] == "n":
        known = list(layout.counts.names or ())
        if path[1] not in known:
            yield node, f"there is nothing called {path[1]!r} to count; {nearest(path[1], known)}"
    elif len(path) == 2 and path[0] == "visible":
        hideable = [name for name, entity in layout.entities.items() if entity.hideable]
        if path[1] not in hideable:
            yield node, f"{path[1]!r} cannot be hidden: declare it with Entity(..., hideable=True)"
    elif len(path) == 2 and path[0] in actions:
        action, part = actions[path[0]], path[1]
        roles = () if action.space.is_global else tuple(listed.role for listed in action.lists)
        declared = {name: name in action.written for name in (*roles, *(["mask"] if action.space.discrete else []))}
        if part not in declared:
            yield node, f"an action's observation has no {part!r}; {nearest(part, declared)}"
        elif not declared[part]:
            hint = (
                "declare the action with masked=True"
                if part == "mask"
                else f"the declared {part} are filled in for you"
            )
            yield node, f"{action.name!r} has no {part} to write: {hint}"
    elif len(path) == 2 and path[0] == "ids":
        with_ids = [slot.owner for slot in layout.of_kind(Kind.IDS)]
        if path[1] not in with_ids:
            yield node, f"{path[1]!r} has no ids to write: declare it with Entity(..., ids=True)"
    elif len(path) == 1:
        known = ["n", "visible", "ids", *layout.entities, *actions]
        if path[0] == "global_features" and not layout.global_features:
            yield node, "there are no global features: declare `global_features`"
        elif path[0] not in (*known, "global_features"):
            yield node, f"the observation has no {path[0]!r}; {nearest(path[0], known)}"
        elif path[0] in layout.entities and not layout.entities[path[0]].features:
            yield node, f"entities of type {layout.entity_names[path[0]]!r} have no features to write"


def _path(node: ast.AST) -> list[str]:
    """["obs", "n", "Mine"] for `obs.n.Mine`; empty for anything that does not start with a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []
