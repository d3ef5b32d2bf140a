"""Metrics arrive line by line, survive crashes, and a resumed run's file equals the uninterrupted one."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enn_ppo.training.tracking.logger import MetricsLogger, Row, read_metrics
from tests.enn_ppo.rows import log_all

ROWS: list[Row] = [{"step": step, "reward": step / 3, "kl": None} for step in (100, 200, 300)]


class Recorder:
    """Keeps the rows; raises from the row at step `fails_at` on, and at the end if told so."""

    def __init__(self, fails_at: float = float("inf"), fails_to_close: bool = False) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.times_closed = 0
        self.fails_at = fails_at
        self.fails_to_close = fails_to_close

    def log(self, row: Row) -> None:
        if (row["step"] or 0) >= self.fails_at:
            raise ConnectionError("the cable\n  is cut")
        self.rows.append(row)

    def close(self) -> None:
        self.times_closed += 1
        if self.fails_to_close:
            raise RuntimeError("cannot close")


# --- metrics.jsonl ---


def test_every_row_is_one_line_that_is_there_when_log_returns(tmp_path: Path) -> None:
    logger = MetricsLogger(tmp_path / "metrics.jsonl", None)
    logger.log({"step": 100, "reward": 0.1, "episodes": None})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 100, "reward": 0.1, "episodes": null}\n'
    logger.log({"step": 200})
    assert (tmp_path / "metrics.jsonl").read_text().splitlines()[1:] == ['{"step": 200}']
    logger.close()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float32("nan"), np.float64("nan")])
def test_what_is_not_finite_becomes_null(tmp_path: Path, value: float) -> None:
    log_all(tmp_path / "m", [{"step": 1, "x": value}])
    assert (tmp_path / "m").read_text() == '{"step": 1, "x": null}\n'


def test_numpy_numbers_are_written_as_numbers(tmp_path: Path) -> None:
    log_all(tmp_path / "m", [{"step": np.int64(1), "x": np.float32(0.5)}])  # type: ignore[dict-item]
    assert (tmp_path / "m").read_text() == '{"step": 1, "x": 0.5}\n'


@pytest.mark.parametrize("tail", ["", '{"step": 400, "rew', '{"step": 20', "{"])
def test_a_resumed_file_equals_the_uninterrupted_one(tmp_path: Path, tail: str) -> None:
    log_all(tmp_path / "whole", ROWS)
    log_all(tmp_path / "resumed", [*ROWS[:2], {"step": 300, "reward": -1.0}])
    with open(tmp_path / "resumed", "a") as file:
        file.write(tail)
    log_all(tmp_path / "resumed", ROWS[1:], resume_step=100)
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["resumed", "whole"]


def test_a_last_row_that_lacks_only_its_line_end_is_kept(tmp_path: Path) -> None:
    (tmp_path / "m").write_text('{"step": 100}\n{"step": 200}')
    log_all(tmp_path / "m", [{"step": 300}], resume_step=200)
    assert [row["step"] for row in read_metrics(tmp_path / "m")] == [100, 200, 300]


def test_resuming_without_a_file_starts_one(tmp_path: Path) -> None:
    log_all(tmp_path / "m", ROWS, resume_step=100)
    assert len(read_metrics(tmp_path / "m")) == 3


def test_dropping_rows_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_all(tmp_path / "m", ROWS)
    before = (tmp_path / "m").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        MetricsLogger(tmp_path / "m", 100)
    assert (tmp_path / "m").read_bytes() == before


@pytest.mark.parametrize("line", ["garbage", '{"reward": 1}', "[1]"])
def test_a_broken_line_in_the_middle_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "m").write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
    with pytest.raises(ValueError, match=rf"{tmp_path}/m line 2 is not a row of metrics: "):
        MetricsLogger(tmp_path / "m", 1)


def test_a_disk_that_cannot_be_written_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises(OSError, match=f"Is a directory: '{tmp_path}/m'"):
        MetricsLogger(tmp_path / "m", None)


def test_a_disk_that_fills_up_in_the_middle_of_a_row_leaves_the_rows_before_it(tmp_path: Path) -> None:
    program = """
