"""Entities that a compiled environment declares, and the slots that hold what it shows.

Shapes: N slots, one for each environment. Every slot has room for the most that its environment can show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from entity_gym import spaces
from entity_gym.errors import check_whole


def safe_name(name: str) -> str:
    """`name` as an attribute: what cannot stand in an identifier becomes "_"."""
    return re.sub(r"\W", "_", name)


def is_compilable(dtype: np.dtype[Any]) -> bool:
    """Whether compiled code can read and write it: whole numbers, float32, float64 or bool, in this machine's byte order."""
    return dtype.isnative and (dtype.kind in "biu" or dtype in (np.float32, np.float64))


class Kind(Enum):
    """The kinds of arrays with a row for each slot; the value is the first part of their names in generated code."""

    FEATURES = "features"  # of an entity type
    VISIBLE = "visible"
    IDS = "ids"
    GLOBAL_FEATURES = "global"
    ACTORS = "actors"  # of an action: entity indices
    ACTEES = "actees"
    MASK = "mask"
    NUMBERS = "numbers"  # of a continuous action, as `step` sees them
    OUTCOME = ""  # of the last step; every environment has the same
    INFO = "info"
    METRIC = "metric"
    PENDING = "pending"  # parameters of the next episode


@dataclass(frozen=True)
class Slot:
    """An array with a row for each slot.

    Attributes:
        kind: of the array.
        owner: attribute of the entity type, action, parameter... that it belongs to.
        dtype, shape: of one slot.
        rows: for packed arrays the count that tells how many rows leave, or a pair of counts whose product tells it. None: the
            array is not packed by compiled code.
        row: shape of a row as it leaves.
        copy: the function of `runtime` that copies the rows.
        options: further arguments of that function.
        whole: (first column, last + 1, number of values) of neighbouring features that must be whole numbers.
    """

    kind: Kind
    owner: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    rows: str | tuple[str, str] | None = None
    row: tuple[int, ...] = ()
    copy: str = "copy_numbers"
    options: tuple[str, ...] = ()
    whole: tuple[tuple[int, int, int], ...] = ()

    @property
    def name(self) -> str:
        """The array's name in generated code."""
        return self.owner if self.kind is Kind.OUTCOME else f"{self.kind.value}_{self.owner}"


@dataclass(frozen=True, init=False, repr=False)
class Entity(spaces.Entity):
    """A type of entity. Features are as in `entity_gym.Entity`.

    Attributes:
        max: the most that one environment can show at once; sizes memory, and is never seen outside.
        hideable: whether `obs.visible.<Type>[i] = False` can hide entities from the policy.
        ids: whether `observe` writes `obs.ids.<Type>[i]`, an integer that stays with the entity for the whole episode;
            `new_id(s)` gives out fresh ones.
    """

    max: int
    hideable: bool
    ids: bool

    def __init__(
        self,
        features: Iterable[spaces.Feature],
        max: int,
        hideable: bool = False,
        kinds: Mapping[str, spaces.FeatureKind] = spaces.NO_KINDS,
        *,
        ids: bool = False,
    ) -> None:
        super().__init__(features, kinds)
        check_whole(max, "Entity: max")
        for name, value in (("max", max), ("hideable", hideable), ("ids", ids)):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        features = spaces.with_kinds(self.features, self.kinds)
        ids = ", ids=True" if self.ids else ""
        return f"Entity(features={features}, max={self.max}, hideable={self.hideable}{ids})"
