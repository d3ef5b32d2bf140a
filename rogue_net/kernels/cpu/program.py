"""A network as a program: tables and flat memory for the kernels of `tile`, and gradients and optimizer steps made with them.

    program = Program(net)
    program.load()                                            # parameters of the modules
    columns = program.columns(obs, actions, log_probs)        # all frames of a rollout
    stats = program.gradient(columns, frames, loss, ...)      # of a minibatch
    program.step(...)                                         # AdamW
    program.store()

Linear layers are kept as the products want them: (in, out) and (out, in), padded to multiples of 4 inputs and 8 outputs, with the
scale g and shift s of a LayerNorm before folded in, W (g n + s) + b = W' n + b' with W' = W diag(g), b' = b + W s; and back

    dW = dW' diag(g) + db' sᵀ,   db = db',   dg = diag(Wᵀ dW'),   ds = Wᵀ db'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from threading import local
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from entity_gym.spaces import GLOBAL_ENTITY
from rogue_net.heads import CategoricalHead, SelectEntityHead
from rogue_net.kernels.cpu import attention, elementwise, tile
from rogue_net.kernels.cpu.calling import entry
from rogue_net.kernels.cpu.compiling import Const, Count, Floats, Ints, Number, address, bind, kernel
from rogue_net.kernels.cpu.dense import DEPTH, ROWS, outer, product
from rogue_net.kernels.cpu.inputs import Inputs
from rogue_net.kernels.cpu.parts import PART
from rogue_net.kernels.cpu.scores import rounded
from rogue_net.kernels.cpu.simd import fma, load, spread, square_root, store, total
from rogue_net.kernels.cpu.threads import run_parts
from rogue_net.kernels.cpu.tile import (
    ACTION_COLUMNS,
    CATEGORICAL,
    CATEGORY_COLUMNS,
    LINEAR_COLUMNS,
    SELECT_ENTITY,
    TYPE_COLUMNS,
)
from rogue_net.masks import CategoricalMask, SelectEntityMask
from rogue_net.obs_batch import ObsBatch
from rogue_net.ragged import RaggedTensor

if TYPE_CHECKING:
    from rogue_net.rogue_net import RogueNet

SIXTEEN = Const(16)

# --- Weights

#: For each linear layer: places of weight, bias, scale and shift (-1: none) in `parameters`, inputs and outputs; then places in
#: `weights`, of the bias there, and in `turned` (-1: not needed), and the padded number of outputs.
_FOLD_COLUMNS = 10


@kernel
def fold(count: Count, table: Ints, parameters: Floats, weights: Floats, turned: Floats) -> None:
    """Write the linear layers as the products want them."""
    for number in range(count):
        at = number * 10
        weight, bias, scale, shift = table[at], table[at + 1], table[at + 2], table[at + 3]
        inputs, outputs, to, to_bias = table[at + 4], table[at + 5], table[at + 6], table[at + 7]
        to_turned, padded = table[at + 8], table[at + 9]
        for o in range(outputs):
            constant = parameters[bias + o]
            for i in range(inputs):
                w = parameters[weight + o * inputs + i]
                if scale >= 0:
                    constant += w * parameters[shift + i]
                    w *= parameters[scale + i]
                weights[to + i * padded + o] = w
                if to_turned >= 0:
                    turned[to_turned + o * inputs + i] = w
            weights[to_bias + o] = constant


@kernel
def unfold(count: Count, table: Ints, parameters: Floats, gradient: Floats, dparameters: Floats) -> None:
    """Write the gradients of weights and biases, and add those of LayerNorms to `dparameters`."""
    for number in range(count):
        at = number * 10
        weight, bias, scale, shift = table[at], table[at + 1], table[at + 2], table[at + 3]
        inputs, outputs, to, to_bias, padded = table[at + 4], table[at + 5], table[at + 6], table[at + 7], table[at + 9]
        for o in range(outputs):
            dconstant = gradient[to_bias + o]
            dparameters[bias + o] = dconstant
            for i in range(inputs):
                dw = gradient[to + i * padded + o]
                if scale >= 0:
                    w = parameters[weight + o * inputs + i]
                    dparameters[scale + i] += w * dw
                    dparameters[shift + i] += w * dconstant
                    dw = dw * parameters[scale + i] + dconstant * parameters[shift + i]
                dparameters[weight + o * inputs + i] = dw


@kernel
def add_up(others: Count, size: Count, stride: Count, gradients: Floats) -> None:
    """Add the gradients of the other threads to those of the first, in their order."""
    for number in range(1, others + 1):
        for at in range(0, size, 8):
            total_of_both = load(EIGHT, gradients, at) + load(EIGHT, gradients, number * stride + at)
            store(gradients, at, total_of_both)


EIGHT = Const(8)


@kernel
def squares(count: Count, numbers: Floats, result: Floats) -> None:
    """Sum of squares of `count` numbers, a multiple of 8."""
    sums = spread(EIGHT, np.float32(0))
    for at in range(0, count, 8):
        sums = fma(load(EIGHT, numbers, at), load(EIGHT, numbers, at), sums)
    result[0] = total(sums)


class Adam(NamedTuple):
    """An AdamW step."""

    scale: Number  # of the gradient, so that its norm is not too large
    rate: Number  # learning rate / (1 - beta1^t)
    keep: Number  # 1 - learning rate * weight decay
    beta1: Number
    beta2: Number
    correction: Number  # 1 / sqrt(1 - beta2^t)
    epsilon: Number


@kernel
def adam(count: Count, parameters: Floats, gradient: Floats, first: Floats, second: Floats, how: Adam) -> None:
    """AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2) of `count` parameters, a multiple of 8."""
    for at in range(0, count, 8):
        g = load(EIGHT, gradient, at) * how.scale
        m = load(EIGHT, first, at) * how.beta1 + g * (np.float32(1) - how.beta1)
        v = load(EIGHT, second, at) * how.beta2 + g * g * (np.float32(1) - how.beta2)
        store(first, at, m)
        store(second, at, v)
        step = m / (square_root(v) * how.correction + how.epsilon)
        store(parameters, at, load(EIGHT, parameters, at) * how.keep - step * how.rate)


class Kernels(NamedTuple):
    """What is called from Python."""

    act: Callable[..., None]
    learn: Callable[..., None]
    fold: Callable[..., None]
    unfold: Callable[..., None]
    add_up: Callable[..., None]
    squares: Callable[..., None]
    adam: Callable[..., None]

    @staticmethod
    @cache
    def all() -> Kernels:
        """Compiled, or loaded from the cache on disk."""
        return Kernels(*(bind(each) for each in (tile.act, tile.learn, fold, unfold, add_up, squares, adam)))


@cache
def tile_kernels(width: int, head_width: int) -> tile.Kernels:
    """The kernels of a tile for tokens of `width` features and heads of `head_width`."""
    lanes = SIXTEEN if width % 16 == 0 else EIGHT
    token, hidden = elementwise.Shape.of(width), elementwise.Shape.of(4 * width)
    _, *head = attention.Shape.of(head_width)
    return tile.Kernels(
        product=entry(product, SIXTEEN),
        outer=entry(outer, SIXTEEN),
        normalize=entry(elementwise.normalize, *token),
        normalize_backward=entry(elementwise.normalize_backward, *token),
        gelu=entry(elementwise.gelu, *hidden),
        gelu_backward=entry(elementwise.gelu_backward, *hidden),
        attend=entry(attention.forward, *head),
        attend_backward=entry(attention.backward, *head),
        embed=entry(tile.embed, lanes),
        embed_backward=entry(tile.embed_backward, lanes),
        transform=entry(tile.transform, lanes),
        transform_backward=entry(tile.transform_backward, lanes),
        decide=entry(tile.decide, lanes),
        decide_backward=entry(tile.decide_backward, lanes),
    )


# --- A network


class Columns(NamedTuple):
    """The frames of a rollout, as the kernels read them."""

    types: NDArray[np.int64]
    actions: NDArray[np.int64]
    lengths: NDArray[np.int64]  # (B) tokens of every frame
    sizes: NDArray[
        np.int64
    ]  # (B) what a frame takes of a tile: the largest number of its tokens, actors, actees, and 1
    num_actors: NDArray[np.int64]  # (B) of all actions
    hides: bool
    pairs: int  # most actor-choice pairs of a frame for each unit of its size
    held: list[Any]  # owners of the memory


class Moments(NamedTuple):
    """An optimizer's running means, a tensor for each parameter."""

    first: list[Tensor]  # of gradients
    second: list[Tensor]  # of their squares


