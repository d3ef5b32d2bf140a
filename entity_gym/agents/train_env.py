"""Training of a program that owns its main loop: `main(agent, config, seed)` runs in a thread for each environment.

    def main(agent, config, seed):   # plays game after game, and returns once agent.act has returned None
        ...

    env = TrainEnvBuilder().entity(Head).entity(Food).action(Move).build(main, config)

Pools take `env` in place of an environment's class: `ThreadedVecEnv(env, 64)`, `ProcessVecEnv`, `enn_ppo.train(config, env)`,
and `python -m enn_ppo.train env=custom env.id=my_pkg.my_game:env`. Threads of one process take turns, so programs that compute
much need `rollout.num_processes`.

In a step all programs receive their actions, and then the pool waits for their next observations, one program after the other.
An episode begins with the first observation of a game and ends with `game_over`. Where the trainer abandons an episode, and
whenever the pool is seeded, `act` returns None in the running main, and a new main is started.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import Action, ActionSpace, CategoricalAction
from entity_gym.agents.agent import A, Agent, Obs, check_obs
from entity_gym.agents.schema import Choices, EntityType, choices_of, entity_type
from entity_gym.environment import Environment, Observation
from entity_gym.errors import NoPictureError, nearest
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slots import EnvIds, EnvSlots, SlotOptions
from entity_gym.pools.source import EnvSource
from entity_gym.spaces import ObsSpace

#: Seconds that a program may take between two observations.
TIME_LIMIT = 60.0
#: Seconds that `main` has to return after `act` has returned None; at most the time limit.
LEAVING = 10.0
#: The same limit after Ctrl-C.
LEAVING_AT_ONCE = 1.0


# ---- declaring a program


class TrainEnvBuilder:
    """Declares a program's entity types and actions: `TrainEnvBuilder().entity(Head, Food).action(Move).build(main)`."""

    def __init__(self) -> None:
        self._types: dict[str, EntityType] = {}
        self._actions: dict[str, Choices[Any]] = {}

    def entity(self, *classes: type) -> TrainEnvBuilder:
        """Add entity types: dataclasses, see `entity_gym.agents.schema`.

        Raises:
            ValueError: a class is no dataclass, or a field has a type that is not supported; names the field.
        """
        for cls in classes:
            if not isinstance(cls, type):
                raise ValueError(f"entity: {cls!r:.200} is no class; give the dataclass itself")
            _add(self._types, entity_type(cls), "entity types")
        return self

    def action(self, *classes: type) -> TrainEnvBuilder:
        """Add actions: Enums or dataclasses of Enums, see `entity_gym.agents.schema`. Each `Obs` asks for one of them.

        Raises:
            ValueError: a class is no Enum and no dataclass of Enums; names the field.
        """
        for cls in classes:
            _add(self._actions, choices_of(cls), "actions")
        return self

    def build(self, main: Callable[..., None], config: Any = None, *, time_limit: float = TIME_LIMIT) -> TrainEnv:
        """Return a factory of environments, which pools take.

        Args:
            main: called as `main(agent, config, seed)` for each environment; must play game after game until `act` returns
                None. `seed` is an integer of at least 0; equal seeds must play equal games.
            config: passed to `main`; shared by all environments, so it must not be changed.
            time_limit: seconds that `main` may take until it hands in the next observation.

        Raises:
            ValueError: no action was added, or an argument is invalid.
        """
        if not self._actions:
            raise ValueError("build: no action was given; add .action(...), an Enum or a dataclass of Enums")
        if not isinstance(time_limit, int | float) or not time_limit > 0:
            raise ValueError(f"build: time_limit is {time_limit!r}; it must be a number of seconds above 0")
        _check_main(main)
        obs_space = ObsSpace({name: known.entity for name, known in self._types.items()})
        action_space = {name: choices.space for name, choices in self._actions.items()}
        return TrainEnv(main, config, float(time_limit), obs_space, action_space)


def _add(known: dict[str, Any], new: Any, what: str) -> None:
    if new.name in known:
        raise ValueError(f"two of the {what} are called {new.name!r}")
    known[new.name] = new


def _check_main(main: object) -> None:
    if not callable(main):
        raise ValueError(f"build: main is {main!r:.200}; it must be a function of (agent, config, seed)")
    try:
        signature = inspect.signature(main)
    except (TypeError, ValueError):  # some callables have no signature
        return
    try:
        signature.bind("agent", "config", 0)
    except TypeError as error:
        raise ValueError(
            f"build: main is called as main(agent, config, seed), which {signature} does not take: {error}"
        ) from error


