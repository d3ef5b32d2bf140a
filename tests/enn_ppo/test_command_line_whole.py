"""Whole runs through the command line, most in processes of their own, with everything on at once and everything going wrong.

One run of two snakes learns undisturbed. Another one, of the same settings, is killed, goes on, gets a scheduler's SIGTERM,
goes on, and loses its evaluation process. What they leave behind must be the same.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import enn_ppo
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.settings.command_line.cli import run_train
from enn_ppo.training.recording.reading import read_episodes, read_frames

for library in ("openskill", "pyarrow"):
    pytest.importorskip(library)
if not Path("/proc/self/task").exists():
    pytest.skip("needs Linux", allow_module_level=True)

REPOSITORY = Path(__file__).parents[2]
TINY = (
    "rollout.num_envs=4",
    "rollout.steps=8",
    "net.d_model=16",
    "net.n_layer=1",
    "optim.batch_size=16",
    "device=cpu",
    "num_threads=1",
)
MINES = (*TINY, "env=MineSweeper", "env.kwargs.width=4", "env.kwargs.height=4", "env.kwargs.max_steps=10")
SNAKES = (
    *TINY,
    "env=MultiSnake2",
    "env.kwargs.board_size=4",
    "env.kwargs.num_players=2",
    "env.kwargs.max_snake_length=3",
    "env.kwargs.max_steps=12",
    "self_play.enabled=true",
    "self_play.snapshot_interval=200",
    "value_net=default",
    "value_net.d_model=16",
    "value_net.n_layer=0",
    "value_optim.lr=0.004",
    "optim.lr=0.01@0 -> 0.001@1",
    "optim.epochs=4",
    "ppo.target_kl=0.01",
    "ppo.normalize=rewards",
    "eval.interval=320",
    "eval.episodes=20",
    "eval.num_envs=10",
    "eval.opponent=random",
    "record=samples.arrow",
    "record_logits=true",
    "checkpoint_interval=10",
    "total_timesteps=1280",
)
UPDATES = 40


class Ended(NamedTuple):
    """A process that has."""

    code: int
    output: str
    errors: str


class Running:
    """A command in a folder of its own.

    Args:
        folder: its working directory.
        arguments: of `python -m enn_ppo.train`.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
        own = {
            "PYTHONPATH": str(REPOSITORY),
            "OMP_WAIT_POLICY": "PASSIVE",
            "HOME": str(folder),
            "WANDB_ERROR_REPORTING": "false",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "enn_ppo.train", *arguments],
            cwd=folder,
            env=kept | own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> Ended:
        """Wait for its end."""
        output, errors = self.process.communicate(timeout=120)
        return Ended(self.process.returncode, output, errors)

    def wait_for_rows(self, number: int) -> None:
        metrics = self.folder / "run/metrics.jsonl"
        self.wait_until(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= number)

    def wait_for_child(self, command: str) -> int:
        """The number of the process that it has started, once there is one with `command` in its command line."""
        found: list[int] = []

        def look() -> bool:
            found.extend(pid for pid in self._children() if command in _command_line(pid))
            return bool(found)

        self.wait_until(look)
        return found[0]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 90
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, self.process.communicate()
            time.sleep(0.005)

    def _children(self) -> list[int]:
        try:
            tasks = [task / "children" for task in Path(f"/proc/{self.process.pid}/task").iterdir()]
            return [int(pid) for children in tasks for pid in children.read_text().split()]
        except OSError:  # a thread has just ended
            return []


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@contextmanager
def train(folder: Path, *arguments: str) -> Iterator[Running]:
    """Start training into `run`, and end with the context at the latest."""
    running = Running(folder, *arguments)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def updates_of(run_dir: Path) -> list[dict[str, Any]]:
    """Without times, and without evaluations, which end when they end."""
    differ = ("seconds", "share_", "eval/")
    return [
        {k: v for k, v in row.items() if not k.startswith(differ) and not k.endswith("_per_second")}
        for row in rows_of(run_dir)
        if "seconds" in row
    ]


