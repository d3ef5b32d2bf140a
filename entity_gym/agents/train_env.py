"""Training of a program that owns its main loop: `main(agent, config, seed)` runs in a thread for each environment.

    def main(agent, config, seed):   # plays game after game, and returns once agent.act has returned None
        ...

    env = TrainEnvBuilder().entity(Head).entity(Food).action(Move).build(main, config)

Pools take `env` in place of an environment's class, and so do `enn_ppo.train(config, env)` and
`python -m enn_ppo.train env=custom env.id=my_pkg.my_game:env`. Threads of one process take turns, so programs that compute
much need `rollout.num_processes`.

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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import Action, ActionSpace, CategoricalAction
from entity_gym.agents.agent import A, Agent, Obs, check_obs
from entity_gym.agents.schema import Choices, choices_of, entity_type
from entity_gym.environment import Environment, Observation
from entity_gym.errors import NoPictureError, nearest
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slots import SlotOptions
from entity_gym.pools.source import EnvSource
from entity_gym.spaces import Entity, ObsSpace

#: Seconds that a program may take between two observations.
TIME_LIMIT = 60.0
#: Seconds that `main` has to return after `act` has returned None; at most the time limit.
LEAVING = 10.0
#: The same limit after Ctrl-C.
LEAVING_AT_ONCE = 1.0


class TrainEnvBuilder:
    """Declares a program's entity types and actions: `TrainEnvBuilder().entity(Head, Food).action(Move).build(main)`."""

    def __init__(self) -> None:
        self._entities: dict[str, Entity] = {}
        self._actions: dict[str, ActionSpace] = {}

    def entity(self, *classes: type) -> TrainEnvBuilder:
        """Add entity types: dataclasses, see `entity_gym.agents.schema`.

        Raises:
            ValueError: a class is no dataclass, or a field has a type that is not supported; names the field.
        """
        for cls in classes:
            if not isinstance(cls, type) or cls.__name__ in self._entities:
                raise ValueError(f"entity: {cls!r:.200} is no class, or another dataclass has its name")
            self._entities[cls.__name__] = entity_type(cls).entity
        return self

    def action(self, *classes: type) -> TrainEnvBuilder:
        """Add actions: Enums or dataclasses of Enums, see `entity_gym.agents.schema`. Each `Obs` asks for one of them.

        Raises:
            ValueError: a class is no Enum and no dataclass of Enums; names the field.
        """
        for cls in classes:
            choices: Choices[Any] = choices_of(cls)
            if choices.name in self._actions:
                raise ValueError(f"action: another action is called {choices.name!r}; rename one")
            self._actions[choices.name] = choices.space
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
        try:
            inspect.signature(main).bind("agent", "config", 0)
        except TypeError as error:
            raise ValueError(
                f"build: main is {main!r:.200}; it must be a function of (agent, config, seed): {error}"
            ) from error
        return TrainEnv(main, config, float(time_limit), ObsSpace(self._entities), dict(self._actions))


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
        name = getattr(self.main, "__qualname__", type(self.main).__qualname__)
        return f"{self.main.__module__}.{name}"

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
        return AgentEnvironment(self, weakref.WeakSet())

    def make_slots(self, num_envs: int, options: SlotOptions = SlotOptions()) -> PythonSlots:
        pool: weakref.WeakSet[AgentEnvironment] = weakref.WeakSet()
        return PythonSlots(lambda: AgentEnvironment(self, pool), num_envs, options)


