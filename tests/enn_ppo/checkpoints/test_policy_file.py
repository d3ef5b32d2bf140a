"""The policy file: everything comes back exactly, no damaged file is loaded, and what this installation wrote is known."""

from __future__ import annotations

import enum
import hashlib
import hmac
import io
import json
import os
import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from enn_ppo import TrainConfig
from enn_ppo.checkpoints import CheckpointError, load_checkpoint, record_score, save_policy
from enn_ppo.checkpoints.policy_file import policy_bytes
from enn_ppo.checkpoints.trainer_state import decode, encode
from enn_ppo.settings.schema import from_dict, to_dict
from entity_gym.batch.saving import spaces_from_dict, spaces_to_dict
from rogue_net import RogueNet
from rogue_net.finite import NotFinite
from tests.enn_ppo.forged import MOMENTS, save, with_header

PAGE = (Path(__file__).parents[3] / "docs" / "training.md").read_text("utf-8").split("### The policy file\n")[1]


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has never saved anything."""
    folder = tmp_path / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder


def round_trip(directory: Path, value: Any) -> Any:
    return load_checkpoint(save(directory, 0, trainer={"value": value})).trainer["value"]


def metadata_of(file: Path) -> dict[str, str]:
    with safetensors.safe_open(file, "pt") as opened:
        return dict(opened.metadata())


def test_the_page_describes_a_file_that_is_written(tmp_path: Path, configuration: Path) -> None:
    """Every key of the metadata with its type, the spaces, the network's settings, and all tensors."""
    example = json.loads(PAGE.split("<!-- policy file -->\n```json\n")[1].split("```")[0])
    obs_space, action_space = spaces_from_dict(example["spaces"])
    config = TrainConfig(net=from_dict(TrainConfig, {"env": {"id": "Xor"}, **example["config"]}).net)
    policy, value_net = (RogueNet(config.net, obs_space, action_space).state_dict() for _ in range(2))
    spaces = spaces_to_dict(obs_space, action_space)
    file = save(tmp_path, 12800, policy=policy, value_net=value_net, config=to_dict(config), spaces=spaces)

    metadata, rows = metadata_of(file), re.findall(r"^\| `(\w+)` \| (.*?) \| .* \| (.*) \|$", PAGE, re.MULTILINE)
    assert {name for name, *_ in rows} == metadata.keys()
    types = {"integer": int, "number": float, "object": dict}
    for name, kind, shown in rows[:5]:
        assert type(json.loads(metadata[name])) is types[kind.split()[0]], name
        assert shown == "below" or type(json.loads(shown.strip("`"))) is types[kind.split()[0]], name
    assert json.loads(metadata["spaces"]) == example["spaces"]
    assert json.loads(metadata["config"])["net"] == example["config"]["net"]
    content, key = file.read_bytes(), (configuration / "enn_ppo" / "key").read_bytes()

    def signed(data: bytes) -> hmac.HMAC:
        return hmac.new(key, hashlib.sha256(data).hexdigest().encode(), hashlib.sha256)

    for name, of in (("hash", hashlib.sha256), ("signature", signed)):
        content = content.replace(metadata[name].encode(), b"0" * 64)
        assert of(content).hexdigest() == metadata[name]

    told = re.findall(r"^\| (`.*\*`) \|", PAGE.split("| Tensor | |")[1], re.MULTILINE)
    patterns = [
        re.escape(name).replace("<i>", r"\d+").replace(r"\*", ".+")
        for row in told
        for name in re.findall("`(.*?)`", row)
    ]
    names = list(safetensors.torch.load_file(file))
    assert all(any(re.fullmatch(pattern, name) for pattern in patterns) for name in names)
    assert all(any(re.fullmatch(pattern, name) for name in names) for pattern in patterns)