def evaluations_of(run_dir: Path) -> dict[int, dict[str, Any]]:
    """Step -> what was measured."""
    return {
        int(row["eval/step"]): {k: v for k, v in row.items() if k.startswith("eval/") and k != "eval/seconds"}
        for row in rows_of(run_dir)
        if "eval/step" in row
    }


# --- A run that nobody disturbs, and one that everything happens to ---


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    with train(place / "whole", *SNAKES, "run_dir=run") as running:
        ended = running.end()
    assert ended.code == 0, ended.errors
    return place / "whole/run"


@pytest.fixture(scope="module")
def killed(place: Path) -> Path:
    """After thirteen updates or some more, without the time to save what the last ones learned."""
    with train(place / "parts", *SNAKES, "run_dir=run") as running:
        running.wait_for_rows(13)
        running.process.kill()
        running.end()
    return place / "parts/run"


@pytest.fixture(scope="module")
def terminated(killed: Path) -> Ended:
    with train(killed.parent, "resume=run") as running:
        running.wait_for_rows(22)
        running.process.terminate()
        return running.end()


@pytest.fixture(scope="module")
def finished(terminated: Ended, killed: Path) -> Ended:
    """To the end, though the first evaluation process of this leg is killed."""
    with train(killed.parent, "resume=run") as running:
        os.kill(running.wait_for_child("enn_ppo.eval.process"), signal.SIGKILL)
        return running.end()


def test_kill_9_leaves_a_run_that_resumes(terminated: Ended) -> None:
    assert terminated.errors.splitlines()[-1].startswith("terminated after")


def test_a_schedulers_sigterm_saves_says_where_and_exits_with_143(terminated: Ended, killed: Path) -> None:
    assert terminated.code == 143
    assert (
        "SIGTERM: finishing this update and writing a checkpoint; send it again to abort at once" in terminated.output
    )
    (line,) = [line for line in terminated.errors.splitlines() if line.startswith("terminated")]
    step = int(line.split()[2].replace(",", ""))
    assert line == (f"terminated after {step:,} steps; saved run/checkpoints/step_{step:012d}; go on with resume=run")
    assert 22 * 32 <= step < UPDATES * 32


def test_training_goes_on_when_its_evaluation_process_is_killed(finished: Ended) -> None:
    assert finished.code == 0, finished.errors
    assert "the evaluation process was killed by SIGKILL (signal 9); it is started again" in finished.output


def test_a_run_that_was_killed_terminated_and_resumed_is_the_undisturbed_one(
    finished: Ended, whole: Path, killed: Path
) -> None:
    assert updates_of(killed) == updates_of(whole)
    assert len(updates_of(whole)) == UPDATES
    assert evaluations_of(killed) == evaluations_of(whole)
    assert (killed / "ratings.json").read_bytes() == (whole / "ratings.json").read_bytes()
    assert (killed.parent / "samples.arrow").read_bytes() == (whole.parent / "samples.arrow").read_bytes()
    for name in ("latest", "best"):
        one, other = (load_checkpoint(run_dir / "checkpoints" / name) for run_dir in (killed, whole))
        assert (one.step, one.score) == (other.step, other.score)
        assert one.policy.keys() == other.policy.keys()
        assert all(torch.equal(weight, other.policy[key]) for key, weight in one.policy.items())
        values = one.more_weights["value_net"], other.more_weights["value_net"]
        assert all(torch.equal(weight, values[1][key]) for key, weight in values[0].items())


def test_a_divergence_that_is_met_ends_the_epochs(whole: Path) -> None:
    epochs = {row["epochs"] for row in updates_of(whole)}
    assert len(epochs) > 1 and epochs <= {1, 2, 3, 4}


