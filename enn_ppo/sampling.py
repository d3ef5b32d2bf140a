"""Where rollouts come from.

`TrainState` asks a `Sampler`. `LocalSampler` plays in this process: all environments at once, or in blocks (`rollout.block`,
`rollout.pipeline`), each with a pool of its own, and one or two of them at a time. What an environment and a policy draw depends
on the environment's number and the step alone, and what the policy computes, to the last bit, on who is in the same block: so
the same blocks elsewhere play the same.
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
    """Carries environments from one rollout to the next."""

    def obs_space(self) -> ObsSpace:
        """What they may show."""

    def action_space(self) -> Mapping[str, ActionSpace]:
        """Their actions by name."""

    def key(self, step: int) -> None:
        """Seed the sampling of the next rollout by the run's seed and the step."""

    def configure(self, parameters: Parameters) -> None:
        """Set parameters of coming episodes."""

    def reset(self, seed: int, parameters: Parameters | None) -> None:
        """Start new episodes everywhere."""

    def collect(self, steps: int) -> Any:
        """Play so many steps in every environment: a `Rollout`, or for learners elsewhere what they can find one by."""

    def state(self) -> dict[str, Any]:
        """Where the environments are, for `load_state`."""

    def load_state(self, state: Mapping[str, Any]) -> str | None:
        """Continue from what `state` returned; why that is not possible, or None. See `EnvBlock.load_state`."""

    def final_episodes(self) -> list[Episode]:
        """Episodes that are played when training is done, if any are asked for."""

    def metrics(self) -> Row:
        """What there is to tell beside the rollouts, since it was last asked for."""

    def tell(self, say: Callable[[str], None]) -> None:
        """Say by `say` what happens from now on and is of interest to the user."""

    def threads_report(self) -> str | None:
        """What `rollout.num_threads=auto` has found; None where nothing was looked for."""

    def close(self) -> None:
        """Release everything. May be called twice."""


class BlockSampler(Generic[T]):
    """Environments in this process. Subclasses say what a block plays.

    Args:
        blocks: in the order of their environments.
        seed: of the run.
        pipeline: blocks that are played in turns; the number of all is a multiple.
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
        """Where the environments of each block are."""
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
        """Play so many steps in every environment; what was played in each block."""
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
    """Environments in this process in which one policy plays.

    Args:
        pools: of environments, as they are numbered through; of several pools each is a block.
        net: the policy, and its values; evaluated, never changed.
        device: where the policy is.
        seed: of the run.
        first_env: the number of the first environment, where these are a part of more.
        pipeline: blocks that are played in turns.
        graphs: whether acting is recorded as CUDA graphs.
        logits: whether rollouts keep the logits of all choices.
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
    """Why so many blocks cannot go on from the states that a checkpoint has of its own; None if they can."""
    if len(saved) != num_blocks:
        plural = "s" if len(saved) > 1 else ""
        sizes = [len(each["episodes"]["lengths"]) for each in saved if each]
        of_size = f" of {sizes[0]} (rollout.block={sizes[0]})" if sizes else ""
        return f"the checkpoint has them in {len(saved)} block{plural}{of_size}, and {because} {num_blocks}"
    if None in saved:
        return "some of them were playing, or being started again, when the checkpoint was written"
    return None


def make_pools(env: BoundEnvironment, rollout: RolloutConfig, seed: int, first_env: int = 0) -> list[VecEnv]:
    """The environments that `rollout` asks for: one pool, or one for each block.

    Args:
        env: what to make.
        rollout: how many, and how.
        seed: of the run.
        first_env: the number of the first environment, where these are a part of more.

    Raises:
        ValueError: an environment cannot be made, or is not as it must be.
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
