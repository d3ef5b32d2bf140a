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
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rogue_net.fused import attention, elementwise, tile
from rogue_net.fused.calling import entry
from rogue_net.fused.compiling import Const, Count, Floats, Ints, Number, address, bind, kernel
from rogue_net.fused.dense import DEPTH, ROWS, outer, product
from rogue_net.fused.scores import rounded
from rogue_net.fused.simd import fma, load, spread, square_root, store, total
from rogue_net.fused.threads import run_parts
from rogue_net.fused.tile import (
    ACTION_COLUMNS,
    CATEGORICAL,
    CATEGORY_COLUMNS,
    LINEAR_COLUMNS,
    SELECT_ENTITY,
    TYPE_COLUMNS,
)
from rogue_net.heads import CategoricalHead, SelectEntityHead
from rogue_net.masks import CategoricalMask
from rogue_net.obs_batch import ObsBatch
from rogue_net.ragged import RaggedTensor
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
        return Kernels(*(bind(each) for each in (tile.learn, fold, unfold, add_up, squares, adam)))


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
    sizes: NDArray[np.int64]  # (B)
    num_actors: NDArray[np.int64]  # (B) of all actions
    hides: bool
    pairs: int  # most actor-choice pairs of a frame
    held: list[Any]  # owners of the memory


