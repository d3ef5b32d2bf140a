"""The test kit for environments: it finds nothing where there is nothing, and each mistake where there is one."""

import importlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from entity_gym.check.checks import CHECKS, Status, check_environment
from entity_gym.check.command import main
from tests.entity_gym.check import broken, broken_compiled
from tests.processes import ROOT, run, start


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "entity_gym.check", *arguments)


# --- Compiled worlds


@pytest.mark.slow
def test_a_compiled_world_shows_what_it_shows_as_ordinary_python() -> None:
    report = check_environment(broken_compiled.Climb(top=4), steps=25)
    assert report.ok, report
    found = {result.name: result.text for result in report.results}
    assert re.fullmatch(r"compiled or loaded in [\d.]+ s", found["compiling"])
    assert {found[name] for name in ("compiled", "threads", "processes")} == {"25 steps are identical"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_arithmetic_that_differs_when_compiled_is_found() -> None:
    report = check_environment(broken_compiled.Overflows, steps=25)
    assert [result.name for result in report.failed] == ["compiled"]
    reason = (
        r"not the same: step 1 of environment 0: reward is 200.0 and was -56.0. Look for whole numbers that overflow"
    )
    assert re.search(reason, report.failed[0].text), report.failed[0].text


def test_code_that_does_not_compile_is_found_before_random_play() -> None:
    report = check_environment(broken_compiled.TwoTypes, steps=25)
    assert report.results[-1].name == "compiling"
    assert "broken_compiled.py, line" in report.results[-1].text, report.results[-1].text


def test_nothing_is_found_in_the_world_of_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), re.DOTALL)
    (tmp_path / "market_of_the_tutorial.py").write_text(next(world for world in worlds if "class Market" in world))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    report = check_environment(importlib.import_module("market_of_the_tutorial").Market, steps=25)
    assert {result.status for result in report.results} <= {Status.OK, Status.SKIPPED}, str(report)
    assert {r.name: r.text for r in report.results}["end of episode"].endswith("which a feature tells, 0 truncated")


# --- On the command line


def test_a_good_world_is_reported_line_by_line_with_a_summary(capfd) -> None:
    assert main(["tests.entity_gym.check.broken:Walk", "--steps", "20", "--set", "size=4"]) == 0
    done = capfd.readouterr()
    assert done.err == ""
    lines = done.out.splitlines()
    assert [line[9:].partition("  ")[0] for line in lines[:-1]] == [check.name for check in CHECKS]
    assert {line.split()[0] for line in lines[:-1]} == {"ok", "skipped"}
    assert re.fullmatch(r"Walk\(size=4\): 15 checks in [\d.]+ s: 13 ok, 2 skipped", lines[-1])


def test_a_mistake_is_reported_without_a_traceback(capfd) -> None:
    assert main(["tests.entity_gym.check.broken:RaisesInReset"]) == 1
    done = capfd.readouterr()
    assert done.err == ""
    *_, failed, summary = done.out.splitlines()
    assert re.match(r"FAILED   reset  +AttributeError: .*broken\.py, line \d+, in reset", failed)
    assert summary.endswith("1 ok, 1 FAILED: reset, 13 not tried, because 'reset' failed")


def test_a_world_that_hangs_is_ended_with_a_traceback() -> None:
    done = check("tests.entity_gym.check.broken:HangsStubbornly", "--time-limit", "1")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("skipped  compiling")
    assert re.match(r'Timeout \(0:00:01\)!\nThread .*\n  File ".*broken\.py", line \d+ in act\n', done.stderr), (
        done.stderr
    )


def test_an_interrupt_ends_it_without_a_traceback() -> None:
    walk = ("tests.entity_gym.check.broken:Walk", "--steps", "1000000")
    with start("-u", "-m", "entity_gym.check", *walk) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("skipped  compiling"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "interrupted\n")


@pytest.mark.slow
def test_a_world_that_depends_on_its_process_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broken.OtherInAnotherProcess, "home", str(os.getpid()))
    monkeypatch.setenv("BROKEN_WORLDS_HOME", str(os.getpid()))  # for the worker processes
    (failed,) = check_environment(broken.OtherInAnotherProcess, steps=25).failed
    assert failed.name == "processes"
    assert failed.text.startswith("in 2 processes it is not the same: the first observation of environment 0: ")


# --- Environments of other libraries


def test_a_view_is_shown_and_checked(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    view = tmp_path / "cart.yaml"
    view.write_text(
        "entities: {Cart: {count: 1, features: [x, null]}, Pole: {count: 1, features: [{angle: angle}, speed]}}\nactor: Cart\n"
    )
    done = check("gymnasium:CartPole-v1", "--view", str(view), "--steps", "30")
    assert done.returncode == 0, done.stderr
    first, names, row, *rest = done.stdout.splitlines()
    assert first == "Cart (1): x"
    assert names.split() == ["x"]
    assert float(row) != 0
    assert rest[0] == "Pole (1): angle (angle), speed"
    assert rest[3] == "left out (1): 1"
    assert rest[4].startswith("action action: CategoricalActionSpace") and "actor_ids=[('Cart', 0)]" in rest[4]
    assert rest[6] == "The checks of gymnasium:CartPole-v1 with this view:"
    assert rest[7].split()[:2] == ["ok", "spaces"] and " 0 FAILED" not in rest[-1]


def test_a_view_that_does_not_fit_is_a_mistake_of_the_user() -> None:
    pytest.importorskip("gymnasium")
    done = check("gymnasium:CartPole-v1", "--view", "highway")
    assert done.returncode == 2
    assert done.stderr.startswith("error: CartPole-v1: view highway: entities.Ego: the 4 numbers")
    done = check("MineSweeper", "--view", "highway")
    assert (done.returncode, done.stdout) == (2, "")
    assert "MineSweeper has entities already" in done.stderr
