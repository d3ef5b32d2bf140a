"""Recordings of frames and actions, for behavioural cloning: a folder of safetensors files, one for each chunk of frames.

`000012_9a3f27c1.safetensors` is chunk 12; the checksum of its bytes is in its name. A chunk is written aside and renamed, so that
a folder has whole chunks only, also after a crash. Its metadata `recording` is JSON: the format, the spaces, whether logits are
recorded, and the first episode number that no chunk up to this one has. Its tensors, in chunks of B frames:

    episode, env_id, step               (B,) int64; the step counts within the episode, from 0
    rewards, terminated, truncated      (B,) results of the actions *of this frame*
    values, final_values                (B,) value estimates of this frame, and of the state after a truncation (NaN: unknown)
    target/<name>                       (B, size) regression targets, if the frames have them
    features/<type>, visible/<type>     entities of a type, and whether the policy sees them (absent: it sees all)
    ids/<type>                          their numbers within the episode, -1 without an id (absent: none has one)
    actors/<action>                     entity indices inside the frame
    mask/<action>                       flags of the actors' choices, or of pairs of actors and actees (absent: all are allowed)
    actees/<action>                     entity indices inside the frame, of actions that select entities
    action/<action>, log_prob/<action>  what was chosen
    logits/<action>                     as `ActResult.logits`, if logits are recorded

From `features` on, a name stands for two tensors: `<name>.values`, and `<name>.offsets`, (B + 1,) int64.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.numpy
import safetensors.torch
import torch
from torch import Tensor

from enn_ppo.checkpoints.policy_file import first_line
from enn_ppo.training.files import flush_folder, replace_file
from enn_ppo.training.frames import Frames
from entity_gym.actions import ActionSpace
from entity_gym.actions.kind import has_global_entity
from entity_gym.batch.saving import spaces_difference, spaces_from_dict, spaces_to_dict
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace
from entity_gym.untrusted import parse_json, read_regular
from rogue_net import ObsBatch, RaggedTensor
from rogue_net.batch.masks import ActionMask

#: Frames that are buffered before a chunk is written.
CHUNK_FRAMES = 4096
FORMAT = 3  # raised when an old reader would misread a new chunk
_CHUNK = re.compile(r"(\d{6,})_([0-9a-f]{8})\.safetensors")
_MOST_BYTES = 2**33
_WHOLE, _REAL, _FLAG = torch.int64, torch.float32, torch.bool
#: Fields of `RecordedFrames` with a number for each frame.
_NUMBERS = {
    **dict.fromkeys(("episode", "env_id", "step"), _WHOLE),
    **dict.fromkeys(("rewards", "values", "final_values"), _REAL),
    **dict.fromkeys(("terminated", "truncated"), _FLAG),
}


class RecordingError(ValueError):
    """A recording cannot be written. The message names the folder, the cause, and the number of whole chunks in it."""


class Header(NamedTuple):
    """The spaces of a recording, and whether logits are recorded."""

    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]
    logits: bool


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


class Recorder:
    """Appends frames to a recording.

    Each environment's frames must be added in the order in which they were played.

    Args:
        path: the folder, which is created.
        logits: whether the logits of all choices are recorded too.
        state: the saved `state()` of a resumed run, whose later chunks are deleted. If it belongs to another folder, this one is
            appended to.

    Raises:
        ValueError: the folder cannot be written, is no recording, has other spaces, or has fewer chunks than `state` says.
    """

    def __init__(
        self,
        path: Path | str,
        obs_space: ObsSpace,
        action_space: Mapping[str, ActionSpace],
        *,
        logits: bool = False,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self._given, self.logits = Path(path), str(path), logits
        self._header = Header(obs_space, dict(action_space), logits)
        self._pending: list[RecordedFrames] = []
        self._episodes: dict[int, int] = {}  # environment -> its last episode
        self._next_episode = 0
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordingError(f"recording {path} cannot be made: {error.strerror or error}") from error
        chunks = _chunks_of(self.path)
        resumed = state if state and state["path"] == self._given else None
        self.num_chunks = resumed["chunks"] if resumed else len(chunks)
        if self.num_chunks > len(chunks):
            raise RecordingError(
                f"recording {path} has {len(chunks)} chunks, and had {self.num_chunks} when the run was saved: it was removed or "
                "replaced; put it back, or record into another folder (record=...)"
            )
        if self.num_chunks:
            header, self._next_episode, _ = _read_chunk(chunks[self.num_chunks - 1])
            _check_appended(header, self._header, self.path)
        if resumed:
            self._next_episode, self._episodes = resumed["next_episode"], dict(resumed["episodes"])
        try:
            for chunk in reversed(chunks[self.num_chunks :]):  # the last first, so that a crash leaves no gap
                chunk.unlink()
        except OSError as error:
            raise RecordingError(f"{chunk} cannot be deleted: {error.strerror or error}") from error

    def add(self, frames: Frames) -> None:
        """Add frames; they are written once there are `CHUNK_FRAMES`, or by `flush`.

        Raises:
            RecordingError: as `flush`.
        """
        assert (frames.logits is not None) == self.logits
        self._pending.append(RecordedFrames(**vars(frames), episode=self._episode_of(frames)))
        if sum(map(len, self._pending)) >= CHUNK_FRAMES:
            self.flush()

    def flush(self) -> None:
        """Write the added frames as a chunk, which is on the disk when this returns.

        Raises:
            RecordingError: the folder cannot be written, or somebody else has written into it. It keeps all earlier chunks.
        """
        if not self._pending:
            return
        frames, self._pending = RecordedFrames.cat(self._pending), []
        data = _chunk_of(frames, self._header, self._next_episode)
        try:
            if len(_chunks_of(self.path)) != self.num_chunks:
                raise RecordingError(
                    f"another process has written into the recording {self.path}: give each run its own folder"
                )
            replace_file(self.path / f"{self.num_chunks:06d}_{zlib.crc32(data):08x}.safetensors", data)
            flush_folder(self.path)
        except OSError as error:
            raise RecordingError(
                f"recording into {self.path} failed: {error.strerror or error}; it holds {self.num_chunks:,} whole chunks"
            ) from error
        self.num_chunks += 1

    def state(self) -> dict[str, Any]:
        """Position in the recording, for a checkpoint. All frames are on the disk when this returns.

        Raises:
            RecordingError: as `flush`.
        """
        self.flush()
        return {
            "path": self._given,
            "chunks": self.num_chunks,
            "next_episode": self._next_episode,
            "episodes": list(self._episodes.items()),
        }

    def _episode_of(self, frames: Frames) -> Tensor:
        """The episode number of each frame: a new number at the first recorded frame of an episode."""
        numbers = []
        for env, step in zip(frames.env_id.tolist(), frames.step.tolist(), strict=True):
            if step == 0 or env not in self._episodes:
                self._episodes[env] = self._next_episode
                self._next_episode += 1
            numbers.append(self._episodes[env])
        return torch.tensor(numbers, dtype=torch.int64)


def read_header(path: Path | str) -> Header:
    """The spaces of a recording, and whether it has logits.

    Raises:
        ValueError: the folder does not exist or is no recording, or its first chunk is damaged.
    """
    chunks = _chunks_of(Path(path))
    if not chunks:
        raise ValueError(f"recording {path} holds no frames: nothing was recorded up to the end of a chunk")
    return _read_chunk(chunks[0])[0]


def read_frames(paths: Path | str | Sequence[Path | str]) -> Iterator[RecordedFrames]:
    """Yield the chunks of one or several recordings. Episode numbers are unique across them.

    Raises:
        ValueError: a folder does not exist or is no recording, a chunk is damaged, or the recordings have different spaces.
    """
    first: tuple[Header, Path] | None = None
    taken = 0
    for path in map(Path, [paths] if isinstance(paths, Path | str) else paths):
        end = taken
        for chunk in _chunks_of(path):
            header, next_episode, frames = _read_chunk(chunk)
            first = first or (header, path)
            if difference := _difference(first[0], header):
                raise ValueError(f"recording {path} has other spaces than recording {first[1]}: {difference}")
            end = taken + next_episode
            yield replace(frames, episode=frames.episode + taken)
        taken = end


def read_all(paths: Path | str | Sequence[Path | str]) -> RecordedFrames:
    """Read all frames of one or several recordings into memory.

    Raises:
        ValueError: as `read_frames`, or there are no frames.
    """
    chunks = list(read_frames(paths))
    if not chunks:
        names = paths if isinstance(paths, Path | str) else ", ".join(map(str, paths))
        raise ValueError(f"recording {names} holds no frames: nothing was recorded up to the end of a chunk")
    return RecordedFrames.cat(chunks)


def _chunks_of(folder: Path) -> list[Path]:
    """The files of a recording, in order.

    Raises:
        ValueError: the folder cannot be listed, holds something else, or lacks a chunk; hidden files are no matter.
    """
    try:
        names = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
    except OSError as error:
        reason = "there is no such folder" if isinstance(error, FileNotFoundError) else error.strerror or error
        raise ValueError(f"recording {folder} cannot be read: {reason}") from error
    numbered: dict[int, Path] = {}
    for name in names:
        found = _CHUNK.fullmatch(name)
        if found is None:
            raise ValueError(f"{folder} is not a recording: it holds {name}, and a recording only chunks")
        if int(found[1]) in numbered:
            raise ValueError(f"recording {folder} has two chunks {found[1]}: two runs have recorded into it")
        numbered[int(found[1])] = folder / name
    for number in range(len(numbered)):
        if number not in numbered:
            raise ValueError(f"recording {folder} lacks chunk {number:06d}, and has later ones")
    return [numbered[number] for number in range(len(numbered))]


def _chunk_of(frames: RecordedFrames, header: Header, next_episode: int) -> bytes:
    """The bytes of a chunk."""
    tensors: dict[str, Tensor] = {}

    def put(name: str, column: RaggedTensor | Tensor | None) -> None:
        if isinstance(column, RaggedTensor):
            tensors[f"{name}.values"], tensors[f"{name}.offsets"] = column
        elif column is not None:
            tensors[name] = column

    for name in _NUMBERS:
        put(name, getattr(frames, name))
    for name, target in (frames.targets or {}).items():
        put(f"target/{name}", target)
    for name, features in frames.obs.features.items():
        put(f"features/{name}", features)
        put(f"visible/{name}", frames.obs.visible.get(name))
        put(f"ids/{name}", frames.obs.ids.get(name))
    for name, mask in frames.obs.action_masks.items():
        put(f"actors/{name}", mask.actors)
        put(f"actees/{name}", mask.actees)
        put(f"mask/{name}", mask.mask)
        put(f"action/{name}", frames.actions[name])
        put(f"log_prob/{name}", frames.log_probs[name])
        put(f"logits/{name}", frames.logits[name] if frames.logits else None)
    about = {
        "format": FORMAT,
        "spaces": spaces_to_dict(header.obs_space, header.action_space),
        "logits": header.logits,
        "next_episode": next_episode,
    }
    arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
    return safetensors.numpy.save(arrays, {"recording": json.dumps(about)})


def _read_chunk(path: Path) -> tuple[Header, int, RecordedFrames]:
    """The header, the first episode number that no chunk up to this one has, and the frames.

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
        header = Header(*spaces_from_dict(about["spaces"]), bool(about["logits"]))
        return header, int(about["next_episode"]), _frames_of(safetensors.torch.load(data), header)
    except Exception as error:  # a stranger's file can raise any exception
        raise ValueError(f"chunk {path} of a recording cannot be read: {first_line(error)}") from error


