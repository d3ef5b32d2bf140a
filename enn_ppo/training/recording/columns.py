"""Frames of a recording, and their columns: Arrow record batches with a row for each frame.

    episode, env, step                  numbers; the step counts within the episode, from 0
    reward, done, truncated             result of the actions *of this frame*
    value, final_value                  value estimates of this frame, and of the state after a truncation (NaN: unknown)
    features/<entity type>              list of rows of numbers, in entity order; of types without features a list of nulls
    visible/<entity type>               list of flags; null: all entities of the type in the chunk are visible
    actors/<action>                     list of entity indices inside the frame
    mask/<action>                       list of rows of flags; null: nothing in the chunk is masked
    actees/<action>, pairs/<action>     of select-entity: entity indices, and flags actor by actor (null: all are allowed)
    action/<action>                     list of choices, of entity indices (-1: none), or of rows of numbers
    log_prob/<action>                   list of numbers
    logits/<action>                     list of rows, of select-entity actor by actor; only if logits are recorded

The schema's metadata holds the spaces, so that a recording can be read without the environment. The metadata of the schema and of
every chunk hold a checksum of all bytes of that schema or chunk.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from enn_ppo.training.frames import Frames
from entity_gym.actions import ActionSpace
from entity_gym.actions.kind import has_global_entity
from entity_gym.batch.saving import spaces_from_dict, spaces_to_dict
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace
from rogue_net import ObsBatch, RaggedTensor
from rogue_net.batch.masks import ActionMask

FORMAT = 2  # raised when an old reader would misread a new file
#: Metadata of a schema or chunk whose checksum `seal` has not yet written.
UNSEALED = {"enn_ppo.checksum": "crc32=00000000"}
_CHECKSUM = re.compile(rb"crc32=([0-9a-f]{8})")
_FORMAT_KEY, _SPACES_KEY, _LOGITS_KEY = "enn_ppo.training.recording.format", "enn_ppo.spaces", "enn_ppo.logits"


@dataclass(frozen=True, kw_only=True)
class RecordedFrames(Frames):
    """B recorded frames, in order within each environment. Values are in the unit of rewards."""

    episode: Tensor  # (B,) int64, a number that no other episode of the recording has

    def returns(self, gamma: float) -> Tensor:
        """Discounted sums of rewards up to the end of each frame's own episode.

            G_t = r_t + γ G_{t+1}

        where G after the last step is 0 if the episode terminated, and the value estimate if it was truncated.

        Args:
            gamma: γ in [0, 1].

        Returns:
            (B,) float32; NaN if the end of the episode is not among these frames, or if it was truncated without a value
            estimate.
        """
        unknown = torch.where(self.truncated, self.final_values.double(), torch.nan)
        bootstrap = torch.where(self.terminated, 0.0, unknown).tolist()
        rewards, episodes = self.rewards.tolist(), self.episode.tolist()
        returns = [0.0] * len(rewards)
        following: dict[int, float] = {}  # episode -> the return of its next frame
        for i in reversed(torch.argsort(self.step, stable=True).tolist()):
            returns[i] = rewards[i] + gamma * following.get(episodes[i], bootstrap[i])
            following[episodes[i]] = returns[i]
        return torch.tensor(returns, dtype=torch.float32)


class Header(NamedTuple):
    """The spaces of a recording, and whether logits are recorded."""

    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]
    logits: bool


def import_pyarrow() -> ModuleType:
    """Import pyarrow, which reads and writes the format.

    Raises:
        ValueError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise ValueError(f'recordings need pyarrow: pip install "enn-ppo[record]" ({error})') from error
    module: ModuleType = pyarrow
    return module


