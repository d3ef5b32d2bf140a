"""Evaluation processes that are killed, closed, behind, or outlive their training."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from enn_ppo.checkpoints import step_file
from enn_ppo.eval.evaluator import Evaluator
from tests.enn_ppo.eval.test_evaluator import (
    STEPS,
    Told,
    assert_whatever_is_raised_is_said,
    make,
    measured,
    trained,
)
from tests.enn_ppo.evaluation_worlds import Careless, Gated
from tests.processes import is_running, start


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("run"))


def test_a_process_measures_exactly_what_is_measured_in_line(checkpoints: Path, tmp_path: Path) -> None:
    env = Careless  # though it draws from everybody's random numbers
    told, results = Told(), {}
    for process in (False, True):
        evaluator = make(env, told, tmp_path, process=process)
        for step in STEPS:
            evaluator.submit(step_file(checkpoints, step), step)
        assert evaluator.pending_steps == [32, 64]
        results[process] = [measured(evaluator.wait()), measured(evaluator.wait())]
        assert evaluator.pending_steps == []
        assert evaluator.wait() is None and evaluator.poll() is None
        evaluator.close()
    assert results[False] == results[True]
    assert [row["eval/step"] for row in results[True]] == [32, 64]
    assert not told


def test_whatever_is_raised_in_the_process_is_said_in_a_line_and_the_next_evaluation_runs(
    checkpoints: Path, tmp_path: Path
) -> None:
    assert_whatever_is_raised_is_said(True, checkpoints, tmp_path)


class Gate:
    """Where the steps of `Gated` wait."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def reached_by(self, evaluator: Evaluator) -> int:
        """Wait until the evaluation waits there; returns the number of its process."""
        told = Path(f"{self.path}.pid")
        while not told.exists():
            assert evaluator.poll() is None
            time.sleep(0.01)
        pid = int(told.read_text())
        told.unlink()
        return pid

    def open(self) -> None:
        self.path.write_text("")


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.open()


def test_an_evaluation_whose_process_is_killed_is_given_up_and_the_next_one_gets_a_process(
    checkpoints: Path, gate: Gate, tmp_path: Path
) -> None:
    told = Told()
    evaluator = make(Gated, told, tmp_path, env_kwargs={"gate": str(gate.path)})
    evaluator.submit(step_file(checkpoints, 32), 32)
    evaluator.submit(step_file(checkpoints, 64), 64)  # returns, though the first has not got anywhere

    first = gate.reached_by(evaluator)
    os.kill(first, signal.SIGKILL)
    assert gate.reached_by(evaluator) != first
    assert told == ["the evaluation of step 32 failed: its process was killed by SIGKILL (signal 9)"]
    assert evaluator.pending_steps == [64]
    gate.open()
    row = evaluator.wait()
    evaluator.close()

    in_line = make(Gated, told, tmp_path, env_kwargs={"gate": str(gate.path)}, process=False)
    in_line.submit(step_file(checkpoints, 64), 64)
    assert measured(row) == measured(in_line.poll())
    assert len(told) == 1


def test_closing_ends_the_process_and_what_is_pending_can_be_submitted_again(
    checkpoints: Path, gate: Gate, tmp_path: Path
) -> None:
    told, kwargs = Told(), {"env_kwargs": {"gate": str(gate.path)}}
    evaluator = make(Gated, told, tmp_path, **kwargs)
    for step in STEPS:
        evaluator.submit(step_file(checkpoints, step), step)
    pid = gate.reached_by(evaluator)
    assert evaluator.wait(lambda: True) is None  # does not wait where the user wants to stop
    for _ in range(2):
        evaluator.close()
        assert not is_running(pid)
    pending = evaluator.pending_steps
    assert pending == [32, 64]

    gate.open()
    resumed = make(Gated, told, checkpoints.parent, process=False, **kwargs)
    resumed.resubmit([*pending, 96])
    assert [measured(resumed.poll())["eval/step"] for _ in STEPS] == [32, 64]
    assert resumed.pending_steps == [] and not told
    off = make(Gated, told, checkpoints.parent, interval=None)
    off.resubmit(pending)
    assert off.pending_steps == []


STARTS_AND_WAITS = """
import sys, time
from pathlib import Path
from enn_ppo import TrainEvalConfig
from enn_ppo.checkpoints import step_file
from enn_ppo.eval.evaluator import Evaluator
from tests.enn_ppo.evaluation_worlds import Gated

config = TrainEvalConfig(interval=1, episodes=4, env_kwargs={"gate": sys.argv[1]})
evaluator = Evaluator(config, Gated, Path("."), print)
evaluator.submit(Path(sys.argv[2]), 32)
time.sleep(1000)
"""


def test_the_process_ends_when_training_is_killed(checkpoints: Path, gate: Gate, tmp_path: Path) -> None:
    with start("-c", STARTS_AND_WAITS, gate.path, step_file(checkpoints, 32)) as training:
        pid = gate.reached_by(make(Gated, Told(), tmp_path))
        for ignored in (signal.SIGINT, signal.SIGTERM):  # go to the whole process group, and are for training to heed
            os.kill(pid, ignored)
        assert is_running(pid)
        training.kill()
    while is_running(pid):
        time.sleep(0.01)
