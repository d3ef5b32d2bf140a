"""PettingZoo environments as entity environments: agents are entities that appear, act and disappear.

    pool = from_pettingzoo("butterfly/knights_archers_zombies-v11", num_envs=8, max_cycles=300)
    pool = from_pettingzoo(make_my_env, groups={"hunter": ["adversary_*"], "prey": ["agent_*"]})
    pool = from_pettingzoo(make_my_game, groups={"player": [["red_*"], ["blue_*"]]})  # two sides of one group

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

A group may have several sides, each of which is a player: lists of agents inside the list of the group. Sides share the entity
type, the actions and so the weights; the category `side` tells them apart, and a player sees its own as 0.

In AEC environments agents take turns: only the agent whose turn it is acts. There, without `groups`, every agent is a side of
its own. AEC environments whose agents could act at the same time (`is_parallelizable`) are converted to parallel ones.

`info["action_mask"]` and `observation["action_mask"]` close choices; an agent without an open choice does not act, and the
environment gets its first choice.

Shapes: n agents, F features, C choices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from glob import escape
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
from entity_gym.bridges.gymnasium.observations import FixedFeatures, PlainSpace, kind_of, members_of
from entity_gym.bridges.incoming import Executor, check_arguments, make_pool
from entity_gym.bridges.pettingzoo.finding import constructor_of
from entity_gym.bridges.pettingzoo.turns import TakingTurns
from entity_gym.environment import Environment, Observation
from entity_gym.errors import NoPictureError, nearest, warn_caller
from entity_gym.pools.episodes import EpisodeVecEnv
from entity_gym.pools.slots import FinalObservations
from entity_gym.pools.vec_env import VecEnv
from entity_gym.spaces import GLOBAL_ENTITY, Category, Entity, ObsSpace

#: PettingZoo's name of an agent; most are texts such as "adversary_0".
AgentID = Hashable
#: Group -> its agents: names, or patterns of names such as "adversary_*"; or a list of them for each side.
Groups = Mapping[str, str | Sequence[str | Sequence[str]]]

#: Key of the open choices, in an observation that is a Dict, or in an info.
ACTION_MASK = "action_mask"
#: Key beside the mask in such an observation.
OBSERVATION = "observation"
#: Feature of the agents of a group that has several sides.
SIDE = "side"
#: A warning comes after so many steps in which the rewards of a player's agents were not 0 and cancelled, from the first on.
CANCELLED = 5


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
    **kwargs: Any,
) -> VecEnv | EpisodeVecEnv:
    """Make a pool of parallel or AEC environments.

    Args:
        env: a function or class that makes an environment, "package.module:function", or an id such as
            "butterfly/knights_archers_zombies-v11", or "package:id" such as "mpe2:simple_spread_v3".
        num_envs: as in `from_gymnasium`.
        seed: environment i is reset with `seed=seed + i`.
        executor: as in `from_gymnasium`.
        autoreset: as in `from_gymnasium`.
        num_workers: as in `from_gymnasium`.
        final_observations: as in `from_gymnasium`.
        groups: group -> its agents, names or patterns such as "prey_*", or a list of these for each side of the group; an agent
            is in the first group that fits. None: groups are names without the number at the end.
        kwargs: arguments of `env`.

    Returns:
        A pool; `reset(env_info=...)` gives each environment its `options`.

    Raises:
        ValueError: for arguments that are not allowed, or an environment whose spaces have no form as entities.
        ImportError: naming what to install.
    """
    factory = PettingZooFactory(env, groups=groups, **kwargs)
    return make_pool(factory, num_envs, seed, executor, autoreset, num_workers, final_observations)


def pettingzoo_worlds(env: str | Callable[..., Any], **kwargs: Any) -> PettingZooFactory:
    """Return a factory that every pool takes; arguments as in `from_pettingzoo`, without the pool's."""
    return PettingZooFactory(env, **kwargs)


