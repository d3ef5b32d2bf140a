"""scripts/bench_host.py, as small as can be: what it counts is what crosses."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("bench_host")


@pytest.mark.parametrize("how", ["eager", "graph"])
def test_a_step_is_one_copy_to_the_device_and_one_back(
    how: str, bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.json"
    monkeypatch.setattr(
        sys, "argv", ["bench_host", "--num-envs", "16", "--steps", "5", "--how", how, "--json", str(out)]
    )
    bench.main()
    found = {row["name"]: row["value"] for row in json.loads(out.read_text())}
    assert found["transfers"] == 2
    filled_up = found["to_device_bytes"] - found["packed_bytes"]
    assert found["packed_bytes"] > 16 * 100
    assert filled_up > 1000 if how == "graph" else 0 <= filled_up < 16 * found["packed"]
    assert 0 < found["to_host_bytes"] < found["to_device_bytes"]
    assert found["host"] > found["to_device"] > 0 and found["to_host"] > 0 and found["episodes"] > 0
    assert found["operations"] > 0


def test_the_device_is_itself_again_afterwards(bench: ModuleType) -> None:
    from rogue_net.batch import crossing

    with bench.stand_in():
        assert not crossing.is_host(torch.device("cpu"))
    assert crossing.is_host(torch.device("cpu"))