class AgentEnvironment(Environment):
    """A program as an environment of the trainer. It is run again and again, each time in a new thread.

    The first observation after `main` starts, and the first after `game_over`, begins a game. If the trainer resets at
    another time, `main` has to return, and is started again.

    Args:
        env: the program.
        pool: the environments of the pool. As soon as one is closed, all their programs are told to leave.
    """

    def __init__(self, env: TrainEnv, pool: weakref.WeakSet[AgentEnvironment]) -> None:
        self.display_name = env.name  # in messages of pools
        self._env, self._pool = env, pool
        pool.add(self)
        self._agent: TrainAgent | None = None  # of the running main
        self._begins_game = False  # whether the next observation begins a game
        self._is_told = False  # whether the program has the actions of the coming step
        self._is_closed = False

    def obs_space(self) -> ObsSpace:
        return self._env.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self._env.action_space

    def reseed(self, seed: int, number: int) -> None:
        """Begin the random numbers anew, of which main's seed is one, and start main anew for the next game."""
        super().reseed(seed, number)
        self._leave()

    def configure(self, info: Mapping[str, Any]) -> None:
        raise ValueError(
            f"{self.display_name} takes no env_info: its parameters are the fields of its config (TrainEnv.with_values)"
        )

    def begin(self, actions: Mapping[str, Action] | None) -> None:
        """Hand the actions to the program. With None, start main, or tell it to leave in the middle of a game."""
        if self._is_closed:
            raise ValueError(f"{self.display_name}: the environment is closed")
        if actions is None:
            if not self._begins_game:
                self._leave()
            if self._agent is None:
                self._start()
            return
        chosen: list[int] = []
        for action in actions.values():  # one at most: an Obs asks for one action
            assert isinstance(action, CategoricalAction)
            by_actor = dict(zip(action.actors, np.asarray(action.actions).tolist(), strict=True))
            chosen = [by_actor[actor] for actor in range(len(by_actor))]
        self._running().actions.put(chosen)
        self._is_told = True

    def reset(self) -> Observation:
        """Wait for the first observation of a game.

        Raises:
            ValueError: main takes too long or returns.
            Exception: any exception that main raised.
        """
        self._is_told = False
        self.begin(None)
        if self._running().leave_by is not None:
            if late := self._join():
                raise ValueError(late)
            self._start()
        return self._receive()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Wait for the next observation; errors as in `reset`."""
        if not self._is_told:
            self.begin(actions)
        self._is_told = False
        return self._receive()

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
        self._is_closed = True
        self._leave_pool(LEAVING)
        if self._agent is not None and (late := self._join()):
            warnings.warn(f"{late}; it is left behind", RuntimeWarning, stacklevel=2)

    def _running(self) -> TrainAgent:
        if self._agent is None:
            raise ValueError(f"{self.display_name}: reset must be called first")
        return self._agent

    def _start(self) -> None:
        self._begins_game = True
        self._agent = TrainAgent(self._env, int(self.rng.integers(2**32)))
        # The thread holds the agent and not this object, so that programs leave when a pool is dropped without being closed.
        self._finalizer = weakref.finalize(self, self._agent.leave, LEAVING)
        self._finalizer.atexit = False

    def _leave(self, limit: float = LEAVING) -> None:
        """Tell main to leave within `limit` seconds from now, without waiting."""
        if self._agent is not None:
            self._agent.leave(min(limit, self._env.time_limit))

    def _leave_pool(self, limit: float) -> None:
        """Tell the programs of all environments of the pool to leave, so that they do it at the same time."""
        for env in self._pool:
            env._leave(limit)

    def _join(self) -> str | None:
        """Wait until main, which has been told to leave, has returned. Returns why it is not waited for any longer.

        Raises:
            Exception: any exception that main raised after it was told.
        """
        agent, self._agent = self._running(), None
        assert agent.leave_by is not None
        self._finalizer.detach()
        agent.thread.join(max(0.0, agent.leave_by - time.monotonic()))
        if agent.thread.is_alive():
            return f"{self.display_name} has not returned {agent.limit:g} seconds after act returned None; {agent.position()}"
        if agent.gone and isinstance(agent.error, Exception):
            raise self._error(agent)
        return None

    def _receive(self) -> Observation:
        """Wait for the next observation; errors as in `reset`."""
        agent = self._running()
        try:
            obs = _get(agent.observations, self._env.time_limit)
        except Empty:
            raise ValueError(
                f"{self.display_name} has neither asked for an action nor ended its game for {self._env.time_limit:g} seconds "
                f"(time_limit); {agent.position()}"
            ) from None
        except KeyboardInterrupt:  # the user does not want to wait
            self._leave_pool(LEAVING_AT_ONCE)
            raise
        self._begins_game = obs is not None and obs.done
        if obs is None:
            raise self._error(agent)
        return obs

    def _error(self, agent: TrainAgent) -> Exception:
        """Return the error to raise in the trainer's thread because main has ended."""
        name, error = self.display_name, agent.error
        if isinstance(error, Exception):
            error.add_note(f"raised in {name}" + (" after act had returned None" if agent.gone else ""))
            return error
        how = "returned" if error is None else f"ended with {type(error).__name__}"
        return ValueError(
            f"{name} {how} while the trainer goes on: it must play game after game, and return once act has returned None"
        )


