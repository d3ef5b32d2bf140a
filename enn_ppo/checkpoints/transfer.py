"""Loading weights into a network for an environment that has gained features, entity types, actions or choices.

Weights are matched by name, in any order. New parts are initialised so that the policy acts as before, if possible:

    feature                 weight columns of 0: the policy acts the same. Its statistics are measured before training
    feature of a type       the type's vector becomes the bias of the LayerNorm that ends the embedding, whose weights are 0:
      without features        the policy acts the same
    value of a category     the mean of the known values' rows
    choice of an action     the mean of the known choices' rows, so that its logit is the mean of theirs: its probability is
                              at most 1 / choices, and the odds between known choices stay the same
    choice of no entity     a key of zeros
    entity type, action,    as in a new network: no weights can hide a new entity from known ones
      number of an action

The optimizer's moment estimates are transferred in the same way. New entries within a tensor are 0 for the gradient and the mean
of the known ones for its square: from 0, Adam's first steps would be several times too long.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.policy import load_net
from enn_ppo.settings.schema import flatten, to_dict
from enn_ppo.training.learning.moments import update_normalization
from enn_ppo.training.ranks import ALONE, Ranks
from entity_gym.actions import ActionSpace
from entity_gym.batch.saving import spaces_difference, spaces_to_dict
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, Category, Entity, ObsSpace
from rogue_net import ObsBatch, RogueNet
from rogue_net.config import RogueNetConfig
from rogue_net.inputs.normalization import RunningNorm
from rogue_net.transfer.weight_names import Axis, Weight, weight_names

#: Settings of a network that may change, since they do not affect its outputs, except by dropout.
FREE = ("embedding_dropout", "attention_dropout", "residual_dropout", "backend", "precision")


class Move(NamedTuple):
    """Mapping of entries of a checkpoint's tensor to entries of the network's tensor."""

    source: str  # name in the checkpoint's state dict
    taken: tuple[Tensor, ...]  # indices along each axis of the checkpoint's tensor
    places: tuple[Tensor, ...]  # indices along each axis of the network's tensor, as many as in `taken`

    def __call__(self, source: Tensor, background: Tensor) -> Tensor:
        """The network's tensor: entries of the source, and of `background` elsewhere."""
        result, grid = background.clone(), _grid(self.places)
        result[grid] = source[_grid(self.taken)].to(result).reshape(result[grid].shape)
        return result


@dataclass(frozen=True, eq=False)
class Transferred:
    """The result of loading a checkpoint's weights into a network."""

    net: RogueNet
    news: tuple[str, ...]  # a line for each entity type, feature, action or choice that is new
    changed: str | None  # first difference of the spaces, because of which saved environments cannot be restored
    moves: Mapping[str, Move]  # tensor of the network -> its source; new tensors have none
    parameters: Mapping[str, torch.Size]  # shapes of the checkpoint's parameters, in the order of its optimizer

    @property
    def unmeasured(self) -> Mapping[str, list[int]]:
        """Normalization module -> indices of its features without statistics."""
        missing = {}
        for name, module in self.net.named_modules():
            if isinstance(module, RunningNorm):
                move = self.moves.get(f"{name}.mean")
                known = set(move.places[0].tolist()) if move else set()
                missing[name] = [place for place in range(len(module.mean)) if place not in known]
        return {name: places for name, places in missing.items() if places}

    def measure(self, batch: ObsBatch, ranks: Ranks = ALONE) -> None:
        """Set the statistics of new features from a rollout; known features keep theirs, so the policy acts as before."""
        sample = copy.deepcopy(self.net)
        for module in sample.modules():
            if isinstance(module, RunningNorm):
                for buffer in (module.count, module.mean, module.squares):
                    buffer.zero_()
        update_normalization(sample, batch, ranks)
        for name, places in self.unmeasured.items():
            own, seen = self.net.get_submodule(name), sample.get_submodule(name)
            assert isinstance(own, RunningNorm) and isinstance(seen, RunningNorm)
            if seen.count > 0 and len(places) == len(own.mean):
                own.count.copy_(seen.count)
            share = own.count / seen.count.clamp(min=1)
            own.mean[places] = seen.mean[places]
            own.squares[places] = seen.squares[places] * share
            own.refresh()


