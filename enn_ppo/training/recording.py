"""Recordings of frames and actions, for behavioural cloning: a folder of safetensors files, one for each chunk of frames.

`000012_9a3f27c1.safetensors` is chunk 12; the checksum of its bytes is in its name. A chunk is written aside and renamed, so that
a folder has whole chunks only, also after a crash. Its metadata `recording` is JSON: the format and the spaces. Its tensors, in
chunks of B frames:

    env_id, step                        (B,) int64; the step counts within the episode, from 0
    rewards, terminated, truncated      (B,) results of the actions *of this frame*
    values, final_values                (B,) value estimates of this frame, and of the state after a truncation (NaN: unknown)
    target/<name>                       (B, size) regression targets, if the frames have them
    features/<type>, visible/<type>     entities of a type, and whether the policy sees them (absent: it sees all)
    ids/<type>                          their numbers within the episode, -1 without an id (absent: none has one)
    actors/<action>                     entity indices inside the frame
    mask/<action>                       flags of the actors' choices, or of pairs of actors and actees (absent: all are allowed)
    actees/<action>                     entity indices inside the frame, of actions that select entities
    action/<action>, log_prob/<action>  what was chosen

From `features` on, a name stands for two tensors: `<name>.values`, and `<name>.offsets`, (B + 1,) int64.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.numpy
import safetensors.torch
import torch
from torch import Tensor

from enn_ppo.checkpoints.policy_file import first_line
from enn_ppo.training.files import flush_folder, replace_file
from enn_ppo.training.frames import Frames
from entity_gym.actions import ActionSpace
from entity_gym.actions.chains import selection_before
from entity_gym.actions.kind import has_global_entity
from entity_gym.batch.saving import spaces_difference, spaces_from_dict, spaces_to_dict
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace
from entity_gym.untrusted import parse_json, read_regular
from rogue_net import RaggedTensor
from rogue_net.batch.obs_batch import Place, batch_of_columns

#: Frames that are buffered before a chunk is written.
CHUNK_FRAMES = 4096
FORMAT = 5  # raised when an old reader would misread a new chunk
_CHUNK = re.compile(r"(\d{6,})_([0-9a-f]{8})\.safetensors")
_MOST_BYTES = 2**33
_WHOLE, _REAL, _FLAG = torch.int64, torch.float32, torch.bool
_OPTIONAL = ("visible", "ids", "mask", "mask_after")  # columns that are left out where they say nothing
#: Observation space, and action name -> its space.
Spaces = tuple[ObsSpace, Mapping[str, ActionSpace]]
#: Fields of `Frames` with a number for each frame.
_NUMBERS = {
    **dict.fromkeys(("env_id", "step"), _WHOLE),
    **dict.fromkeys(("rewards", "values", "final_values"), _REAL),
    **dict.fromkeys(("terminated", "truncated"), _FLAG),
}


@dataclass(frozen=True, kw_only=True)
class RecordedFrames(Frames):
    """B recorded frames, in order within each environment."""

    episode: Tensor  # (B,) int64, a number that no other episode of the recording has

    def returns(self, gamma: float) -> Tensor:
        """Discounted sums of rewards up to the end of each frame's own episode.

            G_t = r_t + γ G_{t+1}

        where G after the last step is 0 if the episode terminated, and the value estimate if it was truncated.

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


