"""A network's weights in another network, for an environment that has gained features, entity types, actions or choices.

Weights are matched by name, in any order. New parts are initialised so that the policy acts as before, if possible:

    feature                 weight columns of 0: the policy acts the same. Its statistics are measured before training
    feature of a type       the type's vector becomes the bias of the LayerNorm that ends the embedding, whose weights are 0:
      without features        the policy acts the same
    value of a category     the mean of the known values' rows
    choice of an action     the mean of the known choices' rows, so that its logit is the mean of theirs: its probability is
                              at most 1 / choices, and the odds between known choices stay the same
    choice of no entity     a key of zeros
    earlier action of an    the modules that read and tell choices are as in a new network: the policy acts the same
      action
    memory                  `net.memory` in place of none: adds zeros at first, so the policy acts the same
    entity type, action,    as in a new network: no weights can hide a new entity from known ones; `fit` does
      number of an action
    anything that is gone   refused; `fit` allows entity types that never come

An optimizer's moment estimates are transferred in the same way. New entries within a tensor are 0 for the gradient and the mean
of the known ones for its square: from 0, Adam's first steps would be several times too long.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from entity_gym.actions import ActionSpace
from entity_gym.actions.kind import has_global_entity
from entity_gym.batch.saving import spaces_difference, spaces_to_dict
from entity_gym.errors import nearest
from entity_gym.spaces import GLOBAL_ENTITY, Category, Entity, ObsSpace, with_kinds
from rogue_net.batch.obs_batch import ObsBatch
from rogue_net.batch.ragged import RaggedTensor
from rogue_net.inputs.embedding import FeatureColumns
from rogue_net.inputs.normalization import RunningNorm
from rogue_net.rogue_net import RogueNet

#: Settings of a network that may change, since they do not affect its outputs, except by dropout.
FREE = ("dropout", "backend", "precision")
#: Modules of a head that only chained actions have; see `rogue_net.heads.heads.ActionHead`.
CHAINING = ("reader", "told", "taken")
#: What stands at each place along an axis; numbers where places have no names.
Axis = tuple[Hashable, ...]
#: What is new within a tensor of something known starts as: what a new network has (`fresh`), zeros, or the mean of the rows
#: that are known.
NewPlaces = Literal["fresh", "zero", "mean"]


class Move(NamedTuple):
    """Mapping of entries of a saved tensor to entries of the network's tensor."""

    source: str  # name in the saved network's state dict
    taken: tuple[Tensor, ...]  # indices along each axis of the saved tensor
    places: tuple[Tensor, ...]  # indices along each axis of the network's tensor, as many as in `taken`

    def __call__(self, source: Tensor, background: Tensor) -> Tensor:
        """The network's tensor: entries of the source, and of `background` elsewhere."""
        result, grid = background.clone(), _grid(self.places)
        result[grid] = source[_grid(self.taken)].to(result).reshape(result[grid].shape)
        return result


@dataclass(frozen=True, eq=False)
class Transferred:
    """The result of loading a saved network's weights into another; the defaults are those of a network that was not saved."""

    net: RogueNet
    news: tuple[str, ...] = ()  # a line for each entity type, feature, action or choice that is new
    changed: str | None = None  # first difference of the spaces
    moves: Mapping[str, Move] = field(
        default_factory=dict
    )  # tensor of the network -> its source; new tensors have none
    parameters: Mapping[str, torch.Size] = field(default_factory=dict)  # of the saved network, in its optimizer's order

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

    def measure(self, update: Callable[[RogueNet], object]) -> None:
        """Set the statistics of new features as `update` sets those of a network, such as by `RogueNet.update_normalization`.

        Known features keep theirs, so the policy acts as before.
        """
        sample = copy.deepcopy(self.net)
        for module in sample.modules():
            if isinstance(module, RunningNorm):
                for buffer in (module.count, module.mean, module.squares):
                    buffer.zero_()
        update(sample)
        for name, places in self.unmeasured.items():
            own, seen = self.net.get_submodule(name), sample.get_submodule(name)
            assert isinstance(own, RunningNorm) and isinstance(seen, RunningNorm)
            if seen.count > 0 and len(places) == len(own.mean):
                own.count.copy_(seen.count)
            share = own.count / seen.count.clamp(min=1)
            own.mean[places] = seen.mean[places]
            own.squares[places] = seen.squares[places] * share
            own.refresh()


