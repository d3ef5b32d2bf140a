"""`net.backend=auto` on CUDA takes the Triton kernels where their checks passed; told with a GPU that is not there."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from rogue_net.kernels import kernel_checks, select
from rogue_net.kernels.kernel_checks import Setup, report_path, why_unchecked, write_report
from tests.rogue_net.backends import make_config

GPU = torch.device("meta")  # stands for a CUDA device
HERE = Setup("9.0", "2.13.0", "3.5.0", "digest")


@pytest.fixture(autouse=True)
def some_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A GPU named "H100", without a report."""
    monkeypatch.setenv(kernel_checks.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(select, "TRITON_DEVICES", {"meta"})
    monkeypatch.setattr(kernel_checks, "gpu_name", lambda device: "H100")
    monkeypatch.setattr(select, "gpu_name", lambda device: "H100")
    monkeypatch.setattr(kernel_checks, "setup_of", lambda device: HERE)
    forget()
    yield
    forget()


def forget() -> None:
    """Forget what this process has read and said."""
    why_unchecked.cache_clear()
    select._passed.cache_clear()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, logger="rogue_net")
    return lambda: [record.getMessage() for record in caplog.records]


def taken(name: str = "auto", precision: str = "fp32") -> select.Choice:
    config = make_config(backend=name, precision=precision)
    return select.select(config, torch.empty(3, 16, device=GPU), drop=False)


def write_entry(name: str = "H100", **changes: object) -> None:
    report_path().parent.mkdir(parents=True, exist_ok=True)
    report_path().write_text(json.dumps({name: {**HERE._asdict(), "problems": [], **changes}}))


def test_without_a_report_auto_takes_torch_and_says_once_why_and_what_to_do(said: Callable[[], list[str]]) -> None:
    for _ in range(3):
        assert taken() == select.Choice("none")
    [line] = said()
    assert "auto takes PyTorch's operations: the Triton kernels have not been checked on this GPU, H100" in line
    assert str(report_path()) in line and "Run scripts/gpu_checks.sh" in line and "net.backend=fused" in line
    assert taken(precision="bf16") == select.Choice("none", "bf16")  # its precision is kept
    assert taken("fused").kernels == "triton"  # asked for
    assert len(said()) == 1


def test_a_passing_report_switches_the_kernels_on_and_that_is_said_once(said: Callable[[], list[str]]) -> None:
    path = write_report(GPU, [])
    assert path == report_path() and path.parent.name == "cache"
    for _ in range(3):
        assert taken().kernels == "triton"
    assert said() == ["net.backend=auto takes the Triton kernels: scripts/gpu_checks.sh passed on H100"]


def test_the_report_is_read_once_per_process() -> None:
    assert taken() == select.Choice("none")
    write_report(GPU, [])
    assert taken() == select.Choice("none")
    forget()
    assert taken().kernels == "triton"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problems": ["the test a failed", "the test b failed"]}, "failed on this GPU, H100: the test a failed"),
        ({"name": "A100"}, "have not been checked on this GPU, H100"),
        ({"capability": "8.0"}, "with compute capability 8.0, and this is 9.0"),
        ({"torch": "2.10.0"}, "with torch 2.10.0, and this is 2.13.0"),
        ({"triton": "3.4.0"}, "with triton 3.4.0, and this is 3.5.0"),
        ({"kernels": "older"}, "have changed since they were checked on this GPU, H100"),
        ({"problems": None}, "is damaged"),
    ],
)
def test_a_report_that_failed_or_is_about_something_else_switches_nothing_on(
    changes: dict[str, object], message: str, said: Callable[[], list[str]]
) -> None:
    write_entry(**changes)  # type: ignore[arg-type]
    assert taken() == select.Choice("none")
    [line] = said()
    assert message in line


@pytest.mark.parametrize("content", ["", "{", "[]", '{"H100": 3}', '{"H100": {}}', '{"H100": null}', "\udcff"])
def test_a_damaged_report_switches_nothing_on_and_is_replaced(content: str, said: Callable[[], list[str]]) -> None:
    report_path().parent.mkdir(parents=True)
    report_path().write_bytes(content.encode(errors="surrogateescape"))
    assert taken() == select.Choice("none")
    [line] = said()
    assert str(report_path()) in line
    write_report(GPU, [])
    forget()
    assert taken().kernels == "triton"


def test_a_report_keeps_the_entries_of_other_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    write_report(GPU, [])
    monkeypatch.setattr(kernel_checks, "gpu_name", lambda device: "A100")
    write_report(GPU, ["the test a failed"])
    assert why_unchecked(GPU) == "the checks of the Triton kernels failed on this GPU, A100: the test a failed"
    forget()
    monkeypatch.setattr(kernel_checks, "gpu_name", lambda device: "H100")
    assert why_unchecked(GPU) is None
    assert [path.name for path in report_path().parent.iterdir()] == [report_path().name]  # nothing is left aside


def test_without_a_gpu_nothing_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert kernel_checks.gpu_name(torch.device("cpu")) is None
    assert why_unchecked(torch.device("cpu")) == "there is no GPU behind cpu"


def test_the_report_is_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kernel_checks.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.setattr("sys.platform", "linux")
    assert report_path() == Path("/caches/rogue_net/gpu_checks.json")


def test_the_digest_is_of_the_kernels_source_files() -> None:
    assert len(kernel_checks.kernels_digest()) == 64
