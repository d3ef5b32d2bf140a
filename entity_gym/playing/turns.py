"""Who has to decide what, and what somebody who types means by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from entity_gym.errors import nearest
from entity_gym.frame import Frame, FrameActions
from entity_gym.playing.session import Session
from entity_gym.spaces import GlobalCategoricalActionSpace, ObsSpace, SelectEntityActionSpace


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


class Choice(NamedTuple):
    """Something that can be chosen; `value` is what the action then is, and the number by which it is listed."""

    value: int
    name: str
    is_open: bool


class Turn(NamedTuple):
    """One decision of one actor.

    Attributes:
        action: what is decided.
        actor: whose decision it is, in words; "" for the environment as a whole.
        choices: what there is; nothing for an actor that is offered no entity.
        is_numbered: choices are listed by number, too. Not where names are numbers: 3 would mean two things.
    """

    action: str
    actor: str
    choices: list[Choice]
    is_numbered: bool = True


def entity_rows(frame: Frame, obs_space: ObsSpace) -> list[EntityRow]:
    """Every entity, in the order of the frame; `__global__` is none of them."""
    rows: list[EntityRow] = []
    for name, entity in obs_space.entities.items():
        visible = frame.visible.get(name)
        for i, values in enumerate(frame.features[name]):
            features = describe_features(entity.features, values)
            rows.append(EntityRow(len(rows), name, features, visible is None or bool(visible[i])))
    return rows


def describe_features(names: Sequence[str], values: Sequence[float] | NDArray[Any]) -> str:
    """Such as "x=3 y=2"."""
    return " ".join(f"{name}={format(float(value), '.4g')}" for name, value in zip(names, values, strict=True))


def turns(session: Session) -> list[Turn]:
    """Every decision of the present step: action after action, and actor after actor."""
    frame, reader = session.now.frame, session.reader
    entities = entity_rows(frame, reader.obs_space)
    found = []
    for name, offered in frame.actions.items():
        space = reader.action_space[name]
        for j, index in enumerate(offered.actors.tolist()):
            if isinstance(space, GlobalCategoricalActionSpace):
                actor = ""
            else:
                actor = f"{index} {entities[index].described}"
            if isinstance(space, SelectEntityActionSpace):
                choices = _choices(offered, j, offered.actees.tolist(), [entities[i].described for i in offered.actees])
                found.append(Turn(name, actor, choices))
            else:
                choices = _choices(offered, j, range(len(space.choices)), space.choices)
                found.append(Turn(name, actor, choices, not any(map(is_number, space.choices))))
    return found


def _choices(offered: FrameActions, j: int, values: Sequence[int], names: Sequence[str]) -> list[Choice]:
    opened = [True] * len(values) if offered.mask is None else offered.mask[j].tolist()
    return [Choice(value, name, is_open) for value, name, is_open in zip(values, names, opened, strict=True)]


def is_number(text: str) -> bool:
    """Whether `text` is a whole number."""
    return text.removeprefix("-").removeprefix("+").isdecimal()


class NoChoice(NamedTuple):
    """Why what was typed is no choice."""

    reason: str


def read_choice(text: str, turn: Turn) -> Choice | NoChoice:
    """What somebody means who types `text`: a number, a name, or the beginning of one name only."""
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
