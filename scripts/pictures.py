"""Make the pictures of the docs: films of worlds, photographs of pages of replays, the dashboard, and curves.

python scripts/pictures.py films                              # docs/images/worlds/<World>.gif, of all worlds without one
python scripts/pictures.py films Xor Minefield                # of these, also where a film exists
python scripts/pictures.py films MultiSnake --checkpoint out/snake    # by an existing policy
python scripts/pictures.py pages                              # docs/images/replays/<Name>.png, by a headless Chromium
python scripts/pictures.py pages Gold out/replay.html#episode=2       # of these, and of another page
python scripts/pictures.py dashboard                          # docs/images/dashboard.svg, of a training in tmux
python scripts/pictures.py curves                             # docs/images/symptoms/<name>.png, of docs/when_it_does_not_learn.md
python scripts/pictures.py curves waiting                     # of the commands that write waiting.png

Trains each policy for at most `--seconds`, with one thread, in outputs/gallery/<Name>; an existing policy is used again.
Each film is written with the policy's score in 100 episodes. The moments of photographs are chosen by eye: look at them again
after another training. Curves are those of the page's own commands, which take ten minutes in all.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image, ImageChops, ImageSequence
from rich.console import Console
from rich.text import Text

from enn_ppo.checkpoints.policy import load_trusted, select_device
from enn_ppo.eval.evaluate import evaluate_checkpoint
from enn_ppo.eval.video import Video
from enn_ppo.settings.evaluation import EpisodesConfig
from entity_gym.registry import list_envs

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "images" / "worlds"
PAGES = ROOT / "docs" / "images" / "replays"
CURVES = ROOT / "docs" / "images" / "symptoms"
PAGE_OF_CURVES = ROOT / "docs" / "when_it_does_not_learn.md"
RUNS = Path("outputs/gallery")
EVAL_SEED = 7_000_000
MOST_STEPS, COLOURS = 70, 16  # of a picture
PAUSE = 1000  # milliseconds after an episode
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WINDOW = (1200, 1600)  # pixels of a photograph, before the empty part below the page is cut off
#: Selects an entity as soon as the page has drawn its replay.
SELECT = """<script>
const wait = setInterval(() => {{ if (window.replay?.drawing.count > 1) {{ clearInterval(wait); {} }} }}, 50)
</script>"""
COMMAND = "python -m enn_ppo.train env=MineSweeper"  # that the dashboard is shown of


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
    "Knapsack": ONE_STEP,
    "Minefield": Film(episodes=2, milliseconds=50),
    "MoveToOrigin": Film(episodes=1, milliseconds=80),
    "MultiArmedBandit": Film(episodes=1, milliseconds=200),
    "MultiSnake": Film(episodes=1, milliseconds=100),
    "NotHotdog": ONE_STEP,
    "Pairs": ONE_STEP,
    "PickMatchingBalls": Film(2, 200, ("env.kwargs.one_hot=true", "env.kwargs.randomize=true")),  # as in learn_zoo.py
    "RockPaperScissors": ONE_STEP,
    "Route": ONE_STEP,
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


def make_picture(world: str, checkpoint: Path | None, seconds: int, folder: Path) -> str:
    """Train if no policy is given or left from before, film it, and say what was made.

    Raises:
        RuntimeError: a command failed; the message has the end of its output.
    """
    film = FILMS.get(world, TURNS)
    run = checkpoint or _trained(world, (f"env={world}", *film.settings), seconds)
    with TemporaryDirectory() as scratch:
        made, picture = Video(Path(scratch) / "film.gif", film.episodes), folder / f"{world}.gif"
        config = EpisodesConfig(episodes=100, seed=EVAL_SEED)
        result = evaluate_checkpoint(load_trusted(run, trusted=False), config, None, select_device("auto"), video=made)
        shrink(made.path, picture, film.milliseconds)
        score = result.estimates["episodic_reward"].mean
    return f"{picture}: {picture.stat().st_size // 1024} KiB, mean reward of 100 episodes {score:.3f}"


def photograph(names: Sequence[str], seconds: int, pictures: Path) -> None:
    """Photograph pages: of `MOMENTS`, whose policies are trained where none exists, and files of replays.

    Raises:
        RuntimeError: a command failed.
    """
    with TemporaryDirectory() as folder:
        (Path(folder) / "gold.py").write_text(_world_of_the_readme())
        for name in names:
            if name not in MOMENTS:
                file, _, link = name.partition("#")
                _photograph(Path(file), link, "", pictures / f"{Path(file).stem}.png")
                continue
            moment, page = MOMENTS[name], Path(folder) / f"{name}.html"
            run = _trained(name, moment.settings, seconds, folder)
            how = ["episodes=3", f"seed={EVAL_SEED}", f"output={page}", "open=false"]
            _command("enn_ppo.watch", str(run), *how, modules=folder)
            _photograph(page, moment.link, f"replay.select({moment.entity})", pictures / f"{name}.png")


def _photograph(page: Path, link: str, script: str, picture: Path) -> None:
    assert CHROMIUM is not None
    picture.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        shown = Path(folder) / "page.html"
        # the page's policy allows its own scripts only
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text("utf-8"))
        shown.write_text(text + SELECT.format(script), "utf-8")
        how = [f"--window-size={WINDOW[0]},{WINDOW[1]}", "--virtual-time-budget=20000", "--hide-scrollbars"]
        profile = ["--headless=new", "--no-sandbox", f"--user-data-dir={folder}", "--force-color-profile=srgb"]
        command = [CHROMIUM, *profile, *how, f"--screenshot={picture.resolve()}", f"{shown.as_uri()}#{link}"]
        subprocess.run(command, check=True, capture_output=True, timeout=180)
    crop(picture)
    print(picture, flush=True)


def crop(picture: Path) -> None:
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
    """Rewrite a film with at most `MOST_STEPS` steps, another speed, one palette for all images, and a `PAUSE` at the end."""
    frames: list[Image.Image] = []
    steps: list[int] = []  # that each image is shown for
    with Image.open(film) as images:
        step = min(int(image.info["duration"]) for image in ImageSequence.Iterator(images))
        for image in ImageSequence.Iterator(images):
            if sum(steps) < MOST_STEPS:
                frames.append(image.convert("RGB"))
                steps.append(int(image.info["duration"]) // step)
    durations = [milliseconds * shown for shown in steps]
    durations[-1] += PAUSE
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


def draw_curves(names: Sequence[str], folder: Path) -> None:
    """Run the blocks of commands of the page that end by drawing curves, and keep the pictures in 64 colours.

    Args:
        names: of pictures; none: all of the page.
        folder: for the pictures.

    Raises:
        RuntimeError: a command failed.
    """
    page = PAGE_OF_CURVES.read_text("utf-8").replace("\\\n", "")
    runs = RUNS / "curves"
    for made in (runs, folder):
        made.mkdir(parents=True, exist_ok=True)
    for block in re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        name = re.search(r"output=(\w+)\.png$", block.strip())
        if name is None or (names and name[1] not in names):
            continue
        *trainings, plot = [shlex.split(line)[2:] for line in block.strip().splitlines()]
        for training in trainings:
            _command(*training, "overwrite=true", cwd=runs)
        _command(*plot, cwd=runs)
        with Image.open(runs / f"{name[1]}.png") as picture:
            shown = picture.convert("RGB").quantize(64, dither=Image.Dither.NONE)
        shown.save(folder / f"{name[1]}.png", optimize=True)
        print(folder / f"{name[1]}.png", flush=True)


def _trained(name: str, settings: Sequence[str], seconds: int, modules: str = "") -> Path:
    """The run directory of a policy, which is trained if it is not there."""
    run = RUNS / name
    if not (run / "checkpoints").exists():
        how = [f"max_train_seconds={seconds}", "num_threads=1", "seed=1", "overwrite=true"]
        _command("enn_ppo.train", *settings, f"run_dir={run}", *how, modules=modules)
    return run


def _command(module: str, *arguments: str, modules: str = "", cwd: Path | None = None) -> str:
    """Run a command, which also finds modules of the folder `modules`, in the folder `cwd`, and return its output."""
    path = os.pathsep.join(filter(None, [str(ROOT), modules]))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")
    return done.stdout


def capture(columns: int, rows: int, part: float) -> str:
    """Return the screen, with sequences for colours, of a training of which a part is done."""
    server = ["tmux", "-L", f"capture_dashboard_{time.time_ns()}", "-f", "/dev/null"]
    # the training may still write for a moment when its session has ended
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        training = [sys.executable, *COMMAND.split()[1:], "run_dir=outputs/MineSweeper"]
        # in the folder, so that the run directory has a short name
        shell = f"cd {shlex.quote(folder)} && PYTHONPATH={shlex.quote(str(ROOT))} COLORTERM=truecolor {shlex.join(training)}"
        size = ["-x", str(columns), "-y", str(rows)]
        subprocess.run([*server, "new-session", "-d", *size, f"{shell}; sleep 60"], check=True)
        try:
            deadline = time.monotonic() + 180.0  # the first run on a machine compiles
            while time.monotonic() < deadline:
                shown = subprocess.run(
                    [*server, "capture-pane", "-p", "-e"], check=True, capture_output=True, text=True
                )
                percent = re.search(r"(\d+)%.*━", shown.stdout)
                if percent and int(percent[1]) >= 100 * part:
                    return shown.stdout
                time.sleep(0.2)
        finally:
            subprocess.run([*server, "kill-server"], check=False)
    raise SystemExit(f"no dashboard was {part:.0%} done within {180.0:.0f} s; the screen was:\n{shown.stdout}")


def to_svg(screen: str, columns: int) -> str:
    """Draw a screen as an SVG without fonts of other sites."""
    console = Console(record=True, width=columns, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    console.print(Text.from_ansi(screen.rstrip()), no_wrap=True, overflow="crop")
    svg = console.export_svg(title=COMMAND, unique_id="dashboard")
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.S)


def main() -> int:
    given = _arguments()
    if given.what == "films":
        for world in given.names or [world for world in list_envs() if not (PICTURES / f"{world}.gif").exists()]:
            print(make_picture(world, given.checkpoint, given.seconds, given.folder), flush=True)
    elif given.what == "pages":
        photograph(given.names or list(MOMENTS), given.seconds, given.folder)
    elif given.what == "curves":
        draw_curves(given.names, given.folder)
    else:
        given.output.write_text(to_svg(capture(given.columns, given.rows, 0.6), given.columns), encoding="utf-8")
        print(f"wrote {given.output}")
    return 0


def _arguments() -> Namespace:
    parser = ArgumentParser(description=(__doc__ or "").split("\n")[0])
    kinds = parser.add_subparsers(dest="what", required=True)
    films = kinds.add_parser("films", help="GIFs of worlds")
    films.add_argument("names", nargs="*", metavar="WORLD", help="default: all without a film")
    films.add_argument("--checkpoint", type=Path, help="run directory or checkpoint of the one world; default: train")
    pages = kinds.add_parser("pages", help="photographs of pages of replays")
    pages.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(MOMENTS)} (all), or FILE.html#MOMENT")
    for kind, folder in ((films, PICTURES), (pages, PAGES)):
        kind.add_argument("--folder", type=Path, default=folder, help="for the pictures")
        kind.add_argument("--seconds", type=int, default=300, help="of training for each policy (300)")
    drawn = kinds.add_parser("curves", help=f"curves of {PAGE_OF_CURVES.name}")
    drawn.add_argument("names", nargs="*", metavar="NAME", help="of pictures (all)")
    drawn.add_argument("--folder", type=Path, default=CURVES, help="for the pictures")
    dashboard = kinds.add_parser("dashboard", help="the dashboard of a training")
    dashboard.add_argument("--columns", type=int, default=90)
    dashboard.add_argument("--rows", type=int, default=16)
    dashboard.add_argument("--output", type=Path, default=ROOT / "docs/images/dashboard.svg")
    given = parser.parse_args()
    if given.what == "films":
        if given.checkpoint and len(given.names) != 1:
            parser.error("--checkpoint belongs to one world: name it")
        if unknown := set(given.names) - set(list_envs()):
            parser.error(f"there are no worlds {', '.join(sorted(unknown))}; there are {', '.join(list_envs())}")
    if given.what == "pages":
        for name in given.names:
            if name not in MOMENTS and not Path(name.partition("#")[0]).is_file():
                parser.error(f"{name} is no file, and none of {', '.join(MOMENTS)}")
        if CHROMIUM is None:
            parser.error("needs Chromium: apt-get install chromium")
    return given


if __name__ == "__main__":
    raise SystemExit(main())
