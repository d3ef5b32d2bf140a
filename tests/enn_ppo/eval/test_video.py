"""Films: which episodes are on them, in which order and size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import imageio.v3 as imageio
import numpy as np
import pytest
from numpy.typing import NDArray

from enn_ppo.eval.video import Video
from tests.enn_ppo.evaluation_worlds import brightness


class Lamps:
    """A pool in which environment i shows the brightness 40 i + 10 t at time t, as pictures of `shape`."""

    def __init__(self, shape: tuple[int, int] = (16, 16)) -> None:
        self.shape, self.time, self.drawn = shape, 0, list[int]()

    def render(self, env_ids: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        self.drawn += env_ids.tolist()
        return [np.full((*self.shape, 3), 40 * env + 10 * self.time, np.uint8) for env in env_ids.tolist()]


def film(video: Video, pool: Any, *rounds: Sequence[Sequence[int]]) -> None:
    """Film rounds of episodes: of each, which environments are there at each time."""
    for times in rounds:
        pool.time = 0
        video.start(pool, np.array(times[0]))
        for running in times[1:]:
            pool.time += 1
            video.add(pool, np.array(running))


def test_episodes_that_are_played_side_by_side_are_shown_one_after_the_other(tmp_path: Path) -> None:
    video, pool = Video(tmp_path / "new/a.gif", 3), Lamps()
    # environment 0 plays two steps and environment 1 one; then 0 plays one more episode, of a step
    film(video, pool, [[0, 1], [0, 1], [0]], [[0, 1], [0, 1]])
    video.write()
    assert pool.drawn == [0, 1, 0, 1, 0, 0, 0]  # only the episodes that are wanted
    assert brightness(tmp_path / "new/a.gif") == pytest.approx([0, 10, 20, 40, 50, 0, 10], abs=5)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.gif"]


@pytest.mark.parametrize(
    ("shape", "size"),
    [((209, 193), (418, 386)), ((16, 16), (480, 480)), ((33, 3), (495, 45)), ((700, 900), (700, 900))],
)
def test_small_pictures_are_enlarged_by_a_whole_number(
    shape: tuple[int, int], size: tuple[int, int], tmp_path: Path
) -> None:
    video, pool = Video(tmp_path / "film.gif", 1), Lamps(shape)
    film(video, pool, [[5], [5]])
    video.write()
    first, _ = imageio.imread(tmp_path / "film.gif", index=None)
    assert first.shape == (*size, 3)
    assert first.mean() == pytest.approx(200, abs=2)


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (np.zeros((4, 4, 3)), r"must return uint8 of shape \(height, width, 3\), got float64 of shape \(4, 4, 3\)"),
        (np.zeros((4, 4), np.uint8), r"got uint8 of shape \(4, 4\)"),
        (None, "got None"),
        (NotImplementedError("Dark does not implement render()"), r"asked for, but Dark does not implement render\(\)"),
    ],
)
def test_what_cannot_be_drawn_is_named(picture: Any, said: str) -> None:
    def render(env_ids: NDArray[np.int64]) -> list[Any]:
        if isinstance(picture, Exception):
            raise picture
        return [picture]

    with pytest.raises(ValueError, match=said):
        Video(Path("a.gif"), 1).start(SimpleNamespace(render=render), np.array([0]))
