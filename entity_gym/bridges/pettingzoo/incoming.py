"""PettingZoo parallel environments as entity environments: agents are entities that appear, act and disappear.

    pool = from_pettingzoo("butterfly/knights_archers_zombies-v11", num_envs=8, max_cycles=300)
    pool = from_pettingzoo(make_my_env, groups={"hunter": ["adversary_*"], "prey": ["agent_*"]})

The agents of a group are entities of one type, with the same features and actions, so they share what the network learns.
By default the group is the agent's name without the number at the end: "adversary_0" and "adversary_1" are both `adversary`.
`groups` sets other groups: one for all agents (`{"agent": "*"}`) if their spaces are the same, or one for each. The observation
of an agent, fixed numbers however nested, is the features of its entity. The entity exists from the agent's first observation to
the last one before the agent ends, and acts in each of them.

The reward is the sum over all agents, and an episode ends when the last agent does. It is truncated if some agents did not
terminate but were truncated; then the last observation shows these.

All agents are in one frame, so each acts on the observations of all: that suits a team. Groups that play against each other
are players (`entity_gym.pools.players`): with `self_play`, or with `opponent` in evaluation, each sees the features of its own
agents, of the others only that they exist, and gets the rewards of its own agents. `SeatedVecEnv` does the same in Python.

`info["action_mask"]` and `observation["action_mask"]` close choices; an agent without an open choice does not act, and the
environment gets its first choice.

Shapes: n agents, F features, C choices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import (
    Action,
    ActionMask,
    ActionSpace,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousAction,
    ContinuousActionMask,
    ContinuousActionSpace,
)
from entity_gym.bridges.gymnasium.actions import GymActions, Masks
from entity_gym.bridges.gymnasium.observations import AGENT, FixedFeatures, PlainSpace, kind_of, members_of
from entity_gym.bridges.incoming import Executor, check_arguments, make_pool
from entity_gym.bridges.pettingzoo.finding import constructor_of
from entity_gym.bridges.views.reading import ViewReader
from entity_gym.bridges.views.view import View, load_view
from entity_gym.bridges.wrappers import Wrapper, load_wrappers, wrapped
from entity_gym.environment import Environment, Observation
from entity_gym.errors import NoPictureError, nearest
from entity_gym.pools.episodes import EpisodeVecEnv
from entity_gym.pools.slots import FinalObservations
from entity_gym.pools.vec_env import VecEnv
from entity_gym.spaces import Entity, ObsSpace

#: PettingZoo's name of an agent; most are texts such as "adversary_0".
AgentID = Hashable
#: Group -> its agents: names, or patterns of names such as "adversary_*".
Groups = Mapping[str, str | Sequence[str]]

#: Key of the open choices, in an observation that is a Dict, or in an info.
ACTION_MASK = "action_mask"
#: Key beside the mask in such an observation.
OBSERVATION = "observation"


# ---- for users


def from_pettingzoo(
    env: str | Callable[..., Any],
    num_envs: int = 1,
    seed: int = 0,
    executor: Executor = "list",
    autoreset: bool = True,
    *,
    num_workers: int | None = None,
    final_observations: FinalObservations = "truncated",
    groups: Groups | None = None,
    view: str | Path | Mapping[str, Any] | View | None = None,
    wrappers: Sequence[str | Wrapper] = (),
    **kwargs: Any,
) -> VecEnv | EpisodeVecEnv:
    """Make a pool of parallel environments.

    Args:
        env: a function or class that makes an environment, "package.module:function", or an id of PettingZoo such as
            "butterfly/knights_archers_zombies-v11", or "package:id" such as "mpe2:simple_spread_v3".
        num_envs: as in `from_gymnasium`.
        seed: environment i is reset with `seed=seed + i`.
        executor: as in `from_gymnasium`.
        autoreset: as in `from_gymnasium`.
        num_workers: as in `from_gymnasium`.
        final_observations: as in `from_gymnasium`.
        groups: group -> its agents, names or patterns such as "prey_*"; an agent is in the first group that fits. None: groups
            are names without the number at the end.
        view: what of an agent's observation is an entity, as in `from_gymnasium`. All agents then are of one type, the actor of
            the view, each with the features of its own observation; entities of other types are read from the observation of the
            first agent, so it suits worlds in which all agents see them alike.
        wrappers: as in `from_gymnasium`.
        kwargs: arguments of `env`.

    Returns:
        A pool; `reset(env_info=...)` gives each environment its `options`.

    Raises:
        ValueError: for arguments that are not allowed, or an environment whose spaces have no form as entities.
        ImportError: naming what to install.
    """
    factory = PettingZooFactory(env, groups, view, wrappers, **kwargs)
    return make_pool(factory, num_envs, seed, executor, autoreset, num_workers, final_observations)


def pettingzoo_worlds(env: str | Callable[..., Any], **kwargs: Any) -> PettingZooFactory:
    """Return a factory that every pool takes; arguments as in `from_pettingzoo`, without the pool's."""
    return PettingZooFactory(env, **kwargs)


