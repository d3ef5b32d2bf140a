"""PettingZoo parallel environments as entity environments: agents are entities that appear, act and disappear.

    pool = from_pettingzoo("butterfly/knights_archers_zombies-v11", num_envs=8, max_cycles=300)
    pool = from_pettingzoo(make_my_env, groups={"hunter": ["adversary_*"], "prey": ["agent_*"]})

Agents of a group are entities of one type, with the group's actions: "adversary_0" and "adversary_1" are two `adversary`s, and
share what the network learns of them; agents of another group have a type and actions of their own. `groups` says it
otherwise: one group for all (`{"agent": "*"}`), where their spaces are the same, or one for each. What an agent observes,
fixed numbers however nested, are the features of its entity. It is there from the observation in which it first appears to
the last one before it ends, and acts in each of them.

The reward is the sum over all agents, and an episode ends when the last of them does. It is truncated if some agents did not
end by themselves but were cut, and then the last observation shows these.

All agents are in one frame, so each acts upon what all of them see: that suits a team. Groups that play against each other
are players (see `entity_gym.pools.players`): with `self_play`, or with `opponent` in evaluation, each sees its own agents, and of
the others only that they are there; each is paid what its own agents earn. `SeatedVecEnv` does the same in Python.

`info["action_mask"]` and `observation["action_mask"]` close choices; an agent that has none open does not act, and the
environment is told its first choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import Action, ActionMask, ActionSpace
from entity_gym.bridges.makers import Maker, check_arguments
from entity_gym.bridges.pettingzoo_groups import AgentID, Group, Groups, check_groups, group_of
from entity_gym.bridges.pettingzoo_ids import MakerById
from entity_gym.bridges.pools import Executor, make_bridge_pool
from entity_gym.environment import Environment, Observation
from entity_gym.errors import NoPictureError, nearest
from entity_gym.pools.episodes import EpisodeVecEnv
from entity_gym.pools.slots import FinalObservations
from entity_gym.pools.vec_env import VecEnv
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace


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
    """A pool of parallel environments.

    Args:
        env: what makes one: a function or class, "package.module:function", or an id that PettingZoo knows, such as
            "butterfly/knights_archers_zombies-v11".
        num_envs: how many.
        seed: environment i is reset with `seed=seed + i`, as PettingZoo's users expect.
        executor: as in `from_gymnasium`.
        autoreset: as in `from_gymnasium`.
        num_workers: as in `from_gymnasium`.
        final_observations: as in `from_gymnasium`.
        groups: group -> its agents, names or patterns such as "prey_*"; an agent is in the first that fits. None: by their
            names, without the number at the end.
        kwargs: what `env` is called with.

    Returns:
        A pool, whose `reset(env_info=...)` hands each environment its `options`.

    Raises:
        ValueError: for arguments that cannot be, or an environment whose spaces have no form as entities, saying what to do.
        ImportError: naming what to install.
    """
    factory = PettingZooFactory(env, groups=groups, **kwargs)
    return make_bridge_pool(factory, num_envs, seed, executor, autoreset, num_workers, final_observations)


def pettingzoo_worlds(env: str | Callable[..., Any], **kwargs: Any) -> PettingZooFactory:
    """What makes environments for a pool; arguments as of `from_pettingzoo`, those of pools apart."""
    return PettingZooFactory(env, **kwargs)


class PettingZooFactory:
    """Makes entity environments of parallel ones: what all pools and the trainer take. Groups are the players of that world.

    Args:
        env, groups, kwargs: as in `from_pettingzoo`.
    """

    player_parameters: tuple[str, ...] = ()  # nothing that `env_info` changes decides who is in which group

    def __init__(self, env: Any, groups: Groups | None = None, **kwargs: Any) -> None:
        self._make = _maker(env, kwargs)
        self.__name__ = self._make.name
        self._groups = check_groups(groups)
        self._names: list[str] | None = None  # of the groups, once they are known

    def __call__(self) -> PettingZooEnvironment:
        made = PettingZooEnvironment(self._make(), self._groups)
        self._names = list(made.groups)
        return made

    def num_players(self, values: Mapping[str, Any]) -> int:
        """How many groups there are."""
        return len(self._group_names())

    def players(self, values: Mapping[str, Any], entity_type: str, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """(E,) the number of the group."""
        return np.full(len(rows), self._group_names().index(entity_type), np.int64)

    def seen_by(
        self, values: Mapping[str, Any], player: NDArray[np.int64], entity_type: str, rows: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """(E, F) the features of the own agents, and zeros for others: what they observe is for them alone."""
        if entity_type == GLOBAL_ENTITY:
            return rows
        own = self.players(values, entity_type, rows) == player
        return np.where(own[:, None], rows, np.float32(0))

    def _group_names(self) -> list[str]:
        if self._names is None:
            self().close()
        assert self._names is not None
        return self._names


class PettingZooEnvironment(Environment):
    """One parallel environment as an entity environment; see the module.

    Metrics of every step are `agents`, how many are there, and with several groups `reward.<group>`; an episode's info has
    `score.<group>`, the sum of rewards of all agents of each group, and `scores`, that of each agent. `env_info` is given to
    `reset` as its options.

    Args:
        env: the environment; belongs to this one from now on.
        groups: as in `from_pettingzoo`.

    Attributes:
        env: the same.
        groups: by name.

    Raises:
        ValueError: if it is none, or its spaces have no form as entities, saying what to do.
    """

    def __init__(self, env: Any, groups: Groups | None = None) -> None:
        _check_parallel(env)
        self.env = env
        self.display_name = str(
            getattr(env, "metadata", {}).get("name", type(env).__name__)
        )  # how a pool's messages name it
        self._asked = check_groups(groups)
        self.groups: dict[str, Group] = {}
        self._group: dict[AgentID, Group] = {}  # of every agent that has been seen
        for agent in self._first_agents():
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
        seed, self._seed = self._seed, None  # later episodes go on with the environment's own random numbers
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
        result = self.env.step(self._told(actions))
        if not isinstance(result, tuple) or len(result) != 5 or not all(isinstance(each, Mapping) for each in result):
            raise ValueError(
                f"step() returned {result!r:.200}; expected observations, rewards, terminations, truncations and infos, a "
                "dictionary of agents each"
            )
        observations, rewards, terminated, truncated, infos = result
        for what, flags in (("termination", terminated), ("truncation", truncated)):
            if lacking := [agent for agent in acting if agent not in flags]:
                raise ValueError(f"step() returned no {what} of {lacking[0]!r}, which has acted")
        ended = {agent for agent in acting if terminated.get(agent) or truncated.get(agent)}
        self._agents = [agent for agent in self.env.agents if agent not in ended]
        sums = self._sums(self._earned(acting, rewards))
        if self._agents:
            return self._observe(self._agents, observations, infos, sums)
        cut = [agent for agent in acting if truncated.get(agent) and not terminated.get(agent)]
        last = self._observe(cut, observations, {}, sums)
        last.actions, last.done, last.truncated = {}, True, bool(cut)
        last.end_of_episode_info = self._results()
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
        """All agents that there can be, or those of a first episode."""
        possible = getattr(self.env, "possible_agents", None)
        if possible is None:
            self.env.reset()
            possible = self.env.agents
        if not possible:
            raise ValueError(f"{self.display_name} has no agents: possible_agents is empty")
        return list(possible)

    def _learn(self, agent: AgentID) -> None:
        """Take note of an agent that has not been seen before."""
        name = group_of(agent, self._asked)
        if name in self.groups:
            self.groups[name].check_same(agent, *self._spaces(agent))
        else:
            self.groups[name] = Group(name, agent, *self._spaces(agent))
        self._group[agent] = self.groups[name]

    def _spaces(self, agent: AgentID) -> tuple[Any, Any]:
        try:
            return self.env.observation_space(agent), self.env.action_space(agent)
        except (AttributeError, KeyError, NotImplementedError) as error:
            raise ValueError(f"{self.display_name} has no spaces of agent {agent!r}: {error!r}") from error

    def _known(self, agent: AgentID) -> Group:
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
        """What these agents see and may do; `earned` by every group."""
        seen: dict[str, dict[AgentID, Any]] = {name: {} for name in self.groups}
        for agent in agents:
            if agent not in observations:
                raise ValueError(f"there is no observation of {agent!r}, which is one of the agents")
            seen[self._known(agent).name][agent] = observations[agent]
        offered: dict[str, ActionMask] = {}
        for name, group in self.groups.items():
            offered |= group.offer(seen[name], infos)
        several = len(self.groups) > 1
        return Observation(
            features={name: group.rows(seen[name]) for name, group in self.groups.items()},
            ids={name: list(of_group) for name, of_group in seen.items()},
            actions=offered,
            reward=sum(earned.values()),
            metrics={"agents": float(sum(map(len, seen.values())))}
            | ({f"reward.{name}": value for name, value in earned.items()} if several else {}),
            player_rewards=list(earned.values()) if several else (),
        )

    def _told(self, actions: Mapping[str, Action]) -> dict[AgentID, Any]:
        """What every agent does, in the order in which the environment lists them."""
        of_group: dict[str, list[AgentID]] = {}
        for agent in self._agents:
            of_group.setdefault(self._group[agent].name, []).append(agent)
        told: dict[AgentID, Any] = {}
        for name, agents in of_group.items():
            told |= self.groups[name].decode(actions, agents)
        return {agent: told[agent] for agent in self._agents}

    def _earned(self, acting: Iterable[AgentID], rewards: Mapping[AgentID, Any]) -> dict[AgentID, float]:
        """The rewards of those who have acted, and of those who have just come."""
        earned = {}
        for agent in dict.fromkeys([*acting, *self._agents]):
            if agent in rewards:
                earned[agent] = _number(rewards[agent], agent)
                self._scores[agent] = self._scores.get(agent, 0.0) + earned[agent]
            elif agent in acting:
                raise ValueError(f"step() returned no reward of {agent!r}, which has acted")
        return earned

    def _sums(self, rewards: Mapping[AgentID, float]) -> dict[str, float]:
        """Group -> the sum over its agents."""
        sums = dict.fromkeys(self.groups, 0.0)
        for agent, reward in rewards.items():
            sums[self._known(agent).name] += reward
        return sums

    def _results(self) -> dict[str, Any]:
        sums = {f"score.{name}": score for name, score in self._sums(self._scores).items()}
        return {**sums, "scores": {str(agent): score for agent, score in self._scores.items()}}


def _number(reward: Any, agent: AgentID) -> float:
    array = np.asarray(reward)
    if array.size != 1 or array.dtype.kind not in "biuf" or not math.isfinite(array.item()):
        raise ValueError(f"step() returned the reward {reward!r:.200} of {agent!r}; expected a finite number")
    return float(array.item())


def _maker(env: Any, kwargs: Mapping[str, Any]) -> Maker:
    """What makes a parallel environment."""
    if isinstance(env, str) and ":" not in env:
        return MakerById(env, kwargs)
    if not isinstance(env, str) and not callable(env):
        hint = f"the function {env.__name__}.parallel_env" if hasattr(env, "parallel_env") else "what makes it"
        if isinstance(env, Sequence) and len(env):
            hint = f"what makes one of them, such as the class {type(env[0]).__name__}, and num_envs={len(env)}"
        raise ValueError(f"the PettingZoo environment is {env!r:.200}, which makes none; give {hint}")
    return Maker(env, kwargs, "the PettingZoo environment")


def _check_parallel(env: Any) -> None:
    if callable(getattr(env, "agent_iter", None)):
        raise ValueError(
            f"{type(env).__name__} is an AEC environment, in which agents take turns; convert it with "
            "pettingzoo.utils.conversions.aec_to_parallel or turn_based_aec_to_parallel, or use its parallel_env"
        )
    lacking = [name for name in ("reset", "step", "observation_space", "action_space") if not hasattr(env, name)]
    if lacking:
        raise ValueError(
            f"{type(env).__name__} has no {', '.join(lacking)}; expected a PettingZoo parallel environment"
        )
    check_arguments(env.reset, f"{type(env).__name__}.reset", {"seed": None, "options": None})
