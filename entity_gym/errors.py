"""Wording shared by every error message: say what is near what was given."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
