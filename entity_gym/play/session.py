"""An environment that is played step by step, and back, and the decisions of a step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.choices import check_actions, frame_actions
from entity_gym.actions.kind import Choice
from entity_gym.batch.batching import batch_frames
from entity_gym.batch.frame import Frame, FrameReader
from entity_gym.batch.ragged import RaggedBufferF32, RaggedBufferI64
from entity_gym.batch.saving import observation_to_state
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.check.trajectory import equal
from entity_gym.environment import Environment, Observation
from entity_gym.errors import nearest
from entity_gym.play.arrows import arrows_of_names, arrows_of_positions
from entity_gym.spaces import FeatureKind, ObsSpace, num_values

#: Action -> the values of its actors in the order of the frame: choices, entity indices, or -1 for nobody. Of a continuous
#: action the n numbers of each actor, one after another.
Values = Mapping[str, Sequence[float]]


class CannotGoBackError(Exception):
    """Raised on the way back in an environment that cannot be saved and does not repeat itself from its seed."""


class Moment(NamedTuple):
    """One step of the session."""

    obs: Observation
    frame: Frame
    episode: int  # from 1
    step: int  # of the episode, from 0
    total: float  # reward of the episode so far
    values: Values | None  # the actions that led here; None for a reset
    state: Mapping[str, Any] | None  # of the environment, where it can be saved
    random: Mapping[str, Any]  # state of its random numbers


class Session:
    """Plays an environment from a seed, and remembers every step.

    Args:
        create_env: makes the environment; called again to go back if it cannot be saved.
        seed: the environment does what environment 0 of a pool with this seed does.
        name: the environment's name, unless it has one of its own for messages.

    Attributes:
        seed: the seed.
        env: the environment.
        reader: reads its observations.
    """

    def __init__(self, create_env: Callable[[], Environment], seed: int, name: str) -> None:
        self._create_env = create_env
        self.seed = seed
        self.env = self._new()
        name = self.env.display_name or name
        self.reader = FrameReader(self.env.obs_space(), self.env.action_space(), name)
        self._moments: list[Moment] = []
        self.begin_episode()

    @property
    def now(self) -> Moment:
        """The present step."""
        return self._moments[-1]

    @property
    def ended(self) -> bool:
        """True at the end of an episode: nobody acts, and `begin_episode` goes on."""
        return self.now.obs.done

    def begin_episode(self) -> None:
        """Reset the environment."""
        obs = self.env.reset()
        episode = self.now.episode + 1 if self._moments else 1
        if not isinstance(obs, Observation) or obs.done:
            where = self.reader.where(0)
            raise ValueError(f"{where}: reset() returned {obs!r:.200}; expected an Observation that is not done")
        self._remember(obs, episode, 0, 0.0, None)

    def act(self, values: Values) -> None:
        """Take a step.

        Raises:
            ValueError: the values are not offered.
        """
        before = self.now
        obs = self.env.act(self._actions(values, before))
        if not isinstance(obs, Observation):
            raise ValueError(f"{self.reader.where(0)}: act() returned {obs!r:.200}; expected an Observation")
        self._remember(obs, before.episode, before.step + 1, before.total, values)

    def vec_obs(self) -> VecObs:
        """Return the present frame as a batch of one, for a policy."""
        return self._batch(self.now)

    def image(self) -> NDArray[np.uint8] | None:
        """Return a (height, width, 3) image of the present step; None if the environment draws nothing."""
        try:
            return self.env.render()
        except NotImplementedError:
            return None

    def undo(self) -> bool:
        """Undo the last step, or the last reset. Returns false if there is none.

        Raises:
            CannotGoBackError: the environment cannot go back; nothing has changed.
        """
        return self._go_back_to(len(self._moments) - 2)

    def restart(self) -> bool:
        """Go back to the first observation of this episode. Returns false if this is it."""
        first = len(self._moments) - 1 - self.now.step
        return self.now.step > 0 and self._go_back_to(first)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _new(self) -> Environment:
        env = self._create_env()
        env.reseed(self.seed, 0)
        return env

    def _remember(self, obs: Observation, episode: int, step: int, total: float, values: Values | None) -> None:
        # Copies, since environments may write the next step into their arrays.
        frame = self.reader.read(obs, 0).copy()
        if obs.done:
            frame = frame._replace(actions={})
        state = copy.deepcopy(self.env.state()) if self.env.can_save() else None
        random = copy.deepcopy(self.env.rng.bit_generator.state)
        moment = Moment(copy.deepcopy(obs), frame, episode, step, total, values, state, random)
        reward = float(self._batch(moment).reward[0])  # looks for NaN, too
        self._moments.append(moment._replace(total=total + reward if step else 0.0))

    def _batch(self, moment: Moment) -> VecObs:
        one, steps = np.zeros(1, dtype=np.int64), np.array([moment.step], dtype=np.int64)
        return batch_frames([moment.frame], [moment.obs], one, steps, self.reader)

    def _actions(self, values: Values, moment: Moment) -> dict[str, Any]:
        buffers: dict[str, VecAction] = {}
        for name, space in self.reader.action_space.items():
            given = np.array(values.get(name, ()), dtype=space.dtype).reshape(-1, space.width)
            buffer = RaggedBufferF32 if space.dtype == np.float32 else RaggedBufferI64
            buffers[name] = buffer.from_flattened(given, [len(given)])
        check_actions(buffers, self._batch(moment).action_masks, self.reader.action_space, self.reader.where)
        return frame_actions(buffers, 0, moment.frame.actions, moment.frame.ids, self.reader.action_space)

    def _go_back_to(self, index: int) -> bool:
        if index < 0:
            return False
        target = self._moments[index]
        if target.state is not None:
            self.env.load_state(copy.deepcopy(target.state))
            self.env.rng.bit_generator.state = copy.deepcopy(dict(target.random))
        else:
            env = self._replayed(index)
            self.env.close()
            self.env = env
        del self._moments[index + 1 :]
        return True

    def _replayed(self, index: int) -> Environment:
        """Make a new environment, and play it up to that moment."""
        env = self._new()
        for k, moment in enumerate(self._moments[: index + 1]):
            obs = env.reset() if moment.values is None else env.act(self._actions(moment.values, self._moments[k - 1]))
            if not equal(observation_to_state(obs), observation_to_state(moment.obs)):
                env.close()
                raise CannotGoBackError(
                    f"{self.reader.environment} cannot be saved, and does not repeat itself from its seed: there is no way back"
                )
        return env


# --- Decisions


class EntityRow(NamedTuple):
    """An entity of a frame, described for the table."""

    number: int  # entity index inside the frame
    type_name: str
    features: str  # such as "x=3 y=2"
    is_visible: bool

    @property
    def described(self) -> str:
        """The type, and the features if there are any."""
        return f"{self.type_name} ({self.features})" if self.features else self.type_name


#: The choice of an actor to whom no entity is open.
NOBODY = Choice(-1, "nobody", is_open=True)


class Turn(NamedTuple):
    """One decision of one actor.

    Attributes:
        action: name of the action.
        actor: description of the actor; "" for a global action.
        choices: empty for an actor to whom no entity is offered, and for a number.
        is_numbered: choices may be typed by number. False if names are numbers, since 3 would mean two things.
        bounds: smallest and largest value of a number. None: the actor takes one of `choices`.
        arrows: "↑", "↓", "←" or "→" -> the value of the choice that it stands for.
    """

    action: str
    actor: str
    choices: list[Choice]
    is_numbered: bool = True
    bounds: tuple[float, float] | None = None
    arrows: Mapping[str, float] = MappingProxyType({})

    @property
    def is_open(self) -> bool:
        """True if there is anything to decide; otherwise the actor selects nobody."""
        return self.bounds is not None or any(choice.is_open for choice in self.choices)


class Decision(NamedTuple):
    """A policy's decision for one actor.

    Attributes:
        value: a choice, an entity index, -1 for nobody, or a number.
        probabilities: one for each choice of the turn, closed ones included, and "nobody" last if the space allows it. Not
            used for numbers, and for actors to whom nothing is open.
    """

    value: float
    probabilities: Sequence[float]


def entity_rows(frame: Frame, obs_space: ObsSpace) -> list[EntityRow]:
    """Describe every entity, in the order of the frame, without `__global__`."""
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
    """Describe features, such as "x=3.25 card=10412"."""
    shown = []
    for name, value in zip(names, values, strict=True):
        is_whole = num_values(kinds.get(name)) is not None
        shown.append(f"{name}={int(value) if is_whole else format(float(value), '.4g')}")
    return " ".join(shown)


def turns(session: Session) -> list[Turn]:
    """List the decisions of the present step, by action and actor."""
    frame, reader = session.now.frame, session.reader
    entities = [row.described for row in entity_rows(frame, reader.obs_space)]
    positions = _positions(frame, reader.obs_space)
    found = []
    for name, offer in frame.actions.items():
        space = reader.action_space[name]
        for row, index in enumerate(offer.actors.tolist()):
            actor = "" if space.is_global else f"{index} {entities[index]}"
            choices = space.list_choices(offer, row, entities)
            is_numbered = space.selects or not any(is_number(choice.name) for choice in choices)
            if space.selects:
                arrows = arrows_of_positions(choices, index, positions)
            else:
                arrows = arrows_of_names(choices)
            if not space.numbers:
                found.append(Turn(name, actor, choices, is_numbered, arrows=arrows))
            for label, bounds in space.numbers.items():
                found.append(Turn(name, f"{actor}, {label}", [], bounds=bounds))
    return found


def _positions(frame: Frame, obs_space: ObsSpace) -> dict[int, tuple[float, float]]:
    """Entity index -> (x, y), of the types that have these features."""
    positions, number = {}, 0
    for name, entity in obs_space.entities.items():
        for values in frame.features[name]:
            if {"x", "y"} <= set(entity.features):
                x, y = (float(values[entity.features.index(feature)]) for feature in ("x", "y"))
                positions[number] = x, y
            number += 1
    return positions


def is_number(text: str) -> bool:
    """Return true for a whole number."""
    return text.removeprefix("-").removeprefix("+").isdecimal()


def read_choice(text: str, turn: Turn) -> float:
    """Parse a typed choice: a number, a name, the beginning of exactly one name, or an arrow.

    Raises:
        ValueError: there is no such choice, there are several, or it is closed.
    """
    if turn.bounds is not None:
        return _read_number(text, *turn.bounds)
    choices = turn.choices
    if text in turn.arrows:
        found = [choice for choice in choices if choice.value == turn.arrows[text]]
    elif turn.is_numbered and is_number(text):
        numbers = [choice.value for choice in choices]
        found = [choice for choice in choices if choice.value == int(text)]
        if not found:
            raise ValueError(f"there is no {text} here; allowed: {', '.join(map(str, numbers))}")
    else:
        folded = text.casefold()
        exact = [choice for choice in choices if choice.name.casefold() == folded]
        found = exact or [choice for choice in choices if choice.name.casefold().startswith(folded)]
        if not found:
            raise ValueError(f"nothing begins with {text!r}; {nearest(text, dict.fromkeys(c.name for c in choices))}")
        if len(found) > 1:
            meant = (f"{choice.value} {choice.name}" if turn.is_numbered else choice.name for choice in found)
            raise ValueError(f"{text!r} can mean {', '.join(meant)}")
    (choice,) = found
    if not choice.is_open:
        raise ValueError(f"{choice.name} is closed now")
    return choice.value


def _read_number(text: str, low: float, high: float) -> float:
    try:
        value = np.float32(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None
    if not (np.isfinite(value) and np.float32(low) <= value <= np.float32(high)):
        raise ValueError(f"{text} is not allowed; it must be a finite number from {low:.9g} to {high:.9g}")
    return float(value)