def test_all_parts_come_back_in_their_order(tmp_path: Path) -> None:
    tied, config = torch.arange(4.0), {"zebra": 1e-05, "ant": [2]}
    loaded = load_checkpoint(save(tmp_path, 12800, policy={"a": tied, "b": tied}, config=config))
    assert (loaded.path, loaded.step) == (tmp_path / "step_000000012800.safetensors", 12800)
    assert {name: each.tolist() for name, each in loaded.policy.items()} == dict.fromkeys("ab", [0, 1, 2, 3])
    assert loaded.value_net["v"].tolist() == [1, 1, 1]
    assert list(loaded.config.items()) == [("zebra", 1e-05), ("ant", [2])]
    assert loaded.spaces == {"entities": {"Mine": ["x"]}}
    assert (loaded.score, loaded.is_own) == (0.5, True)


def test_a_copy_has_all_but_the_trainer(tmp_path: Path) -> None:
    whole = load_checkpoint(save(tmp_path / "run"))
    file = save_policy(tmp_path / "run", tmp_path / "new" / "a.safetensors")
    alone = load_checkpoint(save_policy(file, tmp_path / "b.safetensors"))
    assert (alone.path, alone.trainer, alone.is_own, alone.step) == (tmp_path / "b.safetensors", {}, True, 100)
    assert alone.value_net["v"].equal(whole.value_net["v"])
    assert (alone.config, alone.spaces) == (whole.config, whole.spaces)


def test_only_a_policy_file_is_replaced_and_no_other_kind_of_file_is_written(tmp_path: Path) -> None:
    file, other = save(tmp_path / "run"), tmp_path / "weights.safetensors"
    safetensors.torch.save_file({"w": torch.ones(1)}, other)
    content = other.read_bytes()
    with pytest.raises(
        CheckpointError, match="weights.safetensors is there already and is no policy file, so it is not"
    ):
        save_policy(file, other)
    assert other.read_bytes() == content
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_policy(file, other / "x.safetensors")
    for name in ("a.onnx", "a.js", "a"):
        with pytest.raises(CheckpointError, match=f"{name} cannot be written: a policy is a safetensors file"):
            save_policy(file, tmp_path / name)
        assert not (tmp_path / name).exists()


# --- The trainer's state


def test_plain_values_keep_their_types(tmp_path: Path) -> None:
    value = {1: (1, [2.5, None, True, "ü"], ()), "empty": {}, None: b"\x00\xff", "nested": [({"a": (1,)},)]}
    value["large"] = [1 << 1999, -(1 << 128), float("inf"), float("-inf")]
    result = round_trip(tmp_path, value)
    assert result == value
    assert type(result[1]) is tuple and type(result[1][1][2]) is bool and type(result["nested"][0]) is tuple


DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(),
    hnp.datetime64_dtypes(),
    hnp.unicode_string_dtypes(max_len=3),
    hnp.array_dtypes(allow_subarrays=True),
)


@settings(max_examples=60)
@given(hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)), st.booleans())
def test_every_array_comes_back_bit_for_bit(array: np.ndarray[Any, Any], transposed: bool) -> None:
    array = array.T if transposed else array
    tensors: list[torch.Tensor] = []
    stored = json.loads(json.dumps(encode({"a": array}, "trainer", tensors)))
    result = decode(stored, dict(enumerate(tensors)))["a"]
    assert type(result) is np.ndarray
    assert (result.dtype, result.shape, result.flags.fnc) == (array.dtype, array.shape, array.flags.fnc)
    assert result.tobytes() == array.tobytes()
    assert result.flags.writeable and result.flags.owndata


@pytest.mark.parametrize("scalar", [np.float32(0.1), np.uint64(2**64 - 1), np.bool_(True), np.str_("ab")])
def test_a_numpy_scalar_comes_back_as_one(tmp_path: Path, scalar: np.generic) -> None:
    result = round_trip(tmp_path, scalar)
    assert type(result) is type(scalar) and result == scalar


