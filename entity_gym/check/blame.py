"""What somebody else's code raised, in one line: their file, their line, and none of ours."""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from pathlib import Path
from types import FrameType

import entity_gym
from entity_gym.check.watch import HangError

_PACKAGE = str(Path(entity_gym.__file__).parent) + os.sep
_ZOO = _PACKAGE + "envs" + os.sep  # looked at like anybody's code
_ABOVE = ("enn_ppo.", "rogue_net.", "entity_gym_")  # the last: generated for compiled environments
_LIBRARIES = ("site-packages", "dist-packages")
_IN_A_WORKER = re.compile(r'^\s*File "([^"]+)", line (\d+), in (\S+)', re.MULTILINE)


def describe_error(error: BaseException, limit: float = 0.0) -> str:
    """Say in one line what went wrong and where in the user's code; only the message where it is ours.

    Args:
        error: as it was caught.
        limit: seconds that a call may take, for a `HangError`.
    """
    place = _place(error)
    if isinstance(error, HangError):
        return f"hangs: a call took more than {limit:g} s" + (f", in {place}" if place else "")
    message = re.sub(r"\s*\n\s*", " ", str(error)).strip()
    if place is None:
        # Ours says all there is to know; what is not a ValueError is better known by its name, too.
        return message if isinstance(error, ValueError) and message else f"{type(error).__name__}: {message}"
    if isinstance(error, SyntaxError):
        message = error.msg
    name = type(error).__name__
    return f"{name}: {message} ({place})" if message else f"{name} ({place})"


def _place(error: BaseException) -> str | None:
    """Such as "my_env.py, line 12, in act: `x = 1 / 0`"; None where no code of theirs is involved."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return _spell(error.filename, error.lineno, "")
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if not _is_ours(frame)]
    own = [(frame, line) for frame, line in frames if not any(part in frame.f_code.co_filename for part in _LIBRARIES)]
    for frame, line in reversed(own or frames):
        return _spell(frame.f_code.co_filename, line, frame.f_code.co_name)
    return _place_in_worker(error)


def _place_in_worker(error: BaseException) -> str | None:
    """From the traceback that a worker process sent along as text."""
    for note in reversed(getattr(error, "__notes__", [])):
        if "Traceback" in note:
            for file, line, function in reversed(_IN_A_WORKER.findall(note)):
                if not _is_our_file(file) and not any(part in file for part in _LIBRARIES):
                    return _spell(file, int(line), function)
    return None


def _is_ours(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    if _is_our_file(frame.f_code.co_filename) or module.startswith(_ABOVE):
        return True
    return module.partition(".")[0] in sys.stdlib_module_names


def _is_our_file(file: str) -> bool:
    return file.startswith(_PACKAGE) and not file.startswith(_ZOO)


def _spell(file: str, line: int, function: str) -> str:
    code = linecache.getline(file, line).strip()
    path = Path(file)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    within = f", in {function}" if function and function != "<module>" else ""
    says_more = code and not code.startswith("raise ")  # the message has said that
    return f"{shown}, line {line}{within}" + (f": `{code}`" if says_more else "")
