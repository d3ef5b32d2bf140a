"""The schemas of a policy file's header and of a trainer's state: type and range of every entry that is used.

A checksum says that a file is as it was written, not who wrote it. Entries of other names are not checked, and not used.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

#: Raises ValueError for a value that is not allowed; the second argument is the value's place, which begins the message.
Check = Callable[[Any, str], None]


def check_trainer(trainer: Mapping[str, Any], step: object) -> None:
    """Check the entries of a trainer's state that are there.

    Args:
        trainer: the state.
        step: of the checkpoint, which the state's own must equal.

    Raises:
        ValueError: an entry has a type or a value that is not allowed; the message names its place.
    """
    _whole(step, "step")
    for name, check in TRAINER.items():
        if name in trainer:
            check(trainer[name], f"trainer[{name!r}]")
    if trainer.get("step", step) != step:
        raise ValueError(f"trainer['step'] is {trainer['step']}, and the checkpoint's step is {step}")


def _fail(where: str, value: object, expected: str) -> None:
    raise ValueError(f"{where} is {value!r:.80}; expected {expected}")


def _number(low: float = -sys.float_info.max) -> Check:
    def check(value: Any, where: str) -> None:
        if type(value) not in (int, float) or not low <= value <= sys.float_info.max:
            _fail(where, value, "a finite number" + (f" of at least {low:g}" if low == 0 else ""))

    return check


def _whole(value: Any, where: str) -> None:
    if type(value) is not int or not 0 <= value < 2**63:
        _fail(where, value, "a whole number from 0 to 2**63 - 1")


def _text(value: Any, where: str) -> None:
    if type(value) is not str:
        _fail(where, value, "a text")


def _mapping(value: Any, where: str) -> None:
    if type(value) is not dict:
        _fail(where, value, "a mapping")


def _anything(value: Any, where: str) -> None:
    pass


def _tensor(value: Any, where: str) -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        _fail(where, value, "a tensor of floats")


def _squares(value: Any, where: str) -> None:
    _tensor(value, where)
    if bool((value < 0).any()):
        _fail(where, value, "no number below 0")


def _adam_step(value: Any, where: str) -> None:
    _number(0)(value.item() if isinstance(value, Tensor) and value.dim() == 0 else value, where)


def _array(kind: type[np.generic], low: float = -math.inf) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, np.ndarray) or value.dtype != kind or value.ndim == 0 or (value < low).any():
            _fail(where, value, f"an array of {kind.__name__}" + (f" of at least {low:g}" if low > -math.inf else ""))

    return check


def _optional(inner: Check) -> Check:
    return lambda value, where: None if value is None else inner(value, where)


def _list(inner: Check) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, list | tuple):
            _fail(where, value, "a list")
        for index, item in enumerate(value):
            inner(item, f"{where}[{index}]")

    return check


def _row(*inner: Check) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, list | tuple) or len(value) != len(inner):
            _fail(where, value, f"a list of {len(inner)} values")
        for index, (each, item) in enumerate(zip(inner, value, strict=True)):
            each(item, f"{where}[{index}]")

    return check


def _numbered(inner: Check) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            _fail(where, value, "a mapping")
        for key, item in value.items():
            _whole(key, f"the key {key!r:.80} of {where}")
            inner(item, f"{where}[{key}]")

    return check


def _entries(**inner: Check) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, Mapping) or set(value) != set(inner):
            given = list(value) if isinstance(value, Mapping) else value
            _fail(where, given, f"the entries {', '.join(inner)}")
        for name, each in inner.items():
            each(value[name], f"{where}[{name!r}]")

    return check


def _either(entry: str, yes: Check, no: Check) -> Check:
    """`yes` for mappings that have the entry, and `no` for other values."""
    return lambda value, where: (yes if isinstance(value, Mapping) and entry in value else no)(value, where)


def _self_play(value: Any, where: str) -> None:
    _SELF_PLAY_ENTRIES(value, where)
    pool, rated = value["pool"], [row[0] for row in value["ratings"]["snapshots"]]
    if pool != sorted(set(pool)) or sorted(rated) != pool:
        _fail(f"{where}['pool']", pool, "ascending steps, each of which has a rating")
    if unknown := sorted({*pool, *value["choice"]} - set(value["snapshots"])):
        _fail(f"{where}['snapshots']", value["snapshots"], f"a list that has {unknown[0]}, which plays")


_MOMENTS = _entries(step=_adam_step, exp_avg=_tensor, exp_avg_sq=_squares)
_REWARD_SCALE = _entries(running=_tensor, count=_whole, mean=_number(), squares=_number(0))
_RETURN_SCALE = _entries(weight=_number(0), first=_number(), second=_number(0))
_BLOCK = _entries(
    environments=_anything,  # only of a trusted checkpoint, by the environments, which raise their own errors
    episodes=_entries(rewards=_array(np.float64), lengths=_array(np.int64, 0)),
)
_SELF_PLAY_ENTRIES = _entries(
    pool=_list(_whole),
    snapshots=_list(_whole),
    gone=_list(_row(_whole, _whole)),
    choice=_list(_whole),
    ratings=_entries(
        current=_row(_number(), _number(0)),
        snapshots=_list(_row(_whole, _number(), _number(0), _number(0), _number(0), _whole)),
    ),
)

#: Entry of a policy file's header -> its check.
HEADER: Mapping[str, Check] = {
    "format": _whole,
    "step": _whole,
    "config": _mapping,
    "spaces": _mapping,
    "value_unit": _number(sys.float_info.min),
    "trainer": _optional(_text),
    "seconds": _optional(_number(0)),
    "score": _optional(_number()),
}

#: Entry of a trainer's state -> its check.
TRAINER: Mapping[str, Check] = {
    "step": _whole,
    "num_updates": _whole,
    "seconds": _number(0),
    "optimizer": _entries(state=_numbered(_MOMENTS), param_groups=_anything),  # the groups are those of the settings
    "collector": _either("blocks", _entries(blocks=_list(_optional(_BLOCK))), _BLOCK),
    "scale": _optional(_either("running", _REWARD_SCALE, _RETURN_SCALE)),
    "recorder": _optional(
        _entries(
            path=_text,
            chunks=_whole,
            next_episode=_whole,
            episodes=_list(_row(_whole, _whole)),
        )
    ),
    "recent_rewards": _list(_number()),
    "evaluations": _list(_whole),
    "self_play": _optional(_self_play),
}
