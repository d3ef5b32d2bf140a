"""Load the environment that a command line names, and describe errors in its code."""

from __future__ import annotations

import ast
import linecache
import os
import re
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import entity_gym
from entity_gym.pools.source import EnvSource, SlotsSource
from entity_gym.registry import LIBRARIES, bind

# --- Loading


def load_environment(name: str, parameters: Mapping[str, Any], view: str | None = None) -> EnvSource:
    """Find the environment with a registered name, `my_package.my_module:MyEnv`, or `gymnasium:CartPole-v1`.

    Args:
        name: the name, as it was typed.
        parameters: they replace registered ones.
        view: what of the observations of another library's environment is an entity.

    Raises:
        ValueError: there is no such environment, it has no such parameter, or it is a class of `EnvSlots`. Exceptions of
            the module's own code pass through.
    """
    libraries = list(LIBRARIES)
    if view is not None and name.partition(":")[0] not in libraries:
        raise ValueError(
            f"--view is for environments of {', '.join(libraries)}, such as gymnasium:CartPole-v1; {name} has entities already"
        )
    source = bind(name, parameters if view is None else {**parameters, "view": view})
    if isinstance(source, SlotsSource):
        source.as_environment()  # refuses
    return source


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Parse parameters such as "size=8".

    Raises:
        ValueError: one has no "=".
    """
    parsed: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"--set takes name=value, such as size=8; got {setting!r}")
        parsed[name] = _parse_value(value)
    return parsed


def _parse_value(text: str) -> Any:
    plain = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in plain:
        return plain[text.lower()]
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # the last two where it nests too deeply
        return text


# --- Describing errors

_PACKAGE = str(Path(entity_gym.__file__).parent) + os.sep
_ZOO = _PACKAGE + "envs" + os.sep  # included environments are treated like those of users
_ABOVE = ("enn_ppo.", "rogue_net.", "entity_gym_")  # the last: generated for compiled environments
_STANDARD_LIBRARY = str(Path(os.__file__).parent) + os.sep
_TRACEBACK_LINE = re.compile(r'^\s*File "([^"]+)", line (\d+),? in (\S+)', re.MULTILINE)  # of Python or faulthandler


def describe_error(error: BaseException) -> str:
    """Return one line: the message, and the place in the user's code, such as "my_env.py, line 12, in act: `x = 1 / 0`".

    An error that entity_gym raised on its own is described by its message alone.
    """
    calls = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not str(frame.f_globals.get("__name__", "")).startswith(_ABOVE)
    ]
    notes = reversed(getattr(error, "__notes__", []))  # a worker process sends its traceback as a note
    places = [_latest_place(calls[::-1]), *(traceback_place(note, latest_first=False) for note in notes)]
    place, message = next(filter(None, places), None), re.sub(r"\s*\n\s*", " ", str(error)).strip()
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        place, message = _format_place(error.filename, error.lineno, ""), error.msg
    name = type(error).__name__
    if place is None:
        return message if isinstance(error, ValueError) and message else f"{name}: {message}"
    return f"{name}: {message} ({place})" if message else f"{name} ({place})"


def traceback_place(text: str, *, latest_first: bool) -> str | None:
    """Find the latest call of the user's code in a printed traceback; None if there is none."""
    calls = [(file, int(line), function) for file, line, function in _TRACEBACK_LINE.findall(text)]
    return _latest_place(calls if latest_first else calls[::-1])


def _latest_place(calls: Sequence[tuple[str, int, str]]) -> str | None:
    """Find the first call of the user's code, or else of a library, among (file, line, function); the latest is first."""
    others = [call for call in calls if not call[0].startswith(_PACKAGE) or call[0].startswith(_ZOO)]
    libraries = [call for call in others if "site-packages" in call[0] or "dist-packages" in call[0]]
    users = [call for call in others if not call[0].startswith((_STANDARD_LIBRARY, "<")) and call not in libraries]
    return next((_format_place(*call) for call in users or libraries), None)


def _format_place(file: str, line: int, function: str) -> str:
    code = linecache.getline(file, line).strip()
    path = Path(file)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    within = f", in {function}" if function and function != "<module>" else ""
    says_more = code and not code.startswith("raise ")  # the message has said that
    return f"{shown}, line {line}{within}" + (f": `{code}`" if says_more else "")