class PettingZooFactory:
    """Makes entity environments of parallel ones, for pools and the trainer.

    The players of that world are its groups, or with a view in which agents take turns, the agents.
    """

    player_parameters: tuple[str, ...] = ()  # no parameter decides which agent is in which group

    def __init__(
        self,
        env: Any,
        groups: Groups | None = None,
        view: str | Path | Mapping[str, Any] | View | None = None,
        wrappers: Sequence[str | Wrapper] = (),
        **kwargs: Any,
    ) -> None:
        self._make = constructor_of(env, kwargs)
        self.__name__ = self._make.name
        self._groups = check_groups(groups)
        self._view = None if view is None else load_view(view)
        self._wrappers = load_wrappers(wrappers)
        self._first: PettingZooEnvironment | None = None  # the last that was made, for what is known of all

    def __call__(self) -> PettingZooEnvironment:
        self._first = PettingZooEnvironment(wrapped(self._make(), self._wrappers), self._groups, self._view)
        return self._first

    def num_players(self, values: Mapping[str, Any]) -> int:
        """Return the number of players."""
        return self._known().num_players

    def players(self, values: Mapping[str, Any], entity_type: str, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return (E,) the player that each of these entities belongs to; those that belong to nobody are the first's."""
        world = self._known()
        if not world.turns:
            return np.full(len(rows), list(world.groups).index(entity_type) if world.view is None else 0, np.int64)
        is_agent = entity_type in world.groups
        return rows[:, -1].astype(np.int64) if is_agent else np.zeros(len(rows), np.int64)

    def seen_by(
        self, values: Mapping[str, Any], player: NDArray[np.int64], entity_type: str, rows: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return (E, F) the features of the player's own agents, and zeros for others, whose observations are not its own.

        Where agents take turns, it sees whose turn it is, its own seat is 0, and entities that are no agents are as they are.
        """
        world = self._known()
        if entity_type not in world.groups:
            return rows
        own = self.players(values, entity_type, rows) == player
        seen = np.where(own[:, None], rows, np.float32(0))
        if world.turns:
            seen[:, -2] = rows[:, -2]
            seen[:, -1] = (rows[:, -1] - player) % world.num_players
        return seen

    def _known(self) -> PettingZooEnvironment:
        if self._first is None:
            self().close()
        assert self._first is not None
        return self._first


# ---- groups of agents


def check_groups(groups: Any) -> Groups | None:
    """Return `groups`; raises ValueError unless it is None or a mapping from names to names or patterns."""
    if groups is None:
        return None
    lists = groups.values() if isinstance(groups, Mapping) else [None]
    each_fits = [
        isinstance(each, str) or (isinstance(each, Sequence) and all(isinstance(name, str) for name in each))
        for each in lists
    ]
    if not groups or not all(each_fits):
        raise ValueError(
            f"groups is {groups!r:.200}; expected a mapping from the name of each group to its agents, names or patterns, such "
            'as {"prey": ["prey_*"], "hunter": ["adversary_0", "adversary_1"]}'
        )
    checked: Groups = groups
    return checked


def group_of(agent: AgentID, groups: Groups | None) -> str:
    """Return the first group that names an agent; without groups, its name without the number at the end.

    Raises:
        ValueError: if no group names it.
    """
    name = "_".join(map(str, agent)) if isinstance(agent, tuple) else str(agent)
    if groups is None:
        return re.sub(r"[\s_-]*\d+$", "", name) or "agent"
    for group, patterns in groups.items():
        if any(fnmatchcase(name, pattern) for pattern in ([patterns] if isinstance(patterns, str) else patterns)):
            return group
    raise ValueError(f"the agent {name!r} is in none of the groups {dict(groups)}: name it, or a pattern that fits it")


class Group:
    """Agents with the same spaces.

    Args:
        name: of the group, and of its entity type.
        agent: one of its agents, for messages.
        observation_space: of each agent; fixed leaves, however nested, are the features.
        action_space: of each agent.
        view: what of the observation is an entity; None: all of it is the agent.
        num_agents: number of agents that there can be.

    Attributes:
        reader: reads the view, if there is one.
        action_space: "<group>.action" or, where an agent takes several, "<group>.<path>".

    Raises:
        ValueError: for a space that has no such form, naming it and what to do.
    """

    def __init__(
        self,
        name: str,
        agent: AgentID,
        observation_space: Any,
        action_space: Any,
        view: View | None = None,
        num_agents: int = 1,
    ) -> None:
        self.name, self.agent = name, agent
        self._spaces = (observation_space, action_space)
        members = dict(members_of(observation_space)) if kind_of(observation_space) == "Dict" else {}
        self._shows_mask = ACTION_MASK in members
        self._wrapped = members.keys() == {ACTION_MASK, OBSERVATION}
        if self._shows_mask:
            del members[ACTION_MASK]
            observation_space = members[OBSERVATION] if self._wrapped else PlainSpace("Dict", spaces=members)
        try:
            self._actions = GymActions(action_space)
            self.reader = None if view is None else ViewReader(view, observation_space, num_agents)
            if self.reader is None:
                fixed = FixedFeatures(observation_space)
                self._write: Callable[[Any, NDArray[np.float32]], None] = fixed.write
                self._width, self.entity = len(fixed.features), Entity(fixed.features)
            else:
                self._write, self._width = self.reader.write_row, self.reader.size
                self.entity = self.reader.obs_space.entities[self.reader.actor]
        except ValueError as error:
            raise ValueError(f"agent {agent!r}: {error}") from None
        self._named = {f"{name}.{key}": key for key in self._actions.action_space}
        self.action_space: dict[str, ActionSpace] = {
            action: self._actions.action_space[key] for action, key in self._named.items()
        }

    def check_same(self, agent: AgentID, observation_space: Any, action_space: Any) -> None:
        """Raise ValueError unless `agent`, which joins this group, has the spaces of the others."""
        spaces = {"observation": observation_space, "action": action_space}
        for (side, its), ours in zip(spaces.items(), self._spaces, strict=True):
            if its is ours or its == ours:
                continue
            if agent == self.agent:
                raise ValueError(
                    f"the {side} space of agent {agent!r} was {ours!r:.200} and is {its!r:.200}: spaces must not change"
                )
            raise ValueError(
                f"the agents {self.agent!r} and {agent!r} are both in the group {self.name!r}, and have different {side} "
                f"spaces, {ours!r:.200} and {its!r:.200}: "
                + (
                    "give each a group of its own with groups="
                    if self.reader is None
                    else "a view reads agents with the same"
                )
            )

    def rows(self, observations: Mapping[AgentID, Any]) -> NDArray[np.float32]:
        """Return (n, F) features of these agents; with a view their flat observations (n, R), for `reader`.

        Raises:
            ValueError: for an observation outside the space, naming the agent and where.
        """
        rows = np.zeros((len(observations), self._width), np.float32)
        for row, (agent, observation) in zip(rows, observations.items(), strict=True):
            try:
                self._write(self._without_mask(observation), row)
            except ValueError as error:
                raise ValueError(f"agent {agent!r}: {error}") from None
        return rows

    def offer(self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Any]) -> dict[str, ActionMask]:
        """Return the masks of these agents' actions; an agent without an open choice is left out.

        Raises:
            ValueError: for a mask that does not fit, naming the agent.
        """
        masks: dict[AgentID, Masks] = {}
        for agent, observation in observations.items():
            info = infos.get(agent)
            given = info.get(ACTION_MASK) if isinstance(info, Mapping) else None
            try:
                masks[agent] = self._actions.masks(observation[ACTION_MASK] if self._shows_mask else given)
            except ValueError as error:
                raise ValueError(f"agent {agent!r}: {error}") from None
        return {action: self._offer_one(action, key, masks) for action, key in self._named.items() if masks}

    def decode(self, actions: Mapping[str, Action], agents: Sequence[AgentID]) -> dict[AgentID, Any]:
        """Return the actions of these agents as the environment takes them; the first choice if nothing was open."""
        number = {agent: k for k, agent in enumerate(agents)}
        chosen: dict[str, NDArray[Any]] = {}
        for action, space in self.action_space.items():
            size = (space.size,) if isinstance(space, ContinuousActionSpace) else ()
            values = np.zeros((len(agents), *size), np.float32 if size else np.int64)
            told = actions.get(action)
            if told is not None:
                assert isinstance(told, CategoricalAction | ContinuousAction)
                picked = told.values if isinstance(told, ContinuousAction) else told.actions
                values[[number[actor] for actor in told.actors]] = picked
            chosen[self._named[action]] = values
        return dict(zip(agents, self._actions.decode(chosen, len(agents)), strict=True))

    def _offer_one(self, action: str, key: str, masks: Mapping[AgentID, Masks]) -> ActionMask:
        space = self.action_space[action]
        if isinstance(space, ContinuousActionSpace):
            return ContinuousActionMask(actor_ids=list(masks))
        assert isinstance(space, CategoricalActionSpace)
        everything = np.ones(len(space.choices), np.bool_)
        rows = {agent: of_agent.get(key, everything) for agent, of_agent in masks.items()}
        able = {agent: row for agent, row in rows.items() if row.any()}
        some_closed = any(not row.all() for row in able.values())
        return CategoricalActionMask(actor_ids=list(able), mask=np.stack(list(able.values())) if some_closed else None)

    def _without_mask(self, observation: Any) -> Any:
        if not self._shows_mask:
            return observation
        if not isinstance(observation, Mapping) or ACTION_MASK not in observation:
            raise ValueError(f"the observation is {observation!r:.200}; expected a dictionary with {ACTION_MASK!r}")
        if self._wrapped and OBSERVATION in observation:
            return observation[OBSERVATION]
        return {key: value for key, value in observation.items() if key != ACTION_MASK}


# ---- one environment


class PettingZooEnvironment(Environment):
    """One parallel environment as an entity environment.

    Metrics of every step are `agents`, their number, and with several groups `reward.<group>`; an episode's info has
    `score.<group>`, the sum of rewards of all agents of each group, and `scores`, the sum of each agent. `env_info` is given to
    `reset` as its options.

    Args:
        env: closed with this object.
        groups: as in `from_pettingzoo`.
        view: as in `from_pettingzoo`.

    Attributes:
        groups: name -> group; with a view, one of all agents.
        turns: each agent is a player of its own (see `View`).
        num_players: number of groups, or of agents that take turns.

    Raises:
        ValueError: if it is no such environment, or its spaces have no form as entities.
    """

    def __init__(self, env: Any, groups: Groups | None = None, view: View | None = None) -> None:
        _check_parallel(env)
        if groups is not None and view is not None:
            raise ValueError(
                "groups and view are both given: a view has all agents in one group, its actor; give one of them"
            )
        self.env = env
        self.display_name = str(getattr(env, "metadata", {}).get("name", type(env).__name__))  # by messages of pools
        self._asked = check_groups(groups)
        self.view = view
        self.turns = view is not None and view.turns
        self.groups: dict[str, Group] = {}
        self._group: dict[AgentID, Group] = {}  # of every agent seen so far
        first = list(self._first_agents())
        self._seats: dict[AgentID, int] = {agent: seat for seat, agent in enumerate(first)}
        for agent in first:
            self._learn(agent)
        for name in self._asked or ():
            if name not in self.groups:
                raise ValueError(f"groups has {name!r}, which fits none of the agents {list(self._group)}")
        self.num_players = len(first) if self.turns else len(self.groups)
        reader = next(iter(self.groups.values())).reader
        entities = {name: group.entity for name, group in self.groups.items()}
        self._obs_space = ObsSpace(entities) if reader is None else reader.obs_space
        self._action_space: dict[str, ActionSpace] = {}
        for group in self.groups.values():
            self._action_space |= group.action_space
        self._seed: int | None = None
        self._options: dict[str, Any] = {}
        self._agents: list[AgentID] = []  # those that act next
        self._scores: dict[AgentID, float] = {}

    @property
    def left_out(self) -> list[str]:
        """Names of the numbers of an agent's observation that a view shows nowhere."""
        reader = next(iter(self.groups.values())).reader
        return [] if reader is None else reader.left_out

    def obs_space(self) -> ObsSpace:
        return self._obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self._action_space

    def reseed(self, seed: int, number: int) -> None:
        super().reseed(seed, number)
        self._seed = seed + number

    def configure(self, info: Mapping[str, Any]) -> None:
        self._options |= info

    def reset(self) -> Observation:
        seed, self._seed = self._seed, None  # later episodes continue with the environment's own random numbers
        result = self.env.reset(seed=seed, options=dict(self._options) or None)
        if not isinstance(result, tuple) or len(result) != 2 or not all(isinstance(each, Mapping) for each in result):
            raise ValueError(
                f"reset() returned {result!r:.200}; expected observations and infos, a dictionary of agents each, as of "
                "PettingZoo 1.24"
            )
        observations, infos = result
        self._agents = list(self.env.agents)
        if not self._agents:
            raise ValueError("there are no agents after reset()")
        for group in self.groups.values():
            group.check_same(group.agent, *self._spaces(group.agent))
        self._scores = {}
        return self._observe(self._agents, observations, infos, {})

    def act(self, actions: Mapping[str, Action]) -> Observation:
        acting = self._agents
        result = self.env.step(self._decode(actions))
        if not isinstance(result, tuple) or len(result) != 5 or not all(isinstance(each, Mapping) for each in result):
            raise ValueError(
                f"step() returned {result!r:.200}; expected observations, rewards, terminations, truncations and infos, a "
                "dictionary of agents each"
            )
        observations, rewards, terminated, truncated, infos = result
        for column, flags in (("termination", terminated), ("truncation", truncated)):
            if lacking := [agent for agent in acting if agent not in flags]:
                raise ValueError(f"step() returned no {column} of {lacking[0]!r}, which has acted")
        ended = {agent for agent in acting if terminated.get(agent) or truncated.get(agent)}
        self._agents = [agent for agent in self.env.agents if agent not in ended]
        earned = self._earned(acting, rewards)
        if self._agents:
            return self._observe(self._agents, observations, infos, earned)
        cut = [agent for agent in acting if truncated.get(agent) and not terminated.get(agent)]
        last = self._observe(cut, observations, {}, earned)
        last.actions, last.done, last.truncated = {}, True, bool(cut)
        scores = {f"score.{name}": score for name, score in self._sums(self._scores).items()}
        last.end_of_episode_info = {**scores, "scores": {str(agent): score for agent, score in self._scores.items()}}
        return last

    def render(self) -> NDArray[np.uint8]:
        image = self.env.render()
        if not isinstance(image, np.ndarray) or image.ndim != 3:
            raise NoPictureError(
                f"render() returned {type(image).__name__}, which is no image: make the environment with "
                "render_mode='rgb_array', if it knows that, in training env.kwargs.render_mode=rgb_array, in evaluation "
                "env_kwargs.render_mode=..."
            )
        return image

    def close(self) -> None:
        self.env.close()

    def _first_agents(self) -> Iterable[AgentID]:
        """Return all possible agents, or those of a first episode."""
        possible = getattr(self.env, "possible_agents", None)
        if possible is None:
            self.env.reset()
            possible = self.env.agents
        if not possible:
            raise ValueError(f"{self.display_name} has no agents: possible_agents is empty")
        return list(possible)

    def _learn(self, agent: AgentID) -> None:
        """Put an agent that was not seen before into its group."""
        name = self._group_name(agent)
        if self.turns and agent not in self._seats:
            raise ValueError(
                f"the agent {agent!r} appeared, and has no seat: list all agents that take turns in possible_agents"
            )
        if name in self.groups:
            self.groups[name].check_same(agent, *self._spaces(agent))
        else:
            self.groups[name] = Group(name, agent, *self._spaces(agent), self.view, len(self._seats))
        self._group[agent] = self.groups[name]

    def _group_name(self, agent: AgentID) -> str:
        return group_of(agent, self._asked) if self.view is None else self.view.actor or AGENT

    def _spaces(self, agent: AgentID) -> tuple[Any, Any]:
        try:
            return self.env.observation_space(agent), self.env.action_space(agent)
        except (AttributeError, KeyError, NotImplementedError) as error:
            raise ValueError(f"{self.display_name} has no spaces of agent {agent!r}: {error!r}") from error

    def _known(self, agent: AgentID) -> Group:
        """Return the group of an agent; raises ValueError if it is of a group that did not exist at the beginning."""
        if agent not in self._group:
            name = self._group_name(agent)
            if name not in self.groups:
                raise ValueError(
                    f"the agent {agent!r} appeared, of the group {name!r}, of which there was nobody before; "
                    f"{nearest(name, self.groups)}: list it in possible_agents, or let groups= put it into one of these"
                )
            self._learn(agent)
        return self._group[agent]

    def _observe(
        self,
        agents: Iterable[AgentID],
        observations: Mapping[AgentID, Any],
        infos: Mapping[AgentID, Any],
        of_agents: Mapping[AgentID, float],
    ) -> Observation:
        """Return the observation of these agents; `of_agents` are the rewards of all that have any."""
        earned = self._sums(of_agents)
        seen: dict[str, dict[AgentID, Any]] = {name: {} for name in self.groups}
        for agent in agents:
            if agent not in observations:
                raise ValueError(f"there is no observation of {agent!r}, which is one of the agents")
            seen[self._known(agent).name][agent] = observations[agent]
        features = {name: group.rows(seen[name]) for name, group in self.groups.items()}
        offered: dict[str, ActionMask] = {}
        for name, group in self.groups.items():
            offered |= group.offer(seen[name], infos)
        everywhere: NDArray[np.float32] | tuple[()] = ()
        if self.view is not None:
            ((name, group),) = self.groups.items()
            features, everywhere = self._entities(group, list(seen[name]), features[name], offered)
        several = len(self.groups) > 1
        return Observation(
            features=features,
            global_features=everywhere,
            ids={name: list(of_group) for name, of_group in seen.items()},
            actions=offered,
            reward=sum(earned.values()),
            metrics={"agents": float(sum(map(len, seen.values())))}
            | ({f"reward.{name}": value for name, value in earned.items()} if several else {}),
            player_rewards=(
                [of_agents.get(agent, 0.0) for agent in self._seats]
                if self.turns
                else list(earned.values())
                if several
                else ()
            ),
        )

    def _entities(
        self, group: Group, agents: list[AgentID], rows: NDArray[np.float32], offered: Mapping[str, ActionMask]
    ) -> tuple[dict[str, NDArray[np.float32]], NDArray[np.float32] | tuple[()]]:
        """Return the entities and global features in the flat observations (n, R) of the agents."""
        assert group.reader is not None
        first = 0
        if self.turns:  # the observation of the agent that acts
            acting = {actor for mask in offered.values() for actor in getattr(mask, "actor_ids", None) or ()}
            first = next((k for k, agent in enumerate(agents) if agent in acting), 0)
        features, everywhere = group.reader.read_agents(rows, first)
        if self.turns:
            features[group.name][:, -2] = [agent in acting for agent in agents]
            features[group.name][:, -1] = [self._seats[agent] for agent in agents]
        return features, () if everywhere is None else everywhere

    def _decode(self, actions: Mapping[str, Action]) -> dict[AgentID, Any]:
        """Return the action of every agent, in the order in which the environment lists them."""
        of_group: dict[str, list[AgentID]] = {}
        for agent in self._agents:
            of_group.setdefault(self._group[agent].name, []).append(agent)
        decoded: dict[AgentID, Any] = {}
        for name, agents in of_group.items():
            decoded |= self.groups[name].decode(actions, agents)
        return {agent: decoded[agent] for agent in self._agents}

    def _earned(self, acting: Iterable[AgentID], rewards: Mapping[AgentID, Any]) -> dict[AgentID, float]:
        """Return the rewards of agents that have acted or just appeared, and add them to the scores."""
        earned = {}
        for agent in dict.fromkeys([*acting, *self._agents]):
            if agent in rewards:
                reward = np.asarray(rewards[agent])
                if reward.size != 1 or reward.dtype.kind not in "biuf" or not math.isfinite(reward.item()):
                    raise ValueError(
                        f"step() returned the reward {rewards[agent]!r:.200} of {agent!r}; expected a finite number"
                    )
                earned[agent] = float(reward.item())
                self._scores[agent] = self._scores.get(agent, 0.0) + earned[agent]
            elif agent in acting:
                raise ValueError(f"step() returned no reward of {agent!r}, which has acted")
        return earned

    def _sums(self, rewards: Mapping[AgentID, float]) -> dict[str, float]:
        """Return group -> the sum over its agents."""
        sums = dict.fromkeys(self.groups, 0.0)
        for agent, reward in rewards.items():
            sums[self._known(agent).name] += reward
        return sums


def _check_parallel(env: Any) -> None:
    """Raise ValueError unless `env` is a parallel environment."""
    name = type(env).__name__
    if callable(getattr(env, "agent_iter", None)):
        raise ValueError(
            f"{name} is an AEC environment, in which agents take turns; convert it with "
            "pettingzoo.utils.conversions.aec_to_parallel or turn_based_aec_to_parallel, or use its parallel_env"
        )
    lacking = [each for each in ("reset", "step", "observation_space", "action_space") if not hasattr(env, each)]
    if lacking:
        raise ValueError(f"{name} has no {', '.join(lacking)}; expected a PettingZoo parallel environment")
    check_arguments(env.reset, f"{name}.reset", {"seed": None, "options": None})
