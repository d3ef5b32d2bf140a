"""Columns of a type's features by their kind. Nothing here computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from entity_gym.spaces import Angle, Category, Feature, Flag


class CategoryColumn(NamedTuple):
    """A column of ids."""

    column: int
    kind: Category


@dataclass(frozen=True)
class FeatureColumns:
    """The columns of a type's features by their kind. Each list is in the order of the columns."""

    num: int  # of all of them
    plain: tuple[int, ...]
    angles: tuple[int, ...]
    flags: tuple[int, ...]
    categories: tuple[CategoryColumn, ...]

    @staticmethod
    def of(features: Sequence[Feature]) -> FeatureColumns:
        """The columns of `features`, as they are declared."""
        columns = list(enumerate(features))
        return FeatureColumns(
            num=len(columns),
            plain=tuple(column for column, kind in columns if isinstance(kind, str)),
            angles=tuple(column for column, kind in columns if isinstance(kind, Angle)),
            flags=tuple(column for column, kind in columns if isinstance(kind, Flag)),
            categories=tuple(CategoryColumn(column, kind) for column, kind in columns if isinstance(kind, Category)),
        )

    @property
    def num_inputs(self) -> int:
        """Number of inputs of an embedding's linear layer: an angle counts twice, for its cosine and its sine."""
        return len(self.plain) + 2 * len(self.angles) + len(self.flags)
