"""Frames as the kernels of the compiled step read them: tables of their types and actions, checked, and inputs of linear layers.

Kernels check nothing, so everything that they index with is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entity_gym.spaces import GLOBAL_ENTITY
from rogue_net.batch.obs_batch import ActionMask, ObsBatch
from rogue_net.batch.ragged import RaggedTensor, State
from rogue_net.inputs.embedding import EntityEmbedding
from rogue_net.kernels.cpu.calling import flags_at, floats_at, ints_at
from rogue_net.kernels.cpu.compiling import Count, Ints, Table, address, bind, inline, kernel, table
from rogue_net.kernels.cpu.inputs import prepare
from rogue_net.kernels.cpu.memory import padded
from rogue_net.kernels.cpu.remember import link
from rogue_net.kernels.cpu.tables import Action, EntityType, Minibatch, Net, TokenPositions
from rogue_net.memory import columns_of as columns_of_state

_OFFSETS, _ACTOR, _ACTEE = range(1, 4)  # what is wrong
_NOWHERE: Any = 0  # in the place of an address that is not used
_NO_GEOMETRY = TokenPositions(*[_NOWHERE] * len(TokenPositions._fields))


@kernel
def survey(
    num_frames: Count,
    num_types: Count,
    types: Table[EntityType],
    num_actions: Count,
    actions: Table[Action],
    counts: Ints,
    lengths: Ints,
    sizes: Ints,
    frames: Ints,
    found: Ints,
) -> None:
    """Measure frames, and check offsets and indices.

    Args:
        num_frames: B.
        counts: of rows: (num_types) entities, then for each action actors, actees, and pairs of the mask or the action.
        lengths: result, (B) tokens.
        sizes: result, (B) the largest number of tokens, actors and actees, at least 1.
        frames: result, (B) their numbers.
        found: result: the largest number of actor-choice pairs for each unit of a frame's size; if something is wrong, what, the
            number of the type, or of the action behind all types, and the row.
    """
    for frame in range(num_frames):
        lengths[frame], frames[frame] = 0, frame
    found[0], found[1] = 0, 0
    for number in range(num_types):
        offsets = ints_at(types[number].offsets)
        if not _are_offsets(offsets, num_frames, counts[number]):
            found[1], found[2] = _OFFSETS, number
            return
        for frame in range(num_frames):
            lengths[frame] += offsets[frame + 1] - offsets[frame]
    for frame in range(num_frames):
        sizes[frame] = max(lengths[frame], 1)
    for number in range(num_actions):
        action, of_action = actions[number], num_types + 3 * number
        offsets, rows = ints_at(action.actor_offsets), ints_at(action.actors)
        if not _are_offsets(offsets, num_frames, counts[of_action]):
            found[1], found[2] = _OFFSETS, num_types + number
            return
        wrong = _beyond(offsets, rows, num_frames, lengths)
        if wrong >= 0:
            found[1], found[2], found[3] = _ACTOR, num_types + number, wrong
            return
        for frame in range(num_frames):
            sizes[frame] = max(sizes[frame], offsets[frame + 1] - offsets[frame])
        if action.actee_offsets != 0:
            actee_offsets, actees = ints_at(action.actee_offsets), ints_at(action.actees)
            if not _are_offsets(actee_offsets, num_frames, counts[of_action + 1]):
                found[1], found[2] = _OFFSETS, num_types + number
                return
            wrong = _beyond(actee_offsets, actees, num_frames, lengths)
            if wrong >= 0:
                found[1], found[2], found[3] = _ACTEE, num_types + number, wrong
                return
            pairs = ints_at(action.pair_offsets)
            for frame in range(num_frames):
                selectable = actee_offsets[frame + 1] - actee_offsets[frame]
                sizes[frame] = max(sizes[frame], selectable)
                open_pairs = (offsets[frame + 1] - offsets[frame]) * selectable
                if action.pair_offsets != 0 and pairs[frame + 1] - pairs[frame] != open_pairs:
                    found[1], found[2] = _OFFSETS, num_types + number
                    return
            if action.pair_offsets != 0 and not _are_offsets(pairs, num_frames, counts[of_action + 2]):
                found[1], found[2] = _OFFSETS, num_types + number
                return
    for number in range(num_actions):
        action = actions[number]
        if action.actee_offsets != 0:
            offsets, actees = ints_at(action.actor_offsets), ints_at(action.actee_offsets)
            for frame in range(num_frames):
                pairs = (offsets[frame + 1] - offsets[frame]) * (actees[frame + 1] - actees[frame] + 1)
                found[0] = max(found[0], (pairs + sizes[frame] - 1) // sizes[frame])


@kernel
def compare(
    num_frames: Count,
    num_types: Count,
    types: Table[EntityType],
    num_actions: Count,
    actions: Table[Action],
    originals: Ints,
    copies: Ints,
) -> None:
    """Find frames with the entities, and the selectable ones, of the frame before.

    Args:
        num_frames: B.
        originals: result, (B), see `FrameTables`.
        copies: result, (1) how many frames equal the one before.
    """
    copies[0] = 0
    for frame in range(num_frames):
        originals[frame] = frame
    for frame in range(1, num_frames):
        if _is_copy(frame, num_types, types, num_actions, actions):
            originals[frame] = originals[frame - 1]
            copies[0] += 1


@inline
def _is_copy(frame, num_types, types, num_actions, actions):  # type: ignore[no-untyped-def]
    for number in range(num_types):
        of_type = types[number]
        offsets, width = ints_at(of_type.offsets), of_type.num_features
        before, first, end = offsets[frame - 1], offsets[frame], offsets[frame + 1]
        if end - first != first - before:
            return False
        features, visible = floats_at(of_type.features), flags_at(of_type.visible)
        for at in range(first * width, end * width):
            if features[at] != features[at - (first - before) * width]:
                return False
        for entity in range(first, end if of_type.visible != 0 else first):
            if visible[entity] != visible[entity - (first - before)]:
                return False
    for number in range(num_actions):
        action = actions[number]
        if action.actee_offsets != 0:
            offsets, actees = ints_at(action.actee_offsets), ints_at(action.actees)
            before, first, end = offsets[frame - 1], offsets[frame], offsets[frame + 1]
            if end - first != first - before:
                return False
            for at in range(first, end):
                if actees[at] != actees[at - (first - before)]:
                    return False
    return True


@inline
def _are_offsets(offsets, num_frames, count):  # type: ignore[no-untyped-def]
    if offsets[0] != 0 or offsets[num_frames] != count:
        return False
    for frame in range(num_frames):
        if offsets[frame + 1] < offsets[frame]:
            return False
    return True


@inline
def _beyond(offsets, rows, num_frames, lengths):  # type: ignore[no-untyped-def]
    """The first row that is no entity of its frame, or -1."""
    for frame in range(num_frames):
        for row in range(offsets[frame], offsets[frame + 1]):
            if rows[row] < 0 or rows[row] >= lengths[frame]:
                return row
    return -1


class TypePlan(NamedTuple):
    """An entity type of a network."""

    row: EntityType  # without addresses of frames
    entity: EntityEmbedding


class ActionPlan(NamedTuple):
    """An action of a network."""

    row: Action  # without addresses of frames
    choices: int  # choices of a categorical action, numbers of a continuous one; 0: it selects entities
    discrete: bool
    closes: bool = False  # whether earlier choices may close some
    selection: str = ""  # the earlier action to which `mask_after` belongs


class FrameTables(NamedTuple):
    """The frames of a rollout, as the kernels read them."""

    types: NDArray[Any]  # `EntityType`, in the batch's order
    lengths: NDArray[np.int64]  # (B) tokens of every frame
    #: (B) what a frame takes of a tile: the largest number of its tokens, actors, actees, and 1
    sizes: NDArray[np.int64]
    logits: int  # places in `Tile.logits` of all actions, for each unit of a tile's room
    #: (B) the first of the frames before that each equals, all of them; itself, if it differs from the one before
    originals: NDArray[np.int64]
    has_copies: bool  # whether any frame equals the one before
    held: list[Any]  # owners of the memory
    net: Net  # the network, with these tables
    batch: Minibatch  # of all frames, each of which begins a sequence; without columns
    after: State | None = None  # what is remembered after them: (M, D) numbers are still to be written


def columns_of(
    batch: ObsBatch,
    num_globals: int,
    type_plans: Mapping[str, TypePlan],
    action_plans: Mapping[str, ActionPlan],
    actions: Mapping[str, RaggedTensor],
    log_probs: Mapping[str, Tensor],
    net: Net,
    *,
    shares: bool,
) -> FrameTables:
    """Frames as the kernels read them, with inputs as the linear layers want them.

    Args:
        batch: B frames, translated, of the network's types and features.
        num_globals: global features that join every entity's.
        type_plans: of the network.
        action_plans: of the network.
        actions: action -> what actors did, or memory for what they will do.
        log_probs: action -> (A,) of what they did, or memory.
        net: without these tables.
        shares: whether a frame that equals the one before shares its tokens, as tokens do not depend on what was chosen.

    Raises:
        ValueError: numbers, offsets or indices of the batch do not go together.
    """
    held: list[Any] = []
    counts: list[int] = []

    def at(tensor: Tensor) -> int:
        tensor = tensor.contiguous()
        held.append(tensor)
        return tensor.data_ptr()

    num_frames = len(batch)
    type_table, joining = _type_table(batch, num_globals, type_plans, at, held, counts)
    action_rows = []
    for name, plan in action_plans.items():
        mask = batch.action_masks[name]
        num_actors = _check(name, mask.actors, torch.int64, num_frames)
        made, old = actions[name].values, log_probs[name]
        _check_type(name, made, torch.int64 if plan.discrete else torch.float32)
        _check_type(name, old, torch.float32)
        num_actees = num_pairs = 0
        found = {"actors": mask.actors.values, "actor_offsets": mask.actors.offsets, "actions": made, "log_probs": old}
        if mask.actees is not None:
            num_actees = _check(name, mask.actees, torch.int64, num_frames)
            found |= {"actees": mask.actees.values, "actee_offsets": mask.actees.offsets}
            if mask.mask is not None:
                num_pairs = _check(name, mask.mask, torch.bool, num_frames)
                found |= {"mask": mask.mask.values, "pair_offsets": mask.mask.offsets}
            elif plan.row.per_pair:
                num_pairs = int(mask.pair_offsets[-1])
                found["pair_offsets"] = mask.pair_offsets
            if mask.costs is not None and mask.budgets is not None:
                found |= {"costs": mask.costs, "budgets": mask.budgets}
        elif mask.mask is not None:
            _check_type(name, mask.mask.values, torch.bool)
            found["mask"] = mask.mask.values.expand(num_actors, plan.choices)
        if plan.closes or (
            mask.mask_after is not None and plan.row.selection >= 0
        ):  # the mask is written for each tile anew, once its earlier choices are known
            opened = found.get("mask", torch.ones(num_actors, plan.choices, dtype=torch.bool))
            found |= {"open": opened, "mask": torch.empty_like(opened, memory_format=torch.contiguous_format)}
        if mask.mask_after is not None and plan.row.selection >= 0:
            found |= _mask_after(name, mask, batch.action_masks[plan.selection], plan.choices, num_frames)
        num_values = num_pairs if plan.row.per_pair else num_actors
        if made.shape[0] != num_values or old.shape[0] != num_actors:
            what = f"{num_values} pairs of {num_actors}" if plan.row.per_pair else f"{num_actors}"
            raise ValueError(f"{name!r}: {len(made)} actions and {len(old)} log-probs of {what} actors")
        counts += [num_actors, num_actees, num_pairs]
        action_rows.append(plan.row._replace(**{field: at(tensor) for field, tensor in found.items()}))
    action_table = table(Action, action_rows)
    of_frames, starts = np.empty((4, max(num_frames, 1)), np.int64), np.ones(num_frames, np.bool_)
    found_and_counts = np.array([0, 0, 0, 0, *counts], np.int64)
    first, step, found = address(of_frames), of_frames.strides[0], address(found_and_counts)
    places: list[Any] = [first + k * step for k in range(len(of_frames))]
    tables: Any = (num_frames, len(type_table), address(type_table), len(action_rows), address(action_table))
    bind(survey)(*tables, found + 4 * 8, *places[:3], found)
    lengths, sizes, frames, originals = of_frames[:, :num_frames]
    pairs, wrong, number, index = found_and_counts[:4].tolist()
    if wrong:
        _refuse(batch, wrong, [*batch.features, *action_plans][number], index, lengths)
    _write_inputs(batch, num_globals, type_plans, tables[:3], joining, found_and_counts)
    if shares:
        bind(compare)(*tables, places[3], found)
    logits = 0
    for row, plan in enumerate(action_plans.values()):
        action_table["logits"][row] = logits
        logits += padded(plan.choices, 8) if plan.choices else pairs
    return FrameTables(
        types=type_table,
        lengths=lengths,
        sizes=sizes,
        logits=logits,
        originals=originals if shares else frames,
        has_copies=shares and found_and_counts[0] > 0,
        held=[*held, of_frames, starts, action_table],
        net=net._replace(num_types=tables[1], types=tables[2], num_actions=tables[3], actions=tables[4]),
        batch=Minibatch(
            frames=places[2],
            originals=places[3] if shares else places[2],
            lengths=places[0],
            sizes=places[1],
            hides=bool(batch.visible),
            columns=_NOWHERE,
            size=num_frames,
            geometry=_NO_GEOMETRY,
            starts=address(starts),
            states=_NOWHERE,
            after=_NOWHERE,
        ),
    )


def with_memory(
    columns: FrameTables, batch: ObsBatch, state: State | None, before: Tensor | None, width: int
) -> FrameTables:
    """The frames, with what those of their entities go on from that remember.

    Args:
        columns: of the batch.
        batch: B frames.
        state: what was remembered before each frame; None: nothing.
        before: (B,) int64, the frame one step before, in the same episode; -1: there is none. None: no frame has one.
        width: D.

    Raises:
        ValueError: offsets or numbers of the state do not go together.
    """
    num_frames, types = len(batch), columns.types
    if before is None:
        before = torch.full((num_frames,), -1)
    nothing = RaggedTensor(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(num_frames + 1, dtype=torch.int64))
    known = {"types": nothing, "ids": nothing, "hidden": nothing._replace(values=torch.zeros(0, width))}
    for name, column in columns_of_state(state).items() if state else ():
        count = _check(f"state {name}", column, known[name].values.dtype, num_frames)
        ends = column.offsets[[0, -1]].tolist()
        if ends != [0, count] or column.values.shape[1:] != known[name].values.shape[1:]:
            raise ValueError(
                f"state {name!r} of shape {list(column.values.shape)} does not fit its offsets or the network"
            )
        known[name] = RaggedTensor(column.values.contiguous(), column.offsets.contiguous())
    if bool((known["ids"].offsets.diff() < 0).any()) or len({len(each.values) for each in known.values()}) > 1:
        raise ValueError("the columns of the state have other rows, or offsets that do not ascend")
    counts = [
        len(ragged.values) * bool(row) for ragged, row in zip(batch.features.values(), types["remembers"], strict=True)
    ]
    starts = np.cumsum([0, *counts])
    of_entities = np.empty((3, max(int(starts[-1]), 1)), np.int64)
    for row, (name, start) in enumerate(zip(batch.features, starts, strict=False)):
        if types["remembers"][row] and name != GLOBAL_ENTITY:
            ids = batch.ids.get(name)
            types["remembers"][row] = ids is not None
            if ids is not None:
                if _check(name, ids, torch.int64, num_frames) != len(batch.features[name].values):
                    raise ValueError(f"{name!r}: `ids` has other entities than `features`")
                own = ids.values.contiguous()
                columns.held.append(own)
                types["memory_ids"][row] = address(own)
        for field, part in zip(("remembered", "previous", "carried"), of_entities, strict=True):
            types[field][row] = address(part[start:])
    offsets = torch.empty(num_frames + 1, dtype=torch.int64)
    found = torch.empty(2, of_entities.shape[1], dtype=torch.int64)
    bind(link)(
        num_frames, len(types), address(types), address(before.contiguous()), address(known["ids"].offsets),
        address(known["types"].values), address(known["ids"].values), address(offsets), address(found[0]), address(found[1]),
    )  # fmt: skip
    columns.held.append(of_entities)
    told = {name: found[k, : int(offsets[-1])].unsqueeze(1) for k, name in enumerate(("types", "ids"))}
    after = {name: RaggedTensor(each, offsets) for name, each in told.items()}
    hidden = RaggedTensor(torch.empty(int(offsets[-1]), width), offsets)
    columns.held.append(known["hidden"].values)
    with_states = columns.batch._replace(states=address(known["hidden"].values), after=address(hidden.values))
    return columns._replace(batch=with_states, after={**after, "hidden": hidden})


def _mask_after(name: str, mask: ActionMask, selection: ActionMask, choices: int, num_frames: int) -> dict[str, Tensor]:
    """The choices that are open after each selection, checked: a frame has a row for each actor and earlier actee, or none."""
    assert mask.mask_after is not None and selection.actees is not None
    _check(name, mask.mask_after, torch.bool, num_frames)
    rows, pairs = mask.mask_after.lengths, mask.actors.lengths * selection.actees.lengths
    offsets, values = mask.mask_after.offsets, mask.mask_after.values
    fits = bool(((rows == pairs) | (rows == 0)).all()) and [int(offsets[0]), int(offsets[-1])] == [0, len(values)]
    if not fits or values.shape[1] != choices:
        raise ValueError(f"{name!r}: `mask_after` does not fit the actors and the entities that may be selected before")
    return {"after_mask": values, "after_offsets": offsets}


def _type_table(
    batch: ObsBatch, num_globals: int, plans: Mapping[str, TypePlan], at: Any, held: list[Any], counts: list[int]
) -> tuple[NDArray[Any], Tensor | None]:
    """A row of the table of types for each type of the batch, in its order, and the global features that join others."""
    joining, num_frames = None, len(batch)
    if num_globals:
        joining = batch.features[GLOBAL_ENTITY].values.contiguous()
        if joining.shape[0] != num_frames:
            raise ValueError(f"there are {len(joining)} rows of {GLOBAL_ENTITY!r}; every frame has exactly one")
    rows, num_inputs, num_ids = [], 0, 0
    for name, ragged in batch.features.items():
        count = _check(name, ragged, torch.float32, num_frames)
        counts.append(count)
        row, visible = plans[name].row, 0
        if name in batch.visible:
            if _check(name, batch.visible[name], torch.bool, num_frames) != count:
                raise ValueError(f"{name!r}: `visible` has other entities than `features`")
            visible = at(batch.visible[name].values)
        # inputs and ids: numbers before them, until there is memory
        of_frames = {"offsets": at(ragged.offsets), "features": at(ragged.values), "visible": visible}
        rows.append(row._replace(inputs=num_inputs, ids=num_ids, **of_frames))
        num_inputs += count * row.stride
        num_ids += count * row.num_ids
    inputs, ids = np.empty(num_inputs + 1, np.float32), np.empty(num_ids + 1, np.int64)
    types = table(EntityType, rows)
    types["inputs"] = types["inputs"] * 4 + address(inputs)
    types["ids"] = types["ids"] * 8 + address(ids)
    held += [inputs, ids, types, joining]
    return types, joining


def _write_inputs(
    batch: ObsBatch,
    num_globals: int,
    plans: Mapping[str, TypePlan],
    types: tuple[Any, ...],
    joining: Tensor | None,
    wrong: NDArray[np.int64],
) -> None:
    """Write the inputs and ids of the types, given to kernels as `types`, whose offsets `survey` has checked."""
    bind(prepare)(*types, _NOWHERE if joining is None else joining.data_ptr(), num_globals, address(wrong))
    if wrong[0] >= 0:
        name = list(batch.features)[int(wrong[0])]
        ragged, plan = batch.features[name], plans[name]
        joined = [joining[ragged.sequences]] if plan.row.joins and joining is not None else []
        plan.entity.looked_up(torch.cat([ragged.values, *joined], dim=1))  # names the id
        raise AssertionError("the modules take what the kernel refuses")


def _check(name: str, ragged: RaggedTensor, dtype: torch.dtype, num_frames: int) -> int:
    """The number of rows."""
    _check_type(name, ragged.values, dtype)
    _check_type(name, ragged.offsets, torch.int64)
    if ragged.offsets.shape[0] != num_frames + 1:
        raise ValueError(f"{name!r}: {len(ragged.offsets)} offsets do not fit {num_frames} frames")
    return ragged.values.shape[0]


def _check_type(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype or not tensor.is_cpu:
        raise ValueError(f"{name!r} must be {dtype} on the CPU, got {tensor.dtype} on {tensor.device}")


def _refuse(batch: ObsBatch, wrong: int, name: str, index: int, lengths: NDArray[np.int64]) -> None:
    if wrong == _OFFSETS:
        raise ValueError(f"{name!r}: its offsets do not fit its rows")
    mask = batch.action_masks[name]
    listed = mask.actors if wrong == _ACTOR or mask.actees is None else mask.actees
    frame = int(np.searchsorted(listed.offsets.numpy(), index, "right")) - 1
    raise ValueError(f"{name!r}: index {int(listed.values[index, 0])} in a frame of {lengths[frame]} entities")
