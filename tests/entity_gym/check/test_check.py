"""The test kit for environments: it finds nothing where there is nothing, and each mistake where there is one."""

import importlib
import os
import random
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from entity_gym.batch.vec_obs import Metric
from entity_gym.check.checks import CHECKS, check_environment
from entity_gym.check.command import main
from entity_gym.check.loading import parse_settings
from entity_gym.check.report import Report, Result, Status
from entity_gym.check.subject import Effort
from entity_gym.check.trajectory import equal
from entity_gym.pools.batch_env import BatchEnvironment
from tests.entity_gym.check import broken, broken_compiled

ROOT = Path(__file__).resolve().parents[3]
LITTLE = Effort(steps=25, seconds=None, longest_episode=300, timed_seconds=0.01)


def check(env, **options) -> dict[str, Result]:
    report = check_environment(env, effort=LITTLE, **options)
    return {result.name: result for result in report.results}


def first_failure(env, effort: Effort = LITTLE) -> Result:
    """Check only as far as the first failure."""

    class Failed(BaseException):
        pass

    def stop(result: Result) -> None:
        if result.status is Status.FAILED:
            raise Failed(result)

    with pytest.raises(Failed) as caught:
        check_environment(env, effort=effort, on_result=stop)
    return caught.value.args[0]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "entity_gym.check", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


# --- What is right


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    seen: list[Result] = []
    report = check_environment(broken.Walk, effort=LITTLE, on_result=seen.append)
    assert report.ok
    assert tuple(seen) == report.results
    assert report.failed == ()
    found = {result.name: (result.status, result.text) for result in report.results}
    assert list(found) == [check.name for check in CHECKS]
    skipped = {name: text for name, (status, text) in found.items() if status is Status.SKIPPED}
    assert skipped == {
        "observe": "a Python environment",
        "compiled": "a Python environment",
        "bounds": "a Python environment",
        "processes": "use --full",
        "drawing": "draw() is not there: replays choose shapes and colours",
    }
    assert all(status is Status.OK for name, (status, _) in found.items() if name not in skipped)
    assert report.step_seconds is not None and report.step_seconds > 0
    text = {result.name: result.text for result in report.results}
    assert text["spaces"] == "entities Walker, Wall; actions step, look at"
    assert text["reset"] == "3 entities; step, look at to act"
    assert text["observations"] == "25 random steps of 3 environments, 3.0 entities each, 3 at most"
    assert text["rendering"] == "4 x 24 pixels"
    refused = "a choice out of range, a masked choice, a masked entity, a missing action, a value too many"
    assert text["wrong actions"] == f"refused: {refused}, an entity out of range, an unknown action"


def test_parameters_are_the_environments_own() -> None:
    report = check_environment(broken.Walk, {"size": 3, "max_steps": 7}, effort=LITTLE)
    assert report.ok
    assert report.environment == "Walk(size=3, max_steps=7)"
    assert {result.name: result.text for result in report.results}["rendering"] == "4 x 12 pixels"


def test_global_random_numbers_go_on_as_if_nothing_had_been_checked() -> None:
    random.seed(3)
    np.random.seed(3)
    expected = random.random(), np.random.random()
    random.seed(3)
    np.random.seed(3)
    check(broken.PythonRandom)
    assert (random.random(), np.random.random()) == expected


def test_something_that_makes_no_environment_is_refused() -> None:
    with pytest.raises(ValueError, match="give what makes one, such as its class"):
        check_environment(broken.Walk())
    with pytest.raises(ValueError, match="'Walk'; give what makes one"):
        check_environment("Walk")
    with pytest.raises(ValueError, match="Many is a BatchEnvironment, which is many environments at once"):
        check_environment(type("Many", (BatchEnvironment,), {}))


# --- What is wrong. (environment, check, reason): that check fails first, for that reason

