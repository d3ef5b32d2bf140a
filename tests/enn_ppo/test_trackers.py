"""TensorBoard and Weights & Biases get every row, go on where a run goes on, and never cost one."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from enn_ppo.settings.config import LoggerConfig, TrainConfig
from enn_ppo.training.tracking.logger import MetricsLogger, Row, read_metrics
from enn_ppo.training.tracking.trackers import WandbLogger, make_logger

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


def test_no_tracker_is_imported_before_it_is_chosen() -> None:
    code = """
import sys, enn_ppo.training.tracking.run_output, enn_ppo.plot.plot
print([name for name in ("wandb", "tensorboard", "matplotlib") if name in sys.modules])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


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


def film(path: Path, num_images: int = 3) -> Path:
    """A small GIF."""
    images = [Image.fromarray(np.full((4, 6, 3), 40 * k, np.uint8)) for k in range(num_images)]
    images[0].save(path, save_all=True, append_images=images[1:])
    return path


def test_tensorboard_gets_films_as_moving_images_and_the_names_of_pages(tmp_path: Path) -> None:
    logger = make(tmp_path, tensorboard=True)
    logger.log({"step": 300})
    page = tmp_path / "page.html"
    page.write_text("<p>hello</p>")
    logger.show({"eval/video": film(tmp_path / "film.gif"), "eval/replay": page}, step=200, now=300)
    logger.close()
    events = read_events(tmp_path)
    (image,) = events.Images("eval/video")
    assert (image.step, image.width, image.height) == (200, 6, 4)
    assert image.encoded_image_string == (tmp_path / "film.gif").read_bytes()
    (text,) = events.Tensors("eval/replay/text_summary")
    assert text.step == 200 and text.tensor_proto.string_val[0].decode() == str(page)


def test_wandb_gets_films_and_pages_beside_the_step_that_they_show(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    logger = make(tmp_path, wandb="offline")
    logger.log({"step": 300})
    page = tmp_path / "page.html"
    page.write_text("<p>hello</p>")
    logger.show({"eval/video": film(tmp_path / "film.gif"), "eval/replay": page}, step=200, now=300)
    logger.close()
    media = [each for each in (tmp_path / "wandb").rglob("*") if each.is_file() and "media" in each.parts]
    assert sorted(each.suffix for each in media) == [".gif", ".html"]
    (html,) = (each for each in media if each.suffix == ".html")
    assert "<p>hello</p>" in html.read_text()


def test_a_film_that_is_gone_costs_the_tracker_and_not_the_run(tmp_path: Path) -> None:
    warnings: list[str] = []
    logger = make(tmp_path, warn=warnings.append, tensorboard=True)
    logger.log({"step": 300})
    logger.show({"eval/video": tmp_path / "gone.gif"}, step=300, now=300)
    logger.log({"step": 400})
    logger.close()
    assert len(warnings) == 1 and warnings[0].startswith("TensorBoard failed and is disabled")
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [300, 400]


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

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: list[tuple[dict[str, Any], int]] = []
        self.axes: dict[str, str] = {}
        self.refusal: Exception | None = None
        self.writes = True
        self.times_finished = 0

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def init(self, **arguments: Any) -> FakeWandb:
        if self.refusal:
            raise self.refusal
        self.arguments = arguments
        self.file.write_bytes(b"head")
        return self

    @property
    def settings(self) -> Any:
        return type("Settings", (), {"sync_file": str(self.file)})

    def define_metric(self, name: str, step_metric: str) -> None:
        self.axes[name] = step_metric

    def log(self, row: Mapping[str, Any], step: int) -> None:
        self.rows.append((dict(row), step))
        if self.writes:
            with open(self.file, "ab") as file:
                file.write(b"row")

    def finish(self) -> None:
        self.times_finished += 1


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    module = FakeWandb(tmp_path / "run.wandb")
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

PROGRAM = """
import os, signal, sys
from pathlib import Path
from tests.enn_ppo.test_trackers import ROWS, log_all, make

def service():
    tasks = Path("/proc/self/task").iterdir()
    pids = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return next(pid for pid in pids if "wandb-core" in Path(f"/proc/{pid}/comm").read_text())

def start(name, resume_step=None):
    run_dir = Path(name)
    run_dir.mkdir(exist_ok=True)
    return make(run_dir, resume_step, lambda text: print(f"{name}: {text}"), wandb="offline")

log_all(start("resumed"), ROWS[:2])
log_all(start("resumed", resume_step=200), ROWS[2:])

logger = start("killed")
logger.log(ROWS[0])
os.kill(service(), signal.SIGKILL)
log_all(logger, ROWS[1:])
"""


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of two runs, and what was printed. One process runs them all, for it is slow to start."""
    pytest.importorskip("wandb")
    if not Path("/proc/self/task").exists():
        pytest.skip("needs Linux")
    folder = tmp_path_factory.mktemp("offline")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    own = {"HOME": str(folder), "WANDB_ERROR_REPORTING": "false", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env=environment | own,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout.splitlines()


def test_offline_a_resumed_run_continues_under_the_same_id_in_the_run_directory(
    offline: tuple[Path, list[str]],
) -> None:
    run_dir, printed = offline[0] / "resumed", offline[1]
    run_id = (run_dir / "wandb" / "run_id").read_text().strip()
    files = [file.name for file in run_dir.glob("wandb/offline-run-*/*.wandb")]
    assert set(files) == {f"run-{run_id}.wandb"}
    assert read_metrics(run_dir / "metrics.jsonl") == ROWS
    assert not any(line.startswith("resumed") for line in printed)


def test_a_killed_process_of_wandb_costs_one_warning(offline: tuple[Path, list[str]]) -> None:
    folder, printed = offline
    (warning,) = [line for line in printed if line.startswith("killed: ")]
    assert warning.startswith("killed: wandb failed and is disabled; metrics.jsonl continues: ")
    assert read_metrics(folder / "killed" / "metrics.jsonl") == ROWS
    assert printed == [warning]


def test_a_folder_of_wandb_that_is_none_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    (tmp_path / "wandb").write_text("a file")
    with pytest.raises(OSError, match="File exists: .*wandb"):
        WandbLogger(tmp_path, replace(CONFIG, logger=LoggerConfig(wandb="offline")), None)
