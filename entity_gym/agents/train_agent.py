"""Training a program that owns its main loop: `main(agent, config, seed)` runs in a thread for each environment.

    def main(agent, config, seed):                # game after game, until agent.act returns None; then it must return
        ...

    env = TrainEnvBuilder().entity(Head).entity(Food).action(Move).build(main, config)

`env` goes wherever what makes an environment goes: `ThreadedVecEnv(env, 64)`, `ProcessVecEnv`, `enn_ppo.train(config, env)`, and
`python -m enn_ppo.train env=custom env.id=my_pkg.my_game:env`, there with `rollout.num_processes` for programs that keep a core
busy: threads of one process take turns.

What happens in a step: all programs get their actions, and then what they show next is awaited, one after the other. An
episode begins with the first observation of a game and ends with `game_over`. Where the trainer abandons an episode, and
whenever the pool is seeded, the running main is told to leave (`act` returns None) and a new one is started.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import Action, ActionSpace, CategoricalAction
from entity_gym.agents.choices import Choices, choices_of
from entity_gym.agents.features import EntityType, entity_type
from entity_gym.agents.world import LEAVING, LEAVING_AT_ONCE, Program, World
from entity_gym.environment import Environment, Observation
from entity_gym.errors import NoPictureError, nearest
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slots import EnvIds, EnvSlots, FinalObservations, check_num_envs
from entity_gym.spaces import ObsSpace

#: Seconds that a program may take between two observations.
TIME_LIMIT = 60.0


class TrainEnvBuilder:
    """What a program shows and asks for: `TrainEnvBuilder().entity(Head).entity(Food).action(Move).build(main)`."""

    def __init__(self) -> None:
        self._types: dict[str, EntityType] = {}
        self._actions: dict[str, Choices[Any]] = {}

    def entity(self, *classes: type) -> TrainEnvBuilder:
        """Add types of entity: dataclasses, see `entity_gym.agents.features`.

        Raises:
            ValueError: one is no such class; names the field.
        """
        for cls in classes:
            if not isinstance(cls, type):
                raise ValueError(f"entity: {cls!r:.200} is no class; give the dataclass itself")
            _add(self._types, entity_type(cls), "entity type")
        return self

    def action(self, *classes: type) -> TrainEnvBuilder:
        """Add actions: Enums or dataclasses of Enums, see `entity_gym.agents.choices`. Each `Obs` asks for one of them.

        Raises:
            ValueError: one is no such class; names the field.
        """
        for cls in classes:
            _add(self._actions, choices_of(cls), "action")
        return self

    def build(
        self,
        main: Callable[..., None],
        config: Any = None,
        *,
        num_agents: int = 1,
        time_limit: float = TIME_LIMIT,
    ) -> TrainEnv:
        """What makes environments of it.

        Args:
            main: called as `main(agent, config, seed)` for each environment, or with several agents as
                `main(agents, config, seed)` for each world; must play game after game until `act` returns None. `seed` is a
                whole number of at least 0: the same one must play the same games.
            config: whatever `main` needs to know; the same object for all, so it must not be changed.
            num_agents: in one world. Each is an environment of its own to the trainer, so a pool, and each worker process,
                has a multiple of these. Their games end together.
            time_limit: seconds that `main` may take until it hands in the next observation.

        Raises:
            ValueError: there is no action, or something else cannot be.
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
        return TrainEnv(Program(main, config, num_agents, float(time_limit), obs_space, action_space))