@dataclass(frozen=True, repr=False)
class TrainEnv(EnvSource):
    """A program with its spaces: a source of environments. `TrainEnvBuilder.build` makes it.

    Attributes:
        main, config, time_limit: see `TrainEnvBuilder.build`.
        obs_space: the declared entity types.
        action_space: the declared actions.
    """

    main: Callable[..., None]
    config: Any
    time_limit: float
    obs_space: ObsSpace
    action_space: Mapping[str, ActionSpace]

    @property
    def name(self) -> str:
        """The name of `main`, for messages and titles."""
        module = getattr(self.main, "__module__", None)
        name = getattr(self.main, "__qualname__", type(self.main).__qualname__)
        return f"{module}.{name}" if module else name

    takes_others = True  # `with_values` says which there are

    def __repr__(self) -> str:
        return f"TrainEnv({self.name})"

    def with_values(self, values: Mapping[str, Any]) -> TrainEnv:
        """Return a copy in which these fields of `config`, a dataclass, have other values.

        Raises:
            ValueError: `config` has no such fields, or refuses the values.
        """
        config = self.config
        if not values:
            return self
        if not dataclasses.is_dataclass(config) or isinstance(config, type):
            raise ValueError(
                f"{dict(values)} cannot be set for {self.name}: its config is {config!r:.200}, and only the fields of "
                "a dataclass can be"
            )
        fields = [field.name for field in dataclasses.fields(config) if field.init]
        for name in values:
            if name not in fields:
                raise ValueError(f"the config of {self.name} has no field {name!r}; {nearest(name, fields)}")
        return dataclasses.replace(self, config=dataclasses.replace(config, **values))

    def as_environment(self) -> AgentEnvironment:
        return AgentEnvironment(self)

    def make_slots(self, num_envs: int, options: SlotOptions = SlotOptions()) -> EnvSlots:
        return AgentSlots(self.as_environment, num_envs, options)


# ---- the trainer's thread


