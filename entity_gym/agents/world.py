"""A program that owns its main loop, in a thread, and the trainer's end of its agents.

Two threads meet in queues: the program's own, which hands in observations and waits for actions without a limit, and the
trainer's, which hands in actions and waits for observations up to the program's time limit.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

import numpy as np

from entity_gym.actions import ActionSpace
from entity_gym.agents.agent import A, Agent, Handle, Obs, check_obs
from entity_gym.environment import Observation
from entity_gym.errors import nearest
from entity_gym.spaces import ObsSpace

T = TypeVar("T")
_OURS = "entity_gym.agents."

#: Seconds that a program may take to leave, at most; less where its time limit is less.
LEAVING = 10.0
#: The same once somebody did not want to wait for it any longer, and pressed Ctrl-C.
LEAVING_AT_ONCE = 1.0


class TakesTooLong(ValueError):  # noqa: N818 - says what happened
    """A program has not done in time what it must do."""


@dataclass(frozen=True)
class Program:
    """What is run, and what its agents show and do."""

    main: Callable[..., None]
    config: Any
    num_agents: int
    time_limit: float  # seconds until the next observation
    obs_space: ObsSpace
    action_space: Mapping[str, ActionSpace]

    @property
    def name(self) -> str:
        """How messages call it."""
        module = getattr(self.main, "__module__", None)
        name = getattr(self.main, "__qualname__", type(self.main).__qualname__)
        return f"{module}.{name}" if module else name


class _Ended(NamedTuple):
    """Comes in place of an observation when main has ended."""

    error: BaseException | None  # None: it returned
    was_told: bool  # whether act had returned None, so that it had to


@dataclass(frozen=True)
class _Channel:
    """Between one agent and the trainer."""

    observations: SimpleQueue[Observation | _Ended]
    actions: SimpleQueue[list[int] | None]  # the choice of each actor; None: leave


class TrainAgent(Agent):
    """The program's end of a channel to the trainer: `act` hands in what is seen, and waits for what the trainer decides.

    Args:
        program: whose agent this is.
        channel: to the trainer.
        number: of this agent in its world.
        asked: of each agent of the world, how many actions it has asked for; shared by them.
    """

    def __init__(self, program: Program, channel: _Channel, number: int, asked: list[int]) -> None:
        self._program = program
        self._channel = channel
        self._number = number
        self._asked = asked
        self._score: float | None = None  # of the observation before; None: there was none in this game
        self._waiting = False
        self._has_acted = False  # anybody, in this game
        self.gone = False  # whether the trainer is

    def act_async(self, obs: Obs[A]) -> Handle[A]:
        """Hand in an observation; see `Agent.act_async`.

        Raises:
            ValueError: it shows or asks for what was not declared to `TrainEnvBuilder`, the actions asked for before were not
                received, or the trainer is gone.
        """
        check_obs(obs)
        if self.gone:
            raise ValueError(
                "an action was asked for after act had returned None: the trainer is gone, and main must return"
            )
        if self._waiting:
            raise ValueError(
                f"agent {self._number} asked for another action before it received the one it had asked for"
            )
        shown = self._observation(obs)
        self._asked[self._number] += 1
        self._waiting = True
        self._score = obs.score
        self._has_acted |= bool(obs.actors)
        self._channel.observations.put(shown)
        return _Asked(obs, self)

    def game_over(self, obs: Obs[A], *, truncated: bool = False) -> None:
        """End the game; see `Agent.game_over`. One in which no action was asked for is not counted."""
        check_obs(obs)
        if self.gone or self._score is None:
            return
        if self._waiting:
            raise ValueError(f"agent {self._number}: the game is over before it received the action it had asked for")
        if not self._has_acted:
            warnings.warn(
                f"{self._program.name}: nobody acted in a whole game, so nothing can be learned from it: Obs had no actors",
                stacklevel=2,
            )
        self._has_acted = False
        self._channel.observations.put(self._observation(obs, done=True, truncated=truncated))
        self._score = None

    def receive(self) -> list[int] | None:
        """Wait for the choices that were asked for."""
        for number, asked in enumerate(self._asked):
            if asked != self._asked[self._number]:
                raise ValueError(
                    f"agent {self._number} waits for its action before agent {number} of the same world has handed in its "
                    "observation: call act_async on all agents, and then receive on each handle"
                )
        choices = self._channel.actions.get()
        self._waiting = False
        self.gone = choices is None
        return choices

    def _observation(self, obs: Obs[A], *, done: bool = False, truncated: bool = False) -> Observation:
        declared, actions = self._program.obs_space.entities, self._program.action_space
        for name, known in obs.types().items():
            if name not in declared:
                raise ValueError(
                    f"the entity type {name!r} was not declared: add .entity({name}) to the TrainEnvBuilder; "
                    f"{nearest(name, declared)}"
                )
            if known.entity != declared[name]:
                raise ValueError(f"the entity type {name!r} was declared as {declared[name]} and is {known.entity}")
        name = obs.choices.name
        if name not in actions:
            raise ValueError(
                f"the action {name!r} was not declared: add .action({name}) to the TrainEnvBuilder; {nearest(name, actions)}"
            )
        if obs.choices.space != actions[name]:
            raise ValueError(f"the action {name!r} was declared as {actions[name]} and is {obs.choices.space}")
        reward = 0.0 if self._score is None else obs.score - self._score
        return obs.to_observation(reward, done=done, truncated=truncated)


class _Asked(Handle[A]):
    """What the trainer has been asked for."""

    def __init__(self, obs: Obs[A], agent: TrainAgent) -> None:
        super().__init__(obs)
        self._agent = agent
        self._received = False
        self._actions: list[A] | None = None

    def receive_each(self) -> list[A] | None:
        if not self._received:
            choices = self._agent.receive()
            pick = self._obs.choices.pick
            self._actions = None if choices is None else [pick(choice) for choice in choices]
            self._received = True
        return self._actions


class World:
    """Runs a program again and again, in a thread of its own each time, and is the trainer's end of all its agents.

    An agent's next observation is new if it begins a game: once main has been started, and after `game_over`. Where the trainer
    wants a new game and the next observation is not new, main is told to leave and started again.

    Attributes:
        interrupted: whether Ctrl-C ended a wait for it.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0]), 0
        self._num_starts = 0  # since it was seeded
        self._run: _Run | None = None
        self._new: list[bool] = []
        self._closed = False
        self.interrupted = False

    def reseed(self, seed: int, number: int) -> None:
        """Start main anew for the next game, with seeds that follow from these two."""
        self._seed, self._num_starts = (seed, number), 0
        self.dismiss()

    def dismiss_unless_new(self, seat: int) -> None:
        """Tell main to leave if the next observation of an agent is not new."""
        if self._run is not None and not self._new[seat]:
            self.dismiss()

    def dismiss(self, limit: float = LEAVING) -> None:
        """Tell main to leave within so many seconds, which begin now, without waiting for that."""
        if self._run is not None:
            self._run.dismiss(limit)

    def begin(self, seat: int) -> None:
        """See to it that the next observation of an agent is new.

        Raises:
            TakesTooLong: main does not leave.
            Exception: whatever main raised while it left.
        """
        if self._closed:
            raise ValueError(f"{self.program.name}: the environment is closed")
        self.dismiss_unless_new(seat)
        if self._run is not None and self._run.dismissed:
            run, self._run = self._run, None
            self._interruptible(run.wait)
        if self._run is None:
            seed = np.random.SeedSequence((*self._seed, self._num_starts)).generate_state(1)
            self._num_starts += 1
            self._new = [True] * self.program.num_agents
            self._run = _Run(self.program, int(seed[0]))

    def hand_in(self, seat: int, choices: Sequence[int]) -> None:
        """Give an agent the choices of its actors."""
        self._running().channels[seat].actions.put(list(choices))

    def observe(self, seat: int) -> Observation:
        """Wait for what an agent hands in next.

        Raises:
            TakesTooLong: nothing came within the time limit; says what main is doing.
            ValueError: main returned.
            Exception: whatever main raised.
        """
        run = self._running()
        obs = self._interruptible(lambda: run.observe(seat))
        self._new[seat] = obs.done
        return obs

    def close(self) -> None:
        """Let main leave; one that does not is left behind with a warning.

        Raises:
            Exception: whatever main raised while it left.
        """
        run, self._run, self._closed = self._run, None, True
        if run is not None:
            run.dismiss(LEAVING)
            try:
                run.wait()
            except TakesTooLong as error:
                warnings.warn(f"{error}; it is left behind", RuntimeWarning, stacklevel=2)

    def _interruptible(self, wait: Callable[[], T]) -> T:
        """Wait; whoever did not want to wait for this program is not made to wait for its end."""
        try:
            return wait()
        except KeyboardInterrupt:
            self.interrupted = True
            raise

    def _running(self) -> _Run:
        if self._run is None:
            raise ValueError(f"{self.program.name}: reset must be called first")
        return self._run


