"""Groups of agents, which share entity type, actions and weights, and the sides of a group, which play against each other.

    {"hunter": ["adversary_*"], "prey": ["agent_*"]}      two groups of one side each
    {"player": [["red_*"], ["blue_*"]]}                   two sides of one group

Shapes: n agents, F features, R numbers of an observation, C choices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import Action, ActionMask, ActionSpace
from entity_gym.bridges.gymnasium.actions import GymActions, Masks
from entity_gym.bridges.gymnasium.observations import FixedFeatures, kind_of, members_of
from entity_gym.bridges.masks import MaskReader
from entity_gym.bridges.views.reading import SIDE, ViewReader
from entity_gym.bridges.views.view import View
from entity_gym.spaces import Category, Entity, Feature, Flag

#: PettingZoo's name of an agent; most are texts such as "adversary_0".
AgentID = Hashable
#: Group -> for each of its sides the names of its agents, or patterns of names such as "adversary_*".
Groups = dict[str, list[list[str]]]

#: Key beside the mask in an observation that has one.
OBSERVATION = "observation"
#: Feature of agents that take turns: 1 for the agent that acts next.
TURN = "turn"


def read_groups(given: Any) -> Groups | None:
    """Return groups from group -> a name, a list of names, or a list of names for each side; None stays None.

    Raises:
        ValueError: for anything else.
    """
    if given is None:
        return None
    groups: Groups = {}
    for name, agents in given.items() if isinstance(given, Mapping) else ():
        sides = [agents] if isinstance(agents, str) or not isinstance(agents, Sequence) else list(agents)
        if all(isinstance(each, str) for each in sides):
            sides = [sides]
        groups[name] = [[side] if isinstance(side, str) else side for side in sides]
    named = [side for sides in groups.values() for side in sides]
    fits = [isinstance(side, Sequence) and side and all(isinstance(name, str) for name in side) for side in named]
    if not fits or not all(fits):
        raise ValueError(
            f"groups is {given!r:.200}; expected a mapping from the name of each group to its agents, names or patterns, such "
            'as {"prey": ["prey_*"], "hunter": ["adversary_0", "adversary_1"]}, or to a list of agents for each of its sides, '
            'such as {"player": [["player_0"], ["player_1"]]}'
        )
    return groups


def place_of(agent: AgentID, groups: Groups | None) -> tuple[str, int]:
    """Return the group and the side of an agent, the first that name it; without groups its name without the number, and 0.

    Raises:
        ValueError: if no group names it.
    """
    name = str(agent)
    if groups is None:
        return re.sub(r"[\s_-]*\d+$", "", name) or "agent", 0
    for group, sides in groups.items():
        for side, patterns in enumerate(sides):
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                return group, side
    raise ValueError(f"the agent {name!r} is in none of the groups {groups}: name it, or a pattern that fits it")


class Group:
    """Agents with the same spaces.

    Args:
        name: of the group, and of its entity type.
        world: name of the environment in messages.
        agent: one of its agents, for messages.
        spaces: of each agent's observations, and of its actions.
        players: number of each of its sides among the sides of all groups; with several, the last feature of agents is `side`.
        takes_turns: agents have the feature `turn`, before `side`.
        view: what of the observation is an entity; None: all of it is the agent.
        num_agents: number of agents of the world; a view may count them.

    Attributes:
        side: agent -> its side, of agents that have joined.
        reader: reads the view, if there is one.
        masks: finds the open choices.
        entity: its features; the last are `turn` and `side`.
        action_space: "<group>.action" or, where an agent takes several, "<group>.<path>".

    Raises:
        ValueError: for a space that has no such form, naming it and what to do.
    """

    def __init__(
        self,
        name: str,
        world: str,
        agent: AgentID,
        spaces: tuple[Any, Any],
        players: range,
        takes_turns: bool,
        view: View | None,
        num_agents: int,
    ) -> None:
        self.name, self.agent, self._spaces = name, agent, spaces
        self.players, self.takes_turns = players, takes_turns
        self.side: dict[AgentID, int] = {}
        try:
            self._actions = GymActions(spaces[1])
            self.masks = MaskReader(world, self._actions, spaces[0], view=view)
            space = self.masks.space
            members = dict(members_of(space)) if kind_of(space) == "Dict" else {}
            self._is_wrapped = space is not spaces[0] and list(members) == [OBSERVATION]
            if self._is_wrapped:
                space = members[OBSERVATION]
            self.reader = None if view is None else ViewReader(view, space, num_agents, len(players))
            if self.reader is None:
                fixed = FixedFeatures(space)
                self._write: Callable[[Any, NDArray[np.float32]], Any] = fixed.write
                self._size, features = len(fixed.features), fixed.features
            else:
                self._write, self._size = self.reader.write, self.reader.size
                features = self.reader.obs_space.entities[self.reader.actor].features
            turn: list[Feature] = [Flag(TURN)] if takes_turns else []
            side: list[Feature] = [Category(SIDE, len(players))] if len(players) > 1 else []
            self.entity = Entity([*features, *turn, *side])
        except ValueError as error:
            raise ValueError(f"agent {agent!r}: {error}") from None
        self.action_space: dict[str, ActionSpace] = {
            f"{name}.{key}": space for key, space in self._actions.action_space.items()
        }

    def check_same(self, agent: AgentID, spaces: tuple[Any, Any]) -> None:
        """Raise ValueError unless `agent`, which is in this group, has the spaces of the others."""
        for side, its, ours in zip(("observation", "action"), spaces, self._spaces, strict=True):
            if its is not ours and its != ours:
                raise ValueError(
                    f"the {side} space of agent {agent!r} is {its!r:.200}, and its group {self.name!r} has {ours!r:.200} of "
                    f"agent {self.agent!r}: agents with other spaces need a group of their own, see groups=; with a view all are "
                    "in one"
                )

    def show(
        self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Any], turn: AgentID
    ) -> tuple[dict[str, NDArray[np.float32]], NDArray[np.float32] | None, dict[str, ActionMask]]:
        """Return features by entity type, global features, and the masks of the actions, without agents that have no choice.

        Args:
            observations: agent -> observation.
            infos: agent -> info, which may have a mask.
            turn: the agent that acts next, where they take turns.
        """
        rows = np.zeros((len(observations), self._size), np.float32)
        masks: dict[AgentID, Masks] = {}
        for row, (agent, observation) in zip(rows, observations.items(), strict=True):
            acts, info = agent == turn or not self.takes_turns, infos.get(agent)
            try:
                rest, closed = self.masks.read(observation, (info or {}) if acts else None)
                self._write(rest[OBSERVATION] if self._is_wrapped else rest, row)
                if acts:
                    masks[agent] = closed
            except ValueError as error:
                raise ValueError(f"agent {agent!r}: {error}") from None
        features, everywhere, agents = {self.name: rows}, None, list(observations)
        if self.reader is not None:
            first, joined = (agents.index(turn) if turn in agents else 0), list(self.side)
            numbers, sides = [joined.index(agent) for agent in agents], [self.side[agent] for agent in agents]
            features, everywhere = self.reader.read_agents(rows, first, numbers, sides)
        more = [[int(agent == turn) for agent in agents]] if self.takes_turns else []
        more += [[self.side[agent] for agent in agents]] if len(self.players) > 1 else []
        if more:
            features[self.name] = np.concatenate([features[self.name], np.array(more, np.float32).T], axis=1)
        offered = {}
        for key, space in self._actions.action_space.items() if masks else ():
            offered[f"{self.name}.{key}"] = _offer(space, {agent: each.get(key) for agent, each in masks.items()})
        return features, everywhere, offered

    def decode(self, actions: Mapping[str, Action], agents: Sequence[AgentID]) -> dict[AgentID, Any]:
        """Return the actions of these agents as the environment takes them; the first choice if nothing was open."""
        number = {agent: k for k, agent in enumerate(agents)}
        chosen: dict[str, NDArray[Any]] = {}
        for key, space in self._actions.action_space.items():
            chosen[key] = np.zeros(len(agents) if space.discrete else (len(agents), space.width), space.dtype)
            told: Any = actions.get(f"{self.name}.{key}")
            if told is not None:
                chosen[key][[number[actor] for actor in told.actors]] = getattr(told, space.choices_field)
        return dict(zip(agents, self._actions.decode(chosen, len(agents)), strict=True))


def _offer(space: ActionSpace, masks: Mapping[AgentID, NDArray[np.bool_] | None]) -> ActionMask:
    """Return the mask of an action from those of its actors; None is open everywhere."""
    able = {agent: mask for agent, mask in masks.items() if mask is None or mask.any()}
    closed: dict[str, Any] = {}
    if not all(mask is None or mask.all() for mask in able.values()):
        everything = np.ones(len(space.labels), np.bool_)
        closed["mask"] = np.stack([everything if mask is None else mask for mask in able.values()])
    offered: ActionMask = space.mask_type(actor_ids=list(able), **closed)
    return offered
