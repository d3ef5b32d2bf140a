"""Metrics arrive line by line, survive crashes, and a resumed run's file equals the uninterrupted one."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot

from enn_ppo.curve import plot_learning_curve
from enn_ppo.logger import CompositeLogger, JsonlLogger, NullLogger, Row, WandbLogger, make_loggers, read_metrics

ROWS: list[Row] = [{"step": step, "reward": step / 3, "kl": None} for step in (100, 200, 300)]


def log_all(path: Path, rows: list[Row], resume_step: int | None = None) -> None:
    logger = JsonlLogger(path, resume_step)
    for row in rows:
        logger.log(row)
    logger.close()


class Recorder:
    def __init__(self, fails: bool = False) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.closed = False
        self.fails = fails

    def log(self, row: Row) -> None:
        self.rows.append(row)

    def close(self) -> None:
        self.closed = True
        if self.fails:
            raise RuntimeError("cannot close")


# --- metrics.jsonl ---


def test_every_row_is_one_line_that_is_there_when_log_returns(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path / "metrics.jsonl", None)
    logger.log({"step": 100, "reward": 0.1, "episodes": None})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 100, "reward": 0.1, "episodes": null}\n'
    logger.log({"step": 200})
    assert (tmp_path / "metrics.jsonl").read_text().splitlines()[1:] == ['{"step": 200}']
    logger.close()
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
        JsonlLogger(tmp_path / "m", 100)
    assert (tmp_path / "m").read_bytes() == before


@pytest.mark.parametrize("line", ["garbage", '{"reward": 1}', "[1]"])
def test_a_broken_line_in_the_middle_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "m").write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
    with pytest.raises(ValueError, match=rf"{tmp_path}/m line 2 is not a row of metrics: "):
        JsonlLogger(tmp_path / "m", 1)


def test_a_full_disk_names_the_file() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs Linux")
    logger = JsonlLogger(Path("/dev/full"), None)
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        logger.log({"step": 1})
    logger.close()


# --- Several loggers, and wandb ---


def test_a_composite_passes_every_row_to_all_and_closes_all_even_if_one_fails() -> None:
    first, second = Recorder(fails=True), Recorder(fails=True)
    logger = CompositeLogger([first, NullLogger(), second])
    logger.log({"step": 1})
    with pytest.raises(RuntimeError, match="cannot close"):
        logger.close()
    assert first.rows == second.rows == [{"step": 1}]
    assert first.closed and second.closed


def test_disabled_writes_only_the_file(tmp_path: Path) -> None:
    logger = make_loggers(tmp_path / "metrics.jsonl", resume_step=None, wandb="disabled", project="p", config={})
    logger.log({"step": 1})
    logger.close()
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_an_unknown_mode_says_what_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="logger.wandb is 'ofline'; allowed: disabled, offline, online; did you mean 'offline'?"
    ):
        make_loggers(tmp_path / "m", resume_step=None, wandb="ofline", project="p", config={})
    assert os.listdir(tmp_path) == []


def test_without_wandb_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r'logger.wandb=offline needs wandb.*: pip install "enn-ppo\[wandb\]"'):
        make_loggers(tmp_path / "m", resume_step=None, wandb="offline", project="p", config={})


def test_importing_the_logger_does_not_import_wandb_or_matplotlib() -> None:
    code = "import sys, enn_ppo.logger, enn_ppo.curve; print([m for m in ('wandb', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


class FakeWandb:
    """Stands in for the module: records what it is given."""

    class Error(Exception):
        pass

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.rows: list[tuple[dict[str, Any], int]] = []

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def init(self, **arguments: Any) -> "FakeWandb":
        if self.refuses:
            raise self.Error("api_key not configured")
        self.arguments = arguments
        return self

    def log(self, row: dict[str, Any], step: int) -> None:
        self.rows.append((row, step))

    def finish(self) -> None:
        self.finished = True


def test_wandb_gets_only_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    logger = WandbLogger("online", "mines", tmp_path, {"seed": 1})
    logger.log({"step": 100, "reward": None, "kl": float("nan"), "entropy": 1.5})
    logger.close()
    assert fake.rows == [({"step": 100, "entropy": 1.5}, 100)]
    assert fake.finished
    expected = {"mode": "online", "project": "mines", "dir": str(tmp_path), "config": {"seed": 1}}
    assert expected.items() <= fake.arguments.items()


def test_where_wandb_refuses_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb(refuses=True))
    with pytest.raises(ValueError, match="=online could not start: api_key not configured. `wandb login` .*offline"):
        WandbLogger("online", "mines", tmp_path, {})


OFFLINE = """
import sys
from pathlib import Path
from enn_ppo.logger import make_loggers
path = Path(sys.argv[1]) / "metrics.jsonl"
logger = make_loggers(path, resume_step=None, wandb="offline", project="mines", config={"seed": 1})
logger.log({"step": 100, "reward": 0.5, "kl": None})
logger.close()
"""


def test_offline_needs_no_account_and_stays_in_the_run_directory(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run_dir, home = tmp_path / "run", tmp_path / "home"
    run_dir.mkdir()
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    finished = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(run_dir)],
        env=environment | {"HOME": str(home), "WANDB_ERROR_REPORTING": "false"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == ""
    assert len(list(run_dir.glob("wandb/offline-run-*/*.wandb"))) == 1
    assert json.loads((run_dir / "metrics.jsonl").read_text())["reward"] == 0.5


# --- The learning curve ---


def size_of_png(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG") and data[-8:-4] == b"IEND"
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


def test_the_curve_is_drawn_without_touching_matplotlibs_state(tmp_path: Path) -> None:
    backend, settings, open_figures = matplotlib.get_backend(), dict(matplotlib.rcParams), pyplot.get_fignums()
    rows: list[Row] = [{"step": s, "episodic_reward": r, "episode_length": 5} for s, r in ((1, 0.5), (2, None), (3, 1))]
    log_all(tmp_path / "m", rows)
    plot_learning_curve(tmp_path / "m", tmp_path / "curve.png")
    assert size_of_png(tmp_path / "curve.png") == (840, 660)
    assert sorted(os.listdir(tmp_path)) == ["curve.png", "m"]
    assert (matplotlib.get_backend(), dict(matplotlib.rcParams), pyplot.get_fignums()) == (
        backend,
        settings,
        open_figures,
    )


def test_updates_without_a_finished_episode_are_left_out_of_the_curve() -> None:
    from enn_ppo.curve import _figure

    rows: list[dict[str, Any]] = [
        {"step": 1, "episodic_reward": None, "episode_length": None},
        {"step": 2, "episodic_reward": 0.5, "episode_length": 7.0},
        {"step": 3},
    ]
    reward, length = _figure(rows).axes
    assert reward.lines[0].get_xydata().tolist() == [[2.0, 0.5]]
    assert length.lines[0].get_xydata().tolist() == [[2.0, 7.0]]


@pytest.mark.parametrize("rows", [[], [{"step": 1, "episodic_reward": None}]])
def test_without_any_episode_the_curve_says_so(tmp_path: Path, rows: list[Row]) -> None:
    from enn_ppo.curve import _figure

    log_all(tmp_path / "m", rows)
    plot_learning_curve(tmp_path / "m", tmp_path / "curve.png")
    assert size_of_png(tmp_path / "curve.png") == (840, 660)
    figure = _figure([dict(row) for row in rows])
    assert [axes.texts[0].get_text() for axes in figure.axes] == ["no episode has ended yet"] * 2


def test_a_failing_curve_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_all(tmp_path / "m", ROWS)
    (tmp_path / "curve.png").write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        plot_learning_curve(tmp_path / "m", tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["curve.png", "m"]


def test_missing_metrics_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="metrics.jsonl cannot be read: No such file"):
        plot_learning_curve(tmp_path / "metrics.jsonl", tmp_path / "curve.png")
