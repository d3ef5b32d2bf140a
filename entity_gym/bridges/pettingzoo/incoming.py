"""PettingZoo environments as entity environments: agents are entities that appear, act and disappear.

    pool = from_pettingzoo("butterfly/knights_archers_zombies-v11", num_envs=8, max_cycles=300)
    pool = from_pettingzoo(make_my_env, groups={"hunter": ["adversary_*"], "prey": ["agent_*"]})
    pool = from_pettingzoo(make_my_game, groups={"player": [["red_*"], ["blue_*"]]})  # two sides of one group

The agents of a group are entities of one type, so they share what the network learns. An agent's observation, fixed numbers
however nested, is the features of its entity, which exists from the agent's first observation to the last one before it ends.

The reward is the sum over all agents, and an episode ends when the last agent does. It is truncated if some agents did not
terminate but were truncated; then the last observation shows these.

All agents are in one frame, so each acts on the observations of all: that suits a team. Groups, and the sides of a group, are
players (`entity_gym.pools.players`): each sees the features of its own agents, of the others only that they exist, and gets the
rewards of its own agents.

In AEC environments agents take turns: one step of the pool is the turn of one agent, which alone acts, and the flag `turn` says
which. Rewards arrive with the step that earns them, for all agents.

Masks (`entity_gym.bridges.masks`) close choices. An agent without an open choice does not act: the environment gets its first.

Shapes: n agents, E entities, F features, R numbers of an observation.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import Action, ActionMask, ActionSpace
from entity_gym.bridges.gymnasium.observations import AGENT
from entity_gym.bridges.incoming import (
    Constructor,
    Wrapper,
    check_arguments,
    load_wrappers,
    picture_of,
    pool_from,
    wrapped,
)
from entity_gym.bridges.pettingzoo.groups import AgentID, Group, Groups, place_of, read_groups
from entity_gym.bridges.views.view import View, load_view
from entity_gym.environment import Environment, Observation
from entity_gym.errors import nearest
from entity_gym.pools.source import EnvSource
from entity_gym.pools.vec_env import VecEnv
from entity_gym.spaces import ObsSpace

# ---- for users


def from_pettingzoo(env: str | Callable[..., Any], num_envs: int = 1, seed: int = 0, **options: Any) -> VecEnv:
    """Make a pool of parallel or AEC environments, whose `reset(env_info=...)` gives each environment its `options`.

    Args:
        env: as in `pettingzoo_worlds`.
        num_envs: number of environments.
        seed: environment i is reset with `seed=seed + i`.
        options: those of the pool as in `from_gymnasium`; all others as in `pettingzoo_worlds`, with its errors.
    """
    return pool_from(pettingzoo_worlds, env, num_envs, seed, options)


def pettingzoo_worlds(
    env: str | Callable[..., Any],
    groups: Mapping[str, str | Sequence[str | Sequence[str]]] | None = None,
    view: str | Path | Mapping[str, Any] | None = None,
    wrappers: Sequence[str | Wrapper] = (),
    **kwargs: Any,
) -> PettingZooFactory:
    """Return a factory of parallel or AEC environments that every pool takes.

    Args:
        env: a function or class that makes an environment, "package.module:function", or an id of PettingZoo such as
            "butterfly/knights_archers_zombies-v11".
        groups: group -> its agents, names or patterns such as "prey_*", or a list of these for each side of the group; an agent
            is in the first group that fits. None: groups are names without the number at the end; of agents that take turns,
            each is a side of its own.
        view: what of an agent's observation is an entity, as in `gymnasium_worlds`. All agents then are of one type, the actor of
            the view, each with the features of its own observation. Entities of other types are read from the observation of the
            first agent, or of the one whose turn it is, and every player sees them: so it suits worlds in which nothing of
            them is hidden. With a view, the `groups` are sides of the actor.
        wrappers: as in `gymnasium_worlds`.
        kwargs: arguments of `env`.

    Raises:
        ValueError: for arguments that are not allowed.
        ImportError: naming what to install.
    """
    loaded = None if view is None else load_view(view)
    return PettingZooFactory(_constructor(env, kwargs), read_groups(groups), loaded, load_wrappers(wrappers))


class PettingZooFactory(EnvSource):
    """Makes entity environments, for pools and the trainer. The players of that world are the sides of all groups."""

    player_parameters: tuple[str, ...] = ()  # no parameter decides which agent is in which group

    def __init__(
        self, make: Constructor, groups: Groups | None, view: View | None, wrappers: Sequence[Wrapper]
    ) -> None:
        self._make, self._groups, self._view, self._wrappers = make, groups, view, wrappers
        self.__name__ = make.name
        # Of the groups of the first environment that was made, as of all.
        self._players: dict[str, range] = {}
        self._takes_turns = False
        # Players of the types whose entities are an agent's: those of groups, and `per_agent` of a view.
        self._of_type: dict[str, range] = {}

    def as_environment(self) -> PettingZooEnvironment:
        env = PettingZooEnvironment(wrapped(self._make(), self._wrappers), self._groups, self._view)
        for name, group in env.groups.items():
            self._players[name], self._takes_turns = group.players, group.takes_turns
            own = () if self._view is None else (key for key, each in self._view.entities.items() if each.per_agent)
            self._of_type |= dict.fromkeys((name, *own), group.players)
        return env

    def num_players(self, values: Mapping[str, Any]) -> int:
        """Return the number of sides of all groups."""
        if not self._players:
            self.as_environment().close()
        return sum(map(len, self._players.values()))

    def players(self, values: Mapping[str, Any], entity_type: str, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return (E,) the player that each of these entities belongs to; those that belong to nobody are the first's."""
        players = self._of_type.get(entity_type, range(1))
        return players.start + (rows[:, -1].astype(np.int64) if len(players) > 1 else np.zeros(len(rows), np.int64))

    def seen_by(
        self, values: Mapping[str, Any], player: NDArray[np.int64], entity_type: str, rows: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return (E, F) features of agents as a player sees each; zeros where the agent is another player's.

        Players see whose turn it is, and count sides from their own, which is 0; players of other groups count from side 0.
        Entities that an agent alone observes are seen like the agent. All others look alike to all players.
        """
        sides = self._of_type.get(entity_type)
        if sides is None:
            return rows
        seen = np.where((self.players(values, entity_type, rows) == player)[:, None], rows, np.float32(0))
        if len(sides) > 1:
            own = np.where(np.isin(player, sides), player - sides.start, 0)
            seen[:, -1] = (rows[:, -1] - own) % len(sides)
        if self._takes_turns and entity_type in self._players:
            turn = -2 if len(sides) > 1 else -1
            seen[:, turn] = rows[:, turn]
        return seen


# ---- one environment


class PettingZooEnvironment(Environment):
    """One parallel or AEC environment as an entity environment.

    A player is a group, or a side of a group that has several, called "<group>.0", "<group>.1" and so on. Metrics of every step
    are `agents`, their number, and with several players `reward.<player>`; an episode's info has `score.<player>`, the sum of
    rewards of all agents of each player. `env_info` is given to `reset` as its options.

    Args:
        env: closed with this object.
        groups: as in `pettingzoo_worlds`.
        view: as in `pettingzoo_worlds`.

    Attributes:
        unwrapped: the environment without wrappers.
        groups: name -> group; with a view, one of all agents.
        player_names: names of the players.
        left_out: names of the numbers of an agent's observation that a view shows nowhere.

    Raises:
        ValueError: if it is no such environment, or its spaces have no form as entities.
    """

    def __init__(self, env: Any, groups: Any = None, view: View | None = None) -> None:
        self.env, self._outer, self.unwrapped = as_parallel(env), env, getattr(env, "unwrapped", env)
        self._turns = self.env if isinstance(self.env, TakingTurns) else None
        self.display_name = str(getattr(env, "metadata", {}).get("name", type(env).__name__))  # by messages of pools
        first = getattr(self.env, "possible_agents", None)
        if not first:
            raise ValueError(f"{self.display_name} has no agents: possible_agents is {first!r}")
        self._asked = read_groups(groups) or self._default_groups(first)
        if view is not None:  # its agents are of one type, of which the groups are sides
            asked = self._asked or {"all": [["*"]]}
            self._asked = {view.actor or AGENT: [side for sides in asked.values() for side in sides]}
        self.groups: dict[str, Group] = {}
        self._group: dict[AgentID, Group] = {}  # of every agent seen so far
        self.player_names: list[str] = []
        for agent in first:
            name, _ = place_of(agent, self._asked)
            if name not in self.groups:
                start, num_sides = len(self.player_names), len(self._asked[name]) if self._asked else 1
                players, takes_turns = range(start, start + num_sides), self._turns is not None
                self.player_names += [f"{name}.{side}" for side in range(num_sides)] if num_sides > 1 else [name]
                spaces = self._spaces(agent)
                self.groups[name] = Group(
                    name, self.display_name, agent, spaces, players, takes_turns, view, len(first)
                )
            self._group_of(agent)
        for name, wanted in (self._asked or {}).items():
            filled = set(self.groups[name].side.values()) if name in self.groups else set()
            if empty := set(range(len(wanted))) - filled:
                raise ValueError(f"side {min(empty)} of the group {name!r} fits none of the agents {list(self._group)}")
        entities = {name: group.entity for name, group in self.groups.items()}
        reader = next(iter(self.groups.values())).reader
        self.left_out = [] if reader is None else reader.left_out
        self._obs_space = ObsSpace(entities)
        if reader is not None:
            self._obs_space = ObsSpace({**reader.obs_space.entities, **entities}, reader.obs_space.global_features)
        self._action_space: dict[str, ActionSpace] = {}
        for group in self.groups.values():
            self._action_space |= group.action_space
        self._seed: int | None = None
        self._options: dict[str, Any] = {}
        self._agents: list[AgentID] = []  # those that are shown, and act next unless they take turns
        self._scores = [0.0] * len(self.player_names)

    def obs_space(self) -> ObsSpace:
        return self._obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self._action_space

    def reseed(self, seed: int, number: int) -> None:
        super().reseed(seed, number)
        self._seed = seed + number
        for group in self.groups.values():
            group.masks.is_quiet = number > 0  # the first environment of a pool speaks for all

    def configure(self, info: Mapping[str, Any]) -> None:
        self._options |= info

    def reset(self) -> Observation:
        seed, self._seed = self._seed, None  # later episodes continue with the environment's own random numbers
        result = self.env.reset(seed=seed, options=dict(self._options) or None)
        observations, infos = _dictionaries(result, "reset", ("observations", "infos"))
        self._agents = list(self.env.agents)
        if not self._agents:
            raise ValueError("there are no agents after reset()")
        self._scores = [0.0] * len(self.player_names)
        return self._observe(self._agents, observations, infos, {})

    def act(self, actions: Mapping[str, Action]) -> Observation:
        acting, told = self._agents, dict[AgentID, Any]()
        for group in self.groups.values():
            told |= group.decode(actions, [agent for agent in acting if self._group[agent] is group])
        result = self.env.step({agent: told[agent] for agent in acting})  # in the order of the environment
        parts = ("observations", "rewards", "terminations", "truncations", "infos")
        observations, rewards, terminated, truncated, infos = _dictionaries(result, "step", parts)
        for what, given in (("termination", terminated), ("truncation", truncated), ("reward", rewards)):
            if lacking := [agent for agent in acting if agent not in given]:
                raise ValueError(f"step() returned no {what} of {lacking[0]!r}, which has acted")
        ended = {agent for agent in acting if terminated[agent] or truncated[agent]}
        self._agents = [agent for agent in self.env.agents if agent not in ended]
        cut = [agent for agent in acting if truncated[agent] and not terminated[agent]]
        earning = dict.fromkeys([*acting, *self._agents])  # those that have just appeared, too
        earned = {agent: rewards[agent] for agent in earning if agent in rewards}
        shown = self._observe(self._agents or cut, observations, infos if self._agents else {}, earned)
        if not self._agents:
            shown.actions, shown.done, shown.truncated = {}, True, bool(cut)
            shown.end_of_episode_info = {
                f"score.{name}": score for name, score in zip(self.player_names, self._scores, strict=True)
            }
        return shown

    def render(self) -> NDArray[np.uint8]:
        return picture_of(self._outer.render() if hasattr(self._outer, "render") else None, self.display_name)

    def close(self) -> None:
        if hasattr(self._outer, "close"):
            self._outer.close()

    def _default_groups(self, first: Sequence[AgentID]) -> Groups | None:
        """Return the groups of a world that was given none: each agent that takes turns is a side; None: one for each name."""
        if self._turns is None:
            return None
        of_name: Groups = {}
        for agent in first:
            of_name.setdefault(place_of(agent, None)[0], []).append([escape(str(agent))])
        spaces = self._spaces(first[0])
        if len(of_name) == 1 or any(self._spaces(agent) != spaces for agent in first):
            return of_name
        return {"agent": [side for sides in of_name.values() for side in sides]}

    def _group_of(self, agent: AgentID) -> Group:
        """Return the group of an agent; one that was not seen before joins it, if its spaces are those of the others."""
        if agent not in self._group:
            name, side = place_of(agent, self._asked)
            if name not in self.groups:
                raise ValueError(
                    f"the agent {agent!r} appeared, of the group {name!r}, of which there was nobody before; "
                    f"{nearest(name, self.groups)}: list it in possible_agents, or let groups= put it into one of these"
                )
            self.groups[name].check_same(agent, self._spaces(agent))
            self.groups[name].side[agent] = side
            self._group[agent] = self.groups[name]
        return self._group[agent]

    def _spaces(self, agent: AgentID) -> tuple[Any, Any]:
        return self.env.observation_space(agent), self.env.action_space(agent)

    def _observe(
        self,
        agents: Sequence[AgentID],
        observations: Mapping[AgentID, Any],
        infos: Mapping[AgentID, Any],
        rewards: Mapping[AgentID, Any],
    ) -> Observation:
        """Return the observation of these agents, and count `rewards`, those of all that have any."""
        seen: dict[str, dict[AgentID, Any]] = {name: {} for name in self.groups}
        for agent in agents:
            if agent not in observations:
                raise ValueError(f"there is no observation of {agent!r}, which is one of the agents")
            seen[self._group_of(agent).name][agent] = observations[agent]
        features: dict[str, NDArray[np.float32]] = {}
        offered: dict[str, ActionMask] = {}
        shown = Observation(
            features=features, ids={name: list(of_group) for name, of_group in seen.items()}, actions=offered
        )
        turn = None if self._turns is None else self._turns.turn
        for name, group in self.groups.items():
            of_types, everywhere, masks = group.show(seen[name], infos, turn)
            features |= of_types
            offered |= masks
            if everywhere is not None:
                shown.global_features = everywhere
        shown.metrics = {"agents": float(len(agents))}
        earned = [0.0] * len(self.player_names)
        for agent, reward in rewards.items():
            group = self._group_of(agent)
            # None becomes NaN, which pools refuse.
            number = reward if type(reward) is float else np.asarray(reward, np.float64).item()
            earned[group.players[group.side[agent]]] += number
        self._scores = [score + each for score, each in zip(self._scores, earned, strict=True)]
        shown.reward = sum(earned)
        if len(earned) > 1:
            shown.player_rewards = earned
            for name, each in zip(self.player_names, earned, strict=True):
                shown.metrics[f"reward.{name}"] = each
        return shown


def _dictionaries(result: Any, method: str, parts: Sequence[str]) -> Any:
    """Return what a method of the environment returned; raises ValueError unless it is a dictionary of agents for each part."""
    if isinstance(result, tuple) and len(result) == len(parts) and all(isinstance(each, Mapping) for each in result):
        return result
    raise ValueError(f"{method}() returned {result!r:.200}; expected {', '.join(parts)}: a dictionary of agents each")


# ---- agents that take turns


def as_parallel(env: Any) -> Any:
    """Return a parallel environment as it is, and an AEC environment as `TakingTurns`.

    AEC environments whose agents can act at the same time (`metadata["is_parallelizable"]`) are converted by PettingZoo.

    Raises:
        ValueError: `env` is neither.
    """
    name, takes_turns = type(env).__name__, callable(getattr(env, "agent_iter", None))
    if not hasattr(env, "observation_space"):
        raise ValueError(f"{name} is no PettingZoo environment, parallel or AEC: it has no observation_space")
    check_arguments(env.reset, f"{name}.reset", {"seed": None, "options": None})
    if takes_turns and getattr(env, "metadata", {}).get("is_parallelizable"):
        from pettingzoo.utils.conversions import aec_to_parallel  # PettingZoo is optional

        return aec_to_parallel(env)
    return TakingTurns(env) if takes_turns else env


class TakingTurns:
    """An AEC environment as a parallel one: in each step the agent `turn` acts, and actions of other agents are not used.

    Each step shows every agent that has not ended, and returns the rewards that the action gave to each.

    Attributes:
        turn: the agent that acts next.
    """

    def __init__(self, env: Any) -> None:
        self.env, self.turn = env, None
        self.possible_agents = getattr(env, "possible_agents", None)
        self.observation_space, self.action_space = env.observation_space, env.action_space

    @property
    def agents(self) -> list[Any]:
        """The agents that have not ended."""
        ended = self.env.terminations, self.env.truncations
        return [agent for agent in self.env.agents if not any(each.get(agent) for each in ended)]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Start an episode; return observations and infos by agent."""
        self.env.reset(seed=seed, options=options)
        return self._next()

    def step(self, actions: Mapping[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """Take the action of the agent `turn`; truncated agents have their last observation."""
        acting, env = self.agents, self.env
        env.step(actions[self.turn])
        rewards = {agent: env.rewards.get(agent, 0.0) for agent in acting}
        terminated = {agent: bool(env.terminations.get(agent, True)) for agent in acting}
        truncated = {agent: bool(env.truncations.get(agent, False)) for agent in acting}
        cut = {agent: env.observe(agent) for agent in acting if truncated[agent]}
        observations, infos = self._next()
        return cut | observations, rewards, terminated, truncated, infos

    def _next(self) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Find the agent that acts next, and return observations and infos of all agents that have not ended."""
        env = self.env
        self.turn = env.agent_selection  # stays if the episode has ended: the agent that would have been next
        for _ in list(env.agents):
            if env.agent_selection in self.agents:
                break
            env.step(None)  # agents that have ended still get a turn before, in which they take no action
        agents = self.agents
        if env.agents:
            self.turn = env.agent_selection
            if self.turn not in agents:
                raise ValueError(
                    f"it is the turn of {self.turn!r}, and the agents that have not ended are {agents}: an agent that has ended "
                    "must leave env.agents after its next step(None)"
                )
        return {agent: env.observe(agent) for agent in agents}, {agent: env.infos.get(agent, {}) for agent in agents}


# ---- how environments are found


def _constructor(env: Any, kwargs: Mapping[str, Any]) -> Constructor:
    """Return what makes an environment: a class, a function, its import path, or an id of PettingZoo."""
    option = "the PettingZoo environment"
    if not isinstance(env, str) or env.rpartition(":")[0] not in ("", "pettingzoo"):
        return Constructor(env, kwargs, option)
    constructor = Constructor(_make_registered, {"env_id": env.rpartition(":")[2], **kwargs}, option)
    constructor.name = env
    return constructor


def _make_registered(env_id: str, **kwargs: Any) -> Any:
    """Make an environment of PettingZoo, parallel if it can be. The namespace may be missing, and - and _ are the same."""
    import pettingzoo  # is optional

    wanted, known = env_id.replace("-", "_").lower(), []
    for api, registry in (("parallel", pettingzoo.parallel_registry), ("aec", pettingzoo.aec_registry)):
        for registered in registry:
            written = registered.replace("-", "_").lower()
            known.append(registered)
            if wanted in (written, written.rpartition("/")[2]):
                try:
                    return pettingzoo.make(api, registered, **kwargs)
                except (ImportError, TypeError, pettingzoo.env_registry.exceptions.FailedToImport) as error:
                    raise ValueError(f"PettingZoo cannot make {registered!r} with {kwargs}: {error}") from error
    raise ValueError(
        f"PettingZoo has no environment {env_id!r}; near are {difflib.get_close_matches(env_id, known, cutoff=0.4)}; those of "
        "other packages are written package.module:function, such as mpe2.simple_spread_v3:parallel_env"
    )
