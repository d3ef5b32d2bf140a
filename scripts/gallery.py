"""Make the pictures of trained policies: films of all worlds for the page of worlds, pages of replays for docs/replays.md.

python scripts/gallery.py                                                   # films of all worlds without one
python scripts/gallery.py --worlds Xor Minefield                            # of these, also where a film exists
python scripts/gallery.py --worlds MultiSnake --checkpoint out/snake        # by a policy that is there
python scripts/gallery.py --pages                                           # photographs of pages, by a headless Chromium
python scripts/gallery.py --pages Gold Minefield                            # of these

Trains each policy for at most `--seconds`, with one thread, in outputs/gallery/<Name>; a policy that is there is used again.
Films are docs/images/worlds/<World>.gif, which `make docs` puts on the page; each is written with the policy's score in 100
episodes. Photographs are docs/images/replays/<Name>.png. Their moments are chosen by eye: look at them
again after another training.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from PIL import Image, ImageChops, ImageSequence
from screenshots import take

from enn_ppo.eval.video import BACKGROUND
from entity_gym.registry import list_envs
from tests.chromium import CHROMIUM, NO_CHROMIUM, Browser

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "images" / "worlds"
PAGES = ROOT / "docs" / "images" / "replays"
RUNS = Path("outputs/gallery")
EVAL_SEED = 7_000_000
MOST_STEPS, COLOURS = 70, 16  # of a picture
PAUSE = 1000  # milliseconds after an episode


@dataclass(frozen=True)
class Film:
    """How a world is shown."""

    episodes: int
    milliseconds: int  # per step
    settings: tuple[str, ...] = ()  # of training, beside the preset


ONE_STEP = Film(episodes=10, milliseconds=700)
PHYSICS = Film(episodes=1, milliseconds=40)
TURNS = Film(episodes=2, milliseconds=200)
FILMS = {
    "CartPole-v0": PHYSICS,
    "CartPole-v1": PHYSICS,
    "Count": ONE_STEP,
    "FloorIsLava": ONE_STEP,
    "Minefield": Film(episodes=2, milliseconds=50),
    "MoveToOrigin": Film(episodes=1, milliseconds=80),
    "MultiArmedBandit": Film(episodes=1, milliseconds=200),
    "MultiSnake": Film(episodes=1, milliseconds=100),
    "NotHotdog": ONE_STEP,
    "PickMatchingBalls": Film(2, 200, ("env.kwargs.one_hot=true", "env.kwargs.randomize=true")),  # as in learn_zoo.py
    "RockPaperScissors": ONE_STEP,
    "Skirmish": Film(episodes=1, milliseconds=120),
    "TreasureHunt": Film(episodes=2, milliseconds=100),
    "Xor": ONE_STEP,
}


@dataclass(frozen=True)
class Moment:
    """The moment that a photograph of a page shows."""

    settings: tuple[str, ...]  # of training
    link: str
    entity: int  # that is selected


MOMENTS = {
    "CherryPick": Moment(("env=CherryPick",), "episode=3&step=6", 26),
    "Gold": Moment(("env=custom", "env.id=gold:Gold", "env.kwargs.size=6"), "episode=2&step=4", 0),
    "Gymnasium": Moment(("env=gymnasium", "env.id=CartPole-v1"), "episode=1&step=65", 0),
    "MineSweeper": Moment(("env=MineSweeper",), "episode=2&step=2", 5),
    "Minefield": Moment(("env=Minefield",), "episode=1&step=4", 0),
    "TwoSnakes": Moment(
        ("env=MultiSnake2", "env.kwargs.num_players=2", "self_play.enabled=true"), "episode=3&step=14&player=2", 1
    ),
}


def make_picture(world: str, checkpoint: Path | None, seconds: int) -> str:
    """Train if no policy is given or left from before, film it, and say what was made.

    Raises:
        RuntimeError: a command failed; the message has the end of its output.
    """
    film = FILMS.get(world, TURNS)
    run = checkpoint or _trained(world, (f"env={world}", *film.settings), seconds)
    preset = yaml.safe_load(_command("enn_ppo.train", f"env={world}", "--cfg", "job"))
    with TemporaryDirectory() as folder:
        made, scores = Path(folder) / "film.gif", Path(folder) / "scores.json"
        greedy = f"greedy={str(bool(preset['eval']['greedy'])).lower()}"
        how = ["episodes=100", f"video={film.episodes}", f"render={made}", f"output={scores}", f"seed={EVAL_SEED}"]
        _command("enn_ppo.eval", f"checkpoint={run}", greedy, *how)
        picture = PICTURES / f"{world}.gif"
        shrink(made, picture, film.milliseconds)
        score = json.loads(scores.read_text())["episodic_reward"]["mean"]
    return f"{picture.relative_to(ROOT)}: {picture.stat().st_size // 1024} KiB, mean reward of 100 episodes {score:.3f}"


def photograph(names: Sequence[str], seconds: int) -> None:
    """Train where no policy is left from before, write its page, and photograph it at its moment.

    Raises:
        RuntimeError: a command failed, or a page shows an error.
    """
    PAGES.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, Browser() as browser:
        (Path(folder) / "gold.py").write_text(_world_of_the_readme())
        for name in names:
            moment, page = MOMENTS[name], Path(folder) / f"{name}.html"
            run = _trained(name, moment.settings, seconds, folder)
            how = ["episodes=3", f"seed={EVAL_SEED}", f"output={page}", "open=false"]
            _command("enn_ppo.watch", str(run), *how, modules=folder)
            picture = PAGES / f"{name}.png"
            if take(browser.open(f"{page.as_uri()}#{moment.link}"), moment.entity, picture):
                raise RuntimeError(f"the page of {name} shows an error")
            _crop(picture)


def _crop(picture: Path) -> None:
    """Cut off what is empty below the page, and write the picture in 256 colours."""
    with Image.open(picture) as image:
        shown = image.convert("RGB")
    empty = Image.new("RGB", shown.size, shown.getpixel((0, 0)))
    left, top, _, bottom = ImageChops.difference(shown, empty).getbbox() or (0, 0, *shown.size)
    shown = shown.crop((0, 0, shown.width, min(bottom + max(left, top), shown.height)))
    shown.quantize(palette=_palette([shown], 256), dither=Image.Dither.NONE).save(picture, optimize=True)


def _world_of_the_readme() -> str:
    """The module `gold.py`."""
    found = re.search(r"This is `gold.py`:\n\n```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def shrink(film: Path, picture: Path, milliseconds: int) -> None:
    """Rewrite a film with at most `MOST_STEPS` steps, another speed, and one palette for all images.

    The titles between episodes are left out, since they would flicker among the small pictures of a table; the last image of
    each episode is shown for `PAUSE` instead.
    """
    frames: list[Image.Image] = []
    steps: list[int] = []  # that each image is shown for
    ends: set[int] = set()  # numbers of the last images of episodes
    with Image.open(film) as images:
        step = min(int(image.info["duration"]) for image in ImageSequence.Iterator(images))
        for image in ImageSequence.Iterator(images):
            shown = image.convert("RGB")
            if shown.getpixel((0, 0)) == BACKGROUND:  # the colour of titles
                ends.add(len(frames) - 1)
            elif sum(steps) < MOST_STEPS:
                frames.append(shown)
                steps.append(int(image.info["duration"]) // step)
    ends.add(len(frames) - 1)
    durations = [milliseconds * shown + PAUSE * (i in ends) for i, shown in enumerate(steps)]
    colours = _palette(frames, COLOURS)
    first, *rest = [frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame in frames]
    picture.parent.mkdir(parents=True, exist_ok=True)
    first.save(picture, "GIF", save_all=True, append_images=rest, duration=durations, loop=0, optimize=True)


def _palette(images: Sequence[Image.Image], size: int) -> Image.Image:
    """The commonest colours of images as a palette. With one palette, a GIF holds only what changes between its images."""
    counts: Counter[tuple[int, int, int]] = Counter()
    for image in images:
        counts.update({colour: count for count, colour in image.getcolors(image.width * image.height)})
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for colour, _ in counts.most_common(size) for channel in colour])
    return palette


def _trained(name: str, settings: Sequence[str], seconds: int, modules: str = "") -> Path:
    """The run directory of a policy, which is trained if it is not there."""
    run = RUNS / name
    if not (run / "checkpoints" / "latest").exists():
        how = [f"max_train_seconds={seconds}", "num_threads=1", "seed=1", "overwrite=true"]
        _command("enn_ppo.train", *settings, f"run_dir={run}", *how, modules=modules)
    return run


def _command(module: str, *arguments: str, modules: str = "") -> str:
    """Run a command, which also finds modules of the folder `modules`, and return its output."""
    path = os.pathsep.join(filter(None, [str(ROOT), modules]))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    given = _arguments(arguments)
    if given.pages is not None:
        photograph(given.pages or list(MOMENTS), given.seconds)
        return 0
    worlds = given.worlds or [world for world in list_envs() if not (PICTURES / f"{world}.gif").exists()]
    for world in worlds:
        print(make_picture(world, given.checkpoint, given.seconds), flush=True)
    return 0


def _arguments(arguments: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--worlds", nargs="+", choices=list_envs(), metavar="WORLD", help="to film; default: all without a film"
    )
    parser.add_argument(
        "--pages", nargs="*", metavar="NAME", help=f"photograph pages of replays: {', '.join(MOMENTS)}; default: all"
    )
    parser.add_argument("--checkpoint", type=Path, help="run directory or checkpoint of the one world; default: train")
    parser.add_argument("--seconds", type=int, default=300, help="of training for each world (300)")
    given = parser.parse_args(arguments)
    if given.checkpoint and len(given.worlds or ()) != 1:
        parser.error("--checkpoint belongs to one world: name it with --worlds")
    if given.pages is not None and given.worlds:
        parser.error("--worlds makes films and --pages photographs: one at a time")
    for name in given.pages or ():
        if name not in MOMENTS:
            parser.error(f"--pages {name}: there are {', '.join(MOMENTS)}")
    if given.pages is not None and CHROMIUM is None:
        parser.error(NO_CHROMIUM)
    return given


if __name__ == "__main__":
    raise SystemExit(main())
