"""scripts/gpu_checks.py and its report: everything but CUDA itself, on the CPU and as small as can be."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
#: Of every section but the tests: what it must have written.
WRITTEN = {
    "machine": ("peaks", "transfers", "launch_us", "missing"),
    "parity": ("parity",),
    "headline": ("speed", "learning", "fastest"),
    "policy": ("policy", "best"),
    "steps": ("steps",),
    "attention": ("attention",),
    "glue": ("glue",),
    "memory": ("memory",),
}


@pytest.fixture(scope="module")
def scripts() -> Iterator[None]:
    sys.path.insert(0, str(ROOT / "scripts"))
    yield
    sys.path.remove(str(ROOT / "scripts"))


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def path(scripts: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of all sections but the tests, run in this process."""
    results = load("gpu.results")
    path: Path = tmp_path_factory.mktemp("checks") / "results.json"
    for name in WRITTEN:
        section = results.Section(name, results.Results(path), torch.device("cpu"), tiny=True, seconds=300.0)
        section.run(load(load("gpu_checks").SECTIONS[name][1]).measure)
    return path


@pytest.fixture(scope="module")
def found(path: Path) -> dict[str, Any]:
    sections: dict[str, Any] = json.loads(path.read_text())["sections"]
    return sections


@pytest.mark.parametrize("name", WRITTEN)
def test_every_section_runs_to_its_end_on_the_cpu(name: str, found: dict[str, Any]) -> None:
    assert found[name]["status"] == "done", found[name].get("traceback")
    assert all(found[name].get(each) is not None for each in WRITTEN[name])


def test_nothing_goes_unmeasured_but_settings_that_cannot_be(found: dict[str, Any]) -> None:
    for section in found.values():
        assert "out_of_time" not in section
        for row in section.get("not_measured", []):
            assert row["reason"].startswith("ValueError"), row  # the message of a mistake in the settings


def test_the_cpu_agrees_with_itself_exactly(found: dict[str, Any]) -> None:
    exact = [
        row for row in found["parity"]["parity"] if row["precision"] == "fp32"
    ]  # bf16 rounds, where the CPU has it
    assert exact
    for row in exact:
        assert row["log_prob"] == row["entropy"] == row["value"] == row["gradient"] == 0
        assert row["same_actions"] == 1


def test_every_phase_of_an_update_is_found_and_their_times_add_up(found: dict[str, Any]) -> None:
    for row in found["steps"]["steps"]:
        assert row["not_found"] == []
        assert {"environment", "act", "copies to the device", "copies to the host", "minibatches"} <= set(
            row["phases_s"]
        )
        assert all(seconds >= 0 for seconds in row["phases_s"].values())
        assert len(row["kernels"]) == 10 and row["kernels"][0]["us"] > 0


def test_a_rollouts_bytes_are_those_of_its_tensors(found: dict[str, Any]) -> None:
    rows = {row["world"]: row for row in found["memory"]["memory"]}
    for row in rows.values():
        assert row["bytes_per_frame"]["values"] == row["bytes_per_frame"]["rewards"] == 4  # a float32 each
        assert row["bytes_per_frame_all"] == pytest.approx(sum(row["bytes_per_frame"].values()))
    snake = rows["MultiSnake"]  # heads, bodies and food have three numbers, and the frame has one more: its step
    entities = snake["entities_per_frame"] - 1
    assert snake["bytes_per_frame"]["features"] == pytest.approx(4 * (3 * entities + 1))


def test_the_report_has_a_table_of_every_section(path: Path, scripts: None) -> None:
    report = load("gpu_report").report(json.loads(path.read_text()))
    titles = load("gpu_report").TITLES
    for name in WRITTEN:
        part = report.partition(f"### {titles[name]}")[2].partition("###")[0]
        assert "|---|" in part, name
    assert "None" not in report and "nan" not in report


# --- What goes wrong


def test_a_section_that_raises_leaves_what_it_had_and_the_end_of_its_traceback(scripts: None, tmp_path: Path) -> None:
    results = load("gpu.results")

    def measure(section: Any) -> None:
        section.add("table", {"a": 1})
        raise RuntimeError("the device is gone")

    path = tmp_path / "results.json"
    results.Section("policy", results.Results(path), torch.device("cpu"), tiny=True, seconds=9.0).run(measure)
    written = json.loads(path.read_text())["sections"]["policy"]
    assert written["status"] == "failed" and written["table"] == [{"a": 1}]
    assert written["traceback"][-1] == "RuntimeError: the device is gone"
    assert "the device is gone" in load("gpu_report").report(json.loads(path.read_text()))


def test_what_cannot_be_measured_is_left_out_by_name_and_the_next_goes_on(scripts: None, tmp_path: Path) -> None:
    results = load("gpu.results")

    def cannot() -> dict[str, Any]:
        raise ValueError("no kernels for this")

    section = results.Section("x", results.Results(tmp_path / "r"), torch.device("cpu"), tiny=True, seconds=9.0)
    assert section.measured("table", {"width": 3}, cannot) is None
    assert section.measured("table", {"width": 4}, lambda: {"us": float("nan")}) is not None
    section.run(lambda section: None)
    written = json.loads((tmp_path / "r").read_text())["sections"]["x"]
    assert written["not_measured"] == [{"table": "table", "width": 3, "reason": "ValueError: no kernels for this"}]
    assert written["table"] == [{"width": 4, "us": None}]  # JSON has no NaN


def test_without_time_nothing_is_measured_and_that_is_counted(scripts: None, tmp_path: Path) -> None:
    results = load("gpu.results")
    section = results.Section("x", results.Results(tmp_path / "r"), torch.device("cpu"), tiny=True, seconds=0.0)
    for _ in range(3):
        assert section.measured("table", {}, lambda: {"us": 1.0}) is None
    assert section.found["out_of_time"] == {"table": 3} and "table" not in section.found