HERE = r"tests/entity_gym/check/broken\.py, line \d+"
MISTAKES = [
    (broken.pretend_compiled, "constructor", "'a world' was made; it must be an entity_gym.Environment"),
    (broken.RaisesInConstructor, "constructor", rf"RuntimeError: no disk left \({HERE}, in __init__\)"),
    (broken.ChangingSpaces, "spaces", r"the spaces change: called again, entities\['Wall'\] was "),
    (broken.NoActions, "spaces", r"action_space\(\) is empty"),
    (broken.RaisesInReset, "reset", rf"AttributeError: .*'observations' \({HERE}, in reset: `return self.obs"),
    (broken.DoneAtReset, "reset", r"reset\(\) returned .*; expected an Observation that is not done"),
    (
        broken.RaisesInAct,
        "observations",
        rf"^step 4 of random play.* ZeroDivisionError: .* \({HERE}, in act: `self.x //= 0`",
    ),
    (broken.Exits, "observations", rf"^SystemExit: enough \({HERE}, in act\)$"),
    (broken.ShowsNaN, "observations", "step 1 of .*: feature 'x' of entity 0 of type 'Walker' is nan"),
    (broken.WrongMask, "reset", r"action 'step': mask has shape \(1, 2\); expected \(1, 3\)"),
    (broken.UnknownActor, "reset", "actor_ids names 'wanderer', which no entity has; .*did you mean 'walker'"),
    (broken.NeverEnds, "end of episode", "^no episode ended in 300 steps: give it a step limit that truncates$"),
    (broken.CutWithoutSayingSo, "end of episode", "after exactly 10 steps, with truncated=False, and max_steps is 10"),
    (
        broken.Unseeded,
        "same seed",
        "not the same twice with seed 0: .* of environment .: .* Draw every random number from self",
    ),
    (broken.TooEarly, "same seed", "__init__ uses self.rng, which is seeded only afterwards$"),
    (broken.PythonRandom, "global random", "come from random, which no seed reaches: draw from self.rng"),
    (broken.NumpyRandom, "global random", r"come from np\.random, which no seed reaches: draw from self.rng"),
    (
        broken.Shares,
        "independence",
        "an environment alone is not what it is beside others.*Environments share something",
    ),
    (broken.OverwritesArrays, "own arrays", r"step \d overwrites features\['Walker'\] of the observation before it"),
    (broken.OverwritesTargets, "own arrays", r"step \d overwrites targets\['x'\] of the observation before it"),
    (broken.ForgetsToSave, "saving", r"^saved after \d+ steps and loaded into a new environment: step \d+: done is"),
    (broken.SavesAnObject, "saving", r"^state\(\)\['seen'\] is \{1, 2\} of type set; values are arrays"),
    (broken.SavesOnly, "saving", r"^state\(\) is there alone: saving takes both"),
    (broken.DrawsFloats, "rendering", r"render\(\) returned float64 array of shape \(4, 24, 3\); it must be"),
    (broken.DrawsAndMoves, "rendering", r"render\(\) changes the episode: step \d+: "),
    (
        broken.HintsOfNothing,
        "drawing",
        r"draw\(\)\['types'\] has the key 'Wlaker'; .*did you mean 'Walker'\?",
    ),
    (broken.HintsAndMoves, "drawing", r"draw\(\) changes the episode: "),
    (broken.CannotBeClosedTwice, "closing", rf"IndexError: pop from empty list \({HERE}, in close: "),
]


@pytest.mark.parametrize(("env", "name", "reason"), MISTAKES, ids=lambda value: getattr(value, "__name__", None))
def test_each_mistake_is_found_where_it_is(env, name: str, reason: str) -> None:
    failed = first_failure(env)
    assert failed.name == name
    assert re.search(reason, failed.text), failed.text
    assert "Traceback" not in failed.text and "\n" not in failed.text