class AgentEnvironment(Environment):
    """A program as an environment of the trainer. It is run again and again, each time in a new thread.

    The first observation after `main` starts, and the first after `game_over`, begins a game. If the trainer resets at
    another time, `main` has to return, and is started again.

    Attributes:
        interrupted: the user pressed Ctrl-C while the program was waited for.
    """

    def __init__(self, env: TrainEnv) -> None:
        self.display_name = env.name  # in messages of pools
        self.interrupted = False
        self._env = env
        self._seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0]), 0
        self._num_starts = 0  # since the environment was seeded
        self._run: _Run | None = None
        self._begins_game = False  # whether the next observation begins a game
        self._closed = False

    def obs_space(self) -> ObsSpace:
        return self._env.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self._env.action_space

    def reseed(self, seed: int, number: int) -> None:
        """Start main anew for the next game, with seeds that follow from these two."""
        super().reseed(seed, number)
        self._seed, self._num_starts = (seed, number), 0
        self.leave()

    def configure(self, info: Mapping[str, Any]) -> None:
        raise ValueError(
            f"{self.display_name} takes no env_info: its parameters are the fields of its config (TrainEnv.with_values)"
        )

    def reset(self) -> Observation:
        self.begin_game()
        return self.receive()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.send(actions)
        return self.receive()

    def leave_unless_new(self) -> None:
        """Tell main to leave unless its next observation begins a game."""
        if not self._begins_game:
            self.leave()

    def leave(self, limit: float = LEAVING) -> None:
        """Tell main to leave within `limit` seconds from now, without waiting."""
        if self._run is not None:
            self._run.leave(min(limit, self._env.time_limit))

    def begin_game(self) -> None:
        """Make sure that the next observation begins a game.

        Raises:
            TookTooLong: main does not leave.
            Exception: any exception that main raised while it left.
        """
        if self._closed:
            raise ValueError(f"{self.display_name}: the environment is closed")
        self.leave_unless_new()
        if self._run is not None and self._run.leave_by is not None:
            self._join()
        if self._run is None:
            seed = np.random.SeedSequence((*self._seed, self._num_starts)).generate_state(1)
            self._num_starts += 1
            self._begins_game = True
            self._run = _Run(self._env, int(seed[0]))
            # The thread holds the run and not this object, so that programs leave when a pool is dropped without being closed.
            self._finalizer = weakref.finalize(self, self._run.leave, LEAVING)
            self._finalizer.atexit = False

    def send(self, actions: Mapping[str, Action]) -> None:
        """Give the program its actions, without waiting for the next observation."""
        chosen: list[int] = []
        for action in actions.values():  # one at most: an Obs asks for one action
            assert isinstance(action, CategoricalAction)
            by_actor = dict(zip(action.actors, np.asarray(action.actions).tolist(), strict=True))
            chosen = [by_actor[actor] for actor in range(len(by_actor))]
        self._running().actions.put(chosen)

    def receive(self) -> Observation:
        """Wait for the next observation.

        Raises:
            TookTooLong: none came within the time limit; says where main is.
            ValueError: main returned.
            Exception: any exception that main raised.
        """
        run = self._running()
        try:
            obs: Observation | None = _get(run.observations, self._env.time_limit)
        except Empty:
            raise TookTooLong(
                f"{self.display_name} has neither asked for an action nor ended its game for {self._env.time_limit:g} seconds "
                f"(time_limit); {run.position()}"
            ) from None
        except KeyboardInterrupt:  # the user does not want to wait: `close` will not wait for long, either
            self.interrupted = True
            raise
        if obs is None:
            raise self._error(run)
        self._begins_game = obs.done
        return obs

    def render(self) -> NDArray[np.uint8]:
        raise NoPictureError(
            f"{self.display_name} draws itself, if at all, in its own loop: there is nothing to film; leave videos and films "
            "out, and watch load_agent play in that loop"
        )

    def close(self) -> None:
        """Wait until main has left; if it does not, warn and go on.

        Raises:
            Exception: any exception that main raised while it left.
        """
        self._closed = True
        if self._run is not None:
            self.leave()
            try:
                self._join()
            except TookTooLong as error:
                warnings.warn(f"{error}; it is left behind", RuntimeWarning, stacklevel=2)

    def _running(self) -> _Run:
        if self._run is None:
            raise ValueError(f"{self.display_name}: reset must be called first")
        return self._run

    def _join(self) -> None:
        """Wait until main, which has been told to leave, has returned; raise the exception that it raised meanwhile."""
        run, self._run = self._running(), None
        assert run.leave_by is not None
        self._finalizer.detach()
        try:
            run.thread.join(max(0.0, run.leave_by - time.monotonic()))
        except KeyboardInterrupt:
            self.interrupted = True
            raise
        if run.thread.is_alive():
            raise TookTooLong(
                f"{self.display_name} has not returned {run.limit:g} seconds after act returned None; {run.position()}"
            )
        if run.was_told and isinstance(run.error, Exception):
            raise self._error(run)

    def _error(self, run: _Run) -> Exception:
        """Return the error to raise in the trainer's thread because main has ended."""
        name = self.display_name
        if isinstance(run.error, Exception):
            run.error.add_note(f"raised in {name}" + (" after act had returned None" if run.was_told else ""))
            return run.error
        how = "returned" if run.error is None else f"ended with {type(run.error).__name__}"
        return ValueError(
            f"{name} {how} while the trainer goes on: it must play game after game, and return once act has returned None"
        )


class AgentSlots(PythonSlots):
    """Slots whose environments are programs.

    All actions are sent before any observation is waited for, so that no program waits for another one.
    """

    envs: list[AgentEnvironment]  # type: ignore[assignment]

    def reset(self, ids: EnvIds, worker: int = 0) -> None:
        for i in ids.tolist():  # tell all programs to leave before any is waited for
            self.envs[i].leave_unless_new()
        for i in ids.tolist():
            self._call(i, self.envs[i].begin_game)
        super().reset(ids, worker)

    def close(self) -> None:
        limit = LEAVING_AT_ONCE if any(env.interrupted for env in self.envs) else LEAVING
        for env in self.envs:  # tell all programs to leave before any is waited for
            env.leave(limit)
        super().close()

    def _act(self, ids: list[int], actions: list[dict[str, Action]]) -> Iterable[Observation]:
        for i, told in zip(ids, actions, strict=True):
            self._call(i, self.envs[i].send, told)
        return [self._call(i, self.envs[i].receive) for i in ids]


class TookTooLong(ValueError):  # noqa: N818 - reads as a sentence
    """A program did not hand in an observation, or did not return, within its time limit."""


# ---- the program's thread