def test_tests_are_found_by_their_own_mark_and_by_that_of_a_helper(scripts: None) -> None:
    files = load("gpu.suite").files_with_marks()
    assert "tests/enn_ppo/test_cuda.py" in files  # marked itself
    assert "tests/system/rogue_net/test_cuda_parity.py" in files  # by tests/rogue_net/devices.py
    assert "tests/rogue_net/heads/test_noise.py" not in files


def test_outcomes_of_tests_are_read_from_what_pytest_prints_until_it_is_ended(scripts: None) -> None:
    lines = [
        "_________________ ERROR collecting tests/b.py _________________",
        "E   ModuleNotFoundError: No module named 'hydra'",
        "_________________ ERROR collecting tests/c.py _________________",
        "E   SyntaxError: invalid syntax",
        "tests/a.py::test_one PASSED                                   [ 25%]",
        "tests/a.py::test_two[a b-3] FAILED                            [ 50%]",
        "tests/a.py::test_three SKIPPED (needs CUDA)                   [ 75%]",
        "FAILED tests/a.py::test_two[a b-3] - AssertionError: 1 is not 2",
        "ERROR tests/b.py",
        "ERROR tests/c.py - SyntaxError",
        "tests/a.py::test_four ",
    ]
    outcomes = load("gpu.suite").outcomes(lines)
    assert outcomes["passed"] == 1 and outcomes["passed_in"] == {"tests/a.py": 1}
    assert outcomes["failed"] == [
        {"test": "tests/a.py::test_two[a b-3]", "message": "AssertionError: 1 is not 2"},
        {"test": "tests/c.py", "message": "SyntaxError"},
    ]
    assert outcomes["skipped"] == [
        {"test": "tests/a.py::test_three", "message": "needs CUDA"},
        {"test": "tests/b.py", "message": "ModuleNotFoundError: No module named 'hydra'"},
    ]


def test_the_command_writes_one_file_and_a_report_and_goes_on_after_a_process_that_dies(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)}
    # a library that ends the process which imports it: the parity section's only
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, os\nif 'parity' in sys.orig_argv[-20:] and '--only' in sys.orig_argv: os._exit(7)\n"
    )
    command = [str(ROOT / "scripts/gpu_checks.sh"), str(tmp_path / "out"), "--device", "cpu", "--tiny"]
    done = subprocess.run(
        [*command, "--sections", "parity", "machine", "--budget", "100"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr  # not all came to their ends
    sections = json.loads((tmp_path / "out/results.json").read_text())["sections"]
    assert sections["parity"]["status"] == "ended with exit code 7"
    assert sections["machine"]["status"] == "done"
    assert "The machine" in (tmp_path / "out/report.md").read_text()


def test_the_kernels_pass_only_if_their_tests_ran_to_the_end_without_a_failure(scripts: None) -> None:
    suite, report = load("gpu.suite"), load("gpu_report")
    passed = {"failed": [], "exit_code": 1, "passed_in": dict.fromkeys(suite.KERNEL_TESTS, 3)}
    assert suite.kernel_problems(passed) == []  # 1: other files need packages that are missing
    assert all((ROOT / file).exists() for file in suite.KERNEL_TESTS)
    unfinished = {"failed": [], "ended_after": 30.0, "passed_in": {suite.KERNEL_TESTS[0]: 3}}
    ended, missing = suite.kernel_problems(unfinished)
    assert "ended after 30 s" in ended and suite.KERNEL_TESTS[1] in missing
    assert suite.kernel_problems({**passed, "exit_code": -11}) == ["pytest ended with exit code -11"]
    failed = {**passed, "failed": [{"test": "tests/a.py::b", "message": "1 is not 2"}]}
    assert suite.kernel_problems(failed) == ["the test tests/a.py::b failed: 1 is not 2"]
    assert "takes the Triton kernels" in report.of_kernels({"problems": [], "report": "path"})
    assert "PyTorch's operations on this GPU: x." in report.of_kernels({"problems": ["x"], "report": "path"})


# --- Formulas


def test_a_layer_costs_24_d_squared_a_token_and_attention_4_d_a_pair(scripts: None) -> None:
    cost = load("gpu.cost")
    assert cost.trunk_flops(tokens=10, width=32, layers=2) == 10 * 2 * 24 * 32**2
    assert cost.attention_flops([3, 4], width=32, layers=2) == 2 * 4 * 32 * (9 + 16)
    assert cost.trunk_bytes(10, 32, 1) == 10 * 16 * 32 * 4


def test_the_floor_is_the_larger_of_operations_and_bytes(scripts: None) -> None:
    cost = load("gpu.cost")
    slow_memory = cost.floor(cost.Work(flops=2e12, bytes=6e9), tflops=1.0, gigabytes=2.0)
    assert slow_memory.seconds == 3 and slow_memory.larger == "bytes"
    slow_units = cost.floor(cost.Work(flops=8e12, bytes=6e9), tflops=1.0, gigabytes=2.0)
    assert slow_units.seconds == 8 and slow_units.larger == "operations"


def test_learning_does_the_work_of_acting_three_times_and_reads_the_observations_once(scripts: None) -> None:
    cost = load("gpu.cost")
    act = cost.network_work([2, 3], 32, 1, features=12.0, kind="act")
    update = cost.network_work([2, 3], 32, 1, features=12.0, kind="update")
    assert update.flops == 3 * act.flops
    assert update.bytes - 5 * 12 == 3 * (act.bytes - 5 * 12)
