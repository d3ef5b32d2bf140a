"""Reading recordings: chunk by chunk, episode by episode, or all at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from enn_ppo.training.recording.columns import (
    Header,
    RecordedFrames,
    from_record_batch,
    header_of,
    import_pyarrow,
    is_sealed,
)
from entity_gym.batch.saving import spaces_difference, spaces_to_dict
from entity_gym.untrusted import open_regular

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

    Episode numbers are unique across files. A file is read up to its first chunk that is damaged, or cut short by a crash; a
    warning says how much is left out.

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
    with _Stream(path) as stream:
        _check_same(stream.header, header, path, "what would be recorded", logits=True)
        for batch in stream.batches() if full else ():
            num_frames += len(batch)
            num_episodes = max(num_episodes, int(np.max(batch.column("episode"))) + 1)
        return stream.end, num_frames, num_episodes


class _Stream:
    """A recording that is open for reading.

    Attributes:
        header: of the recording.
        end: where the last message that was read ends, in bytes.
        rest: bytes from the first damaged or incomplete chunk on, known after `batches`.
    """

    def __init__(self, path: Path | str) -> None:
        self._pa = import_pyarrow()
        try:
            open_regular(path).close()  # Arrow would wait for a pipe
            self._source = self._pa.OSFile(str(path))
        except OSError as error:
            reason = "there is no such file" if isinstance(error, FileNotFoundError) else error
            raise ValueError(f"recording {path} cannot be read: {reason}") from error
        self.end = self.rest = 0
        try:
            self._schema = self._next("schema", self._pa.ipc.read_schema)
            if self._schema is None:
                problem = "not a recording of this version of enn-ppo, or its header is damaged"
                raise ValueError(f"{path} is {problem if self._source.size() else 'empty'}")
            self.header = header_of(self._schema, path)
        except BaseException:
            self._source.close()
            raise

    def batches(self) -> Iterator[Any]:
        """The chunks before the first damaged or incomplete one."""
        while (batch := self._next("record batch", self._decode)) is not None:
            yield batch
        self.rest = self._source.size() - self.end

    def _next(self, kind: str, decode: Callable[[Any], Any]) -> Any:
        """The next message of Arrow, a schema or a record batch; None if it is another, damaged, incomplete or not there."""
        try:
            self._source.seek(self.end)
            message = self._pa.ipc.read_message(self._source)
            end = self._source.tell()
            self._source.seek(self.end)
            if message.type != kind or not is_sealed(self._source.read(end - self.end)):
                return None
            decoded = decode(message)
        except (self._pa.ArrowException, EOFError, OSError):
            return None
        self.end = end
        return decoded

    def _decode(self, message: Any) -> Any:
        batch = self._pa.ipc.read_record_batch(message, self._schema)
        batch.validate(full=True)  # a stranger's file must not have offsets that point outside
        return batch

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