class Recorder:
    """Writes frames into a new recording.

    Each environment's frames must be added in the order in which they were played.

    Args:
        path: the folder, which is created.

    Raises:
        ValueError: the folder holds anything; also by the methods where it cannot be written, and keeps all earlier chunks.
    """

    def __init__(self, path: Path, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> None:
        self.path, self._spaces = path, (obs_space, action_space)
        self._pending: list[Frames] = []
        self.num_chunks = 0
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
        if _chunks_of(self.path):
            raise ValueError(f"{path} holds a recording already: remove it, or give another folder (record=...)")

    def add(self, frames: Frames) -> None:
        """Add frames; they are written once there are `CHUNK_FRAMES`, or by `flush`."""
        self._pending.append(frames)
        if sum(map(len, self._pending)) >= CHUNK_FRAMES:
            self.flush()

    def flush(self) -> None:
        """Write the added frames as a chunk, which is on the disk when this returns."""
        if not self._pending:
            return
        data, self._pending = _chunk_of(Frames.cat(self._pending), self._spaces), []
        with self._writing():
            replace_file(self.path / f"{self.num_chunks:06d}_{zlib.crc32(data):08x}.safetensors", data)
            flush_folder(self.path)
        self.num_chunks += 1

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"recording {self.path} cannot be written: {error.strerror or error}; it holds {self.num_chunks:,} whole chunks"
            ) from error


def read_all(paths: Path | str | Sequence[Path | str], spaces: Spaces | None = None) -> RecordedFrames:
    """Read all frames of recordings, which must have `spaces`, or those of the first. Episode numbers are unique across them.

    Raises:
        ValueError: a folder does not exist, is no recording or holds no frames, a chunk is damaged, or has other spaces.
    """
    folders = [Path(path) for path in ([paths] if isinstance(paths, Path | str) else paths)]
    other = "the environment" if spaces else f"recording {folders[0]}"
    parts: list[Frames] = []
    episodes: list[int] = []
    num_episodes = 0
    for folder in folders:
        chunks, last = _chunks_of(folder), dict[int, int]()  # environment -> its last episode
        if not chunks:
            raise ValueError(f"recording {folder} holds no frames: nothing was recorded up to the end of a chunk")
        for chunk in chunks:
            own, frames = _read_chunk(chunk)
            spaces = spaces or own
            if difference := spaces_difference(*(spaces_to_dict(*each) for each in (own, spaces))):
                raise ValueError(f"recording {folder} has other spaces than {other}: {difference}")
            parts.append(frames)
            for env, step in zip(frames.env_id.tolist(), frames.step.tolist(), strict=True):
                if step == 0 or env not in last:
                    last[env], num_episodes = num_episodes, num_episodes + 1
                episodes.append(last[env])
    return RecordedFrames(**vars(Frames.cat(parts)), episode=torch.tensor(episodes, dtype=torch.int64))


def _chunks_of(folder: Path) -> list[Path]:
    """The files of a recording, in order.

    Raises:
        ValueError: the folder cannot be listed, holds something else, or lacks a chunk; hidden files are no matter.
    """
    try:
        paths = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    except OSError as error:
        raise ValueError(f"recording {folder} cannot be read: {error.strerror or error}") from error
    for number, path in enumerate(paths):
        found = _CHUNK.fullmatch(path.name)
        if found is None:
            raise ValueError(f"{folder} is not a recording: it holds {path.name}, and a recording only chunks")
        if int(found[1]) != number:
            raise ValueError(f"recording {folder} is damaged: {path.name} stands where chunk {number} should be")
    return paths


def _chunk_of(frames: Frames, spaces: Spaces) -> bytes:
    """The bytes of a chunk."""
    columns = frames.obs.columns()
    columns |= {("action", name): column for name, column in frames.actions.items()}
    columns |= {("log_prob", name): column for name, column in frames.log_probs.items()}
    tensors = {name: getattr(frames, name) for name in _NUMBERS}
    tensors |= {f"target/{name}": column for name, column in (frames.targets or {}).items()}
    for (kind, name), column in columns.items():
        tensors[f"{kind}/{name}.values"], tensors[f"{kind}/{name}.offsets"] = column
    about = {"format": FORMAT, "spaces": spaces_to_dict(*spaces)}
    arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
    return safetensors.numpy.save(arrays, {"recording": json.dumps(about)})


