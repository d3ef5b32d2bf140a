"""The policy file: what its header says, no damaged file is loaded, and what this installation wrote is known."""

from __future__ import annotations

import io
import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from enn_ppo.checkpoints import (
    CheckpointError,
    Retention,
    load_checkpoint,
    record_score,
    save_checkpoint,
    save_policy,
)
from enn_ppo.checkpoints.policy_file import policy_bytes
from rogue_net.finite import NotFinite
from tests.enn_ppo.forged import with_header

MOMENTS = {"step": torch.tensor(1.0), "exp_avg": torch.zeros(4), "exp_avg_sq": torch.zeros(4)}


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has never saved anything."""
    folder = tmp_path / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder


def save(directory: Path, step: int = 100, **changes: Any) -> Path:
    parts: dict[str, Any] = {
        "policy": {"w": torch.arange(6.0)},
        "more_weights": {"value_net": {"v": torch.ones(3)}},
        "config": {"env": {"id": "Xor"}},
        "spaces": {"entities": {"Mine": ["x"]}},
        "trainer": {"optimizer": {"state": {0: MOMENTS}, "param_groups": []}, "scale": None},
        "seconds": 2.5,
        "score": 0.5,
        "retention": Retention(keep_last=9),
    }
    return save_checkpoint(directory, step, **(parts | changes))


def pickled(array: np.ndarray[Any, Any]) -> bytes:
    """An array of objects in NumPy's format."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, (2, 0), allow_pickle=True)
    return buffer.getvalue()


def header_of(file: Path) -> dict[str, str]:
    with safetensors.safe_open(file, "pt") as opened:
        return dict(opened.metadata())


def test_any_safetensors_reader_finds_weights_settings_spaces_and_step(tmp_path: Path) -> None:
    scale = {"running": torch.zeros(1), "count": 4, "mean": 0.0, "squares": 16.0}
    config = {"env": {"id": "Xor"}, "ppo": {"normalize": "rewards"}}
    file = save(tmp_path, config=config, trainer={"scale": scale})
    weights, header = safetensors.torch.load_file(file), header_of(file)
    assert {name: each.tolist() for name, each in weights.items() if not name.startswith("trainer/")} == {
        "w": [0, 1, 2, 3, 4, 5],
        "value_net/v": [1, 1, 1],
    }
    read = {name: json.loads(text) for name, text in header.items() if name not in ("hash", "signature")}
    assert read == {
        "format": 4,
        "step": 100,
        "config": config,
        "spaces": {"entities": {"Mine": ["x"]}},
        "value_unit": 2.0,  # the standard deviation of discounted sums of rewards
        "seconds": 2.5,
        "score": 0.5,
    }


# --- A file of its own


def test_a_copy_of_the_policy_file_has_all_but_the_trainer(tmp_path: Path) -> None:
    whole = load_checkpoint(save(tmp_path / "run"))
    file = save_policy(tmp_path / "run", tmp_path / "new" / "a.policy")
    assert header_of(file).keys() == header_of(whole.path).keys()
    alone = load_checkpoint(save_policy(file, tmp_path / "b.policy"))
    assert (alone.path, alone.trainer, alone.is_own, alone.step) == (tmp_path / "b.policy", {}, True, 100)
    assert alone.more_weights["value_net"]["v"].equal(whole.more_weights["value_net"]["v"])
    assert (alone.config, alone.spaces, alone.value_unit) == (whole.config, whole.spaces, whole.value_unit)


def test_only_a_policy_file_is_replaced(tmp_path: Path) -> None:
    folder = save(tmp_path / "run")
    for name, content in (("game.py", b"import random\n"), ("weights", safetensors.torch.save({"w": torch.ones(1)}))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=f"{name} is there already and is no policy file, so it is not repl"):
            save_policy(folder, tmp_path / name)
        assert (tmp_path / name).read_bytes() == content
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_policy(folder, tmp_path / "game.py" / "x")


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
        (
            {"format": "5"},
            "has format 5, and this version of enn-ppo reads format 4: install the version that has writ",
        ),
        ({"format": None}, "has format none of enn-ppo, and"),
        ({"step": "-1"}, "step is -1, which no trainer has written"),
        ({"step": "7"}, "it belongs to the checkpoint of step 7"),
        ({"config": "[]"}, r"config is \[\], which no trainer has written"),
        ({"config": "[" * 101 + "]" * 101}, "config: it is nested more than 100 deep"),
        ({"spaces": "[" * 100_000}, "spaces: it is nested more than 100 deep"),
        ({"config": '"' + "x" * 2**20 + '"'}, r"its config has 1,048,578 characters, and at most 1,048,576 are read"),
        ({"value_unit": "0"}, "value_unit is 0, which no trainer has written"),
        ({"score": '"nan"'}, "score is 'nan', which no"),
        ({"score": "NaN"}, "score is nan, which no"),
        ({"seconds": "true"}, "seconds is True, which no"),
        ({"seconds": "-1.0"}, "seconds is -1.0, which no"),
        ({"spaces": None}, "its header must have the entries format, step, config"),
        ({"more": "1"}, "its header must have the entries format, step, config"),
    ],
)
def test_a_header_with_a_right_hash_and_other_values_is_refused(
    tmp_path: Path, texts: dict[str, str | None], message: str
) -> None:
    folder = save(tmp_path)
    with_header(folder, **texts)
    with pytest.raises(CheckpointError, match=rf"step_0*100.*{message}"):
        load_checkpoint(folder)


