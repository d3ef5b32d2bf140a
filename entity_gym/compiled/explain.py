"""Mistakes in the source of a world: those that are seen in it, and those that the compiler finds, each in one paragraph."""

from __future__ import annotations

import ast
import inspect
import linecache
import random
import re
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from numba.core.ir import Loc

from entity_gym.compiled.layout import ENGINE_FIELDS, Layout
from entity_gym.errors import nearest

_OWN = "entity_gym.compiled."
_ARGUMENTS = {"reset": ("s",), "step": ("s", "act"), "observe": ("s", "obs")}
_DRAWS = "draw with rand_int(s, n), rand_float(s) or rand_normal(s)"

#: What compiled code cannot do, as the source has it.
_UNKNOWN: dict[type[ast.AST], str] = {
    ast.GeneratorExp: "a generator: write a for loop",
    ast.Yield: "yield: a function returns once",
    ast.With: "a with statement",
    ast.Import: "an import: write it at the top of the file",
    ast.ImportFrom: "an import: write it at the top of the file",
}

#: What the compiler says, and its likely cause; the first that matches counts, and {0} is the pattern's first group.
_CAUSES = (
    (r"setitem\(NestedArray", "several elements of a field are assigned at once: assign them in a loop"),
    (
        r"Untyped global name '(\w+)'",
        "{0} cannot be used in compiled code: mark functions that are called with @kernel; constants must be numbers, "
        "tuples or NumPy arrays",
    ),
    (
        r"unify return type|annot unify .*none",
        "a function returns values of different types on different paths: step returns three values: reward, terminated, "
        "truncated; reset and observe return nothing",
    ),
    (
        r"annot unify (.+?) and (.+?) for '(\w+)",
        "the variable {2} is {0} on one path and {1} on another: give it one type from the start, x = 0.0 where it will hold "
        "a float",
    ),
    (r"annot cast (.+?) to (\w+):", "{0} cannot be stored where {1} is needed: give it one type on all paths"),
    (r"(?:nknown attribute|no attribute|[Ff]ield|^KeyError:) '(\w+)'", "there is no {0}: a field must be declared; "),
    (r"name '(\w+)' is not defined", "the name {0} is not defined"),
    (r"Variable '(\w+)' referenced before", "the variable {0} is used before it has a value on every path"),
    (
        r"unpack|wrong tuple length",
        "a tuple has another length: step returns three values: reward, terminated, truncated",
    ),
    (
        r"([^\n]*(?:[Uu]nsupported|not (?:yet )?supported)[^\n.]*)",
        "not available in compiled code: {0}; use numbers, tuples, NumPy arrays, for and while loops, and @kernel functions",
    ),
    (
        r"No implementation of function (?:Function\(<.*?function )?(\w+)",
        "{0} does not work with values of these types, such as an array (s.pos) where a number is meant (s.pos[i])",
    ),
    (r"(?m)^(?!Failed in|During|-|\s)(.+)", "{0}"),
    (r"", "a construct that the compiler does not know"),
)


class CompileError(ValueError):
    """An environment cannot be compiled. `full_text` is everything that the compiler said."""

    def __init__(self, message: str, full_text: str = "") -> None:
        super().__init__(message)
        self.full_text = full_text


