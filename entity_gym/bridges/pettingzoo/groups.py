"""Groups of agents, which share entity type, actions and weights, and the sides of a group, which play against each other.

    {"hunter": ["adversary_*"], "prey": ["agent_*"]}      two groups of one side each
    {"player": [["red_*"], ["blue_*"]]}                   two sides of one group

Shapes: n agents, F features, R numbers of an observation, C choices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
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
from entity_gym.bridges.views.reading import ViewReader
from entity_gym.bridges.views.view import View
from entity_gym.spaces import Category, Entity, Feature, Flag

#: PettingZoo's name of an agent; most are texts such as "adversary_0".
AgentID = Hashable
#: Group -> its agents: names, or patterns of names such as "adversary_*"; for several sides a list of these for each.
Groups = Mapping[str, str | Sequence[str | Sequence[str]]]

#: Key of the open choices, in an observation that is a Dict, or in an info.
ACTION_MASK = "action_mask"
#: Key beside the mask in such an observation.
OBSERVATION = "observation"
#: Feature of agents that take turns: 1 for the agent that acts next.
TURN = "turn"
#: Feature of agents whose group has several sides: the side.
SIDE = "side"


def check_groups(groups: Any) -> Groups | None:
    """Return `groups`; raises ValueError unless it is None or of the type `Groups`."""
    if groups is None:
        return None
    lists = groups.values() if isinstance(groups, Mapping) else [None]
    sides = [side for each in lists for side in (each if isinstance(each, Sequence) and each else [None])]
    names = [name for side in sides for name in (side if isinstance(side, Sequence) and side else [None])]
    if not groups or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"groups is {groups!r:.200}; expected a mapping from the name of each group to its agents, names or patterns, such "
            'as {"prey": ["prey_*"], "hunter": ["adversary_0", "adversary_1"]}, or to a list of agents for each of its sides, '
            'such as {"player": [["player_0"], ["player_1"]]}'
        )
    checked: Groups = groups
    return checked


def sides_of(agents: str | Sequence[str | Sequence[str]]) -> list[list[str]]:
    """Return the names and patterns of each side of a group."""
    if isinstance(agents, str):
        return [[agents]]
    if all(isinstance(each, str) for each in agents):
        return [[str(each) for each in agents]]
    return [[side] if isinstance(side, str) else list(side) for side in agents]


def side_each(agents: Sequence[AgentID]) -> list[list[str]]:
    """Return sides of one agent each."""
    return [[escape(name_of(agent))] for agent in agents]


def place_of(agent: AgentID, groups: Groups | None) -> tuple[str, int]:
    """Return the group and the side of an agent, the first that name it; without groups see `default_group`, and side 0.

    Raises:
        ValueError: if no group names it.
    """
    if groups is None:
        return default_group(agent), 0
    name = name_of(agent)
    for group, agents in groups.items():
        for side, patterns in enumerate(sides_of(agents)):
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                return group, side
    raise ValueError(f"the agent {name!r} is in none of the groups {dict(groups)}: name it, or a pattern that fits it")


def default_group(agent: AgentID) -> str:
    """Return the name of an agent without the number at the end."""
    return re.sub(r"[\s_-]*\d+$", "", name_of(agent)) or "agent"


def name_of(agent: AgentID) -> str:
    """Return the text of an agent's name."""
    return "_".join(map(str, agent)) if isinstance(agent, tuple) else str(agent)


