"""A stranger's run directory in which every file and folder in turn is something else, given to every command.

Nothing outside of the directory is written or removed, nothing hangs, and a command that cannot work says why in one sentence.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from enn_ppo import EnvConfig, SelfPlayConfig, TrainEvalConfig, train
from tests.enn_ppo import test_strangers as strangers
from tests.enn_ppo.test_links import digest
from tests.enn_ppo.worlds import tiny_config

NOBODY = 65534  # user without rights
STEP = "step_000000000064"
ENTRIES = (
    "config.yaml",
    "metrics.jsonl",
    "learning_curve.png",
    "ratings.json",
    ".trainer.lock",
    "checkpoints",
    f"checkpoints/{STEP}.safetensors",
    "pool",
    f"pool/{STEP}.safetensors",
    "replays",
    f"replays/{STEP}.html",
    f"replays/watched_{STEP.removeprefix('step_')}.html",
    "videos",
    f"videos/{STEP}.gif",
)


def _link(entry: Path, outside: Path, target: str) -> None:
    entry.symlink_to(entry if target == "itself" else outside / target)


def _folder(entry: Path, outside: Path) -> None:
    entry.mkdir()
    (entry / "file").write_text("hello")


KINDS: dict[str, Callable[[Path, Path], object]] = {
    "link to a file": partial(_link, target="file.txt"),
    "link to a folder": partial(_link, target="run"),
    "link to its twin in another run": lambda entry, outside: None,  # made below, where its name is known
    "link to itself": partial(_link, target="itself"),
    "link to nothing": partial(_link, target="nothing"),
    "pipe": lambda entry, outside: os.mkfifo(entry),
    "folder": _folder,
    "empty file": lambda entry, outside: entry.touch(),
    "no rights": lambda entry, outside: (entry.touch(), entry.chmod(0)),
}


COMMANDS = {name: command for commands in strangers.COMMANDS.values() for name, command in commands.items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    world = EnvConfig(id="MultiSnake", kwargs={"board_size": 5, "num_snakes": 2, "num_players": 2, "max_steps": 8})
    evaluation = TrainEvalConfig(interval=32, episodes=2, num_envs=2, replay=1, video=1)
    pool = SelfPlayConfig(enabled=True, snapshot_interval=32)
    train(tiny_config(run, env=world, total_timesteps=64, eval=evaluation, self_play=pool))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("entity_gym.play.command.open_in_browser", strangers.closed)
        for name, command in COMMANDS.items():  # imports everything, which a user without rights could not
            shutil.copytree(run, run.parent / name / "run", symlinks=True)
            assert command(run.parent / name / "run") == (130 if name == "play" else 0)
    return run


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that another user can use, which those of pytest are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def without_rights(home: Path) -> Iterator[None]:
    """Take the rights of root, who may read everything, from the process in this context."""
    if os.geteuid() != 0:
        yield
        return
    for place, folders, files in os.walk(home):
        for name in (".", *folders, *files):
            os.chown(Path(place, name), NOBODY, NOBODY, follow_symlinks=False)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.timeout(60)  # the commands take a second each, so a longer one hangs
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ENTRIES)
def test_a_folder_with_something_else_in_the_place_of_a_file_or_folder_harms_nobody(
    trained: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    kind: str,
) -> None:
    monkeypatch.setattr("entity_gym.play.command.open_in_browser", strangers.closed)
    outside = home / "outside"
    outside.mkdir()
    shutil.copytree(trained, outside / "run", symlinks=True)
    (outside / "file.txt").write_text("mine")
    problems = []
    for command, call in COMMANDS.items():
        run = home / command / "run"
        shutil.copytree(trained, run, symlinks=True)
        entry = run / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
        entry.parent.mkdir(exist_ok=True)
        if kind == "link to its twin in another run":
            entry.symlink_to(outside / "run" / name)
        else:
            KINDS[kind](entry, outside)
        before = digest(outside)
        capsys.readouterr()
        with without_rights(home / command) if kind == "no rights" else nullcontext():
            code = call(run)
        said = capsys.readouterr().err
        if code == 2 and (said.count("error: ") != 1 or len(said.strip().splitlines()) > 3):
            problems.append(f"{command} does not say one sentence: {said}")
        if code not in (0, 2, 130) or "Traceback" in said:
            problems.append(f"{command} ends with exit code {code}: {said}")
        if digest(outside) != before:
            problems.append(f"{command} has changed what is outside of the folder")
    assert not problems
