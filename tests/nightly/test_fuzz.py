"""Damaged input is refused with this project's own error, or read as it was: fuzz.py, for half a minute."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from entity_gym.errors import check_parts
from tests.nightly import fuzz

CORPUS = Path(__file__).parent / "corpus"
#: Kind -> number of cases, which together take about half a minute.
CASES = {
    "recordings": 500,
    "wire": 1000,
    "server": 600,
    "command_line": 80,
    "checkpoints": 200,
    "forged": 100,
    "runtime": 400,
    "forged_runtime": 400,
}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fuzz.Kind]:
    return {name: kind(tmp_path_factory.mktemp(name)) for name, kind in fuzz.KINDS.items()}


@pytest.mark.fuzz
@pytest.mark.parametrize("name", fuzz.KINDS)
def test_damage_is_never_silent_and_never_a_library_s_error(name: str, kinds: dict[str, fuzz.Kind]) -> None:
    tally = fuzz.fuzz({name: kinds[name]}, 0, lambda rounds: rounds < CASES[name])[name]
    assert not tally.failures, tally.failures[0]
    assert tally.outcomes["refused"] > CASES[name] / 10  # the damage was noticed, and did not miss what is read


@pytest.mark.parametrize("file", sorted(CORPUS.glob("*/*")), ids=lambda file: f"{file.parent.name}/{file.name}")
def test_what_was_once_found_stays_refused(file: Path, kinds: dict[str, fuzz.Kind]) -> None:
    outcome, reason = fuzz.judge(kinds[file.parent.name], file.read_bytes())
    assert outcome == "refused", reason


@pytest.mark.parametrize("name", fuzz.KINDS)
def test_a_case_is_the_same_whenever_it_is_made(name: str, kinds: dict[str, fuzz.Kind]) -> None:
    assert fuzz.case_of(kinds[name], name, 3, 5) == fuzz.case_of(kinds[name], name, 3, 5)
    cases = {fuzz.case_of(kinds[name], name, 3, number) for number in range(20)}
    assert len(cases) > 10


class Careless(fuzz.Kind):
    """Reads a number, and shows every way to do that badly."""

    def damaged(self, rng: random.Random) -> bytes:
        return rng.choice((b"1", b"2", b"x", b"y"))

    def read(self, data: bytes) -> Any:
        if data == b"y":
            check_parts(["y"], ["1"], "a number")
        if int(data) != 1:
            raise fuzz.Wrong("it was 1")
        return "equal"


def test_the_harness_tells_the_outcomes_apart(tmp_path: Path) -> None:
    careless = Careless(tmp_path)
    assert fuzz.judge(careless, b"1") == ("equal", "")
    assert fuzz.judge(careless, b"2") == ("wrong", "it was 1")
    assert fuzz.judge(careless, b"y") == ("refused", "")
    outcome, reason = fuzz.judge(careless, b"x")
    assert outcome == "uncaught" and "invalid literal for int()" in reason  # a library's words are no refusal
    careless.file = "numbers.txt"
    assert fuzz.judge(careless, b"y") == (
        "uncaught",
        "the message does not name numbers.txt: a number has no part 'y'; allowed: '1'",
    )