def schema_of(header: Header) -> Any:
    """The Arrow schema of a recording with this header."""
    pa = import_pyarrow()
    obs_space, action_space, logits = header

    def rows(item: Any, width: int) -> Any:
        return pa.list_(pa.list_(item, width) if width else pa.null())

    columns = {"episode": pa.int64(), "env": pa.int32(), "step": pa.int32(), "reward": pa.float32()}
    columns |= {"done": pa.bool_(), "truncated": pa.bool_(), "value": pa.float32(), "final_value": pa.float32()}
    for name, width in _widths(obs_space, action_space).items():
        columns[f"features/{name}"] = rows(pa.float32(), width)
        columns[f"visible/{name}"] = pa.list_(pa.bool_())
    for name, space in action_space.items():
        columns[f"actors/{name}"] = pa.list_(pa.int32())
        choice, logit = pa.list_(pa.int32()), pa.list_(pa.float32())
        if space.selects:
            columns |= {f"actees/{name}": pa.list_(pa.int32()), f"pairs/{name}": pa.list_(pa.bool_())}
        elif space.num_choices is None:
            choice, logit = rows(pa.float32(), space.width), rows(pa.float32(), 2 * space.width)
        else:
            columns[f"mask/{name}"] = rows(pa.bool_(), space.num_choices)
            logit = rows(pa.float32(), space.num_choices)
        columns |= {f"action/{name}": choice, f"log_prob/{name}": pa.list_(pa.float32())}
        if logits:
            columns[f"logits/{name}"] = logit
    spaces = json.dumps(spaces_to_dict(obs_space, action_space))
    metadata = {_FORMAT_KEY: str(FORMAT), _SPACES_KEY: spaces, _LOGITS_KEY: json.dumps(logits), **UNSEALED}
    return pa.schema(list(columns.items()), metadata=metadata)


def header_of(schema: Any, path: object) -> Header:
    """The header in the Arrow schema of the recording `path`, whose checksum is right.

    Raises:
        ValueError: the recording has a newer format.
    """
    metadata = {key.decode(): value.decode() for key, value in schema.metadata.items()}
    if int(metadata[_FORMAT_KEY]) > FORMAT:
        raise ValueError(
            f"{path} is a recording of format {metadata[_FORMAT_KEY]}, and this version of enn-ppo reads up to {FORMAT}"
        )
    return Header(*spaces_from_dict(json.loads(metadata[_SPACES_KEY])), bool(json.loads(metadata[_LOGITS_KEY])))


def seal(message: bytes) -> bytes:
    """Write the checksum of a schema or chunk, in the bytes of Arrow, into its own metadata, which must be `UNSEALED`."""
    place = _CHECKSUM.search(message)
    assert place is not None
    start, end = place.span(1)
    return message[:start] + b"%08x" % zlib.crc32(message) + message[end:]


def is_sealed(message: bytes) -> bool:
    """Whether a schema or chunk is as `seal` returned it. Arrow itself only checks that it is well formed."""
    place = _CHECKSUM.search(message)
    if place is None:
        return False
    start, end = place.span(1)
    return place[1] == b"%08x" % zlib.crc32(message[:start] + b"0" * (end - start) + message[end:])


def to_record_batch(frames: RecordedFrames, schema: Any) -> Any:
    """Convert frames to a record batch."""
    pa = import_pyarrow()
    obs = frames.obs
    columns: dict[str, RaggedTensor | Tensor | None] = {
        "episode": frames.episode,
        "env": frames.env_id,
        "step": frames.step,
        "reward": frames.rewards,
        "done": frames.terminated | frames.truncated,
        "truncated": frames.truncated,
        "value": frames.values,
        "final_value": frames.final_values,
    }
    for name, features in obs.features.items():
        columns |= {f"features/{name}": features, f"visible/{name}": obs.visible.get(name)}
    for name, mask in obs.action_masks.items():
        columns |= {f"actors/{name}": mask.actors, f"action/{name}": frames.actions[name]}
        columns[f"log_prob/{name}"] = frames.log_probs[name]
        if mask.actees is not None:
            columns |= {f"actees/{name}": mask.actees, f"pairs/{name}": mask.mask}
        elif f"mask/{name}" in schema.names:
            columns[f"mask/{name}"] = mask.mask
    columns |= {f"logits/{name}": ragged for name, ragged in (frames.logits or {}).items()}
    arrays = [_array(pa, columns[field.name], field.type, len(frames)) for field in schema]
    return pa.record_batch(arrays, schema=schema)