@pytest.mark.parametrize(
    ("env", "name", "reason"),
    [
        (broken.NothingRandom, "other seed", "seeds 0 and 1 give the same episodes"),
        (broken.CarriesOver, "fresh start", "the same seed gives others than at first: .*Does reset"),
        (broken.CutUnderAnotherName, "end of episode", "exactly 7 steps, with truncated=False, and none later"),
        (broken.NobodyActs, "observations", "nobody was offered an action in 25 steps"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_may_be_meant_is_a_warning(env, name: str, reason: str) -> None:
    report = check_environment(env, effort=LITTLE)
    warnings = {result.name: result.text for result in report.results if result.status is Status.WARNING}
    assert list(warnings) == [name]
    assert re.search(reason, warnings[name]), warnings[name]
    assert report.ok


def test_nobody_is_selected_on_purpose() -> None:
    """Random play of few steps among many entities may never select nobody; the check does."""
    failed = first_failure(broken.ForgetsNobody)
    assert failed.name == "rare actions"
    assert re.fullmatch(
        r"step 1, action 'look at': nobody is selected, which is allowed: KeyError: None \(tests/entity_gym/check/broken\.py, "
        r"line \d+, in act: `self.looks\[.*`\)",
        failed.text,
    )


# --- Compiled worlds

THERE = r"tests/entity_gym/check/broken_compiled\.py, line \d+"


@pytest.mark.parametrize(
    ("env", "name", "reason"),
    [
        (
            broken_compiled.UnknownField,
            "constructor",
            rf"there is no field 'heigth'; .*'height'\? \(.*{THERE}: `s.heigth",
        ),
        (
            broken_compiled.OutOfBounds,
            "observations",
            rf"^step 4 .* IndexError: .* \({THERE}, in observe: `obs.Climber",
        ),
        (broken_compiled.TooMany, "observations", "step 1 .* shows 2 entities of type 'Climber'; allowed: 0 to max=1"),
        (broken_compiled.ObserveChanges, "observe", r"after 0 steps observe\(\) changes seen; do that in reset"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_mistake_in_a_compiled_world_is_found_before_anything_is_compiled(
    env, name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    failed = first_failure(env)
    assert failed.name == name
    assert re.search(reason, failed.text), failed.text


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


def test_an_end_that_a_feature_announces_is_no_step_limit() -> None:
    """A world that shows the step may end after a fixed number of steps without truncating: the end is part of its task."""
    found = check(broken.CutWithTheStepShown)
    assert found["end of episode"].status is Status.OK
    assert re.fullmatch(
        r"\d+ episodes, 10 steps each, which feature 'step' of Clock tells, 0 truncated", found["end of episode"].text
    )


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


def test_a_good_world_is_reported_line_by_line_with_a_summary() -> None:
    done = run("tests.entity_gym.check.broken:Walk", "--quick", "--steps", "20", "--set", "size=4")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line[9:].partition("  ")[0] for line in lines[:-1]] == [check.name for check in CHECKS]
    assert {line.split()[0] for line in lines[:-1]} == {"ok", "skipped"}
    assert re.fullmatch(r"Walk\(size=4\): 23 checks in [\d.]+ s: 18 ok, 5 skipped", lines[-1])


def test_a_mistake_is_reported_without_a_traceback_and_what_it_stands_in_the_way_of_in_one_line(capsys) -> None:
    assert main(["tests.entity_gym.check.broken:RaisesInReset", "--quick"]) == 1
    done = capsys.readouterr()
    assert done.err == ""
    *_, failed, others, summary = done.out.splitlines()
    assert re.match(r"FAILED   reset  +AttributeError: .*broken\.py, line \d+, in reset", failed)
    assert others.startswith(
        "skipped  20 others        because 'reset' failed: observations, rare actions, end of episode, "
    )
    assert summary.endswith("2 ok, 20 skipped, 1 FAILED: reset")


def test_the_generated_source_of_a_compiled_world_is_printed(capsys) -> None:
    assert main(["tests.entity_gym.check.broken_compiled:Climb", "--source"]) == 0
    source = capsys.readouterr().out
    compile(source, "loops.py", "exec")
    assert "Climb" in source


def test_a_python_world_has_no_generated_source(capsys) -> None:
    assert main(["tests.entity_gym.check.broken:Walk", "--source"]) == 2
    assert "Walk is a Python environment: no code is generated for it" in capsys.readouterr().err


def test_a_module_that_cannot_be_imported_says_where(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "typo_world.py").write_text("import os\nsize = = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["typo_world:World"]) == 1
    assert re.match(r"FAILED   import +SyntaxError: .*typo_world\.py, line 2: `size = = 3`", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Minesweper"], "error: .*'Minesweper'.*did you mean 'MineSweeper'?"),
        (["tests.entity_gym.check.broken:Wolk"], "error: .*no class or function 'Wolk'.*did you mean 'Walk'?"),
        (
            ["tests.entity_gym.check.broken:Walk", "--set", "sise=3"],
            "error: .* has no parameter 'sise'.*did you mean 'size'?",
        ),
        (
            ["tests.entity_gym.check.broken:Walk", "--set", "size"],
            "error: --set takes name=value, such as size=8; got 'size'",
        ),
    ],
)
def test_what_is_not_there_is_a_usage_error(arguments: list[str], message: str, capfd) -> None:
    assert main(arguments) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert re.match(message, captured.err), captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["Xor", "--steps", "0"], ["Xor", "--steps", "many"], ["Xor", "--fast"], []])
def test_an_option_that_cannot_be_is_a_usage_error(arguments: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert "error: " in capsys.readouterr().err


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


def test_a_world_that_takes_the_process_with_it_is_reported(capsys) -> None:
    assert main(["tests.entity_gym.check.broken:Dies", "--quick"]) == 1
    *_, failed, summary = capsys.readouterr().out.splitlines()
    assert failed == "FAILED   observations     the process was ended by SIGKILL"
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


# --- Reports


def test_a_line_is_folded_to_the_width_of_the_terminal() -> None:
    line = Result("reset", Status.FAILED, "words " * 20 + "a/very/long/path.py").line(60)
    head, *rest = line.split("\n")
    assert head.startswith("FAILED   reset            words words")
    assert all(len(each) <= 60 and each.startswith(" " * 26) and not each.startswith(" " * 27) for each in rest)
    assert rest[-1].endswith("a/very/long/path.py")


def test_a_report_prints_every_check_and_fails_with_one_of_them() -> None:
    results = (
        Result("reset", Status.OK, "", 1.25),
        Result("spaces", Status.WARNING, "odd", 1.25),
        Result("speed", Status.FAILED, "none"),
        Result("closing", Status.SKIPPED, "because 'speed' failed", cause="speed"),
    )
    report = Report("Walk", results)
    assert not report.ok
    assert str(report).splitlines() == [
        "ok       reset",
        "warning  spaces           odd",
        "FAILED   speed            none",
        "skipped  1 other          because 'speed' failed: closing",
        "Walk: 4 checks in 2.5 s: 1 ok, 1 warning, 1 skipped, 1 FAILED: speed",
    ]
    assert Report("Walk", results[:2]).ok


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


def test_sums_of_metrics_are_equal_up_to_rounding_and_nothing_else_of_them() -> None:
    values = [0.1, 0.7, -0.3]
    was, now = Metric(), Metric()
    for value in values:
        was.push(value)
    for value in reversed(values):
        now.push(value)
    assert was.sum != now.sum and equal({"x": was}, {"x": now})
    assert not equal(was, replace(was, sum=was.sum + 1e-9))
    assert not equal(was, replace(was, count=4))
    assert not equal(was, replace(was, max=0.7 + 1e-9))
    assert equal(Metric(), Metric())


def test_a_value_that_is_nested_too_deeply_is_a_text() -> None:
    value = "-" * 100_000 + "1"
    assert parse_settings([f"size={value}"]) == {"size": value}
