"""Films: which episodes are on them, in which order, and that every player can show them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import pytest
from numpy.typing import NDArray

from enn_ppo.eval.video import Video


class Lamps:
    """A pool in which environment i shows the brightness 40 i + 10 t at time t, as pictures of `shape`."""

    def __init__(self, shape: tuple[int, int] = (16, 16)) -> None:
        self.shape = shape
        self.time = 0
        self.drawn: list[int] = []

    def render(self, env_ids: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        self.drawn += env_ids.tolist()
        return [np.full((*self.shape, 3), 40 * env + 10 * self.time, np.uint8) for env in env_ids.tolist()]


def film(video: Video, pool: Lamps, rounds: Sequence[Sequence[Sequence[int]]]) -> None:
    """Film rounds of episodes: of each, which environments are there at each time."""
    for times in rounds:
        pool.time = 0
        video.start(pool.render, np.array(times[0]))
        for running in times[1:]:
            pool.time += 1
            video.add(pool.render, np.array(running))


def brightness(file: Path, **how: Any) -> list[float]:
    return [float(frame.mean()) for frame in imageio.imread(file, index=None, **how)]


def test_episodes_that_are_played_side_by_side_are_shown_one_after_the_other(tmp_path: Path) -> None:
    video, pool = Video(tmp_path / "new/film.gif", 3, "video=3"), Lamps()
    # environment 0 plays two steps and environment 1 one; then 0 plays one more episode, of a step
    film(video, pool, [[[0, 1], [0, 1], [0]], [[0, 1], [0, 1]]])
    video.write()
    assert brightness(tmp_path / "new/film.gif") == pytest.approx([0, 10, 20, 40, 50, 0, 10], abs=2)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["film.gif"]


def test_only_the_episodes_that_are_wanted_are_drawn(tmp_path: Path) -> None:
    pool = Lamps()
    film(Video(tmp_path / "film.gif", 1, "video=1"), pool, [[[0, 1], [0, 1], [1]], [[0, 1], [1]]])
    assert pool.drawn == [0, 0]
    film(Video(tmp_path / "film.gif", 0, "video=0"), pool, [[[0, 1], [0, 1]]])
    assert pool.drawn == [0, 0]


@pytest.mark.parametrize("shape", [(16, 16), (15, 17), (33, 20)])
def test_an_mp4_shows_the_same_pictures_whatever_their_size(shape: tuple[int, int], tmp_path: Path) -> None:
    video, pool = Video(tmp_path / "film.mp4", 2, "video=2"), Lamps(shape)
    film(video, pool, [[[2, 3], [2, 3], [3]]])
    video.write()
    shown = imageio.imread(tmp_path / "film.mp4", index=None, plugin="FFMPEG")
    assert [float(frame[: shape[0], : shape[1]].mean()) for frame in shown] == pytest.approx(
        [80, 90, 120, 130, 140], abs=5
    )


def test_smaller_pictures_stand_in_the_upper_left_corner(tmp_path: Path) -> None:
    video, pool = Video(tmp_path / "film.gif", 1, "video=1"), Lamps((4, 8))
    video.start(pool.render, np.array([5]))
    pool.shape = (8, 4)
    video.add(pool.render, np.array([5]))
    video.write()
    first, second = imageio.imread(tmp_path / "film.gif", index=None)
    assert first.shape == second.shape == (8, 8, 3)
    assert first[:4].mean() == pytest.approx(200, abs=2) and first[4:].mean() < 2
    assert second[:, :4].mean() == pytest.approx(200, abs=2) and second[:, 4:].mean() < 2


def test_what_cannot_be_drawn_is_named() -> None:
    class Dark(Lamps):
        def render(self, env_ids: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
            raise NotImplementedError("Dark does not implement render()")

    with pytest.raises(ValueError, match=r"eval\.video=2 was asked for, but Dark does not implement render\(\)"):
        Video(Path("a.gif"), 2, "eval.video=2").start(Dark().render, np.array([0]))


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (np.zeros((4, 4, 3)), r"float64 of shape \(4, 4, 3\)"),
        (np.zeros((4, 4), np.uint8), r"uint8 of shape \(4, 4\)"),
        (None, "None"),
    ],
)
def test_a_picture_that_is_none_is_refused(picture: Any, said: str) -> None:
    pool = Lamps()
    pool.render = lambda env_ids: [picture]  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=rf"video=1: render\(\) must return uint8 of shape \(height.*, got {said}"):
        Video(Path("a.gif"), 1, "video=1").start(pool.render, np.array([0]))


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("a.gif", "a.mp4"):
        video = Video(tmp_path / "file" / name, 1, "video=1")
        film(video, Lamps(), [[[0], [0]]])
        with pytest.raises(ValueError, match=rf"video=1: the film .*file/{name} cannot be written: .*File exists"):
            video.write()


def test_an_mp4_that_ffmpeg_cannot_write_is_named(tmp_path: Path) -> None:
    (tmp_path / ".a.part.mp4").mkdir()  # in the way
    video = Video(tmp_path / "a.mp4", 1, "video=1")
    film(video, Lamps(), [[[0], [0]]])
    with pytest.raises(ValueError, match=r"the film .*a\.mp4 cannot be written"):
        video.write()
    assert not (tmp_path / "a.mp4").exists()


def test_an_mp4_without_imageio_ffmpeg_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(
        ValueError, match=r'film a\.mp4 needs imageio-ffmpeg: pip install "enn-ppo\[video\]", or .*\.gif'
    ):
        Video(Path("a.mp4"), 1, "video=1")
    Video(Path("a.gif"), 1, "video=1")
