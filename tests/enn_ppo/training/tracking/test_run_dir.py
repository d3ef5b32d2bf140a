"""A run directory is never taken over by accident, and nothing but a run is ever removed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from enn_ppo.training.tracking.run_dir import prepare_run_dir


def a_run(path: Path) -> Path:
    (path / "checkpoints").mkdir(parents=True)
    (path / "checkpoints" / "step_000000000100.safetensors").write_bytes(b"data")
    (path / "checkpoints" / ".step_1.0123456789abcdef.aside.safetensors").write_bytes(b"da")
    (path / "wandb" / "offline-run-1").mkdir(parents=True)
    for folder, file in (
        ("pool", "step_000000000050.safetensors"),
        ("videos", "step_000000000100.gif"),
        ("tensorboard", "e"),
    ):
        (path / folder).mkdir()
        (path / folder / file).touch()
    for file in ("ratings.json", "clone.yaml", "clone.jsonl"):
        (path / file).touch()
    (path / "metrics.jsonl").write_text('{"step": 100}\n')
    (path / "config.yaml").write_text("total_timesteps: 20000\n")
    (path / "learning_curve.png").write_bytes(b"png")
    (path / "eval.json").write_text("{}")
    return path


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


@pytest.mark.parametrize(("resume", "overwrite"), [(False, False), (True, False), (False, True)])
def test_a_new_directory_is_created_with_its_parents(tmp_path: Path, resume: bool, overwrite: bool) -> None:
    path = tmp_path / "outputs" / "a"
    assert prepare_run_dir(path, resume=resume, overwrite=overwrite) == path
    assert names(path) == []


def test_a_directory_without_a_run_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    prepare_run_dir(tmp_path, resume=False, overwrite=False)
    assert names(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("mark", ["config.yaml", "metrics.jsonl", "checkpoints"])
def test_an_existing_run_is_refused_with_both_ways_out(tmp_path: Path, mark: str) -> None:
    (tmp_path / mark).touch() if "." in mark else (tmp_path / mark).mkdir()
    message = rf"already holds a run \({mark}\): continue it with resume={tmp_path}, remove it with overwrite=true"
    with pytest.raises(ValueError, match=message):
        prepare_run_dir(tmp_path, resume=False, overwrite=False)


def test_resume_leaves_everything_there(tmp_path: Path) -> None:
    before = names(a_run(tmp_path))
    prepare_run_dir(tmp_path, resume=True, overwrite=False)
    assert names(tmp_path) == before


def test_overwrite_removes_only_what_a_run_writes(tmp_path: Path) -> None:
    a_run(tmp_path)
    prepare_run_dir(tmp_path, resume=False, overwrite=True)
    assert names(tmp_path) == ["eval.json"]


def test_resume_and_overwrite_exclude_each_other(tmp_path: Path) -> None:
    a_run(tmp_path)
    with pytest.raises(ValueError, match="resume and overwrite=true exclude each other"):
        prepare_run_dir(tmp_path, resume=True, overwrite=True)
    assert (tmp_path / "checkpoints" / "step_000000000100.safetensors").exists()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "config.yaml").write_text("port: 80\n"), "config.yaml has no total_timesteps"),
        (lambda run: (run / "config.yaml").write_text("a: [1,"), "config.yaml has no total_timesteps"),
        (lambda run: (run / "metrics.jsonl").write_text("[1]\n"), "metrics.jsonl holds no rows of metrics"),
        (lambda run: (run / "metrics.jsonl").write_bytes(b"\xff\n"), "metrics.jsonl holds no rows"),
        (lambda run: (run / "checkpoints" / "thesis.tex").touch(), "checkpoints holds thesis.tex"),
        (lambda run: (run / "videos" / "wedding.mp4").touch(), "videos holds wedding.mp4"),
        (lambda run: (run / "pool" / "swimming.safetensors").touch(), "pool holds swimming.safetensors"),
        (lambda run: ((run / "metrics.jsonl").unlink(), (run / "metrics.jsonl").mkdir()), "metrics.jsonl is no file"),
        (
            lambda run: (
                (run / "checkpoints").rename(run / "elsewhere"),
                (run / "checkpoints").symlink_to("elsewhere"),
            ),
            "checkpoints is a link",
        ),
        (
            lambda run: ((run / "wandb").rename(run / "elsewhere"), (run / "wandb").write_text("")),
            "wandb is no folder",
        ),
    ],
)
def test_overwrite_refuses_what_does_not_look_like_a_run(
    tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    run = a_run(tmp_path / "run")
    spoil(run)
    before = sorted(str(path) for path in run.rglob("*"))
    with pytest.raises(ValueError, match=rf"run_dir {run} is refused: {message}"):
        prepare_run_dir(run, resume=False, overwrite=True)
    assert sorted(str(path) for path in run.rglob("*")) == before


@pytest.mark.parametrize("metrics", ["", '{"ste', '{"step": 100}\n{"st'])
def test_overwrite_takes_a_run_that_crashed_early(tmp_path: Path, metrics: str) -> None:
    (a_run(tmp_path) / "metrics.jsonl").write_text(metrics)
    prepare_run_dir(tmp_path, resume=False, overwrite=True)
    assert names(tmp_path) == ["eval.json"]


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(ValueError, match=rf"run_dir {tmp_path}/out is a file; give a folder"):
        prepare_run_dir(tmp_path / "out", resume=False, overwrite=True)


def test_a_path_below_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(ValueError, match=rf"run_dir {tmp_path}/out/a/b cannot be written: Not a directory"):
        prepare_run_dir(tmp_path / "out" / "a" / "b", resume=False, overwrite=False)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux")
def test_a_place_where_nothing_can_be_created_is_named() -> None:
    with pytest.raises(ValueError, match="run_dir /proc/x cannot be written: No such file"):
        prepare_run_dir(Path("/proc/x"), resume=False, overwrite=False)
    with pytest.raises(ValueError, match="run_dir /proc/self cannot be written: "):  # exists, yet takes no file
        prepare_run_dir(Path("/proc/self"), resume=False, overwrite=False)


def test_a_full_disk_is_noticed_before_the_run_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes, mode: int = 0) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("enn_ppo.training.files.write_file", full)
    with pytest.raises(ValueError, match="cannot be written: No space left on device"):
        prepare_run_dir(tmp_path, resume=False, overwrite=False)
    assert names(tmp_path) == []