def transfer_weights(net: RogueNet, checkpoint: Checkpoint, env: str, network: str = "policy") -> Transferred:
    """Load the weights of a checkpoint into `net`, on any device, matched by name.

    `network` is `policy` or one of the checkpoint's `more_weights`; `env` is the environment's name, for errors.

    Raises:
        ValueError: the environment lacks a part of the checkpoint's spaces, or has it of another kind, or the networks differ in
            settings; the message names the difference. The network is unchanged.
    """
    section = "net" if network == "policy" else network
    return transfer_from(load_net(checkpoint, network), net, f"checkpoint {checkpoint.path}", env, section)


def transfer_from(saved: RogueNet, net: RogueNet, name: str, env: str, section: str = "net") -> Transferred:
    """Load the weights of the network `saved`, which is on the CPU; see `transfer_weights`.

    Errors call `saved` by `name`, and the networks' settings by `section`.
    """
    try:
        news = gains(saved.obs_space, saved.action_space, net.obs_space, net.action_space)
    except ValueError as error:
        raise ValueError(f"{name} belongs to another environment than {env}: {error}") from None
    if GLOBAL_ENTITY in net.embedding.types and GLOBAL_ENTITY not in saved.embedding.types:
        news.append("the whole frame is now an entity of its own: untrained, and seen by all others")
    before, now = _settings(saved.config, saved), _settings(net.config, saved)
    for setting in before:
        if before[setting] != now[setting]:
            raise ValueError(
                f"{name} does not fit the network: {section}.{setting} is {before[setting]} in the checkpoint and "
                f"{now[setting]} now; resume with the settings of {section} that it was trained with"
            )
    moves = _moves(weight_names(saved), weight_names(net))
    net.load_state_dict(_moved_weights(saved, net, moves))
    spaces = (spaces_to_dict(each.obs_space, each.action_space) for each in (saved, net))
    parameters = {parameter: each.shape for parameter, each in saved.named_parameters()}
    return Transferred(net, tuple(news), spaces_difference(*spaces), moves, parameters)


def untransferred(net: RogueNet) -> Transferred:
    """The result for a network that is missing in the checkpoint."""
    return Transferred(net, (), None, {}, {})


def transfer_optimizer(
    optimizer: torch.optim.Optimizer, saved: Mapping[str, Any], networks: Sequence[Transferred]
) -> None:
    """Load the moment estimates of a checkpoint's optimizer; the settings of `optimizer` stay.

    Args:
        optimizer: AdamW of the parameters of `networks`, in this order; changed in place.
        saved: `state_dict()` of the checkpoint's optimizer, of the same networks or the first of them.
        networks: transfer results of the networks in the optimizer, in order.

    Raises:
        ValueError: a moment estimate has another shape than its parameter.
    """
    state: dict[int, dict[str, Any]] = {}
    number = first = 0  # parameters are numbered across networks
    for network in networks:
        before = {name: saved["state"].get(first + i) for i, name in enumerate(network.parameters)}
        for name, shape in network.parameters.items():
            for kind in ("exp_avg", "exp_avg_sq") if before[name] else ():
                if before[name][kind].shape != shape:
                    raise ValueError(
                        f"{kind} of {name} has the shape {list(before[name][kind].shape)}, not {list(shape)}"
                    )
        for name, parameter in network.net.named_parameters():
            move = network.moves.get(name)
            if move and (averages := before.get(move.source)):
                state[number] = {kind: _moved_average(kind, value, move, parameter) for kind, value in averages.items()}
            number += 1
        first += len(network.parameters)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _moved_average(kind: str, value: Any, move: Move, parameter: Tensor) -> Any:
    if not isinstance(value, Tensor) or value.dim() == 0:  # Adam's step count
        return copy.deepcopy(value)
    background = torch.zeros(parameter.shape, dtype=value.dtype)
    return move(value, background + value.mean() if kind == "exp_avg_sq" else background)


# --- Differences between environments ---


def gains(
    known: ObsSpace,
    known_actions: Mapping[str, ActionSpace],
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
) -> list[str]:
    """Describe each new entity type, feature, action and choice in a line.

    Raises:
        ValueError: a known one is missing, or of another kind; the message names it.
    """
    lines: list[str] = []
    _check_present("entity type", known.entities, obs_space.entities)
    for name, entity in obs_space.entities.items():
        if name in known.entities:
            lines += _gained_features(f" of {name!r}", known.entities[name], entity)
        else:
            lines.append(f"entity type {name!r} is new: untrained, and seen by all others")
    global_features = (Entity(each.global_features, each.global_kinds) for each in (known, obs_space))
    lines += _gained_features(" of the whole frame", *global_features)
    _check_present("action", known_actions, action_space)
    for name, space in action_space.items():
        if name not in known_actions:
            lines.append(f"action {name!r} is new: untrained")
        elif type(before := known_actions[name]) is not type(space):
            raise ValueError(f"the action {name!r} was a {type(before).__name__} and is a {type(space).__name__}")
        else:
            lines += space.changes_since(before, name)
    return lines


