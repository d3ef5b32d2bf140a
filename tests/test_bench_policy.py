"""scripts/bench_policy.py and scripts/bench_train.py, as small as can be: what training does is what they measure."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from rogue_net import RogueNetConfig

ROOT = Path(__file__).parents[1]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A function that imports a script."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module


@pytest.fixture
def measured(load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that runs a script with arguments, and returns its measurements."""

    def run(script: str, *arguments: str) -> list[dict[str, Any]]:
        out = tmp_path / "out.json"
        monkeypatch.setattr(sys, "argv", [script, *arguments, "--json", str(out)])
        threads = torch.get_num_threads()
        load(script).main()
        torch.set_num_threads(threads)
        found: list[dict[str, Any]] = json.loads(out.read_text())
        return found

    return run


def test_the_default_section_compares_what_training_takes_with_the_modules(measured: Any) -> None:
    sizes = ["--act-frames", "3", "--update-frames", "5", "--threads", "1"]
    found = measured("bench_policy", "--sections", "default", *sizes, "--rounds", "1", "--seconds", "0")
    rows = {(row["name"], row["settings"]["side"]): row for row in found if "side" in row["settings"]}
    assert rows.keys() == {
        *((f"default_{kind}", side) for kind in ("act", "update") for side in ("compiled", "modules")),
        *((f"default_{kind}_gain", "compiled") for kind in ("act", "update")),
    }
    assert rows["default_act", "compiled"]["settings"]["frames"] == 3
    assert rows["default_update", "modules"]["settings"]["frames"] == 5
    assert all(row["value"] > 0 for row in rows.values())


def test_the_sizes_are_those_of_training_by_default(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, seen = load("bench_policy"), {}
    monkeypatch.setattr(bench, "bench_default", lambda given: seen.update(vars(given)) or [])
    monkeypatch.setattr(sys, "argv", ["bench_policy", "--sections", "default"])
    bench.main()
    assert (seen["act_frames"], seen["update_frames"]) == (128, 512)


def test_a_policy_acts_and_learns_by_compiled_programs_where_training_does(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = load("policy_cases")
    frames = cases.ragged_frames("", [2, 3, 4])
    compiled, modules = (
        cases.Policy(frames, RogueNetConfig()),
        cases.Policy(frames, RogueNetConfig(backend="reference")),
    )
    assert compiled.compiled and not modules.compiled
    calls: list[str] = []
    learn = cases.learn_minibatch
    monkeypatch.setattr(cases, "learn_minibatch", lambda *given: [calls.append("autograd"), learn(*given)])
    for policy in (compiled, modules):
        policy.act()
        policy.update()
    assert calls == ["autograd"]  # of the modules alone
    assert compiled.net._program is not None and modules.net._program is None
    compiled.autograd()
    assert len(calls) == 2


def test_steps_of_the_compiled_program_change_the_parameters(load: Callable[[str], ModuleType]) -> None:
    cases = load("policy_cases")
    policy = cases.Policy(cases.ragged_frames("", [2, 3, 4]), RogueNetConfig())
    before = [parameter.detach().clone() for parameter in policy.net.parameters()]
    for _ in range(3):
        policy.update()
    policy._within.close()  # brings them back to the modules
    assert any(not torch.equal(a, b) for a, b in zip(before, policy.net.parameters(), strict=True))


# --- bench_train.py


def test_training_prints_its_fixed_costs_and_the_share_of_a_second_core(measured: Any) -> None:
    arguments = [
        "--num-envs",
        "4",
        "--steps",
        "4",
        "--batch-size",
        "8",
        "--updates",
        "2",
        "--threads",
        "1",
        "--device",
        "cpu",
    ]
    found = {row["name"]: row for row in measured("bench_train", *arguments)}
    assert {"steps_per_second", "share_update", "second_core", "fixed_act", "fixed_step"} <= found.keys()
    assert found["fixed_act"]["unit"] == found["fixed_step"]["unit"] == "ms"
    assert 0 < found["fixed_act"]["value"] < 1000 and 0 < found["fixed_step"]["value"] < 1000
    assert 0 <= found["second_core"]["value"] < 0.5  # one thread has no second core


def test_a_second_core_is_used_where_other_threads_compute_as_long_as_the_learning_one(
    load: Callable[[str], ModuleType],
) -> None:
    bench = load("bench_train")
    assert bench.second_core([(1.0, 1.0), (3.0, 3.0)]) == 1.0
    assert bench.second_core([(2.0, 0.0)]) == 0.0
    assert bench.second_core([(1.0, 0.5), (1.0, 0.0)]) == 0.25
    assert bench.second_core([(1.0, -1e-6)]) == 0.0
