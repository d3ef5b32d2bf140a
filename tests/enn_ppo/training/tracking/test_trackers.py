"""TensorBoard and Weights & Biases get every row, go on where a run goes on, and never cost one."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enn_ppo.settings.config import LoggerConfig, TrainConfig
from enn_ppo.training.tracking.logger import MetricsLogger, Row, read_metrics
from enn_ppo.training.tracking.trackers import make_logger

CONFIG = TrainConfig(total_timesteps=1000, logger=LoggerConfig(project="mines"))
ROWS: list[Row] = [{"step": step, "reward": step / 4, "kl": None} for step in (100, 200, 300)]


def make(
    run_dir: Path,
    resume_step: int | None = None,
    warn: Callable[[str], None] = pytest.fail,
    **chosen: Any,
) -> MetricsLogger:
    return make_logger(run_dir, replace(CONFIG, logger=replace(CONFIG.logger, **chosen)), resume_step, warn)


def log_all(logger: MetricsLogger, rows: list[Row]) -> None:
    for row in rows:
        logger.log(row)
    logger.close()


def test_without_trackers_there_is_only_the_file(tmp_path: Path) -> None:
    log_all(make(tmp_path), ROWS)
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


@pytest.mark.parametrize(
    ("chosen", "modules", "message"),
    [
        ({"wandb": "offline"}, ["wandb"], r'logger.wandb=offline needs wandb.*: pip install "enn-ppo\[wandb\]"'),
        (
            {"tensorboard": True},
            ["tensorboard", "torch.utils.tensorboard"],
            r'logger.tensorboard=true needs tensorboard.*: pip install "enn-ppo\[tensorboard\]"',
        ),
    ],
)
def test_without_its_library_the_error_says_how_to_install_it(
    chosen: dict[str, Any], modules: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=message):
        make(tmp_path, **chosen)
    assert os.listdir(tmp_path) == []  # so that the next try finds no run here


# --- TensorBoard ---


def scalars(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag -> (step, value), as TensorBoard reads the files."""
    accumulator = read_events(run_dir)
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def read_events(run_dir: Path) -> Any:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(run_dir / "tensorboard"))
    accumulator.Reload()
    return accumulator


def test_tensorboard_reads_every_known_number_at_its_step(tmp_path: Path) -> None:
    log_all(make(tmp_path, tensorboard=True), [*ROWS, {"step": 400, "reward": float("nan"), "kl": 0.5}])
    assert scalars(tmp_path) == {"reward": [(100, 25.0), (200, 50.0), (300, 75.0)], "kl": [(400, 0.5)]}


def test_a_row_is_in_tensorboards_file_when_log_returns(tmp_path: Path) -> None:
    logger = make(tmp_path, tensorboard=True)
    logger.log(ROWS[0])
    assert scalars(tmp_path) == {"reward": [(100, 25.0)]}
    logger.close()


def test_evaluations_stand_at_the_step_that_was_evaluated(tmp_path: Path) -> None:
    late: Row = {"step": 300, "eval/step": 100.0, "eval/episodic_reward": 0.5}
    log_all(make(tmp_path, tensorboard=True), [ROWS[2], late])
    assert scalars(tmp_path) == {
        "reward": [(300, 75.0)],
        "eval/step": [(100, 100.0)],
        "eval/episodic_reward": [(100, 0.5)],
    }


def test_tensorboard_forgets_what_a_resumed_run_repeats(tmp_path: Path) -> None:
    log_all(make(tmp_path, tensorboard=True), [*ROWS[:2], {"step": 300, "reward": -1.0}])
    log_all(make(tmp_path, resume_step=100, tensorboard=True), [*ROWS[1:], {"step": 400, "reward": 7.0}])
    assert scalars(tmp_path) == {"reward": [(100, 25.0), (200, 50.0), (300, 75.0), (400, 7.0)]}
    assert len(os.listdir(tmp_path / "tensorboard")) == 2  # a file for each session


