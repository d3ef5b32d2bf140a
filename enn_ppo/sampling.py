"""Samplers: they own the environments and collect rollouts.

`LocalSampler` plays in this process: all environments together, or in blocks (`rollout.block`, `rollout.pipeline`), each with
a pool of its own, of which one or two are played at a time. Random numbers depend only on the environment's number and the step.
The last bits of the policy's outputs depend on which environments share a batch, and so on the blocks: the same blocks in other
processes give the same rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import torch

from enn_ppo.actor_critic import Actor
from enn_ppo.config import RolloutConfig
from enn_ppo.environment import BoundEnvironment
from enn_ppo.random_keys import Purpose, random_key
from enn_ppo.rollout import Collector, EnvBlock, Rollout, play
from enn_ppo.tracking.logger import Row
from entity_gym.actions import ActionSpace
from entity_gym.pools.episodes import Episode
from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.pools.vec_env import EnvInfo, VecEnv
from entity_gym.spaces import ObsSpace

#: Parameters of environments: name -> one value for each.
Parameters = Mapping[str, Sequence[Any]]
T = TypeVar("T")


class Sampler(Protocol):
    """Collects rollouts, and keeps the environments between them."""

    def obs_space(self) -> ObsSpace:
        """Observation space of the environments."""

    def action_space(self) -> Mapping[str, ActionSpace]:
        """Action name -> its space."""

    def key(self, step: int) -> None:
        """Seed the sampling of the next rollout with the run's seed and the step."""

    def configure(self, parameters: Parameters) -> None:
        """Set the parameters of episodes that begin from now on."""

    def reset(self, seed: int, parameters: Parameters | None) -> None:
        """Reset all environments."""

    def collect(self, steps: int) -> Any:
        """Play `steps` steps in every environment. Returns a `Rollout`, or with Ray a reference to one."""

    def state(self) -> dict[str, Any]:
        """State of the environments, for `load_state`."""

    def load_state(self, state: Mapping[str, Any]) -> str | None:
        """Continue from what `state` returned. Returns why that is not possible, or None. See `EnvBlock.load_state`."""

    def final_episodes(self) -> list[Episode]:
        """Play `distributed.final_episodes` episodes after training, if that is set."""

    def metrics(self) -> Row:
        """Metrics beside those of the rollouts, since the last call."""

    def tell(self, say: Callable[[str], None]) -> None:
        """Use `say` for messages to the user from now on."""

    def threads_report(self) -> str | None:
        """A line about the choice of `rollout.num_threads=auto`; None if it is not auto."""

    def close(self) -> None:
        """Release everything. May be called twice."""


class BlockSampler(Generic[T]):
    """Environments in this process, in blocks. Subclasses decide what a block returns.

    Args:
        blocks: in the order of their environments.
        seed: of the run.
        pipeline: number of blocks that are played in turns; divides the number of blocks.
    """

    def __init__(self, blocks: Sequence[EnvBlock[T]], seed: int, pipeline: int = 1) -> None:
        assert len(blocks) % pipeline == 0
        self.blocks, self._seed, self._pipeline = blocks, seed, pipeline

    def obs_space(self) -> ObsSpace:
        return self.blocks[0].vec_env.obs_space()

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self.blocks[0].vec_env.action_space()

    def key(self, step: int) -> None:
        for block in self.blocks:
            block.seed_noise(random_key(self._seed, step, Purpose.ACTING))

    def configure(self, parameters: Parameters) -> None:
        for block, part in zip(self.blocks, self._split(parameters), strict=True):
            block.vec_env.configure(part)

    def reset(self, seed: int, parameters: Parameters | None) -> None:
        parts: Sequence[EnvInfo | None] = self._split(parameters) if parameters else [None] * len(self.blocks)
        for block, part in zip(self.blocks, parts, strict=True):
            block.reset(seed, part)

    def state(self) -> dict[str, Any]:
        states = self.block_states()
        return states[0] if len(states) == 1 else {"blocks": states}

    def block_states(self) -> list[dict[str, Any]]:
        """State of each block's environments."""
        return [block.state() for block in self.blocks]

    def load_state(self, state: Mapping[str, Any]) -> str | None:
        saved = state.get("blocks", [state])
        because = "rollout.block makes" if self._pipeline == 1 else "rollout.pipeline makes"
        if problem := blocks_problem(saved, len(self.blocks), because):
            return problem
        problems = [block.load_state(each) for block, each in zip(self.blocks, saved, strict=True)]
        return next((problem for problem in problems if problem), None)

    def final_episodes(self) -> list[Episode]:
        return []

    def metrics(self) -> Row:
        return {}

    def tell(self, say: Callable[[str], None]) -> None:
        pass

    def threads_report(self) -> str | None:
        pool = self.blocks[0].vec_env
        return pool.threads_report if isinstance(pool, ThreadedVecEnv) else None

    def collect_blocks(self, steps: int) -> list[T]:
        """Play `steps` steps in every environment; one result for each block."""
        played: list[T] = []
        for first in range(0, len(self.blocks), self._pipeline):
            played += play(self.blocks[first : first + self._pipeline], steps)
        return played

    def close(self) -> None:
        with ExitStack() as stack:
            for block in self.blocks:
                stack.callback(block.close)

    def _split(self, parameters: Parameters) -> list[dict[str, Sequence[Any]]]:
        """Each block's part of the parameters."""
        parts, begin = [], 0
        for block in self.blocks:
            end = begin + len(block.vec_env)
            parts.append({name: values[begin:end] for name, values in parameters.items()})
            begin = end
        return parts


