"""Films of episodes, one after another in one GIF.

Shapes: n environments.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
from numpy.typing import NDArray

from enn_ppo.training.files import replace_file
from entity_gym.pools.vec_env import VecEnv

IMAGES_PER_SECOND = 4
SIDE = 480  # pixels: the longer side of a film is enlarged to about so many


class Video:
    """Films the first `num_episodes` episodes of an evaluation, each from its first observation to its last, into a GIF.

    Images are enlarged by a whole number to a side of about 480 pixels.
    """

    def __init__(self, path: Path, num_episodes: int) -> None:
        self.path, self._left = path, num_episodes
        # compressed pixels and shapes of the images of an episode, since all episodes of a film are played in parallel
        self._episodes: list[list[tuple[bytes, tuple[int, ...]]]] = []
        self._running: dict[int, list[tuple[bytes, tuple[int, ...]]]] = {}  # environment -> its episode

    def start(self, pool: VecEnv, env_ids: NDArray[np.int64]) -> None:
        """Begin episodes in `env_ids`, and film the first of them until `num_episodes` is reached; see `add`."""
        self._running = {env: [] for env in env_ids[: self._left].tolist()}
        self._left -= len(self._running)
        self._episodes += self._running.values()
        self.add(pool, env_ids)

    def add(self, pool: VecEnv, env_ids: NDArray[np.int64]) -> None:
        """Add an image of each of n environments that is being filmed.

        Raises:
            ValueError: an environment cannot be drawn.
        """
        filmed = [env for env in env_ids.tolist() if env in self._running]
        try:
            images = pool.render(np.array(filmed)) if filmed else []
        except NotImplementedError as error:
            raise ValueError(f"a film was asked for, but {error}") from error
        for env, image in zip(filmed, images, strict=True):
            if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.shape[2:] != (3,):
                given = f"{image.dtype} of shape {image.shape}" if isinstance(image, np.ndarray) else f"{image!r:.80}"
                raise ValueError(f"render() must return uint8 of shape (height, width, 3), got {given}")
            self._running[env].append((zlib.compress(image.tobytes(), level=1), image.shape))

    def write(self) -> None:
        """Write the file, atomically.

        Raises:
            ValueError: the file cannot be written.
        """
        content = io.BytesIO()
        film: Any = imageio.get_writer(content, format="gif", duration=1000 / IMAGES_PER_SECOND, loop=0)
        with film:
            for image in self._images():
                film.append_data(image)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, content.getvalue())
        except OSError as error:
            raise ValueError(f"the film {self.path} cannot be written: {error}") from error

    def _images(self) -> Iterator[NDArray[np.uint8]]:
        """The images of the film, all of one size."""
        images = [image for episode in self._episodes for image in episode]
        height, width = (max(shape[side] for _, shape in images) for side in (0, 1))
        scale = max(1, round(SIDE / max(height, width)))
        for pixels, shape in images:
            image = np.frombuffer(zlib.decompress(pixels), np.uint8).reshape(shape)
            image = np.pad(image, ((0, height - shape[0]), (0, width - shape[1]), (0, 0)))
            yield image.repeat(scale, axis=0).repeat(scale, axis=1)
