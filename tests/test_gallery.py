"""scripts/gallery.py: films become small pictures for the page of worlds, and pages of replays photographs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageSequence

from enn_ppo.eval.video import BACKGROUND, TITLE_IMAGES
from entity_gym.registry import list_envs

ROOT = Path(__file__).parents[1]


def in_scripts(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program beside the script."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT / "scripts", capture_output=True, text=True, timeout=120)


def shrunk(colours: list[tuple[int, int, int]], tmp_path: Path) -> tuple[list[int], list[object]]:
    """Durations and colours of the picture of a film with 250 ms per step; 100 ms per step are asked for."""
    images = [Image.new("RGB", (65, 33), colour) for colour in colours]
    film, picture = tmp_path / "film.gif", tmp_path / "folder" / "picture.gif"
    images[0].save(film, "GIF", save_all=True, append_images=images[1:], duration=250, loop=0)
    program = "import sys; from pathlib import Path; from gallery import shrink; shrink(*map(Path, sys.argv[1:]), 100)"
    done = in_scripts(program, film, picture)
    assert done.returncode == 0, done.stderr
    with Image.open(picture) as shown:
        assert shown.size == (65, 33)
        steps = [
            (image.info["duration"], image.convert("RGB").getpixel((9, 9))) for image in ImageSequence.Iterator(shown)
        ]
    return [int(duration) for duration, _ in steps], [colour for _, colour in steps]


def test_titles_are_left_out_and_the_last_image_of_an_episode_stays(tmp_path: Path) -> None:
    first, second, third = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    film = [BACKGROUND] * TITLE_IMAGES + [first, second] + [BACKGROUND] * TITLE_IMAGES + [third]
    assert shrunk(film, tmp_path) == ([100, 1100, 1100], [first, second, third])


def test_steps_without_a_change_are_shown_for_longer(tmp_path: Path) -> None:
    first, second = (255, 0, 0), (0, 255, 0)
    assert shrunk([first, second, second, second, first], tmp_path) == ([100, 300, 1100], [first, second, first])


def test_a_long_film_is_cut_after_seventy_steps(tmp_path: Path) -> None:
    durations, _ = shrunk([(255, 0, 0), (0, 255, 0)] * 60, tmp_path)
    assert durations == [100] * 69 + [1100]


def test_a_photograph_ends_where_the_page_ends(tmp_path: Path) -> None:
    page = Image.new("RGB", (100, 80), (240, 240, 240))
    page.paste((255, 0, 0), (10, 5, 90, 40))
    page.save(tmp_path / "page.png")
    done = in_scripts(
        "import sys; from pathlib import Path; from gallery import _crop; _crop(Path(sys.argv[1]))",
        tmp_path / "page.png",
    )
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "page.png") as cropped:
        assert cropped.size == (100, 50)
        assert cropped.convert("RGB").getpixel((50, 20)) == (255, 0, 0)


def test_a_checkpoint_belongs_to_one_world() -> None:
    program = "import sys; from gallery import main; main(sys.argv[1:])"
    done = in_scripts(program, "--checkpoint", "run")
    assert done.returncode == 2
    assert "--checkpoint belongs to one world: name it with --worlds" in done.stderr


def test_a_page_that_is_not_there_is_a_mistake() -> None:
    done = in_scripts("import sys; from gallery import main; main(sys.argv[1:])", "--pages", "Gold", "Xor")
    assert done.returncode == 2
    assert "--pages Xor: there are CherryPick, Gold, " in done.stderr


@pytest.mark.parametrize("world", list_envs())
def test_every_world_has_a_picture_that_moves_and_is_small(world: str) -> None:
    file = ROOT / "docs" / "images" / "worlds" / f"{world}.gif"
    assert file.stat().st_size < 70_000
    with Image.open(file) as picture:
        assert getattr(picture, "n_frames", 1) > 1
        assert max(picture.size) >= 240