class Pair(NamedTuple):
    x: int
    y: int


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, {"board": np.array([None])}], r"\[1\]\['board'\] is numpy.ndarray: what can be stored .* without objects"),
        ([{1, 2}], r"\[0\] is builtins.set: what can be stored are lists"),
        (Colour.RED, " is .*Colour: what can be stored"),
        (Pair(1, 2), " is .*Pair: what can be stored"),
        (np.ma.masked_array([1], [True]), " is numpy.*MaskedArray: what can be stored"),
        ({(1, 2): 3}, " is builtins.dict: what can be stored .* dicts with plain keys"),
        (torch.eye(2).to_sparse(), " is torch.Tensor: what can be stored .* dense tensors"),
        (1 << 2000, " is builtins.int: what can be stored .*int of at most 2000 bits"),
    ],
)
def test_a_value_that_would_not_come_back_is_refused_by_its_path(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"trainer\['a'\]{message}"):
        save(tmp_path / "checkpoints", trainer={"a": value})
    assert not (tmp_path / "checkpoints").exists()


def pickled(array: np.ndarray[Any, Any]) -> bytes:
    """An array of objects in NumPy's format."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, (2, 0), allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("values", "tensors", "message"),
    [
        ({"set": 0}, {}, "it holds the value {'set': 0}, which no trainer has written"),
        ({"array": 0}, {"0": np.lib.format.magic(2, 0)}, "EOF: reading array header"),
        ({"array": 0}, {"0": pickled(np.array([None]))}, "Object arrays cannot be loaded when allow_pickle=False"),
        (
            {"dict": [["a", {"tensor": 0}], ["b", {"tensor": 0}]]},
            {"0": b"x"},
            "it holds the value {'tensor': 0}, which",
        ),
        ([1], {}, "the trainer's state is no mapping"),
    ],
)
def test_a_forged_state_of_a_trainer_is_data_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: Any, tensors: dict[str, bytes], message: str
) -> None:
    forged = {"values": json.dumps(values).encode(), **tensors}
    stored = {f"trainer/{name}": torch.tensor(list(data), dtype=torch.uint8) for name, data in forged.items()}
    with monkeypatch.context() as patch:
        patch.setattr("enn_ppo.checkpoints.policy_file._trainer_tensors", lambda trainer: stored)
        save(tmp_path)
    with pytest.raises(CheckpointError, match=f"is no whole checkpoint or policy file: .*{message}"):
        load_checkpoint(tmp_path)


# --- Damage


def test_a_changed_byte_anywhere_in_a_file_is_noticed_and_the_file_is_named(tmp_path: Path) -> None:
    save(tmp_path / "run", 100)
    file = save(tmp_path / "run", 200)
    whole = file.read_bytes()
    for place in {*range(0, len(whole), max(1, len(whole) // 150)), len(whole) - 1}:
        for bit in (0, 5, 7):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            file.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=rf"{file.name}.*; the newest .* is \S*step_0*100.safetensors$"):
                load_checkpoint(file)
    for part in (0.0, 0.5, 0.9):
        file.write_bytes(whole[: int(len(whole) * part)])
        with pytest.raises(CheckpointError, match=f"{file.name} is no whole checkpoint or policy file: "):
            load_checkpoint(tmp_path / "run" / "latest")
    file.write_bytes(whole)
    assert load_checkpoint(file).step == 200


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"format": None}, "has format none of enn-ppo, and this version of enn-ppo reads format 8"),
        ({"step": "-1"}, "step is -1, which no trainer has written"),
        ({"step": "7"}, "it belongs to the checkpoint of step 7"),
        ({"config": "[]"}, r"config is \[\], which no trainer has written"),
        ({"config": "[" * 101 + "]" * 101}, "config: it is nested more than 100 deep"),
        ({"spaces": "[" * 100_000}, "spaces: it is nested more than 100 deep"),
        ({"config": '"' + "x" * 2**20 + '"'}, r"its config has 1,048,578 characters, and at most 1,048,576 are read"),
        ({"score": "NaN"}, "score is nan, which no"),
        ({"score": "true"}, "score is True, which no"),
        ({"spaces": None}, "its metadata must have the entries format, step, config"),
        ({"more": "1"}, "its metadata must have the entries format, step, config"),
    ],
)
def test_metadata_with_a_right_hash_and_other_values_are_refused(
    tmp_path: Path, texts: dict[str, str | None], message: str
) -> None:
    file = save(tmp_path)
    with_header(file, **texts)
    with pytest.raises(CheckpointError, match=rf"step_0*100.*{message}"):
        load_checkpoint(file)


# --- Who wrote it


def test_the_key_is_random_and_for_the_user_alone(
    tmp_path: Path, configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_checkpoint(save(tmp_path / "run")).is_own
    key = configuration / "enn_ppo" / "key"
    assert len(key.read_bytes()) == 32
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert os.listdir(key.parent) == ["key"]
    before = key.read_bytes()
    save(tmp_path / "run", 200)
    assert key.read_bytes() == before
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    save(tmp_path / "theirs")
    assert (tmp_path / "another user" / "enn_ppo" / "key").read_bytes() != before


def test_what_another_installation_has_written_stays_a_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save(tmp_path / "run")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    assert not load_checkpoint(file).is_own  # nobody has a key here
    save(tmp_path / "theirs")
    assert not load_checkpoint(file).is_own
    record_score(tmp_path / "run", 100, 0.9)
    loaded = load_checkpoint(file)
    assert (loaded.score, loaded.is_own) == (0.9, False)


def test_changed_settings_with_a_hash_that_fits_are_not_own(tmp_path: Path) -> None:
    file = save(tmp_path)
    signature = metadata_of(file)["signature"]
    with_header(file, signature=signature)
    assert load_checkpoint(file).is_own  # a signature holds for the same content
    with_header(file, config='{"env": {"id": "os:system"}}', signature=signature)
    loaded = load_checkpoint(file)
    assert (loaded.config, loaded.is_own) == ({"env": {"id": "os:system"}}, False)
    for text in ("", "ü", "0" * 64):
        with_header(file, signature=text)
        assert not load_checkpoint(file).is_own


def test_where_the_key_cannot_be_written_checkpoints_are_unsigned_and_whole(
    tmp_path: Path, configuration: Path
) -> None:
    configuration.write_text("a file in the way")
    loaded = load_checkpoint(save(tmp_path / "run"))
    assert (loaded.is_own, loaded.score) == (False, 0.5)


# --- Numbers that are not finite

BROKEN = torch.tensor([1.0, float("nan"), 2.0])


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"policy": {"w": torch.tensor(float("inf"))}}, r"policy\['w'\]"),
        ({"value_net": {"v": BROKEN}}, r"value_net\['v'\]"),
        (
            {"trainer": {"optimizer": {"state": {0: MOMENTS | {"exp_avg": BROKEN}}}}},
            r"trainer\['optimizer'\]\['state'\]\[0\]\['exp_avg'\]",
        ),
        ({"trainer": {"scale": {"mean": float("nan")}}}, r"trainer\['scale'\]\['mean'\]"),
    ],
)
def test_numbers_that_are_not_finite_are_neither_saved_nor_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], where: str
) -> None:
    file = save(tmp_path, 100)
    with pytest.raises(NotFinite, match=rf"^{where}.* is NaN or infinite$"):
        save(tmp_path, 200, **changes)
    assert load_checkpoint(tmp_path / "latest").path == file
    with monkeypatch.context() as patch:  # as if another program had written them
        patch.setattr("enn_ppo.checkpoints.policy_file.check_finite", lambda *given: None)
        file.write_bytes(policy_bytes(replace(load_checkpoint(file), **changes)))
    with pytest.raises(CheckpointError, match=f"{where}.* is NaN or infinite"):
        load_checkpoint(file)


def test_environments_may_hold_numbers_that_are_not_finite(tmp_path: Path) -> None:
    loaded = load_checkpoint(save(tmp_path, trainer={"worlds": {"best": BROKEN, "time": float("inf")}}))
    assert loaded.trainer["worlds"]["best"].isnan().tolist() == [False, True, False]
