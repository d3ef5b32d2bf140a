"""The network's settings, and the checks that every settings class shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from entity_gym.errors import nearest

Backend = Literal["packed"]


def check_int(field: str, value: object, minimum: int, *, optional: bool = False) -> None:
    """Check a whole number.

    Args:
        field: the dotted name of the setting, for the message.
        value: what was given.
        minimum: the smallest value allowed.
        optional: whether None is allowed too.

    Raises:
        ValueError: with the field, the value and what is allowed.
    """
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        allowed = f"an integer of at least {minimum}" + (" or null" if optional else "")
        raise ValueError(f"{field} must be {allowed}, got {value!r}")


def check_float(
    field: str, value: object, low: float, high: float = math.inf, *, open_low: bool = False, open_high: bool = False
) -> None:
    """Check a finite number between `low` and `high`; an open end is itself not allowed.

    Raises:
        ValueError: with the field, the value and what is allowed.
    """
    if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
        above = value > low if open_low else value >= low
        below = value < high if open_high else value <= high
        if above and below:
            return
    left = f"greater than {low:g}" if open_low else f"at least {low:g}"
    right = "" if math.isinf(high) else f" and {'less than' if open_high else 'at most'} {high:g}"
    raise ValueError(f"{field} must be a number {left}{right}, got {value!r}")


def check_bool(field: str, value: object) -> None:
    """Check a truth value; 0 and 1 are not.

    Raises:
        ValueError: with the field and the value.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{field} must be true or false, got {value!r}")


def check_choice(field: str, value: object, choices: Sequence[str]) -> None:
    """Check that `value` is one of `choices`.

    Raises:
        ValueError: with the field, the value, the choices and the nearest of them.
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{field} is {value!r}; {nearest(value, choices)}")


def check_text(field: str, value: object, *, optional: bool = False) -> None:
    """Check a text that is not empty.

    Raises:
        ValueError: with the field, the value and what is allowed.
    """
    if optional and value is None:
        return
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{field} must be a text{' or null' if optional else ''}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class RogueNetConfig:
    """The shape of the network: one transformer that policy and value function share."""

    d_model: int = 32
    """Width of a token, in features. At least 1, divisible by `n_head`. Default 32."""
    n_layer: int = 2
    """Transformer blocks. At least 0: without blocks an entity sees only itself. Default 2."""
    n_head: int = 2
    """Attention heads per block. At least 1. Default 2."""
    d_qk: int = 16
    """Width of the queries and keys with which actors select entities, in features. At least 1. Default 16."""
    backend: Backend = "packed"
    """How ragged attention is computed: `packed` (the reference). Default `packed`."""

    def __post_init__(self) -> None:
        check_int("net.d_model", self.d_model, 1)
        check_int("net.n_layer", self.n_layer, 0)
        check_int("net.n_head", self.n_head, 1)
        check_int("net.d_qk", self.d_qk, 1)
        check_choice("net.backend", self.backend, get_args(Backend))
        if self.d_model % self.n_head != 0:
            raise ValueError(
                f"net.d_model must be divisible by net.n_head={self.n_head}, got {self.d_model}; "
                f"the nearest width that is: {max(1, round(self.d_model / self.n_head)) * self.n_head}"
            )