def _frames_of(tensors: Mapping[str, Tensor], header: Header) -> RecordedFrames:
    """The frames of `_chunk_of`, whose tensors must have the right types and shapes."""
    num_frames = len(tensors["episode"])

    def numbers(name: str, dtype: torch.dtype, *shape: int) -> Tensor:
        return _checked(name, tensors[name], dtype, num_frames, *shape)

    def ragged(name: str, dtype: torch.dtype, *shape: int) -> RaggedTensor:
        values = _checked(f"{name}.values", tensors[f"{name}.values"], dtype, -1, *shape)
        offsets = _checked(f"{name}.offsets", tensors[f"{name}.offsets"], _WHOLE, num_frames + 1)
        if offsets[0] != 0 or offsets[-1] != len(values) or bool((offsets.diff() < 0).any()):
            raise ValueError(f"{name}.offsets do not ascend from 0 to {len(values)}")
        return RaggedTensor(values, offsets)

    def optional(name: str, dtype: torch.dtype, *shape: int) -> RaggedTensor | None:
        return ragged(name, dtype, *shape) if f"{name}.values" in tensors else None

    features: dict[str, RaggedTensor] = {}
    visible: dict[str, RaggedTensor] = {}
    ids: dict[str, RaggedTensor] = {}
    for name, width in _widths(header).items():
        features[name] = ragged(f"features/{name}", _REAL, width)
        if (flags := optional(f"visible/{name}", _FLAG, 1)) is not None:
            visible[name] = flags
        if (numbered := optional(f"ids/{name}", _WHOLE, 1)) is not None:
            ids[name] = numbered
    masks: dict[str, ActionMask] = {}
    actions: dict[str, RaggedTensor] = {}
    logits: dict[str, RaggedTensor] = {}
    for name, space in header.action_space.items():
        width = 1 if space.selects else space.num_choices or 2 * space.width
        actors = ragged(f"actors/{name}", _WHOLE, 1)
        actees = ragged(f"actees/{name}", _WHOLE, 1) if space.selects else None
        mask = optional(f"mask/{name}", _FLAG, width)
        if mask is not None and not space.selects:
            mask = mask._replace(offsets=actors.offsets)  # shared, so that they are gathered once
        masks[name] = ActionMask(actors, actees, mask)
        is_choice = space.selects or space.num_choices is not None
        actions[name] = ragged(f"action/{name}", *((_WHOLE, 1) if is_choice else (_REAL, space.width)))
        if header.logits:
            logits[name] = ragged(f"logits/{name}", _REAL, width)
    targets = {name: f"target/{name}" for name in header.obs_space.targets if f"target/{name}" in tensors}
    return RecordedFrames(
        obs=ObsBatch(num_frames=num_frames, features=features, action_masks=masks, visible=visible, ids=ids),
        actions=actions,
        log_probs={name: ragged(f"log_prob/{name}", _REAL) for name in actions},
        logits=logits if header.logits else None,
        targets={name: numbers(key, _REAL, header.obs_space.targets[name]) for name, key in targets.items()} or None,
        **{name: numbers(name, dtype) for name, dtype in _NUMBERS.items()},
    )