def test_a_value_network_of_its_own_has_its_gradient_and_is_saved(whole: Path) -> None:
    assert all(row["value_grad_norm"] is not None for row in updates_of(whole))
    checkpoint = load_checkpoint(whole)
    assert checkpoint.config["value_net"]["n_layer"] == 0
    assert {len(checkpoint.trainer["optimizer"]["param_groups"])} == {2}
    assert checkpoint.trainer["optimizer"]["param_groups"][1]["lr"] < 0.004  # annealed: the last update's


def test_the_policy_is_evaluated_against_its_opponent_while_it_trains(whole: Path) -> None:
    evaluations = evaluations_of(whole)
    assert sorted(evaluations) == [320, 640, 960, 1280]
    assert all(0 <= row["eval/win_rate"] <= 1 for row in evaluations.values())
    assert all(row["eval/win_rate_ci95"] >= 0 for row in evaluations.values())


def test_all_that_was_played_is_recorded_and_reads(whole: Path) -> None:
    samples = whole.parent / "samples.arrow"
    frames = list(read_frames(samples))
    assert sum(len(each) for each in frames) == UPDATES * 32
    assert all(each.logits for each in frames)
    ended = sum(row["episodes"] for row in updates_of(whole))
    episodes = list(read_episodes(samples))
    rewards = sum(row["episodic_reward"] * row["episodes"] for row in updates_of(whole) if row["episodes"])
    assert len(episodes) == ended
    assert sum(episode.reward for episode in episodes) == pytest.approx(rewards, abs=1e-4)


# --- Micro-batches ---


def test_micro_batches_of_three_sizes_and_none_give_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = (*MINES, "total_timesteps=96", "optim.epochs=2", "run_dir=runs")
    assert run_train(enn_ppo.train, ["--multirun", *settings, "optim.micro_batch_size=null,1,5,16"]) == 0
    whole, *others = (tmp_path / "runs" / str(job) for job in range(4))
    sizes = [load_checkpoint(run_dir).config["optim"]["micro_batch_size"] for run_dir in (whole, *others)]
    assert sizes == [None, 1, 5, 16]
    for run_dir in others:
        for given, wanted in zip(updates_of(run_dir), updates_of(whole), strict=True):
            assert given.keys() == wanted.keys()
            known = {name: value for name, value in wanted.items() if value is not None}
            assert {name: given[name] for name in known} == pytest.approx(known, rel=2e-3, abs=1e-4)
        weights = load_checkpoint(run_dir).policy
        for name, weight in load_checkpoint(whole).policy.items():
            torch.testing.assert_close(weights[name], weight, rtol=1e-2, atol=1e-4)


# --- A budget of seconds, and a tracker that cannot write ---


@pytest.fixture(scope="module")
def budgeted(place: Path) -> tuple[Ended, Path]:
    """Three seconds of training, in which the disk of wandb's process is full from the first row on."""
    pytest.importorskip("wandb")
    settings = (*MINES, "total_timesteps=1e9", "max_train_seconds=3", "logger.wandb=offline", "run_dir=run")
    with train(place / "budgeted", *settings) as running:
        running.wait_for_rows(1)
        resource.prlimit(running.wait_for_child("wandb-core"), resource.RLIMIT_FSIZE, (0, 0))
        return running.end(), place / "budgeted/run"


def test_a_run_ends_when_its_seconds_are_used_up(budgeted: tuple[Ended, Path]) -> None:
    ended, run_dir = budgeted
    assert ended.code == 0, ended.errors
    rows = rows_of(run_dir)
    used = [row["seconds"] for row in rows]
    assert used[-2] < 3 <= used[-1]
    assert load_checkpoint(run_dir).step == rows[-1]["step"] == 32 * len(rows)
    rates = [row["learning_rate"] for row in rows]  # a plain number is annealed by the clock
    assert rates == sorted(rates, reverse=True) and rates[-1] < 0.1 * rates[0]


def test_training_goes_on_without_a_wandb_that_cannot_write(budgeted: tuple[Ended, Path]) -> None:
    ended, _ = budgeted
    assert ended.code == 0 and ended.output.splitlines()[-1] == "done: run"
