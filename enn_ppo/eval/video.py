"""Films of episodes, one after another in one GIF or MP4."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import imageio.v2 as imageio
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from enn_ppo.training.files import aside_of

IMAGES_PER_SECOND = 4
SIDE = 480  # pixels: the longer side of a film is enlarged to about so many
MIN_WIDTH, CAPTION_HEIGHT = 320, 28  # pixels

#: Draws some environments of a pool, each as a (height, width, 3) image.
Render: TypeAlias = Callable[[NDArray[np.int64]], list[NDArray[np.uint8]]]
#: Compressed pixels of an image, since all episodes of a film are played in parallel; its height and width; its caption.
_Picture: TypeAlias = tuple[bytes, tuple[int, int], str]


class Video:
    """Films the first episodes of an evaluation, each from its first observation to its last.

    Pictures are enlarged by a whole number to a side of about 480 pixels, over a caption with the episode, the step and
    the rewards.

    Args:
        path: ends with `.gif` or `.mp4`; folders are created.
        num_episodes: number of episodes to film.
        setting: the setting that requested the film, for messages: `eval.video=2`.

    Raises:
        ValueError: an MP4 is requested, and imageio-ffmpeg is not installed.
    """

    def __init__(self, path: Path, num_episodes: int, setting: str) -> None:
        self.path, self._left, self._setting = path, num_episodes, setting
        self._episodes: list[list[_Picture]] = []
        self._running: dict[int, tuple[int, float]] = {}  # environment -> position of its episode, its total reward
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
        filmed = env_ids[: self._left].tolist()
        self._running = {env: (len(self._episodes) + i, 0.0) for i, env in enumerate(filmed)}
        self._left -= len(filmed)
        self._episodes += [[] for _ in filmed]
        self.add(render, env_ids, np.zeros(len(env_ids), np.float32))

    def add(self, render: Render, env_ids: NDArray[np.int64], rewards: NDArray[np.float32]) -> None:
        """Add a picture of each environment that is being filmed.

        Args:
            render: draws environments.
            env_ids: (n,) environments that took a step.
            rewards: (n,) of this step.

        Raises:
            ValueError: an environment cannot be drawn.
        """
        filmed = [
            (env, reward)
            for env, reward in zip(env_ids.tolist(), rewards.tolist(), strict=True)
            if env in self._running
        ]
        if not filmed:
            return
        try:
            images = render(np.array([env for env, _ in filmed]))
        except NotImplementedError as error:
            raise ValueError(f"{self._setting} was asked for, but {error}") from error
        for (env, reward), image in zip(filmed, images, strict=True):
            if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.shape[2:] != (3,):
                given = f"{image.dtype} of shape {image.shape}" if isinstance(image, np.ndarray) else f"{image!r:.80}"
                raise ValueError(
                    f"{self._setting}: render() must return uint8 of shape (height, width, 3), got {given}"
                )
            number, total = self._running[env][0], self._running[env][1] + reward
            self._running[env] = number, total
            step = len(self._episodes[number])
            caption = f"episode {number + 1}   step {step}   reward {reward:.3g}   total {total:.3g}"
            self._episodes[number].append((zlib.compress(image.tobytes(), level=1), image.shape[:2], caption))

    def write(self) -> None:
        """Write the file, atomically.

        Raises:
            ValueError: the file cannot be written.
        """
        aside, is_gif = aside_of(self.path), self.path.suffix.lower() == ".gif"
        how = (
            {"duration": 1000 / IMAGES_PER_SECOND, "loop": 0}
            if is_gif
            else {"fps": IMAGES_PER_SECOND, "macro_block_size": 1}
        )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            film: Any = imageio.get_writer(aside, **how)
            with film:
                for image in self._images():
                    film.append_data(image)
            os.replace(aside, self.path)
        except OSError as error:  # also where ffmpeg has failed and written nothing
            with suppress(OSError):
                aside.unlink()
            reason = str(error).splitlines()[0]
            raise ValueError(f"{self._setting}: the film {self.path} cannot be written: {reason}") from error

    def _images(self) -> Iterator[NDArray[np.uint8]]:
        """The images of the film, all of one size with even numbers of pixels, which players of MP4 need."""
        pictures = [picture for episode in self._episodes for picture in episode]
        height, width = (max(shape[side] for _, shape, _ in pictures) for side in (0, 1))
        scale = max(1, round(SIDE / max(height, width)))
        width, height = max(width * scale, MIN_WIDTH), height * scale + CAPTION_HEIGHT
        font = ImageFont.load_default(15)
        for pixels, shape, caption in pictures:
            film = Image.new("RGB", (width + width % 2, height + height % 2), (24, 24, 28))
            image = Image.fromarray(np.frombuffer(zlib.decompress(pixels), np.uint8).reshape(*shape, 3))
            film.paste(image.resize((shape[1] * scale, shape[0] * scale), Image.Resampling.NEAREST))
            ImageDraw.Draw(film).text(
                (6, film.height - CAPTION_HEIGHT / 2), caption, (240, 240, 240), font, anchor="lm"
            )
            yield np.asarray(film)
