"""Builds what plays and learns from the sections of the settings: for a run, for Ray's actors and for cloning."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import torch

from enn_ppo.ppo import Term
from enn_ppo.settings.config import PPOConfig, RolloutConfig
from enn_ppo.settings.learning import OptimConfig
from enn_ppo.training.environment import BoundEnvironment
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.learning.auxiliary import TargetLoss
from enn_ppo.training.learning.learner import Learner
from enn_ppo.training.learning.optimizer import make_optimizer
from enn_ppo.training.learning.teacher import TeacherLoss, load_teacher
from enn_ppo.training.ranks import ALONE, Ranks
from entity_gym.actions import ActionSpace
from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.spaces import ObsSpace
from rogue_net import RogueNet, RogueNetConfig


def make_pools(env: BoundEnvironment, rollout: RolloutConfig, seed: int, first_env: int = 0) -> list[ThreadedVecEnv]:
    """Make the environments of a run: one pool, or one for each block.

    Args:
        env: the environment.
        rollout: number of environments, blocks, threads or processes.
        seed: of the run.
        first_env: number of the first of these environments in the run.

    Raises:
        ValueError: an environment cannot be made, or breaks its contract.
    """
    size, in_turns = rollout.block_size, rollout.pipeline > 1
    with ExitStack() as stack:
        pools: list[ThreadedVecEnv] = []
        for first in range(0, rollout.num_envs, size):
            pools.append(
                ThreadedVecEnv(
                    env.source,
                    size,
                    rollout.num_threads,
                    seed=seed,
                    num_processes=rollout.num_processes,
                    background=in_turns,
                    first_env=first_env + first,
                    group_size=rollout.group_size,
                )
            )
            stack.callback(pools[-1].close)
        stack.pop_all()  # the caller closes the pools
    return pools


def make_model(
    net: RogueNetConfig, value_net: RogueNetConfig | None, spaces: tuple[ObsSpace, Mapping[str, ActionSpace]], seed: int
) -> ActorCritic:
    """Make new networks, initialised on the CPU so that all devices start from the same weights.

    Raises:
        ValueError: the networks do not fit into memory.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            policy = RogueNet(net, *spaces)
            critic = RogueNet(value_net, *spaces) if value_net else None
        except RuntimeError as error:  # torch has no class of its own for this on the CPU
            if "allocate memory" not in str(error):
                raise
            size = f"net.d_model={net.d_model} and net.n_layer={net.n_layer}"
            raise ValueError(f"networks of {size} do not fit into memory; make them smaller: {error}") from error
        return ActorCritic(policy, critic)


def make_learner(
    model: ActorCritic,
    optim: OptimConfig,
    ppo: PPOConfig,
    *,
    seed: int,
    ranks: Ranks = ALONE,
    num_players: int = 1,
    group_size: int = 1,
) -> Learner:
    """Make the learner of a policy that plays `num_players` players of each environment, on the device of its networks.

    Raises:
        ValueError: the environment has no targets, or the teacher does not fit it.
    """
    policy, device = model.policy, model.value_head.deviation.device
    if device.type == "cuda":
        nets = [policy] if model.value_net is None else [policy, model.value_net]
        torch.set_float32_matmul_precision("high" if any(net.config.precision == "tf32" for net in nets) else "highest")
    spaces = policy.obs_space, policy.action_space
    return Learner(
        model,
        make_optimizer(model, optim),
        optim,
        ppo,
        policy.action_space,
        terms_of(ppo, *spaces),
        load_teacher(ppo.teacher, *spaces, device) if ppo.teacher is not None else None,
        seed=seed,
        num_players=num_players,
        group_size=group_size,
        ranks=ranks,
    )


def terms_of(ppo: PPOConfig, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> list[Term]:
    """The terms that the settings add to PPO's loss; `enn_ppo/training/learning/auxiliary.py` is an example.

    Raises:
        ValueError: the environment has no targets.
    """
    terms: list[Term] = []
    if ppo.teacher is not None:
        terms.append(TeacherLoss())
    if ppo.target_coef != 0:
        if not obs_space.targets:
            raise ValueError(f"ppo.target_coef={ppo.target_coef}: the environment declares no targets to predict")
        terms.append(TargetLoss())
    return terms
