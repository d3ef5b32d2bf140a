"""The check of environments: it finds nothing where there is nothing, and each mistake where there is one."""

import functools
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entity_gym.batch.vec_obs import Metric
from entity_gym.bridges import gymnasium_worlds
from entity_gym.check import Result, Status, check_environment
from entity_gym.check.checks import CHECKS
from entity_gym.check.command import main
from entity_gym.check.loading import parse_settings
from entity_gym.check.trajectory import equal
from examples.walks import Walks
from tests.entity_gym.actions.depot import Depot
from tests.entity_gym.check import broken, broken_compiled


@pytest.fixture(autouse=True)
def _without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no worker processes: tests in tests/system do."""
    monkeypatch.setattr("entity_gym.check.checks.CHECKS", tuple(each for each in CHECKS if each.name != "processes"))


def results(env, **options) -> dict[str, Result]:
    return {result.name: result for result in check_environment(env, steps=25, **options).results}


def first_failure(env) -> Result:
    """Check only as far as the first failure."""

    class Failed(BaseException):
        pass

    def stop(result: Result) -> None:
        if result.status is Status.FAILED:
            raise Failed(result)

    with pytest.raises(Failed) as caught:
        check_environment(env, steps=25, on_result=stop)
    return caught.value.args[0]


# --- What is right


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    seen: list[Result] = []
    report = check_environment(broken.Walk, steps=25, on_result=seen.append)
    assert report.ok
    assert seen == report.results
    found = {result.name: (result.status, result.text) for result in report.results}
    assert list(found) == [check.name for check in CHECKS if check.name != "processes"]
    skipped = {name for name, (status, _) in found.items() if status is Status.SKIPPED}
    assert skipped == {"compiling", "compiled"}
    assert all(status is Status.OK for name, (status, _) in found.items() if name not in skipped)
    text = {result.name: result.text for result in report.results}
    assert text["spaces"] == "entities Walker, Wall; actions step, look at"
    assert text["reset"] == "3 entities; step, look at to act"
    assert text["observations"] == "25 random steps of 3 environments, 3.0 entities each, 3 at most"
    assert text["drawing"] == "images of 4 x 24 pixels, no hints"
    assert text["threads"] == "25 steps are identical"


@pytest.mark.parametrize("env", [broken.Gather, Depot, functools.partial(Depot, trucks=2)])
def test_nothing_is_found_in_worlds_of_sets(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    report = check_environment(env, steps=25)
    assert {result.status for result in report.results} <= {Status.OK, Status.SKIPPED}, str(report)


def test_nothing_is_found_in_a_world_of_many_environments_at_once() -> None:
    report = check_environment(functools.partial(Walks, length=3), steps=25)
    assert report.environment == "Walks(length=3)"
    assert {result.status for result in report.results} == {Status.OK, Status.SKIPPED}, str(report)


def test_global_random_numbers_go_on_as_if_nothing_had_been_checked() -> None:
    random.seed(3)
    np.random.seed(3)
    expected = random.random(), np.random.random()
    random.seed(3)
    np.random.seed(3)
    results(broken.PythonRandom)
    assert (random.random(), np.random.random()) == expected


def test_something_that_makes_no_environment_is_refused() -> None:
    with pytest.raises(ValueError, match="give what makes one, such as the class Walk"):
        check_environment(broken.Walk())
    with pytest.raises(ValueError, match="'Walk' is no environment; give .* what makes"):
        check_environment("Walk")


# --- What is wrong. (environment, check, reason): that check fails first, for that reason

HERE = r"tests/entity_gym/check/broken\.py, line \d+"
LAGS = "observations lag one step behind"


@pytest.mark.parametrize(
    ("env", "name", "reason"),
    [
        (broken.pretend_compiled, "spaces", "create_env returned str; it must return an entity_gym.Environment"),
        (broken.NoActions, "spaces", r"action_space\(\) names no action; there must be at least one"),
        (broken.RaisesInReset, "reset", rf"AttributeError: .*'observations' \({HERE}, in reset: `return self.obs"),
        (
            broken.RaisesInAct,
            "observations",
            rf"^step 4 of random play.* ZeroDivisionError: .* \({HERE}, in act: `self.x //= 0`",
        ),
        (broken.ShowsNaN, "observations", "step 1 of .*: feature 'x' of entity 0 of type 'Walker' is nan"),
        (broken.OneObservation, "observations", r"act\(\) returned the same Observation object as the call before it"),
        # Random play of few steps among many entities may never select nobody; every eighth step does.
        (
            broken.ForgetsNobody,
            "observations",
            rf"^step 8 of random play with seed 0 \(in which nobody is selected in action 'look at', which is allowed\): "
            rf"KeyError: None \({HERE}, in act: `self.looks",
        ),
        (
            broken.MasksAllEntities,
            "reset",
            r"MasksAllEntities \(environment 0\): action 'gather': mask has shape \(1, 5\) and type bool; expected .* \(1, 4\)",
        ),
        (
            broken.OffersOneEntity,
            "reset",
            "action 'gather': a SelectEntityActionMask was given; SelectEntitiesActionSpace takes a SelectEntitiesActionMask",
        ),
        (
            broken.ForgetsTheEmptySet,
            "observations",
            r"^step 8 of random play .* \(in which sets are as small as allowed in action 'look at', sets are as small as "
            rf"allowed in action 'gather', which is allowed\): IndexError: .* \({HERE}, in worth: `return float\(gathered",
        ),
        (broken.NeverEnds, "end of episode", "^no episode ended in 250 steps: give it a step limit that truncates$"),
        (
            broken.Unseeded,
            "seeds",
            "not the same twice with seed 0: .* of environment .: .* Draw every random number from self",
        ),
        (broken.PythonRandom, "seeds", "come from random, which no seed reaches: draw from self.rng"),
        (
            broken.CarriesOver,
            "fresh start",
            "the same seed gives others than at first: .*Does reset.* forget something",
        ),
        (
            broken.Shares,
            "independence",
            "environment 2 alone is not what it is beside others.*Environments share something",
        ),
        (
            broken.ForgetsToSave,
            "saving",
            r"^saved after \d+ steps and loaded into a new environment: step \d+ of .*: done is",
        ),
        (
            broken.SavesAnObject,
            "saving",
            r"^state\(\)\['environments'\]\[0\]\['seen'\] is \{1, 2\} of type set; values are",
        ),
        (broken.DrawsForAnotherPurpose, "drawing", r"has a method draw\(canvas.*another name"),
        (broken.DrawsFloats, "drawing", r"render\(\) returned float64 array of shape \(4, 24, 3\); it must be"),
        (broken.DrawsAndMoves, "drawing", r"render\(\) or draw\(\) changes the episode: step \d+ of environment 0: "),
        (broken.HintsOfNothing, "drawing", r"draw\(\)\['types'\] has the key 'Wlaker'; .*did you mean 'Walker'\?"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_mistake_is_found_where_it_is(env, name: str, reason: str) -> None:
    failed = first_failure(env)
    assert failed.name == name
    assert re.search(reason, failed.text), failed.text
    assert "Traceback" not in failed.text and "\n" not in failed.text


@pytest.mark.parametrize(
    ("env", "name", "reason"),
    [
        (broken.NothingRandom, "seeds", "seeds 0 and 1 give the same episodes"),
        (broken.CutUnderAnotherName, "end of episode", "exactly 7 steps, with truncated=False, and none later"),
        (broken.NobodyActs, "observations", "nobody was offered an action in 25 steps"),
        (broken.ShowsTheStateBefore, "delay", f"it seems that {LAGS}"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_may_be_meant_is_a_warning(env, name: str, reason: str) -> None:
    report = check_environment(env, steps=25)
    warnings = {result.name: result.text for result in report.results if result.status is Status.WARNING}
    assert list(warnings) == [name]
    assert re.search(reason, warnings[name]), warnings[name]
    assert report.ok


def test_a_world_without_images_is_not_wrong() -> None:
    """Wrappers of other libraries have a `render` that raises where the library's own does."""
    drawing = results(broken.RendersNothing)["drawing"]
    assert (drawing.status, drawing.text) == (Status.OK, "no images, no hints")


