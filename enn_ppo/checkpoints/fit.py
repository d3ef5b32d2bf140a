"""A checkpoint's policy in an environment that may have gained something since, to act and not to learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.policy import load_net
from enn_ppo.checkpoints.transfer import transfer_from
from enn_ppo.environment import adapt_spaces
from entity_gym.actions import ActionSpace
from entity_gym.batch.saving import spaces_difference, spaces_to_dict
from entity_gym.spaces import ObsSpace
from rogue_net import RogueNet, RogueNetConfig
from rogue_net.adaptor import ObsAdaptor


class FittedPolicy(NamedTuple):
    """A policy that can act in an environment."""

    net: RogueNet
    adaptor: ObsAdaptor  # shows it the environment's observations as it knows them
    news: str  # what is not as it was in training, as one line; empty if nothing is


def fit_policy(
    checkpoint: Checkpoint,
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    device: torch.device,
    env: str,
    network: str = "policy",
) -> FittedPolicy:
    """The policy of a checkpoint, or another of its networks, for an environment with these spaces.

    New features are ignored, and entities of new types are hidden from all others, so that these act as they learned to. New
    actions and choices are as `enn_ppo.checkpoints.transfer` says; what they start as is always the same.

    Args:
        checkpoint: whose policy.
        obs_space: what the environment shows.
        action_space: what can be done in it.
        device: where it acts.
        env: the environment's name, for messages.
        network: `policy`, or one of the checkpoint's `more_weights`.

    Raises:
        ValueError: the environment does not show what the policy needs, or does not take its actions; names the first.
    """
    saved = load_net(checkpoint, network, device)
    return fit_net(saved, obs_space, action_space, device, f"checkpoint {checkpoint.path}", env)


def fit_net(
    saved: RogueNet,
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    device: torch.device,
    name: str,
    env: str,
) -> FittedPolicy:
    """The same of a network that is called `name` in messages. Where nothing has changed, it is that network itself."""
    saved_spaces = spaces_to_dict(saved.obs_space, saved.action_space)
    spaces = adapt_spaces(saved_spaces, obs_space, action_space, name=name, env=env)
    news = "; ".join(line for line in (spaces.adaptor.describe(), *spaces.news) if line)
    if spaces_difference(saved_spaces, spaces_to_dict(spaces.obs_space, spaces.action_space)) is None:
        return FittedPolicy(saved.to(device), spaces.adaptor, news)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = RogueNet(_without_positions_of(spaces.untrained, saved.config), spaces.obs_space, spaces.action_space)
    transfer_from(saved, net, name, env)
    return FittedPolicy(net.to(device), spaces.adaptor, news)


def _without_positions_of(untrained: list[str], config: RogueNetConfig) -> RogueNetConfig:
    """Settings in which types that nobody sees need no position features."""
    if config.relpos.kind == "none":
        return config
    excluded = tuple(dict.fromkeys((*config.relpos.exclude_entities, *untrained)))
    return replace(config, relpos=replace(config.relpos, exclude_entities=excluded))
