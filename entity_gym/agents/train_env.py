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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import Action, ActionSpace, CategoricalAction
from entity_gym.agents.agent import A, Agent, Handle, Obs, check_obs
from entity_gym.agents.schema import Choices, EntityType, choices_of, entity_type
from entity_gym.environment import Environment, Observation
from entity_gym.errors import NoPictureError, nearest
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slots import EnvIds, EnvSlots, check_num_envs
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

    def build(
        self,
        main: Callable[..., None],
        config: Any = None,
        *,
        num_agents: int = 1,
        time_limit: float = TIME_LIMIT,
    ) -> TrainEnv:
        """Return a factory of environments, which pools take.

        Args:
            main: called as `main(agent, config, seed)` for each environment, or with several agents as
                `main(agents, config, seed)` for each world; must play game after game until `act` returns None. `seed` is an
                integer of at least 0; equal seeds must play equal games.
            config: passed to `main`; shared by all environments, so it must not be changed.
            num_agents: agents in one world. To the trainer each is an environment of its own, so the number of environments of
                a pool, and of each worker process, must be a multiple of `num_agents`. The games of one world end together.
            time_limit: seconds that `main` may take until it hands in the next observation.

        Raises:
            ValueError: no action was added, or an argument is invalid.
        """
        if not self._actions:
            raise ValueError("build: no action was given; add .action(...), an Enum or a dataclass of Enums")
        if isinstance(num_agents, bool) or not isinstance(num_agents, int) or num_agents < 1:
            raise ValueError(f"build: num_agents is {num_agents!r}; it must be a whole number, at least 1")
        if not isinstance(time_limit, int | float) or not time_limit > 0:
            raise ValueError(f"build: time_limit is {time_limit!r}; it must be a number of seconds above 0")
        _check_main(main)
        obs_space = ObsSpace({name: known.entity for name, known in self._types.items()})
        action_space = {name: choices.space for name, choices in self._actions.items()}
        return TrainEnv(main, config, num_agents, float(time_limit), obs_space, action_space)


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
class TrainEnv:
    """A program with its spaces: a factory of environments (`SlotsFactory`). `TrainEnvBuilder.build` makes it.

    Attributes:
        main, config, num_agents, time_limit: see `TrainEnvBuilder.build`.
        obs_space: the declared entity types.
        action_space: the declared actions.
    """

    main: Callable[..., None]
    config: Any
    num_agents: int
    time_limit: float
    obs_space: ObsSpace
    action_space: Mapping[str, ActionSpace]

    @property
    def __name__(self) -> str:
        """The name of `main`, for messages and titles."""
        module = getattr(self.main, "__module__", None)
        name = getattr(self.main, "__qualname__", type(self.main).__qualname__)
        return f"{module}.{name}" if module else name

    def __repr__(self) -> str:
        return f"TrainEnv({self.__name__})"

    def configured(self, values: Mapping[str, Any]) -> TrainEnv:
        """Return a copy in which these fields of `config`, a dataclass, have other values.

        Raises:
            ValueError: `config` has no such fields, or refuses the values.
        """
        if not values:
            return self
        config = self.config
        if not dataclasses.is_dataclass(config) or isinstance(config, type):
            raise ValueError(
                f"{dict(values)} cannot be set for {self.__name__}: its config is {config!r:.200}, and only the fields of "
                "a dataclass can be"
            )
        fields = [field.name for field in dataclasses.fields(config) if field.init]
        for name in values:
            if name not in fields:
                raise ValueError(f"the config of {self.__name__} has no field {name!r}; {nearest(name, fields)}")
        return dataclasses.replace(self, config=dataclasses.replace(config, **values))

    def __call__(self) -> Environment:
        """Return a single environment.

        Raises:
            ValueError: the program has several agents.
        """
        if self.num_agents > 1:
            raise ValueError(
                f"{self.__name__} has {self.num_agents} agents in each world, and none of them can be looked at or "
                "played alone here, as in enn_ppo.play and entity_gym.check: give agents of load_agent or random_agent to the "
                "game's own loop, or make a pool (ThreadedVecEnv)"
            )
        return AgentEnvironment(World(self), 0)

    def make_slots(self, num_envs: int, *, first_env: int, **options: Any) -> EnvSlots:
        """Return slots for `num_envs` environments; see `SlotsFactory`.

        Raises:
            ValueError: `num_envs` or `first_env` is no multiple of the number of agents.
        """
        check_num_envs(num_envs)
        if num_envs % self.num_agents or first_env % self.num_agents:
            raise ValueError(
                f"{self.__name__} has {self.num_agents} agents in each world; num_envs is {num_envs} (first environment: "
                f"{first_env}) and must be a multiple of {self.num_agents}, in each worker process as well"
            )
        worlds = [World(self) for _ in range(num_envs // self.num_agents)]
        envs = iter([AgentEnvironment(world, number) for world in worlds for number in range(self.num_agents)])
        return AgentSlots(lambda: next(envs), num_envs, first_env=first_env, **options)


# ---- the trainer's thread


class AgentEnvironment(Environment):
    """An agent of a world as an environment of the trainer.

    Args:
        world: runs the program.
        number: the agent's number in the world.
    """

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.display_name = world.env.__name__  # in messages of pools

    def obs_space(self) -> ObsSpace:
        return self.world.env.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self.world.env.action_space

    def reseed(self, seed: int, number: int) -> None:
        super().reseed(seed, number)
        if self.number == 0:
            self.world.reseed(seed, number)

    def configure(self, info: Mapping[str, Any]) -> None:
        raise ValueError(
            f"{self.display_name} takes no env_info: its parameters are the fields of its config (TrainEnv.configured)"
        )

    def reset(self) -> Observation:
        self.world.begin_game(self.number)
        return self.world.receive(self.number)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.send(actions)
        return self.world.receive(self.number)

    def send(self, actions: Mapping[str, Action]) -> None:
        """Give the program its actions, without waiting for the next observation."""
        chosen: list[int] = []
        for action in actions.values():  # one at most: an Obs asks for one action
            assert isinstance(action, CategoricalAction)
            by_actor = dict(zip(action.actors, np.asarray(action.actions).tolist(), strict=True))
            chosen = [by_actor[actor] for actor in range(len(by_actor))]
        self.world.send(self.number, chosen)

    def render(self) -> NDArray[np.uint8]:
        raise NoPictureError(
            f"{self.display_name} draws itself, if at all, in its own loop: there is nothing to film; leave videos and films "
            "out, and watch load_agent play in that loop"
        )

    def close(self) -> None:
        self.world.close()


class AgentSlots(PythonSlots):
    """Slots whose environments are agents of programs.

    All actions are sent before any observation is waited for, so that no program waits for another one.
    """

    envs: list[AgentEnvironment]  # type: ignore[assignment]

    def reset(self, ids: EnvIds, worker: int = 0) -> None:
        self._check_whole_worlds(ids.tolist())
        agents = {i: self.envs[i] for i in ids.tolist()}
        for agent in agents.values():  # tell all programs to leave before any is waited for
            agent.world.leave_unless_new(agent.number)
        for i, agent in agents.items():
            self._call(i, agent.world.begin_game, agent.number)
        super().reset(ids, worker)

    def close(self) -> None:
        worlds = [env.world for env in self.envs]
        limit = LEAVING_AT_ONCE if any(world.interrupted for world in worlds) else LEAVING
        for world in worlds:  # tell all programs to leave before any is waited for
            world.leave(limit)
        super().close()

    def _act(self, ids: list[int], actions: list[dict[str, Action]]) -> list[Observation]:
        self._check_whole_worlds(ids)
        for i, told in zip(ids, actions, strict=True):
            self._call(i, self.envs[i].send, told)
        observations = {i: self._call(i, self.envs[i].world.receive, self.envs[i].number) for i in ids}
        self._check_same_ends(observations)
        return list(observations.values())

    def _check_whole_worlds(self, ids: list[int]) -> None:
        num_agents = self.envs[0].world.env.num_agents
        given = set(ids)
        for i in ids if num_agents > 1 else ():
            first = i - i % num_agents
            if not given.issuperset(range(first, first + num_agents)):
                raise ValueError(
                    f"{self.where(i)}: the {num_agents} agents of a world are stepped together: environments "
                    f"{first} to {first + num_agents - 1}, by the same thread and in the same call"
                )

    def _check_same_ends(self, observations: Mapping[int, Observation]) -> None:
        num_agents = self.envs[0].world.env.num_agents
        for i, obs in observations.items() if num_agents > 1 else ():
            first = i - i % num_agents
            if obs.done != observations[first].done:
                over, going_on = (i, first) if obs.done else (first, i)
                raise ValueError(
                    f"{self.where(i)}: agent {going_on - first} goes on after the game of agent {over - first} is over: games "
                    "of one world end together, so call game_over on all of its agents"
                )


class World:
    """A program that is run again and again, each time in a new thread.

    The first observation after `main` starts, and the first after `game_over`, begins a game. If the trainer resets at
    another time, `main` has to return, and is started again.

    Attributes:
        env: the program.
        interrupted: the user pressed Ctrl-C while the program was waited for.
    """

    def __init__(self, env: TrainEnv) -> None:
        self.env = env
        self.interrupted = False
        self._seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0]), 0
        self._num_starts = 0  # since the world was seeded
        self._run: _Run | None = None
        self._begins_game = [False] * env.num_agents  # whether each agent's next observation begins a game
        self._closed = False

    def reseed(self, seed: int, number: int) -> None:
        """Start main anew for the next game, with seeds that follow from these two."""
        self._seed, self._num_starts = (seed, number), 0
        self.leave()

    def leave_unless_new(self, number: int) -> None:
        """Tell main to leave unless the agent's next observation begins a game."""
        if not self._begins_game[number]:
            self.leave()

    def leave(self, limit: float = LEAVING) -> None:
        """Tell main to leave within `limit` seconds from now, without waiting."""
        if self._run is not None:
            self._run.leave(min(limit, self.env.time_limit))

    def begin_game(self, number: int) -> None:
        """Make sure that the agent's next observation begins a game.

        Raises:
            TookTooLong: main does not leave.
            Exception: any exception that main raised while it left.
        """
        if self._closed:
            raise ValueError(f"{self.env.__name__}: the environment is closed")
        self.leave_unless_new(number)
        if self._run is not None and self._run.leave_by is not None:
            self._join()
        if self._run is None:
            seed = np.random.SeedSequence((*self._seed, self._num_starts)).generate_state(1)
            self._num_starts += 1
            self._begins_game = [True] * self.env.num_agents
            self._run = _Run(self.env, int(seed[0]))
            # The thread holds the run and not this object, so that programs leave when a pool is dropped without being closed.
            self._finalizer = weakref.finalize(self, self._run.leave, LEAVING)
            self._finalizer.atexit = False

    def send(self, number: int, choices: Sequence[int]) -> None:
        """Give an agent the choices of its actors."""
        self._running().actions[number].put(list(choices))

    def receive(self, number: int) -> Observation:
        """Wait for an agent's next observation.

        Raises:
            TookTooLong: none came within the time limit; says where main is.
            ValueError: main returned.
            Exception: any exception that main raised.
        """
        run = self._running()
        try:
            obs: Observation | None = _get(run.observations[number], self.env.time_limit)
        except Empty:
            raise TookTooLong(
                f"{self.env.__name__} has neither asked for an action nor ended its game for {self.env.time_limit:g} seconds "
                f"(time_limit); {run.position()}"
            ) from None
        except KeyboardInterrupt:  # the user does not want to wait: `close` will not wait for long, either
            self.interrupted = True
            raise
        if obs is None:
            raise self._error(run)
        self._begins_game[number] = obs.done
        return obs

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
            raise ValueError(f"{self.env.__name__}: reset must be called first")
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
                f"{self.env.__name__} has not returned {run.limit:g} seconds after act returned None; {run.position()}"
            )
        if run.was_told and isinstance(run.error, Exception):
            raise self._error(run)

    def _error(self, run: _Run) -> Exception:
        """Return the error to raise in the trainer's thread because main has ended."""
        name = self.env.__name__
        if isinstance(run.error, Exception):
            run.error.add_note(f"raised in {name}" + (" after act had returned None" if run.was_told else ""))
            return run.error
        how = "returned" if run.error is None else f"ended with {type(run.error).__name__}"
        return ValueError(
            f"{name} {how} while the trainer goes on: it must play game after game, and return once act has returned None"
        )


