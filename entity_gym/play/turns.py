"""Who has to decide what, and what somebody who types means by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.kind import Choice
from entity_gym.batch.frame import Frame
from entity_gym.errors import nearest
from entity_gym.play.session import Session
from entity_gym.spaces import FeatureKind, ObsSpace, num_values


class EntityRow(NamedTuple):
    """An entity of a frame, in words."""

    number: int  # its index inside the frame
    type_name: str
    features: str  # such as "x=3 y=2"
    is_visible: bool

    @property
    def described(self) -> str:
        """Type and features."""
        return f"{self.type_name} ({self.features})" if self.features else self.type_name


#: What an actor may choose at all times in some actions, and has to where nobody else is open.
NOBODY = Choice(-1, "nobody", is_open=True)


class Turn(NamedTuple):
    """One decision of one actor.

    Attributes:
        action: what is decided.
        actor: whose decision it is, in words; "" for the environment as a whole.
        choices: what there is; nothing for an actor that is offered no entity, and for a number.
        is_numbered: choices are listed by number, too. Not where names are numbers: 3 would mean two things.
        bounds: smallest and largest value of a number, which is typed as it is. None: this is a choice.
    """

    action: str
    actor: str
    choices: list[Choice]
    is_numbered: bool = True
    bounds: tuple[float, float] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is anything to decide; otherwise the actor selects nobody."""
        return self.bounds is not None or any(choice.is_open for choice in self.choices)


def entity_rows(frame: Frame, obs_space: ObsSpace) -> list[EntityRow]:
    """Every entity, in the order of the frame; `__global__` is none of them."""
    rows: list[EntityRow] = []
    for name, entity in obs_space.entities.items():
        visible = frame.visible.get(name)
        for i, values in enumerate(frame.features[name]):
            features = describe_features(entity.features, values, entity.kinds)
            rows.append(EntityRow(len(rows), name, features, visible is None or bool(visible[i])))
    return rows


def describe_features(
    names: Sequence[str], values: Sequence[float] | NDArray[Any], kinds: Mapping[str, FeatureKind]
) -> str:
    """Such as "x=3.25 card=10412"."""
    shown = []
    for name, value in zip(names, values, strict=True):
        is_whole = num_values(kinds.get(name)) is not None
        shown.append(f"{name}={int(value) if is_whole else format(float(value), '.4g')}")
    return " ".join(shown)


def turns(session: Session) -> list[Turn]:
    """List the decisions of the present step, by action and actor."""
    frame, reader = session.now.frame, session.reader
    entities = [row.described for row in entity_rows(frame, reader.obs_space)]
    found = []
    for name, offer in frame.actions.items():
        space = reader.action_space[name]
        for row, index in enumerate(offer.actors.tolist()):
            actor = "" if space.is_global else f"{index} {entities[index]}"
            choices = space.list_choices(offer, row, entities)
            is_numbered = space.selects or not any(is_number(choice.name) for choice in choices)
            if not space.numbers:
                found.append(Turn(name, actor, choices, is_numbered))
            for label, bounds in space.numbers.items():
                found.append(Turn(name, f"{actor}, {label}", [], bounds=bounds))
    return found


def is_number(text: str) -> bool:
    """Whether `text` is a whole number."""
    return text.removeprefix("-").removeprefix("+").isdecimal()


class NoChoice(NamedTuple):
    """Why what was typed is no choice."""

    reason: str


def read_choice(text: str, turn: Turn) -> Choice | NoChoice:
    """What somebody means who types `text`: a number, a name, or the beginning of one name only."""
    if turn.bounds is not None:
        return _read_number(text, *turn.bounds)
    choices = turn.choices
    if turn.is_numbered and is_number(text):
        numbers = [choice.value for choice in choices]
        found = [choice for choice in choices if choice.value == int(text)]
        if not found:
            return NoChoice(f"there is no {text} here; allowed: {', '.join(map(str, numbers))}")
    else:
        folded = text.casefold()
        exact = [choice for choice in choices if choice.name.casefold() == folded]
        found = exact or [choice for choice in choices if choice.name.casefold().startswith(folded)]
        if not found:
            return NoChoice(f"nothing begins with {text!r}; {nearest(text, dict.fromkeys(c.name for c in choices))}")
        if len(found) > 1:
            meant = (f"{choice.value} {choice.name}" if turn.is_numbered else choice.name for choice in found)
            return NoChoice(f"{text!r} can mean {', '.join(meant)}")
    (choice,) = found
    return choice if choice.is_open else NoChoice(f"{choice.name} is closed now")


def _read_number(text: str, low: float, high: float) -> Choice | NoChoice:
    try:
        value = np.float32(text)
    except ValueError:
        return NoChoice(f"{text!r} is no number")
    if not (np.isfinite(value) and np.float32(low) <= value <= np.float32(high)):
        return NoChoice(f"{text} is not allowed; it must be a finite number from {low:.9g} to {high:.9g}")
    return Choice(float(value), text, is_open=True)