def test_tensorboard_shows_the_settings_as_a_table(tmp_path: Path) -> None:
    log_all(make(tmp_path, tensorboard=True), ROWS[:1])
    (event,) = read_events(tmp_path).Tensors("config/text_summary")
    lines = event.tensor_proto.string_val[0].decode().splitlines()
    assert lines[:2] == ["| setting | value |", "|---|---|"]
    assert "| total_timesteps | 1000 |" in lines and "| logger.project | mines |" in lines


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of TensorBoard's own thread
def test_tensorboard_on_a_full_disk_is_dropped_and_the_file_of_rows_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    if not Path("/dev/full").exists():
        pytest.skip("needs Linux")
    warnings: list[str] = []
    before = set(threading.enumerate())
    logger = make(tmp_path, warn=warnings.append, tensorboard=True)
    threads = set(threading.enumerate()) - before
    (events,) = (tmp_path / "tensorboard").iterdir()
    events.unlink()
    events.symlink_to("/dev/full")  # what is written to the file now goes there
    log_all(logger, ROWS)
    for thread in threads:
        thread.join(10)
    gc.collect()  # else the thread's exception is reported in another test
    assert read_metrics(tmp_path / "metrics.jsonl") == ROWS
    assert warnings == [
        "TensorBoard failed and is disabled; metrics.jsonl continues: OSError: [Errno 28] No space left on device"
    ]


# --- wandb, in place of which something records what it is given ---


class FakeWandb:
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


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_wandb_gets_only_what_is_known(fake: FakeWandb, run_dir: Path) -> None:
    row: Row = {"step": 100, "reward": None, "kl": float("nan"), "entropy": 1.5}
    log_all(make(run_dir, wandb="online", entity="us"), [row])
    assert fake.rows == [({"step": 100, "entropy": 1.5}, 100)]
    assert fake.axes == {"eval/*": "eval/step"}
    assert fake.times_finished == 1
    expected = {"mode": "online", "project": "mines", "entity": "us", "dir": str(run_dir), "resume": "allow"}
    assert expected.items() <= fake.arguments.items()
    assert fake.arguments["config"]["total_timesteps"] == 1000


def test_a_resumed_run_keeps_its_id_and_a_new_one_gets_a_new_one(fake: FakeWandb, run_dir: Path) -> None:
    ids = []
    for resume_step in (None, 100, 200, None):
        log_all(make(run_dir, resume_step, wandb="online"), [])
        ids.append(fake.arguments["id"])
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert (run_dir / "wandb" / "run_id").read_text() == ids[3] + "\n"


def test_the_users_own_run_of_wandb_is_left_alone_and_an_upload_does_not_hold_up_the_end_for_ever(
    fake: FakeWandb, run_dir: Path
) -> None:
    log_all(make(run_dir, wandb="online"), [])
    settings = fake.arguments["settings"]
    assert settings["reinit"] == "create_new"
    assert 0 < settings["finish_timeout"] <= 600


def test_where_wandb_refuses_the_error_says_what_to_do(fake: FakeWandb, run_dir: Path) -> None:
    fake.refusal = fake.Error("api_key not configured")
    with pytest.raises(ValueError, match="=online could not start: api_key not configured. `wandb login` .*offline"):
        make(run_dir, wandb="online")
    assert not (run_dir / "metrics.jsonl").exists()


def test_where_the_file_of_rows_cannot_be_made_the_trackers_are_ended(fake: FakeWandb, run_dir: Path) -> None:
    (run_dir / "metrics.jsonl").mkdir()
    with pytest.raises(OSError, match=r"Is a directory: .*metrics\.jsonl"):
        make(run_dir, wandb="online")
    assert fake.times_finished == 1


def test_wandb_that_raises_in_the_middle_is_dropped_and_the_file_of_rows_goes_on(
    fake: FakeWandb, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    logger = make(run_dir, warn=warnings.append, wandb="online")
    logger.log(ROWS[0])

    def lost(*_: object, **__: object) -> None:
        raise ConnectionResetError("Connection lost")

    monkeypatch.setattr(fake, "log", lost)
    monkeypatch.setattr(fake, "finish", lost)
    log_all(logger, ROWS[1:])
    assert read_metrics(run_dir / "metrics.jsonl") == ROWS
    assert warnings == ["wandb failed and is disabled; metrics.jsonl continues: ConnectionResetError: Connection lost"]


# --- The real wandb, offline ---
