"""Adapting a trained policy, for inference, to an environment whose spaces have grown since training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.policy import load_net
from enn_ppo.checkpoints.transfer import gains, transfer_from
from entity_gym.actions import ActionSpace
from entity_gym.actions.kind import has_global_entity
from entity_gym.batch.saving import spaces_difference, spaces_to_dict
from entity_gym.spaces import GLOBAL_ENTITY, Entity, ObsSpace
from rogue_net import RogueNet
from rogue_net.transfer.adaptor import ObsAdaptor


class FittedPolicy(NamedTuple):
    """A policy adapted to the spaces of an environment."""

    net: RogueNet
    adaptor: ObsAdaptor  # converts the environment's observations to the network's space
    news: str  # differences from training, as one line; empty if there are none


def fit_policy(
    checkpoint: Checkpoint,
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    device: torch.device,
    env: str,
    network: str = "policy",
) -> FittedPolicy:
    """Fit a checkpoint's policy, or another of its networks, to an environment with these spaces.

    New features are ignored, and entities of new types are hidden from known ones, so that actors behave as trained. New actions
    and choices are initialised as in `enn_ppo.checkpoints.transfer`, with a fixed seed. `env` is the environment's name, for
    messages; `network` is `policy` or one of the checkpoint's `more_weights`.

    Raises:
        ValueError: the environment lacks an entity type, feature or action of the policy; the message names the first.
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
    """Fit a network, called `name` in messages; see `fit_policy`. Equal spaces return the network itself."""
    seen, adaptor, news = adapt_spaces(saved.obs_space, saved.action_space, obs_space, action_space, name=name, env=env)
    spaces = spaces_to_dict(saved.obs_space, saved.action_space), spaces_to_dict(seen, action_space)
    if spaces_difference(*spaces) is None:
        return FittedPolicy(saved.to(device), adaptor, news)
    config = saved.config
    if config.relpos.kind != "none":  # hidden types need no position features
        excluded = tuple(dict.fromkeys((*config.relpos.exclude_entities, *adaptor.hidden)))
        config = replace(config, relpos=replace(config.relpos, exclude_entities=excluded))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = RogueNet(config, seen, dict(action_space))
    transfer_from(saved, net, name, env)
    return FittedPolicy(net.to(device), adaptor, news)


def adapt_spaces(
    known: ObsSpace,
    known_actions: Mapping[str, ActionSpace],
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    *,
    name: str,
    env: str,
) -> tuple[ObsSpace, ObsAdaptor, str]:
    """Fit the spaces of training to those of an environment whose spaces may have grown since.

    `name` is the policy in messages, such as "checkpoint out/a/checkpoints/step_000000000100", and `env` the environment.

    Returns:
        The network's observation space (known types with their known features, and all new types); a conversion of observations
        to that space, which hides the new types; the differences from training, as one line.

    Raises:
        ValueError: the environment lacks an entity type, feature or action of the policy; the message names the first.
    """
    try:
        entities = {
            each: _known_features(known.entities[each], now) if each in known.entities else now
            for each, now in obs_space.entities.items()
        }
        everywhere = _known_features(
            Entity(known.global_features, known.global_kinds), Entity(obs_space.global_features, obs_space.global_kinds)
        )
        seen = ObsSpace({**known.entities, **entities}, everywhere.features, everywhere.kinds, known.targets)
        untrained = [each for each in obs_space.entities if each not in known.entities]
        if untrained and (gone := [each for each in known.entities if each not in obs_space.entities]):
            raise ValueError(f"the entity types {gone} are gone, and {untrained} are new")
        if has_global_entity(seen, action_space) and not has_global_entity(known, known_actions):
            untrained.append(GLOBAL_ENTITY)
        adaptor = ObsAdaptor(seen, obs_space, action_space, untrained)
        of_known = {each: seen.entities[each] for each in known.entities}
        news = gains(known, known_actions, ObsSpace(of_known, everywhere.features, everywhere.kinds), action_space)
    except ValueError as error:
        raise ValueError(f"{name} belongs to another environment than {env}: {error}") from None
    return seen, adaptor, "; ".join(line for line in (adaptor.describe(), *news) if line)


def _known_features(known: Entity, now: Entity) -> Entity:
    """The known features, with their present kinds."""
    return Entity(known.features, {name: kind for name, kind in now.kinds.items() if name in known.features})
