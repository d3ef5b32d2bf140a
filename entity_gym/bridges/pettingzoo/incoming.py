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

A group may have several sides, lists of agents inside the list of the group: each side is a player. Sides share the entity
type, the actions and the weights; the category `side` tells them apart, and each player sees its own as 0.

In AEC environments agents take turns: one step of the pool is the turn of one agent, which alone acts, and the flag `turn` says
which. Rewards arrive with the step that earns them, for all agents. Without `groups`, every agent is a side of its own, of one
group if their spaces are the same. AEC environments whose agents can act at the same time are converted to parallel ones.

`info["action_mask"]` and `observation["action_mask"]` close choices; an agent without an open choice does not act, and the
environment gets its first choice.

Shapes: n agents, E entities, F features, R numbers of an observation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import Action, ActionMask, ActionSpace
from entity_gym.bridges.gymnasium.actions import warn_of_masks
from entity_gym.bridges.gymnasium.observations import AGENT
from entity_gym.bridges.incoming import Executor, make_pool
from entity_gym.bridges.pettingzoo.finding import constructor_of
from entity_gym.bridges.pettingzoo.groups import (
    ACTION_MASK,
    AgentID,
    Group,
    Groups,
    check_groups,
    default_group,
    name_of,
    place_of,
    side_each,
    sides_of,
)
from entity_gym.bridges.pettingzoo.turns import TakingTurns, as_parallel
from entity_gym.bridges.views.view import View, load_view
from entity_gym.bridges.wrappers import Wrapper, load_wrappers, wrapped
from entity_gym.environment import Environment, Observation
from entity_gym.errors import NoPictureError, nearest, warn_caller
from entity_gym.pools.slots import FinalObservations
from entity_gym.pools.source import EnvSource
from entity_gym.pools.vec_env import VecEnv
from entity_gym.spaces import LARGEST_FLOAT32, ObsSpace

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
    view: str | Path | Mapping[str, Any] | View | None = None,
    wrappers: Sequence[str | Wrapper] = (),
    **kwargs: Any,
) -> VecEnv:
    """Make a pool of parallel or AEC environments.

    Args:
        env: a function or class that makes an environment, "package.module:function", or an id of PettingZoo such as
            "butterfly/knights_archers_zombies-v11", or "package:id" such as "mpe2:simple_spread_v3".
        num_envs: as in `from_gymnasium`.
        seed: environment i is reset with `seed=seed + i`.
        executor: as in `from_gymnasium`.
        autoreset: as in `from_gymnasium`.
        num_workers: as in `from_gymnasium`.
        final_observations: as in `from_gymnasium`.
        groups: group -> its agents, names or patterns such as "prey_*", or a list of these for each side of the group; an agent
            is in the first group that fits. None: groups are names without the number at the end; of agents that take turns,
            each is a side of its own.
        view: what of an agent's observation is an entity, as in `from_gymnasium`. All agents then are of one type, the actor of
            the view, each with the features of its own observation. Entities of other types are read from the observation of the
            first agent, or of the one whose turn it is, and every player sees them: so it suits worlds in which nothing of
            them is hidden. With a view, `groups` can only name the sides of the actor.
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


class PettingZooFactory(EnvSource):
    """Makes entity environments, for pools and the trainer. The players of that world are the sides of all groups."""

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
        self.name = self._make.name
        self._groups = check_groups(groups)
        self._view = None if view is None else load_view(view)
        self._wrappers = load_wrappers(wrappers)
        self._first: PettingZooEnvironment | None = None  # the last that was made, for what is known of all

    def as_environment(self) -> PettingZooEnvironment:
        self._first = PettingZooEnvironment(wrapped(self._make(), self._wrappers), self._groups, self._view)
        return self._first

    @property
    def players_hint(self) -> str:
        """The end of the message that this world has one player: how to name several."""
        world = self._known()
        ((name, group),) = world.groups.items()
        return f": to say who plays against whom, set env.kwargs.groups={example_of_sides(name, list(group.side))}"

    def num_players(self, values: Mapping[str, Any]) -> int:
        """Return the number of sides of all groups."""
        return len(self._known().player_names)

    def players(self, values: Mapping[str, Any], entity_type: str, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return (E,) the player that each of these entities belongs to; those that belong to nobody are the first's."""
        group = self._known().groups.get(entity_type)
        return np.zeros(len(rows), np.int64) if group is None else group.players_of(rows)

    def seen_by(
        self, values: Mapping[str, Any], player: NDArray[np.int64], entity_type: str, rows: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return (E, F) the features as `Group.seen_by` has them; entities that are no agents look alike to all players."""
        group = self._known().groups.get(entity_type)
        return rows if group is None else group.seen_by(player, rows)

    def _known(self) -> PettingZooEnvironment:
        if self._first is None:
            self.as_environment().close()
        assert self._first is not None
        return self._first


# ---- one environment


class PettingZooEnvironment(Environment):
    """One parallel or AEC environment as an entity environment.

    A player is a group, or a side of a group that has several, called "<group>.0", "<group>.1" and so on. Metrics of every step
    are `agents`, their number, and with several players `reward.<player>`; an episode's info has `score.<player>`, the sum of
    rewards of all agents of each player, and `scores`, the sum of each agent. `env_info` is given to `reset` as its options.

    Args:
        env: closed with this object.
        groups: as in `from_pettingzoo`.
        view: as in `from_pettingzoo`.

    Attributes:
        groups: name -> group; with a view, one of all agents.
        player_names: names of the players.

    Raises:
        ValueError: if it is no such environment, or its spaces have no form as entities.
    """

    def __init__(self, env: Any, groups: Groups | None = None, view: View | None = None) -> None:
        self.env, self.unwrapped = as_parallel(env), getattr(env, "unwrapped", env)
        self.display_name = str(getattr(env, "metadata", {}).get("name", type(env).__name__))  # by messages of pools
        self.view = view
        self.groups: dict[str, Group] = {}
        self._group: dict[AgentID, Group] = {}  # of every agent seen so far
        first = list(self._first_agents())
        self._num_agents = len(first)
        self._asked = check_groups(groups)
        if view is not None:
            self._asked = self._groups_of_view(view, first)
        elif self._asked is None and isinstance(self.env, TakingTurns):
            self._asked = self._groups_of_game(first)
        for agent in first:
            self._learn(agent)
        for name in self._asked or ():
            if name not in self.groups:
                raise ValueError(f"groups has {name!r}, which fits none of the agents {list(self._group)}")
            if empty := set(self.groups[name].players) - set(self.groups[name].side.values()):
                raise ValueError(f"side {min(empty)} of the group {name!r} fits none of the agents {list(self._group)}")
        self.player_names: list[str] = []
        for name, group in self.groups.items():
            num_before, num_sides = len(self.player_names), len(group.players)
            group.players = range(num_before, num_before + num_sides)
            self.player_names += [f"{name}.{side}" for side in range(num_sides)] if num_sides > 1 else [name]
        entities = {name: group.entity for name, group in self.groups.items()}
        reader = next(iter(self.groups.values())).reader
        self._obs_space = (
            ObsSpace(entities)
            if reader is None
            else ObsSpace({**reader.obs_space.entities, **entities}, reader.obs_space.global_features)
        )
        self._action_space: dict[str, ActionSpace] = {}
        for group in self.groups.values():
            self._action_space |= group.action_space
        self._seed: int | None = None
        self._options: dict[str, Any] = {}
        self._agents: list[AgentID] = []  # those that are shown, and act next unless they take turns
        self._scores: dict[AgentID, float] = {}
        self._watched: set[int] = set()  # players whose rewards have always cancelled, of which no warning was given
        self._times_cancelled = [0] * len(self.player_names)
        self._seeks_masks = True  # until the first step

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
        # The first environment of a pool warns for all.
        self._seeks_masks &= number == 0
        self._watched = set(range(len(self.player_names))) if number == 0 else set()

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
        if self._seeks_masks:
            self._seeks_masks = not self._warn_of_masks(infos)
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
        if self._seeks_masks:
            self._warn_of_masks(infos)
            self._seeks_masks = False
        if self._watched:
            self._warn_if_they_cancel(earned)
        if self._agents:
            return self._observe(self._agents, observations, infos, earned)
        cut = [agent for agent in acting if truncated.get(agent) and not terminated.get(agent)]
        last = self._observe(cut, observations, {}, earned)
        last.actions, last.done, last.truncated = {}, True, bool(cut)
        of_players = zip(self.player_names, self._sums(self._scores), strict=True)
        scores = {f"score.{name}": score for name, score in of_players}
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

    def _groups_of_view(self, view: View, first: Sequence[AgentID]) -> Groups:
        """Return the only group of a world with a view, with the sides that were asked for or that the game has."""
        actor = view.actor or AGENT
        if self._asked is None:
            return {actor: side_each(first) if isinstance(self.env, TakingTurns) else "*"}
        if self._asked.keys() != {actor}:
            raise ValueError(
                f"groups has {', '.join(map(repr, self._asked))}, and {view.name} has all agents in one group, {actor!r}: name "
                f"the sides of that, such as {example_of_sides(actor, first)}, or give no groups"
            )
        return self._asked

    def _groups_of_game(self, first: Sequence[AgentID]) -> Groups:
        """Return groups in which each agent is a side: one group if all have the same spaces, otherwise one for each name."""
        of_name: dict[str, list[AgentID]] = {}
        for agent in first:
            of_name.setdefault(default_group(agent), []).append(agent)
        spaces = self._spaces(first[0])
        if len(of_name) > 1 and all(self._spaces(agent) == spaces for agent in first):
            of_name = {"agent": list(first)}
        return {name: side_each(agents) for name, agents in of_name.items()}

    def _learn(self, agent: AgentID) -> None:
        """Put an agent that was not seen before into its group."""
        name, side = place_of(agent, self._asked)
        if name not in self.groups:
            self.groups[name] = Group(
                name,
                agent,
                *self._spaces(agent),
                num_sides=1 if self._asked is None else len(sides_of(self._asked[name])),
                takes_turns=isinstance(self.env, TakingTurns),
                view=self.view,
                num_agents=self._num_agents,
            )
        self.groups[name].join(agent, side, *self._spaces(agent))
        self._group[agent] = self.groups[name]

    def _spaces(self, agent: AgentID) -> tuple[Any, Any]:
        try:
            return self.env.observation_space(agent), self.env.action_space(agent)
        except (AttributeError, KeyError, NotImplementedError) as error:
            raise ValueError(f"{self.display_name} has no spaces of agent {agent!r}: {error!r}") from error

    def _known(self, agent: AgentID) -> Group:
        """Return the group of an agent; raises ValueError if it is of a group that did not exist at the beginning."""
        if agent not in self._group:
            name, _ = place_of(agent, self._asked)
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
        turn = self.env.turn if isinstance(self.env, TakingTurns) else None
        seen: dict[str, dict[AgentID, Any]] = {name: {} for name in self.groups}
        for agent in agents:
            if agent not in observations:
                raise ValueError(f"there is no observation of {agent!r}, which is one of the agents")
            seen[self._known(agent).name][agent] = observations[agent]
        features: dict[str, NDArray[np.float32]] = {}
        everywhere: NDArray[np.float32] | None = None
        offered: dict[str, ActionMask] = {}
        for name, group in self.groups.items():
            shown, rows = list(seen[name]), group.rows(seen[name])
            if group.reader is not None:
                of_types, everywhere = group.reader.read_agents(rows, shown.index(turn) if turn in shown else 0)
                features |= of_types
                rows = of_types[name]
            features[name] = group.with_place(rows, shown, turn)
            acting = seen[name]
            if isinstance(self.env, TakingTurns):
                acting = {agent: observation for agent, observation in acting.items() if agent == turn}
            offered |= group.offer(acting, infos)
        several = len(earned) > 1
        of_players = zip(self.player_names, earned, strict=True)
        return Observation(
            features=features,
            global_features=() if everywhere is None else everywhere,
            ids={name: list(of_group) for name, of_group in seen.items()},
            actions=offered,
            reward=sum(earned),
            metrics={"agents": float(sum(map(len, seen.values())))}
            | ({f"reward.{name}": value for name, value in of_players} if several else {}),
            player_rewards=earned if several else (),
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
                if reward.size != 1 or reward.dtype.kind not in "biuf" or not abs(reward.item()) <= LARGEST_FLOAT32:
                    raise ValueError(
                        f"step() returned the reward {rewards[agent]!r:.200} of {agent!r}; expected a finite number that "
                        "float32 can hold"
                    )
                earned[agent] = float(reward.item())
                self._scores[agent] = self._scores.get(agent, 0.0) + earned[agent]
            elif agent in acting:
                raise ValueError(f"step() returned no reward of {agent!r}, which has acted")
        return earned

    def _sums(self, rewards: Mapping[AgentID, float]) -> list[float]:
        """Return the sum over the agents of each player."""
        sums = [0.0] * len(self.player_names)
        for agent, reward in rewards.items():
            sums[self._player(agent)] += reward
        return sums

    def _player(self, agent: AgentID) -> int:
        group = self._known(agent)
        return group.players[group.side[agent]]

    def _warn_of_masks(self, infos: Mapping[AgentID, Any]) -> bool:
        """Return True if masks are used, or a warning was given of something that only looks like one."""
        of_agents = [info for agent, info in infos.items() if agent in self._group and isinstance(info, Mapping)]
        if any(group.shows_mask for group in self.groups.values()) or any(ACTION_MASK in info for info in of_agents):
            return True
        keys = dict.fromkeys(key for info in infos.values() if isinstance(info, Mapping) for key in info)
        space = self.env.observation_space(next(iter(self._group)))
        used = f'observation["{ACTION_MASK}"] of each agent, or by its own info["{ACTION_MASK}"]'
        return warn_of_masks(self.display_name, self.unwrapped, space, keys, used)

    def _warn_if_they_cancel(self, rewards: Mapping[AgentID, float]) -> None:
        """Warn, once, of a player whose agents have earned 0 together whenever one of them earned something."""
        paid: dict[int, list[AgentID]] = {}  # player -> its agents that have earned something
        for agent, reward in rewards.items():
            if reward:
                paid.setdefault(self._player(agent), []).append(agent)
        for player, agents in paid.items():
            amounts = [rewards[agent] for agent in agents]
            if abs(math.fsum(amounts)) > 1e-6 * max(map(abs, amounts)):
                self._watched.discard(player)
            elif player in self._watched:
                self._times_cancelled[player] += 1
                if self._times_cancelled[player] == CANCELLED:
                    group = self._known(agents[0]).name
                    warn_caller(
                        f"{self.display_name}: the rewards of {' and '.join(map(name_of, agents))}, who are one player, "
                        f"{self.player_names[player]!r}, have always cancelled, so their sum teaches nothing. If they play "
                        f"against each other, say so with groups={example_of_sides(group, agents)}, in training "
                        "env.kwargs.groups, and train with self_play.enabled=true"
                    )


def example_of_sides(group: str, agents: Sequence[AgentID]) -> str:
    """Return groups, as on the command line, in which each of these agents is a side."""
    return f"{{{group}: [{', '.join(f'[{name_of(agent)}]' for agent in agents)}]}}"