@pytest.mark.parametrize(
    ("shows_offsets", "status", "told"),
    [
        (True, Status.OK, "adds the actor's to x of Wall"),
        (
            False,
            Status.WARNING,
            "'x' of Wall was 0 to 6, about as that of Walker, and is 0 to 12 with that added: if it was",
        ),
    ],
)
def test_of_a_gymnasium_world_sums_of_its_view_are_checked_and_its_masks_named(
    shows_offsets: bool, status: Status, told: str
) -> None:
    gymnasium = pytest.importorskip("gymnasium")

    class Walls(gymnasium.Env):  # type: ignore[misc,name-defined]
        observation_space = gymnasium.spaces.Box(-9, 9, (3,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.steps, self.x = 0, int(self.np_random.integers(7))
            return self.shown(), {"action_mask": np.ones(2, np.int8)}

        def step(self, action):
            self.steps, self.x = self.steps + 1, int(np.clip(self.x + 2 * action - 1, 0, 6))
            return self.shown(), 0.0, False, self.steps == 10, {"action_mask": np.ones(2, np.int8)}

        def shown(self):
            return np.array([self.x, *np.array([0, 6]) - self.x * shows_offsets], np.float32)

    walker, wall = {"count": 1, "features": ["x"]}, {"features": ["x"], "add_actor": ["x"]}
    view = {"entities": {"Walker": walker, "Wall": wall}, "actor": "Walker"}
    found = results(gymnasium_worlds(Walls, view=view))
    assert found["observations"].text.endswith('action masks are in info["action_mask"]')
    assert (found["view"].status, found["view"].text.startswith(told)) == (status, True), found["view"].text


# --- Compiled worlds

THERE = r"tests/entity_gym/check/broken_compiled\.py, line \d+"


@pytest.mark.parametrize(
    ("env", "name", "reason"),
    [
        (
            broken_compiled.UnknownField,
            "spaces",
            rf"there is no field 'heigth'; .*'height'\? \(.*{THERE}: `s.heigth",
        ),
        (broken_compiled.OutOfBounds, "compiling", rf"^IndexError: .* \({THERE}, in observe: `obs.Climber"),
        (broken_compiled.ObserveChanges, "compiling", r"observe\(\) changes seen; do that in reset"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_mistake_in_a_compiled_world_is_found_as_ordinary_python(
    env, name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    failed = first_failure(env)
    assert failed.name == name
    assert re.search(reason, failed.text), failed.text


# --- On the command line


def test_a_module_that_cannot_be_imported_says_where(tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "typo_world.py").write_text("import os\nsize = = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["typo_world:World"]) == 1
    assert re.match(r"FAILED   import +SyntaxError: .*typo_world\.py, line 2: `size = = 3`", capfd.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
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


@pytest.mark.parametrize("arguments", [["Xor", "--steps", "0"], ["Xor", "--fast"]])
def test_an_option_that_cannot_be_is_a_usage_error(arguments: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert "error: " in capsys.readouterr().err


# --- Reports


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


def test_settings_are_values_of_python_or_texts() -> None:
    nested = "-" * 100_000 + "1"
    assert parse_settings(["size=8", "on=true", "name=abc", f"deep={nested}"]) == {
        "size": 8, "on": True, "name": "abc", "deep": nested
    }  # fmt: skip
