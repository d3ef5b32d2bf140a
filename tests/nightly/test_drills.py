"""A few of each cheap drill of drills.py, and its table."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.enn_ppo.rows import same
from tests.nightly.bad_commands import bad_commands
from tests.processes import run


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [("commands",), ("trainer", "clock"), ("worker", "evaluator"), ("server", "disk")],
    ids=" ".join,
)
def test_a_few_drills_lose_nothing(names: tuple[str, ...]) -> None:
    sizes = ["--kills", "2", "--other-kills", "1", "--commands", "12"]
    held = run("-m", "tests.nightly.drills", *names, *sizes, timeout=3600)
    assert held.returncode == 0, held.stdout + held.stderr
    assert sum(line.startswith("| ") for line in held.stdout.splitlines()) == 1 + len(names)


def test_values_are_the_same_only_bit_for_bit() -> None:
    one = {"w": torch.zeros(2), "a": [np.zeros(2), (1, "x")]}
    assert same(one, {"w": torch.zeros(2), "a": [np.zeros(2), (1, "x")]})
    for other in (
        {"w": torch.zeros(2)},
        {**one, "w": torch.zeros(2, dtype=torch.float64)},
        {**one, "a": [np.array([0.0, -0.0]), (1, "x")]},
        {**one, "a": [np.zeros(2), (1.0, "x")]},
    ):
        assert not same(one, other)


def test_bad_commands_are_of_every_command_and_depend_on_the_seed_alone(tmp_path: Path) -> None:
    chosen = [bad_commands(250, random.Random(3), tmp_path, tmp_path / "run") for _ in range(2)]
    assert chosen[0] == chosen[1]
    assert len({str(command) for command in chosen[0]}) == 250
    commands = {"train", "eval", "serve", "clone", "sweep", "play", "plot", "export"}
    assert {command.name for command in chosen[0]} >= commands
