"""Select-entities actions: every actor selects a set of the entities of its frame, in an order if the space has one.

In a batch an actor's set is a number for each pair of the actor and an actee, actor by actor: 0 for an actee that is not
selected, otherwise 1, or in an ordered set its place, from 1 on.

Shapes: A actors, N actees, P pairs of all frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.kind import ACTORS, CompiledCheck
from entity_gym.actions.reading import EntityID, FrameEntities, Offer
from entity_gym.actions.select_entity import EntitiesActionSpace, SelectEntityActionMask, read_pairs
from entity_gym.batch.vec_obs import VecActionMask
from entity_gym.errors import check_whole, nearest
from entity_gym.spaces import ObsSpace


@dataclass(kw_only=True)
class SelectEntitiesActionMask(SelectEntityActionMask):
    """The actors that select entities, and the entities that they may select, as in `SelectEntityActionMask`.

    An actor may be left without an open entity: its set is empty.
    """


@dataclass
class SelectEntitiesAction:
    """The sets of several actors.

    Attributes:
        actors: ids of the actors.
        actees: of each of them the ids that it selected; of ordered sets in that order, of others as they were offered.
    """

    actors: Sequence[EntityID]
    actees: Sequence[Sequence[EntityID]]

    def to_json(self) -> dict[str, Any]:
        return {"actors": list(self.actors), "actees": [list(actees) for actees in self.actees]}


@dataclass(frozen=True)
class SelectEntitiesActionSpace(EntitiesActionSpace):
    """Every actor selects a set of the entities that its observation offers.

    Attributes:
        min: the least number of entities in a set; an actor to whom fewer are open selects all of them.
        max: the most; None: all that are open.
        ordered: the policy picks one entity after the other, and sees what it has picked, until it stops.
        cost, budget: of ordered sets: names of a feature of the actees and of one of the actors (or of a global feature). The
            policy picks only entities whose cost is within what is left of the actor's budget. A world must bear dearer sets:
            other agents may ask for them.
    """

    min: int = 0
    max: int | None = None
    ordered: bool = False
    cost: str | None = None
    budget: str | None = None

    kind = "select entities"
    mask_type = SelectEntitiesActionMask
    action_type = SelectEntitiesAction
    choices_field = "actees"
    per_pair = True
    page_options = ("ordered", "min", "max")
    counted = "selected"

    def __post_init__(self) -> None:
        where = type(self).__name__
        check_whole(self.min, f"{where}.min", 0)
        if self.max is not None:
            check_whole(self.max, f"{where}.max", max(1, self.min))
        for name in ("cost", "budget"):
            if not isinstance(getattr(self, name), str | None):
                raise ValueError(f"{where}.{name} is {getattr(self, name)!r}; it must be the name of a feature")
        if (self.cost is None) != (self.budget is None):
            raise ValueError(f"{where}: cost={self.cost!r} and budget={self.budget!r}; give both or neither")
        if self.cost is not None and not self.ordered:
            raise ValueError(f"{where}: cost and budget are of ordered sets; give ordered=True")
        if self.cost is not None and self.min:
            raise ValueError(f"{where}.min is {self.min}; with a budget it must be 0: nothing may be cheap enough")
        super().__post_init__()
        if ACTORS in self.after:
            raise ValueError(f"{where}.after names {ACTORS!r}, but actors select their sets at the same time")

    def changes_since(self, before: Self, name: str) -> Iterator[str]:
        yield from super().changes_since(before, name)
        if before.ordered != self.ordered:
            raise ValueError(f"the action {name!r} selects {'ordered' if self.ordered else 'unordered'} sets now")
        if (before.cost, before.budget) != (self.cost, self.budget):
            raise ValueError(f"the action {name!r} has another cost or budget now: {self.cost!r}, {self.budget!r}")
        if (before.min, before.max) != (self.min, self.max):
            yield f"action {name!r} now selects {self.min} to {'all' if self.max is None else self.max} entities"

    @property
    def prices(self) -> tuple[str, str] | None:
        return (self.cost, self.budget) if self.cost and self.budget else None

    def check_features(self, name: str, obs_space: ObsSpace) -> None:
        if self.prices:
            features = [feature for entity in obs_space.entities.values() for feature in entity.features]
            known = {"cost": features, "budget": [*features, *obs_space.global_features]}
            for option, among in known.items():
                if (feature := getattr(self, option)) not in among:
                    raise ValueError(f"action {name!r}: {option}={feature!r} is no feature; {nearest(feature, among)}")

    def read(self, name: str, mask: SelectEntitiesActionMask, entities: FrameEntities) -> Offer:
        return read_pairs(name, mask, entities, exclude_self=self.exclude_self)

    def limits(self, num_open: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the (A,) least and most entities in sets of actors to whom so many are open, (A,)."""
        most = num_open if self.max is None else np.minimum(num_open, self.max)
        return np.minimum(num_open, self.min), most

    def is_allowed(self, values: NDArray[np.int64], offered: VecActionMask) -> NDArray[np.bool_]:
        """Return (A,) true where only open entities are selected, as many as may be, and in an order if there is one."""
        places, actors, num_actors = values[:, 0], offered.pair_actors, offered.actors.items()
        is_open = np.ones(len(places), np.bool_) if offered.mask is None else offered.mask.values[:, 0]
        counts = np.bincount(actors[places != 0], minlength=num_actors)
        least, most = self.limits(np.bincount(actors[is_open], minlength=num_actors))
        wrong = (places != 0) & ~is_open
        if self.ordered:  # the places of an actor are 1 to their number
            wrong |= (places < 0) | (places > counts[actors])
            first = np.cumsum(counts) - counts
            taken = np.where(wrong | (places == 0), -1, first[actors] + places - 1)
            twice = np.bincount(taken[taken >= 0], minlength=max(1, int(counts.sum()))) > 1
            wrong |= (taken >= 0) & twice[taken]
        else:
            wrong |= (places != 0) & (places != 1)
        is_wrong = np.zeros(num_actors, np.bool_)
        is_wrong[actors[wrong]] = True
        return np.asarray(~is_wrong & (counts >= least) & (counts <= most))

    def compiled_check(self) -> CompiledCheck:
        least, most, ordered = self.min, 1 << 40 if self.max is None else self.max, self.ordered

        def check(values: Any, first: int, count: int, mask: Any, i: int, actees: Any, num_actees: int) -> bool:
            fine = True
            for k in range(count):
                at, size, ones, num_open = first + k * num_actees, 0, 0, 0
                for e in range(num_actees):
                    is_open = mask is None or mask[i, k, e]
                    size += values[at + e] != 0
                    ones += values[at + e] == 1
                    num_open += is_open
                    fine &= (values[at + e] == 0) | is_open
                fine &= (min(least, num_open) <= size <= most) & (ordered | (ones == size))
                for begin in range(0, size if ordered else 0, 60):  # each place is there: as many values have no other
                    seen = 0
                    for e in range(num_actees):
                        if begin < values[at + e] <= begin + 60:
                            seen |= 1 << (values[at + e] - begin - 1)
                    fine &= seen == (1 << min(size - begin, 60)) - 1
            return fine

        return check

    def refusal(self, value: NDArray[np.int64]) -> str:
        numbers, most = "places from 1 on" if self.ordered else "1", "all" if self.max is None else self.max
        fewer = ", or for all where fewer are open" if self.min else ""
        return (
            f" is {value.tolist()!r:.200}, a number for each actee; expected {numbers} for {self.min} to {most} open "
            f"actees{fewer}, and 0 for the others"
        )

    def for_world(
        self, values: NDArray[np.int64], offer: Offer, ids: Sequence[EntityID | None]
    ) -> SelectEntitiesAction:
        sets = [[ids[actee] for actee in offer.actees[chosen].tolist()] for chosen in self.sets(values, offer)]
        return SelectEntitiesAction([ids[actor] for actor in offer.actors.tolist()], sets)

    def from_world(
        self, where: str, action: Any, offered: VecActionMask, ids: Sequence[EntityID | None]
    ) -> NDArray[np.int64]:
        assert offered.actees is not None
        column_of = {ids[index]: column for column, index in enumerate(offered.actees.values[:, 0].tolist())}
        values = np.zeros((offered.actors.items(), len(column_of)), np.int64)
        rows = [] if action is None else self._rows(where, action, offered, ids)
        sets = [] if action is None else action.actees
        if len(sets) != len(rows):
            raise ValueError(f"{where} has {len(sets)} sets for {len(rows)} actors")
        for row, selected in zip(rows, sets, strict=True):
            for place, actee in enumerate(selected, start=1):
                if actee not in column_of:
                    raise ValueError(f"{where} selects {actee!r}, which was not offered")
                if values[row, column_of[actee]]:
                    raise ValueError(f"{where} selects {actee!r} twice")
                values[row, column_of[actee]] = place if self.ordered else 1
        return values.reshape(-1, 1)

    def for_page(self, values: NDArray[np.int64], offer: Offer) -> list[list[int]]:
        return [chosen.tolist() for chosen in self.sets(values, offer)]

    def from_page(self, where: str, given: Any, columns: Sequence[int], is_open: Sequence[bool]) -> list[int]:
        places = [0] * len(columns)
        for place, column in enumerate(given if isinstance(given, list) else [None], 1):
            if type(column) is not int or not 0 <= column < len(places) or places[column] or not is_open[column]:
                raise ValueError(f"{where} is {given!r:.100}; it must be a list of open choices, each once")
            places[column] = place if self.ordered else 1
        return places

    def padded_bounds(self, num_rows: int | None) -> tuple[int, int | None]:
        known = [most for most in (self.max, num_rows) if most is not None]
        return 0, min(known, default=None) if self.ordered else 1

    def closest(self, places: NDArray[np.int64], is_open: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return allowed (A, N) places for others, (A, N) from 0, of which any may be closed, missing, too many or equal.

        Closed ones are left out, and so are the last where there are too many; where there are too few, the first open ones are
        added. Equal places are ordered by column.
        """
        taken = (places > 0) & is_open
        sizes = np.clip(taken.sum(axis=1), *self.limits(is_open.sum(axis=1)))
        later = places.max(initial=0) + np.where(is_open, 1, 2)
        ranks = np.where(taken, places, later).argsort(axis=1, kind="stable").argsort(axis=1)
        return np.where(ranks < sizes[:, None], ranks + 1 if self.ordered else 1, 0)

    def sets(self, values: NDArray[np.int64], offer: Offer) -> list[NDArray[np.int64]]:
        """Return the set of each actor of one frame: places in `offer.actees`, in the order of the set if there is one."""
        pairs = values[:, 0].reshape(len(offer.actors), len(offer.actees))
        return [np.argsort(row, kind="stable")[np.count_nonzero(row == 0) :] for row in pairs]

    def by_actor(self, probs: NDArray[Any], offer: Offer, values: NDArray[np.int64]) -> Sequence[NDArray[Any]]:
        """As in `ActionSpace`; an actor has (1, N) probabilities that an actee is selected.

        In ordered sets these are (picks + 1, N + 1): of each pick, and last of the one that stops; the last column is to stop.
        """
        if not self.ordered:
            return list(probs[:, 1].reshape(len(offer.actors), 1, len(offer.actees)))
        picks = [len(chosen) + 1 for chosen in self.sets(values, offer)]
        return np.split(probs.reshape(-1, len(offer.actees) + 1), np.cumsum(picks))[:-1]

    def sample(self, offered: VecActionMask, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw (P, 1) sets: how many entities, uniformly from what is allowed, then which, and in which order."""
        return self._draw(offered, rng, lambda least, most: rng.integers(least, most + 1))

    def rare_choices(self, offered: VecActionMask) -> Iterator[tuple[str, NDArray[np.int64]]]:
        yield "sets are as small as allowed", self._draw(offered, np.random.default_rng(0), lambda least, most: least)
        yield "sets are as large as allowed", self._draw(offered, np.random.default_rng(0), lambda least, most: most)

    def _draw(
        self,
        offered: VecActionMask,
        rng: np.random.Generator,
        sizes_of: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]],
    ) -> NDArray[np.int64]:
        """Draw (P, 1) sets with sizes_of(least, most) entities, all (A,), whichever are open and in any order."""
        actors, num_actors = offered.pair_actors, offered.actors.items()
        pairs = np.arange(len(actors)) if offered.mask is None else np.flatnonzero(offered.mask.values[:, 0])
        num_open = np.bincount(actors[pairs], minlength=num_actors)
        sizes = sizes_of(*self.limits(num_open))
        # one number per pair is sorted in a tenth of the time that two take; the whole part is the actor
        shuffled = pairs[np.argsort(actors[pairs] + rng.random(len(pairs)))]
        first = np.cumsum(num_open) - num_open
        of_each = actors[shuffled]
        places = np.arange(len(shuffled)) - first[of_each] + 1
        values = np.zeros((len(actors), 1), np.int64)
        chosen = places <= sizes[of_each]
        values[shuffled[chosen], 0] = places[chosen] if self.ordered else 1
        return values
