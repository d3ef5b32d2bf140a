"""What a run shows, and how it ends where its metrics cannot be written: naming what is saved."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enn_ppo import EnvConfig, LoggerConfig, TrainConfig, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.training.callbacks import Callback, Update
from enn_ppo.training.tracking.logger import MetricsLogger, Row, read_metrics
from enn_ppo.training.tracking.run_output import RunOutput
from enn_ppo.training.tracking.trackers import TensorBoardLogger
from tests.enn_ppo.rows import rows_of
from tests.enn_ppo.worlds import Copycat, tiny_config

UPDATE: Row = {"step": 32, "seconds": 1.0, "episodic_reward": 0.5, "episode_length": 1.0}


def config(run_dir: Path | None, **changes: Any) -> TrainConfig:
    """Five updates of 32 frames."""
    return replace(tiny_config("unset", env=EnvConfig(), **changes), run_dir=None if run_dir is None else str(run_dir))


class After(Callback):
    """Does something to the run directory once so many steps are trained."""

    def __init__(self, step: int, what: Any) -> None:
        self.step, self.what = step, what

    def on_update(self, update: Update) -> None:
        if update.step == self.step:
            self.what()


def test_a_row_is_stored_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunOutput(tmp_path, tiny_config(tmp_path), None) as output:
        output.log(UPDATE)
    assert read_metrics(tmp_path / "metrics.jsonl") == [UPDATE]
    shown, done = capsys.readouterr().out.splitlines()
    assert re.match(r"32/160 steps \(20%\) .* reward 0\.500 ", shown) and done == f"done: {tmp_path}"


def test_an_evaluation_that_ended_after_the_last_update_is_a_row_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late: Row = {"step": 160, "eval/step": 96.0, "eval/episodic_reward": 0.25, "eval/episodic_reward_ci95": 0.125}
    with RunOutput(tmp_path, tiny_config(tmp_path), None) as output:
        output.log(UPDATE | late | {"step": 128})
        output.log(late)
    assert read_metrics(tmp_path / "metrics.jsonl")[1] == late
    said = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("done")]
    assert [line.split("  ")[0] for line in said] == [
        "128/160 steps (80%)",
        *["evaluation of step 96: episodic_reward 0.250 ± 0.125"] * 2,
    ]


def test_metrics_on_a_full_disk_end_the_run_and_name_what_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = MetricsLogger.log

    def full_after_two_updates(logger: MetricsLogger, row: Row) -> None:
        if int(row["step"] or 0) > 64:
            raise OSError(28, "No space left on device", "metrics.jsonl")
        write(logger, row)

    monkeypatch.setattr(MetricsLogger, "log", full_after_two_updates)
    run_dir = tmp_path / "a"
    with pytest.raises(ValueError) as raised:
        train(config(run_dir, checkpoint_interval=2), env=Copycat)
    assert re.fullmatch(
        rf"{run_dir}/metrics.jsonl cannot be written: .*No space left on device.*; training ends after 96 steps",
        str(raised.value),
    )
    last = run_dir / "checkpoints/step_000000000064.safetensors"
    assert raised.value.__notes__ == [f"saved {last}; go on with resume={run_dir}"]
    assert load_checkpoint(run_dir).step == 64
    monkeypatch.setattr(MetricsLogger, "log", write)
    train(config(None, resume=str(run_dir)), env=Copycat)
    assert [row["step"] for row in read_metrics(run_dir / "metrics.jsonl")] == [32, 64, 96, 128, 160]


def test_a_tracker_that_fails_in_the_middle_of_a_run_changes_nothing_but_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    tracked = LoggerConfig(tensorboard=True)
    whole = train(config(tmp_path / "a", logger=tracked), env=Copycat)

    def gone(logger: TensorBoardLogger, row: Row) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(TensorBoardLogger, "log", gone)
    capsys.readouterr()
    result = train(config(tmp_path / "b", logger=tracked), env=Copycat)
    assert capsys.readouterr().out.count("TensorBoard failed and is disabled") == 1
    assert result.step == whole.step == 160
    assert [row["policy_loss"] for row in rows_of(tmp_path / "a")] == [
        row["policy_loss"] for row in rows_of(tmp_path / "b")
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_of_a_tracker_is_named_before_training(tmp_path: Path) -> None:
    (tmp_path / "a" / "tensorboard").mkdir(parents=True, mode=0o555)
    with pytest.raises(ValueError, match="run_dir .* cannot be written: .*Permission denied.*tensorboard"):
        train(config(tmp_path / "a", logger=LoggerConfig(tensorboard=True)), env=Copycat)


def test_a_run_directory_that_vanishes_ends_the_run_and_what_was_learned_is_saved(tmp_path: Path) -> None:
    run_dir = tmp_path / "a"
    with pytest.raises(ValueError, match=r"metrics.jsonl cannot be written: .*No such file"):
        train(config(run_dir), env=Copycat, callbacks=[After(64, lambda: shutil.rmtree(run_dir))])
    assert load_checkpoint(run_dir).step == 96