class LocalSampler(BlockSampler[Rollout]):
    """One policy that plays in environments of this process.

    Args:
        pools: of environments, in the order of their numbers; each pool is a block.
        net: policy and value function; not changed.
        device: of the policy.
        seed: of the run.
        first_env: number of the first environment, if these are a part of all environments.
        pipeline: number of blocks that are played in turns.
        graphs: whether acting uses CUDA graphs.
        logits: whether rollouts keep all logits.
    """

    def __init__(
        self,
        pools: Sequence[VecEnv],
        net: Actor,
        device: torch.device,
        seed: int,
        first_env: int = 0,
        pipeline: int = 1,
        *,
        graphs: bool = False,
        logits: bool = False,
    ) -> None:
        blocks = []
        for pool in pools:
            blocks.append(Collector(pool, net, device, seed, first_env, graphs=graphs, logits=logits))
            first_env += len(pool)
        super().__init__(blocks, seed, pipeline)

    def collect(self, steps: int) -> Rollout:
        return Rollout.merged(self.collect_blocks(steps))


def blocks_problem(
    saved: Sequence[Mapping[str, Any] | None], num_blocks: int, because: str = "rollout.block makes"
) -> str | None:
    """Reason why `num_blocks` blocks cannot continue from the blocks that a checkpoint holds; None if they can."""
    if len(saved) != num_blocks:
        plural = "s" if len(saved) > 1 else ""
        sizes = [len(each["episodes"]["lengths"]) for each in saved if each]
        of_size = f" of {sizes[0]} (rollout.block={sizes[0]})" if sizes else ""
        return f"the checkpoint has them in {len(saved)} block{plural}{of_size}, and {because} {num_blocks}"
    if None in saved:
        return "some of them were playing, or being started again, when the checkpoint was written"
    return None


def make_pools(env: BoundEnvironment, rollout: RolloutConfig, seed: int, first_env: int = 0) -> list[VecEnv]:
    """Make the environments of a run: one pool, or one for each block.

    Args:
        env: the environment.
        rollout: number of environments, blocks, threads or processes.
        seed: of the run.
        first_env: number of the first environment, if these are a part of all environments.

    Raises:
        ValueError: an environment cannot be made, or breaks its contract.
    """
    size = rollout.block_size
    of_block = replace(rollout, num_envs=size, block=None, pipeline=1)
    in_turns = rollout.pipeline > 1
    with ExitStack() as stack:
        pools: list[VecEnv] = []
        for first in range(0, rollout.num_envs, size):
            pools.append(env.make_vec_env(of_block, seed, first_env + first, background=in_turns))
            stack.callback(pools[-1].close)
        stack.pop_all()  # they belong to the caller now
    return pools