class Acted(NamedTuple):
    """Actions in B frames; see `ActResult`."""

    actions: dict[str, RaggedTensor]
    log_probs: dict[str, Tensor]
    values: Tensor


class Program:
    """A network, its flat parameters, and the moments of their optimizer.

    Args:
        net: on the CPU, in float32; see `why_not_compiled`.
        with_value: whether its value is used.
        with_actions: whether its heads are.
    """

    def __init__(self, net: RogueNet, *, with_value: bool = True, with_actions: bool = True) -> None:
        self.net, self.with_value, self.with_actions = net, with_value, with_actions
        parts = [
            net.embedding,
            net.transformer,
            *([net.heads] if with_actions else []),
            *([net.value_head] if with_value else []),
        ]
        self.parameters = [parameter for part in parts for parameter in part.parameters()]
        sizes = [each.numel() for each in self.parameters]
        starts = np.cumsum([0, *sizes]).tolist()
        self._places = {id(each): start for each, start in zip(self.parameters, starts, strict=False)}
        self._sizes, self.count = sizes, starts[-1]
        room = _padded(self.count, 8)
        self.flat, self.first, self.second, self.gradient_flat = (torch.zeros(room) for _ in range(4))
        self._linears: list[list[int]] = []
        self._folds: list[list[int]] = []
        self._weights_size = self._turned_size = 0
        self._describe()
        self.width = net.config.d_model
        self._kernels = tile_kernels(self.width, self.width // net.config.n_head)
        self.weights, self.turned = torch.zeros(self._weights_size), torch.zeros(max(self._turned_size, 8))
        self._gradients = torch.zeros(1, self._gradient_size)
        self._linear_table = np.array(self._linears, np.int64).reshape(-1, LINEAR_COLUMNS)
        self._fold_table = np.array(self._folds, np.int64).reshape(-1, _FOLD_COLUMNS)
        self._category_table = np.array(self._categories, np.int64).reshape(-1, CATEGORY_COLUMNS)
        self._local = local()  # of each thread that acts its own tiles
        self._memory: list[int] = []  # addresses of the parameters
        self._current: list[Tensor] = []  # the parameters, flat
        self._shares_memory = False  # whether these change with the parameters
        modules = [module for part in parts for module in part.modules()]
        #: Where the modules keep the parameters: a module may get another one in the place of one.
        self._owners = [
            (each._parameters, name, each._parameters[name]) for each in modules for name in each._parameters
        ]
        self._compared = torch.zeros(self.count)
        named = zip(net.embedding.types, net.embedding.entities, strict=True)
        self._inputs = {name: Inputs(cast(Any, entity)) for name, entity in named if cast(Any, entity).num_features}

    # - What is where

    def _describe(self) -> None:
        """Give everything its place."""
        net: Any = self.net  # whose modules a type checker knows as modules only
        # entity type -> number of its linear layer, of its first category; places of scale, shift, vector
        self._types: dict[str, list[int]] = {}
        self._categories: list[list[int]] = []
        direct: list[nn.Parameter] = []  # parameters whose gradients stand behind those of linear layers, as they are
        for name, entity in zip(net.embedding.types, net.embedding.entities, strict=True):
            if entity.num_features == 0:
                direct.append(entity.vector)
                self._types[name] = [-1, 0, -1, -1, self._at(entity.vector)]
                continue
            linear, finish = entity.layers
            layer = -1 if linear is None else self._add_linear(linear)
            self._types[name] = [layer, len(self._categories), self._at(finish.weight), self._at(finish.bias), -1]
            direct += [finish.weight, finish.bias, *entity.tables]
            self._categories += [[self._at(table), self._at(table)] for table in entity.tables]
        self.first_block = len(self._linears)
        for block in net.transformer.blocks:
            norm2, up, _, down = block.mlp
            self._add_linear(block.query_key_value, block.attention_norm)
            self._add_linear(block.project)
            self._add_linear(up, norm2)
            self._add_linear(down)
        self._heads: dict[
            str, list[int]
        ] = {}  # action -> kind, choices or K, first linear layer, place of nobody's key
        for name, head in zip(net.action_space, net.heads, strict=True) if self.with_actions else ():
            layer = len(self._linears)
            if isinstance(head, CategoricalHead):
                self._add_linear(head.project)
                self._heads[name] = [CATEGORICAL, head.project.out_features, layer, -1]
            else:
                assert isinstance(head, SelectEntityHead)
                self._add_linear(head.query)
                self._add_linear(head.key)
                nobody = -1 if head.nobody is None else self._at(head.nobody)
                direct += [] if head.nobody is None else [head.nobody]
                self._heads[name] = [SELECT_ENTITY, head.query.out_features, layer, nobody]
        value = net.value_head.project
        if self.with_value:
            direct += [value.weight, value.bias]
        # gradients: of linear layers, where `weights` has them, then of the others
        self._direct: dict[int, int] = {}  # place in `flat` -> place in the gradient
        at = self._weights_size
        for parameter in direct:
            self._direct[self._at(parameter)] = at
            at += _padded(parameter.numel(), 16)
        self._gradient_size = _padded(at, 16)
        self._direct_places = [
            (self._at(parameter), self._direct[self._at(parameter)], parameter.numel()) for parameter in direct
        ]
        self._categories = [[table, self._direct[table]] for table, _ in self._categories]

    def _at(self, parameter: Tensor) -> int:
        return int(self._places[id(parameter)])

    def _add_linear(self, linear: nn.Linear, norm: nn.LayerNorm | None = None) -> int:
        """Give a linear layer its places; returns its number."""
        inputs, outputs = linear.in_features, linear.out_features
        padded_in, padded_out = _padded(inputs, DEPTH), _padded(outputs, 8)
        weight = self._weights_size
        bias = weight + padded_in * padded_out
        self._weights_size = _padded(bias + padded_out, 16)
        turned = -1
        if inputs % 8 == 0:
            turned = self._turned_size
            self._turned_size += padded_out * inputs
        scale, shift = (-1, -1) if norm is None else (self._at(norm.weight), self._at(norm.bias))
        places = [self._at(linear.weight), self._at(linear.bias), scale, shift, inputs, outputs]
        self._folds.append([*places, weight, bias, turned, padded_out])
        self._linears.append([weight, bias, turned, padded_in, padded_out])
        return len(self._linears) - 1

    # - Parameters

    def is_current(self) -> bool:
        """Whether the modules still have the parameters that the program was made for."""
        return all(held[name] is parameter for held, name, parameter in self._owners)

    @torch.no_grad()
    def load(self, moments: Moments | None = None) -> None:
        """Copy the modules' parameters, and the optimizer's moments if they are given."""
        torch._foreach_copy_(self._parts(self.flat), list[Tensor](self.parameters))
        if moments is not None:
            torch._foreach_copy_(self._parts(self.first), moments.first)
            torch._foreach_copy_(self._parts(self.second), moments.second)
        self.fold()

    @torch.no_grad()
    def store(self, moments: Moments | None = None) -> None:
        """Copy parameters back to the modules, and moments to the optimizer's."""
        torch._foreach_copy_(list[Tensor](self.parameters), self._parts(self.flat))
        if moments is not None:
            torch._foreach_copy_(moments.first, self._parts(self.first))
            torch._foreach_copy_(moments.second, self._parts(self.second))

    def _parts(self, flat: Tensor) -> list[Tensor]:
        """The part of each parameter in a flat tensor."""
        parts = flat[: self.count].split(self._sizes)
        return [part.view(parameter.shape) for part, parameter in zip(parts, self.parameters, strict=True)]

    def fold(self) -> None:
        """Bring `weights` up to date with the flat parameters."""
        Kernels.all().fold(
            len(self._fold_table), address(self._fold_table), address(self.flat), address(self.weights),
            address(self.turned),
        )  # fmt: skip

    # - Frames

    def columns(self, obs: ObsBatch, actions: Mapping[str, RaggedTensor], log_probs: Mapping[str, Tensor]) -> Columns:
        """Frames as the kernels read them, with inputs as the linear layers want them.

        Args:
            obs: B frames.
            actions: action -> what actors did, or memory for what they will do.
            log_probs: action -> (A,) of what they did, or memory.

        Raises:
            ValueError: the batch does not fit the network.
        """
        held: list[Any] = []

        def at(array: Tensor | NDArray[Any]) -> int:
            array = array.contiguous() if isinstance(array, Tensor) else array
            held.append(array)
            return address(array) if len(array) else 0

        batch = self.net.translation(obs)
        _check_batch(batch)
        types = self._type_rows(batch, at)
        lengths = np.zeros(len(batch), np.int64)
        for ragged in batch.features.values():
            lengths += np.diff(ragged.offsets.numpy())
        sizes, num_actors, pairs = np.maximum(lengths, 1), np.zeros_like(lengths), 0
        rows = []
        for name, (kind, choices, layer, nobody) in self._heads.items():
            row, mask = [0] * ACTION_COLUMNS, batch.action_masks[name]
            acting = np.diff(mask.actors.offsets.numpy())
            sizes, num_actors = np.maximum(sizes, acting), num_actors + acting
            row[tile.KIND], row[tile.CHOICES], row[tile.LAYER] = kind, choices, layer
            row[tile.ACTORS], row[tile.ACTOR_OFFSETS] = at(mask.actors.values), at(mask.actors.offsets)
            row[tile.ACTIONS], row[tile.OLD_LOG_PROBS] = at(actions[name].values), at(log_probs[name])
            row[tile.NOBODY] = row[tile.DNOBODY] = -1
            _check_actors(name, mask.actors, lengths)
            _check_rows(name, len(mask.actors.values), actions[name].values, log_probs[name])
            if kind == CATEGORICAL:
                assert isinstance(mask, CategoricalMask), name
                if mask.mask is not None:
                    _check_type(name, mask.mask, torch.bool)
                    row[tile.MASK] = at(mask.mask.expand(len(mask.actors.values), choices))
            else:
                assert isinstance(mask, SelectEntityMask), name
                _check_actors(name, mask.actees, lengths)
                selectable = np.diff(mask.actees.offsets.numpy())
                sizes = np.maximum(sizes, selectable)
                of_frames = acting * (selectable + 1)
                row[tile.ACTEES], row[tile.ACTEE_OFFSETS] = at(mask.actees.values), at(mask.actees.offsets)
                pairs = max(pairs, math.ceil((of_frames / sizes).max(initial=0)))
                if mask.pairs is not None:
                    _check_ragged(name, mask.pairs, torch.bool)
                    if not np.array_equal(np.diff(mask.pairs.offsets.numpy()), acting * selectable):
                        raise ValueError(f"{name!r}: the mask has other pairs than there are actors and actees")
                    row[tile.MASK], row[tile.PAIR_OFFSETS] = at(mask.pairs.values), at(mask.pairs.offsets)
                if nobody >= 0:
                    row[tile.NOBODY], row[tile.DNOBODY] = nobody, self._direct[nobody]
            rows.append(row)
        return Columns(
            np.array(types, np.int64).reshape(-1, TYPE_COLUMNS),
            np.array(rows, np.int64).reshape(-1, ACTION_COLUMNS),
            lengths,
            sizes,
            num_actors,
            bool(batch.visible),
            pairs,
            held,
        )

    def _type_rows(self, batch: ObsBatch, at: Callable[[Any], int]) -> list[list[int]]:
        """A row of the table of types for each type of the batch, in its order."""
        embedding = self.net.embedding
        embedding.check(batch)
        joining = batch.features[GLOBAL_ENTITY].values.contiguous() if embedding.num_globals else None
        if joining is not None and len(joining) != len(batch):
            raise ValueError(f"there are {len(joining)} rows of {GLOBAL_ENTITY!r}; every frame has exactly one")
        rows = []
        for name, (features, offsets) in batch.features.items():
            layer, category, scale, shift, vector = self._types[name]
            row = [0] * TYPE_COLUMNS
            row[tile.OFFSETS], row[tile.LINEAR], row[tile.CATEGORY] = at(offsets), layer, category
            row[tile.VECTOR] = vector
            if name in batch.visible:
                row[tile.VISIBLE] = at(batch.visible[name].values)
            if vector >= 0:
                row[tile.DVECTOR] = self._direct[vector]
            else:
                row[tile.SCALE], row[tile.SHIFT] = scale, shift
                row[tile.DSCALE], row[tile.DSHIFT] = self._direct[scale], self._direct[shift]
                row[tile.STRIDE] = stride = self._linears[layer][tile.INPUTS] if layer >= 0 else 0
                joins = joining if name != GLOBAL_ENTITY else None
                inputs, ids = self._inputs[name](features, offsets.contiguous(), joins, stride)
                row[tile.VALUES], row[tile.IDS], row[tile.NUM_IDS] = at(inputs), at(ids), ids.shape[1]
            rows.append(row)
        return rows

    # - Acting

    @torch.no_grad()
    def act(self, obs: ObsBatch, keys: Tensor | None) -> Acted:
        """Choose actions.

        Args:
            obs: B frames.
            keys: (B,) int64 of the frames' noise, see `FrameKeys`; None: the best choices are taken.

        Raises:
            ValueError: the batch does not fit the network.
        """
        self._refresh()
        actors = {name: obs.action_masks[name].actors for name in self._heads}
        actions = {
            name: RaggedTensor(torch.empty(len(each.values), 1, dtype=torch.int64), each.offsets)
            for name, each in actors.items()
        }
        log_probs = {name: torch.empty(len(each.values)) for name, each in actors.items()}
        columns = self.columns(obs, actions, log_probs)
        values = torch.empty(len(obs))
        frames = np.arange(len(obs))
        parts = _shares(columns.sizes, max(1, min(torch.get_num_threads(), int(columns.lengths.sum()) // PART)))
        tiles = self._tiles_for(columns, len(parts))
        net, batch = self._net(columns), _minibatch(columns, frames, frames)
        if keys is None:
            choice: Any = (tile.GREEDY, 0)
        else:
            keys = keys.to(torch.int64).contiguous()
            if keys.shape != (len(obs),):
                raise ValueError(f"keys must have shape ({len(obs)},), one for each frame, got {tuple(keys.shape)}")
            choice = (tile.SAMPLED, address(keys))
        run = Kernels.all().act

        def work_on(number: int) -> None:
            run(self._kernels, net, batch, tiles[number], *parts[number], tile.Choice(*choice), address(values))

        run_parts(work_on, range(len(parts)))
        return Acted(actions, log_probs, values)

    def _refresh(self) -> None:
        """Fold the modules' parameters, if they have changed since the last time.

        They are compared: not every optimizer tells a tensor's version that it has changed it.
        """
        memory = [each.data_ptr() for each in self.parameters]
        if memory != self._memory or not self._shares_memory:
            self._memory, self._current = memory, [each.detach().reshape(-1) for each in self.parameters]
            self._shares_memory = all(each.is_contiguous() for each in self.parameters)
        torch.cat(self._current, out=self._compared)
        flat = self.flat[: self.count]
        if not torch.equal(self._compared, flat):
            flat.copy_(self._compared)
            self.fold()

    # - Learning

    def gradient(
        self,
        columns: Columns,
        frames: NDArray[np.int64],
        loss: int,
        settings: NDArray[np.float32],
        loss_columns: NDArray[np.float32],
        num_stats: int,
        threads: int,
    ) -> Tensor:
        """Compute the gradient of the loss of a minibatch, into `gradient_flat`.

        Args:
            columns: of the rollout.
            frames: (M,) numbers of its frames.
            loss: address of the compiled loss.
            settings: of the loss.
            loss_columns: (columns, M) that the loss reads.
            num_stats: numbers that the loss logs.
            threads: that share the frames. The same number gives the same bits.

        Returns:
            (num_stats,) what the loss logs.
        """
        parts = _shares(columns.sizes[frames], threads)
        if len(self._gradients) < len(parts):
            self._gradients = torch.zeros(len(parts), self._gradient_size)
        stats = torch.zeros(len(parts), num_stats)
        net, batch = self._net(columns), _minibatch(columns, frames, loss_columns)
        tiles = self._tiles_for(columns, len(parts))
        run = Kernels.all().learn

        def work_on(number: int) -> None:
            own = self._gradients[number]
            own.zero_()
            run(
                self._kernels, loss, address(settings), net, batch, tiles[number], *parts[number], address(own),
                address(stats[number]),
            )  # fmt: skip

        run_parts(work_on, range(len(parts)))
        gradients = address(self._gradients)
        Kernels.all().add_up(len(parts) - 1, self._gradient_size, self._gradient_size, gradients)
        self._to_flat(gradients)
        return stats.sum(dim=0)

    def _to_flat(self, gradients: int) -> None:
        """From the gradients as the kernels add them up to those of the parameters."""
        flat, own = self.gradient_flat, self._gradients[0]
        flat.zero_()
        Kernels.all().unfold(
            len(self._fold_table), address(self._fold_table), address(self.flat), gradients, address(flat)
        )
        for place, at, size in self._direct_places:
            flat[place : place + size] = own[at : at + size]

    def norm(self) -> float:
        """Of the gradient."""
        result = np.zeros(1, np.float32)
        Kernels.all().squares(len(self.gradient_flat), address(self.gradient_flat), address(result))
        return math.sqrt(float(result[0]))

    def step(
        self, number: int, rate: float, scale: float, betas: tuple[float, float], epsilon: float, weight_decay: float
    ) -> None:
        """AdamW step `number`, from 1, with the gradient times `scale`."""
        beta1, beta2 = betas
        how: Any = Adam(
            scale=scale,
            rate=rate / (1 - beta1**number),
            keep=1 - rate * weight_decay,
            beta1=beta1,
            beta2=beta2,
            correction=1 / math.sqrt(1 - beta2**number),
            epsilon=epsilon,
        )
        Kernels.all().adam(
            len(self.flat), address(self.flat), address(self.gradient_flat), address(self.first), address(self.second),
            how,
        )  # fmt: skip
        self.fold()

    def _net(self, columns: Columns) -> tile.Net:
        head = self.net.value_head
        value = [head.project.weight, head.project.bias] if self.with_value else []
        weight, bias = [self._at(each) for each in value] or (0, 0)
        net: Any = tile.Net
        made: tile.Net = net(
            width=self.width,
            num_heads=self.net.config.n_head,
            num_blocks=self.net.config.n_layer,
            num_types=len(columns.types),
            num_actions=len(columns.actions),
            has_value=self.with_value,
            first_block=self.first_block,
            value_weight=weight,
            value_bias=bias,
            dvalue_weight=self._direct.get(weight, 0),
            dvalue_bias=self._direct.get(bias, 0),
            value_mean=float(head.mean),
            value_deviation=float(head.deviation),
            linears=address(self._linear_table),
            types=address(columns.types),
            categories=address(self._category_table),
            actions=address(columns.actions),
            parameters=address(self.flat),
            weights=address(self.weights),
            turned=address(self.turned),
        )
        return made

    def _tiles_for(self, columns: Columns, threads: int) -> list[tile.Tile]:
        """The memory of each thread, and places for the logits of all actions in it."""
        largest = int(columns.sizes.max(initial=1))
        room = _padded(max(_room(self.width), largest) + ROWS, ROWS)
        pairs = room * columns.pairs
        logits = 0
        for row in columns.actions:
            row[tile.LOGITS] = logits
            padded = _padded(int(row[tile.CHOICES]), 8)
            logits += room * padded if row[tile.KIND] == CATEGORICAL else pairs
        tiles: list[_Tile] = self._local.__dict__.setdefault("tiles", [])
        tiles += [_Tile() for _ in range(threads - len(tiles))]
        shape = (room, logits, len(columns.types), len(columns.actions))
        return [each.of(self, *shape) for each in tiles[:threads]]


# Kernels check nothing, so all that they index with is checked here.


def _check_batch(batch: ObsBatch) -> None:
    """Raise a ValueError where numbers and offsets of a batch do not go together."""
    for name, ragged in batch.features.items():
        _check_ragged(name, ragged, torch.float32, len(batch))
    for name, ragged in batch.visible.items():
        _check_ragged(name, ragged, torch.bool, len(batch))
        if len(ragged.values) != len(batch.features[name].values):
            raise ValueError(f"{name!r}: `visible` has other entities than `features`")


def _check_ragged(name: str, ragged: RaggedTensor, dtype: torch.dtype, num_frames: int | None = None) -> None:
    _check_type(name, ragged.values, dtype)
    _check_type(name, ragged.offsets, torch.int64)
    frames = len(ragged.offsets) - 1 if num_frames is None else num_frames
    if len(ragged.offsets) != frames + 1 or int(ragged.offsets[-1]) != len(ragged.values):
        raise ValueError(
            f"{name!r}: offsets {tuple(ragged.offsets.shape)} that end at {int(ragged.offsets[-1])} do not fit {frames} frames "
            f"with {len(ragged.values)} rows"
        )


def _check_type(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype or tensor.device.type != "cpu":
        raise ValueError(f"{name!r} must be {dtype} on the CPU, got {tensor.dtype} on {tensor.device}")


def _check_actors(name: str, actors: RaggedTensor, lengths: NDArray[np.int64]) -> None:
    """Raise a ValueError where actors or actees are no entities of their frame."""
    _check_ragged(name, actors, torch.int64, len(lengths))
    indices, limits = actors.values[:, 0].numpy(), np.repeat(lengths, np.diff(actors.offsets.numpy()))
    if len(indices) and (indices.min() < 0 or (indices >= limits).any()):
        wrong = int(np.flatnonzero((indices < 0) | (indices >= limits))[0])
        raise ValueError(f"{name!r}: index {indices[wrong]} in a frame of {limits[wrong]} entities")


def _check_rows(name: str, count: int, actions: Tensor, log_probs: Tensor) -> None:
    _check_type(name, actions, torch.int64)
    _check_type(name, log_probs, torch.float32)
    if len(actions) != count or len(log_probs) != count:
        raise ValueError(f"{name!r}: {len(actions)} actions and {len(log_probs)} log-probs of {count} actors")


def _minibatch(columns: Columns, frames: NDArray[np.int64], loss_columns: NDArray[Any]) -> tile.Minibatch:
    fields: Any = tile.Minibatch  # from outside, an address where a kernel has numbers
    made: tile.Minibatch = fields(
        frames=address(frames),
        lengths=address(columns.lengths),
        sizes=address(columns.sizes),
        hides=columns.hides,
        columns=address(loss_columns),
        size=len(frames),
    )
    return made


def _room(width: int) -> int:
    """Tokens of a tile."""
    return 128 if width <= 32 else 96 if width <= 64 else 64


class _Tile:
    """The memory of one thread, which grows."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = ()

    def of(self, program: Program, room: int, logits: int, num_types: int, num_actions: int) -> tile.Tile:
        shape = (room, logits, num_types, num_actions)
        if any(mine < asked for mine, asked in zip(self._shape or (0,) * 4, shape, strict=True)):
            self._shape = tuple(max(pair) for pair in zip(self._shape or (0,) * 4, shape, strict=True))
            self._make(program, *self._shape)
        return self.tile._replace(room=room)  # the logits of this batch have places for so many tokens

    def _make(self, program: Program, room: int, logits: int, num_types: int, num_actions: int) -> None:
        width, config = program.width, program.net.config
        strides = [linear[tile.INPUTS] for linear in program._linears]
        widest = max([8, *(each for each in strides[: program.first_block])])
        keys = max(
            [8, *(_padded(choices, 8) for kind, choices, *_ in program._heads.values() if kind == SELECT_ENTITY)]
        )
        saved = config.n_layer * room * tile.saved_floats(width, config.n_head)
        actors = room * max(num_actions, 1)
        floats = {
            "x": room * width, "tokens": room * width, "dqkv": room * 3 * width, "dhidden": room * 4 * width,
            "saved": saved, "inputs": (room + ROWS * (num_types + 1)) * widest, "hidden": (room + ROWS) * width,
            "normalized": room * width, "inverse_std": room, "log_probs": actors, "old_log_probs": actors,
            "entropies": actors, "dlog_probs": actors, "dentropies": actors, "logits": logits + room * 8,
            "rows": room * max(width, keys), "queries": room * keys, "keys": (room + ROWS) * keys,
            "dkeys": (room + ROWS) * keys, "means": room * width, "values": room, "dvalues": room,
        }  # fmt: skip
        ints = {
            "offsets": room + 2, "next": room + 1, "places": room, "sources": room, "type_rows": num_types + 1,
            "actor_tokens": actors, "actor_frames": actors, "actor_sources": actors,
            "action_actors": num_actions + 1, "actee_tokens": room, "actee_starts": room + 1,
        }  # fmt: skip
        self._floats = np.zeros(sum(_padded(size, 16) for size in floats.values()), np.float32)
        self._ints = np.zeros(sum(ints.values()), np.int64)
        self._visible = np.ones(room, np.bool_)
        self._scratch = attention.OwnScratch(width // config.n_head, rounded(room))
        addresses: dict[str, Any] = {"room": room, "visible": address(self._visible)}
        at = address(self._floats)
        for name, size in floats.items():
            addresses[name] = at
            at += 4 * _padded(size, 16)
        at = address(self._ints)
        for name, size in ints.items():
            addresses[name] = at
            at += 8 * size
        self.tile = tile.Tile(**addresses, attention=self._scratch.addresses)


def _shares(sizes: NDArray[np.int64], threads: int) -> list[tuple[int, int]]:
    """The positions `low:high` of each thread, about as many tokens each."""
    if not len(sizes):
        return []
    ends = np.cumsum(sizes)
    count = max(1, min(threads, len(sizes)))
    cuts = np.searchsorted(ends, np.linspace(0, ends[-1], count + 1)[1:-1], "right").tolist()
    limits = [0, *cuts, len(sizes)]
    return [(low, high) for low, high in zip(limits[:-1], limits[1:], strict=True) if low < high]


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
