"""Recording frames and actions, for behavioural cloning and analysis: an Arrow IPC stream of compressed chunks.

A file begins with its schema (see `recording/columns.py`). Every chunk is a record batch of whole frames, compressed with zstd
and written with one call. A file needs no closing: after a crash it can be read up to the last whole chunk, and appended to.
(After a power failure chunks may be damaged, but none before the last `Recorder.state`.) Any program that reads Arrow streams
reads it:

    pyarrow.ipc.open_stream("expert.arrow").read_all()
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from enn_ppo.frames import Frames
from enn_ppo.recording.columns import CHECKSUM, Header, checksum, import_pyarrow, schema_of, to_record_batch
from enn_ppo.recording.frames import RecordedFrames
from enn_ppo.recording.reading import read_extent
from entity_gym.actions import ActionSpace
from entity_gym.batch.vec_obs import VecObs
from entity_gym.spaces import ObsSpace
from rogue_net import ActResult, ObsBatch

#: Frames that are held back at most, where nobody asks for a chunk earlier.
CHUNK_FRAMES = 4096
#: zstd's fastest usual level: on observations, higher ones save little and cost several times as much.
COMPRESSION_LEVEL = 1


class RecordingError(ValueError):
    """A recording cannot be written. The message says which, why, and what it holds."""


class Recorder:
    """Appends frames to a file.

    Each environment's frames must be added in the order in which they were played. An existing file is appended to after its
    last whole chunk. Only one process can write to a file at a time.

    Args:
        path: the file; folders are created.
        obs_space: what the frames hold.
        action_space: actions by name.
        logits: whether the logits of all choices are recorded too.
        state: of a resumed run: what `state` returned when it was saved; later frames are removed.

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
        self._head: bytes = self._schema.serialize().to_pybytes()  # beginning of every file
        self._options = _write_options()
        self._pending: list[RecordedFrames] = []
        self._num_pending = 0
        self._file = _open(self.path)
        try:
            self._begin(state)
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
        episode = self._number(frames.env_id.cpu().numpy(), frames.step.cpu().numpy())
        given = {each.name: getattr(frames, each.name) for each in fields(Frames)}
        self._pending.append(RecordedFrames(**given, episode=torch.from_numpy(episode)))
        self._num_pending += len(frames)
        if self._num_pending >= CHUNK_FRAMES:
            self.flush()

    def add_step(
        self, obs: ObsBatch, seen: VecObs, result: ActResult, outcome: VecObs, final_values: Tensor | None = None
    ) -> None:
        """Add one step of N environments.

        Args:
            obs: (N frames) input of the policy.
            seen: (N frames) the observations that `obs` was made from.
            result: actions, log-probs and values of the policy.
            outcome: (N frames) the next observations, with the rewards.
            final_values: (N,) value estimates of `outcome`, used where an episode is truncated; None: unknown.

        Raises:
            RecordingError: as `flush`.
        """
        truncated = torch.from_numpy(outcome.truncated)
        final = torch.full((len(obs),), torch.nan) if final_values is None else final_values.cpu()
        self.add(
            Frames(
                obs=obs,
                env_id=torch.from_numpy(seen.env_id),
                step=torch.from_numpy(seen.elapsed_step),
                actions=result.actions,
                log_probs={
                    name: result.actions[name]._replace(values=values) for name, values in result.log_probs.items()
                },
                logits=result.logits if self.logits else None,
                values=result.values,
                rewards=torch.from_numpy(outcome.reward),
                terminated=torch.from_numpy(outcome.done) & ~truncated,
                truncated=truncated,
                final_values=torch.where(truncated, final, 0.0),
            )
        )

    def flush(self) -> None:
        """Write the added frames as a chunk.

        Raises:
            RecordingError: the disk cannot be written. The file is closed, and holds what was written before.
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
            "episodes": self._episodes.copy(),
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
        """Find the end of the last whole chunk, from where the recording continues."""
        self._position, self.num_frames, self._next_episode = 0, 0, 0
        self._episodes: NDArray[np.int64] = np.zeros(
            0, np.int64
        )  # last episode number of each environment; -1: none yet
        size = os.fstat(self._file).st_size
        if state is not None:
            self._check_reaches(size, state)
            self._position, self.num_frames = int(state["position"]), int(state["num_frames"])
            self._next_episode = int(state["next_episode"])
            self._episodes = np.array(state["episodes"], np.int64)
        if (
            size > len(self._head) or os.pread(self._file, size, 0) != self._head[:size]
        ):  # else even the schema is incomplete
            extent = read_extent(self.path, self._header, full=state is None)
            if state is None:
                self._position, self.num_frames, self._next_episode = extent
        self._cut()
        if self._position == 0:
            self._write(self._head)

    def _check_reaches(self, size: int, state: Mapping[str, Any]) -> None:
        if size < state["position"]:
            raise RecordingError(
                f"recording {self.path} has {size} bytes, and had {state['position']} when the run was saved: it was removed "
                "or replaced; put it back, or record into another file (record=...)"
            )

    def _number(self, env_id: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.int64]:
        """The episode number of each frame: a new number at the first recorded frame of an episode."""
        missing = int(env_id.max(initial=-1)) + 1 - len(self._episodes)
        if missing > 0:
            self._episodes = np.concatenate([self._episodes, np.full(missing, -1)])
        order = np.argsort(env_id, kind="stable")  # environment by environment, in time
        env, rows = env_id[order], np.arange(len(order))
        is_first = np.concatenate([np.ones(1, np.bool_), env[1:] != env[:-1]])[: len(env)]
        begins = (step[order] == 0) | (is_first & (self._episodes[env] < 0))

        in_time = np.empty(len(order), np.bool_)
        in_time[order] = begins
        fresh = (self._next_episode - 1 + np.cumsum(in_time))[order]
        anchor = np.maximum.accumulate(np.where(begins | is_first, rows, 0))  # first frame of the same episode
        numbered = np.where(begins[anchor], fresh[anchor], self._episodes[env])

        self._next_episode += int(begins.sum())
        self._episodes[env] = numbered  # of several frames of an environment the last one counts
        episode = np.empty(len(order), np.int64)
        episode[order] = numbered
        return episode

    def _chunk(self, frames: RecordedFrames) -> memoryview:
        """The bytes of a record batch, without the schema."""
        pa = import_pyarrow()
        sink = pa.BufferOutputStream()
        writer = pa.ipc.new_stream(sink, self._schema, options=self._options)
        batch = to_record_batch(frames, self._schema)
        writer.write_batch(batch, custom_metadata={CHECKSUM: checksum(batch)})
        return memoryview(sink.getvalue())[len(self._head) :]

    def _write(self, data: bytes | memoryview) -> None:
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


def open_recorder(
    path: str | None,
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    *,
    logits: bool,
    saved: Mapping[str, Any] | None = None,
) -> Recorder | None:
    """The recorder of a run's settings.

    Args:
        path: the file; None: nothing is recorded.
        obs_space: what the frames hold.
        action_space: actions by name.
        logits: whether the logits of all choices are recorded too.
        saved: the recorder's `state` in the checkpoint of a resumed run; if it belongs to another file, this one is appended
            to.

    Raises:
        ValueError: as `Recorder`.
    """
    if path is None:
        return None
    state = saved if saved is not None and saved["path"] == path else None
    return Recorder(path, obs_space, action_space, logits=logits, state=state)


def _open(path: Path) -> int:
    """Open the file for reading and writing, create it if missing, and lock it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise RecordingError(f"recording {path} cannot be opened: {error.strerror or error}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise RecordingError(f"another process is recording into {path}: give each run its own file") from None
    except OSError:  # a file system without locks
        pass
    return file


def _write_options() -> Any:
    pa = import_pyarrow()
    return pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", COMPRESSION_LEVEL))
