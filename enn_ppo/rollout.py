"""Playing: the policy acts in N environments for T steps, and everything that learning needs is kept on the device.

Shapes: T steps, N environments, B = T * N frames ordered by step and then environment, A actors.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from enn_ppo.actor_critic import Actor
from enn_ppo.graphs.acting import ActGraph
from enn_ppo.recording.frames import Frames
from enn_ppo.recording.recorder import Recorder
from enn_ppo.stepping import Actions, StepHere, Stepped, play
from entity_gym.batch.vec_obs import Metric, VecAction, VecObs
from entity_gym.pools.episodes import Episode, EpisodeTracker, RunningEpisodes
from entity_gym.pools.vec_env import EnvInfo, VecEnv
from rogue_net import ActResult, FrameKeys, ObsBatch, RaggedTensor, keyed
from rogue_net.crossing import moved, to_device
from rogue_net.ragged import cat_ragged


@dataclass(frozen=True)
class Rollout:
    """What happened."""

    obs: ObsBatch  # B frames
    actions: dict[str, RaggedTensor]  # action -> B sequences of (A, 1) int64 or (A, n) float32
    log_probs: dict[str, RaggedTensor]  # action -> B sequences of (A,) float32
    values: Tensor  # (T, N) float32, of `obs`
    rewards: Tensor  # (T, N) float32, for the actions taken in `obs`
    terminated: Tensor  # (T, N) bool
    truncated: Tensor  # (T, N) bool
    final_values: Tensor  # (T, N) float32, of the last observations of truncated episodes; 0 elsewhere
    last_values: Tensor  # (N,) float32, of the observations after the last step
    elapsed_steps: NDArray[np.int64]  # (T, N), steps that the episode of each frame of `obs` had been played
    # (N,), the environments' numbers among all of the run; of several players see `PlayersCollector`
    env_id: NDArray[np.int64]
    episodes: list[Episode]  # that ended
    metrics: dict[str, Metric]  # that the environments reported
    env_seconds: float  # waited for environments; what they do while the policy acts elsewhere is not counted
    act_seconds: float


class EnvBlock:
    """Environments that are played together, and carried from one rollout to the next.

    Args:
        vec_env: N environments.
        device: where policies are.
        seed: of the sampling noise.
        tracker: of their episodes; it knows the number of environment 0 among all of the run.
    """

    def __init__(self, vec_env: VecEnv, device: torch.device, seed: int, tracker: RunningEpisodes) -> None:
        self.vec_env = vec_env
        self.device = device
        self.seed_noise(seed)
        self.env_id: NDArray[np.int64] = tracker.first_env + np.arange(len(vec_env))  # among all of the run
        self.tracker = tracker
        self._obs: VecObs | None = None

    def reset(self, seed: int | None = None, env_info: EnvInfo | None = None) -> None:
        """Start new episodes everywhere; arguments as in `VecEnv.reset`."""
        self._obs = self.vec_env.reset(seed, env_info)
        self.tracker.reset()

    def seed_noise(self, seed: int) -> None:
        """From now on the noise of a frame is keyed by `seed`, its environment's number, and the steps played since."""
        self._seed, self._steps = seed, 0

    def _noise_keys(self, steps: int) -> Tensor:
        """(T, N) of the next steps."""
        numbers = torch.arange(self._steps, self._steps + steps)
        self._steps += steps
        return keyed(keyed(self._seed, torch.from_numpy(self.env_id)), numbers[:, None]).to(self.device)

    def state(self) -> dict[str, Any]:
        """Where the environments and their episodes are, for `load_state`; environments that cannot be saved are None."""
        return {
            "environments": self.vec_env.state() if self.vec_env.can_save else None,
            "episodes": self.tracker.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> str | None:
        """Continue from what `state` returned.

        Returns:
            Why the environments cannot continue, and have to be reset; None if they do continue.
        """
        num_envs = len(state["episodes"]["lengths"])
        if state["environments"] is None or not self.vec_env.can_save:
            return "the environment has no state() and load_state()"
        if num_envs != len(self.vec_env):
            return f"the checkpoint has {num_envs} of them, and rollout.num_envs is {len(self.vec_env)}"
        if np.ndim(state["episodes"]["rewards"]) != self.tracker.rewards.ndim:
            return "one policy has played in them where there are now several, or several where there is now one"
        try:
            self._obs = self.vec_env.load_state(state["environments"])
        except ValueError as error:  # the environment has changed since
            return str(error)
        self.tracker.load_state(state["episodes"])
        return None

    def close(self) -> None:
        """Release everything. May be called twice."""
        self.vec_env.close()


class Collector(EnvBlock):
    """Environments in which one policy plays.

    Args:
        vec_env: N environments.
        net: the policy, and its values; evaluated, never changed.
        device: where the policy is.
        seed: of the sampling noise.
        first_env: the number of environment 0, where these are a part of more.
        graphs: whether acting is recorded as a CUDA graph.
    """

    def __init__(
        self,
        vec_env: VecEnv,
        net: Actor,
        device: torch.device,
        seed: int,
        first_env: int = 0,
        *,
        graphs: bool = False,
    ) -> None:
        self._episodes = EpisodeTracker(len(vec_env), first_env)
        super().__init__(vec_env, device, seed, self._episodes)
        self.net = net
        self._act_graph = ActGraph(net, device) if graphs else None
        self.recorder: Recorder | None = None  # takes every rollout, as a chunk of its own
        self.value_unit = 1.0  # of the values, in rewards: recordings hold both in rewards

    def collect(self, steps: int) -> Rollout:
        """Play `steps` steps in every environment. Episodes go on from one rollout to the next."""
        return play([self], steps, [StepHere()])[0]

    def playing(self, steps: int) -> Generator[Actions, Stepped, Rollout]:
        """As `collect`, where somebody else has the environments take their steps; see `Plays`."""
        assert self._obs is not None, "reset first"
        logits = self.recorder is not None and self.recorder.logits
        # a graph has no logits: recordings that want them are made without
        graph = None if logits else self._act_graph
        keys = self._noise_keys(steps)
        trajectory = Trajectory(self.net, self.device, keys, self._obs, logits=logits, graph=graph)
        episodes: list[Episode] = []
        metrics: dict[str, Metric] = {}
        env_seconds = act_seconds = 0.0
        for _ in range(steps):
            started = time.perf_counter()
            actions = trajectory.act()
            act_seconds += time.perf_counter() - started
            self._obs, waited = yield actions
            env_seconds += waited
            trajectory.observe(self._obs)
            episodes += self._episodes.step(self._obs)
            merge_metrics(metrics, self._obs.metrics)
        besides = Besides(self.env_id, episodes, metrics, env_seconds, act_seconds)
        rollout = trajectory.rollout(besides)
        if self.recorder is not None:
            self.recorder.add(trajectory.frames_of(rollout, self.value_unit))
            self.recorder.flush()
        return rollout

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(super().close)
            if self.recorder:
                stack.callback(self.recorder.close)


class Besides(NamedTuple):
    """What of a rollout is no matter of frames; see `Rollout`."""

    env_id: NDArray[np.int64]  # (N,)
    episodes: list[Episode]
    metrics: dict[str, Metric]
    env_seconds: float
    act_seconds: float


class Trajectory:
    """A rollout in the making, of frames as they are shown to one policy.

    Args:
        net: the policy, and its values.
        device: where the policy is.
        keys: (T, N) of the sampling noise.
        obs: the first N frames.
        logits: whether those of all choices are kept.
        graph: acts in place of the policy, without logits.
    """

    def __init__(
        self,
        net: Actor,
        device: torch.device,
        keys: Tensor,
        obs: VecObs,
        *,
        logits: bool = False,
        graph: ActGraph | None = None,
    ) -> None:
        self._net, self._device, self._keys, self._logits, self._graph = net, device, keys, logits, graph
        self._seen = [obs]  # before every step, and after the last
        self._frames: list[ObsBatch] = []
        self._results: list[ActResult] = []

    def act(self) -> dict[str, VecAction]:
        """Choose actions in the frames that were shown last."""
        obs, keys = self._seen[-1], self._keys[len(self._results)]
        if self._graph is not None:
            batch, result = self._graph(obs, keys)
        else:
            batch = ObsBatch.from_vec_obs(obs, self._device)
            result = self._net.act(batch, generator=FrameKeys(keys), logits=self._logits)
        self._frames.append(batch)
        self._results.append(result)
        offsets = {name: mask.actors.offsets for name, mask in obs.action_masks.items()}
        return result.to_buffers(offsets)  # synchronises: the environments need the actions

    def observe(self, obs: VecObs) -> None:
        """Take in what the actions have led to."""
        self._seen.append(obs)

    def rollout(self, besides: Besides) -> Rollout:
        """All of it, with what else there is to tell."""
        results, outcomes = self._results, self._seen[1:]

        columns = [
            torch.stack([torch.from_numpy(getattr(obs, name)) for obs in outcomes])
            for name in ("reward", "done", "truncated")
        ]
        rewards, done, truncated = columns if self._device.type == "cpu" else to_device(columns, self._device)
        obs = ObsBatch.cat(self._frames)
        offsets = {name: mask.actors.offsets for name, mask in obs.action_masks.items()}  # every actor chooses once
        return Rollout(
            obs=obs,
            actions={
                name: RaggedTensor(torch.cat([result.actions[name].values for result in results]), offsets[name])
                for name in results[0].actions
            },
            log_probs={
                name: RaggedTensor(torch.cat([result.log_probs[name] for result in results]), offsets[name])
                for name in results[0].log_probs
            },
            values=torch.stack([result.values for result in results]),
            rewards=rewards,
            terminated=done & ~truncated,
            truncated=truncated,
            final_values=self._final_values(outcomes),
            last_values=self._net.value(ObsBatch.from_vec_obs(self._seen[-1], self._device)),
            elapsed_steps=np.stack([obs.elapsed_step for obs in self._seen[:-1]]),
            **besides._asdict(),
        )

    def _final_values(self, outcomes: list[VecObs]) -> Tensor:
        """(T, N): values of the last observations of truncated episodes, all evaluated in one batch."""
        values = torch.zeros(len(outcomes), len(outcomes[0]), device=self._device)
        ended = [(t, obs.final) for t, obs in enumerate(outcomes) if obs.final is not None]
        if ended:
            steps = torch.cat([torch.full((len(final),), t) for t, final in ended])
            envs = torch.cat([torch.from_numpy(final.env_id) for _, final in ended])
            places = moved(steps * values.shape[1] + envs, self._device)
            batch = ObsBatch.cat([ObsBatch.from_vec_obs(final) for _, final in ended]).to(self._device)
            values.view(-1).index_copy_(0, places, self._net.value(batch))
        return values

    def frames_of(self, rollout: Rollout, value_unit: float) -> Frames:
        """The rollout as frames to record, with logits if they were kept; values in rewards, of `value_unit` each."""
        logits = [result.logits for result in self._results if result.logits is not None]
        return Frames(
            obs=rollout.obs,
            env_id=torch.cat([torch.from_numpy(obs.env_id) for obs in self._seen[:-1]]),
            step=torch.from_numpy(rollout.elapsed_steps.flatten()),
            actions=rollout.actions,
            log_probs=rollout.log_probs,
            logits={name: cat_ragged([each[name] for each in logits]) for name in logits[0]} if logits else None,
            values=rollout.values.flatten() * value_unit,
            rewards=rollout.rewards.flatten(),
            terminated=rollout.terminated.flatten(),
            truncated=rollout.truncated.flatten(),
            final_values=rollout.final_values.flatten() * value_unit,
        )


def merge_metrics(into: dict[str, Metric], metrics: Mapping[str, Metric]) -> None:
    """Add what environments have reported to what they had before."""
    for name, metric in metrics.items():
        into.setdefault(name, Metric()).merge(metric)
