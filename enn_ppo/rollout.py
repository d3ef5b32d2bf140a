"""Playing: the policy acts in N environments for T steps, and everything that learning needs is kept on the device.

Shapes: T steps, N environments, B = T * N frames ordered by step and then environment, A actors.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from enn_ppo.actor_critic import Actor
from enn_ppo.recording.frames import Frames
from enn_ppo.recording.recorder import Recorder
from entity_gym.episodes import Episode, EpisodeTracker
from entity_gym.vec_env import EnvInfo, VecEnv
from entity_gym.vec_obs import Metric, VecObs
from rogue_net import ActResult, FrameKeys, ObsBatch, RaggedTensor, keyed
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
    env_id: NDArray[np.int64]  # (N,), the environments' numbers among all of the run
    episodes: list[Episode]  # that ended
    metrics: dict[str, Metric]  # that the environments reported
    env_seconds: float
    act_seconds: float


class Collector:
    """Carries the environments from one rollout to the next.

    Args:
        vec_env: N environments.
        net: the policy, and its values; evaluated, never changed.
        device: where the policy is.
        seed: of the sampling noise.
        first_env: the number of environment 0, where these are a part of more.
    """

    def __init__(self, vec_env: VecEnv, net: Actor, device: torch.device, seed: int, first_env: int = 0) -> None:
        self.vec_env = vec_env
        self.net = net
        self.device = device
        self.seed_noise(seed)
        self.env_id: NDArray[np.int64] = first_env + np.arange(len(vec_env))  # among all of the run
        self.tracker = EpisodeTracker(len(vec_env))
        self.recorder: Recorder | None = None  # takes every rollout, as a chunk of its own
        self.value_unit = 1.0  # of the values, in rewards: recordings hold both in rewards
        self._obs: VecObs | None = None

    def reset(self, seed: int | None = None, env_info: EnvInfo | None = None) -> None:
        """Start new episodes everywhere; arguments as in `VecEnv.reset`."""
        self._obs = self.vec_env.reset(seed, env_info)
        self.tracker = EpisodeTracker(len(self.vec_env))

    def seed_noise(self, seed: int) -> None:
        """From now on the noise of a frame is keyed by `seed`, its environment's number, and the steps played since."""
        self._seed, self._steps = seed, 0

    @torch.no_grad()
    def collect(self, steps: int) -> Rollout:
        """Play `steps` steps in every environment. Episodes go on from one rollout to the next."""
        assert self._obs is not None, "reset first"
        frames: list[ObsBatch] = []
        results = []
        episodes: list[Episode] = []
        metrics: dict[str, Metric] = {}
        env_seconds = act_seconds = 0.0
        seen = [self._obs]  # before every step, and after the last
        logits = self.recorder is not None and self.recorder.logits
        keys = self._noise_keys(steps)
        for t in range(steps):
            started = time.perf_counter()
            batch = ObsBatch.from_vec_obs(self._obs, self.device)
            result = self.net.act(batch, generator=FrameKeys(keys[t]), logits=logits)
            actions = result.to_buffers()  # synchronises: the environments need the actions
            acted = time.perf_counter()
            self._obs = self.vec_env.act(actions)
            env_seconds += time.perf_counter() - acted
            act_seconds += acted - started
            frames.append(batch)
            results.append(result)
            seen.append(self._obs)
            episodes += [replace(each, env_id=int(self.env_id[each.env_id])) for each in self.tracker.step(self._obs)]
            for name, metric in self._obs.metrics.items():
                metrics.setdefault(name, Metric()).merge(metric)

        outcomes = seen[1:]

        def stack(name: str) -> Tensor:
            return torch.stack([torch.from_numpy(getattr(obs, name)) for obs in outcomes]).to(self.device)

        truncated = stack("truncated")
        obs = ObsBatch.cat(frames)
        offsets = {name: mask.actors.offsets for name, mask in obs.action_masks.items()}  # every actor chooses once
        rollout = Rollout(
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
            rewards=stack("reward"),
            terminated=stack("done") & ~truncated,
            truncated=truncated,
            final_values=self._final_values(outcomes),
            last_values=self.net.value(ObsBatch.from_vec_obs(self._obs, self.device)),
            elapsed_steps=np.stack([obs.elapsed_step for obs in seen[:-1]]),
            env_id=self.env_id,
            episodes=episodes,
            metrics=metrics,
            env_seconds=env_seconds,
            act_seconds=act_seconds,
        )
        if self.recorder is not None:
            self.recorder.add(_frames(rollout, seen[:-1], results, self.value_unit))
            self.recorder.flush()
        return rollout

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
        try:
            self._obs = self.vec_env.load_state(state["environments"])
        except ValueError as error:  # the environment has changed since
            return str(error)
        self.tracker.load_state(state["episodes"])
        return None

    def _final_values(self, outcomes: list[VecObs]) -> Tensor:
        """(T, N): values of the last observations of truncated episodes, all evaluated in one batch."""
        values = torch.zeros(len(outcomes), len(self.vec_env), device=self.device)
        ended = [(t, obs.final) for t, obs in enumerate(outcomes) if obs.final is not None]
        if ended:
            steps = torch.cat([torch.full((len(final),), t) for t, final in ended]).to(self.device)
            envs = torch.cat([torch.from_numpy(final.env_id) for _, final in ended]).to(self.device)
            batch = ObsBatch.cat([ObsBatch.from_vec_obs(final, self.device) for _, final in ended])
            values[steps, envs] = self.net.value(batch)
        return values


def _frames(rollout: Rollout, seen: list[VecObs], results: list[ActResult], value_unit: float) -> Frames:
    """The rollout as frames to record, with the logits that `results` have."""
    logits = [result.logits for result in results if result.logits is not None]
    return Frames(
        obs=rollout.obs,
        env_id=torch.cat([torch.from_numpy(obs.env_id) for obs in seen]),
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