def _read_chunk(path: Path) -> tuple[Spaces, Frames]:
    """The spaces and the frames of a chunk.

    Raises:
        ValueError: the chunk cannot be read or is damaged; the message names it.
    """
    try:
        data = read_regular(path, _MOST_BYTES)
        if not path.stem.endswith(f"_{zlib.crc32(data):08x}"):
            raise ValueError("its checksum is not the one in its name")
        metadata = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        about = parse_json(metadata["recording"])
        if about["format"] > FORMAT:
            raise ValueError(f"it has format {about['format']}, and this version of enn-ppo reads up to {FORMAT}")
        spaces = spaces_from_dict(about["spaces"])
        return spaces, _frames_of(safetensors.torch.load(data), *spaces)
    except Exception as error:  # a stranger's file can raise any exception
        raise ValueError(f"chunk {path} of a recording cannot be read: {first_line(error)}") from error


def _frames_of(tensors: Mapping[str, Tensor], obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> Frames:
    """The frames of `_chunk_of`, whose tensors must have the right types and shapes."""
    num_frames = len(tensors["env_id"])
    columns: dict[Place, RaggedTensor] = {}
    for place, (dtype, *shape) in _layout(obs_space, action_space).items():
        name = "/".join(place)
        if place[0] in _OPTIONAL and f"{name}.values" not in tensors:
            continue
        values = _checked(tensors, f"{name}.values", dtype, -1, *shape)
        offsets = _checked(tensors, f"{name}.offsets", _WHOLE, num_frames + 1)
        if offsets[0] != 0 or offsets[-1] != len(values) or bool((offsets.diff() < 0).any()):
            raise ValueError(f"{name}.offsets do not ascend from 0 to {len(values)}")
        columns[place] = RaggedTensor(values, offsets)
    for name, space in action_space.items():
        if ("mask", name) in columns and not space.selects:  # shared offsets, so that they are gathered once
            columns["mask", name] = columns["mask", name]._replace(offsets=columns["actors", name].offsets)
    targets = {
        name: _checked(tensors, f"target/{name}", _REAL, num_frames, size)
        for name, size in obs_space.targets.items()
        if f"target/{name}" in tensors
    }
    numbers: dict[str, Any] = {name: _checked(tensors, name, dtype, num_frames) for name, dtype in _NUMBERS.items()}
    return Frames(
        obs=batch_of_columns(num_frames, columns, {}),
        actions={name: columns["action", name] for name in action_space},
        log_probs={name: columns["log_prob", name] for name in action_space},
        targets=targets or None,
        **numbers,
    )


def _layout(obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> dict[Place, tuple[Any, ...]]:
    """Place of a ragged column -> its type, and the shape of a value."""
    widths = {name: len(entity.features) for name, entity in obs_space.entities.items()}
    if has_global_entity(obs_space, action_space):
        widths[GLOBAL_ENTITY] = len(obs_space.global_features)
    layout: dict[Place, tuple[Any, ...]] = {}
    for name, width in widths.items():
        layout |= {("features", name): (_REAL, width), ("visible", name): (_FLAG, 1), ("ids", name): (_WHOLE, 1)}
    for name, space in action_space.items():
        choices = 1 if space.selects else space.num_choices or 2 * space.width
        layout |= {("actors", name): (_WHOLE, 1), ("mask", name): (_FLAG, choices), ("log_prob", name): (_REAL,)}
        layout |= {("actees", name): (_WHOLE, 1)} if space.selects else {}
        layout |= {("mask_after", name): (_FLAG, choices)} if selection_before(name, action_space) else {}
        layout["action", name] = (_WHOLE, 1) if space.discrete else (_REAL, space.width)
    return layout


def _checked(tensors: Mapping[str, Tensor], name: str, dtype: torch.dtype, *shape: int) -> Tensor:
    """A tensor of a stranger's file, which must have this type and shape; the length -1 is any."""
    tensor = tensors[name]
    lengths = [given if wanted == -1 else wanted for given, wanted in zip(tensor.shape, shape, strict=False)]
    if tensor.dtype != dtype or list(tensor.shape) != lengths or len(shape) != tensor.dim():
        raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}, and should be {dtype} {list(shape)}")
    return tensor