class TookTooLong(ValueError):  # noqa: N818 - reads as a sentence
    """A program did not hand in an observation, or did not return, within its time limit."""


# ---- the program's thread


class _Run:
    """One call of main in a thread of its own, and the queues between this thread and the trainer's.

    Attributes:
        observations: one queue per agent; None: main has ended.
        actions: one queue per agent, of the choices of its actors; None: main must return.
        error: what main raised; set before the None in `observations`.
        was_told: `act` returned None before main ended.
        limit: seconds that main has to return, once it has to.
        leave_by: the deadline, on the clock of `time.monotonic`; None: main may go on.
    """

    def __init__(self, env: TrainEnv, seed: int) -> None:
        self.observations: list[SimpleQueue[Observation | None]] = [SimpleQueue() for _ in range(env.num_agents)]
        self.actions: list[SimpleQueue[list[int] | None]] = [SimpleQueue() for _ in range(env.num_agents)]
        self.error: BaseException | None = None
        self.was_told = False
        self.limit = 0.0
        self.leave_by: float | None = None
        # A daemon, so that neither a program that hangs nor a pool that was never closed keeps Python from exiting.
        self.thread = threading.Thread(target=self._play, args=(env, seed), name=env.__name__, daemon=True)
        self.thread.start()

    def leave(self, limit: float) -> None:
        """Make every `act` return None from now on."""
        if self.leave_by is None:
            self.limit, self.leave_by = limit, time.monotonic() + limit
            for actions in self.actions:
                actions.put(None)

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
        num_requests = [0] * env.num_agents
        agents = [TrainAgent(env, self, number, num_requests) for number in range(env.num_agents)]
        try:
            env.main(agents if env.num_agents > 1 else agents[0], env.config, seed)
        except BaseException as error:  # SystemExit, too: the trainer's thread must not wait for ever
            self.error = error
        self.was_told = any(agent.gone for agent in agents)
        for observations in self.observations:
            observations.put(None)