class _Run:
    """One call of main, in a thread."""

    def __init__(self, program: Program, seed: int) -> None:
        self.program = program
        self.channels = [_Channel(SimpleQueue(), SimpleQueue()) for _ in range(program.num_agents)]
        self.dismissed = False
        self._limit = self._leave_by = 0.0  # seconds to leave, and when they are over on the clock of `time.monotonic`
        self._ends: list[_Ended] = []  # one, once it has ended
        # A daemon: neither a program that hangs nor a pool that was never closed may keep Python from exiting. It must not
        # know this object, so that a pool that is dropped without being closed lets its programs leave, too.
        weakref.finalize(self, _dismiss, self.channels).atexit = False
        self._thread = threading.Thread(
            target=_run_main, args=(program, self.channels, seed, self._ends), name=program.name, daemon=True
        )
        self._thread.start()

    def dismiss(self, limit: float) -> None:
        if not self.dismissed:
            self.dismissed = True
            self._limit = min(limit, self.program.time_limit)
            self._leave_by = time.monotonic() + self._limit
            _dismiss(self.channels)

    def observe(self, seat: int) -> Observation:
        limit = self.program.time_limit
        try:
            obs = self.channels[seat].observations.get(timeout=limit)
        except Empty:
            raise TakesTooLong(
                f"{self.program.name} has neither asked for an action nor ended its game for {limit:g} seconds "
                f"(time_limit); {self._doing()}"
            ) from None
        if isinstance(obs, _Ended):
            raise self._error(obs)
        return obs

    def wait(self) -> None:
        """Wait until main, which has been told to leave, has left; raise what it raised when it heard of that."""
        self._thread.join(max(0.0, self._leave_by - time.monotonic()))
        if self._thread.is_alive():
            raise TakesTooLong(
                f"{self.program.name} has not returned {self._limit:g} seconds after act returned None; {self._doing()}"
            )
        (ended,) = self._ends
        if ended.was_told and isinstance(ended.error, Exception):
            raise self._error(ended)

    def _error(self, ended: _Ended) -> Exception:
        """What the trainer is to be told."""
        name = self.program.name
        if isinstance(ended.error, Exception):
            ended.error.add_note(f"raised in {name}" + (" after act had returned None" if ended.was_told else ""))
            return ended.error
        how = "returned" if ended.error is None else f"ended with {type(ended.error).__name__}"
        return ValueError(
            f"{name} {how} while the trainer goes on: it must play game after game, and return once act has returned None"
        )

    def _doing(self) -> str:
        """Where main is now, and not where it waits for us."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        while frame is not None and frame.f_globals.get("__name__", "").startswith(_OURS) and frame.f_back is not None:
            frame = frame.f_back
        if frame is None:
            return "it is just ending"
        return f"it is at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}()"


def _run_main(program: Program, channels: Sequence[_Channel], seed: int, ends: list[_Ended]) -> None:
    asked = [0] * len(channels)
    agents = [TrainAgent(program, channel, number, asked) for number, channel in enumerate(channels)]
    try:
        program.main(agents if program.num_agents > 1 else agents[0], program.config, seed)
    except BaseException as error:  # SystemExit, too: whoever waits for an observation must hear of it
        ended = _Ended(error, any(agent.gone for agent in agents))
    else:
        ended = _Ended(None, any(agent.gone for agent in agents))
    ends.append(ended)
    for channel in channels:
        channel.observations.put(ended)


def _dismiss(channels: Sequence[_Channel]) -> None:
    for channel in channels:
        channel.actions.put(None)
