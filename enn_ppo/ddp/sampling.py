"""The sampler of a rank, which has a part of all environments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from enn_ppo.actor_critic import Actor
from enn_ppo.config import RolloutConfig
from enn_ppo.environment import BoundEnvironment
from enn_ppo.ranks import Ranks
from enn_ppo.rollout import Rollout
from enn_ppo.sampling import LocalSampler, Parameters, blocks_problem, make_pools
from entity_gym.pools.vec_env import VecEnv


def make_own_pools(env: BoundEnvironment, rollout: RolloutConfig, seed: int, ranks: Ranks) -> list[VecEnv]:
    """The environments of this rank: an equal share of `rollout.num_envs`, with the numbers after those of the previous rank.

    Raises:
        ValueError: see `make_pools`.
    """
    share = rollout.num_envs // ranks.size
    return make_pools(env, replace(rollout, num_envs=share), seed, first_env=ranks.rank * share)


class RankSampler(LocalSampler):
    """Plays in the environments of this rank. Parameters, seeds and states are those of all ranks.

    The environments of a rank are one or several blocks. A run of one process with blocks of that size gives the same rollouts.

    Args:
        pools: of this rank.
        net: policy and value function; not changed.
        device: of the policy.
        seed: of the run.
        ranks: all ranks; each has as many pools of the same size.
        pipeline: number of blocks that each rank plays in turns.
    """

    def __init__(
        self,
        pools: list[VecEnv],
        net: Actor,
        device: torch.device,
        seed: int,
        ranks: Ranks,
        pipeline: int = 1,
    ) -> None:
        self._ranks = ranks
        self._share = sum(len(pool) for pool in pools)
        super().__init__(pools, net, device, seed, ranks.rank * self._share, pipeline)

    def configure(self, parameters: Parameters) -> None:
        self._ranks.each(lambda: super(RankSampler, self).configure(self._own(parameters)))

    def reset(self, seed: int, parameters: Parameters | None) -> None:
        own = self._own(parameters) if parameters else None
        self._ranks.each(lambda: super(RankSampler, self).reset(seed, own))

    def collect(self, steps: int) -> Rollout:
        return self._ranks.each(lambda: super(RankSampler, self).collect(steps))

    def state(self) -> dict[str, Any]:
        own = self._ranks.each(lambda: self.block_states())
        return {"blocks": [block for blocks in self._ranks.gather_objects(own) for block in blocks]}

    def load_state(self, state: Mapping[str, Any]) -> str | None:
        saved, own = state.get("blocks", [state]), len(self.blocks)
        if problem := blocks_problem(saved, own * self._ranks.size, f"{self._ranks.size} ranks make"):
            return problem
        part = {"blocks": saved[own * self._ranks.rank :][:own]}
        problem = self._ranks.each(lambda: super(RankSampler, self).load_state(part))
        return next((each for each in self._ranks.gather_objects(problem) if each), None)

    def _own(self, parameters: Parameters) -> Parameters:
        """This rank's part of the parameters of all environments."""
        begin = self._ranks.rank * self._share
        return {name: values[begin : begin + self._share] for name, values in parameters.items()}
