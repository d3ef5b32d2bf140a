"""An environment that is played step by step, and back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from entity_gym.actions.choices import check_actions, frame_actions
from entity_gym.batch.batching import batch_frames
from entity_gym.batch.frame import Frame, FrameReader
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.saving import observation_to_state
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.check.trajectory import equal
from entity_gym.environment import Environment, Observation

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
        frame = self.reader.read(obs, 0, is_last=obs.done).copy()
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
            buffers[name] = RaggedBuffer.from_flattened(given, [len(given)])
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
