"""Videos of episodes, one after another in one GIF or MP4."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

MILLISECONDS_PER_IMAGE = 250

#: Draws some environments of a pool, each as a (height, width, 3) image.
Render: TypeAlias = Callable[[NDArray[np.int64]], list[NDArray[np.uint8]]]


class Video:
    """Films the first episodes of an evaluation, each from its first observation to its last.

    Args:
        path: ends with `.gif` or `.mp4`; folders are created.
        num_episodes: number of episodes to film.
        setting: the setting that requested the film, for messages: `eval.video=2`.

    Raises:
        ValueError: an MP4 is requested, and imageio-ffmpeg is not installed.
    """

    def __init__(self, path: Path, num_episodes: int, setting: str) -> None:
        self.path, self._left, self._setting = path, num_episodes, setting
        # compressed, since the film's episodes are played in parallel
        self._episodes: list[list[tuple[bytes, tuple[int, int]]]] = []
        self._running: dict[int, list[tuple[bytes, tuple[int, int]]]] = {}  # by environment
        if path.suffix.lower() == ".mp4":
            try:
                import imageio_ffmpeg  # type: ignore[import-untyped, unused-ignore]  # noqa: F401
            except ImportError as error:
                raise ValueError(
                    f'the film {path} needs imageio-ffmpeg: pip install "enn-ppo[video]", or choose a .gif'
                ) from error

    def start(self, render: Render, env_ids: NDArray[np.int64]) -> None:
        """Begin episodes in `env_ids`, and film the first of them until `num_episodes` is reached.

        Raises:
            ValueError: as `add`.
        """
        self._running = {env: [] for env in env_ids[: self._left].tolist()}
        self._left -= len(self._running)
        self._episodes += self._running.values()
        self.add(render, env_ids)

    def add(self, render: Render, env_ids: NDArray[np.int64]) -> None:
        """Add an image of each environment in `env_ids` that is being filmed.

        Raises:
            ValueError: an environment cannot be drawn.
        """
        if not self._running:
            return
        wanted = np.array([env for env in env_ids.tolist() if env in self._running], dtype=np.int64)
        try:
            images = render(wanted)
        except NotImplementedError as error:
            raise ValueError(f"{self._setting} was asked for, but {error}") from error
        for env, image in zip(wanted.tolist(), images, strict=True):
            if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.shape[2:] != (3,):
                given = f"{image.dtype} of shape {image.shape}" if isinstance(image, np.ndarray) else f"{image!r:.80}"
                raise ValueError(
                    f"{self._setting}: render() must return uint8 of shape (height, width, 3), got {given}"
                )
            self._running[env].append((zlib.compress(image.tobytes(), level=1), image.shape[:2]))

    def write(self) -> None:
        """Write the file, atomically.

        Raises:
            ValueError: the file cannot be written.
        """
        images = [image for episode in self._episodes for image in episode]
        height, width = (max(shape[side] for _, shape in images) for side in (0, 1))
        aside = self.path.with_name(f".{self.path.stem}.part{self.path.suffix}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.suffix.lower() == ".mp4":
                height, width = height + height % 2, width + width % 2  # players need even numbers of pixels
                _write_mp4(aside, _unpacked(images, height, width), height, width)
            else:
                pictures = map(Image.fromarray, _unpacked(images, height, width))
                how = {"duration": MILLISECONDS_PER_IMAGE, "loop": 0}
                next(pictures).save(aside, "GIF", save_all=True, append_images=pictures, **how)
            os.replace(aside, self.path)
        except (OSError, RuntimeError) as error:  # RuntimeError: imageio-ffmpeg cannot find or read what it wrote
            reason = str(error).splitlines()[0]
            raise ValueError(f"{self._setting}: the film {self.path} cannot be written: {reason}") from error


def _unpacked(images: Iterable[tuple[bytes, tuple[int, int]]], height: int, width: int) -> Iterator[NDArray[np.uint8]]:
    """Decompress the images, padded to (height, width) with black to the right and below."""
    for packed, shape in images:
        image = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(*shape, 3)
        yield np.pad(image, ((0, height - shape[0]), (0, width - shape[1]), (0, 0)))


def _write_mp4(path: Path, images: Iterable[NDArray[np.uint8]], height: int, width: int) -> None:
    import imageio_ffmpeg

    writer = imageio_ffmpeg.write_frames(
        str(path), (width, height), fps=1000 / MILLISECONDS_PER_IMAGE, macro_block_size=1, ffmpeg_log_level="error"
    )
    num_images = 0
    try:
        writer.send(None)
        for image in images:
            num_images += 1
            writer.send(image)
    finally:
        writer.close()
    written, _ = imageio_ffmpeg.count_frames_and_secs(str(path))  # ffmpeg does not report its failure
    if written != num_images:
        raise OSError(f"ffmpeg wrote {written} of {num_images} pictures")
