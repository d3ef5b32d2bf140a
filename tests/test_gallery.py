"""scripts/gallery.py: films become small pictures for the page of worlds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageSequence

from entity_gym.registry import list_envs

ROOT = Path(__file__).parents[1]


def in_scripts(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program beside the script."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT / "scripts", capture_output=True, text=True, timeout=120)


def shrunk(colours: list[int], tmp_path: Path) -> tuple[tuple[int, int], list[int]]:
    """Size and durations of the picture of a film of 33 x 65 pixels with 250 ms per step; 100 ms per step are asked for."""
    images = [Image.new("RGB", (65, 33), (shade, 0, 0)) for shade in colours]
    film, picture = tmp_path / "film.gif", tmp_path / "folder" / "picture.gif"
    images[0].save(film, "GIF", save_all=True, append_images=images[1:], duration=250, loop=0)
    program = "import sys; from pathlib import Path; from gallery import shrink; shrink(*map(Path, sys.argv[1:]), 100)"
    done = in_scripts(program, film, picture)
    assert done.returncode == 0, done.stderr
    with Image.open(picture) as shown:
        return shown.size, [int(image.info["duration"]) for image in ImageSequence.Iterator(shown)]


def test_small_images_are_enlarged_and_steps_without_a_change_are_shown_for_longer(tmp_path: Path) -> None:
    size, durations = shrunk([0, 100, 100, 100, 200], tmp_path)
    assert size == (4 * 65, 4 * 33)  # the first whole factor that makes the longer side 240 pixels
    assert durations == [100, 300, 100]


def test_a_long_film_is_cut_after_two_hundred_steps(tmp_path: Path) -> None:
    _, durations = shrunk([i % 250 for i in range(300)], tmp_path)
    assert 200 <= sum(durations) // 100 <= 201


def test_a_checkpoint_belongs_to_one_world() -> None:
    program = "import sys; from gallery import main; main(sys.argv[1:])"
    done = in_scripts(program, "--checkpoint", "run")
    assert done.returncode == 2
    assert "--checkpoint belongs to one world: name it with --worlds" in done.stderr


@pytest.mark.parametrize("world", list_envs())
def test_every_world_has_a_picture_that_moves_and_is_small(world: str) -> None:
    file = ROOT / "docs" / "images" / "worlds" / f"{world}.gif"
    assert file.stat().st_size < 500_000
    with Image.open(file) as picture:
        assert getattr(picture, "n_frames", 1) > 1
        assert max(picture.size) >= 240
