"""Samplers, which own the environments and collect rollouts.

`LocalSampler` plays in this process: all environments together, or in blocks (`rollout.block`, `rollout.pipeline`), each a
separate pool, of which one or two are played at a time. Random numbers depend only on the environment's number and the step.
The last bits of the policy's outputs depend on which environments share a batch, and so on the blocks: the same blocks in other
processes give the same rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch

from enn_ppo.rollout import EnvBlock, Rollout, Watch, play, play_all
from enn_ppo.training.learning.actor_critic import ActingNet
from enn_ppo.training.players import Cast
from enn_ppo.training.random_keys import Purpose, random_key
from enn_ppo.training.ranks import ALONE, Ranks
from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.watchdog import Watchdog
from entity_gym.actions import ActionSpace
from entity_gym.pools.vec_env import VecEnv
from entity_gym.spaces import ObsSpace

#: Environment parameters: name -> one value per environment.
Parameters = Mapping[str, Sequence[Any]]


class LocalSampler:
    """Plays in environments of this process, in one or several blocks.

    With several ranks, parameters, seeds and states cover the environments of all ranks, and each rank steps an equal share. One
    process with blocks of the same size gives the same rollouts.

    Args:
        pools: the blocks of this rank, in the order of environment numbers.
        nets: policy name -> policy and value function; not changed.
        first_env: number of this rank's first environment in the run.
        cast: the players that each policy plays; None: one policy plays all.
        pipeline: number of blocks that are played in turns; divides the number of blocks.
    """

    def __init__(
        self,
        pools: Sequence[VecEnv],
        nets: Mapping[str, ActingNet],
        device: torch.device,
        seed: int,
        first_env: int = 0,
        *,
        cast: Cast | None = None,
        pipeline: int = 1,
        ranks: Ranks = ALONE,
    ) -> None:
        assert len(pools) % pipeline == 0
        self._watchdog = Watchdog()
        self.blocks: list[EnvBlock] = []
        for pool in pools:
            self.blocks.append(EnvBlock(pool, nets, device, first_env, cast=cast, watchdog=self._watchdog))
            first_env += len(pool)
        self._seed, self._cast, self._pipeline, self._ranks = seed, cast, pipeline, ranks
        self._share = sum(len(pool) for pool in pools)
        self._is_playing = False  # and stays so when a rollout breaks off

    def obs_space(self) -> ObsSpace:
        """Observation space of the environments."""
        return self.blocks[0].vec_env.obs_space()

    def action_space(self) -> Mapping[str, ActionSpace]:
        """Action name -> its space."""
        return self.blocks[0].vec_env.action_space()

    def reset(self, seed: int, parameters: Parameters) -> None:
        """Reset all environments; `parameters` are those of their episodes, and may be empty."""

        def reset() -> None:
            for block, part in zip(self.blocks, self._split(parameters), strict=True):
                block.reset(seed, part or None)

        self._ranks.each(reset)

    def collect(self, step: int, steps: int, parameters: Parameters, watch: Watch = play_all) -> dict[str, Rollout]:
        """Play `steps` steps in every environment, or fewer if `watch` ends the rollout. Returns policy -> its rollout.

        Several ranks, and blocks that are played one after the other, always play all steps.

        Args:
            step: environment steps trained so far; keys the sampling noise together with the run's seed.
            steps: of each environment.
            parameters: of episodes that begin from now on; may be empty.
            watch: ends the rollout.
        """
        has_groups = self.blocks[0].vec_env.slots.options.group_size > 1
        seed = random_key(self._seed, step, Purpose.EPISODES) >> 32  # 31 bits: some libraries take no larger seeds

        def prepare() -> None:
            for block, part in zip(self.blocks, self._split(parameters), strict=True):
                if part:
                    block.vec_env.configure(part)
                if has_groups:
                    block.vec_env.seed(seed)

        if parameters or has_groups:
            self._ranks.each(prepare)
        num_turns, key = len(self.blocks) // self._pipeline, random_key(self._seed, step, Purpose.ACTING)
        can_end = num_turns == 1 and self._ranks.size == 1  # otherwise some environments would play fewer steps

        def watch_turn(turn: int, played: float) -> bool:
            return watch((turn + played) / num_turns) and can_end

        self._is_playing = True
        played: list[dict[str, Rollout]] = []
        for turn in range(num_turns):
            blocks = self.blocks[turn * self._pipeline :][: self._pipeline]
            played += self._ranks.each(partial(play, blocks, steps, key, partial(watch_turn, turn)))
        self._is_playing = False
        return {name: Rollout.merged([each[name] for each in played]) for name in played[0]}

    def state(self) -> dict[str, Any]:
        """State of the environments, for `load_state`."""
        if self._is_playing:  # a rollout has broken off
            return {"blocks": [None] * (len(self.blocks) * self._ranks.size)}
        own = self._ranks.each(lambda: [block_state(block) for block in self.blocks])
        states = [state for blocks in self._ranks.gather_objects(own) for state in blocks]
        return states[0] if len(states) == 1 else {"blocks": states}

    def load_state(self, state: Mapping[str, Any]) -> str | None:
        """Restore `state()`. Returns the reason if that is impossible, else None; see `load_block`."""
        saved, own, ranks = state.get("blocks", [state]), len(self.blocks), self._ranks
        if problem := blocks_problem(saved, own * ranks.size):
            return problem

        def load() -> list[str | None]:
            part = saved[own * ranks.rank :][:own]
            return [load_block(block, each) for block, each in zip(self.blocks, part, strict=True)]

        return next((each for problems in ranks.gather_objects(ranks.each(load)) for each in problems if each), None)

    def metrics(self) -> Row:
        """Metrics of its own; on Ray there are some."""
        return {}

    def close(self) -> None:
        """Release everything. May be called twice."""
        with ExitStack() as stack:
            stack.callback(self._watchdog.close)
            for block in self.blocks:
                stack.callback(block.vec_env.close)

    def _split(self, parameters: Parameters) -> list[dict[str, Sequence[Any]]]:
        """The parameters of each block of this rank.

        Raises:
            ValueError: a parameter changes which player owns which entity, and there are several policies.
        """
        if self._cast and (name := next((name for name in self._cast.mapping.fixed if name in parameters), None)):
            raise ValueError(
                f"env.info has {name!r}, which decides which player owns which entity: with policies={self._cast.policies} it "
                "cannot change between episodes"
            )
        parts, begin = [], self._ranks.rank * self._share
        for block in self.blocks:
            end = begin + len(block.vec_env)
            parts.append({name: values[begin:end] for name, values in parameters.items()})
            begin = end
        return parts


def block_state(block: EnvBlock) -> dict[str, Any]:
    """The state of the environments, their episodes and what policies remember; None for environments that cannot be saved."""
    return {
        "environments": block.vec_env.state() if block.vec_env.can_save else None,
        "episodes": block.tracker.state(),
        "policies": [states.state() for states in block.states],
    }


def load_block(block: EnvBlock, state: Mapping[str, Any]) -> str | None:
    """Restore the environments from `block_state()`.

    Returns:
        The reason why the environments must be reset instead; None if they were restored.
    """
    num_envs = len(state["episodes"]["lengths"])
    if state["environments"] is None or not block.vec_env.can_save:
        return "the environment has no state() and load_state()"
    if num_envs != len(block.vec_env):
        return f"the checkpoint has {num_envs} of them, and rollout.num_envs is {len(block.vec_env)}"
    if np.ndim(state["episodes"]["rewards"]) != block.tracker.rewards.ndim:
        return "the checkpoint has one policy and the run several, or the reverse"
    try:
        block.obs = block.vec_env.load_state(state["environments"])
    except ValueError as error:  # the environment has changed since
        return str(error)
    block.tracker.load_state(state["episodes"])
    for states, saved in zip(block.states, state["policies"], strict=True):
        states.load_state(saved, block.device)
    return None


def blocks_problem(saved: Sequence[Mapping[str, Any] | None], num_blocks: int) -> str | None:
    """Reason why `num_blocks` blocks cannot be restored from a checkpoint's blocks; None if they can."""
    if len(saved) != num_blocks:
        return f"they were saved in {len(saved)} parts, and this run has {num_blocks} (blocks, runners or ranks)"
    if None in saved:
        return "some of them were playing, or being started again, when the checkpoint was written"
    return None
