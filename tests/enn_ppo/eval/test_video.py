"""Films: which episodes are on them, in which order and size, what is written below, and that every player can show them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageSequence

from enn_ppo.eval.video import CAPTION_HEIGHT, Video, action_text
from entity_gym import CategoricalActionSpace, ContinuousActionSpace, SelectEntityActionSpace
from entity_gym.batch.ragged import RaggedBufferF32, RaggedBufferI64
from tests.enn_ppo.films import TITLE, brightness, titles


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
            step(video, pool, running)


def step(video: Video, pool: Lamps, running: Sequence[int], reward: float = 0.0, action: str = "") -> None:
    video.add(pool.render, np.array(running), np.full(len(running), reward, np.float32), lambda row: action)


def test_episodes_that_are_played_side_by_side_are_shown_one_after_the_other(tmp_path: Path) -> None:
    video, pool = Video(tmp_path / "new/film.gif", 3, "video=3"), Lamps()
    # environment 0 plays two steps and environment 1 one; then 0 plays one more episode, of a step
    film(video, pool, [[[0, 1], [0, 1], [0]], [[0, 1], [0, 1]]])
    video.write()
    assert brightness(tmp_path / "new/film.gif") == pytest.approx(
        [TITLE, 0, 10, 20, TITLE, 40, 50, TITLE, 0, 10], abs=2
    )
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["film.gif"]


def test_only_the_episodes_that_are_wanted_are_drawn(tmp_path: Path) -> None:
    pool = Lamps()
    film(Video(tmp_path / "film.gif", 1, "video=1"), pool, [[[0, 1], [0, 1], [1]], [[0, 1], [1]]])
    assert pool.drawn == [0, 0]
    film(Video(tmp_path / "film.gif", 0, "video=0"), pool, [[[0, 1], [0, 1]]])
    assert pool.drawn == [0, 0]


@pytest.mark.parametrize("shape", [(16, 16), (15, 17), (33, 20)])
def test_an_mp4_shows_the_same_pictures_whatever_their_size(shape: tuple[int, int], tmp_path: Path) -> None:
    file = tmp_path / "film.mp4"
    video, pool = Video(file, 2, "video=2"), Lamps(shape)
    film(video, pool, [[[2, 3], [2, 3], [3]]])
    video.write()
    assert brightness(file) == pytest.approx([*titles(file), 80, 90, *titles(file), 120, 130, 140], abs=5)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((209, 193), (418, 386)),
        ((16, 16), (480, 480)),
        ((100, 300), (200, 600)),
        ((480, 480), (480, 480)),
        ((700, 900), (700, 900)),
        ((33, 3), (495, 45)),
    ],
)
def test_small_pictures_are_enlarged_by_a_whole_number_over_a_caption(
    shape: tuple[int, int], size: tuple[int, int], tmp_path: Path
) -> None:
    video, pool = Video(tmp_path / "film.gif", 1, "video=1"), Lamps(shape)
    film(video, pool, [[[5], [5]]])
    video.write()
    first, _ = imageio.imread(tmp_path / "film.gif", index=None)
    height, width = size
    assert first.shape == (
        height + CAPTION_HEIGHT + height % 2,
        max(width + width % 2, 320),
        3,
    )
    assert first[:height, :width].mean() == pytest.approx(200, abs=2)
    assert 30 < first[height:, :200].max() and first[height:, 305:].max() < 40  # letters, and nothing beside them


def test_smaller_pictures_stand_in_the_upper_left_corner(tmp_path: Path) -> None:
    video, pool = Video(tmp_path / "film.gif", 1, "video=1"), Lamps((40, 80))
    video.start(pool.render, np.array([5]))
    pool.shape = (80, 40)
    step(video, pool, [5])
    video.write()
    first, second = imageio.imread(tmp_path / "film.gif", index=None)
    assert first.shape == second.shape == (480 + CAPTION_HEIGHT, 480, 3)
    assert first[:240].mean() == pytest.approx(200, abs=2) and first[240:480].max() < 40
    assert second[:480, :240].mean() == pytest.approx(200, abs=2) and second[:480, 240:].max() < 40


def test_the_caption_says_episode_step_rewards_and_a_short_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    draw = ImageDraw.ImageDraw.text

    def text(self: Any, place: Any, text: str, *others: Any, **options: Any) -> None:
        written.append(text)
        draw(self, place, text, *others, **options)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", text)
    video, pool = Video(tmp_path / "film.gif", 2, "video=2"), Lamps()
    video.start(pool.render, np.array([0, 1]))
    step(video, pool, [0, 1], 0.5, "left")
    step(video, pool, [0], -0.25, "a name that is much longer than what there is room for in a film of this width")
    video.write()
    assert written == [
        "episode 1 of 2",
        "episode 1   step 0   reward 0   total 0",
        "episode 1   step 1   reward 0.5   total 0.5",
        "left",
        "episode 1   step 2   reward -0.25   total 0.25",
        "episode 2 of 2",
        "episode 2   step 0   reward 0   total 0",
        "episode 2   step 1   reward 0.5   total 0.5",
        "left",
    ]


def test_a_title_is_shown_for_a_second_and_a_single_episode_has_none(tmp_path: Path) -> None:
    for count, durations in ((2, [1000, 250, 250, 1000, 250, 250]), (1, [250, 250])):
        video = Video(tmp_path / "film.gif", count, "video=2")
        film(video, Lamps(), [[[0, 1], [0, 1]]])
        video.write()
        with Image.open(tmp_path / "film.gif") as image:
            assert [frame.info["duration"] for frame in ImageSequence.Iterator(image)] == durations


def test_actions_are_described_by_names_indices_and_numbers() -> None:
    spaces = {
        "move": CategoricalActionSpace(["left", "right"]),
        "pick": SelectEntityActionSpace(),
        "push": ContinuousActionSpace(low=[-1, -1], high=[1, 1]),
    }
    actions = {
        "move": RaggedBufferI64.from_flattened(np.array([[0], [1], [1]]), [1, 2, 0]),
        "pick": RaggedBufferI64.from_flattened(np.array([[7]]), [0, 1, 0]),
        "push": RaggedBufferF32.from_flattened(np.array([[0.5, -0.12345]], np.float32), [0, 1, 0]),
    }
    assert [action_text(actions, spaces, row) for row in range(3)] == [
        "left",
        "move: right, right  pick: 7  push: 0.5 -0.123",
        "",
    ]


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


def test_an_mp4_that_ffmpeg_cannot_write_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enn_ppo.eval.video.aside_of", lambda path: tmp_path / "gone" / path.name)
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