class TrainAgent(Agent):
    """An agent whose actions the trainer decides.

    Args:
        env: the program.
        run: has the queues to the trainer's thread.
        number: the agent's number in its world.
        num_requests: how often each agent of the world has asked for actions; shared by these agents.

    Attributes:
        gone: the trainer is gone, and the program must return.
    """

    def __init__(self, env: TrainEnv, run: _Run, number: int, num_requests: list[int]) -> None:
        self._env, self._run, self._number, self._num_requests = env, run, number, num_requests
        self._last_score: float | None = None  # None: no observation in this game yet
        self._waiting = False
        self._has_acted = False  # whether any observation of this game had actors
        self.gone = False

    def act_async(self, obs: Obs[A]) -> Handle[A]:
        """Hand in an observation; see `Agent.act_async`.

        Raises:
            ValueError: `obs` has an entity type or action that was not declared to `TrainEnvBuilder`, the actions asked for
                before were not received, or the trainer is gone.
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
        self._num_requests[self._number] += 1
        self._waiting = True
        self._last_score = obs.score
        self._has_acted |= bool(obs.actors)
        self._run.observations[self._number].put(shown)
        return Handle(obs, lambda: self._receive(obs))

    def game_over(self, obs: Obs[A], *, truncated: bool = False) -> None:
        """End the game; see `Agent.game_over`. A game in which no action was asked for is not counted."""
        check_obs(obs)
        if self.gone or self._last_score is None:
            return
        if self._waiting:
            raise ValueError(f"agent {self._number}: the game is over before it received the action it had asked for")
        if not self._has_acted:
            warnings.warn(
                f"{self._env.__name__}: nobody acted in a whole game, so nothing can be learned from it: Obs had no actors",
                stacklevel=2,
            )
        self._has_acted = False
        self._run.observations[self._number].put(self._observation(obs, done=True, truncated=truncated))
        self._last_score = None

    def _receive(self, obs: Obs[A]) -> list[A] | None:
        for number, num_requests in enumerate(self._num_requests):
            if num_requests != self._num_requests[self._number]:
                raise ValueError(
                    f"agent {self._number} waits for its action before agent {number} of the same world has handed in its "
                    "observation: call act_async on all agents, and then receive on each handle"
                )
        choices = self._run.actions[self._number].get()
        self._waiting = False
        self.gone = choices is None
        return None if choices is None else [obs.choices.pick(choice) for choice in choices]

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
