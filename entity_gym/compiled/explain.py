"""Compile errors in one paragraph: the user's file, line and variable, and the likely cause."""

from __future__ import annotations

import linecache
import os
import re
from contextlib import suppress
from typing import NamedTuple

from numba.core.ir import Loc

from entity_gym.compiled.description import Description
from entity_gym.compiled.layout import Layout
from entity_gym.errors import nearest

FULL_VARIABLE = "ENTITY_GYM_FULL_ERRORS"


class CompileError(ValueError):
    """An environment cannot be compiled. `full_text` is everything that the compiler said."""

    def __init__(self, message: str, full_text: str = "") -> None:
        super().__init__(message)
        self.full_text = full_text


class _Cause(NamedTuple):
    pattern: str
    said: str  # may use the pattern's groups
    hint: str


_CAUSES = [
    _Cause(
        r"No definition for lowering static_setitem\(NestedArray|No definition for lowering setitem\(NestedArray",
        "several elements of a field are assigned at once",
        "assign them in a loop",
    ),
    _Cause(
        r"Untyped global name '(\w+)'",
        "{0} cannot be used in compiled code",
        "mark functions that are called with @kernel; constants must be numbers, tuples or NumPy arrays",
    ),
    _Cause(
        r"Can't unify return type|[Cc]annot unify .*none",
        "a function returns values of different types on different paths",
        "step returns (reward, terminated, truncated) on every path; reset and observe return nothing",
    ),
    _Cause(
        r"[Cc]annot unify (.+?) and (.+?) for '(\w+)[\w.]*'",
        "the variable {2} is {0} on one path and {1} on another",
        "give it one type from the start: x = 0.0 where it will hold a float",
    ),
    _Cause(
        r"Cannot cast (.+?) to (\w+):",
        "{0} cannot be stored where {1} is needed",
        "give the variable or the field one type on all paths",
    ),
    _Cause(
        r"^KeyError: '(\w+)'",
        "there is no {0}",
        "a field must be declared in `state` or `parameters`",
    ),
    _Cause(
        r"(?:Unknown attribute|unknown attribute|no attribute|has no attribute|[Ff]ield) '(\w+)'",
        "there is no {0}",
        "a field must be declared in `state` or `parameters`",
    ),
    _Cause(r"NameError: name '(\w+)' is not defined", "the name {0} is not defined", "a misspelt or missing name"),
    _Cause(
        r"Variable '(\w+)' referenced before assignment",
        "the variable {0} is used before it has a value",
        "give it a value on every path",
    ),
    _Cause(
        r"too many values to unpack|unpack|wrong tuple length",
        "a tuple has another length than expected",
        "step returns three values: reward, terminated, truncated",
    ),
    _Cause(
        r"([^\n]*(?:[Uu]nsupported|not (?:yet )?supported)[^\n.]*)",
        "not available in compiled code: {0}",
        "use numbers, tuples, NumPy arrays, for and while loops, and functions marked with @kernel",
    ),
    _Cause(
        r"No implementation of function (.+?) found for signature",
        "{0} does not work with values of these types",
        "an array where a number is meant (s.pos instead of s.pos[i]), or a function that is unknown or makes an array",
    ),
]


def explain(error: Exception, env: type[Description], layout: Layout) -> CompileError:
    """The error to raise in place of Numba's."""
    text = f"KeyError: {error}" if isinstance(error, KeyError) else str(error)
    if os.environ.get(FULL_VARIABLE):
        return CompileError(text, text)
    said, hint = _cause(text, layout)
    place = _place(text + _location(error), env)
    message = (
        f"{env.__name__} does not compile: {said} ({place}). Likely cause: {hint}. "
        f"Set {FULL_VARIABLE}=1 for the compiler's own text, or run it as ordinary Python with compile=False."
    )
    return CompileError(message, text)


def _cause(text: str, layout: Layout) -> tuple[str, str]:
    for cause in _CAUSES:
        match = re.search(cause.pattern, text)
        if match:
            groups = [re.sub(r"Function\(<.*?function (\w+).*?>\)", r"\1", group.strip()) for group in match.groups()]
            said = cause.said.format(*groups)
            hint = cause.hint
            if cause.said.startswith("there is no"):
                known = [*(layout.record.names or ()), *(layout.counts.names or ())]
                hint += f"; {nearest(match.group(1), known)}"
            return said, hint
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if not line.startswith(("Failed in", "-", "During"))), "unknown error")
    return first.rstrip("."), "a construct that Numba does not know"


def _location(error: BaseException) -> str:
    """Where the compiler was, in its own form, if its message does not say."""
    traceback, found = error.__traceback__, ""
    while traceback is not None and not re.search(r"line \d+|\.py[:(]", str(error)):
        for value in list(traceback.tb_frame.f_locals.values()):
            at = value
            with suppress(Exception):  # some objects have no attributes, and some make them up
                at = vars(value).get("loc", value)
            if isinstance(at, Loc) and isinstance(at.line, int):
                found = f'\nFile "{at.filename}", line {at.line}'  # the innermost comes last
        traceback = traceback.tb_next
    return found


def _place(text: str, env: type[Description]) -> str:
    """The last line that the compiler names in the environment's own files, with its text."""
    functions = {name: getattr(env, name).__code__ for name in ("reset", "step", "observe")}
    files = sorted({code.co_filename for code in functions.values()})
    found = re.findall(r'File "([^"]+)", line (\d+)|at (\S+) \((\d+)\)|\((\S+\.py):(\d+)\)', text)
    places = [(a or c or e, int(b or d or f)) for a, b, c, d, e, f in found]
    theirs = [(file, line) for path, line in places for file in files if _is_end_of(path, file)]
    others = [(path, line) for path, line in places if "numba" not in path and not path.endswith("loops.py")]
    name = re.search(r"name '(\w+)' is not defined", text)
    if not theirs and not others and name:  # nobody says where: where it is written
        theirs = [(file, line) for file in files for line in _lines_with(name.group(1), file)]
    function = re.search(r"\b(reset|step|observe)\(s\b", text)
    if not theirs and not others and function:
        code = functions[function.group(1)]
        theirs = [(code.co_filename, code.co_firstlineno)]
    if not theirs and not others:
        return f"in {', '.join(files)}"
    path, line = (theirs or others)[-1]
    source = linecache.getline(path, line).strip()
    return f"{path}, line {line}: `{source}`" if source else f"{path}, line {line}"


def _is_end_of(path: str, file: str) -> bool:
    return path == file or file.endswith(os.path.normpath("/" + path.lstrip("./")))


def _lines_with(name: str, file: str) -> list[int]:
    lines = linecache.getlines(file)
    return [number for number, line in enumerate(lines, 1) if re.search(rf"\b{name}\b", line)]