def check_source(layout: Layout, functions: Iterable[FunctionType]) -> None:
    """Look through `reset`, `step`, `observe`, and all that they call.

    Args:
        layout: of the class.
        functions: of the user, all that are compiled.

    Raises:
        CompileError: naming the file, the line and what is wrong there.
    """
    roles = {getattr(layout.env, name): name for name in _ARGUMENTS}
    for function, name in roles.items():
        given = list(inspect.signature(function).parameters)
        if len(given) != len(_ARGUMENTS[name]):
            raise CompileError(
                f"{layout.name}.{name}({', '.join(given)}) takes {len(given)} arguments; it is written "
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
        role = roles.get(function, "")
        record = next(iter(inspect.signature(function).parameters)) if role else ""
        problems = [
            (getattr(node, "lineno", 0), problem)
            for node in ast.walk(tree)
            for problem in (*_unknown_constructs(node, function), *_wrong_fields(node, role, record, layout))
        ]
        if problems:
            line, problem = min(problems)
            place = f"{inspect.getsourcefile(function)}, line {start + line - 1}: `{lines[line - 1].strip()}`"
            raise CompileError(f"{f'{layout.name}.{role}' if role else function.__qualname__}: {problem} ({place})")


def _unknown_constructs(node: Any, function: FunctionType) -> Iterator[str]:
    """Say what cannot be compiled, or draws random numbers that no seed reaches."""
    if unknown := _UNKNOWN.get(type(node)):
        yield f"not available in compiled code: {unknown}"
    if not isinstance(node, ast.Name | ast.Attribute):
        return
    root, *path = ast.unparse(node).split(".")
    if root in function.__code__.co_varnames:
        return
    value: Any = function.__globals__.get(root)
    for name in path:
        value = getattr(value, name, None) if isinstance(value, ModuleType) else value
    is_module = value is random or value is np.random
    if is_module or isinstance(getattr(value, "__self__", None), random.Random | np.random.RandomState):
        yield f"{'.'.join([root, *path])} draws random numbers that no seed reaches; {_DRAWS}"


def _wrong_fields(node: Any, role: str, record: str, layout: Layout) -> Iterator[str]:
    """Say which fields of the record are not declared, or may not be written to."""
    if not (role and isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == record):
        return
    name, fields = node.attr, layout.record.names or ()
    if name not in fields:
        yield f"there is no field {name!r}; {nearest(name, fields)}"
    elif isinstance(node.ctx, ast.Store) and (name in layout.env.parameters or name in ENGINE_FIELDS):
        yield f"{name!r} is read-only: it is a parameter, or the engine's; copy it to a field of `state`"
    elif isinstance(node.ctx, ast.Store) and role == "observe":
        yield f"observe must not change the state, and writes {name!r}; do that in reset or step"


def explain(error: Exception, layout: Layout, functions: Iterable[FunctionType]) -> CompileError:
    """Return the error to raise in place of Numba's.

    Args:
        error: Numba's.
        layout: of the environment.
        functions: all that are compiled.
    """
    text = re.sub(r"\x1b\[\d*m", "", f"KeyError: {error}" if isinstance(error, KeyError) else str(error))
    found = ((re.search(pattern, text), cause) for pattern, cause in _CAUSES)
    match, cause = next((match, cause) for match, cause in found if match)
    cause = cause.format(*map(str.strip, match.groups()))
    if cause.endswith("; "):
        cause += nearest(match.group(1), [*(layout.record.names or ()), *(layout.counts.names or ())])
    own = [function.__code__ for function in functions if not function.__module__.startswith(_OWN)]
    files = sorted({code.co_filename for code in own})
    places = [(file, line) for path, line in _places(error, text) for file in files if file.endswith(path.lstrip("./"))]
    if not places and (name := re.search(r"name '(\w+)' is not defined", text)):
        lines = [(file, line) for file in files for line in enumerate(linecache.getlines(file), 1)]
        places = [(file, number) for file, (number, line) in lines if re.search(rf"\b{name.group(1)}\b", line)]
    if not places:  # the generated code calls it
        called = re.findall(r"\b(reset|step|observe)\(s\b", text)
        places = [(code.co_filename, code.co_firstlineno) for code in own if code.co_name in called]
    where = ", ".join(files)
    if places:
        path, number = places[-1]
        where = f"{path}, line {number}: `{linecache.getline(path, number).strip()}`"
    message = (
        f"{layout.name} does not compile: {cause} ({where}). "
        "The `full_text` of this error is the compiler's own; compile=False runs the world as ordinary Python."
    )
    return CompileError(message, text)


def _places(error: BaseException, text: str) -> Iterator[tuple[str, int]]:
    """Yield the files and lines that the compiler names, the innermost last; where it names none, those that it was at."""
    found = re.findall(r'File "([^"]+)", line (\d+)|at (\S+) \((\d+)\)|\((\S+\.py):(\d+)\)', text)
    for path, line in (tuple(filter(None, groups)) for groups in found):
        yield path, int(line)
    traceback = None if found else error.__traceback__
    while traceback is not None:
        for value in list(traceback.tb_frame.f_locals.values()):
            at = value
            with suppress(Exception):  # some objects have no attributes, and some make them up
                at = vars(value).get("loc", value)
            if isinstance(at, Loc) and isinstance(at.line, int):
                yield at.filename, at.line
        traceback = traceback.tb_next
