"""Videos of episodes, one after another in one GIF or MP4."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from enn_ppo.training.files import aside_of
from entity_gym.actions import ActionSpace
from entity_gym.batch.vec_obs import VecAction

MILLISECONDS_PER_IMAGE = 250
TITLE_IMAGES = 4  # for which the title of an episode is shown
SIDE = 480  # pixels: the longer side of a film is enlarged to about so many
MIN_WIDTH = 320  # pixels, so that there is room for the caption
TEXT_SIZE, CAPTION_HEIGHT = 15, 28  # pixels
BACKGROUND, TEXT, PALE_TEXT = (24, 24, 28), (240, 240, 240), (160, 160, 166)

#: Draws some environments of a pool, each as a (height, width, 3) image.
Render: TypeAlias = Callable[[NDArray[np.int64]], list[NDArray[np.uint8]]]


@dataclass(frozen=True)
class _Picture:
    """A step of a filmed episode.

    Attributes:
        pixels: compressed, since all episodes of the film are played in parallel.
        shape: height and width.
        step: of the episode, from 0.
        reward: of this step.
        total: reward of the episode so far.
        action: text of the action that led here.
    """

    pixels: bytes
    shape: tuple[int, int]
    step: int = 0
    reward: float = 0.0
    total: float = 0.0
    action: str = ""


class Video:
    """Films the first episodes of an evaluation, each from its first observation to its last.

    Pictures are enlarged by a whole number to a side of about 480 pixels, over a caption with the episode, the step, the rewards
    and, if it is short, the action. Several episodes begin with a title each.

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
        self._running: dict[int, list[_Picture]] = {}  # by environment
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
        self.add(render, env_ids, np.zeros(len(env_ids), np.float32), lambda row: "")

    def add(
        self,
        render: Render,
        env_ids: NDArray[np.int64],
        rewards: NDArray[np.float32],
        describe_action: Callable[[int], str],
    ) -> None:
        """Add a picture of each environment in `env_ids` that is being filmed.

        Args:
            render: draws environments.
            env_ids: (n,) environments that took a step.
            rewards: (n,) of this step.
            describe_action: row in [0, n) -> text of the action that led here.

        Raises:
            ValueError: an environment cannot be drawn.
        """
        if not self._running:
            return
        rows = [row for row, env in enumerate(env_ids.tolist()) if env in self._running]
        try:
            images = render(env_ids[rows])
        except NotImplementedError as error:
            raise ValueError(f"{self._setting} was asked for, but {error}") from error
        for row, env, image in zip(rows, env_ids[rows].tolist(), images, strict=True):
            if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.shape[2:] != (3,):
                given = f"{image.dtype} of shape {image.shape}" if isinstance(image, np.ndarray) else f"{image!r:.80}"
                raise ValueError(
                    f"{self._setting}: render() must return uint8 of shape (height, width, 3), got {given}"
                )
            pictures, reward = self._running[env], float(rewards[row])
            total = pictures[-1].total + reward if pictures else 0.0
            pixels = zlib.compress(image.tobytes(), level=1)
            pictures.append(_Picture(pixels, image.shape[:2], len(pictures), reward, total, describe_action(row)))

    def write(self) -> None:
        """Write the file, atomically.

        Raises:
            ValueError: the file cannot be written.
        """
        shapes = [picture.shape for episode in self._episodes for picture in episode]
        film = _Film.of(*(max(shape[side] for shape in shapes) for side in (0, 1)))
        aside = aside_of(self.path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            images = film.images(self._episodes)
            if self.path.suffix.lower() == ".mp4":
                _write_mp4(aside, map(np.asarray, images), film.height, film.width)
            else:
                how = {"duration": MILLISECONDS_PER_IMAGE, "loop": 0}
                next(images).save(aside, "GIF", save_all=True, append_images=images, **how)
            os.replace(aside, self.path)
        except (OSError, RuntimeError) as error:  # RuntimeError: imageio-ffmpeg cannot find or read what it wrote
            with suppress(OSError):
                aside.unlink()
            reason = str(error).splitlines()[0]
            raise ValueError(f"{self._setting}: the film {self.path} cannot be written: {reason}") from error


class _Film(NamedTuple):
    """The layout of a film: pictures in the upper left corner, enlarged by `scale`, and a caption below."""

    scale: int
    width: int
    height: int

    @classmethod
    def of(cls, height: int, width: int) -> _Film:
        """The layout for pictures of at most this size. Players of MP4 need even numbers of pixels."""
        scale = max(1, round(SIDE / max(height, width)))
        width, height = max(width * scale, MIN_WIDTH), height * scale + CAPTION_HEIGHT
        return cls(scale, width + width % 2, height + height % 2)

    def images(self, episodes: Sequence[Sequence[_Picture]]) -> Iterator[Image.Image]:
        for number, episode in enumerate(episodes, start=1):
            if len(episodes) > 1:
                yield from [self._title(number, len(episodes))] * TITLE_IMAGES
            for picture in episode:
                yield self._image(number, picture)

    def _title(self, number: int, of: int) -> Image.Image:
        image = Image.new("RGB", (self.width, self.height), BACKGROUND)
        middle = self.width / 2, self.height / 2
        font = ImageFont.load_default(2 * TEXT_SIZE)
        ImageDraw.Draw(image).text(middle, f"episode {number} of {of}", TEXT, font, anchor="mm")
        return image

    def _image(self, number: int, picture: _Picture) -> Image.Image:
        image = Image.new("RGB", (self.width, self.height), BACKGROUND)
        height, width = picture.shape
        pixels = np.frombuffer(zlib.decompress(picture.pixels), np.uint8).reshape(height, width, 3)
        size = width * self.scale, height * self.scale
        image.paste(Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST))
        text = f"episode {number}   step {picture.step}   reward {picture.reward:.3g}   total {picture.total:.3g}"
        draw, font = ImageDraw.Draw(image), ImageFont.load_default(TEXT_SIZE)
        middle = self.height - CAPTION_HEIGHT / 2
        draw.text((6, middle), text, TEXT, font, anchor="lm")
        taken = font.getlength(f"{text}   ")
        if picture.action and 6 + taken + font.getlength(picture.action) <= self.width - 6:
            draw.text((6 + taken, middle), picture.action, PALE_TEXT, font, anchor="lm")
        return image


def action_text(actions: Mapping[str, VecAction], action_space: Mapping[str, ActionSpace], row: int) -> str:
    """Describe the actions of a frame, such as "left, right" or "Move: left  Fire: 3": choices by name, entities by index."""
    texts = {}
    for name, action in actions.items():
        space, (start, end) = action_space[name], action.offsets[row : row + 2]
        values = action.values[start:end].tolist()
        if space.discrete and not space.selects:
            shown = [space.labels[choice] for (choice,) in values]
        else:
            shown = [" ".join(f"{value:.3g}" for value in numbers) for numbers in values]
        if shown:
            texts[name] = ", ".join(shown)
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "  ".join(f"{name}: {text}" for name, text in texts.items())


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
