"""Policy files that are damaged or forged: one clear error each, and no more memory than twice the file."""

from __future__ import annotations

import json
import pickle
import re
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.policy_file import policy_bytes, read_policy_file
from entity_gym.batch.saving import spaces_to_dict
from rogue_net.numpy import FORMAT, Policy, PolicyError
from tests.enn_ppo.forged import with_header
from tests.runtime_policies import Drawn, draw_policy


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    """With relative positions, memory, a set and a chain."""
    for seed in range(200):
        found = draw_policy(seed, steps=1)
        spaces = found.net.action_space
        has = (found.net.config.relpos.kind != "none", found.net.config.memory != "none", "pack" in spaces)
        if all(has) and any(space.after for space in spaces.values()):
            return found
    raise AssertionError("none was drawn")


@pytest.fixture
def file(drawn: Drawn, tmp_path: Path) -> Path:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(drawn.bytes())
    return path


@pytest.fixture
def heavy(drawn: Drawn, file: Path) -> Path:
    """A policy file of 8 MB: it carries a tensor that nobody needs, behind all others."""
    checkpoint = read_policy_file(file)
    return written(file, checkpoint, {**checkpoint.policy, "z": torch.arange(2_000_000.0)})


def written(file: Path, checkpoint: Checkpoint, weights: Any) -> Path:
    file.write_bytes(policy_bytes(replace(checkpoint, policy=weights, is_own=False)))
    return file


def refusal(file: Path) -> str:
    """The message with which a file is refused, after its name."""
    with pytest.raises(PolicyError) as refused:
        Policy.load(file)
    assert str(refused.value).startswith(f"{file} ")
    return str(refused.value).removeprefix(f"{file} ")


CUT = "is no whole policy file: it is no safetensors file, or is cut short"
HASH = "is no whole policy file: its hash does not fit its content"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", CUT),
        (lambda data: data[:7], CUT),
        (lambda data: data[:1000], CUT),
        (lambda data: data[: len(data) // 2], HASH),
        (lambda data: data[:-1], HASH),
        (lambda data: data + b"\0", HASH),
        (lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], HASH),
        (lambda data: data.replace(b'"d_model', b'"d_mod\xffl', 1), "is no whole policy file: 'utf-8' codec can't decode"),
        (lambda data: pickle.dumps({"policy": data}), CUT),
        (lambda data: (2**32 - 1).to_bytes(8, "little") + data[8:], CUT),
        (lambda data: (2**63).to_bytes(8, "little") + data[8:], CUT),
        (lambda data: (4).to_bytes(8, "little") + b"null" + data[8:], "is no whole policy file: 'NoneType'"),
        (lambda data: (2).to_bytes(8, "little") + b"{}" + data[8:], f"has format none of enn-ppo, this runtime reads {FORMAT}"),
        (lambda data: (99_999).to_bytes(8, "little") + b"[" * 99_999, "is no whole policy file: "),
    ],
    ids=["empty", "seven bytes", "cut in the header", "half", "a byte less", "a byte more", "a bit flipped", "no text", "pickle",
         "4 GB", "2^63", "null", "nothing", "deep"],
)  # fmt: skip
def test_a_broken_file_is_one_clear_error_and_takes_no_more_than_twice_its_size(
    damage: Callable[[bytes], bytes], message: str, heavy: Path
) -> None:
    heavy.write_bytes(damage(heavy.read_bytes()))
    tracemalloc.start()
    said = refusal(heavy)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said.startswith(message)
    assert peak < 2 * heavy.stat().st_size + 2**20


def test_a_whole_file_takes_twice_its_size_and_only_once_afterwards(heavy: Path) -> None:
    tracemalloc.start()
    policy = Policy.load(heavy)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = heavy.stat().st_size
    assert policy.net.tensors["z"].nbytes == 8_000_000
    assert peak < 2.1 * size and kept < 1.1 * size


@pytest.mark.parametrize("version", ["7", "9"])
def test_a_file_of_another_version_is_refused_by_name(version: str, file: Path) -> None:
    assert (
        refusal(with_header(file, format=version))
        == f"has format {version}, this runtime reads {FORMAT}: take one of its version"
    )


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        assert refusal(path) == "is no file; give a policy file, which python -m enn_ppo.export RUN FILE writes"


