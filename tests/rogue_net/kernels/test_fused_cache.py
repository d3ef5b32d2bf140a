"""Kernels compute where Numba cannot keep them on disk, and one line says so."""

from __future__ import annotations

import errno
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core import caching

from rogue_net.kernels.cpu import compiling
from rogue_net.kernels.cpu.ahead import interrupts_between_kernels
from rogue_net.kernels.cpu.compiling import Count, Floats, address, bind, kernel

ADVICE = (
    "each process compiles them again, which takes some seconds; set NUMBA_CACHE_DIR to a folder that can be written"
)


def twice(numbers: Floats, count: Count) -> None:
    for i in range(count):
        numbers[i] = numbers[i] * np.float32(2)


def thrice(numbers: Floats, count: Count) -> None:
    for i in range(count):
        numbers[i] = numbers[i] * np.float32(3)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What was said of the cache, as if nothing had been said before."""
    compiling.say_not_kept.cache_clear()
    yield lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    compiling.say_not_kept.cache_clear()


def check(function: Callable[..., Any], factor: float) -> None:
    numbers = np.arange(5, dtype=np.float32)
    bind(kernel(function))(address(numbers), 5)
    assert numbers.tolist() == [factor * i for i in range(5)]


@pytest.mark.parametrize(("number", "reading"), [(errno.ENOSPC, False), (errno.EROFS, False), (errno.EACCES, True)])
def test_a_disk_that_cannot_be_used_costs_one_line(
    number: int, reading: bool, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def refuse(*_: object) -> None:
        tried.append(None)
        raise OSError(number, "it cannot be used", f"file {len(tried)}")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", refuse)
    # or as if nothing had been kept before
    monkeypatch.setattr(caching.IndexDataCacheFile, "load", refuse if reading else lambda *_: None)
    check(twice, 2)
    check(thrice, 3)
    assert len(tried) >= 2
    [line] = said()
    assert line.startswith("compiled kernels cannot be kept on disk (it cannot be used)")
    assert line.endswith(ADVICE)


def test_without_any_folder_to_write_to_kernels_are_made_all_the_same(
    said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    check(twice, 2)
    check(thrice, 3)
    [line] = said()
    assert "(Numba finds no folder that can be written)" in line and line.endswith(ADVICE)


@pytest.mark.parametrize("ending", ["*.nbi", "*.nbc"])
def test_damaged_files_are_replaced(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.config, "CACHE_DIR", str(tmp_path))
    bind(kernel(twice))
    damaged = list(tmp_path.rglob(ending))
    assert damaged
    for path in damaged:
        path.write_bytes(b"\x80damaged")
    check(twice, 2)
    again = kernel(twice)
    bind(again)
    assert sum(again.stats.cache_hits.values()) == 1


def test_ctrl_c_takes_effect_between_kernels() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts_between_kernels() as check:
        check()
        signal.raise_signal(signal.SIGINT)
        reached.append("the kernel is compiled")
        check()
        reached.append("the next one")
    assert reached == ["the kernel is compiled"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
