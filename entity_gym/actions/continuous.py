"""Continuous actions: every actor gives n real numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.kind import ActionSpace, ActorMask, Choice, with_value
from entity_gym.actions.reading import EntityID, FrameEntities, Offer
from entity_gym.batch.decimals import to_decimals
from entity_gym.batch.vec_obs import VecActionMask
from entity_gym.errors import nearest
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
    discrete = False
    dtype = np.float32

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

    @property
    def size(self) -> int:
        """n, the numbers that an actor gives."""
        return len(self.low)

    @property
    def width(self) -> int:
        return len(self.low)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.size))) if self.names is None else tuple(self.names)

    def changes_since(self, before: Self, name: str) -> Iterator[str]:
        if (before.names is None) != (self.names is None):
            raise ValueError(
                f"the numbers of the action {name!r} were called {before.names and list(before.names)} and are called "
                f"{self.names and list(self.names)}: without names they cannot be told apart"
            )
        bounds_before, bounds_now = before._bounds_by_label(), self._bounds_by_label()
        for number, bounds in bounds_before.items():
            if number not in bounds_now:
                raise ValueError(f"{number} of the action {name!r} is gone; {nearest(number, bounds_now)}")
            if bounds != bounds_now[number]:
                raise ValueError(
                    f"{number} of the action {name!r} was within {bounds} and is within {bounds_now[number]}"
                )
        for number in bounds_now:
            if number not in bounds_before:
                yield f"{number} of action {name!r} is new: untrained"

    def _bounds_by_label(self) -> dict[str, tuple[float, float]]:
        labels = [f"number {label!r}" for label in self.labels]
        return dict(zip(labels, zip(self.low, self.high, strict=True), strict=True))

    def bounds(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return (n,) smallest and (n,) largest values, as new arrays."""
        return np.array(self.low, dtype=np.float32), np.array(self.high, dtype=np.float32)

    def label(self, k: int) -> str:
        """Return the name of number `k` in messages."""
        return f"value {k}" if self.names is None else f"value {k} ({self.names[k]!r})"

    def read(self, name: str, mask: ContinuousActionMask, entities: FrameEntities) -> Offer:
        return Offer(entities.find(mask.actor_ids, mask.actor_types, "actor", name))

    def allowed(self, values: NDArray[np.float32], offered: VecActionMask) -> NDArray[np.bool_]:
        return np.asarray(~self._wrong(values).any(axis=1))

    def refusal(self, value: NDArray[np.float32]) -> str:
        low, high = self.bounds()
        k = int(self._wrong(value).argmax())
        return f": {self.label(k)} is {value[k]}; it must be a finite number from {low[k]} to {high[k]}"

    def padded_bounds(self, num_choices: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self.bounds()

    def _wrong(self, values: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return true for each number that is outside of its bounds, infinite or NaN."""
        low, high = self.bounds()
        # An infinite value is within infinite bounds, and NaN within none.
        fits = np.asarray((values >= low) & (values <= high) & np.isfinite(values))
        return ~fits

    def for_world(self, values: NDArray[np.float32], offer: Offer, ids: Sequence[EntityID | None]) -> ContinuousAction:
        return ContinuousAction([ids[actor] for actor in offer.actors.tolist()], values)

    def sample(self, name: str, offered: VecActionMask, rng: np.random.Generator) -> NDArray[np.float32]:
        """Draw (A, n) numbers.

        A number with two bounds is uniform between them, one without bounds standard normal, one with a single bound as far
        from it as a standard normal number is from 0.
        """
        low, high = self.bounds()
        below, above = np.isfinite(low), np.isfinite(high)
        values = rng.standard_normal((offered.actors.items(), self.size))
        values = np.where(below, low + np.abs(values), np.where(above, high - np.abs(values), values))
        both = below & above
        values[:, both] = rng.uniform(low[both], high[both], (len(values), int(both.sum())))
        return values.astype(np.float32)

    def rare_choices(self, offered: VecActionMask) -> Iterator[tuple[str, NDArray[np.float32]]]:
        low, high = self.bounds()
        least = np.where(np.isfinite(low), low, np.minimum(high, 0))
        most = np.where(np.isfinite(high), high, np.maximum(low, 0))
        for side, bound, values in (("smallest", low, least), ("largest", high, most)):
            if np.isfinite(bound).any():
                yield f"the {side} numbers", np.tile(values.astype(np.float32), (offered.actors.items(), 1))

    def mistakes(self, values: NDArray[Any], offered: VecActionMask) -> Iterator[tuple[str, NDArray[Any]]]:
        low, high = self.bounds()
        for k in range(self.size):
            for bound, beyond in ((low[k], -np.float32(np.inf)), (high[k], np.float32(np.inf))):
                if np.isfinite(bound):
                    yield "a number out of bounds", with_value(values, 0, float(np.nextafter(bound, beyond)), k)
                yield "a number that is not finite", with_value(values, 0, float(beyond), k)
            yield "a number that is not finite", with_value(values, 0, float("nan"), k)

    @property
    def numbers(self) -> Mapping[str, tuple[float, float]]:
        return {self.label(k): bounds for k, bounds in enumerate(zip(self.low, self.high, strict=True))}

    def list_choices(self, offer: Offer, row: int) -> list[Choice]:
        return []

    def action_to_json(self, action: ContinuousAction) -> dict[str, Any]:
        return {"actors": list(action.actors), "values": np.asarray(action.values).tolist()}

    def space_for_replay(self) -> dict[str, Any]:
        return {"kind": self.kind, "names": list(self.labels), **self._finite_bounds()}

    def decisions_for_replay(
        self, offer: Offer, values: NDArray[Any], logits: NDArray[np.float32] | None
    ) -> dict[str, Any]:
        """Return the decisions, with means and standard deviations of the unbounded numbers in the place of probabilities."""
        decisions = {"actors": offer.actors.tolist(), "chosen": to_decimals(values)}
        if logits is None:
            return {**decisions, "probs": None}
        means, log_stds = np.split(logits, 2, axis=1)
        return {**decisions, "mean": to_decimals(means), "std": to_decimals(np.exp(log_stds))}

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), **self._finite_bounds()}

    def _finite_bounds(self) -> dict[str, list[float | None]]:
        """Return the bounds as JSON, which has no infinity: None where there is no bound."""
        return {
            side: [bound if np.isfinite(bound) else None for bound in getattr(self, side)] for side in ("low", "high")
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        low, high = ([default if bound is None else bound for bound in saved[side]] for side, default in _UNBOUNDED)
        return cls(low, high, saved.get("names"))


_UNBOUNDED = (("low", -np.inf), ("high", np.inf))


def _bounds(given: Any, where: str) -> tuple[float, ...]:
    """Return bounds as numbers that float32 can hold, or infinite on their own side."""
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise ValueError(f"{where} is {given!r}; it must be a list of numbers, one for each number that an actor picks")
    outer = np.inf if where.endswith("high") else -np.inf
    bounds = []
    for k, value in enumerate(given):
        is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        if not is_number or not (value == outer or abs(value) <= LARGEST_FLOAT32):
            raise ValueError(
                f"{where}[{k}] is {value!r:.200}; it must be a number that float32 can hold, or {outer} for no bound"
            )
        bounds.append(float(value))
    return tuple(bounds)
