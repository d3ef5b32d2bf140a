"""Mistakes: where they are, what is wrong there, and which environment it was."""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecObs
from entity_gym.compiled import CompiledEnvironment, CompileError
from entity_gym.compiled.build import _build, build
from entity_gym.pools.pool import ListEnv, ThreadedVecEnv
from entity_gym.pools.slots import SlotOptions
from entity_gym.pools.vec_env import VecEnv
from tests.entity_gym.actions.depot import Depot
from tests.entity_gym.compiled import mistakes, worlds
from tests.entity_gym.compiled.comparing import Playing, ordinary
from tests.entity_gym.compiled.worlds import Everything, MadeUpError, Watching
from tests.entity_gym.pools.kinds_of_pools import content
from tests.worlds import random_actions

FILE = Path(mistakes.__file__)


def line_of_mistake(thing: Any) -> int:
    """The line marked with `# here`."""
    lines, start = inspect.getsourcelines(thing)
    return next(start + k for k, line in enumerate(lines) if line.rstrip().endswith("# here"))


def failed(world: type[CompiledEnvironment], **options: Any) -> CompileError:
    with pytest.raises(CompileError) as caught:
        build(world, **options)
    return caught.value


# --- Mistakes that can be seen in the source: no need to wait for the compiler

SEEN = {
    mistakes.MisspeltField: r"step: there is no field 'spede'; allowed: .*; did you mean 'speed'\?",
    mistakes.WritesParameter: r"step: 'width' is read-only: it is a parameter",
    mistakes.WritesInObserve: r"observe: observe must not change the state, and writes 'seen'",
    mistakes.Generates: r"step: not available in compiled code: a generator",
    mistakes.DrawsFromNumPy: r"reset: np.random draws .*; draw with rand_int\(s, n\), rand_float\(s\) or rand_normal\(s\)",
}


@pytest.mark.parametrize("world", SEEN, ids=lambda world: world.__name__)
def test_a_mistake_in_the_source_is_named_with_its_file_line_and_text(world: Any) -> None:
    message = str(failed(world, compile=world is mistakes.MisspeltField))  # before anything is compiled
    assert re.match(world.__name__ + r"\." + SEEN[world], message) and "\n" not in message
    line = line_of_mistake(world)
    assert f"({FILE}, line {line}: `{FILE.read_text().splitlines()[line - 1].strip()}`)" in message


def test_a_mistake_in_a_function_that_is_called_is_named_in_the_same_way() -> None:
    message = str(failed(mistakes.DrawsInHelper))
    assert message.startswith("drawn: randrange draws random numbers that no seed reaches; draw with rand_int(s, n)")
    assert f"({FILE}, line {line_of_mistake(mistakes.drawn)}: `return randrange(s.width)  # here`)" in message


def test_functions_are_written_without_self() -> None:
    message = str(failed(mistakes.WithSelf))
    assert message == (
        "WithSelf.reset(self, s) takes 2 arguments; it is written reset(s), without self "
        f"({FILE}, line {inspect.getsourcelines(mistakes.WithSelf.reset)[1]})"
    )


# --- Faults while it runs: compiled, as ordinary Python, and in a list of plain environments

FAULTS = {
    worlds.TOO_MANY: r"observe\(\) shows 5 entities of type 'Cat'; allowed: 0 to max=4",
    worlds.NEGATIVE: r"observe\(\) shows -3 entities of type 'Guard Dog'; allowed: 0 to max=3",
    worlds.NAN_FEATURE: r"feature 'mood' of entity 1 of type 'Guard Dog' is nan; features must be finite numbers",
    worlds.INF_GLOBAL: r"global feature 'wind' is inf; features must be finite numbers",
    worlds.BAD_ACTOR: r"action 'Sniff' names entity 99 as an actor or actee; the frame has \d entities",
    worlds.BAD_ACTEE: r"action 'Throw Rock' names entity -1 as an actor or actee; the frame has \d entities",
    worlds.TOO_MANY_ACTORS: r"obs.n.Sniff is 20; allowed: 0 to max_actors=7",
    worlds.TOO_MANY_ACTEES: r"obs.n.Throw_Rock_actees is 30; allowed: 0 to max_actees=7",
    worlds.SET_DECLARED: r"obs.n.Walk is 2; the actors of 'Walk' are declared, so it can only be set to 0",
    worlds.SET_GLOBAL: r"obs.n.Weather is 2; .*it can only be set to 0",
    worlds.ALL_CLOSED: r"every one of the 2 choices of actor 0 of action 'Sniff' is masked; leave one open",
    worlds.NO_PAIR: r"every one of the \d choices of actor 1 of action 'Chase' is masked; leave one open",
    worlds.NAN_REWARD: r"step\(\) returned the reward nan; it must be a finite number",
    worlds.HUGE_REWARD: r"step\(\) returned the reward inf; it must be a finite number",
}


