"""Reading recordings: chunk by chunk, episode by episode, or all at once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from enn_ppo.training.recording.columns import (
    CHECKSUM,
    Header,
    RecordedFrames,
    checksum,
    from_record_batch,
    header_of,
    import_pyarrow,
)
from entity_gym.batch.saving import spaces_difference, spaces_to_dict

Paths = Path | str | Sequence[Path | str]


@dataclass(frozen=True)
class RecordedEpisode:
    """One recorded episode."""

    frames: RecordedFrames  # L frames, in order

    @property
    def env_id(self) -> int:
        """The environment that played it."""
        return int(self.frames.env_id[0])

    @property
    def reward(self) -> float:
        """Sum of its recorded rewards."""
        return float(self.frames.rewards.double().sum())

    @property
    def is_whole(self) -> bool:
        """Whether it was recorded from its first step to its end."""
        return int(self.frames.step[0]) == 0 and bool(self.frames.terminated[-1] | self.frames.truncated[-1])

    def __len__(self) -> int:
        return len(self.frames)


def read_header(path: Path | str) -> Header:
    """The spaces of a recording, and whether it has logits.

    Raises:
        ValueError: the file does not exist or is no recording.
    """
    with _Stream(path) as stream:
        return stream.header


def read_frames(paths: Paths) -> Iterator[RecordedFrames]:
    """Yield the chunks of one or several recordings.

    Episode numbers are unique across files. An incomplete chunk at the end of a file, which a crash leaves, is skipped with a
    warning.

    Raises:
        ValueError: a file does not exist or is no recording, or the files have different spaces.
    """
    files = [paths] if isinstance(paths, Path | str) else list(paths)
    taken = 0
    first: Header | None = None
    for path in files:
        with _Stream(path) as stream:
            first = first or stream.header
            _check_same(stream.header, first, path, f"{files[0]}", logits=False)
            highest = -1
            for batch in stream.batches():
                frames = from_record_batch(batch, stream.header)
                highest = max(highest, int(frames.episode.max()))
                yield replace(frames, episode=frames.episode + taken)
            if stream.rest:
                warnings.warn(
                    f"{path}: the last {stream.rest:,} bytes begin with a chunk that is damaged or cut short, and were left out",
                    stacklevel=2,
                )
            taken += highest + 1


def read_episodes(paths: Paths, *, unfinished: bool = False) -> Iterator[RecordedEpisode]:
    """Yield the episodes of one or several recordings, in the order in which they end.

    Args:
        paths: files.
        unfinished: whether to yield also episodes whose beginning or end was not recorded.

    Raises:
        ValueError: as `read_frames`.
    """
    running: dict[int, list[RecordedFrames]] = {}
    for chunk in read_frames(paths):
        order = torch.sort(chunk.episode, stable=True).indices
        sizes = torch.unique_consecutive(chunk.episode[order], return_counts=True)[1].tolist()
        for rows in torch.split(order, sizes):
            part = chunk.gather(rows)
            running.setdefault(int(part.episode[0]), []).append(part)
            if part.terminated[-1] or part.truncated[-1]:
                episode = RecordedEpisode(RecordedFrames.cat(running.pop(int(part.episode[0]))))
                if unfinished or episode.is_whole:
                    yield episode
    if unfinished:
        yield from (RecordedEpisode(RecordedFrames.cat(pieces)) for pieces in running.values())


def read_all(paths: Paths) -> RecordedFrames:
    """Read all frames of one or several recordings into memory.

    Raises:
        ValueError: as `read_frames`, or there are no frames.
    """
    chunks = list(read_frames(paths))
    if not chunks:
        names = paths if isinstance(paths, Path | str) else ", ".join(map(str, paths))
        raise ValueError(f"{names} holds no frames: nothing was recorded up to the end of a chunk")
    return RecordedFrames.cat(chunks)


def read_extent(path: Path, header: Header, *, full: bool) -> tuple[int, int, int]:
    """The readable part of the recording `path`; if not `full`, only its header is checked.

    Returns:
        Its end in bytes, the number of frames, and the first unused episode number.

    Raises:
        ValueError: the file is no recording, or its header is not `header`.
    """
    num_frames = num_episodes = 0
    with _Stream(path, only="episode") as stream:
        _check_same(stream.header, header, path, "what would be recorded", logits=True)
        for batch in stream.batches() if full else ():
            num_frames += len(batch)
            num_episodes = max(num_episodes, int(np.max(batch.column("episode"))) + 1)
        return stream.end, num_frames, num_episodes


class _Stream:
    """A recording that is open for reading.

    Args:
        path: the file.
        only: the only column to read; None: all.
    """

    def __init__(self, path: Path | str, only: str | None = None) -> None:
        pa = import_pyarrow()
        self._damage = (pa.ArrowInvalid, OSError)
        self._whole = only is None
        try:
            self._source = pa.OSFile(str(path))
        except OSError as error:
            reason = "there is no such file" if isinstance(error, FileNotFoundError) else error
            raise ValueError(f"recording {path} cannot be read: {reason}") from error
        self.rest = 0  # bytes of an incomplete chunk, known after `batches`
        try:
            self._reader = pa.ipc.open_stream(self._source)
            self.header = header_of(self._reader.schema, path)
            self.end = self._source.tell()
            if only is not None:
                self._source.seek(0)
                wanted = pa.ipc.IpcReadOptions(included_fields=[self._reader.schema.get_field_index(only)])
                self._reader = pa.ipc.open_stream(self._source, options=wanted)
        except self._damage as error:
            nothing = self._source.size() == 0
            self._source.close()
            raise ValueError(f"{path} is " + ("empty" if nothing else f"not a recording: {error}")) from error
        except BaseException:
            self._source.close()
            raise

    def batches(self) -> Iterator[Any]:
        """The chunks before the first damaged or incomplete one; `end` is where the last of them ends."""
        while True:
            try:
                batch, metadata = self._reader.read_next_batch_with_custom_metadata()
                batch.validate(full=True)
            except (StopIteration, *self._damage):
                break
            written = metadata.get(CHECKSUM) if metadata else None  # old chunks have none
            if self._whole and written is not None and written != checksum(batch):
                break
            self.end = self._source.tell()
            yield batch
        self.rest = self._source.size() - self.end

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        self._source.close()


def _check_same(given: Header, expected: Header, path: object, of: str, *, logits: bool) -> None:
    spaces = [spaces_to_dict(header.obs_space, header.action_space) for header in (expected, given)]
    difference = spaces_difference(*spaces)
    if difference:
        raise ValueError(f"recording {path} has other spaces than {of}: {difference}")
    if logits and given.logits != expected.logits:
        have, want = ("no", "with") if expected.logits else ("", "without")
        raise ValueError(
            f"recording {path} has {have or 'its'} logits, and cannot be appended to {want} them: give another file, or "
            f"record_logits={str(given.logits).lower()}"
        )
