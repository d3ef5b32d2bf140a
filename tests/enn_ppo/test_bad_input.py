"""Bad input ends a command with one sentence that names the file or the setting, and with exit code 2."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from enn_ppo import EnvConfig, train
from enn_ppo.checkpoints import step_file
from enn_ppo.clone import clone
from enn_ppo.eval.evaluate import evaluate
from enn_ppo.plot import main as plot
from enn_ppo.settings.command_line.cli import run_clone, run_eval, run_train
from tests.enn_ppo.forged import sealed, with_settings
from tests.enn_ppo.recordings import record
from tests.enn_ppo.worlds import Copycat, tiny_config

COPYCAT = ("env=custom", "env.id=tests.enn_ppo.worlds:Copycat", "device=cpu")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of Copycat."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train(tiny_config(run_dir, env=EnvConfig()), env=Copycat)
    return run_dir


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command, checks that it was refused in one line with exit code 2, and returns the line."""

    def run(command: Callable[..., int], *given: Any) -> str:
        capsys.readouterr()
        assert command(*given) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line.startswith("error: ")
        return line

    return run


# --- Files of checkpoints ---


def copy_of(whole: Path, bad: Path) -> Path:
    """Copy a run; returns its checkpoint."""
    shutil.copytree(whole, bad, symlinks=True)
    return step_file(bad / "checkpoints", 160)


def refused_to_play_and_resume(bad: Path, refused: Callable[..., str]) -> list[str]:
    return [
        refused(run_eval, evaluate, [f"checkpoint={bad}", "episodes=1"]),
        refused(run_train, train, [f"resume={bad}", "total_timesteps=160"]),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {"colour": "green"}}, "colour is not a setting"),
        ({"spaces": {}}, "the spaces cannot be read"),
        ({"spaces": {"entities": ["Lamp"], "global_features": [], "actions": []}}, "the spaces cannot be read"),
        (
            {"spaces": {"entities": [], "global_features": [], "actions": [{"name": "Switch", "type": "lever"}]}},
            "lever",
        ),
    ],
)
def test_settings_and_spaces_that_this_version_does_not_know_are_named(
    changes: dict[str, Any], message: str, whole: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    folder = sealed(copy_of(whole, tmp_path / "bad"), is_own=True, **changes)
    for line in refused_to_play_and_resume(tmp_path / "bad", refused):
        assert str(folder) in line and message in line, line


def test_a_checkpoint_whose_network_cannot_fit_into_memory_is_named(
    whole: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    folder = with_settings(copy_of(whole, tmp_path / "bad"), "net", d_model=100_000_000)
    line = refused(run_eval, evaluate, [f"checkpoint={tmp_path / 'bad'}", "episodes=1"])
    assert str(folder) in line and "settings" in line


# --- Run directories that hold no run ---


@pytest.mark.parametrize(
    "metrics",
    [
        None,
        b"",
        b"\xff\xfe\x00\x01\n\xff\n",
        b'{"colour": "green"}\n{"colour": "red"}\n',
        b'{"step": null, "episodic_reward": 2}\n',
        b'{"step": 1e400, "episodic_reward": 2}\n{"step": 2, "episodic_reward": 2}\n',
        b'{"step": "one", "episodic_reward": 2}\n{"step": "two", "episodic_reward": 2}\n',
        b'{"step": 1, "episodic_reward": "high"}\n{"step": 2, "episodic_reward": {}}\n',
    ],
)
def test_a_directory_that_holds_no_run_is_not_plotted(
    metrics: bytes | None, tmp_path: Path, refused: Callable[..., str]
) -> None:
    if metrics is not None:
        (tmp_path / "metrics.jsonl").write_bytes(metrics)
    assert str(tmp_path) in refused(plot, [str(tmp_path), f"output={tmp_path}/plot.png"])
    assert not (tmp_path / "plot.png").exists()


# --- A clone that diverges ---


@pytest.mark.parametrize("holdout", [0.0, 0.3])
def test_a_clone_that_diverges_ends_with_an_error_and_saves_nothing(
    holdout: float, tmp_path: Path, refused: Callable[..., str]
) -> None:
    record(tmp_path / "lessons.rec", Copycat)
    settings = [f"data={tmp_path}/lessons.rec", "optim.lr=1e20", f"clone.holdout={holdout}", "clone.epochs=1"]
    line = refused(run_clone, clone, [*COPYCAT, *settings, "net.d_model=8", f"run_dir={tmp_path}/clone"])
    assert "cloning has diverged in pass 1" in line and "optim.lr below 1e+20" in line
    assert not list((tmp_path / "clone").glob("**/*.safetensors"))


def test_a_network_that_does_not_fit_into_memory_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    line = refused(run_train, train, [*COPYCAT, "net.d_model=4000000", f"run_dir={tmp_path / 'run'}"])
    assert "networks of net.d_model=4000000 and net.n_layer=2 do not fit into memory; make them smaller" in line