def play_with_fault(pool: VecEnv, fault: int, culprit: int) -> None:
    pool.slots.play_first = None  # which would find it before compiled code does
    rng = np.random.default_rng(0)
    infos: list[Mapping[str, Any]] = [{"fault": fault if i == culprit else 0, "num_dogs": 2} for i in range(len(pool))]
    obs = pool.reset(env_info=infos)
    for _ in range(3):  # what is not seen at once is seen after an episode that was cut in its first step
        obs = pool.act(random_actions(obs, pool.action_space(), rng))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_names_the_environment_and_what_was_wrong(fault: int) -> None:
    check_fault(fault, compile=False)


def check_fault(fault: int, *, compile: bool) -> None:
    with ThreadedVecEnv(Everything, 5, compile=compile) as pool:
        with pytest.raises(ValueError, match=rf"^Everything \(environment 3\): {FAULTS[fault]}"):
            play_with_fault(pool, fault, culprit=3)
        obs = pool.reset(env_info=[{"fault": 0}] * 5)  # and it goes on
        pool.act(random_actions(obs, pool.action_space(), np.random.default_rng(0)))


RAISED = [(worlds.RAISE, "the bridge is out", "act"), (worlds.RAISE_IN_RESET, "no start today", "reset")]


@pytest.mark.parametrize(("fault", "message", "function"), RAISED)
def test_an_exception_keeps_its_type_and_says_which_environment(fault: int, message: str, function: str) -> None:
    check_exception(fault, message, function, compile=False)


def check_exception(fault: int, message: str, function: str, *, compile: bool) -> None:
    with ThreadedVecEnv(Everything, 5, compile=compile, first_env=10) as pool:
        with pytest.raises(MadeUpError) as caught:
            play_with_fault(pool, fault, culprit=3)
        assert str(caught.value) == message
        assert caught.value.__notes__ == [f"raised by Everything (environment 13) in {function}()"]


def test_ordinary_python_checks_bounds_always() -> None:
    playing = Playing(ordinary(mistakes.WritesOutside, 4))
    with pytest.raises(IndexError, match="index [45] is out of bounds"):
        for _ in range(20):
            playing.step()


# --- Actions that were not offered


def wrong(actions: dict[str, RaggedBuffer[np.int64]], name: str, change: Any) -> dict[str, Any]:
    """The same actions with other values or lengths in one of them."""
    buffer = actions[name]
    values, offsets = change(buffer.values.copy(), buffer.offsets.copy())
    return {**actions, name: RaggedBuffer(values, offsets)}


def first_row_becomes(value: int) -> Any:
    def change(values: Any, offsets: Any) -> Any:
        values[0] = value
        return values, offsets

    return change


def last_is_left_out(values: Any, offsets: Any) -> Any:
    offsets[-1] -= 1
    return values[:-1].copy(), offsets


def one_environment_less(values: Any, offsets: Any) -> Any:
    return values[: offsets[-2]].copy(), offsets[:-1].copy()