def _get(queue: SimpleQueue[Observation | None], seconds: float) -> Observation | None:
    """Return the next item of a queue, or raise `Empty`."""
    while seconds > 1.0:  # in short waits, since Python may overlook a Ctrl-C until the end of one
        with suppress(Empty):
            return queue.get(timeout=1.0)
        seconds -= 1.0
    return queue.get(timeout=seconds)


class TrainAgent(Agent):
    """An agent whose actions the trainer decides. It starts main in a thread of its own.

    Args:
        env: the program.
        seed: for main.

    Attributes:
        gone: the trainer is gone, and the program must return.
        thread: where main runs.
        observations: to the trainer's thread; None: main has ended.
        actions: from the trainer's thread, the choices of the actors; None: main must return.
        error: the exception that main raised; set before the None in `observations`.
        limit: seconds that main has to return, once it has to.
        leave_by: the deadline, on the clock of `time.monotonic`; None: main may go on.
    """

    def __init__(self, env: TrainEnv, seed: int) -> None:
        self._env = env
        self._last_score: float | None = None  # None: no observation in this game yet
        self._has_acted = False  # whether any observation of this game had actors
        self.gone = False
        self.observations: SimpleQueue[Observation | None] = SimpleQueue()
        self.actions: SimpleQueue[list[int] | None] = SimpleQueue()
        self.error: BaseException | None = None
        self.limit = 0.0
        self.leave_by: float | None = None
        # A daemon, so that neither a program that hangs nor a pool that was never closed keeps Python from exiting.
        self.thread = threading.Thread(target=self._play, args=(seed,), name=env.name, daemon=True)
        self.thread.start()

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
        self.observations.put(shown)
        chosen = self.actions.get()
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
        self.observations.put(self._observation(obs, done=True, truncated=truncated))
        self._last_score = None

    def leave(self, limit: float) -> None:
        """Make every `act` return None from now on; main has `limit` seconds to return."""
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

    def _play(self, seed: int) -> None:
        try:
            self._env.main(self, self._env.config, seed)
        except BaseException as error:  # SystemExit, too: the trainer's thread must not wait for ever
            self.error = error
        self.observations.put(None)

    def _observation(self, obs: Obs[A], *, done: bool = False, truncated: bool = False) -> Observation:
        types = {name: each.entity for name, each in obs.types().items()}
        actions = {obs.choices.name: obs.choices.space}
        declared = (("entity", types, self._env.obs_space.entities), ("action", actions, self._env.action_space))
        for kind, shown, known in declared:
            for name, space in shown.items():
                if name not in known:
                    raise ValueError(
                        f"the {kind} {name!r} was not declared: add .{kind}({name}) to the TrainEnvBuilder; "
                        f"{nearest(name, known)}"
                    )
                if space != known[name]:
                    raise ValueError(f"the {kind} {name!r} was declared as {known[name]} and is {space}")
        reward = 0.0 if self._last_score is None else obs.score - self._last_score
        return obs.to_observation(reward, done=done, truncated=truncated)
