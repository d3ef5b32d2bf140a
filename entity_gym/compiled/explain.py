"""Compile errors in one paragraph: the likely cause, and the user's file and line."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import FunctionType

from numba.core.ir import Loc

from entity_gym.compiled.layout import Layout
from entity_gym.errors import nearest

FULL_VARIABLE = "ENTITY_GYM_FULL_ERRORS"

_OWN = "entity_gym.compiled."

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


def explain(error: Exception, layout: Layout, functions: Iterable[FunctionType]) -> CompileError:
    """Return the error to raise in place of Numba's.

    Args:
        error: Numba's.
        layout: of the environment.
        functions: all that are compiled.
    """
    text = re.sub(r"\x1b\[\d*m", "", f"KeyError: {error}" if isinstance(error, KeyError) else str(error))
    if os.environ.get(FULL_VARIABLE):
        return CompileError(text, text)
    found = ((re.search(pattern, text), cause) for pattern, cause in _CAUSES)
    match, cause = next((match, cause) for match, cause in found if match)
    cause = cause.format(*map(str.strip, match.groups()))
    if cause.endswith("; "):
        cause += nearest(match.group(1), [*(layout.record.names or ()), *layout.count_names])
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
        f"Set {FULL_VARIABLE}=1 for the compiler's own text, or run it as ordinary Python with compile=False."
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
