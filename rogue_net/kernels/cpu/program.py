"""A network as a program: tables and flat memory for the kernels of `tile`, and actions, gradients and optimizer steps by them.

program = Program(net)
acted = program.act(obs, keys)

program.refresh()
columns = program.columns(obs, actions, log_probs)        # all frames of a rollout
stats = program.gradient(columns, frames, loss, ...)      # of a minibatch, for `CompiledAdamW`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from threading import local
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from entity_gym.actions import (
    ACTORS,
    ActionSpace,
    CategoricalActionSpace,
    ContinuousActionSpace,
    GlobalCategoricalActionSpace,
    SelectEntitiesActionSpace,
    SelectEntityActionSpace,
)
from entity_gym.actions.chains import selection_before
from entity_gym.compiled.compiler import without_collections
from entity_gym.spaces import GLOBAL_ENTITY
from rogue_net.batch.obs_batch import ObsBatch
from rogue_net.batch.ragged import RaggedTensor, State
from rogue_net.config import RogueNetConfig
from rogue_net.heads.heads import ContinuousHead, SelectEntityHead
from rogue_net.heads.noise import name_key
from rogue_net.heads.sets import OrderedSetHead
from rogue_net.kernels.cpu import (
    attention,
    blocks,
    categorical,
    chained,
    columns,
    continuous,
    decide,
    elementwise,
    embed,
    flat,
    inputs,
    relative_attention,
    remember,
    select_entity,
    sets,
    tables,
    tile,
)
from rogue_net.kernels.cpu.ahead import Job, compile_all
from rogue_net.kernels.cpu.calling import entry
from rogue_net.kernels.cpu.columns import ActionPlan, FrameTables, TypePlan, columns_of, with_memory
from rogue_net.kernels.cpu.compiling import Const, address, bind, table
from rogue_net.kernels.cpu.dense import DEPTH, ROWS, outer, product
from rogue_net.kernels.cpu.inputs import sources_of
from rogue_net.kernels.cpu.memory import TileMemory, padded, usual_room
from rogue_net.kernels.cpu.relative_terms import NO_SCHEME, scheme_of
from rogue_net.kernels.cpu.simd import LANES
from rogue_net.kernels.cpu.tables import ATTENTION, RELATIVE, Action, EntityType
from rogue_net.kernels.cpu.threads import run_parts

if TYPE_CHECKING:
    from rogue_net.rogue_net import RogueNet

EIGHT, SIXTEEN = Const(8), Const(16)
KEYS = Const(LANES)  # of attention with relative positions, handled at once
TOKENS_OF_A_THREAD = 256  # that are worth another thread
MOST_COPIES = 32  # frames that share their tokens, for which a tile has room
WAKING = 2**16  # tokens times width squared that take as long as waking a thread
_NOWHERE: Any = 0  # in the place of an address that is not used
#: Memory for kernels, whatever torch makes by default.
_zeros: Callable[..., Tensor] = partial(torch.zeros, dtype=torch.float32, device="cpu")


def kernels_of(config: RogueNetConfig, action_space: Mapping[str, ActionSpace]) -> dict[str, Job]:
    """The kernels of a network, but for those of its kinds of actions."""
    width, head_width = config.d_model, config.d_model // config.n_head
    lanes = (SIXTEEN if width % 16 == 0 else EIGHT,)
    token, hidden = elementwise.shape_of(width), elementwise.shape_of(4 * width)
    head, gate = attention.shape_of(head_width), elementwise.shape_of(head_width)
    of_mixing: dict[int, dict[str, Job]] = {
        ATTENTION: {"attend": (attention.forward, head), "attend_backward": (attention.backward, head)},
        RELATIVE: {
            "relate": (relative_attention.forward, (KEYS, *head)),
            "relate_backward": (relative_attention.backward, (KEYS, *head)),
            "open_gates": (elementwise.open_gates, gate),
            "close_gates": (elementwise.gelu_backward, gate),
        },
    }
    found = of_mixing[mixing_of(config)] | {
        "embed": (embed.embed, lanes),
        "transform": (blocks.transform, lanes),
        "transform_backward": (blocks.transform_backward, lanes),
        "embed_backward": (embed.embed_backward, lanes),
        "product": (product, (SIXTEEN,)),
        "decide": (decide.decide, lanes),
        "decide_backward": (decide.decide_backward, lanes),
        "outer": (outer, (SIXTEEN,)),
        "gelu": (elementwise.gelu, hidden),
        "normalize": (elementwise.normalize, token),
        "normalize_backward": (elementwise.normalize_backward, token),
        "gelu_backward": (elementwise.gelu_backward, hidden),
    }
    if config.memory != "none":
        found |= {
            "remember": (remember.remember, lanes),
            "remember_backward": (remember.remember_backward, lanes),
        }
    if any(space.after for space in action_space.values()):
        found |= {
            "decide_chained": (chained.decide_chained, lanes),
            "decide_chained_backward": (chained.decide_chained_backward, lanes),
        }
    return found


def kernels_of_action(space: ActionSpace, width: int) -> list[Job]:
    """Kernels of a kind of action: `decide` and `decide_backward`."""
    kind, lanes = _KINDS[type(space)], (SIXTEEN if width % 16 == 0 else EIGHT,)
    return [(kind.decide, lanes), (kind.decide_backward, lanes)]


def mixing_of(config: RogueNetConfig) -> int:
    """The number of the layer that mixes tokens: attention or relative attention."""
    return RELATIVE if config.n_layer and config.relpos.kind != "none" else ATTENTION


def jobs_of(config: RogueNetConfig, action_space: Mapping[str, ActionSpace]) -> list[Job]:
    """All kernels of a network's program, those that take longest first."""
    of_tile = kernels_of(config, action_space)
    of_actions = [job for space in action_space.values() for job in kernels_of_action(space, config.d_model)]
    return [*of_tile.values(), *of_actions, *_CALLED]


