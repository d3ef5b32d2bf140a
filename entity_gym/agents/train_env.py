"""Training of a program that owns its main loop: `main(agent, config, seed)` runs in a thread for each environment.

    def main(agent, config, seed):   # plays game after game, and returns once agent.act has returned None
        ...

    env = TrainEnv(main, entity_types=[Head, Food], action_types=[Move])

Pools take `env` in place of an environment's class, and so do `enn_ppo.train(config, env)` and
`python -m enn_ppo.train env=custom env.id=my_pkg.my_game:env`. Threads of one process take turns, so programs that compute
much need `rollout.num_processes`.

An episode begins with the first observation of a game and ends with `game_over`. Where the trainer abandons an episode, and
whenever the pool is seeded, `act` returns None in the running main, and a new main is started.
"""

from __future__ import annotations

import dataclasses
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from entity_gym.actions import Action, ActionSpace
from entity_gym.agents.agent import A, Agent, Obs, action_space_of, entity_of
from entity_gym.environment import Environment, Observation
from entity_gym.errors import nearest
from entity_gym.pools.source import EnvSource
from entity_gym.spaces import ObsSpace

#: Seconds that a program may take between two observations.
TIME_LIMIT = 60.0
#: Seconds that the programs of a process have to return when their environments are closed; at most the time limit.
LEAVING = 2.0


@dataclass(frozen=True, repr=False)
class TrainEnv(EnvSource):
    """A program with its spaces: a source of environments.

    Attributes:
        main: called as `main(agent, config, seed)` for each environment; must play game after game until `act` returns None.
            `seed` is an integer of at least 0; equal seeds must play equal games.
        entity_types: dataclasses, the types of all entities that the program shows; see `entity_gym.agents.agent`.
        action_types: Enums and `Selection`s. Each `Obs` asks for one of them.
        config: passed to `main`; shared by all environments, so it must not be changed.
        time_limit: seconds that `main` may take until it hands in the next observation.
        obs_space: the declared entity types.
        action_space: the declared actions.

    Raises:
        ValueError: a class cannot be an entity type or an action.
    """

    main: Callable[..., None]
    entity_types: Sequence[type]
    action_types: Sequence[type]
    config: Any = None
    time_limit: float = TIME_LIMIT
    obs_space: ObsSpace = field(init=False)
    action_space: Mapping[str, ActionSpace] = field(init=False)

    def __post_init__(self) -> None:
        types, actions = dict[str, Any](), dict[str, Any]()
        for option, made, space_of in (("entity_types", types, entity_of), ("action_types", actions, action_space_of)):
            for cls in getattr(self, option):
                if not isinstance(cls, type) or cls.__name__ in made:
                    raise ValueError(
                        f"TrainEnv: {option} has {cls!r:.200}, which is no class, or has another one's name"
                    )
                made[cls.__name__] = space_of(cls)
        object.__setattr__(self, "obs_space", ObsSpace(types))
        object.__setattr__(self, "action_space", actions)

    @property
    def name(self) -> str:
        """The name of `main`, for messages and titles."""
        name = getattr(self.main, "__qualname__", type(self.main).__qualname__)
        return f"{self.main.__module__}.{name}"

    def __repr__(self) -> str:
        return f"TrainEnv({self.name})"

    @property
    def values(self) -> Mapping[str, Any]:  # type: ignore[override]
        """The fields of `config`, if it is a dataclass's object; they are the parameters."""
        config = self.config
        fields = dataclasses.fields(config) if dataclasses.is_dataclass(config) and not isinstance(config, type) else ()
        return {each.name: getattr(config, each.name) for each in fields if each.init}

    def with_values(self, given: Mapping[str, Any]) -> TrainEnv:
        config = self.config
        return dataclasses.replace(self, config=dataclasses.replace(config, **given)) if given else self

    def as_environment(self) -> AgentEnvironment:
        return AgentEnvironment(self)


