"""The test kit for environments: it finds nothing where there is nothing, and each mistake where there is one."""

import importlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from entity_gym.check.checks import check_environment
from entity_gym.check.command import main
from entity_gym.check.report import Status
from tests.entity_gym.check import broken, broken_compiled
from tests.entity_gym.check.test_check import LITTLE, first_failure

ROOT = Path(__file__).resolve().parents[4]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "entity_gym.check", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


# --- Compiled worlds


@pytest.mark.slow
def test_a_compiled_world_shows_what_it_shows_as_ordinary_python() -> None:
    report = check_environment(broken_compiled.Climb(top=4), effort=replace(LITTLE, full=True))
    assert report.ok, report
    found = {result.name: result for result in report.results}
    assert report.environment == "Climb(max_steps=8, top=4)"
    assert re.fullmatch(r"compiled or loaded in [\d.]+ s; 25 steps are identical", found["compiled"].text)
    assert found["bounds"].status is Status.OK
    assert found["threads"].text == "1, 2 and 3 threads are identical"
    assert found["processes"].text == "2 processes are identical"
    assert "steps/s with 1,024 environments in one thread" in found["speed"].text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_arithmetic_that_differs_when_compiled_is_found() -> None:
    report = check_environment(broken_compiled.Overflows, effort=LITTLE)
    assert [result.name for result in report.failed] == ["compiled"]
    reason = (
        r"not the same: step 1 of environment 0: reward is 200.0 and was -56.0. Look for whole numbers that overflow"
    )
    assert re.search(reason, report.failed[0].text), report.failed[0].text


def test_nothing_is_found_in_the_world_of_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), re.DOTALL)
    assert world is not None
    (tmp_path / "market_of_the_tutorial.py").write_text(world[1])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    report = check_environment(importlib.import_module("market_of_the_tutorial").Market, effort=LITTLE)
    assert {result.status for result in report.results} == {Status.OK, Status.SKIPPED}, str(report)
    assert {r.name: r.text for r in report.results}["end of episode"].endswith(
        "which feature 'round' of Trader tells, 0 truncated"
    )


# --- On the command line


def test_a_world_that_hangs_is_interrupted_and_the_line_named(capsys) -> None:
    assert main(["tests.entity_gym.check.broken:Hangs", "--quick", "--time-limit", "1"]) == 1
    failed, others = capsys.readouterr().out.splitlines()[3:5]
    assert re.fullmatch(
        r"FAILED   observations     hangs: a call took more than 1 s, in tests/entity_gym/check/broken\.py, line \d+, in act: "
        r"`time.sleep\(0.01\)`",
        failed,
    )
    assert "because 'observations' hangs: rare actions, end of episode, " in others


def test_a_world_that_cannot_be_interrupted_is_ended_and_the_line_named(capsys) -> None:
    assert main(["tests.entity_gym.check.broken:HangsStubbornly", "--quick", "--time-limit", "1"]) == 1
    *_, failed, summary = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"FAILED   observations     hangs: a call took more than 1 s, in tests/entity_gym/check/broken\.py, line \d+, in act: "
        r"`time.sleep\(0.01\)`, and cannot be interrupted",
        failed,
    )
    assert summary.endswith("3 ok, 1 FAILED: observations")


def test_an_interrupt_ends_it_without_a_traceback() -> None:
    command = [sys.executable, "-u", "-m", "entity_gym.check", "tests.entity_gym.check.broken:Hangs"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("ok       reset"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "interrupted\n")


@pytest.mark.slow
def test_a_world_that_depends_on_its_process_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broken.OtherInAnotherProcess, "home", str(os.getpid()))
    monkeypatch.setenv("BROKEN_WORLDS_HOME", str(os.getpid()))  # for the worker processes
    failed = first_failure(broken.OtherInAnotherProcess, replace(LITTLE, full=True))
    assert failed.name == "processes"
    assert failed.text.startswith("in 2 processes it is not the same: the first observation of environment 0: ")


# --- Environments of other libraries


def test_what_a_view_makes_of_an_observation_is_printed(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    view = tmp_path / "cart.yaml"
    view.write_text(
        "entities: {Cart: {count: 1, features: [x, null]}, Pole: {count: 1, features: [{angle: angle}, speed]}}\nactor: Cart\n"
    )
    done = run("gymnasium:CartPole-v1", "--view", str(view))
    assert done.returncode == 0, done.stderr
    first, names, row, *rest = done.stdout.splitlines()
    assert first == "Cart (1): x"
    assert names.split() == ["x"]
    assert row.split()[:2] == ["row", "0"] and float(row.split()[2]) != 0
    assert rest[0] == "Pole (1): angle (angle), speed"
    assert rest[3] == "left out (1): 1"
    assert rest[4].startswith("action action: CategoricalActionSpace") and rest[4].endswith("; actors Cart 0")


def test_a_view_that_does_not_fit_is_a_mistake_of_the_user() -> None:
    pytest.importorskip("gymnasium")
    done = run("gymnasium:CartPole-v1", "--view", "highway")
    assert done.returncode == 2
    assert done.stderr.startswith("error: CartPole-v1: view highway: entities.Ego: 1 rows of 5 features")
    done = run("MineSweeper", "--view", "highway")
    assert (done.returncode, done.stdout) == (2, "")
    assert "MineSweeper has entities already" in done.stderr


def test_environments_of_other_libraries_are_checked() -> None:
    pytest.importorskip("gymnasium")
    done = run("gymnasium:CartPole-v1", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
