"""Metrics arrive line by line and survive crashes; TensorBoard and Weights & Biases get every row and never cost one."""

from __future__ import annotations

import gc
import os
import resource
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enn_ppo.settings.config import TrainConfig
from enn_ppo.training.tracking.logger import MetricsLogger, Row, make_logger, read_metrics
from tests.enn_ppo.rows import log_all

CONFIG = TrainConfig(total_timesteps=1000)
ROWS: list[Row] = [{"step": step, "reward": step / 4, "kl": None} for step in (100, 200, 300)]


def make(
    run_dir: Path, resume_step: int | None = None, warn: Callable[[str], None] = pytest.fail, **chosen: Any
) -> MetricsLogger:
    return make_logger(run_dir, replace(CONFIG, logger=replace(CONFIG.logger, **chosen)), resume_step, warn)


def log_and_close(logger: MetricsLogger, rows: list[Row]) -> None:
    for row in rows:
        logger.log(row)
    logger.close()


# --- metrics.jsonl ---


def test_every_row_is_one_line_that_is_there_when_log_returns(tmp_path: Path) -> None:
    logger = make(tmp_path)
    logger.log({"step": 100, "reward": 0.1, "episodes": None})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 100, "reward": 0.1, "episodes": null}\n'
    logger.log({"step": 200})
    assert (tmp_path / "metrics.jsonl").read_text().splitlines()[1:] == ['{"step": 200}']
    logger.close()
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(float("nan"), "null"), (-float("inf"), "null"), (np.float32("nan"), "null"), (np.float32(0.5), "0.5")],
)
def test_numbers_of_numpy_are_numbers_and_what_is_not_finite_is_null(tmp_path: Path, value: Any, text: str) -> None:
    log_all(tmp_path / "m", [{"step": np.int64(1), "x": value}])  # type: ignore[dict-item]
    assert (tmp_path / "m").read_text() == f'{{"step": 1, "x": {text}}}\n'


@pytest.mark.parametrize("tail", ["", '{"step": 400, "rew', '{"step": 20', "{"])
def test_a_resumed_file_equals_the_uninterrupted_one(tmp_path: Path, tail: str) -> None:
    log_all(tmp_path / "whole", ROWS, resume_step=100)  # no file yet
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


def test_a_disk_that_fills_up_in_the_middle_of_a_row_leaves_the_rows_before_it(tmp_path: Path) -> None:
    logger, limits = MetricsLogger(tmp_path / "m", None), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))  # a row and a half
    try:
        logger.log({"step": 1, "reward": 0.125})
        with pytest.raises(OSError, match="File too large"):
            logger.log({"step": 2, "reward": 0.25})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "m").stat().st_size == 40
    assert read_metrics(tmp_path / "m") == [{"step": 1, "reward": 0.125}]


# --- Trackers ---


class Recorder:
    """Keeps the rows; raises from the row at step `fails_at` on, and at the end if told so."""

    def __init__(self, name: str, error: BaseException | None = None, fails_to_close: bool = False) -> None:
        self.name, self.error, self.fails_to_close = name, error, fails_to_close
        self.rows: list[Mapping[str, Any]] = []
        self.times_closed = 0

    def log(self, row: Row) -> None:
        if self.error and (row["step"] or 0) >= 200:
            raise self.error
        self.rows.append(row)

    def close(self) -> None:
        self.times_closed += 1
        if self.fails_to_close:
            raise RuntimeError("cannot close")


def test_trackers_get_the_finite_numbers_of_every_row_and_are_closed_once(tmp_path: Path) -> None:
    both = [Recorder("first"), Recorder("second")]
    logger = MetricsLogger(tmp_path / "m", trackers=both, warn=pytest.fail)
    logger.log({"step": 1, "kl": None, "reward": float("nan"), "entropy": np.float32(0.5)})  # type: ignore[dict-item]
    logger.close()
    logger.close()
    assert [each.rows for each in both] == [[{"step": 1, "entropy": 0.5}]] * 2
    assert [each.times_closed for each in both] == [1, 1]


@pytest.mark.parametrize(
    ("error", "fails_to_close", "told"),
    [
        (ConnectionError("the cable\n  is cut"), False, "ConnectionError: the cable is cut"),
        (ConnectionError("the cable\n  is cut"), True, "ConnectionError: the cable is cut"),
        (TimeoutError(), False, "TimeoutError"),
        (None, True, "RuntimeError: cannot close"),
    ],
)
def test_a_tracker_that_fails_is_dropped_with_one_warning_and_the_others_go_on(
    error: BaseException | None, fails_to_close: bool, told: str, tmp_path: Path
) -> None:
    failing, other = Recorder("the tracker", error, fails_to_close), Recorder("the other")
    warnings: list[str] = []
    log_and_close(MetricsLogger(tmp_path / "m", None, [failing, other], warnings.append), ROWS)
    known = [{"step": row["step"], "reward": row["reward"]} for row in ROWS]
    assert failing.rows == (known[:1] if error else known) and other.rows == known
    assert other.times_closed == 1 and failing.times_closed == (1 if error else 2)
    assert read_metrics(tmp_path / "m") == ROWS
    assert warnings == [f"the tracker failed and is disabled; metrics.jsonl continues: {told}"]