def refusals(obs: VecObs, actions: dict[str, RaggedBuffer[np.int64]]) -> dict[str, dict[str, Any]]:
    sniff = obs.action_masks["Sniff"]
    assert sniff.mask is not None
    closed = next(k for k, row in enumerate(sniff.mask.values) if not row.all())

    def close(values: Any, offsets: Any) -> Any:
        values[closed] = int(sniff.mask.values[closed].argmin())
        return values, offsets

    return {
        "too few": wrong(actions, "Walk", last_is_left_out),
        "an environment less": wrong(actions, "Walk", one_environment_less),
        "no such choice": wrong(actions, "Walk", first_row_becomes(3)),
        "negative": wrong(actions, "Weather", first_row_becomes(-1)),
        "masked": wrong(actions, "Sniff", close),
        "no such entity": wrong(actions, "Chase", first_row_becomes(77)),
        "nobody where there is somebody": wrong(actions, "Chase", first_row_becomes(-1)),
        "no such entity, without a mask": wrong(actions, "Throw Rock", first_row_becomes(77)),
        "nobody, without a mask": wrong(actions, "Throw Rock", first_row_becomes(-1)),
        "missing": {name: buffer for name, buffer in actions.items() if name != "Walk"},
        "unknown": {**actions, "Wlak": actions["Walk"]},
        "no buffer": {**actions, "Walk": actions["Walk"].values},
    }


def test_actions_that_were_not_offered_are_refused_as_a_list_does_and_nothing_is_stepped() -> None:
    check_refusals(compile=False)


def check_refusals(*, compile: bool) -> None:
    listed = ListEnv(Everything().as_environment, 4, seed=2, first_env=30)
    with ThreadedVecEnv(Everything, 4, seed=2, first_env=30, compile=compile) as pool:
        listed.reset()
        obs = pool.reset()
        actions = random_actions(obs, pool.action_space(), np.random.default_rng(1))
        before = content(pool.slots.state())
        for kind, bad in refusals(obs, actions).items():
            with pytest.raises(ValueError) as by_list:
                listed.act(bad)
            with pytest.raises(ValueError) as refused:
                pool.act(bad)
            assert str(refused.value) == str(by_list.value), kind
            assert content(pool.slots.state()) == before, kind
        assert content(pool.act(actions).reward) == content(listed.act(actions).reward)  # and all can go on


def test_a_refusal_names_the_environment_and_not_its_place_in_a_subset() -> None:
    with ThreadedVecEnv(Everything, 5, first_env=10, compile=False) as pool:
        obs = pool.reset()
        actions = random_actions(obs, pool.action_space(), np.random.default_rng(1))
        subset = {name: buffer[[4, 2]] for name, buffer in actions.items()}
        bad = wrong(
            subset,
            "Walk",
            lambda values, offsets: (np.where(np.arange(len(values))[:, None] == len(values) - 1, 9, values), offsets),
        )  # noqa: E501
        with pytest.raises(ValueError, match=r"^Everything \(environment 12\): action 'Walk' of entity \d is 9"):
            pool.act(bad, [4, 2])


# --- The check before the first use