def from_record_batch(batch: Any, header: Header) -> RecordedFrames:
    """The inverse of `to_record_batch`."""

    def flat(name: str) -> Tensor:
        return torch.from_numpy(np.array(batch.column(name)))

    def optional(name: str) -> RaggedTensor | None:
        column = batch.column(name)
        return None if len(column) and column.null_count == len(column) else _ragged(column)

    def ragged(name: str) -> RaggedTensor:
        return _ragged(batch.column(name))

    def mask(name: str, space: ActionSpace) -> ActionMask:
        actors = ragged(f"actors/{name}")
        if space.selects:
            return ActionMask(actors, ragged(f"actees/{name}"), optional(f"pairs/{name}"))
        allowed = None if space.num_choices is None else optional(f"mask/{name}")
        return ActionMask(actors, mask=None if allowed is None else allowed._replace(offsets=actors.offsets))

    obs_space, action_space, logits = header
    visible = {name: optional(f"visible/{name}") for name in _widths(obs_space, action_space)}
    obs = ObsBatch(
        num_frames=len(batch),
        features={name: ragged(f"features/{name}") for name in visible},
        action_masks={name: mask(name, space) for name, space in action_space.items()},
        visible={name: flags for name, flags in visible.items() if flags is not None},
    )
    log_probs = {name: ragged(f"log_prob/{name}") for name in action_space}
    done, truncated = flat("done"), flat("truncated")
    return RecordedFrames(
        obs=obs,
        env_id=flat("env").long(),
        step=flat("step").long(),
        actions={name: ragged(f"action/{name}") for name in action_space},
        log_probs={name: each._replace(values=each.values[:, 0]) for name, each in log_probs.items()},
        logits={name: ragged(f"logits/{name}") for name in action_space} if logits else None,
        values=flat("value"),
        rewards=flat("reward"),
        terminated=done & ~truncated,
        truncated=truncated,
        final_values=flat("final_value"),
        episode=flat("episode"),
    )


def _widths(obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> dict[str, int]:
    """Entity type -> features in a row, in the order of `ObsBatch.features`."""
    widths = {name: len(entity.features) for name, entity in obs_space.entities.items()}
    if has_global_entity(obs_space, action_space):
        widths[GLOBAL_ENTITY] = len(obs_space.global_features)
    return widths


def _array(pa: ModuleType, column: RaggedTensor | Tensor | None, kind: Any, num_frames: int) -> Any:
    if column is None:
        return pa.nulls(num_frames, kind)
    if isinstance(column, Tensor):
        return pa.array(column.cpu().numpy(), kind)
    item = kind.value_type
    values = column.values.cpu().numpy()
    if pa.types.is_null(item):
        items = pa.nulls(len(values))
    elif pa.types.is_fixed_size_list(item):
        items = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1), item.value_type), item.list_size)
    else:
        items = pa.array(values.reshape(-1), item)
    return pa.ListArray.from_arrays(pa.array(column.offsets.cpu().numpy(), pa.int32()), items)


def _ragged(column: Any) -> RaggedTensor:
    """Convert an Arrow column of lists to sequences; integers become int64."""
    offsets = torch.from_numpy(np.array(column.offsets, np.int64))
    items = column.values
    if items.type == "null":
        return RaggedTensor(torch.zeros(len(items), 0), offsets)
    width = 1
    if hasattr(items.type, "list_size"):
        width, items = items.type.list_size, items.values
    values = torch.from_numpy(np.array(items.to_numpy(zero_copy_only=False))).view(-1, width)
    return RaggedTensor(values.long() if values.dtype == torch.int32 else values, offsets)
