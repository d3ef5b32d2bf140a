"""A checkpoint's manifest: no damaged file is loaded, no number that is not finite, and what this installation wrote is known."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from enn_ppo.checkpoints import (
    CheckpointError,
    Retention,
    load_checkpoint,
    load_checkpoint_or_agent,
    record_score,
    save_checkpoint,
    write_agent,
)
from enn_ppo.checkpoints.manifest import Manifest, checksum_of, manifest_bytes, parse_manifest
from rogue_net.finite import NotFinite

MOMENTS = {"step": torch.tensor(1.0), "exp_avg": torch.zeros(4), "exp_avg_sq": torch.zeros(4)}
FILES = ["config.yaml", "manifest.json", "policy.safetensors", "spaces.json", "trainer.pt", "value_net.safetensors"]


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


# --- Damage ---


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_anywhere_in_a_file_is_noticed_and_the_file_is_named(tmp_path: Path, name: str) -> None:
    save(tmp_path / "run", 100)
    folder = save(tmp_path / "run", 200)
    assert sorted(os.listdir(folder)) == FILES
    whole = (folder / name).read_bytes()
    for place in {*range(0, len(whole), max(1, len(whole) // 150)), len(whole) - 1}:
        for bit in (0, 5, 7):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            (folder / name).write_bytes(damaged)
            message = rf"step_0*200 is damaged: {name}: .*; the newest complete checkpoint beside it is \S*step_0*100$"
            with pytest.raises(CheckpointError, match=message):
                load_checkpoint(folder)
    (folder / name).write_bytes(whole)
    assert load_checkpoint(folder).step == 200


def test_a_file_that_the_manifest_lists_and_that_is_gone_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path)
    (folder / "value_net.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"is half-written: value_net.safetensors is missing"):
        load_checkpoint(folder)


def test_files_that_the_manifest_does_not_list_are_not_read(tmp_path: Path) -> None:
    folder = save(tmp_path)
    (folder / "critic.safetensors").write_bytes(b"no weights")
    assert list(load_checkpoint(folder).more_weights) == ["value_net"]


def test_a_manifest_that_names_other_folders_or_leaves_a_file_out_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path)
    files = dict(parse_manifest((folder / "manifest.json").read_bytes()).files)
    for changed, message in [
        (files | {"../../secret.safetensors": ""}, "its files must be names of files in the same folder"),
        ({name: each for name, each in files.items() if name != "config.yaml"}, "has no checksum of config.yaml"),
    ]:
        (folder / "manifest.json").write_bytes(manifest_bytes(Manifest(changed)))
        with pytest.raises(CheckpointError, match=f"is damaged: manifest.json: .*{message}"):
            load_checkpoint(folder)


def test_a_new_score_leaves_the_checkpoint_whole_and_signed(tmp_path: Path) -> None:
    folder = save(tmp_path)
    record_score(tmp_path, 100, 0.75)
    loaded = load_checkpoint(folder)
    assert (loaded.seconds, loaded.score, loaded.is_own) == (2.5, 0.75, True)


def test_no_score_is_written_into_a_damaged_manifest(tmp_path: Path) -> None:
    folder = save(tmp_path)
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is not written, for it is damaged: manifest.json: it must have"):
        record_score(tmp_path, 100, 0.75)


# --- Who wrote it ---


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


def test_what_another_installation_has_written_is_not_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path / "run")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    assert not load_checkpoint(folder).is_own  # nobody has a key here
    save(tmp_path / "theirs")
    assert not load_checkpoint(folder).is_own


def test_a_strangers_checkpoint_stays_a_strangers_when_it_gets_a_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "run")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    save(tmp_path / "theirs")
    record_score(tmp_path / "run", 100, 0.9)
    loaded = load_checkpoint(folder)
    assert (loaded.score, loaded.is_own) == (0.9, False)


def test_changed_settings_with_checksums_that_fit_are_not_own(tmp_path: Path) -> None:
    folder = save(tmp_path)
    (folder / "config.yaml").write_text("env:\n  id: os:system\n")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["config.yaml"] = checksum_of((folder / "config.yaml").read_bytes())
    del manifest["checksum"]
    manifest["checksum"] = checksum_of(json.dumps(manifest, sort_keys=True).encode())
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    loaded = load_checkpoint(folder)
    assert (loaded.config, loaded.is_own) == ({"env": {"id": "os:system"}}, False)


def test_where_the_key_cannot_be_written_checkpoints_are_unsigned_and_whole(
    tmp_path: Path, configuration: Path
) -> None:
    configuration.write_text("a file in the way")
    loaded = load_checkpoint(save(tmp_path / "run"))
    assert (loaded.is_own, loaded.score) == (False, 0.5)


def test_a_checkpoint_without_a_manifest_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path)
    (folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="is half-written: manifest.json is missing"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"score": "nan"}, "its score is 'nan'; expected a finite number or null"),
        ({"seconds": True}, "its seconds is True; expected a finite number or null"),
        ({"seconds": -1.0}, "its seconds are -1.0, and cannot be below 0"),
    ],
)
def test_numbers_of_a_manifest_are_finite_numbers(tmp_path: Path, numbers: dict[str, Any], message: str) -> None:
    folder = save(tmp_path)
    files = dict(parse_manifest((folder / "manifest.json").read_bytes()).files)
    (folder / "manifest.json").write_bytes(manifest_bytes(Manifest(files, **numbers)))
    with pytest.raises(CheckpointError, match=f"is damaged: manifest.json: {message}"):
        load_checkpoint(folder)


# --- Numbers that are not finite ---

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
    assert not (tmp_path / "step_000000000200").exists()
    assert load_checkpoint(tmp_path / "latest").path == folder


def test_environments_may_hold_numbers_that_are_not_finite(tmp_path: Path) -> None:
    loaded = load_checkpoint(save(tmp_path, trainer={"worlds": {"best": BROKEN, "time": float("inf")}}))
    assert loaded.trainer["worlds"]["best"].isnan().tolist() == [False, True, False]


def test_numbers_that_are_not_finite_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:  # as if an older version had saved them
        patch.setattr("enn_ppo.checkpoints.saving.check_finite", lambda *given: None)
        weights = save(tmp_path / "weights", policy={"w": BROKEN})
        moments = save(
            tmp_path / "moments",
            trainer={"optimizer": {"state": {0: MOMENTS | {"exp_avg": BROKEN}}, "param_groups": []}},
        )
        agent = write_agent(load_checkpoint(save(tmp_path / "run")), tmp_path / "a.agent")
        broken = load_checkpoint(save(tmp_path / "run"))
        broken.policy["w"][0] = torch.nan
        write_agent(broken, agent)
    with pytest.raises(CheckpointError, match=r"is damaged: policy.safetensors: policy\['w'\] is NaN or infinite"):
        load_checkpoint(weights)
    with pytest.raises(CheckpointError, match=r"is damaged: trainer.pt: trainer\['optimizer'\].* is NaN or infinite"):
        load_checkpoint(moments)
    with pytest.raises(CheckpointError, match=r"policy.safetensors: policy\['w'\] is NaN or infinite"):
        load_checkpoint_or_agent(agent)