def transfer(saved: RogueNet, net: RogueNet) -> Transferred:
    """Load the weights of the network `saved` into `net`, on any device, matched by name.

    Raises:
        ValueError: the spaces of `net` lack a part of those of `saved`, or have it of another kind, or the networks differ in
            settings; the message names the first difference. `net` is unchanged.
    """
    news = gained(saved.obs_space, saved.action_space, net.obs_space, net.action_space)
    if GLOBAL_ENTITY in net.embedding.types and GLOBAL_ENTITY not in saved.embedding.types:
        news.append("the whole frame is now an entity of its own: untrained")
    before, now = _settings(saved, saved), _settings(net, saved)
    if saved.transformer.memory is None and net.transformer.memory is not None:
        news.append(f"net.memory={net.config.memory} is new: what is remembered has no effect at first")
        before |= {name: now[name] for name in ("memory", "memory_types")}
    for setting in before:
        if before[setting] != now[setting]:
            raise ValueError(f"its setting {setting} was {before[setting]} in training and is {now[setting]}")
    moves = _moves(weight_names(saved), weight_names(net))
    net.load_state_dict(_moved_weights(saved, net, moves))
    spaces = (spaces_to_dict(each.obs_space, each.action_space) for each in (saved, net))
    parameters = {parameter: each.shape for parameter, each in saved.named_parameters()}
    return Transferred(net, tuple(news), spaces_difference(*spaces), moves, parameters)


def transfer_optimizer(
    optimizer: torch.optim.Optimizer, saved: Mapping[str, Any], networks: Sequence[Transferred]
) -> None:
    """Load the moment estimates of a saved optimizer; the settings of `optimizer` stay.

    Args:
        optimizer: AdamW of the parameters of `networks`, in this order; changed in place.
        saved: `state_dict()` of the saved optimizer, of the same networks or the first of them.
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


# --- Playing without training ---


class FittedNet(NamedTuple):
    """A network that plays in an environment with other spaces than those of its training."""

    net: RogueNet
    hidden: tuple[str, ...] = ()  # entity types that it never learned about
    absent: Mapping[str, int] = {}  # entity type that the environment does not have -> number of its features
    news: str = ""  # differences from training, as one line; empty if there are none

    def adapt(self, batch: ObsBatch) -> ObsBatch:
        """The environment's batch for `net`: hides entities of new types from the others, so that these act as trained."""
        if not self.hidden and not self.absent:
            return batch
        features, visible = dict(batch.features), dict(batch.visible)
        for name in features.keys() & set(self.hidden):
            values, offsets = features[name]
            visible[name] = RaggedTensor(values.new_zeros(len(values), 1, dtype=torch.bool), offsets)
        nowhere = torch.zeros(len(batch) + 1, dtype=torch.int64, device=batch.device)
        for name, width in self.absent.items():
            features[name] = RaggedTensor(torch.zeros(0, width, device=batch.device), nowhere)
        return replace(batch, features=features, visible=visible)


