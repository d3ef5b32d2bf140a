"""Recording frames and actions, for behavioural cloning and analysis: an Arrow IPC stream of compressed chunks.

A file begins with its schema (see `recording/columns.py`). Every chunk is a record batch of whole frames, compressed with zstd
and written with one call. Checksums in the schema and in every chunk tell damage. A file needs no closing: after a crash it can
be read up to the last whole chunk, and appended to.
(After a power failure chunks may be damaged, but none before the last `Recorder.state`.) Any program that reads Arrow streams
reads it:

    pyarrow.ipc.open_stream("expert.arrow").read_all()
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from filelock import lock_descriptor
from torch import Tensor

from enn_ppo.training.frames import Frames
from enn_ppo.training.recording.columns import (
    UNSEALED,
    Header,
    RecordedFrames,
    import_pyarrow,
    schema_of,
    seal,
    to_record_batch,
)
from enn_ppo.training.recording.reading import read_extent
from entity_gym.actions import ActionSpace
from entity_gym.spaces import ObsSpace

#: Frames that are buffered before a chunk is written.
CHUNK_FRAMES = 4096
#: zstd's fastest usual level: on observations, higher ones save little and cost several times as much.
COMPRESSION_LEVEL = 1


class RecordingError(ValueError):
    """A recording cannot be written. The message names the file, the cause, and the number of whole frames in it."""


class Recorder:
    """Appends frames to a file.

    Each environment's frames must be added in the order in which they were played. An existing file is appended to after its
    last whole chunk. Only one process can write to a file at a time.

    Args:
        path: the file; folders are created.
        logits: whether the logits of all choices are recorded too.
        state: the saved `state()` of a resumed run, whose later frames are removed from the file. If it belongs to another file,
            this one is appended to.

    Raises:
        ValueError: the file cannot be written, is no recording, has other spaces, or is shorter than `state` says.
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
        self.path, self._given = Path(path), str(path)
        self.logits = logits
        self._header = Header(obs_space, dict(action_space), logits)
        self._schema = schema_of(self._header)
        self._head = seal(self._schema.serialize().to_pybytes())  # beginning of every file
        self._pending: list[RecordedFrames] = []
        self._num_pending = 0
        self._file = _open(self.path)
        try:
            self._begin(state if state and state["path"] == self._given else None)
        except BaseException:
            self._release()
            raise

    def add(self, frames: Frames) -> None:
        """Add frames; they are written once there are `CHUNK_FRAMES`, or by `flush`.

        Raises:
            RecordingError: as `flush`.
        """
        assert self._file >= 0, "closed"
        assert (frames.logits is not None) == self.logits
        self._pending.append(RecordedFrames(**vars(frames), episode=self._episode_of(frames)))
        self._num_pending += len(frames)
        if self._num_pending >= CHUNK_FRAMES:
            self.flush()

    def flush(self) -> None:
        """Write the added frames as a chunk.

        Raises:
            RecordingError: the file cannot be written. It is closed and keeps all earlier chunks.
        """
        assert self._file >= 0, "closed"
        if not self._num_pending:
            return
        pending, self._pending, self._num_pending = self._pending, [], 0
        frames = RecordedFrames.cat(pending)
        self._write(self._chunk(frames))
        self.num_frames += len(frames)

    def state(self) -> dict[str, Any]:
        """Position in the file, for a checkpoint. All frames are on the disk when this returns.

        Raises:
            RecordingError: as `flush`.
        """
        self.flush()
        try:
            os.fsync(self._file)
        except OSError as error:
            self._give_up(error)
        return {
            "path": self._given,
            "position": self._position,
            "num_frames": self.num_frames,
            "next_episode": self._next_episode,
            "episodes": list(self._episodes.items()),
        }

    def close(self) -> None:
        """Write the remaining frames. May be called twice.

        Raises:
            RecordingError: as `flush`.
        """
        try:
            if self._file >= 0:
                self.flush()
        finally:
            self._release()

    def _begin(self, state: Mapping[str, Any] | None) -> None:
        """Find the end of the last whole chunk, after which the recording continues."""
        self._position = self.num_frames = self._next_episode = 0
        self._episodes: dict[int, int] = {}  # environment -> its last episode
        size = os.fstat(self._file).st_size
        if state is not None:
            if size < state["position"]:
                raise RecordingError(
                    f"recording {self.path} has {size} bytes, and had {state['position']} when the run was saved: it was "
                    "removed or replaced; put it back, or record into another file (record=...)"
                )
            self._position, self.num_frames = state["position"], state["num_frames"]
            self._next_episode, self._episodes = state["next_episode"], dict(state["episodes"])
        is_new = size <= len(self._head) and os.read(self._file, size) == self._head[:size]  # empty or a cut schema
        if not is_new:
            extent = read_extent(self.path, self._header, full=state is None)
            if state is None:
                self._position, self.num_frames, self._next_episode = extent
        self._cut()
        if self._position == 0:
            self._write(self._head)

    def _episode_of(self, frames: Frames) -> Tensor:
        """The episode number of each frame: a new number at the first recorded frame of an episode."""
        numbers = []
        for env, step in zip(frames.env_id.tolist(), frames.step.tolist(), strict=True):
            if step == 0 or env not in self._episodes:
                self._episodes[env] = self._next_episode
                self._next_episode += 1
            numbers.append(self._episodes[env])
        return torch.tensor(numbers, dtype=torch.int64)

    def _chunk(self, frames: RecordedFrames) -> bytes:
        """The bytes of a record batch, without the schema."""
        pa = import_pyarrow()
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", COMPRESSION_LEVEL))
        sink = pa.BufferOutputStream()
        writer = pa.ipc.new_stream(sink, self._schema, options=options)
        writer.write_batch(to_record_batch(frames, self._schema), custom_metadata=UNSEALED)
        return seal(sink.getvalue().to_pybytes()[len(self._head) :])

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            self._give_up(error)
        self._position += len(data)

    def _cut(self) -> None:
        os.ftruncate(self._file, self._position)
        os.lseek(self._file, self._position, os.SEEK_SET)

    def _give_up(self, error: OSError) -> None:
        """Truncate the file to its last whole chunk if possible, and close it."""
        with suppress(OSError):
            self._cut()
        self._pending, self._num_pending = [], 0
        self._release()
        raise RecordingError(
            f"recording into {self.path} failed: {error.strerror or error}; it holds {self.num_frames:,} whole frames"
        ) from error

    def _release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _open(path: Path) -> int:
    """Open the file for reading and writing, create it if missing, and lock it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    except OSError as error:
        raise RecordingError(f"recording {path} cannot be opened: {error.strerror or error}") from error
    with suppress(OSError):  # a file system without locks
        # Windows would lock readers out, too.
        if os.name != "nt" and not lock_descriptor(file, blocking=False):
            os.close(file)
            raise RecordingError(f"another process is recording into {path}: give each run its own file")
    return file
