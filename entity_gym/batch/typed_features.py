"""Which values features may take: plain numbers and angles any finite one, categories and flags whole numbers from 0 on.

Shapes: E rows of entities, F features, K features among them that are whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.spaces import GLOBAL_ENTITY, Angle, Category, FeatureKind, Flag, ObsSpace


class WholeColumns(NamedTuple):
    """The columns of a type that hold whole numbers."""

    columns: NDArray[np.int64]  # (K,)
    limits: NDArray[np.float32]  # (K,) each is below this, and not below 0

    def wrong(self, features: NDArray[np.float32]) -> NDArray[np.bool_]:
        """(E, K) which of the `features` (E, F) are not what they must be; all of them are finite."""
        values = features[:, self.columns]
        wrong: NDArray[np.bool_] = (values < 0) | (values >= self.limits) | (values != np.floor(values))
        return wrong


class Bounds(NamedTuple):
    """Smallest and largest values."""

    low: NDArray[np.float32]  # (F,)
    high: NDArray[np.float32]  # (F,)


def num_values(kind: FeatureKind | None) -> int | None:
    """How many whole numbers, from 0 on, a feature of this kind may be; None where it may be any number."""
    if isinstance(kind, Category):
        return kind.num
    return 2 if isinstance(kind, Flag) else None


def whole_columns(names: Sequence[str], kinds: Mapping[str, FeatureKind]) -> WholeColumns | None:
    """The columns that hold whole numbers; None if none does."""
    nums = {column: num_values(kinds.get(name)) for column, name in enumerate(names)}
    limits = {column: num for column, num in nums.items() if num is not None}
    if not limits:
        return None
    return WholeColumns(np.array(list(limits), np.int64), np.array(list(limits.values()), np.float32))


def whole_columns_of(obs_space: ObsSpace) -> dict[str, WholeColumns]:
    """Type -> its columns that hold whole numbers, `__global__` included; types without are left out."""
    found = {name: whole_columns(entity.features, entity.kinds) for name, entity in obs_space.entities.items()}
    found[GLOBAL_ENTITY] = whole_columns(obs_space.global_features, obs_space.global_kinds)
    return {name: columns for name, columns in found.items() if columns is not None}


def wrong_values(
    features: NDArray[np.float32], names: Sequence[str], kinds: Mapping[str, FeatureKind]
) -> NDArray[np.bool_]:
    """(E, F) which of the `features` (E, F) may not be what they are."""
    wrong = ~np.isfinite(features)
    whole = whole_columns(names, kinds)
    if whole is not None:
        wrong[:, whole.columns] |= whole.wrong(features)
    return wrong


def refusal(value: np.float32, kind: FeatureKind | None) -> str:
    """The end of a message about a wrong value: what it is, and what is allowed."""
    number = format(float(value), ".9g")  # tells float32 apart, and 52 is not 52.0
    if isinstance(kind, Category):
        return f"{number}; a category of {kind.num} must be a whole number from 0 to {kind.num - 1}"
    if isinstance(kind, Flag):
        return f"{number}; a flag must be 0 or 1"
    return f"{number}; an angle must be a finite number" if kind else f"{number}; features must be finite numbers"


def bounds(names: Sequence[str], kinds: Mapping[str, FeatureKind]) -> Bounds:
    """Smallest and largest values of each feature, infinite where there is no bound."""
    nums = [num_values(kinds.get(name)) for name in names]
    low = [-np.inf if num is None else 0 for num in nums]
    high = [np.inf if num is None else num - 1 for num in nums]
    return Bounds(np.array(low, np.float32), np.array(high, np.float32))


def describe(names: Sequence[str], kinds: Mapping[str, FeatureKind]) -> str:
    """Such as "x, card (category of 52), heading (angle), frozen (flag)"."""
    words = {Angle: " (angle)", Flag: " (flag)"}
    told = {
        name: f" (category of {kind.num})" if isinstance(kind, Category) else words[type(kind)]
        for name, kind in kinds.items()
    }
    return ", ".join(f"{name}{told.get(name, '')}" for name in names)
