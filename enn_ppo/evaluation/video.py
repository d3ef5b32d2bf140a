"""Films of episodes: all of them one after the other in one GIF or MP4."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

MILLISECONDS_PER_PICTURE = 250


class Drawable(Protocol):
    """A pool of environments that can be drawn."""

    def render(self, env_ids: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Draw some of the environments, each as a (height, width, 3) image."""


class _Picture(NamedTuple):
    """Packed, because all episodes of a film are played side by side and have to wait for each other."""

    packed: bytes
    height: int
    width: int


class Camera:
    """Films the first episodes of an evaluation, each from its first observation to its last.

    Args:
        num_episodes: how many; with 0 nothing is ever drawn.
        setting: what asked for it, for messages: `eval.video=2`.
    """

    def __init__(self, num_episodes: int, setting: str) -> None:
        self._left = num_episodes
        self._setting = setting
        self._reels: list[list[_Picture]] = []
        self._filmed: dict[int, list[_Picture]] = {}  # environment -> the reel of its running episode

    def start(self, pool: Drawable, env_ids: NDArray[np.int64]) -> None:
        """Episodes begin in `env_ids`: the first of them are filmed, as many as are still wanted.

        Raises:
            ValueError: they cannot be drawn.
        """
        self._filmed = {int(env): [] for env in env_ids[: self._left]}
        self._left -= len(self._filmed)
        self._reels += self._filmed.values()
        self.shoot(pool, env_ids)

    def shoot(self, pool: Drawable, env_ids: NDArray[np.int64]) -> None:
        """Take a picture of those of `env_ids` that are filmed. All of them show a new observation.

        Raises:
            ValueError: they cannot be drawn.
        """
        if not self._filmed:
            return
        wanted = np.array([env for env in env_ids.tolist() if env in self._filmed], dtype=np.int64)
        try:
            pictures = pool.render(wanted)
        except NotImplementedError as error:
            raise ValueError(f"{self._setting} was asked for, but {error}") from error
        for env, picture in zip(wanted.tolist(), pictures, strict=True):
            self._filmed[env].append(_pack(picture, self._setting))

    @property
    def num_pictures(self) -> int:
        """Pictures taken."""
        return sum(len(reel) for reel in self._reels)

    def write(self, path: Path) -> None:
        """Write all episodes into one film, and that into place when it is whole.

        Args:
            path: ends with `.gif` or `.mp4`; folders are made.

        Raises:
            ValueError: the file cannot be written.
        """
        assert self.num_pictures, "nothing was filmed"
        shape = (
            max(picture.height for reel in self._reels for picture in reel),
            max(picture.width for reel in self._reels for picture in reel),
        )
        pictures = (_unpack(picture, shape) for reel in self._reels for picture in reel)
        aside = path.with_name(f".{path.stem}.part{path.suffix}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(aside, pictures, shape)
            os.replace(aside, path)
        except (OSError, RuntimeError) as error:  # RuntimeError: imageio-ffmpeg cannot find or read what it wrote
            reason = str(error).splitlines()[0]
            raise ValueError(f"{self._setting}: the film {path} cannot be written: {reason}") from error


def check_film(path: Path) -> None:
    """Check that films of this kind can be written here.

    Raises:
        ValueError: for an MP4 without imageio-ffmpeg.
    """
    if path.suffix.lower() == ".mp4":
        try:
            import imageio_ffmpeg  # type: ignore[import-untyped, unused-ignore]  # noqa: F401
        except ImportError as error:
            raise ValueError(
                f'the film {path} needs imageio-ffmpeg: pip install "enn-ppo[video]", or choose a .gif'
            ) from error


def _pack(picture: object, setting: str) -> _Picture:
    if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.shape[2:] != (3,):
        given = f"{picture.dtype} of shape {picture.shape}" if isinstance(picture, np.ndarray) else repr(picture)[:80]
        raise ValueError(f"{setting}: render() must return uint8 of shape (height, width, 3), got {given}")
    return _Picture(zlib.compress(picture.tobytes(), level=1), *picture.shape[:2])


def _unpack(picture: _Picture, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """The picture, with black to its right and below where others of the film are larger."""
    height, width = picture.height, picture.width
    image = np.frombuffer(zlib.decompress(picture.packed), np.uint8).reshape(height, width, 3)
    return np.pad(image, ((0, shape[0] - height), (0, shape[1] - width), (0, 0)))


def _write(path: Path, pictures: Iterator[NDArray[np.uint8]], shape: tuple[int, int]) -> None:
    if path.suffix.lower() == ".mp4":
        _write_mp4(path, pictures, shape)
        return
    first = Image.fromarray(next(pictures))
    rest = (Image.fromarray(picture) for picture in pictures)
    first.save(path, format="GIF", save_all=True, append_images=rest, duration=MILLISECONDS_PER_PICTURE, loop=0)


def _write_mp4(path: Path, pictures: Iterable[NDArray[np.uint8]], shape: tuple[int, int]) -> None:
    import imageio_ffmpeg

    height, width = (side + side % 2 for side in shape)  # what players can show has an even number of pixels
    writer = imageio_ffmpeg.write_frames(
        str(path), (width, height), fps=1000 / MILLISECONDS_PER_PICTURE, macro_block_size=1, ffmpeg_log_level="error"
    )
    num_pictures = 0
    try:
        writer.send(None)
        for picture in pictures:
            num_pictures += 1
            writer.send(np.pad(picture, ((0, height - shape[0]), (0, width - shape[1]), (0, 0))))
    finally:
        writer.close()
    written, _ = imageio_ffmpeg.count_frames_and_secs(str(path))  # ffmpeg does not say by itself that it failed
    if written != num_pictures:
        raise OSError(f"ffmpeg wrote {written} of {num_pictures} pictures")