class Moments(NamedTuple):
    """An optimizer's running means, a tensor for each parameter."""

    first: list[Tensor]  # of gradients
    second: list[Tensor]  # of their squares


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
        self._tiles: list[_Tile] = []

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
        self._heads: list[list[int]] = []  # kind, choices or K, first linear layer, place of nobody's key
        for head in net.heads if self.with_actions else ():
            layer = len(self._linears)
            if isinstance(head, CategoricalHead):
                self._add_linear(head.project)
                self._heads.append([CATEGORICAL, head.project.out_features, layer, -1])
            else:
                assert isinstance(head, SelectEntityHead)
                self._add_linear(head.query)
                self._add_linear(head.key)
                nobody = -1 if head.nobody is None else self._at(head.nobody)
                direct += [] if head.nobody is None else [head.nobody]
                self._heads.append([SELECT_ENTITY, head.query.out_features, layer, nobody])
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

    def columns(
        self, obs: ObsBatch, actions: Mapping[str, RaggedTensor], log_probs: Mapping[str, RaggedTensor]
    ) -> Columns:
        """The frames of a rollout, with inputs as the linear layers want them: they are the same in all epochs.

        Raises:
            ValueError: the batch does not fit the network.
        """
        held: list[Any] = []

        def at(tensor: Tensor | NDArray[Any]) -> int:
            tensor = tensor.contiguous() if isinstance(tensor, Tensor) else np.ascontiguousarray(tensor)
            held.append(tensor)
            return address(tensor) if tensor.shape[0] else 0

        with torch.no_grad():
            batch = self.net.translation(obs)
            parts = self.net.embedding._parts(batch)
            rows = []
            lengths = np.zeros(len(batch), np.int64)
            for name, part in zip(batch.features, parts, strict=True):
                entity, offsets = part.entity, batch.features[name].offsets
                lengths += np.diff(offsets.numpy())
                layer, category, scale, shift, vector = self._types[name]
                row = [0] * TYPE_COLUMNS
                row[tile.OFFSETS], row[tile.LINEAR], row[tile.CATEGORY] = at(offsets), layer, category
                row[tile.VECTOR] = vector
                if name in batch.visible:
                    row[tile.VISIBLE] = at(batch.visible[name].values[:, 0])
                if vector >= 0:
                    row[tile.DVECTOR] = self._direct[vector]
                else:
                    row[tile.SCALE], row[tile.SHIFT] = scale, shift
                    row[tile.DSCALE], row[tile.DSHIFT] = self._direct[scale], self._direct[shift]
                    if layer >= 0:
                        inputs = entity._normalized(part.features)
                        row[tile.STRIDE] = stride = self._linears[layer][tile.INPUTS]
                        padding = stride - inputs.shape[1]
                        row[tile.VALUES] = at(nn.functional.pad(inputs, (0, padding)) if padding else inputs)
                    row[tile.NUM_IDS] = len(entity.columns.categories)
                    if entity.columns.categories:
                        ids = [entity._ids(part.features, each) for each in entity.columns.categories]
                        row[tile.IDS] = at(torch.stack(ids, dim=1))
                rows.append(row)
        sizes, num_actors, pairs = np.maximum(lengths, 1), np.zeros_like(lengths), 0
        action_rows = []
        for (name, mask), (kind, choices, layer, nobody) in zip(batch.action_masks.items(), self._heads, strict=False):
            row = [0] * ACTION_COLUMNS
            acting = np.diff(mask.actors.offsets.numpy())
            sizes, num_actors = np.maximum(sizes, acting), num_actors + acting
            row[tile.KIND], row[tile.CHOICES], row[tile.LAYER] = kind, choices, layer
            row[tile.ACTORS], row[tile.ACTOR_OFFSETS] = at(mask.actors.values[:, 0]), at(mask.actors.offsets)
            row[tile.ACTIONS] = at(actions[name].values[:, 0])
            row[tile.OLD_LOG_PROBS] = at(log_probs[name].values)
            row[tile.NOBODY] = row[tile.DNOBODY] = -1
            if isinstance(mask, CategoricalMask):
                row[tile.MASK] = 0 if mask.mask is None else at(mask.mask)
            else:
                selectable = np.diff(mask.actees.offsets.numpy())
                sizes = np.maximum(sizes, selectable)
                pairs = max(pairs, int((acting * (selectable + 1)).max(initial=0)))
                row[tile.ACTEES], row[tile.ACTEE_OFFSETS] = at(mask.actees.values[:, 0]), at(mask.actees.offsets)
                if mask.pairs is not None:
                    row[tile.MASK], row[tile.PAIR_OFFSETS] = at(mask.pairs.values[:, 0]), at(mask.pairs.offsets)
                if nobody >= 0:
                    row[tile.NOBODY], row[tile.DNOBODY] = nobody, self._direct[nobody]
            action_rows.append(row)
        return Columns(
            np.array(rows, np.int64).reshape(-1, TYPE_COLUMNS),
            np.array(action_rows, np.int64).reshape(-1, ACTION_COLUMNS),
            lengths,
            sizes,
            num_actors,
            bool(batch.visible),
            pairs,
            held,
        )

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
        net = self._net(columns)
        fields: Any = tile.Minibatch  # from outside, an address where a kernel has numbers
        batch = fields(
            frames=address(frames),
            lengths=address(columns.lengths),
            sizes=address(columns.sizes),
            hides=columns.hides,
            columns=address(loss_columns),
            size=len(frames),
        )
        largest = int(columns.sizes.max(initial=1))
        tiles = [self._tile(number, columns, largest) for number in range(len(parts))]
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
        weight, bias = (self._places.get(id(each), 0) for each in (head.project.weight, head.project.bias))
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

    def _tile(self, number: int, columns: Columns, largest: int) -> tile.Tile:
        """The memory of a thread, with places for the logits of all actions."""
        room = _padded(max(_room(self.width), largest) + ROWS, ROWS)
        pairs = room * (largest + 1) if columns.pairs else 0
        while len(self._tiles) <= number:
            self._tiles.append(_Tile())
        logits = 0
        for row in columns.actions:
            row[tile.LOGITS] = logits
            padded = _padded(int(row[tile.CHOICES]), 8)
            logits += room * padded if row[tile.KIND] == CATEGORICAL else pairs
        return self._tiles[number].of(self, room, logits, len(columns.types), len(columns.actions))


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
        return self.tile

    def _make(self, program: Program, room: int, logits: int, num_types: int, num_actions: int) -> None:
        width, config = program.width, program.net.config
        strides = [linear[tile.INPUTS] for linear in program._linears]
        widest = max([8, *(each for each in strides[: program.first_block])])
        keys = max([8, *(_padded(choices, 8) for kind, choices, *_ in program._heads if kind == SELECT_ENTITY)])
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
    ends = np.cumsum(sizes)
    count = max(1, min(threads, len(sizes)))
    cuts = np.searchsorted(ends, np.linspace(0, ends[-1], count + 1)[1:-1], "right").tolist()
    limits = [0, *cuts, len(sizes)]
    return [(low, high) for low, high in zip(limits[:-1], limits[1:], strict=True) if low < high]


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