def _gained_features(owner: str, known: Entity, now: Entity) -> Iterator[str]:
    _check_present("feature", known.features, now.features, owner)
    for feature in known.features:
        before, after = known.kinds.get(feature), now.kinds.get(feature)
        if isinstance(before, Category) and isinstance(after, Category) and before.num < after.num:
            yield f"feature {feature!r}{owner} has {after.num} categories, {before.num} before: new ones count as the mean"
        elif before != after:
            was, is_ = before or "a plain number", after or "a plain number"
            raise ValueError(f"the feature {feature!r}{owner} was {was} and is {is_}")
    for feature in now.features:
        if feature not in known.features:
            yield f"feature {feature!r}{owner} is new: without effect at first"


def _check_present(what: str, known: Collection[str], now: Collection[str], owner: str = "") -> None:
    for name in known:
        if name not in now:
            raise ValueError(f"the {what} {name!r}{owner} is gone; {nearest(name, now)}")


def _settings(config: RogueNetConfig, saved: RogueNet) -> dict[str, Any]:
    """The settings that affect the entity types of `saved`."""
    settings = {name: value for name, value in flatten(to_dict(config)).items() if name not in FREE}
    excluded = config.relpos.exclude_entities
    return settings | {"relpos.exclude_entities": [name for name in saved.obs_space.entities if name in excluded]}


# --- Moving weights ---


def _moves(before: Mapping[str, Weight], now: Mapping[str, Weight]) -> dict[str, Move]:
    """Name of a network's tensor -> its source in the checkpoint."""
    sources = {weight.key: name for name, weight in before.items()}
    moves = {}
    for name, weight in now.items():
        source = sources.get(weight.key)
        if source is not None:
            pairs = [_common(*axes) for axes in zip(before[source].axes, weight.axes, strict=True)]
            moves[name] = Move(source, tuple(taken for taken, _ in pairs), tuple(places for _, places in pairs))
        elif weight.part == "project.2.bias" and (vector := sources.get((weight.owner, weight.name, "vector"))):
            width = torch.arange(len(weight.axes[0]))
            moves[name] = Move(vector, (torch.zeros(1, dtype=torch.int64), width), (width,))
    return moves


def _common(before: Axis, now: Axis) -> tuple[Tensor, Tensor]:
    """Indices in `before` and in `now` of the labels that both axes have, in the order of `now`."""
    place_before = {label: place for place, label in enumerate(before)}
    common = [(place_before[label], place) for place, label in enumerate(now) if label in place_before]
    places = torch.tensor(common, dtype=torch.int64).reshape(-1, 2)
    return places[:, 0], places[:, 1]


def _grid(places: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Index arrays of all combinations of indices."""
    return tuple(
        each.view([-1 if axis == own else 1 for axis in range(len(places))]) for own, each in enumerate(places)
    )


def _moved_weights(saved: RogueNet, net: RogueNet, moves: Mapping[str, Move]) -> dict[str, Tensor]:
    """The state dict of `net` with the weights of `saved`."""
    before, known = saved.state_dict(), weight_names(saved).values()
    owners = {(weight.owner, weight.name) for weight in known}
    featureless = {weight.name for weight in known if weight.part == "vector"}
    names, moved = weight_names(net), {}
    for name, fresh in net.state_dict().items():
        weight, move = names[name], moves.get(name)
        source = before[move.source] if move else None
        if (weight.owner, weight.name) not in owners:
            background = fresh
        elif (
            weight.name in featureless and weight.part != "vector"
        ):  # zero weights: only the last layer's bias has an effect
            background = torch.zeros_like(fresh) if weight.part == "project.2.weight" else fresh
        elif weight.new == "fresh":
            background = fresh
        elif weight.new == "mean" and source is not None:
            background = source.mean(dim=0).to(fresh).expand_as(fresh)
        else:
            background = torch.zeros_like(fresh)
        moved[name] = move(source, background) if move and source is not None else background
    return moved