def fit(net: RogueNet, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> FittedNet:
    """Fit a trained network to an environment with these spaces. With equal spaces the result has the network itself.

    New features have no effect, and entities of new types are hidden from known ones, so that actors behave as trained. New
    actions and choices are initialised as in `transfer`, with a fixed seed.

    Raises:
        ValueError: the environment lacks a feature or action of the network, or lacks entity types and has new ones; the message
            names the first.
    """
    space, news = fitted_space(net.obs_space, net.action_space, obs_space, action_space)
    hidden = [name for name in space.entities if name not in net.obs_space.entities]
    if has_global_entity(space, action_space) and not has_global_entity(net.obs_space, net.action_space):
        hidden.append(GLOBAL_ENTITY)
    absent = {name: len(each.features) for name, each in space.entities.items() if name not in obs_space.entities}
    for what, names in (("hidden from the others", hidden), ("never there", absent)):
        news += [f"{what}: {', '.join(map(repr, names))}"] if names else []
    spaces = spaces_to_dict(net.obs_space, net.action_space), spaces_to_dict(space, action_space)
    if spaces_difference(*spaces) is not None:
        config = net.config
        if config.relpos.kind != "none":  # hidden types need no position features
            excluded = tuple(dict.fromkeys((*config.relpos.exclude_entities, *hidden)))
            config = replace(config, relpos=replace(config.relpos, exclude_entities=excluded))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            fitted = RogueNet(config, space, action_space)
        transfer(net, fitted)
        net = fitted.to(next(net.parameters()).device)
    return FittedNet(net, tuple(hidden), absent, "; ".join(news))


def fitted_space(
    known: ObsSpace,
    known_actions: Mapping[str, ActionSpace],
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
) -> tuple[ObsSpace, list[str]]:
    """The observation space of a network that `fit` returns, and the differences from training.

    Without new types it has all known ones, in the order of training.

    Raises:
        ValueError: see `fit`.
    """
    has_new = bool(obs_space.entities.keys() - known.entities.keys())
    entities = obs_space.entities if has_new else {**known.entities, **obs_space.entities}
    space = ObsSpace(entities, obs_space.global_features, obs_space.global_kinds, known.targets)
    return space, gained(known, known_actions, space, action_space)


# --- Differences between environments ---


def gained(
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
            lines.append(f"entity type {name!r} is new: untrained")
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
            yield f"feature {feature!r}{owner} is new: its weights are 0"


def _check_present(what: str, known: Collection[str], now: Collection[str], owner: str = "") -> None:
    for name in known:
        if name not in now:
            raise ValueError(f"the {what} {name!r}{owner} is gone; {nearest(name, now)}")


def _settings(net: RogueNet, saved: RogueNet) -> dict[str, Any]:
    """The settings of `net` that affect the entity types of `saved`."""
    settings: dict[str, Any] = {}
    for name, value in asdict(net.config).items():
        of_section = (
            {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
        )
        settings |= {key: list(each) if isinstance(each, tuple) else each for key, each in of_section.items()}
    excluded = net.config.relpos.exclude_entities
    settings["relpos.exclude_entities"] = [name for name in saved.obs_space.entities if name in excluded]
    return {name: value for name, value in settings.items() if name not in FREE}


# --- Purposes of weights: in a state dict types and actions are numbered, and features and choices are rows and columns ---


class Weight(NamedTuple):
    """A tensor of a state dict. The first three fields say what it is for: they are the same in different networks."""

    owner: Literal["entity type", "action", "network"]
    name: str  # of the entity type or action
    part: str  # of its weights
    axes: tuple[Axis, ...]
    new: NewPlaces = "fresh"


def weight_names(net: RogueNet) -> dict[str, Weight]:
    """Tensor name in the state dict -> its purpose."""
    actions, positions = list(net.action_space.items()), net.transformer.relative_positions
    types, relpos = list(positions.columns) if positions else [], net.config.relpos
    weights = {}
    for name, tensor in net.state_dict().items():
        unnamed: tuple[Axis, ...] = tuple(tuple(range(size)) for size in tensor.shape)
        match name.split("."):
            case ["embedding", "entities", number, *rest]:
                weights[name] = _of_entity(net, net.embedding.types[int(number)], ".".join(rest), unnamed)
            case ["heads", number, *rest]:
                action, space = actions[int(number)]
                if rest[0] in CHAINING:
                    weights[name] = _of_chain(action, space, rest, unnamed)
                elif space.selects:  # nobody is new: nobody's key
                    weights[name] = Weight("action", action, ".".join(rest), unnamed, "zero")
                else:
                    new: NewPlaces = "mean" if space.num_choices else "fresh"
                    weights[name] = Weight("action", action, ".".join(rest), (space.labels, *unnamed[1:]), new)
            case ["transformer", "relative_positions", "values"] if positions and relpos.per_entity_values:
                rows = tuple((entity, bucket) for entity in types for bucket in range(positions.num_buckets))
                weights[name] = Weight("network", "", name, (rows, unnamed[1]))
            case ["transformer", "memory", "first"]:
                weights[name] = Weight("network", "", name, (tuple(net.embedding.types), unnamed[1]))
            case ["transformer", "memory", "out", _]:  # where memory is new, it adds nothing
                weights[name] = Weight("network", "", name, unnamed, "zero")
            case _:
                weights[name] = Weight("network", "", name, unnamed)
    return weights


def _of_chain(action: str, space: ActionSpace, path: Sequence[str], unnamed: tuple[Axis, ...]) -> Weight:
    """A tensor of a module in `CHAINING`; the owner has a name of its own: it is new where the action was not chained before."""
    owner, part = f"{action} {path[0]}", ".".join(path)
    if part != "told.weight":
        return Weight("action", owner, part, unnamed)
    if space.num_choices:  # an embedding of choices
        return Weight("action", owner, part, (space.labels, unnamed[1]), "mean")
    return Weight("action", owner, part, (unnamed[0], space.labels), "zero")  # a linear map of numbers


def _of_entity(net: RogueNet, entity: str, part: str, unnamed: tuple[Axis, ...]) -> Weight:
    space = net.translation.obs_space
    of_type = space.entities.get(entity, Entity([]))  # the whole frame has none of its own
    own, everywhere = with_kinds(of_type.features, of_type.kinds), with_kinds(space.global_features, space.global_kinds)
    columns = FeatureColumns.of((*own, *everywhere))
    labels: list[Hashable] = [*of_type.features, *(("global", name) for name in space.global_features)]
    plain, angles, flags = ([labels[i] for i in each] for each in (columns.plain, columns.angles, columns.flags))
    if part in ("norm.mean", "norm.squares"):
        return Weight("entity type", entity, part, (tuple(plain),), "zero")
    if part == "project.0.weight":
        cosines, sines = [(angle, "cosine") for angle in angles], [(angle, "sine") for angle in angles]
        return Weight("entity type", entity, part, (unnamed[0], (*plain, *cosines, *sines, *flags)), "zero")
    if part == "project.0.bias":
        return Weight("entity type", entity, part, unnamed, "zero")
    if part.startswith("tables."):
        column = list(columns.categories)[int(part.removeprefix("tables."))]
        return Weight("entity type", entity, f"table of {labels[column]}", unnamed, "mean")
    return Weight("entity type", entity, part, unnamed)


# --- Moving weights ---


def _moves(before: Mapping[str, Weight], now: Mapping[str, Weight]) -> dict[str, Move]:
    """Name of a network's tensor -> its source in the saved network."""
    sources = {weight[:3]: name for name, weight in before.items()}
    moves = {}
    for name, weight in now.items():
        source = sources.get(weight[:3])
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
    return torch.meshgrid(*places, indexing="ij") if places else ()


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
        elif weight.name in featureless and weight.part != "vector":  # only the bias of the last layer has an effect
            background = torch.zeros_like(fresh) if weight.part == "project.2.weight" else fresh
        elif weight.new == "fresh":
            background = fresh
        elif weight.new == "mean" and source is not None:
            background = source.mean(dim=0).to(fresh).expand_as(fresh)
        else:
            background = torch.zeros_like(fresh)
        moved[name] = move(source, background) if move and source is not None else background
    return moved