class AgentEnvironment(Environment):
    """A program as an environment of the trainer. It is run again and again, each time in a new thread.

    The first observation after `main` starts, and the first after `game_over`, begins a game. If the trainer resets at
    another time, `main` has to return, and is started again.
    """

    def __init__(self, env: TrainEnv) -> None:
        self.display_name = env.name  # in messages of pools
        self._env = env
        self._agent: TrainAgent | None = None  # of the running main
        self._begins_game = False  # whether the next observation begins a game
        self._is_told = False  # whether the program has the actions of the coming step

    def obs_space(self) -> ObsSpace:
        return self._env.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self._env.action_space

    def reseed(self, seed: int, number: int) -> None:
        """Begin the random numbers anew, of which main's seed is one, and start main anew for the next game."""
        super().reseed(seed, number)
        if self._agent is not None:
            self._agent.leave()

    def begin(self, actions: Mapping[str, Action] | None) -> None:
        """Hand the actions to the program. With None, start main, or tell it to leave in the middle of a game."""
        if actions is None:
            if self._agent is None:
                self._start()
            elif not self._begins_game:
                self._agent.leave()
            return
        self._running().actions.put(actions)
        self._is_told = True

    def reset(self) -> Observation:
        """Wait for the first observation of a game.

        Raises:
            ValueError: main takes too long or returns.
            Exception: any exception that main raised.
        """
        self._is_told = False
        self.begin(None)
        if self._running().is_leaving:
            if late := self._join(self._env.time_limit):
                raise ValueError(late)
            self._start()
        return self._receive()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Wait for the next observation; errors as in `reset`."""
        if not self._is_told:
            self.begin(actions)
        self._is_told = False
        return self._receive()

    def close(self) -> None:
        """Wait until main has left; if it does not, warn and go on.

        Raises:
            Exception: any exception that main raised while it left.
        """
        if self._agent is not None:
            self._agent.leave()
            if late := self._join(min(LEAVING, self._env.time_limit)):
                warnings.warn(f"{late}; it is left behind", RuntimeWarning, stacklevel=2)

    def _running(self) -> TrainAgent:
        if self._agent is None:
            raise ValueError(f"{self.display_name}: reset must be called first")
        return self._agent

    def _start(self) -> None:
        self._begins_game = True
        self._agent = TrainAgent(self._env, int(self.rng.integers(2**32)))
        # The thread holds the agent and not this object, so that programs leave when a pool is dropped without being closed.
        weakref.finalize(self, self._agent.leave).atexit = False

    def _join(self, seconds: float) -> str | None:
        """Wait until main, which has been told to leave, has returned. Returns why it is not waited for any longer.

        Raises:
            Exception: any exception that main raised after it was told.
        """
        agent, self._agent = self._running(), None
        agent.thread.join(seconds)
        if agent.thread.is_alive():
            return f"{self.display_name} has not returned {seconds:g} seconds after act returned None"
        if agent.gone and isinstance(agent.error, Exception):
            raise self._error(agent)
        return None

    def _receive(self) -> Observation:
        """Wait for the next observation; errors as in `reset`."""
        agent, waited = self._running(), 0.0
        while True:  # in short waits, since Python may overlook a Ctrl-C until the end of one
            wait = min(1.0, self._env.time_limit - waited)
            try:
                obs = agent.observations.get(timeout=wait)
                break
            except Empty:
                waited += wait
            if waited >= self._env.time_limit:
                raise ValueError(
                    f"{self.display_name} has neither asked for an action nor ended its game for {self._env.time_limit:g} "
                    "seconds (time_limit)"
                )
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


class TrainAgent(Agent):
    """An agent whose actions the trainer decides. It starts main in a thread of its own.

    Args:
        env: the program.
        seed: for main.

    Attributes:
        is_leaving: every `act` returns None from now on.
        gone: `act` has returned None: the trainer is gone, and the program must return.
        thread: where main runs.
        observations: to the trainer's thread; None: main has ended.
        actions: from the trainer's thread, those of the actors; None: main must return.
        error: the exception that main raised; set before the None in `observations`.
    """

    def __init__(self, env: TrainEnv, seed: int) -> None:
        self._env = env
        self._last_score: float | None = None  # None: no observation in this game yet
        self.is_leaving = self.gone = False
        self.observations: SimpleQueue[Observation | None] = SimpleQueue()
        self.actions: SimpleQueue[Mapping[str, Action] | None] = SimpleQueue()
        self.error: BaseException | None = None
        # A daemon, so that neither a program that hangs nor a pool that was never closed keeps Python from exiting.
        self.thread = threading.Thread(target=self._play, args=(seed,), name=env.name, daemon=True)
        self.thread.start()

    def act_each(self, obs: Obs[A]) -> list[A] | None:
        """Hand in an observation, and wait for the actions; see `Agent.act_each`.

        Raises:
            ValueError: `obs` has an entity type or action that was not declared to `TrainEnv`, or the trainer is gone.
        """
        if self.gone:
            raise ValueError(
                "an action was asked for after act had returned None: the trainer is gone, and main must return"
            )
        shown = self._observation(obs)
        self._last_score = obs.score
        self.observations.put(shown)
        chosen = self.actions.get()
        self.gone = chosen is None
        return None if chosen is None else obs.chosen(chosen)

    def game_over(self, obs: Obs[A], *, truncated: bool = False) -> None:
        """End the game; see `Agent.game_over`. A game in which no action was asked for is not counted."""
        if self.gone or self._last_score is None:
            return
        self.observations.put(self._observation(obs, done=True, truncated=truncated))
        self._last_score = None

    def leave(self) -> None:
        """Make every `act` return None from now on."""
        if not self.is_leaving:
            self.is_leaving = True
            self.actions.put(None)

    def _play(self, seed: int) -> None:
        try:
            self._env.main(self, self._env.config, seed)
        except BaseException as error:  # SystemExit, too: the trainer's thread must not wait for ever
            self.error = error
        self.observations.put(None)

    def _observation(self, obs: Obs[A], *, done: bool = False, truncated: bool = False) -> Observation:
        declared = (
            ("entity_types", obs.types(), self._env.obs_space.entities),
            ("action_types", {obs.action.__name__: obs.space}, self._env.action_space),
        )
        for option, shown, known in declared:
            for name, space in shown.items():
                if known.get(name) != space:
                    raise ValueError(f"TrainEnv has no {name!r} in {option}, which is {space}; {nearest(name, known)}")
        reward = 0.0 if self._last_score is None else obs.score - self._last_score
        return obs.to_observation(reward, done=done, truncated=truncated)
