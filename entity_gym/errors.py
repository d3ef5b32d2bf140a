"""Wording shared by every error message: say what is near what was given; and where a warning points to."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable
from numbers import Integral


class NoPictureError(NotImplementedError, ValueError):
    """An environment draws nothing, or was not made for it."""


def nearest(given: object, allowed: Iterable[str]) -> str:
    """Return `allowed` as the tail of an error message, with the nearest name where there is one.

    Args:
        given: the name that was not found.
        allowed: the names that would have been.

    Returns:
        For example `"allowed: 'Mine', 'Robot'; did you mean 'Mine'?"`.
    """
    names = list(allowed)
    listing = ", ".join(repr(name) for name in names) if names else "nothing"
    near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.5)
    folded = [name for name in names if name.lower() == str(given).lower()]
    near = folded or near
    return f"allowed: {listing}" + (f"; did you mean {near[0]!r}?" if near else "")


def shortened(message: str, most: int = 1000) -> str:
    """Return a message of at most `most` characters: the middle of a longer one becomes `...`."""
    head, tail = most * 2 // 3, most // 4
    return message if len(message) <= most else f"{message[:head]} ... {message[-tail:]}"


def check_parts(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise a ValueError for the first name that is not known: a misspelt part would be ignored otherwise.

    Args:
        given: the names of the parts that were given.
        known: the names that are allowed.
        what: the thing that has the parts, for the message.
    """
    known = list(known)
    for name in given:
        if name not in known:
            raise ValueError(f"{what} has no part {name!r}; {nearest(name, known)}")


def check_whole(given: object, what: str, least: int = 1) -> None:
    """Raise a ValueError unless `given` is a whole number of at least `least`."""
    if isinstance(given, bool) or not isinstance(given, Integral) or given < least:
        raise ValueError(f"{what} is {given!r:.200}; it must be a whole number of at least {least}")


def warn_caller(message: str) -> None:
    """Warn, at the line outside of this package that led here."""
    depth, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("entity_gym."):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, stacklevel=depth)