class PettingZooFactory:
    """Makes entity environments, for pools and the trainer. The sides of all groups are the players of that world."""

    player_parameters: tuple[str, ...] = ()  # no parameter decides which agent is in which group
    #: How there can be several players, for messages.
    several_players = ": say who plays against whom, as in env.kwargs.groups={player: [[player_0], [player_1]]}"

    def __init__(self, env: Any, groups: Groups | None = None, **kwargs: Any) -> None:
        self._make = constructor_of(env, kwargs)
        self.__name__ = self._make.name
        self._groups = check_groups(groups)
        self._known_players: dict[str, range] | None = None

    def __call__(self) -> PettingZooEnvironment:
        made = PettingZooEnvironment(self._make(), self._groups)
        self._known_players, first = {}, 0
        for name, group in made.groups.items():
            self._known_players[name] = range(first, first + len(group.sides))
            first += len(group.sides)
        return made

    def num_players(self, values: Mapping[str, Any]) -> int:
        """Return the number of sides of all groups."""
        return sum(map(len, self._players().values()))

    def players(self, values: Mapping[str, Any], entity_type: str, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return (E,) the number of the player that each entity of this type belongs to."""
        of_group = self._players()[entity_type]
        if len(of_group) == 1:
            return np.full(len(rows), of_group.start, np.int64)
        return of_group.start + rows[:, -1].astype(np.int64)

    def seen_by(
        self, values: Mapping[str, Any], player: NDArray[np.int64], entity_type: str, rows: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return (E, F) the features of the player's own agents, and of others, whose observations are not its own, the side.

        Sides are counted from the player's own, which is 0 then.
        """
        if entity_type == GLOBAL_ENTITY:
            return rows
        of_group = self._players()[entity_type]
        own = self.players(values, entity_type, rows) == player
        seen = np.where(own[:, None], rows, np.float32(0))
        if len(of_group) > 1:
            is_of_group = (player >= of_group.start) & (player < of_group.stop)
            own_side = np.where(is_of_group, player - of_group.start, 0)
            seen[:, -1] = (rows[:, -1].astype(np.int64) - own_side) % len(of_group)
        return seen

    def _players(self) -> dict[str, range]:
        """Return group -> the numbers of its players."""
        if self._known_players is None:
            self().close()
        assert self._known_players is not None
        return self._known_players


# ---- groups of agents


def check_groups(groups: Any) -> Groups | None:
    """Return `groups`; raises ValueError unless it is None or a mapping from names to names or patterns, or lists of these."""
    if groups is None:
        return None
    lists = groups.values() if isinstance(groups, Mapping) else [None]
    sides = [side for each in lists for side in (each if isinstance(each, Sequence) else [None])]
    names = [name for side in sides for name in (side if isinstance(side, Sequence) else [None])]
    if not groups or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"groups is {groups!r:.200}; expected a mapping from the name of each group to its agents, names or patterns, such "
            'as {"prey": ["prey_*"], "hunter": ["adversary_0", "adversary_1"]}, or for a group with several sides to a list of '
            'these for each side, such as {"player": [["player_0"], ["player_1"]]}'
        )
    checked: Groups = groups
    return checked


def group_of(agent: AgentID, groups: Groups | None) -> str:
    """Return the first group that names an agent; without groups, its name without the number at the end.

    Raises:
        ValueError: if no group names it.
    """
    name = _name_of(agent)
    if groups is None:
        return re.sub(r"[\s_-]*\d+$", "", name) or "agent"
    for group in groups:
        if _side_of(name, _sides_of(groups[group])) is not None:
            return group
    raise ValueError(f"the agent {name!r} is in none of the groups {dict(groups)}: name it, or a pattern that fits it")


def _name_of(agent: AgentID) -> str:
    return "_".join(map(str, agent)) if isinstance(agent, tuple) else str(agent)


def _sides_of(agents: str | Sequence[str | Sequence[str]]) -> list[list[str]]:
    """Return the patterns of each side of a group."""
    if isinstance(agents, str):
        return [[agents]]
    if all(isinstance(each, str) for each in agents):
        return [[str(each) for each in agents]]
    return [[side] if isinstance(side, str) else list(side) for side in agents]


def _side_of(name: str, sides: Sequence[Sequence[str]]) -> int | None:
    """Return the first side that an agent fits, or None."""
    fits = (i for i, patterns in enumerate(sides) if any(fnmatchcase(name, pattern) for pattern in patterns))
    return next(fits, None)


