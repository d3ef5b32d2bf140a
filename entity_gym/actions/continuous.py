"""Continuous actions: every actor gives n real numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.kind import ActionSpace, ActorMask, CompiledCheck
from entity_gym.actions.reading import EntityID, FrameEntities, Offer
from entity_gym.batch.vec_obs import VecActionMask
from entity_gym.spaces import LARGEST_FLOAT32, check_names


@dataclass(kw_only=True)
class ContinuousActionMask(ActorMask):
    """The actors of a continuous action, as in `ActorMask`. The bounds are those of the space."""


@dataclass
class ContinuousAction:
    """The numbers of several actors.

    Attributes:
        actors: ids of the actors.
        values: (A, n) float32, those of each actor, within the space's bounds.
    """

    actors: Sequence[EntityID]
    values: NDArray[np.float32]

    def to_json(self) -> dict[str, Any]:
        return {"actors": list(self.actors), "values": np.asarray(self.values).tolist()}


@dataclass(frozen=True)
class ContinuousActionSpace(ActionSpace):
    """Every actor gives n real numbers, each within bounds of its own.

    Attributes:
        low: (n,) smallest value of each; -inf: none.
        high: (n,) largest value of each, above `low`; inf: none.
        names: of the n numbers, for people to read. None: they have none.

    Values travel as float32, so the bounds that hold are these, rounded to float32.
    """

    low: Sequence[float]
    high: Sequence[float]
    names: Sequence[str] | None = None

    kind = "continuous"
    mask_type = ContinuousActionMask
    action_type = ContinuousAction
    choices_field = "values"
    discrete = False
    dtype = np.float32
    page_options = ("low", "high")

    def __post_init__(self) -> None:
        for side in ("low", "high"):
            object.__setattr__(self, side, _bounds(getattr(self, side), f"ContinuousActionSpace.{side}"))
        if len(self.low) != len(self.high) or len(self.low) == 0:
            raise ValueError(
                f"ContinuousActionSpace has {len(self.low)} numbers in low and {len(self.high)} in high; "
                "give one of each for every number that an actor picks, at least one"
            )
        for k, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if np.float32(low) >= np.float32(high):
                raise ValueError(
                    f"ContinuousActionSpace: low[{k}] is {low} and high[{k}] {high}; low must be smaller, as float32 too"
                )
        if self.names is not None:
            check_names(self.names, "ContinuousActionSpace.names")
            if len(self.names) != len(self.low):
                raise ValueError(f"ContinuousActionSpace has {len(self.names)} names for {len(self.low)} numbers")
            object.__setattr__(self, "names", tuple(self.names))
        super().__post_init__()

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(map(str, range(len(self.low)))) if self.names is None else tuple(self.names)

    def changes_since(self, before: Self, name: str) -> Iterator[str]:
        yield from super().changes_since(before, name)
        for k, label in enumerate(before.labels):
            now = self.labels.index(label)
            bounds, bounds_now = (before.low[k], before.high[k]), (self.low[now], self.high[now])
            if bounds != bounds_now:
                raise ValueError(
                    f"the number {label!r} of the action {name!r} was within {bounds} and is within {bounds_now}"
                )

    def bounds(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return (n,) smallest and (n,) largest values, as new arrays."""
        return np.array(self.low, dtype=np.float32), np.array(self.high, dtype=np.float32)

    def read(self, name: str, mask: ContinuousActionMask, entities: FrameEntities) -> Offer:
        return Offer(entities.find(mask.actor_ids, mask.actor_types, "actor", name))

    def is_allowed(self, values: NDArray[np.float32], offered: VecActionMask) -> NDArray[np.bool_]:
        return np.asarray(~self._wrong(values).any(axis=1))

    def compiled_check(self) -> CompiledCheck:
        width, (low, high) = self.width, self.bounds()

        def check(values: Any, first: int, count: int, mask: Any, i: int, actees: Any, num_actees: int) -> bool:
            fine = True
            for k in range(count):
                for f in range(width):
                    value = values[first + k, f]
                    fine &= isfinite(value) & (value >= low[f]) & (value <= high[f])
            return fine

        return check

    def refusal(self, value: NDArray[np.float32]) -> str:
        low, high = self.bounds()
        k = int(self._wrong(value).argmax())
        return f": number {self.labels[k]!r} is {value[k]}; it must be a finite number from {low[k]} to {high[k]}"

    def _wrong(self, values: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return true for each number that is outside of its bounds, infinite or NaN."""
        low, high = self.bounds()
        # An infinite value is within infinite bounds, and NaN within none.
        fits = np.asarray((values >= low) & (values <= high) & np.isfinite(values))
        return ~fits

    def for_world(self, values: NDArray[np.float32], offer: Offer, ids: Sequence[EntityID | None]) -> ContinuousAction:
        return ContinuousAction([ids[actor] for actor in offer.actors.tolist()], values)

    def described(self) -> dict[str, Any]:
        return super().described() | {"names": list(self.labels)}

    def from_page(self, where: str, given: Any, columns: Sequence[int], is_open: Sequence[bool]) -> list[float]:
        if not isinstance(given, list) or len(given) != self.width:
            raise ValueError(f"{where} must be a list of {self.width} numbers")
        for value, low, high in zip(given, self.low, self.high, strict=True):
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e38
            if not is_number or not np.float32(low) <= np.float32(value) <= np.float32(high):
                raise ValueError(f"{where} is {value!r:.100}; it must be a number from {low:.9g} to {high:.9g}")
        return [float(value) for value in given]

    def padded_bounds(self, num_rows: int | None) -> tuple[Sequence[float], Sequence[float]]:
        return self.low, self.high

    def sample(self, offered: VecActionMask, rng: np.random.Generator) -> NDArray[np.float32]:
        """Draw (A, n) numbers.

        A number with two bounds is uniform between them, one without bounds standard normal, one with a single bound as far
        from it as a standard normal number is from 0.
        """
        low, high = self.bounds()
        below, above = np.isfinite(low), np.isfinite(high)
        values = rng.standard_normal((offered.actors.items(), self.width))
        values = np.where(below, low + np.abs(values), np.where(above, high - np.abs(values), values))
        both = below & above
        values[:, both] = rng.uniform(low[both], high[both], (len(values), int(both.sum())))
        return values.astype(np.float32)

    def rare_choices(self, offered: VecActionMask) -> Iterator[tuple[str, NDArray[np.float32]]]:
        for side, bounds in zip(("smallest", "largest"), self.bounds(), strict=True):
            if np.isfinite(bounds).any():
                numbers = np.clip(np.where(np.isfinite(bounds), bounds, 0), *self.bounds())
                yield f"the {side} numbers", np.tile(numbers, (offered.actors.items(), 1))


def _bounds(given: Any, where: str) -> tuple[float, ...]:
    """Return bounds as numbers that float32 can hold, or infinite on their own side; None, as in JSON, is infinite."""
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise ValueError(f"{where} is {given!r}; it must be a list of numbers, one for each number that an actor picks")
    outer = np.inf if where.endswith("high") else -np.inf
    bounds = []
    for k, value in enumerate(outer if each is None else each for each in given):
        is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        if not is_number or not (value == outer or abs(value) <= LARGEST_FLOAT32):
            raise ValueError(
                f"{where}[{k}] is {value!r:.200}; it must be a number that float32 can hold, or {outer} for no bound"
            )
        bounds.append(float(value))
    return tuple(bounds)
