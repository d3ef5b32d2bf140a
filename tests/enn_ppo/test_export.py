"""The command that writes a policy into one file: endings of its name, models, and their comparison with the policy."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enn_ppo import train
from enn_ppo.export import main as export
from tests.enn_ppo.worlds import tiny_config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train(tiny_config(folder, total_timesteps=64, checkpoint_interval=64))
    return folder


def printed(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    """Output of the command, which ends with this exit code."""
    assert export(list(map(str, arguments))) == code
    return "".join(capsys.readouterr())


@pytest.mark.parametrize("name", ["policy.pt", "policy", "policy.onnx.bak"])
def test_other_endings_of_the_files_name_are_refused(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = f"{tmp_path / name} cannot be written: its name must end in .safetensors, for a policy file, or .onnx, for a model"
    assert message in printed(capsys, 2, run, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_policy_file_is_not_verified(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "error: --verify is for models" in printed(capsys, 2, run, tmp_path / "a.safetensors", "--verify")


@pytest.mark.parametrize("library", ["onnx", "onnxruntime"])
def test_a_missing_library_is_an_error_that_says_what_to_install(
    library: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("rogue_net.onnx")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("rogue_net.onnx", None, raising=False)  # so that it is put back
    if library == "onnxruntime":
        pytest.importorskip("onnx")
    monkeypatch.setitem(sys.modules, library, None)
    said = printed(capsys, 2, run, tmp_path / "a.onnx", "--verify")
    assert f'a.onnx cannot be written: a model needs {library}: pip install "enn-ppo[onnx]"' in said


def test_a_model_is_written_and_gives_the_numbers_of_the_policy(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx = pytest.importorskip("onnx")
    file = tmp_path / "new" / "a.onnx"
    assert printed(capsys, 0, run, file) == f"wrote {file}\n"
    assert onnx.load(file).producer_name == "enn-ppo"
    pytest.importorskip("onnxruntime")
    said = printed(capsys, 0, run, file, "--verify", 2)
    found = re.fullmatch(
        r"wrote .*\n(\d+) frames: largest difference of log-probs (\S+), values (\S+); 0 other greedy choices\n", said
    )
    assert found and int(found[1]) >= 2
    assert 0 < float(found[2]) < 1e-5 and 0 <= float(found[3]) < 1e-5
    assert "error: --verify is 0; it must be at least 1" in printed(capsys, 2, run, file, "--verify", 0)


def test_a_model_that_gives_other_numbers_is_found(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    import rogue_net.onnx as exporter

    original = exporter.policy_model

    def wrong(*arguments: Any) -> Any:
        """The largest tensors are twice as large."""
        model = original(*arguments)
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) > 1000:
                tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * 2, tensor.name))
        return model

    monkeypatch.setattr(exporter, "policy_model", wrong)
    said = printed(capsys, 1, run, tmp_path / "a.onnx", "--verify", 1)
    assert float(re.findall(r"log-probs (\S+),", said)[0]) > 1e-5


def test_differences_count_from_where_they_matter() -> None:
    import torch

    from enn_ppo.eval.verify import Difference

    found = Difference(frames=1)
    found.add("values", np.float32(1000.005), torch.tensor(1000.0))
    assert not found and found.largest["values"] == pytest.approx(5e-6, rel=0.02)
    found.add("log-probs", np.array([-1, -0.50002]), torch.tensor([-1, -0.5]))
    assert found
    assert Difference(choices=1)
    unknown = Difference()
    unknown.add("values", np.float32("nan"), torch.tensor(1.0))
    assert unknown