import resource, signal, sys
from pathlib import Path
from enn_ppo.training.tracking.logger import MetricsLogger, read_metrics
path = Path(sys.argv[1])
logger = MetricsLogger(path, None)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))  # a row and a half
logger.log({"step": 1, "reward": 0.125})
try:
    logger.log({"step": 2, "reward": 0.25})
except OSError as error:
    print(error)
print(path.stat().st_size, read_metrics(path))
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "m"], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        f"[Errno 27] File too large: '{tmp_path / 'm'}'",
        "40 [{'step': 1, 'reward': 0.125}]",
    ], done.stderr


def test_a_run_directory_that_has_vanished_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    logger = MetricsLogger(tmp_path / "run" / "m", None)
    logger.log({"step": 1})
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match="run/m"):
        logger.log({"step": 2})
    assert read_metrics(tmp_path / "elsewhere" / "m") == [{"step": 1}]


# --- Trackers ---


def test_trackers_get_the_finite_numbers_of_every_row_and_are_closed_once(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    logger = MetricsLogger(tmp_path / "m", trackers={"first": first, "second": second}, warn=pytest.fail)
    logger.log({"step": 1, "kl": None, "reward": float("nan"), "entropy": np.float32(0.5)})  # type: ignore[dict-item]
    logger.close()
    logger.close()
    assert first.rows == second.rows == [{"step": 1, "entropy": 0.5}]
    assert first.times_closed == second.times_closed == 1


@pytest.mark.parametrize("fails_to_close", [False, True])
def test_a_tracker_that_fails_is_dropped_with_one_warning_and_the_others_go_on(
    fails_to_close: bool, tmp_path: Path
) -> None:
    failing, other = Recorder(fails_at=200, fails_to_close=fails_to_close), Recorder()
    warnings: list[str] = []
    logger = MetricsLogger(tmp_path / "m", trackers={"the tracker": failing, "the other": other}, warn=warnings.append)
    for row in ROWS:
        logger.log(row)
    logger.close()
    known = [{"step": row["step"], "reward": row["reward"]} for row in ROWS]
    assert failing.rows == known[:1] and failing.times_closed == 1
    assert other.rows == known and other.times_closed == 1
    assert read_metrics(tmp_path / "m") == ROWS
    assert warnings == [
        "the tracker failed and is disabled; metrics.jsonl continues: ConnectionError: the cable is cut"
    ]


def test_trackers_that_fail_only_at_the_end_are_said_too(tmp_path: Path) -> None:
    warnings: list[str] = []
    trackers = {name: Recorder(fails_to_close=True) for name in ("first", "second")}
    logger = MetricsLogger(tmp_path / "m", trackers=trackers, warn=warnings.append)
    logger.log(ROWS[0])
    logger.close()
    logger.close()
    assert warnings == [
        f"{name} failed and is disabled; metrics.jsonl continues: RuntimeError: cannot close" for name in trackers
    ]


def test_an_error_without_a_text_is_called_by_its_type(tmp_path: Path) -> None:
    class Silent(Recorder):
        def log(self, row: Row) -> None:
            raise TimeoutError

    warnings: list[str] = []
    MetricsLogger(tmp_path / "m", trackers={"the tracker": Silent()}, warn=warnings.append).log(ROWS[0])
    assert warnings == ["the tracker failed and is disabled; metrics.jsonl continues: TimeoutError"]


def test_ctrl_c_is_no_failure_of_a_tracker(tmp_path: Path) -> None:
    class Pressed(Recorder):
        def log(self, row: Row) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        MetricsLogger(tmp_path / "m", trackers={"the tracker": Pressed()}, warn=pytest.fail).log(ROWS[0])