def test_weights_that_are_not_numbers_are_refused_by_their_name(heavy: Path) -> None:
    heavy.write_bytes(heavy.read_bytes()[:-4] + np.float32(np.nan).tobytes())
    assert (
        refusal(with_header(heavy)) == "is no whole policy file: the tensor 'z' is NaN or infinite"
    )  # the hash is right


@pytest.mark.parametrize("place", [[0, 2**40], [-8, 0], [8, 4], [0.5, 1.5], ["0", "4"], [0], None])
def test_tensors_lie_in_the_file(place: Any, file: Path) -> None:
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["value_head.mean"]["data_offsets"] = place
    packed = json.dumps(header).encode()
    file.write_bytes(len(packed).to_bytes(8, "little") + packed + data[8 + length :])
    assert refusal(with_header(file)).startswith("is no whole policy file: ")


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("value_head.project.bias", None, "is missing; the settings ask for float32 of shape (1,)"),
        ("value_head.mean", torch.zeros(3), "is float32 of shape (3,); the settings ask for float32 of shape ()"),
        (
            "value_head.mean",
            torch.zeros((), dtype=torch.float64),
            "is float64 of shape (); the settings ask for float32",
        ),
    ],
    ids=["missing", "shape", "type"],
)
def test_weights_fit_the_settings(name: str, tensor: torch.Tensor | None, message: str, file: Path) -> None:
    checkpoint = read_policy_file(file)
    weights = {**checkpoint.policy, name: tensor}
    said = refusal(written(file, checkpoint, {name: each for name, each in weights.items() if each is not None}))
    assert said.startswith(f"is no policy that can be played: the tensor {name!r} {message}")


def test_every_weight_of_another_shape_is_found(file: Path) -> None:
    checkpoint = read_policy_file(file)
    for name, tensor in checkpoint.policy.items():
        if name.startswith("regression_heads."):
            continue  # of which nothing is asked
        weights = {**checkpoint.policy, name: torch.ones(7, *tensor.shape, dtype=tensor.dtype)}
        assert f"the tensor {name!r} is" in refusal(written(file, checkpoint, weights))


@pytest.mark.parametrize("part", ["config", "spaces"])
@pytest.mark.parametrize("value", [None, [], {}, {"net": None}, {"entities": [{}]}, {"actions": 3}])
def test_forged_settings_and_spaces_are_refused(part: str, value: Any, file: Path) -> None:
    said = refusal(with_header(file, **{part: json.dumps(value)}))
    assert re.match("is no (whole policy file|policy that can be played): .", said)


def test_actions_that_wait_for_each_other_are_refused(file: Path, drawn: Drawn) -> None:
    spaces = spaces_to_dict(drawn.net.obs_space, drawn.net.action_space)
    spaces["actions"][0]["after"] = [spaces["actions"][0]["name"]]
    assert refusal(with_header(file, spaces=json.dumps(spaces))).startswith("is no policy that can be played: ")


def test_a_checkpoint_is_read_without_the_state_of_its_trainer(heavy: Path) -> None:
    checkpoint = replace(read_policy_file(heavy), trainer={"scale": None, "step": torch.full((3,), 5.0)})
    heavy.write_bytes(policy_bytes(checkpoint))
    assert not any(name.startswith("trainer/") for name in Policy.load(heavy).net.tensors)


@pytest.mark.parametrize(
    "change",
    [
        {"d_model": 2**33},
        {"n_layer": 2**62},
        {"relpos": {"kind": "grid", "extent": [0] * 99, "position_features": ["x"] * 99, "interpolate": True}},
    ],
    ids=["width", "layers", "axes"],
)
def test_forged_sizes_take_neither_time_nor_memory(change: dict[str, Any], file: Path) -> None:
    config = json.loads(json.dumps(read_policy_file(file).config))
    relpos = {**config["net"]["relpos"], "exclude_entities": [], **change.get("relpos", {})}
    forged = {"config": json.dumps({**config, "net": {**config["net"], **change, "relpos": relpos}})}
    tracemalloc.start()
    said = refusal(with_header(file, **forged))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said.startswith("is no policy that can be played: the tensor ") and peak < 2**24