class _Run:
    """One call of main in a thread of its own, and the queues between this thread and the trainer's.

    Attributes:
        observations: None: main has ended.
        actions: the choices of the actors; None: main must return.
        error: what main raised; set before the None in `observations`.
        was_told: `act` returned None before main ended.
        limit: seconds that main has to return, once it has to.
        leave_by: the deadline, on the clock of `time.monotonic`; None: main may go on.
    """

    def __init__(self, env: TrainEnv, seed: int) -> None:
        self.observations: SimpleQueue[Observation | None] = SimpleQueue()
        self.actions: SimpleQueue[list[int] | None] = SimpleQueue()
        self.error: BaseException | None = None
        self.was_told = False
        self.limit = 0.0
        self.leave_by: float | None = None
        # A daemon, so that neither a program that hangs nor a pool that was never closed keeps Python from exiting.
        self.thread = threading.Thread(target=self._play, args=(env, seed), name=env.name, daemon=True)
        self.thread.start()

    def leave(self, limit: float) -> None:
        """Make every `act` return None from now on."""
        if self.leave_by is None:
            self.limit, self.leave_by = limit, time.monotonic() + limit
            self.actions.put(None)

    def position(self) -> str:
        """Say which line of the program its thread is at."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        package = __name__.rpartition(".")[0]
        while frame is not None and frame.f_back and frame.f_globals.get("__name__", "").startswith(package):
            frame = frame.f_back  # while the program waits in this package, name the line that called it
        if frame is None:
            return "it is just ending"
        return f"it is at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}()"

    def _play(self, env: TrainEnv, seed: int) -> None:
        agent = TrainAgent(env, self)
        try:
            env.main(agent, env.config, seed)
        except BaseException as error:  # SystemExit, too: the trainer's thread must not wait for ever
            self.error = error
        self.was_told = agent.gone
        self.observations.put(None)


class TrainAgent(Agent):
    """An agent whose actions the trainer decides.

    Args:
        env: the program.
        run: has the queues to the trainer's thread.

    Attributes:
        gone: the trainer is gone, and the program must return.
    """

    def __init__(self, env: TrainEnv, run: _Run) -> None:
        self._env, self._run = env, run
        self._last_score: float | None = None  # None: no observation in this game yet
        self._has_acted = False  # whether any observation of this game had actors
        self.gone = False

    def act_each(self, obs: Obs[A]) -> list[A] | None:
        """Hand in an observation, and wait for the actions; see `Agent.act_each`.

        Raises:
            ValueError: `obs` has an entity type or action that was not declared to `TrainEnvBuilder`, or the trainer is gone.
        """
        check_obs(obs)
        if self.gone:
            raise ValueError(
                "an action was asked for after act had returned None: the trainer is gone, and main must return"
            )
        shown = self._observation(obs)
        self._last_score = obs.score
        self._has_acted |= bool(obs.actors)
        self._run.observations.put(shown)
        chosen = self._run.actions.get()
        self.gone = chosen is None
        return None if chosen is None else [obs.choices.pick(choice) for choice in chosen]

    def game_over(self, obs: Obs[A], *, truncated: bool = False) -> None:
        """End the game; see `Agent.game_over`. A game in which no action was asked for is not counted."""
        check_obs(obs)
        if self.gone or self._last_score is None:
            return
        if not self._has_acted:
            warnings.warn(
                f"{self._env.name}: nobody acted in a whole game, so nothing can be learned from it: Obs had no actors",
                stacklevel=2,
            )
        self._has_acted = False
        self._run.observations.put(self._observation(obs, done=True, truncated=truncated))
        self._last_score = None

    def _observation(self, obs: Obs[A], *, done: bool = False, truncated: bool = False) -> Observation:
        declared, actions = self._env.obs_space.entities, self._env.action_space
        for name, known in obs.types().items():
            if name not in declared:
                raise ValueError(
                    f"the entity type {name!r} was not declared: add .entity({name}) to the TrainEnvBuilder; "
                    f"{nearest(name, declared)}"
                )
            if known.entity != declared[name]:
                raise ValueError(f"the entity type {name!r} was declared as {declared[name]} and is {known.entity}")
        name, space = obs.choices.name, obs.choices.space
        if name not in actions:
            raise ValueError(
                f"the action {name!r} was not declared: add .action({name}) to the TrainEnvBuilder; {nearest(name, actions)}"
            )
        if space != actions[name]:
            raise ValueError(f"the action {name!r} was declared as {actions[name]} and is {space}")
        reward = 0.0 if self._last_score is None else obs.score - self._last_score
        return obs.to_observation(reward, done=done, truncated=truncated)


def _get(queue: SimpleQueue[Any], seconds: float) -> Any:
    """The next item of a queue.

    Waits in slices: Python may overlook a Ctrl-C that comes just before a wait until that has ended.

    Raises:
        Empty: none came in time.
    """
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 1.0:
        with suppress(Empty):
            return queue.get(timeout=1.0)
    return queue.get(timeout=max(0.0, left))