class Group:
    """Agents with the same spaces.

    Args:
        name: of the group, and of its entity type.
        agent: one of its agents, for messages.
        observation_space: of each agent; fixed leaves, however nested, are the features. With several sides, the side is one too.
        action_space: of each agent.
        sides: patterns of the agents of each side.

    Attributes:
        sides: name of each side, which is a player.
        action_space: "<group>.action" or, where an agent takes several, "<group>.<path>".

    Raises:
        ValueError: for a space that has no such form, naming it and what to do.
    """

    def __init__(
        self, name: str, agent: AgentID, observation_space: Any, action_space: Any, sides: Sequence[Sequence[str]]
    ) -> None:
        self.name, self.agent, self._sides = name, agent, sides
        self.sides = [name]
        if len(sides) > 1:
            self.sides = [each[0] if len(each) == 1 else f"{name}.{i}" for i, each in enumerate(sides)]
        self._spaces = (observation_space, action_space)
        members = dict(members_of(observation_space)) if kind_of(observation_space) == "Dict" else {}
        self._shows_mask = ACTION_MASK in members
        self._wrapped = members.keys() == {ACTION_MASK, OBSERVATION}
        if self._shows_mask:
            del members[ACTION_MASK]
            observation_space = members[OBSERVATION] if self._wrapped else PlainSpace("Dict", spaces=members)
        try:
            self._features = FixedFeatures(observation_space)
            self._actions = GymActions(action_space)
            side = [Category(SIDE, len(sides))] if len(sides) > 1 else []
            self.entity = Entity([*self._features.features, *side])
        except ValueError as error:
            raise ValueError(f"agent {agent!r}: {error}") from None
        self._named = {f"{name}.{key}": key for key in self._actions.action_space}
        self.action_space: dict[str, ActionSpace] = {
            action: self._actions.action_space[key] for action, key in self._named.items()
        }

    def side(self, agent: AgentID) -> int:
        """Return the side of one of these agents."""
        side = _side_of(_name_of(agent), self._sides) if len(self._sides) > 1 else 0
        if side is None:
            raise ValueError(f"the agent {agent!r} appeared, which is on none of the sides {self._sides}; set groups=")
        return side

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
                f"spaces, {ours!r:.200} and {its!r:.200}: give each a group of its own with groups="
            )

    def rows(self, observations: Mapping[AgentID, Any]) -> NDArray[np.float32]:
        """Return (n, F) features of these agents.

        Raises:
            ValueError: for an observation outside the space, naming the agent and where.
        """
        num_own = len(self._features.features)
        rows = np.zeros((len(observations), len(self.entity.features)), np.float32)
        for row, (agent, observation) in zip(rows, observations.items(), strict=True):
            row[num_own:] = self.side(agent)
            try:
                self._features.write(self._without_mask(observation), row[:num_own])
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
    """One parallel or AEC environment as an entity environment.

    A player is a group, or a side of a group that has several. Metrics of every step are `agents`, their number, and with several
    players `reward.<player>`; an episode's info has `score.<player>`, the sum of rewards of all agents of each player, and
    `scores`, the sum of each agent. `env_info` is given to `reset` as its options.

    Args:
        env: closed with this object.
        groups: as in `from_pettingzoo`.

    Raises:
        ValueError: if it is no such environment, or its spaces have no form as entities.
    """

    def __init__(self, env: Any, groups: Groups | None = None) -> None:
        self.env = _as_parallel(env)
        self.display_name = str(getattr(env, "metadata", {}).get("name", type(env).__name__))  # by messages of pools
        self._asked = check_groups(groups)
        self.groups: dict[str, Group] = {}
        self._group: dict[AgentID, Group] = {}  # of every agent seen so far
        first = list(self._first_agents())
        self._sides: dict[str, list[list[str]]] = {}
        for name, agents in (self._asked or {}).items():
            self._sides[name] = _sides_of(agents)
        if self._asked is None:
            for agent in first:
                self._sides.setdefault(group_of(agent, None), []).append([escape(_name_of(agent))])
            if not isinstance(self.env, TakingTurns):  # a team
                self._sides = {name: [["*"]] for name in self._sides}
        for agent in first:
            self._learn(agent)
        for name in self._asked or ():
            if name not in self.groups:
                raise ValueError(f"groups has {name!r}, which fits none of the agents {list(self._group)}")
        self._obs_space = ObsSpace({name: group.entity for name, group in self.groups.items()})
        self._action_space: dict[str, ActionSpace] = {}
        for group in self.groups.values():
            self._action_space |= group.action_space
        self._seed: int | None = None
        self._options: dict[str, Any] = {}
        self._agents: list[AgentID] = []  # those that act next
        self._scores: dict[AgentID, float] = {}
        self._cancelled: dict[str, int] | None = None  # player -> steps so far, until a warning is due or out of place

    def obs_space(self) -> ObsSpace:
        return self._obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self._action_space

    def reseed(self, seed: int, number: int) -> None:
        super().reseed(seed, number)
        self._seed = seed + number
        self._cancelled = {} if number == 0 else None  # one environment warns for all

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
        return self._observe(self._agents, observations, infos, self._sums({}))

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
        sums = self._sums(earned)
        if self._cancelled is not None:
            self._warn_if_they_cancel(earned, sums)
        if self._agents:
            return self._observe(self._agents, observations, infos, sums)
        cut = [agent for agent in acting if truncated.get(agent) and not terminated.get(agent)]
        last = self._observe(cut, observations, {}, sums)
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
        name = group_of(agent, self._asked)
        if name in self.groups:
            self.groups[name].check_same(agent, *self._spaces(agent))
        else:
            self.groups[name] = Group(name, agent, *self._spaces(agent), self._sides[name])
        self._group[agent] = self.groups[name]

    def _spaces(self, agent: AgentID) -> tuple[Any, Any]:
        try:
            return self.env.observation_space(agent), self.env.action_space(agent)
        except (AttributeError, KeyError, NotImplementedError) as error:
            raise ValueError(f"{self.display_name} has no spaces of agent {agent!r}: {error!r}") from error

    def _known(self, agent: AgentID) -> Group:
        """Return the group of an agent; raises ValueError if it is of a group that did not exist at the beginning."""
        if agent not in self._group:
            name = group_of(agent, self._asked)
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
        earned: Mapping[str, float],
    ) -> Observation:
        """Return the observation of these agents; `earned` is the reward of every player."""
        seen: dict[str, dict[AgentID, Any]] = {name: {} for name in self.groups}
        for agent in agents:
            if agent not in observations:
                raise ValueError(f"there is no observation of {agent!r}, which is one of the agents")
            seen[self._known(agent).name][agent] = observations[agent]
        features = {name: group.rows(seen[name]) for name, group in self.groups.items()}
        offered: dict[str, ActionMask] = {}
        for name, group in self.groups.items():
            able = seen[name]
            if isinstance(self.env, TakingTurns):
                able = {agent: shown for agent, shown in able.items() if agent == self.env.turn}
            offered |= group.offer(able, infos)
        several = len(earned) > 1
        return Observation(
            features=features,
            ids={name: list(of_group) for name, of_group in seen.items()},
            actions=offered,
            reward=sum(earned.values()),
            metrics={"agents": float(sum(map(len, seen.values())))}
            | ({f"reward.{name}": value for name, value in earned.items()} if several else {}),
            player_rewards=list(earned.values()) if several else (),
        )

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
        """Return player -> the sum over its agents."""
        sums = {side: 0.0 for group in self.groups.values() for side in group.sides}
        for agent, reward in rewards.items():
            group = self._known(agent)
            sums[group.sides[group.side(agent)]] += reward
        return sums

    def _warn_if_they_cancel(self, rewards: Mapping[AgentID, float], sums: Mapping[str, float]) -> None:
        """Warn, once, of a player whose agents have always earned 0 together, but not each."""
        assert self._cancelled is not None
        paid: dict[str, list[AgentID]] = {}  # player -> its agents that have earned something
        for agent, reward in rewards.items():
            if reward:
                group = self._known(agent)
                paid.setdefault(group.sides[group.side(agent)], []).append(agent)
        for player, agents in paid.items():
            total = sum(abs(rewards[agent]) for agent in agents)
            if abs(sums[player]) > 1e-6 * total:
                self._cancelled[player] = -1  # never again
            elif self._cancelled.get(player, 0) >= 0:
                self._cancelled[player] = self._cancelled.get(player, 0) + 1
            if self._cancelled[player] == CANCELLED:
                sides = ", ".join(f"[{_name_of(agent)}]" for agent in agents)
                warn_caller(
                    f"{self.display_name}: the rewards of {' and '.join(map(_name_of, agents))}, who are one player, "
                    f"{player!r}, have always cancelled, so their sum teaches nothing. If they play against each other, say "
                    f"so with groups={{{self._known(agents[0]).name}: [{sides}]}}, and train with self_play.enabled=true"
                )


def _as_parallel(env: Any) -> Any:
    """Return a parallel environment, or an AEC environment as one; raises ValueError unless `env` is one of them."""
    name, expected = type(env).__name__, ["reset", "step", "observation_space", "action_space"]
    takes_turns = callable(getattr(env, "agent_iter", None))
    if takes_turns:
        expected += ["observe"]
    lacking = [each for each in expected if not hasattr(env, each)]
    if lacking:
        kind = "AEC" if takes_turns else "parallel"
        raise ValueError(f"{name} has no {', '.join(lacking)}; expected a PettingZoo {kind} environment")
    check_arguments(env.reset, f"{name}.reset", {"seed": None, "options": None})
    if takes_turns and getattr(env, "metadata", {}).get("is_parallelizable"):
        from pettingzoo.utils.conversions import aec_to_parallel  # PettingZoo is optional

        return aec_to_parallel(env)
    return TakingTurns(env) if takes_turns else env
