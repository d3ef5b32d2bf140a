"""Agents of a PettingZoo environment by groups: those of one group are entities of one type, and take the same actions.

Shapes: n agents, F features, C choices.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from fnmatch import fnmatchcase
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
from entity_gym.bridges.gym_actions import GymActions, Masks
from entity_gym.bridges.gym_features import FixedFeatures, PlainSpace, kind_of, members_of
from entity_gym.spaces import Entity

#: PettingZoo's name for an agent; most are texts such as "adversary_0".
AgentID = Hashable

#: Group -> its agents: names, or patterns of names such as "adversary_*".
Groups = Mapping[str, str | Sequence[str]]

#: Where PettingZoo has the open choices: in an observation that is a Dict, or in an info.
ACTION_MASK = "action_mask"
#: What stands beside the mask in such an observation.
OBSERVATION = "observation"


def check_groups(groups: Any) -> Groups | None:
    """`groups` as they are.

    Raises:
        ValueError: if they are no mapping from names to names or patterns.
    """
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
    """The group of an agent: the first that names it; without groups, its name without the number at the end.

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
    """Agents of one kind.

    Args:
        name: of the group, the type of its entities.
        agent: one of its agents.
        observation_space: of each agent; fixed leaves, however nested, which are the features.
        action_space: of each agent.

    Attributes:
        name, agent: the same.
        entity: what its agents look like.
        action_space: their actions, "<group>.action" or, where an agent takes several, "<group>.<path>".

    Raises:
        ValueError: for a space that has no such form, naming it and what to do.
    """

    def __init__(self, name: str, agent: AgentID, observation_space: Any, action_space: Any) -> None:
        self.name = name
        self.agent, self._spaces = agent, (observation_space, action_space)
        self._wrapped, self._shows_mask, seen = _without_mask(observation_space)
        try:
            self._features = FixedFeatures(seen)
            self._actions = GymActions(action_space)
            self.entity = Entity(self._features.features)
        except ValueError as error:
            raise ValueError(f"agent {agent!r}: {error}") from None
        self._named = {f"{name}.{key}": key for key in self._actions.action_space}
        self.action_space: dict[str, ActionSpace] = {
            action: self._actions.action_space[key] for action, key in self._named.items()
        }

    def check_same(self, agent: AgentID, observation_space: Any, action_space: Any) -> None:
        """Raise a ValueError unless `agent`, who is to be in this group, has the spaces of the others."""
        for what, its, ours in zip(
            ("observation", "action"), (observation_space, action_space), self._spaces, strict=True
        ):
            if its is ours or its == ours:
                continue
            if agent == self.agent:
                raise ValueError(
                    f"the {what} space of agent {agent!r} was {ours!r:.200} and is {its!r:.200}: spaces must not change"
                )
            raise ValueError(
                f"the agents {self.agent!r} and {agent!r} are both in the group {self.name!r}, and have different {what} "
                f"spaces, {ours!r:.200} and {its!r:.200}: give each a group of its own with groups="
            )

    def rows(self, observations: Mapping[AgentID, Any]) -> NDArray[np.float32]:
        """(n, F) the features of these agents.

        Raises:
            ValueError: for an observation outside the space, naming the agent and where.
        """
        rows = np.zeros((len(observations), len(self._features)), np.float32)
        for row, (agent, observation) in zip(rows, observations.items(), strict=True):
            try:
                self._features.write(self._seen(observation), row)
            except ValueError as error:
                raise ValueError(f"agent {agent!r}: {error}") from None
        return rows

    def offer(self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Any]) -> dict[str, ActionMask]:
        """Who of these agents may do what; an action for which an agent has no open choice is not offered to it.

        Raises:
            ValueError: for a mask that does not fit, naming the agent.
        """
        masks: dict[AgentID, Masks] = {}
        for agent, observation in observations.items():
            try:
                masks[agent] = self._actions.masks(self._mask(observation, infos.get(agent)))
            except ValueError as error:
                raise ValueError(f"agent {agent!r}: {error}") from None
        return {action: self._offer_one(action, key, masks) for action, key in self._named.items() if masks}

    def decode(self, actions: Mapping[str, Action], agents: Sequence[AgentID]) -> dict[AgentID, Any]:
        """What each of these agents does, as the environment takes it; one to whom nothing was open takes the first choice."""
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

    def _seen(self, observation: Any) -> Any:
        """An observation without the mask."""
        if not self._shows_mask:
            return observation
        if not isinstance(observation, Mapping):
            raise ValueError(f"the observation is {observation!r:.200}; expected a dictionary with {ACTION_MASK!r}")
        if self._wrapped and OBSERVATION in observation:
            return observation[OBSERVATION]
        return {key: value for key, value in observation.items() if key != ACTION_MASK}

    def _mask(self, observation: Any, info: Any) -> Any:
        if self._shows_mask:
            if not isinstance(observation, Mapping) or ACTION_MASK not in observation:
                raise ValueError(f"the observation is {observation!r:.200}; expected a dictionary with {ACTION_MASK!r}")
            return observation[ACTION_MASK]
        return info.get(ACTION_MASK) if isinstance(info, Mapping) else None


def _without_mask(space: Any) -> tuple[bool, bool, Any]:
    """Whether the rest of an observation space is one space alone, whether there is a mask beside it, and the rest."""
    members = dict(members_of(space)) if kind_of(space) == "Dict" else {}
    if ACTION_MASK not in members:
        return False, False, space
    rest = {key: each for key, each in members.items() if key != ACTION_MASK}
    if list(rest) == [OBSERVATION]:
        return True, True, rest[OBSERVATION]
    return False, True, PlainSpace("Dict", spaces=rest)