def _checked(name: str, tensor: Tensor, dtype: torch.dtype, *shape: int) -> Tensor:
    """A tensor of a stranger's file, which must have this type and shape; the length -1 is any."""
    lengths = [given if wanted == -1 else wanted for given, wanted in zip(tensor.shape, shape, strict=False)]
    if tensor.dtype != dtype or list(tensor.shape) != lengths or len(shape) != tensor.dim():
        raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}, and should be {dtype} {list(shape)}")
    return tensor


def _widths(header: Header) -> dict[str, int]:
    """Entity type -> features of an entity, in the order of `ObsBatch.features`."""
    widths = {name: len(entity.features) for name, entity in header.obs_space.entities.items()}
    if has_global_entity(header.obs_space, header.action_space):
        widths[GLOBAL_ENTITY] = len(header.obs_space.global_features)
    return widths


def _difference(expected: Header, given: Header) -> str | None:
    return spaces_difference(*(spaces_to_dict(each.obs_space, each.action_space) for each in (expected, given)))


def _check_appended(given: Header, expected: Header, path: Path) -> None:
    if difference := _difference(expected, given):
        raise ValueError(f"recording {path} has other spaces than what would be recorded: {difference}")
    if given.logits != expected.logits:
        have, want = ("no", "with") if expected.logits else ("its", "without")
        raise ValueError(
            f"recording {path} has {have} logits, and cannot be appended to {want} them: give another folder, or "
            f"record_logits={str(given.logits).lower()}"
        )