def test_a_header_that_another_reader_could_read_otherwise_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path)
    data = (folder).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = b'{"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},' + data[9 : 8 + length]  # `w` twice
    (folder).write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    with pytest.raises(CheckpointError, match="its header is not written as this version writes it"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is no safetensors file"),
        (b"hello", "it is no safetensors file"),
        (
            safetensors.torch.save({}, {"step": "1"}),
            "has format none of enn-ppo, and this version of enn-ppo reads form",
        ),
    ],
    ids=["empty", "text", "other"],
)
def test_a_file_that_is_no_policy_of_this_version_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.agent").write_bytes(content)
    with pytest.raises(CheckpointError, match=f"a.agent .*{message}"):
        load_checkpoint(tmp_path / "a.agent")


# --- Who wrote it


def test_a_new_score_leaves_the_checkpoint_whole_and_signed_and_a_damaged_one_gets_none(tmp_path: Path) -> None:
    folder = save(tmp_path)
    record_score(tmp_path, 100, 0.75)
    loaded = load_checkpoint(folder)
    assert (loaded.seconds, loaded.score, loaded.is_own) == (2.5, 0.75, True)
    (folder).write_bytes((folder).read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="cannot be written: step_0*100.safetensors: "):
        record_score(tmp_path, 100, 0.75)


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
    folder = save(tmp_path / "run")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    assert not load_checkpoint(folder).is_own  # nobody has a key here
    save(tmp_path / "theirs")
    assert not load_checkpoint(folder).is_own
    record_score(tmp_path / "run", 100, 0.9)
    loaded = load_checkpoint(folder)
    assert (loaded.score, loaded.is_own) == (0.9, False)


def test_changed_settings_with_a_hash_that_fits_are_not_own(tmp_path: Path) -> None:
    folder = save(tmp_path)
    signature = header_of(folder)["signature"]
    with_header(folder, config='{"env": {"id": "os:system"}}', signature=signature)
    loaded = load_checkpoint(folder)
    assert (loaded.config, loaded.is_own) == ({"env": {"id": "os:system"}}, False)
    for text in ("", "ü", "0" * 64):
        with_header(folder, signature=text)
        assert not load_checkpoint(folder).is_own


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
        ({"policy": {"w": BROKEN}}, r"policy\['w'\]"),
        ({"policy": {"w": torch.tensor(float("inf"))}}, r"policy\['w'\]"),
        ({"more_weights": {"value_net": {"v": BROKEN}}}, r"value_net\['v'\]"),
        ({"trainer": {"optimizer": {"state": {0: {"exp_avg": BROKEN}}}}}, r"trainer\['optimizer'\]\['state'\]\[0\]"),
        ({"trainer": {"scale": {"mean": float("nan")}}}, r"trainer\['scale'\]\['mean'\]"),
    ],
)
def test_numbers_that_are_not_finite_are_not_saved(tmp_path: Path, changes: dict[str, Any], where: str) -> None:
    folder = save(tmp_path, 100)
    with pytest.raises(NotFinite, match=rf"^{where}.* is NaN or infinite$"):
        save(tmp_path, 200, **changes)
    assert not (tmp_path / "step_000000000200.safetensors").exists()
    assert load_checkpoint(tmp_path / "latest").path == folder


def test_environments_may_hold_numbers_that_are_not_finite(tmp_path: Path) -> None:
    loaded = load_checkpoint(save(tmp_path, trainer={"worlds": {"best": BROKEN, "time": float("inf")}}))
    assert loaded.trainer["worlds"]["best"].isnan().tolist() == [False, True, False]


def test_numbers_that_are_not_finite_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path)
    broken = replace(load_checkpoint(folder), policy={"w": BROKEN})
    with monkeypatch.context() as patch:  # as if another program had written them
        patch.setattr("enn_ppo.checkpoints.policy_file.check_finite", lambda *given: None)
        (tmp_path / "alone").write_bytes(policy_bytes(broken))
        (folder).write_bytes(policy_bytes(broken))
    for path in (tmp_path / "alone", folder):
        with pytest.raises(CheckpointError, match=r"policy\['w'\] is NaN or infinite"):
            load_checkpoint(path)
    moments = {"optimizer": {"state": {0: MOMENTS | {"exp_avg": BROKEN}}, "param_groups": []}}
    with monkeypatch.context() as patch:
        patch.setattr("enn_ppo.checkpoints.policy_file.check_finite", lambda *given: None)
        save(tmp_path / "other", trainer=moments)
    with pytest.raises(CheckpointError, match=r"trainer\['optimizer'\].* is NaN or infinite"):
        load_checkpoint(tmp_path / "other")


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
        ({"float": "x"}, {}, "it holds the value {'float': 'x'}, which"),
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
