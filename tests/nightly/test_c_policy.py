"""`policy.h` beside the modules: every world of the package, 200 drawn combinations of options; and under sanitizers damage."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from entity_gym.registry import list_envs
from tests.c_policy import COMPILER, NO_COMPILER, SANITIZERS, compiled, play
from tests.runtime_policies import CLOSE, Drawn, assert_like_modules, draw_policy, policy_of_world

pytestmark = pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)


def compare(folder: Path, drawn: Drawn, program: Path | None = None) -> None:
    for seed in (None, 1):
        answers = play(drawn, folder / "policy.safetensors", seed, program)
        assert_like_modules(drawn, answers, greedy=seed is None)


@pytest.mark.parametrize("first", range(100, 300, 50))
def test_drawn_combinations_of_options_say_what_the_modules_say(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 50):
        compare(tmp_path, draw_policy(seed, steps=6, most=6))


@pytest.mark.parametrize("name", list_envs())
def test_policies_of_all_worlds_say_what_the_modules_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With drawn weights, log-probs by modules differ from what they are in float64: of tours of twenty cities by up to 1e-4,
    in ConnectFour by up to 1e-5, and so do those of the program."""
    close = {"Route": 1e-4, "ConnectFour": 3e-5}.get(name, CLOSE)
    monkeypatch.setattr("tests.runtime_policies.CLOSE", close)
    for seed in range(2):
        compare(tmp_path, policy_of_world(name, steps=20, seed=seed))


@pytest.mark.parametrize("options", [["-O0"], ["-O3"], ["-O3", "-ffast-math", "-fno-finite-math-only"]], ids=" ".join)
def test_other_optimizations_say_the_same(options: list[str], tmp_path: Path) -> None:
    for seed in range(20):
        compare(tmp_path, draw_policy(seed), compiled(*options))


def test_sanitizers_find_nothing_in_drawn_policies(tmp_path: Path) -> None:
    for seed in range(300, 340):
        compare(tmp_path, draw_policy(seed, steps=3), compiled(*SANITIZERS))


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", [3, 6, 17, 22])
def test_sanitizers_find_nothing_in_5000_damaged_files(seed: int, tmp_path: Path) -> None:
    """Most of them get the hash that belongs to what they hold, as who forges a file writes it."""
    file = tmp_path / "policy.safetensors"
    file.write_bytes(draw_policy(seed).bytes())
    command = [str(compiled(*SANITIZERS, source="policy_damage.c")), str(file), "5000", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1"})
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    refused, by_hash, accepted, acted = map(int, re.findall(r"\d+", done.stdout))
    assert refused + accepted == 5000
    assert by_hash > 100 and refused - by_hash > 1000 and acted > 100  # damage reaches every part
