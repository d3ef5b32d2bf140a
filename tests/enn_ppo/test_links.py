"""A run writes only into its own files and folders: a link in a stranger's run directory leads no write out of it."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enn_ppo import EnvConfig, TrainEvalConfig, train
from enn_ppo.checkpoints import folder, load_checkpoint
from enn_ppo.eval.evaluate import evaluate as evaluate_command
from enn_ppo.settings.command_line.cli import run_eval
from enn_ppo.training.errors import Interrupted
from enn_ppo.training.files import append_to_file, make_folder, open_to_write, replace_file, write_file
from enn_ppo.training.tracking.run_dir import LOCK
from tests.enn_ppo.worlds import tiny_config

FILES = ("config.yaml", "metrics.jsonl", "learning_curve.png", "ratings.json", LOCK)
FOLDERS = ("checkpoints", "pool", "videos", "replays", "tensorboard", "wandb")
INSIDE = (
    "checkpoints/step_000000000064.safetensors",
    "pool/step_000000000064.safetensors",
    "videos/step_000000000064.gif",
    "replays/step_000000000064.html",
)


def digest(folder: Path) -> dict[str, str]:
    """The content of every file and the kind of everything else in a folder, links included and not followed."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            is_file = path.is_file() and not path.is_symlink()
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest() if is_file else "other"
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a registered world, about which nobody is asked."""
    run = tmp_path_factory.mktemp("trained") / "run"
    train(tiny_config(run, env=EnvConfig(id="Xor"), total_timesteps=64))
    return run


@pytest.fixture
def places(trained: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A stranger's run, and a folder outside of it that must stay as it is."""
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(trained, run, symlinks=True)
    shutil.copytree(trained, outside, symlinks=True)
    (outside / "profile").write_text("export PATH\n")
    return run, outside


def go_on(run: Path, **changes: Any) -> None:
    """Resume and train one update more, with everything that a run can write."""
    evaluation = TrainEvalConfig(interval=32, episodes=2, num_envs=2, replay=1)
    config = tiny_config(run, env=EnvConfig(id="Xor"), total_timesteps=128, resume=str(run), eval=evaluation)
    train(replace(config, **changes))


@pytest.mark.parametrize("name", [*FILES, *FOLDERS, *INSIDE])
def test_a_resumed_run_refuses_a_link_where_it_would_write(places: tuple[Path, Path], name: str) -> None:
    run, outside = places
    entry = run / name
    entry.parent.mkdir(exist_ok=True)
    is_folder = name in FOLDERS or entry.is_dir()
    shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
    entry.symlink_to((outside / name) if is_folder else outside / "profile")
    before = digest(outside)
    with pytest.raises(ValueError, match=r"link|no whole checkpoint"):
        go_on(run)
    assert digest(outside) == before


def test_another_run_dir_takes_what_the_stranger_s_folder_holds(places: tuple[Path, Path], tmp_path: Path) -> None:
    run, outside = places
    (run / "replays").symlink_to(outside)
    before = digest(outside)
    go_on(run, run_dir=str(tmp_path / "mine"))
    assert digest(outside) == before
    assert load_checkpoint(tmp_path / "mine").step == 128


def test_the_folder_of_a_policy_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "red").symlink_to(tmp_path / "elsewhere")
    world = EnvConfig(id="MultiSnake", kwargs={"num_snakes": 2, "num_players": 2})
    with pytest.raises(ValueError, match="red is a link"):
        train(tiny_config(tmp_path / "run", env=world, policies={"red": [0], "blue": [1]}))
    assert not any((tmp_path / "elsewhere").iterdir())


def test_the_output_of_a_command_is_not_written_through_a_link(
    places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, outside = places
    (run / "scores.json").symlink_to(outside / "profile")
    arguments = [f"checkpoint={run}", "episodes=2", "num_envs=2", f"output={run / 'scores.json'}"]
    assert run_eval(evaluate_command, arguments) == 2
    assert "it is a link" in capsys.readouterr().err
    assert (outside / "profile").read_text() == "export PATH\n"


@pytest.mark.parametrize("write", [write_file, append_to_file, replace_file])
def test_no_way_of_writing_follows_a_link(tmp_path: Path, write: Any) -> None:
    (tmp_path / "target").write_bytes(b"mine")
    for target in ("target", "nothing", "link"):  # a file, nothing, itself
        link = tmp_path / "link"
        link.symlink_to(tmp_path / target)
        with pytest.raises(OSError, match="link"):
            write(link, b"theirs")
        link.unlink()
    assert (tmp_path / "target").read_bytes() == b"mine"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_link_is_found_where_the_system_cannot_refuse_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_checked: bool
) -> None:
    """Without O_NOFOLLOW, as on Windows, the check finds it; with it, so does the system."""
    if is_checked:
        monkeypatch.delattr(os, "O_NOFOLLOW")
    else:
        monkeypatch.setattr("enn_ppo.training.files.is_link", lambda path: False)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError):
        open_to_write(tmp_path / "link", os.O_WRONLY | os.O_CREAT)
    assert not (tmp_path / "target").exists()


def test_only_regular_files_are_written_and_nobody_waits_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for flags in (os.O_WRONLY, os.O_RDWR):
        with pytest.raises(OSError):
            open_to_write(tmp_path / "pipe", flags)
    with pytest.raises(OSError, match="no regular file"):
        open_to_write(Path("/dev/null"), os.O_WRONLY)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")


@pytest.mark.parametrize(("number", "how"), [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupted")])
def test_a_signal_during_the_first_save_leaves_a_run_that_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, how: str
) -> None:
    def replace_once(path: Path, data: bytes) -> None:
        if not sent:
            sent.append(1)
            os.kill(os.getpid(), number)
        replace_file(path, data)

    sent: list[int] = []
    monkeypatch.setattr(folder, "replace_file", replace_once)
    with pytest.raises(Interrupted, match=rf"{how} after 32 steps; saved .*; go on with resume={tmp_path}"):
        train(tiny_config(tmp_path, env=EnvConfig(id="Xor"), total_timesteps=64))
    assert sent
    train(tiny_config(tmp_path, env=EnvConfig(id="Xor"), total_timesteps=64, resume=str(tmp_path)))
    assert load_checkpoint(tmp_path).step == 64


def test_a_run_that_was_killed_before_its_first_checkpoint_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("total_timesteps: 64\n")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match="ended before it saved one; begin again with overwrite=true"):
        load_checkpoint(tmp_path)
    train(tiny_config(tmp_path, env=EnvConfig(id="Xor"), total_timesteps=64, overwrite=True))