def test_ctrl_c_is_no_failure_of_a_tracker(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        MetricsLogger(tmp_path / "m", None, [Recorder("tracker", KeyboardInterrupt())], pytest.fail).log(ROWS[1])


@pytest.mark.parametrize(("library", "value"), [("wandb", "offline"), ("tensorboard", True)])
def test_without_its_library_the_error_says_how_to_install_it(
    library: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ValueError, match=rf'logger.{library} needs {library}.*: pip install "enn-ppo\[{library}\]"'):
        make(tmp_path, **{library: value})
    assert os.listdir(tmp_path) == []  # so that the next try finds no run here


# --- TensorBoard ---


def scalars(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag -> (step, value), as TensorBoard reads the files."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(run_dir / "tensorboard"))
    accumulator.Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_tensorboard_has_every_known_number_when_log_returns_and_evaluations_at_their_step(tmp_path: Path) -> None:
    logger = make(tmp_path, tensorboard=True)
    logger.log({"step": 300, "reward": 75.0, "kl": float("nan"), "eval/step": 100.0, "eval/episodic_reward": 0.5})
    expected = {"reward": [(300, 75.0)], "eval/step": [(100, 100.0)], "eval/episodic_reward": [(100, 0.5)]}
    assert scalars(tmp_path) == expected
    logger.close()


def test_tensorboard_forgets_what_a_resumed_run_repeats(tmp_path: Path) -> None:
    log_and_close(make(tmp_path, tensorboard=True), [*ROWS[:2], {"step": 300, "reward": -1.0}])
    log_and_close(make(tmp_path, resume_step=100, tensorboard=True), [*ROWS[1:], {"step": 400, "reward": 7.0}])
    assert scalars(tmp_path) == {"reward": [(100, 25.0), (200, 50.0), (300, 75.0), (400, 7.0)]}
    assert len(os.listdir(tmp_path / "tensorboard")) == 2  # a file for each session


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of TensorBoard's own thread
def test_tensorboard_on_a_full_disk_is_dropped_and_the_file_of_rows_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    warnings: list[str] = []
    before = set(threading.enumerate())
    logger = make(tmp_path, warn=warnings.append, tensorboard=True)
    threads = set(threading.enumerate()) - before
    (events,) = (tmp_path / "tensorboard").iterdir()
    events.unlink()
    events.symlink_to("/dev/full")  # what is written to the file now goes there
    log_and_close(logger, ROWS)
    for thread in threads:
        thread.join(10)
    gc.collect()  # else the thread's exception is reported in another test
    assert read_metrics(tmp_path / "metrics.jsonl") == ROWS
    assert warnings == [
        "TensorBoard failed and is disabled; metrics.jsonl continues: OSError: [Errno 28] No space left on device"
    ]


# --- wandb, in place of which something records what it is given. The real one: tests/system ---


class FakeWandb:
    __spec__ = ModuleSpec("wandb", None)

    class Error(Exception):
        pass

    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, Any], int]] = []
        self.axes: dict[str, str] = {}
        self.refusal: Exception | None = None
        self.times_finished = 0

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def init(self, **arguments: Any) -> FakeWandb:
        if self.refusal:
            raise self.refusal
        self.arguments = arguments
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        self.axes[name] = step_metric

    def log(self, row: Mapping[str, Any], step: int) -> None:
        self.rows.append((dict(row), step))

    def finish(self) -> None:
        self.times_finished += 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    module = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.mark.parametrize("project", ["mines", None])
def test_wandb_gets_what_is_known_and_the_settings(
    fake: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: str | None
) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    if project:
        monkeypatch.setenv("WANDB_PROJECT", project)
    row: Row = {"step": 100, "reward": None, "kl": float("nan"), "entropy": 1.5}
    log_and_close(make(tmp_path, wandb="online"), [row])
    assert fake.rows == [({"step": 100, "entropy": 1.5}, 100)]
    assert fake.axes == {"eval/*": "eval/step"}
    assert fake.times_finished == 1
    expected = {"mode": "online", "project": project or "enn-ppo", "dir": str(tmp_path), "resume": "allow"}
    assert expected.items() <= fake.arguments.items()
    assert fake.arguments["config"]["total_timesteps"] == 1000
    # the user's own run of wandb is left alone, and an upload does not hold up the end for ever
    settings = fake.arguments["settings"]
    assert settings["reinit"] == "create_new" and 0 < settings["finish_timeout"] <= 600


def test_where_wandb_refuses_the_error_says_what_to_do(fake: FakeWandb, tmp_path: Path) -> None:
    fake.refusal = fake.Error("api_key not configured")
    with pytest.raises(ValueError, match="=online could not start: api_key not configured. `wandb login` .*offline"):
        make(tmp_path, wandb="online")
    assert not (tmp_path / "metrics.jsonl").exists()
