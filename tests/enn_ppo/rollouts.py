"""One policy that plays in one pool, for tests that need a rollout."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from enn_ppo.rollout import EnvBlock, Rollout, play
from enn_ppo.training.learning.actor_critic import ActingNet
from enn_ppo.training.sampling import LocalSampler, block_state, load_block
from entity_gym.pools.vec_env import VecEnv


class Collector(EnvBlock):
    """Collects rollouts of one policy."""

    def __init__(self, vec_env: VecEnv, net: ActingNet, device: torch.device, seed: int, first_env: int = 0) -> None:
        super().__init__(vec_env, {"": net}, device, first_env)
        self.seed_noise(seed)

    def seed_noise(self, seed: int) -> None:
        """Key the noise of the next rollouts, each with a number of its own."""
        self._seeds = itertools.count(1000 * seed)

    def collect(self, steps: int) -> Rollout:
        """Play `steps` steps in every environment. Episodes go on from one rollout to the next."""
        return play([self], steps, next(self._seeds))[0][""]

    def state(self) -> dict[str, Any]:
        return block_state(self)

    def load_state(self, state: Mapping[str, Any]) -> str | None:
        return load_block(self, state)


class OnePolicySampler(LocalSampler):
    """Collects rollouts of one policy."""

    def __init__(self, pools: Sequence[VecEnv], net: ActingNet, *arguments: Any, **options: Any) -> None:
        super().__init__(pools, {"": net}, *arguments, **options)
        self.step = 0

    def collect(self, steps: int) -> Rollout:  # type: ignore[override]
        """Play `steps` steps in every environment. Each rollout has noise of its own."""
        self.step += 1
        return super().collect(self.step - 1, steps, {})[""]
