"""Rollouts: the policy acts in N environments for T steps.

Shapes: T steps, N environments, B = T * N frames ordered by step and then environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from enn_ppo.training.frames import Frames, cat_columns
from enn_ppo.training.learning.actor_critic import ActingNet
from enn_ppo.training.players import Cast
from enn_ppo.training.policy_states import PolicyStates, rows_of
from enn_ppo.training.watchdog import Watchdog
from entity_gym.batch.vec_obs import INSTANCE, TARGET, Metric, VecAction, VecObs
from entity_gym.pools.episodes import Episode, EpisodeTracker
from entity_gym.pools.players import Seating
from entity_gym.pools.vec_env import EnvInfo, VecEnv
from rogue_net import ActResult, FrameKeys, ObsBatch, State, keyed
from rogue_net.batch.crossing import moved, to_device
from rogue_net.batch.ragged import Cat
from rogue_net.finite import fetch_actions

#: Called after every step of a rollout with the fraction that is played, in (0, 1]. Returns whether the rollout ends there.
Watch: TypeAlias = Callable[[float], bool]


def play_all(played: float) -> bool:
    """The `Watch` that never ends a rollout."""
    return False


@dataclass
class RolloutStats:
    """Episode statistics and timings of a rollout.

    Attributes:
        episodes: the episodes that ended.
        metrics: the metrics that the environments reported.
        env_seconds: seconds spent waiting for environments; steps that overlap with acting in another block do not count.
        act_seconds: seconds spent acting, summed over policies.
    """

    episodes: list[Episode] = field(default_factory=list)
    metrics: dict[str, Metric] = field(default_factory=dict)
    env_seconds: float = 0.0
    act_seconds: float = 0.0

    def add(self, episodes: Sequence[Episode], metrics: Mapping[str, Metric]) -> None:
        """Add episodes and metrics."""
        self.episodes += episodes
        for name, metric in metrics.items():
            self.metrics.setdefault(name, Metric()).merge(metric)


@dataclass(frozen=True)
class Rollout:
    """T steps of N environments.

    A new per-frame column is one field of `Frames` with the default None, and a line in `Trajectory.rollout`.
    """

    frames: Frames  # B
    last_values: Tensor  # (N,) float32, V of the observations after the last step
    stats: RolloutStats

    @property
    def num_envs(self) -> int:
        """N."""
        return len(self.last_values)

    @property
    def follows(self) -> Tensor:
        """(B,) bool, frames that come after the frame of the same episode and environment one step before."""
        is_later = torch.arange(len(self.frames), device=self.last_values.device) >= self.num_envs
        return is_later & (self.frames.step > 0)

    def by_step(self, name: str) -> Tensor:
        """Reshape the column `name`, one number for each frame, from (B,) to (T, N)."""
        column: Tensor = getattr(self.frames, name)
        return column.view(-1, self.num_envs)

    @staticmethod
    def merged(rollouts: Sequence[Rollout]) -> Rollout:
        """Rollouts of the same number of steps side by side, in the order of their environments."""
        if len(rollouts) == 1:
            return rollouts[0]
        places = torch.arange(sum(len(rollout.frames) for rollout in rollouts))
        of_each = torch.split(places, [len(rollout.frames) for rollout in rollouts])
        order = torch.cat(
            [place.view(-1, rollout.num_envs) for place, rollout in zip(of_each, rollouts, strict=True)], dim=1
        )
        stats = RolloutStats()
        for rollout in rollouts:
            stats.add(rollout.stats.episodes, rollout.stats.metrics)
            stats.env_seconds += rollout.stats.env_seconds
            stats.act_seconds += rollout.stats.act_seconds
        frames = Frames.cat([rollout.frames for rollout in rollouts])
        return Rollout(
            frames=frames.gather(moved(order.flatten(), frames.values.device), all_of_them=True),
            last_values=torch.cat([rollout.last_values for rollout in rollouts]),
            stats=stats,
        )


class EnvBlock:
    """Environments that step together, and whose episodes continue from one rollout to the next.

    The rollout of a policy with several players has one column for each player of each environment (N = environments * players),
    ordered by player, with that player's observations (`Seating.show`), actors, actions and rewards. `env_id` is then
    environment * (number of the policy's players) + (index of the player among them).

    Args:
        vec_env: N environments.
        nets: policy name -> policy and value function; not changed.
        device: of the policies.
        first_env: number of the block's first environment in the run.
        cast: the players that each policy plays; None: one policy plays all.
        watchdog: watches the environments while they take a step; None: nobody does.
    """

    def __init__(
        self,
        vec_env: VecEnv,
        nets: Mapping[str, ActingNet],
        device: torch.device,
        first_env: int = 0,
        *,
        cast: Cast | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self.vec_env, self.device = vec_env, device
        self._watchdog = watchdog
        self._nets, self._cast = nets, cast
        self.env_id: NDArray[np.int64] = first_env + np.arange(len(vec_env))  # numbers of the environments in the run
        self.tracker = EpisodeTracker(len(vec_env), first_env, cast.policies if cast else None)
        self.obs: VecObs | None = None  # the current observations of the environments; None before `reset`
        self._trajectories: list[Trajectory] = []  # in the order of `_show`
        seats = cast.policies.values() if cast else [[0]]
        self.states = [PolicyStates() for players in seats for _ in players]  # in the same order

    def begin(self, steps: int, seed: int) -> None:
        """Begin a rollout of `steps` steps from the current observations.

        The sampling noise is keyed by `seed`, the environment's number and the step.
        """
        assert self.obs is not None, "reset first"
        keys = keyed(keyed(seed, torch.from_numpy(self.env_id)), torch.arange(steps)[:, None]).to(self.device)  # (T, N)
        self._stats = {name: RolloutStats() for name in self._nets}
        if self._cast is None:
            seats = [(name, keys, self.env_id) for name in self._nets]  # a single policy
        else:
            seats = [
                (name, keyed(keys, torch.tensor(player, device=self.device)), self.env_id * len(players) + place)
                for name, players in self._cast.policies.items()
                for place, player in enumerate(players)
            ]
        self._trajectories = [
            Trajectory(name, self._nets[name], own_keys, torch.from_numpy(env_id), [view], states)
            for (name, own_keys, env_id), view, states in zip(seats, self._show(self.obs), self.states, strict=True)
        ]

    def act(self) -> Mapping[str, VecAction]:
        """Choose an action for every actor of the current observations."""
        started = time.perf_counter()
        actions: list[dict[str, VecAction]] = []
        for each in self._trajectories:
            batch, keys = ObsBatch.from_vec_obs(each.seen[-1], self.device), each.keys[len(each.results)]
            before = each.recall()
            result = each.net.act(batch, before, generator=FrameKeys(keys))
            actions.append(fetch_actions(each.net, batch, result))  # synchronises: the environments need the actions
            each.states.keep(each.seen[-1].env_id, result.state)
            each.before.append(before)
            each.batches.append(batch)
            each.results.append(result)
        joined = self._seating.join(list(zip(self._parts, actions, strict=True))) if self._cast else actions[0]
        for stats in self._stats.values():
            stats.act_seconds += time.perf_counter() - started
        return joined

    def observe(self, obs: VecObs, waited: float) -> None:
        """Add the next observations, which took `waited` seconds."""
        self.obs = obs
        for trajectory, view in zip(self._trajectories, self._show(obs), strict=True):
            trajectory.seen.append(view)
        if self._cast:
            ended = self.tracker.step_players(obs, self._seating.rewards)
        else:
            ended = dict.fromkeys(self._nets, self.tracker.step(obs))
        for name, stats in self._stats.items():
            stats.add(ended[name], obs.metrics)
            stats.env_seconds += waited

    def finish(self) -> dict[str, Rollout]:
        """Policy name -> its rollout since `begin`."""
        played: dict[str, list[Rollout]] = {name: [] for name in self._nets}
        for each in self._trajectories:
            # statistics count all players of a policy together
            stats = RolloutStats() if played[each.policy] else self._stats[each.policy]
            played[each.policy].append(each.rollout(stats, self.device))
        return {name: Rollout.merged(rollouts) for name, rollouts in played.items()}

    def _show(self, obs: VecObs) -> list[VecObs]:
        """Observations of each player, in the order of the policies. Without a cast: `[obs]`."""
        if self._cast is None:
            return [obs]
        self._seating = Seating(obs, self._cast.mapping)
        self._parts = [self._seating.part(player) for players in self._cast.policies.values() for player in players]
        return [self._seating.show(part) for part in self._parts]

    def reset(self, seed: int | None = None, env_info: EnvInfo | None = None) -> None:
        """Start new episodes everywhere; arguments as in `VecEnv.reset`."""
        with self.waiting():
            self.obs = self.vec_env.reset(seed, env_info)
        self.tracker.reset()

    def waiting(self) -> AbstractContextManager[None]:
        """The context in which to wait for the environments."""
        return nullcontext() if self._watchdog is None else self._watchdog.waiting_for(self.vec_env)


@dataclass
class Trajectory:
    """A rollout in progress: the observations of one policy, and its actions."""

    policy: str  # its name
    net: ActingNet  # the policy and value function
    keys: Tensor  # (T, N) int64, keys of the sampling noise
    env_id: Tensor  # (N,) int64, the rollout's numbers of the environments
    seen: list[VecObs]  # T + 1 observations of N frames in the end
    states: PolicyStates  # after the last step
    before: list[State | None] = field(default_factory=list)  # before each step
    batches: list[ObsBatch] = field(default_factory=list)  # the observations on the policy's device
    results: list[ActResult] = field(default_factory=list)

    def recall(self) -> State | None:
        """The policy's state before the next step."""
        return self.states.recall(self.seen[-1].env_id, self.seen[-1].elapsed_step == 0)

    def rollout(self, stats: RolloutStats, device: torch.device) -> Rollout:
        """Make the rollout of all T * N frames."""
        results, before, after = self.results, self.seen[:-1], self.seen[1:]

        def on_host(name: str, steps: Sequence[VecObs]) -> Tensor:
            return torch.cat([torch.from_numpy(getattr(obs, name)) for obs in steps])

        told = [name for name in before[0].arrays if name == INSTANCE or name.startswith(TARGET)]
        host = [
            on_host("elapsed_step", before),
            *(on_host(name, after) for name in ("reward", "done", "truncated")),
            self.env_id.repeat(len(results)),
            *(torch.cat([torch.from_numpy(obs.arrays[name]) for obs in before]) for name in told),
        ]
        there = host if device.type == "cpu" else to_device(host, device)
        step, rewards, done, truncated, env_id, *rest = there
        arrays = dict(zip(told, rest, strict=True))
        instance = arrays.pop(INSTANCE, None)
        cat = Cat()

        def of_results(columns: Sequence[Any]) -> Any:
            return cat_columns(columns, cat)

        frames = Frames(
            obs=ObsBatch.cat(self.batches, cat),
            env_id=env_id,
            step=step,
            actions=of_results([result.actions for result in results]),
            log_probs=of_results([result.log_probs for result in results]),
            state=of_results(self._before()),
            instance=instance,
            targets={name.removeprefix(TARGET): each for name, each in arrays.items()} or None,
            values=of_results([result.values for result in results]),
            rewards=rewards,
            terminated=done & ~truncated,
            truncated=truncated,
            final_values=self._final_values(after, device),
        )
        last_values = self.net.value(ObsBatch.from_vec_obs(self.seen[-1], device), self.recall())
        return Rollout(frames, last_values, stats)

    def _before(self) -> Sequence[State | None]:
        """The states before each step; before the first step of all, nothing is known of the environments."""
        known = self.results[-1].state
        return [rows_of(known, np.full(len(self.env_id), -1)) if known and not each else each for each in self.before]

    def _final_values(self, after: Sequence[VecObs], device: torch.device) -> Tensor:
        """(B,) values of the final observations of truncated episodes, evaluated in one batch; 0 elsewhere."""
        num_envs = len(self.env_id)
        values = torch.zeros(len(after) * num_envs, device=device)
        ended = [(t, obs.final) for t, obs in enumerate(after) if obs.final is not None]
        if ended:
            places = torch.cat([t * num_envs + torch.from_numpy(final.env_id) for t, final in ended])
            batch = ObsBatch.cat([ObsBatch.from_vec_obs(final) for _, final in ended]).to(device)
            known = cat_columns([rows_of(self.results[t].state, final.env_id) for t, final in ended], Cat())
            values.index_copy_(0, moved(places, device), self.net.value(batch, known))
        return values


@torch.no_grad()
def play(blocks: Sequence[EnvBlock], steps: int, seed: int, watch: Watch = play_all) -> list[dict[str, Rollout]]:
    """Play `steps` steps in every block, or fewer if `watch` ends the rollout. `seed` keys the sampling noise.

    Several blocks take turns: the policy acts in one block while the threads or processes of the other blocks' pools step their
    environments. Turns are in a fixed order, so rollouts do not depend on timing.

    Returns:
        For each block, policy name -> its rollout.

    Raises:
        BaseException: raised by an environment or policy; of several blocks, by the first in order.
    """
    for block in blocks:
        block.begin(steps, seed)
    if len(blocks) == 1:
        (block,) = blocks
        for step in range(steps):
            actions = block.act()
            started = time.perf_counter()
            with block.waiting():
                obs = block.vec_env.act(actions)
            block.observe(obs, time.perf_counter() - started)
            if watch((step + 1) / steps):
                break
    else:
        for block in blocks:
            block.vec_env.send(block.act())
        for step in range(steps):
            is_last = watch((step + 1) / steps) or step + 1 == steps  # the step that is under way
            for block in blocks:
                started = time.perf_counter()
                with block.waiting():
                    obs = block.vec_env.recv()
                block.observe(obs, time.perf_counter() - started)
                if not is_last:
                    block.vec_env.send(block.act())
            if is_last:
                break
    return [block.finish() for block in blocks]
