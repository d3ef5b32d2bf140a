"""Make the moving pictures of docs/environments.md: each world, played by a policy that was trained with its preset.

python scripts/gallery.py                                                   # all worlds without a picture
python scripts/gallery.py --worlds Xor Minefield                            # these, also where a picture exists
python scripts/gallery.py --worlds MultiSnake --checkpoint out/snake        # by a policy that is there

Trains each world for at most `--seconds`, with one thread, in outputs/gallery/<World>; a policy that is there is used again.
Then writes docs/images/worlds/<World>.gif, and says how the policy scored in 100 episodes. Run
scripts/regenerate_environments.py afterwards: it puts the pictures on the page.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from PIL import Image, ImageSequence

from entity_gym.registry import list_envs

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "images" / "worlds"
RUNS = Path("outputs/gallery")
EVAL_SEED = 7_000_000
SMALLEST_SIDE, MOST_FRAMES = 240, 200  # pixels of the longer side; frames of a picture


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
    "Minefield": Film(episodes=3, milliseconds=50),
    "MoveToOrigin": Film(episodes=3, milliseconds=80),
    "MultiArmedBandit": Film(episodes=1, milliseconds=200),
    "MultiSnake": Film(episodes=1, milliseconds=100),
    "NotHotdog": ONE_STEP,
    "PickMatchingBalls": Film(2, 200, ("env.kwargs.one_hot=true", "env.kwargs.randomize=true")),  # as in learn_zoo.py
    "RockPaperScissors": ONE_STEP,
    "Skirmish": Film(episodes=2, milliseconds=120),
    "TreasureHunt": Film(episodes=2, milliseconds=100),
    "Xor": ONE_STEP,
}


def make_picture(world: str, checkpoint: Path | None, seconds: int) -> str:
    """Train if no policy is given or left from before, film it, and say what was made.

    Raises:
        RuntimeError: a command failed; the message has the end of its output.
    """
    run, film = checkpoint or RUNS / world, FILMS.get(world, TURNS)
    if checkpoint is None and not (run / "checkpoints" / "latest").exists():
        how = [f"max_train_seconds={seconds}", "num_threads=1", "seed=1", "overwrite=true"]
        _command("enn_ppo.train", f"env={world}", f"run_dir={run}", *film.settings, *how)
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


def shrink(film: Path, picture: Path, milliseconds: int) -> None:
    """Rewrite a film with at most `MOST_FRAMES` steps, another speed, and small images enlarged by a whole factor."""
    frames, durations = [], []
    with Image.open(film) as images:
        factor = max(1, -(-SMALLEST_SIDE // max(images.size)))
        step = None
        for image in ImageSequence.Iterator(images):
            shown = int(image.info["duration"])  # equal images follow each other as one that is shown for longer
            step = min(step or shown, shown)
            durations.append(shown)
            frames.append(image.convert("RGB").resize((image.width * factor, image.height * factor), Image.NEAREST))
    durations = [milliseconds * shown // (step or 1) for shown in durations]
    most = next((i for i in range(len(frames)) if sum(durations[:i]) > MOST_FRAMES * milliseconds), len(frames))
    picture.parent.mkdir(parents=True, exist_ok=True)
    colours = [frame.quantize(64, dither=Image.Dither.NONE) for frame in frames[:most]]
    rest = {"append_images": colours[1:], "duration": durations[:most], "loop": 0, "optimize": True}
    colours[0].save(picture, "GIF", save_all=True, **rest)


def _command(module: str, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    given = _arguments(arguments)
    worlds = given.worlds or [world for world in list_envs() if not (PICTURES / f"{world}.gif").exists()]
    for world in worlds:
        print(make_picture(world, given.checkpoint, given.seconds), flush=True)
    return 0


def _arguments(arguments: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--worlds", nargs="+", choices=list_envs(), metavar="WORLD", help="default: all without a picture"
    )
    parser.add_argument("--checkpoint", type=Path, help="run directory or checkpoint of the one world; default: train")
    parser.add_argument("--seconds", type=int, default=300, help="of training for each world (300)")
    given = parser.parse_args(arguments)
    if given.checkpoint and len(given.worlds or ()) != 1:
        parser.error("--checkpoint belongs to one world: name it with --worlds")
    return given


if __name__ == "__main__":
    raise SystemExit(main())