#: Kernels that a program calls from Python.
_CALLED: list[Job] = [
    (each, ())
    for each in (
        tile.learn, columns.survey, columns.compare, remember.link, tile.act, inputs.prepare, flat.fold, flat.unfold, flat.adam,
        flat.add_up, flat.squares,
    )
]  # fmt: skip


#: The kernels of each kind of action: a module of this folder.
_KINDS: dict[type[ActionSpace], Any] = {
    CategoricalActionSpace: categorical,
    GlobalCategoricalActionSpace: categorical,
    SelectEntityActionSpace: select_entity,
    SelectEntitiesActionSpace: sets,
    ContinuousActionSpace: continuous,
}


def _count_changes(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Raise the versions of parameters, by which `Program` sees that they have changed: fused optimizers do not."""
    parameters = [each for group in optimizer.param_groups if group.get("fused") for each in group["params"]]
    torch.autograd.graph.increment_version([each for each in parameters if not each.is_inference()])


register_optimizer_step_post_hook(_count_changes)


class Program:
    """A network, whose parameters become views of one flat tensor.

    It sees that PyTorch has changed parameters by their versions, as autograd does. What no version counts is a change through
    `parameter.data` or NumPy.

    Args:
        net: on the CPU, in float32; see `rogue_net.kernels.select`.
    """

    def __init__(self, net: RogueNet) -> None:
        self.net = net
        # heads first and the value last, so that what a policy or a value function alone trains lies together
        parts: list[nn.Module] = [net.heads, net.embedding, net.transformer, net.value_head]
        #: Where the modules keep the parameters: a module may get another one in the place of one.
        self._owners: list[tuple[dict[str, Any], str]] = [
            (each._parameters, name) for part in parts for each in part.modules() for name in each._parameters
        ]
        self._sizes = [each.numel() for each in self.parameters]
        # each begins with a line of the cache, as torch's own memory does
        self.starts = np.cumsum([0, *(padded(size, 16) for size in self._sizes)]).tolist()
        self._places = {id(each): start for each, start in zip(self.parameters, self.starts, strict=False)}
        self.flat, self.gradient_flat = _zeros(self.starts[-1]), _zeros(self.starts[-1])
        self._parts = self.parts_of(self.flat)
        self._seen: list[Any] = []  # version and address of each parameter when its weights were last folded
        self._linears: list[tables.Linear] = []
        self._relative: list[tables.Parameter] = []  # tables of relative positions
        self._direct: list[tables.Parameter] = []  # other parameters, whose gradients stand behind those in `weights`
        self._categories: list[tables.Parameter] = []  # their tables
        self._weights_size = self._transposed_size = self._direct_size = 0
        self._held: list[Any] = []  # owners of memory that tables point to
        self._describe()
        self._local = local()  # of each thread that acts its own tiles

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of the modules, in the order of the flat ones."""
        return [of_module[name] for of_module, name in self._owners]

    # - What is where

    def _describe(self) -> None:
        """Find a place for every layer, and fill the tables of the network."""
        net: Any = self.net  # whose modules a type checker knows as modules only
        config, spaces = net.config, net.action_space
        relative = net.transformer.relative_positions if config.n_layer else None
        self._compile(config, spaces)
        self._types = {
            name: self._describe_type(entity)
            for name, entity in zip(net.embedding.types, net.embedding.entities, strict=True)
        }
        first_block = len(self._linears)
        for block in net.transformer.blocks:
            norm, up, _, down = block.mlp
            self._add_linear(block.query_key_value, block.attention_norm)
            self._add_linear(block.project)
            self._add_linear(up, norm)
            self._add_linear(down)
        memory, first_memory, first_states, dfirst_states = net.transformer.memory, -1, 0, 0
        if memory is not None:
            first_memory = self._add_linear(memory.gates, memory.norm_in)
            self._add_linear(memory.out, memory.norm_out)
            first_states, dfirst_states = self._add_direct(memory.first)
        first_gate = len(self._linears)
        if relative is not None:
            for block in net.transformer.blocks:
                self._add_linear(relative.gate_projection, block.attention_norm)
        self._links: list[tables.Link] = []  # from chained actions to those before them
        # in the order in which they are decided
        self._actions = {name: self._describe_action(name, spaces[name], net.head(name)) for name in net.order}
        links = table(tables.Link, self._links)
        self._held.append(links)
        key_table, value_table = (
            (0, 0) if relative is None else (self._add_relative(relative.keys), self._add_relative(relative.values))
        )
        value = net.value_head.project
        (value_weight, dvalue_weight), (value_bias, dvalue_bias) = map(self._add_direct, (value.weight, value.bias))
        # gradients: of linear layers and relative positions, where `weights` has them, then of the others
        self._gradient_size = padded(self._weights_size + self._direct_size, 16)
        direct = [each._replace(gradient=self._weights_size + each.gradient) for each in self._direct]
        copies, linears = table(tables.Parameter, [*self._relative, *direct]), table(tables.Linear, self._linears)
        categories = table(tables.Parameter, self._categories)
        self._held += [copies, linears, categories]
        self.weights, self.transposed = _zeros(self._weights_size), _zeros(max(self._transposed_size, 8))
        self._gradients = _zeros(1, self._gradient_size)  # of each thread
        #: The network without the tables of frames.
        self._net = tables.Net(
            width=config.d_model,
            num_heads=config.n_head,
            head_width=config.d_model // config.n_head,
            num_blocks=config.n_layer,
            mixing=mixing_of(config),
            first_block=first_block,
            first_gate=first_gate,
            key_table=key_table,
            value_table=value_table,
            value_weight=value_weight,
            value_bias=value_bias,
            dvalue_weight=dvalue_weight,
            dvalue_bias=dvalue_bias,
            direct=self._weights_size,
            memory=first_memory,
            first_states=first_states,
            dfirst_states=dfirst_states,
            linears=address(linears),
            categories=address(categories),
            links=address(links),
            scheme=NO_SCHEME if relative is None else scheme_of(relative, self._held),
            has_value=True,
            num_types=0,
            num_actions=0,
            value_mean=0.0,
            value_deviation=1.0,
            types=_NOWHERE,
            actions=_NOWHERE,
            parameters=address(self.flat),
            weights=address(self.weights),
            transposed=address(self.transposed),
        )
        mine = self._net
        of_linears: tuple[Any, ...] = (len(linears), mine.linears)
        #: Bring `weights` up to date with the flat parameters.
        self.fold: Callable[[], None] = partial(
            bind(flat.fold), *of_linears, len(self._relative), address(copies), mine.parameters, mine.weights,
            mine.transposed,
        )  # fmt: skip
        self._unfold = partial(bind(flat.unfold), *of_linears, len(copies), address(copies), mine.parameters)
        widest = max([8, *(each.inputs for each in self._linears[:first_block])])
        keys = max([8, *(padded(each.row.choices, 8) for each in self._actions.values() if not each.choices)])
        chained = any(plan.row.reader >= 0 for plan in self._actions.values())
        numbers = [padded(plan.choices, DEPTH) for plan in self._actions.values() if not plan.discrete]
        ordered = any(plan.row.ordered for plan in self._actions.values())
        self._new_memory = partial(TileMemory, self._net, widest, keys, max([8, *numbers]) if chained else 0, ordered)

    def _compile(self, config: RogueNetConfig, spaces: Mapping[str, ActionSpace]) -> None:
        """Compile all kernels, and find their addresses."""
        compile_all(jobs_of(config, spaces))
        of_tile = kernels_of(config, spaces)
        with without_collections():
            found = {name: entry(each, *consts) for name, (each, consts) in of_tile.items()}
            self._kernels = tables.Kernels(**dict.fromkeys(tables.Kernels._fields, 0) | found)
            self._kernels_of_actions = {
                name: [entry(each, *consts) for each, consts in kernels_of_action(space, config.d_model)]
                for name, space in spaces.items()
            }

    def _at(self, parameter: Tensor) -> int:
        return int(self._places[id(parameter)])

    def _describe_type(self, entity: Any) -> TypePlan:
        memory: Any = self.net.transformer.memory
        number, remembers = self.net.embedding.types.index(entity.name), memory and entity.name in memory.remember
        row = EntityType(number=number, remembers=bool(remembers))
        if entity.num_features == 0:
            vector, dvector = self._add_direct(entity.vector)
            return TypePlan(row._replace(vector=vector, dvector=dvector), entity)
        linear, finish = entity.layers
        layer = -1 if linear is None else self._add_linear(linear)
        (scale, dscale), (shift, dshift) = self._add_direct(finish.weight), self._add_direct(finish.bias)
        category, columns, sources = len(self._categories), entity.columns, sources_of(entity)
        for each in entity.tables:
            self._add_direct(each)
            self._categories.append(self._direct[-1])
        norm = [entity.norm.offset, entity.norm.scale] if columns.plain else []
        self._held += [sources, *norm]
        is_global = entity.name == GLOBAL_ENTITY
        row = row._replace(
            num_features=entity.num_features - (0 if is_global else self.net.embedding.num_globals),
            joins=not is_global,
            sources=address(sources),
            num_plain=len(columns.plain),
            num_angles=len(columns.angles),
            num_flags=len(columns.flags),
            num_ids=len(entity.tables),
            category=category,
            **dict(zip(("norm_offset", "norm_scale"), map(address, norm), strict=False)),
            stride=0 if linear is None else self._linears[layer].inputs,
            layer=layer,
            scale=scale,
            shift=shift,
            dscale=dscale,
            dshift=dshift,
        )
        return TypePlan(row, entity)

    def _describe_action(self, name: str, space: ActionSpace, head: Any) -> ActionPlan:
        decide, decide_backward = self._kernels_of_actions[name]
        row = Action(decide=decide, decide_backward=decide_backward, noise=name_key(name), layer=len(self._linears))
        own = None
        for layer in (head.query, head.key) if space.selects else (head.project,):
            self._add_linear(layer)
        row = row._replace(choices=layer.out_features)
        if isinstance(head, SelectEntityHead):
            own = head.nobody
        elif isinstance(head, OrderedSetHead):
            own = head.stop
            for part in range(3):
                self._add_linear(head.picked, part=(part, 3))
            least, most = head.space.min, head.space.max
            row = row._replace(ordered=1, least=least, most=-1 if most is None else most)
            if head.left is not None:
                (left, dleft), (bias, dbias) = map(self._add_direct, (head.left.weight, head.left.bias))
                row = row._replace(left=left, dleft=dleft, left_bias=bias, dleft_bias=dbias)
        elif isinstance(head, ContinuousHead):
            own = head.log_std
            bounds = continuous.bounds_of(head.bounds)
            quadrature = torch.stack([head.bounds.nodes.flatten(), head.bounds.weights])
            self._held += [bounds, quadrature]
            row = row._replace(bounds=address(bounds), quadrature=address(quadrature))
        if own is not None:
            parameter, dparameter = self._add_direct(own)
            row = row._replace(parameter=parameter, dparameter=dparameter)
        kind = tables.ENTITIES if space.selects else tables.CHOICES if space.discrete else tables.NUMBERS
        row = row._replace(kind=kind, is_global=space.is_global, per_pair=space.per_pair)
        row = row._replace(**self._describe_chain(name, space, head))
        selection = selection_before(name, self.net.action_space) or ""
        return ActionPlan(row, 0 if space.selects else row.choices, space.discrete, bool(space.allowed), selection)

    def _describe_chain(self, name: str, space: ActionSpace, head: Any) -> dict[str, int]:
        """The fields of a chained action, or of one that others are decided after."""
        told: Any = head.told
        found: dict[str, int] = {}
        if head.reader is not None:
            found |= {"reader": self._add_linear(head.reader.hidden), "in_turn": ACTORS in space.after}
            self._add_linear(head.reader.project)
            found["first_link"] = len(self._links)
            selection = selection_before(name, self.net.action_space)
            for earlier in space.after:
                if earlier != ACTORS:
                    allowed = np.array(space.allowed.get(earlier, []), np.bool_)
                    self._held.append(allowed)
                    if earlier == selection and space.num_choices:
                        found["selection"] = len(self._links) - found["first_link"]
                    number = list(self.net.order).index(earlier)
                    self._links.append(tables.Link(number, address(allowed) if allowed.size else 0))
            found["num_links"] = len(self._links) - found["first_link"]
        if isinstance(told, nn.Embedding):
            found["told"], found["dtold"] = self._add_direct(told.weight)
        elif space.selects and told is not None:
            found |= {"told": self._add_linear(told["selected"]), "marks": self._add_linear(told["selecting"])}
        elif told is not None:
            found["told"] = self._add_linear(told)
        if getattr(head, "taken", None) is not None:
            found["taken"], found["dtaken"] = self._add_direct(head.taken.weight)
            found["taken_bias"], found["dtaken_bias"] = self._add_direct(head.taken.bias)
        return found

    def _add_relative(self, parameter: Tensor) -> int:
        """Find the place of a table of relative positions in `weights`."""
        self._relative.append(tables.Parameter(self._at(parameter), self._weights_size, parameter.numel()))
        self._weights_size += padded(parameter.numel(), 16)
        return self._relative[-1].gradient

    def _add_direct(self, parameter: Tensor) -> tuple[int, int]:
        """Find the place of the gradient of another parameter; returns those of both."""
        self._direct.append(tables.Parameter(self._at(parameter), self._direct_size, parameter.numel()))
        self._direct_size += padded(parameter.numel(), 16)
        return self._direct[-1][:2]

    def _add_linear(self, linear: nn.Linear, norm: nn.LayerNorm | None = None, part: tuple[int, int] = (0, 1)) -> int:
        """Find the places of a linear layer; returns its number. `part` (k, n): part k of n equal parts of its outputs."""
        inputs, outputs = linear.in_features, linear.out_features // part[1]
        padded_in, padded_out = padded(inputs, DEPTH), padded(outputs, 8)
        weight = self._weights_size
        bias = weight + padded_in * padded_out
        self._weights_size = padded(bias + padded_out, 16)
        transposed = -1
        if inputs % 8 == 0:
            transposed = self._transposed_size
            self._transposed_size += padded_out * inputs
        scale, shift = (-1, -1) if norm is None else (self._at(norm.weight), self._at(norm.bias))
        first = part[0] * outputs
        places = self._at(linear.weight) + first * inputs, self._at(linear.bias) + first
        own = [*places, scale, shift, inputs, outputs]
        self._linears.append(tables.Linear(weight, bias, transposed, padded_in, padded_out, *own))
        return len(self._linears) - 1

    # - Parameters

    def trained(self, *, actions: bool, value: bool) -> slice:
        """The parameters that have a gradient when actions, the value or both are trained: they lie together."""
        heads, values = ([*part.parameters()] for part in (self.net.heads, self.net.value_head))
        return slice(0 if actions else len(heads), len(self._sizes) - (0 if value else len(values)))

    def parts_of(self, numbers: Tensor) -> list[Tensor]:
        """The part of each parameter in a flat tensor."""
        parts = zip(self.starts, self._sizes, self.parameters, strict=False)
        return [numbers[start : start + size].view(parameter.shape) for start, size, parameter in parts]

    def refresh(self) -> None:
        """Bring the flat parameters and folded weights up to date, if any parameter has changed since the last time."""
        if not self._seen or self._versions() != self._seen:
            flat.take(self._parts, self.parameters)
            self.fold()
            self._seen = self._versions()

    def _versions(self) -> list[Any]:
        try:
            return [number for each in self.parameters for number in (each._version, each.data_ptr())]
        except RuntimeError:
            return [object()]  # parameters that were made in inference mode have no versions, and may have changed

    # - Frames

    def columns(
        self,
        obs: ObsBatch,
        actions: Mapping[str, RaggedTensor],
        log_probs: Mapping[str, Tensor],
        plans: Mapping[str, ActionPlan] | None = None,
        state: State | None = None,
        before: Tensor | None = None,
    ) -> FrameTables:
        """Frames as the kernels read them; see `columns_of` and `with_memory`. `plans`: the actions; None: all of the network.

        Raises:
            ValueError: the batch or the state does not fit the network.
        """
        embedding, memory, head = self.net.embedding, self.net.transformer.memory, self.net.value_head
        batch = self.net.translation(obs)
        embedding.check(batch)
        plans = self._actions if plans is None else plans
        spaces, masks = self.net.action_space, batch.action_masks
        if any(spaces[name].prices for name in plans):
            priced = {name: self.net.priced(name, masks[name], batch) for name in plans}
            batch = replace(batch, action_masks=masks | priced)
        shares = memory is None and all(plan.row.reader < 0 for plan in plans.values())
        net = self._net._replace(value_mean=float(head.mean), value_deviation=float(head.deviation))
        columns = columns_of(batch, embedding.num_globals, self._types, plans, actions, log_probs, net, shares=shares)
        if memory is not None:
            memory.check_ids(batch)
            columns = with_memory(columns, batch, state, before, net.width)
        if net.mixing != RELATIVE:
            return columns
        return columns._replace(batch=columns.batch._replace(geometry=self._geometry(batch, columns)))

    def _geometry(self, batch: ObsBatch, columns: FrameTables) -> tables.TokenPositions:
        positions = self.net.transformer.relative_positions
        assert positions is not None
        first = np.zeros(len(columns.lengths), np.int64)
        np.cumsum(columns.lengths[:-1], out=first[1:])
        found = positions.geometry(batch)
        nothing = torch.zeros(1)
        of_tokens = [found.positions, nothing if found.facing is None else found.facing, found.types]
        tensors = [each.contiguous() for each in of_tokens]
        columns.held.extend([first, *tensors])
        value_block = positions.num_buckets * positions.keys.shape[1] if positions.config.per_entity_values else 0
        numbers, facing, types = map(address, tensors)
        return tables.TokenPositions(address(first), numbers, facing, types, value_block)

    # - Acting

    def act(
        self, obs: ObsBatch, keys: Tensor | None, state: State | None = None
    ) -> tuple[dict[str, RaggedTensor], dict[str, RaggedTensor], Tensor, State | None]:
        """Choose actions; returns them, their log-probs, (B,) values and the next state, as `rogue_net.ActResult` has them.

        Args:
            obs: B frames.
            keys: (B,) int64 of the frames' noise, see `FrameKeys`; None: the best choices are taken.
            state: what was remembered before them.

        Raises:
            ValueError: the batch does not fit the network.
        """
        actions, log_probs = {}, {}
        for name in self.net.action_space:
            plan, mask = self._actions[name], obs.action_masks[name]
            size, dtype = (1, torch.int64) if plan.discrete else (plan.choices, torch.float32)
            count = int(mask.pair_offsets[-1]) if plan.row.per_pair else len(mask.actors.values)
            offsets = mask.pair_offsets if plan.row.per_pair else mask.actors.offsets
            actions[name] = RaggedTensor(_zeros(count, size, dtype=dtype), offsets)
            log_probs[name] = RaggedTensor(_zeros(len(mask.actors.values)), mask.actors.offsets)
        if keys is None:
            choice = tables.Choice(tables.GREEDY, _NOWHERE)
        else:
            keys = keys.to(torch.int64).contiguous()
            if keys.shape != (len(obs),):
                raise ValueError(f"keys must have shape ({len(obs)},), one for each frame, got {tuple(keys.shape)}")
            choice = tables.Choice(tables.SAMPLED, address(keys))
        return actions, log_probs, *self._run(obs, actions, log_probs, choice, state)

    @torch.no_grad()
    def evaluate(
        self,
        obs: ObsBatch,
        actions: Mapping[str, RaggedTensor],
        state: State | None = None,
        follows: Tensor | None = None,
    ) -> tuple[dict[str, RaggedTensor], Tensor]:
        """Log-probs of given actions, and values (B,); no gradients. `state` and `follows` are as in `RogueNet.evaluate`.

        Raises:
            ValueError: the batch does not fit the network.
        """
        actors = {name: obs.action_masks[name].actors for name in self.net.action_space}
        log_probs = {name: each._replace(values=_zeros(len(each.values))) for name, each in actors.items()}
        given = tables.Choice(tables.GIVEN, _NOWHERE)
        return log_probs, self._run(obs, actions, log_probs, given, state, follows)[0]

    def values(
        self, obs: ObsBatch, state: State | None = None, follows: Tensor | None = None
    ) -> tuple[Tensor, State | None]:
        """(B,) values, and the next state; arguments as in `evaluate`, errors as in `act`."""
        return self._run(obs, {}, {}, tables.Choice(tables.GREEDY, _NOWHERE), state, follows, {})

    def _run(
        self,
        obs: ObsBatch,
        actions: Mapping[str, RaggedTensor],
        log_probs: Mapping[str, RaggedTensor],
        choice: tables.Choice,
        state: State | None,
        follows: Tensor | None = None,
        plans: Mapping[str, ActionPlan] | None = None,
    ) -> tuple[Tensor, State | None]:
        """Write log-probs, and actions where they are not given; returns values, and what is remembered after each frame.

        `plans`: the actions; None: all.
        """
        self.refresh()
        found = {name: ragged.values for name, ragged in log_probs.items()}
        values, before, starts = _zeros(len(obs)), None, None
        if follows is not None and self.net.transformer.memory is not None:
            before, starts = torch.where(follows, torch.arange(len(obs)) - 1, -1), ~follows.numpy()
        columns = self.columns(obs, actions, found, plans=plans, state=state, before=before)
        batch = columns.batch if starts is None else columns.batch._replace(starts=address(starts))
        parts, tiles = self._shared(columns, slice(None), starts)
        run, to = bind(tile.act), address(values)

        def work_on(number: int) -> None:
            run(self._kernels, columns.net, batch, tiles[number], *parts[number], choice, to)

        run_parts(work_on, len(parts))
        return values, columns.after

    # - Learning

    def gradient(
        self,
        columns: FrameTables,
        frames: NDArray[np.int64],
        loss: int,
        settings: NDArray[np.float32],
        loss_columns: Tensor | NDArray[np.float32],
        num_stats: int,
        *,
        has_value: bool = True,
        starts: NDArray[np.bool_] | None = None,
    ) -> Tensor:
        """Compute the gradient of the loss of a minibatch, into `gradient_flat`. The same number of threads gives the same bits.

        Args:
            columns: of the rollout.
            frames: (M,) numbers of its frames.
            loss: address of the compiled loss.
            settings: of the loss.
            loss_columns: (columns, M) that the loss reads.
            num_stats: numbers that the loss logs.
            has_value: whether the loss reads the value.
            starts: (M,) of a network that remembers: whether a frame begins a sequence; the others follow the one before.

        Returns:
            (num_stats,) what the loss logs.
        """
        batch = columns.batch._replace(frames=address(frames), size=len(frames), columns=address(loss_columns))
        if starts is not None:
            batch = batch._replace(starts=address(starts))
        parts, tiles = self._shared(columns, frames, starts)
        if len(self._gradients) < len(parts):
            self._gradients = _zeros(len(parts), self._gradient_size)
        self._gradients.numpy().fill(0)  # torch would wake threads of its own, which then spin
        stats = _zeros(len(parts), num_stats)
        net, run = columns.net._replace(has_value=has_value), bind(tile.learn)
        given, to, told = address(settings), address(self._gradients), address(stats)

        def work_on(number: int) -> None:
            own = to + 4 * number * self._gradient_size, told + 4 * number * num_stats
            run(self._kernels, loss, given, net, batch, tiles[number], *parts[number], *own)

        run_parts(work_on, len(parts))
        bind(flat.add_up)(len(parts) - 1, self._gradient_size, to)
        self._to_flat()
        return stats.sum(dim=0)

    def _to_flat(self) -> None:
        """Turn the gradients of folded weights into those of the parameters."""
        self.gradient_flat.numpy().fill(0)
        self._unfold(address(self._gradients), address(self.gradient_flat))

    # - What kernels are given

    def _shared(
        self,
        columns: FrameTables,
        frames: NDArray[np.int64] | slice,
        starts: NDArray[np.bool_] | None,
    ) -> tuple[list[tuple[int, int]], list[tables.Tile]]:
        """The positions, and the memory, of each thread.

        Args:
            columns: of all frames.
            frames: (M,) of the minibatch.
            starts: (M,) whether a frame begins a sequence, whose frames stay together; None: each does.
        """
        sizes, limits = columns.sizes[frames], None
        if starts is not None and not starts.all():
            first = np.flatnonzero(starts)
            sizes, limits = np.add.reduceat(sizes, first), np.append(first, len(sizes)).tolist()
        parts = _shares(sizes, self._net.width)
        if limits is not None:
            parts = [(limits[low], limits[high]) for low, high in parts]
        most = max(usual_room(self._net.width), int(sizes.max(initial=1)))
        copies = min(_most_equal(columns.originals[frames]), MOST_COPIES) if columns.has_copies else 1
        usual, room = padded(most + ROWS, ROWS), padded(most * copies + ROWS, ROWS)
        tiles: list[TileMemory] = self._local.__dict__.setdefault("tiles", [])
        tiles += [self._new_memory() for _ in range(len(parts) - len(tiles))]
        shape = (room, usual, room * columns.logits, columns.net.num_types, columns.net.num_actions)
        return parts, [each.of(*shape) for each in tiles[: len(parts)]]


def _most_equal(originals: NDArray[np.int64]) -> int:
    """The length of the longest run of equal numbers, at least 1."""
    changes = np.flatnonzero(originals[1:] != originals[:-1])
    if len(changes) >= len(originals) - 1:
        return 1
    return int(np.diff(changes, prepend=-1, append=len(originals) - 1).max())


def _shares(sizes: NDArray[np.int64], width: int) -> list[tuple[int, int]]:
    """The sequences `low:high` of each thread, about as many tokens each, the first some more: the others have to wake."""
    if not len(sizes):
        return []
    threads = max(1, min(torch.get_num_threads(), int(sizes.sum()) // TOKENS_OF_A_THREAD))
    if threads == 1:
        return [(0, len(sizes))]
    ends = sizes.cumsum()
    total = int(ends[-1])
    ahead = min(WAKING // width**2, total // (2 * threads))
    each = (total - ahead) // threads
    cuts = ends.searchsorted([ahead + number * each for number in range(1, threads)], "right").tolist()
    limits = [0, *cuts, len(sizes)]
    return [(low, high) for low, high in zip(limits[:-1], limits[1:], strict=True) if low < high]
