"""Parameters on the command line, and errors in an environment's code."""

from __future__ import annotations

import ast
import linecache
import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_STANDARD_LIBRARY = str(Path(os.__file__).parent) + os.sep


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Parse parameters such as "size=8".

    Raises:
        ValueError: one has no "=".
    """
    parsed: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"--set takes name=value, such as size=8; got {setting!r}")
        try:
            parsed[name] = ast.literal_eval({"true": "True", "false": "False", "null": "None"}.get(text, text))
        except (SyntaxError, ValueError, MemoryError, RecursionError):  # the last two where it nests too deeply
            parsed[name] = text
    return parsed


def describe_error(error: BaseException) -> str:
    """Return one line: the message, and the place in the user's code, such as "my_env.py, line 12, in act: `x = 1 / 0`".

    An error that entity_gym raised on its own is described by its message alone.
    """
    users, libraries = list[str](), list[str]()
    for frame, line in traceback.walk_tb(error.__traceback__):
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        # Included environments are treated like those of users; "entity_gym_..." is generated for compiled environments.
        is_ours = module.startswith(("entity_gym.", "entity_gym_", "rogue_net.", "enn_ppo."))
        if (is_ours and not module.startswith("entity_gym.envs.")) or file.startswith("<"):
            continue
        if "site-packages" in file:
            libraries.append(_format_place(file, line, frame.f_code.co_name))
        elif not file.startswith(_STANDARD_LIBRARY):
            users.append(_format_place(file, line, frame.f_code.co_name))
    message, name = re.sub(r"\s*\n\s*", " ", str(error)).strip(), type(error).__name__
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        users, message = [_format_place(error.filename, error.lineno, "<module>")], error.msg
    if not users and not libraries:
        return message if isinstance(error, ValueError) and message else f"{name}: {message}"
    return f"{name}{': ' * bool(message)}{message} ({(users or libraries)[-1]})"


def _format_place(file: str, line: int, function: str) -> str:
    code, path = linecache.getline(file, line).strip(), Path(file)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    within = f", in {function}" if function != "<module>" else ""
    says_more = code and not code.startswith("raise ")  # the message has said that
    return f"{shown}, line {line}{within}" + (f": `{code}`" if says_more else "")