class TrainEnv:
    """Makes environments of a program; a `SlotsFactory`, so pools take it. `TrainEnvBuilder.build` makes it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.__name__ = program.name  # what whoever plays it is shown as its title

    def __repr__(self) -> str:
        return f"TrainEnv({self.program.name})"

    def configured(self, values: Mapping[str, Any]) -> TrainEnv:
        """The same with other values in `config`, which must be a dataclass.

        Raises:
            ValueError: it has no such fields, or refuses the values.
        """
        if not values:
            return self
        config = self.program.config
        if not dataclasses.is_dataclass(config) or isinstance(config, type):
            raise ValueError(
                f"{dict(values)} cannot be set for {self.program.name}: its config is {config!r:.200}, and only the fields of "
                "a dataclass can be"
            )
        fields = [field.name for field in dataclasses.fields(config) if field.init]
        for name in values:
            if name not in fields:
                raise ValueError(f"the config of {self.program.name} has no field {name!r}; {nearest(name, fields)}")
        return TrainEnv(dataclasses.replace(self.program, config=dataclasses.replace(config, **values)))

    def __call__(self) -> Environment:
        """One environment alone.

        Raises:
            ValueError: its world has several agents, each of which is an environment.
        """
        if self.program.num_agents > 1:
            raise ValueError(
                f"{self.program.name} has {self.program.num_agents} agents in each world, and none of them can be looked at or "
                "played alone here, as in enn_ppo.play and entity_gym.check: give agents of load_agent or random_agent to the "
                "game's own loop, or make a pool (ThreadedVecEnv)"
            )
        return AgentEnvironment(World(self.program), 0)

    def make_slots(
        self, num_envs: int, *, first_env: int, autoreset: bool, final_observations: FinalObservations
    ) -> EnvSlots:
        """As `SlotsFactory` says.

        Raises:
            ValueError: so many environments are no whole number of worlds.
        """
        check_num_envs(num_envs)
        num_agents = self.program.num_agents
        if num_envs % num_agents or first_env % num_agents:
            raise ValueError(
                f"{num_envs} environments from number {first_env} on are no whole number of worlds of {self.program.name} with "
                f"{num_agents} agents each: num_envs must be a multiple of {num_agents}, in each worker process as well"
            )
        worlds = [World(self.program) for _ in range(num_envs // num_agents)]
        envs = iter([AgentEnvironment(world, seat) for world in worlds for seat in range(num_agents)])
        return AgentSlots(
            lambda: next(envs),
            num_envs,
            first_env=first_env,
            autoreset=autoreset,
            final_observations=final_observations,
        )


class AgentEnvironment(Environment):
    """One agent of a world as the trainer sees it.

    Args:
        world: which runs the program.
        seat: the agent's number in it.
    """

    def __init__(self, world: World, seat: int) -> None:
        self.world = world
        self.seat = seat
        self.display_name = world.program.name  # in messages

    def obs_space(self) -> ObsSpace:
        return self.world.program.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self.world.program.action_space

    def reseed(self, seed: int, number: int) -> None:
        super().reseed(seed, number)
        if self.seat == 0:
            self.world.reseed(seed, number)

    def dismiss(self) -> None:
        """Tell a main that the next `reset` cannot use to leave, without waiting for that."""
        self.world.dismiss_unless_new(self.seat)

    def reset(self) -> Observation:
        self.world.begin(self.seat)
        return self.world.observe(self.seat)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.hand_in(actions)
        return self.world.observe(self.seat)

    def hand_in(self, actions: Mapping[str, Action]) -> None:
        """Give the program its actions, without waiting for what it shows next."""
        chosen: list[int] = []
        for action in actions.values():  # at most one was offered
            assert isinstance(action, CategoricalAction)
            by_actor = dict(zip(action.actors, np.asarray(action.actions).tolist(), strict=True))
            chosen = [by_actor[actor] for actor in range(len(by_actor))]
        self.world.hand_in(self.seat, chosen)

    def observe(self) -> Observation:
        """Wait for what the program shows next."""
        return self.world.observe(self.seat)

    def render(self) -> NDArray[np.uint8]:
        raise NoPictureError(
            f"{self.display_name} draws itself, if at all, in its own loop: there is nothing to film; leave videos and films "
            "out, and watch load_agent play in that loop"
        )

    def close(self) -> None:
        self.world.close()


class AgentSlots(PythonSlots):
    """Hands all actions in before any observation is awaited, so that no program waits for another one."""

    def reset(self, ids: EnvIds, worker: int = 0) -> None:
        self._check_whole_worlds(ids.tolist())
        for i in ids.tolist():
            self._agent(i).dismiss()
        for i in ids.tolist():
            self._call(i, self._agent(i).world.begin, self._agent(i).seat)
        super().reset(ids, worker)

    def close(self) -> None:
        interrupted = any(self._agent(i).world.interrupted for i in range(len(self)))
        for i in range(len(self)):  # all of them before any is waited for: their time to leave begins now
            self._agent(i).world.dismiss(LEAVING_AT_ONCE if interrupted else LEAVING)
        super().close()

    def _act(self, ids: list[int], actions: list[dict[str, Action]]) -> list[Observation]:
        self._check_whole_worlds(ids)
        for i, told in zip(ids, actions, strict=True):
            self._call(i, self._agent(i).hand_in, told)
        observations = [self._call(i, self._agent(i).observe) for i in ids]
        self._check_same_ends(dict(zip(ids, observations, strict=True)))
        return observations

    def _agent(self, i: int) -> AgentEnvironment:
        env = self.envs[i]
        assert isinstance(env, AgentEnvironment)
        return env

    def _check_whole_worlds(self, mine: list[int]) -> None:
        num_agents = self._agent(0).world.program.num_agents
        if num_agents == 1:
            return
        there = set(mine)
        for i in mine:
            world = range(i - i % num_agents, i - i % num_agents + num_agents)
            if not there.issuperset(world):
                raise ValueError(
                    f"{self.where(i)}: the {num_agents} agents of a world are stepped together: environments "
                    f"{world[0]} to {world[-1]}, by the same thread and in the same call"
                )

    def _check_same_ends(self, observations: Mapping[int, Observation]) -> None:
        num_agents = self._agent(0).world.program.num_agents
        for i, obs in observations.items() if num_agents > 1 else ():
            first = i - i % num_agents
            if obs.done != observations[first].done:
                over, going_on = (i, first) if obs.done else (first, i)
                raise ValueError(
                    f"{self.where(i)}: agent {going_on - first} goes on after the game of agent {over - first} is over: games "
                    "of one world end together, so call game_over on all of its agents"
                )


def _add(known: dict[str, Any], new: Any, what: str) -> None:
    if new.name in known:
        raise ValueError(f"two of the {what}s are called {new.name!r}")
    known[new.name] = new


def _check_main(main: object) -> None:
    if not callable(main):
        raise ValueError(f"build: main is {main!r:.200}; it must be a function of (agent, config, seed)")
    try:
        signature = inspect.signature(main)
    except (TypeError, ValueError):  # some callables have none to look at
        return
    try:
        signature.bind("agent", "config", 0)
    except TypeError as error:
        raise ValueError(
            f"build: main is called as main(agent, config, seed), which {signature} does not take: {error}"
        ) from error