@pytest.fixture
def unjitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Compiling is not what is tested here, and takes its time. A fresh cache: nothing has been used before."""
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    monkeypatch.setenv("ENTITY_GYM_CACHE_DIR", str(tmp_path))
    _build.cache_clear()
    monkeypatch.setattr("entity_gym.compiled.environment.SECONDS", 0.0)  # as few steps as there may be
    return tmp_path


PLAYED = {
    mistakes.MisspeltAction: (AttributeError, "'Act' object has no attribute 'Mov'\n.*did you mean 'Move'"),
    mistakes.NoMask: (AttributeError, "'Obs' object has no attribute 'Move'\n.*masked, .*in the declaration add more"),
    mistakes.MisspeltInHelper: (AttributeError, r"there is no field 'pso'; .*did you mean 'pos'\?"),
    mistakes.WritesOutside: (IndexError, r"index [45] is out of bounds for axis 0 with size 4"),
    mistakes.ShowsTooMany: (ValueError, r"shows [3456] entities of type 'Foot Soldier'; allowed: 0 to max=2"),
    mistakes.ObserveWritesThroughHelper: (ValueError, r"observe\(\) changes seen"),
    mistakes.ParameterChangedByHelper: (ValueError, r"the parameter 'width' was changed; parameters are read-only"),
    mistakes.HalfShown: (ValueError, r"observe\(\) .*feature 'x' of entity 1 of type 'Foot Soldier'"),
    mistakes.TimeNotShown: (ValueError, r"observe\(\) .*global feature 'time'"),
    mistakes.ListedTwice: (ValueError, r"obs.Move.actors \[0, 0\] lists an entity twice"),
    mistakes.ForgetsNobody: (IndexError, r"the index -1 is negative; -1 stands for nobody"),
    mistakes.ForgetsTheEmptySet: (ZeroDivisionError, r"division by zero"),
    mistakes.ForgetsTheFullSet: (IndexError, r"index 499 is out of bounds for axis 0 with size 499"),
    mistakes.TakesSetForNumber: (
        ValueError,
        r"truth value of an array.*raised by TakesSetForNumber \(environment 0\) in act",
    ),
    mistakes.NoMaskOfPairs: (
        AttributeError,
        "'Obs' object has no attribute 'Pick'\n.*masked, .*in the declaration add more",
    ),
}


@pytest.mark.parametrize("world", PLAYED, ids=lambda world: world.__name__)
def test_before_its_first_use_a_source_is_played_and_refused_for_what_it_does(world: Any, unjitted: Path) -> None:
    kind, message = PLAYED[world]
    for _ in range(2):  # a refusal is no use
        with pytest.raises(kind) as caught:
            world().make_slots(2)
        said = "\n".join([str(caught.value), *reversed(caught.value.__notes__)])
        assert re.search(message, said, re.S), said
        assert f"found by the check of {world.__name__} before its first use" in caught.value.__notes__[-1]


@pytest.mark.parametrize("world", [mistakes.Sound, mistakes.AsksForNobody, Everything, worlds.Bare, Watching, Depot])
def test_sound_worlds_pass(world: type[CompiledEnvironment], unjitted: Path) -> None:
    world().make_slots(1)


def test_a_source_that_passed_is_not_played_again(unjitted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = []
    monkeypatch.setattr("entity_gym.compiled.environment._play", lambda env: played.append(env.values))
    mistakes.Sound().make_slots(1)
    mistakes.Sound().make_slots(5)
    assert len(played) == 1
    mistakes.Sound(width=4).make_slots(1)  # other parameters may take other paths
    assert [values["width"] for values in played] == [6, 4]
    _build.cache_clear()
    mistakes.Sound().make_slots(1)
    assert len(played) == 2


def test_parameters_beyond_those_that_were_played_are_played_before_an_episode_begins_with_them(unjitted: Path) -> None:
    slots, ids = mistakes.WritesWithinWidth().make_slots(2), np.arange(2)
    slots.configure(ids, [{"width": 5}, {"width": 6}])
    with pytest.raises(IndexError, match="index [678] is out of bounds for axis 0 with size 6") as caught:
        slots.configure(ids, [{"width": 3}, {"width": 9}])
    assert caught.value.__notes__[-1] == "in env_info of WritesWithinWidth (environment 1)"
    assert slots.slots["pending_width"].tolist() == [5, 6]  # not even the first was set
    assert len(list(unjitted.rglob("checked_*"))) == 3  # for widths of 6, 5 and 3


def test_the_check_of_a_slow_world_ends_when_its_time_is_over(unjitted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    monkeypatch.setattr("entity_gym.compiled.environment._check_all_is_written", lambda slots: steps.append(1))
    monkeypatch.setattr("entity_gym.compiled.environment.SECONDS", 0.0)
    mistakes.Sound().make_slots(1)
    assert len(steps) == 100
    monkeypatch.setattr("entity_gym.compiled.environment.SECONDS", 1e9)
    mistakes.Sound(width=4).make_slots(1)
    assert len(steps) == 100 + 1000


def test_debugging_and_plain_environments_go_without_the_check() -> None:
    ordinary(mistakes.TimeNotShown, 1)
    mistakes.TimeNotShown().as_environment()
    mistakes.TimeNotShown().make_slots(1, SlotOptions(compile=False))
