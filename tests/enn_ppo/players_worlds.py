"""Small boards for two players, and policies that always do the same, for the tests of opponents and self-play."""

from __future__ import annotations

import torch

from enn_ppo import RogueNetConfig
from entity_gym.envs.multi_snake import MultiSnake
from entity_gym.pools.pool import ThreadedVecEnv
from rogue_net import RogueNet

UP, DOWN, LEFT, RIGHT = range(4)
CPU = torch.device("cpu")
SNAKES = MultiSnake(board_size=4, num_snakes=2, num_players=2, max_snake_length=3, max_steps=12)


def snake_pool(num_envs: int = 6, seed: int = 0) -> ThreadedVecEnv:
    return ThreadedVecEnv(SNAKES, num_envs, seed=seed)


def snake_net(seed: int = 0) -> RogueNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return RogueNet(RogueNetConfig(d_model=8, n_layer=1, n_head=1), SNAKES.obs_space(), SNAKES.action_space())


def always(choice: int) -> RogueNet:
    """A policy that takes one choice with a probability of all but 1e-8."""
    net = snake_net()
    for name, parameter in net.heads.named_parameters():
        if name.endswith("bias") and parameter.shape == (4,):
            with torch.no_grad():
                parameter[choice] = 20.0
            return net
    raise AssertionError("the head has no bias")
