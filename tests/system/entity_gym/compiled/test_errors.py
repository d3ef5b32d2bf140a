"""Mistakes in compiled code: what the compiler finds, and the same refusals as in ordinary Python."""

import re
from pathlib import Path

import pytest

from entity_gym.compiled import CompiledEnvironment
from entity_gym.pools.pool import ThreadedVecEnv
from tests.entity_gym.compiled import mistakes, worlds
from tests.entity_gym.compiled.test_errors import (
    FAULTS,
    RAISED,
    check_exception,
    check_fault,
    check_refusals,
    failed,
    line_of_mistake,
    play_with_fault,
)
from tests.entity_gym.compiled.test_typed_features import REFUSED, check_refusal
from tests.entity_gym.compiled.worlds import Everything, MadeUpError

FILE = Path(mistakes.__file__)


# --- Mistakes that the compiler finds

FOUND = {
    mistakes.MisspeltInHelper: (mistakes.misspelt, r"there is no pso: .*did you mean 'pos'\?"),
    mistakes.UnknownName: (mistakes.UnknownName, r"the name WIDHT is not defined"),
    mistakes.NotAKernel: (mistakes.NotAKernel, r"not_a_kernel cannot be used in compiled code: mark functions .* with @kernel"),
    # the second on Python 3.12, whose bytecode has the assignment on each path
    mistakes.TwoTypes: (mistakes.TwoTypes, r"(the variable start is .* on one path|Tuple.* cannot be stored) .*one type"),
    mistakes.ReturnsTwo: (mistakes.ReturnsTwo, r".*step returns three values: reward, terminated, truncated"),
}  # fmt: skip


@pytest.mark.parametrize("world", FOUND, ids=lambda world: world.__name__)
def test_a_compile_error_is_one_paragraph_with_file_line_and_likely_cause(world: type[CompiledEnvironment]) -> None:
    error = failed(world)
    message = str(error)
    where, expected = FOUND[world]  # type: ignore[index]
    assert re.match(rf"{world.__name__} does not compile: {expected}", message), message
    assert "\n" not in message and len(message) < 1000
    assert (
        "The `full_text` of this error is the compiler's own; compile=False runs the world as ordinary Python"
        in message
    )
    named = re.search(rf"\({re.escape(str(FILE))}, line (\d+): `(.*?)`\)", message)
    assert named is not None, message
    assert named.group(2) == FILE.read_text().splitlines()[int(named.group(1)) - 1].strip()
    assert int(named.group(1)) == line_of_mistake(where)

    assert error.full_text and "does not compile" not in error.full_text  # the compiler's own


# --- Faults while it runs: compiled, as ordinary Python, and in a list of plain environments


def test_an_exception_in_a_thread_arrives_in_the_same_way() -> None:
    with ThreadedVecEnv(Everything, 5, num_threads=2) as pool:
        with pytest.raises(MadeUpError, match="the bridge is out") as caught:
            play_with_fault(pool, worlds.RAISE, culprit=4)
        assert caught.value.__notes__ == ["raised by Everything (environment 4) in act()"]


# --- Actions that were not offered


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_names_the_environment_and_what_was_wrong(fault: int) -> None:
    check_fault(fault, compile=True)


@pytest.mark.parametrize(("fault", "message", "function"), RAISED)
def test_an_exception_keeps_its_type_and_says_which_environment(fault: int, message: str, function: str) -> None:
    check_exception(fault, message, function, compile=True)


def test_actions_that_were_not_offered_are_refused_as_a_list_does_and_nothing_is_stepped() -> None:
    check_refusals(compile=True)


@pytest.mark.parametrize(("parameter", "value", "wrong"), REFUSED)
def test_features_are_refused_as_ordinary_python_refuses_them(parameter: str, value: float, wrong: str) -> None:
    check_refusal(parameter, value, wrong, compile=True)