class Group:
    """Agents with the same spaces.

    Args:
        name: of the group, and of its entity type.
        agent: one of its agents, for messages.
        observation_space: of each agent; fixed leaves, however nested, are the features.
        action_space: of each agent.
        num_sides: number of sides. With several, the agents have the feature `side`.
        takes_turns: the agents have the feature `turn`.
        view: what of the observation is an entity; None: all of it is the agent.
        num_agents: number of agents of the world; a view may count them.

    Attributes:
        players: number of each side among the sides of all groups, which are the players; from 0 unless set.
        side: agent -> its side, of agents that have joined.
        reader: reads the view, if there is one.
        entity: its features; the last are `turn` and `side`, where there are such.
        shows_mask: whether observations show the open choices.
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
        *,
        num_sides: int = 1,
        takes_turns: bool = False,
        view: View | None = None,
        num_agents: int = 1,
    ) -> None:
        self.name, self.agent = name, agent
        self.players, self.side = range(num_sides), dict[AgentID, int]()
        self._takes_turns = takes_turns
        added: list[Feature] = [Flag(TURN)] if takes_turns else []
        added += [Category(SIDE, num_sides)] if num_sides > 1 else []
        self._spaces = (observation_space, action_space)
        members = dict(members_of(observation_space)) if kind_of(observation_space) == "Dict" else {}
        self.shows_mask = ACTION_MASK in members
        self._wrapped = members.keys() == {ACTION_MASK, OBSERVATION}
        if self.shows_mask:
            del members[ACTION_MASK]
            observation_space = members[OBSERVATION] if self._wrapped else PlainSpace("Dict", spaces=members)
        try:
            self._actions = GymActions(action_space)
            self.reader = None if view is None else ViewReader(view, observation_space, num_agents)
            if self.reader is None:
                fixed = FixedFeatures(observation_space)
                self._write: Callable[[Any, NDArray[np.float32]], None] = fixed.write
                self._size, self.entity = len(fixed.features), Entity([*fixed.features, *added])
            else:
                self._write, self._size = self.reader.write_row, self.reader.size
                features = self.reader.obs_space.entities[self.reader.actor].features
                self.entity = Entity([*features, *added])
        except ValueError as error:
            raise ValueError(f"agent {agent!r}: {error}") from None
        self._named = {f"{name}.{key}": key for key in self._actions.action_space}
        self.action_space: dict[str, ActionSpace] = {
            action: self._actions.action_space[key] for action, key in self._named.items()
        }

    def join(self, agent: AgentID, side: int, observation_space: Any, action_space: Any) -> None:
        """Add an agent; raises ValueError unless it has the spaces of the others."""
        self.check_same(agent, observation_space, action_space)
        self.side[agent] = side

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
        """Return the flat observations (n, R) of these agents.

        Raises:
            ValueError: for an observation outside the space, naming the agent and where.
        """
        rows = np.zeros((len(observations), self._size), np.float32)
        for row, (agent, observation) in zip(rows, observations.items(), strict=True):
            try:
                self._write(self._without_mask(observation), row)
            except ValueError as error:
                raise ValueError(f"agent {agent!r}: {error}") from None
        return rows

    def with_place(self, rows: NDArray[np.float32], agents: Sequence[AgentID], turn: AgentID) -> NDArray[np.float32]:
        """Return (n, F) features of `agents`: `rows` with `turn` and `side`, where there are such.

        Args:
            rows: (n, R) flat observations, or with a view the features that its reader finds in them.
            agents: the agents of the rows.
            turn: the agent that acts next.
        """
        columns = [[int(agent == turn) for agent in agents]] if self._takes_turns else []
        columns += [[self.side[agent] for agent in agents]] if len(self.players) > 1 else []
        return np.concatenate([rows, np.array(columns, np.float32).T], axis=1) if columns else rows

    def seen_by(self, player: NDArray[np.int64], rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (n, F) features of agents as a player sees each; zeros where the agent is another player's.

        Players see whose turn it is, and count sides from their own, which is 0; players of other groups count from side 0.
        """
        seen = np.where((self.players_of(rows) == player)[:, None], rows, np.float32(0))
        num_sides = len(self.players)
        if num_sides > 1:
            own = np.where(np.isin(player, self.players), player - self.players.start, 0)
            seen[:, -1] = (rows[:, -1] - own) % num_sides
        if self._takes_turns:
            turn = -2 if num_sides > 1 else -1
            seen[:, turn] = rows[:, turn]
        return seen

    def players_of(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return (n,) the player of each agent, from the features (n, F)."""
        if len(self.players) == 1:
            return np.full(len(rows), self.players.start, np.int64)
        return self.players.start + rows[:, -1].astype(np.int64)

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
                masks[agent] = self._actions.masks(observation[ACTION_MASK] if self.shows_mask else given)
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
        if not self.shows_mask:
            return observation
        if not isinstance(observation, Mapping) or ACTION_MASK not in observation:
            raise ValueError(f"the observation is {observation!r:.200}; expected a dictionary with {ACTION_MASK!r}")
        if self._wrapped and OBSERVATION in observation:
            return observation[OBSERVATION]
        return {key: value for key, value in observation.items() if key != ACTION_MASK}
