"""Recordings read back: every frame as it was, every reward with its own episode, chunk by chunk."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enn_ppo.training import recording
from enn_ppo.training.frames import Frames
from enn_ppo.training.recording import RecordedFrames, Recorder, read_all
from tests.enn_ppo.recordings import (
    Menagerie,
    RecordedCollector,
    assert_same_frames,
    collector_of,
    episodes_of,
    files_of,
    record,
    recorder_for,
)
from tests.enn_ppo.test_rollout import TERMINATES, TRUNCATES, SumOfItems
from tests.enn_ppo.worlds import Copycat, Moment, Scripted


def scripted(path: Path, *scripts: list[Moment], steps: int = 4) -> RecordedCollector:
    """Rollouts of one environment per script are recorded; a frame is worth the sum of its items."""
    envs = iter([Scripted(scripts[0]), *map(Scripted, scripts)])  # the first is only asked for its spaces
    spaces = next(envs)
    collector = collector_of(lambda: next(envs), len(scripts), net=SumOfItems())
    collector.recorder = recorder_for(path, spaces)
    collector.collect(steps)
    return collector


# --- Frames ---


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**20),
    steps=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    num_envs=st.integers(1, 3),
    most=st.integers(0, 3),
)
def test_frames_read_back_bit_for_bit(seed: int, steps: list[int], num_envs: int, most: int, tmp_path: Path) -> None:
    """Ragged entities, hidden ones, masks of every kind, and all four kinds of actions; each of them comes and goes."""
    path = tmp_path / "a"
    shutil.rmtree(path, ignore_errors=True)
    collector = collector_of(lambda: Menagerie(most), num_envs, seed)
    collector.recorder = recorder_for(path, Menagerie(most))
    played = [collector.collect(each).frames for each in steps]

    assert len(files_of(path)) == len(steps)
    found = read_all(path, (Menagerie().obs_space(), Menagerie().action_space()))
    assert_same_frames(found, RecordedFrames(**vars(Frames.cat(played)), episode=found.episode))


def test_targets_are_recorded(tmp_path: Path) -> None:
    space = replace(Copycat().obs_space(), targets={"goal": 2})
    frames = replace(collector_of(Copycat, 2).collect(3).frames, targets={"goal": torch.arange(12.0).view(6, 2)})
    recorder = Recorder(tmp_path / "a", space, Copycat().action_space())
    recorder.add(frames)
    recorder.flush()
    found = read_all(tmp_path / "a")
    assert found.targets is not None and frames.targets is not None
    assert torch.equal(found.targets["goal"], frames.targets["goal"])


# --- Rewards and episodes ---


def test_recorded_episodes_are_those_that_the_environments_finished(tmp_path: Path) -> None:
    """Episodes span chunks of 5 steps; the reward of an episode's last step comes with the first observation of the next."""
    collector = collector_of(Menagerie, 3)
    collector.recorder = recorder_for(tmp_path / "zoo", Menagerie())
    finished = [episode for _ in range(4) for episode in collector.collect(5).stats.episodes]
    recorded = episodes_of(tmp_path / "zoo")
    assert len(finished) > 8
    assert sorted((int(e.env_id[0]), float(e.rewards.double().sum()), len(e)) for e in recorded) == sorted(
        (e.env_id, e.reward, e.length) for e in finished
    )
    assert all(episode.step.tolist() == list(range(len(episode))) for episode in recorded)


def test_returns_by_hand(tmp_path: Path) -> None:
    scripted(tmp_path / "a", TERMINATES, TRUNCATES)
    frames = read_all(tmp_path / "a")
    returns = frames.returns(gamma=0.5).reshape(4, 2)
    # terminated: 10 + 20 / 2 and 20; truncated in front of a last observation worth 99: 20 + 99 / 2, and 10 + 69.5 / 2
    assert returns[:2].tolist() == [[20, 44.75], [20, 69.5]]
    assert returns[2:].isnan().all()  # these episodes go on
    unknown = replace(frames, final_values=torch.full((8,), torch.nan)).returns(0.5).reshape(4, 2)
    assert unknown[:2, 0].tolist() == [20, 20] and unknown[:2, 1].isnan().all()


def test_several_recordings_are_read_with_new_episodes(tmp_path: Path) -> None:
    for name in "ab":
        scripted(tmp_path / name, TERMINATES)
    assert read_all(tmp_path / "a").episode.tolist() == [0, 0, 1, 1]
    assert read_all([tmp_path / "a", tmp_path / "b"]).episode.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


# --- Faults ---


@pytest.fixture(scope="module")
def three_chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "three"
    record(path, Menagerie, rollouts=3)
    return path


@pytest.fixture
def copy(three_chunks: Path, tmp_path: Path) -> Path:
    return shutil.copytree(three_chunks, tmp_path / "copy")


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "gone", "twice"])
def test_a_damaged_chunk_is_named(damage: str, copy: Path) -> None:
    _, second, _ = sorted(copy.iterdir())
    content = second.read_bytes()
    named = f"chunk {second} of a recording cannot be read: "
    match damage:
        case "cut":
            second.write_bytes(content[:-7])
        case "flipped":
            second.write_bytes(content[:-7] + bytes([content[-7] ^ 1]) + content[-6:])
        case "empty":
            second.write_bytes(b"")
        case "gone":
            second.unlink()
            named = f"recording {copy} is damaged: 000002_.* stands where chunk 1 should be"
        case "twice":
            shutil.copy(second, second.with_name("000001_00000000.safetensors"))
            named = f"recording {copy} is damaged: 000001_.* stands where chunk 2 should be"
    with pytest.raises(ValueError, match=named):
        read_all(copy)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("actors/walk.offsets", lambda tensor: tensor + 1, "actors/walk.offsets do not ascend from 0 to"),
        ("rewards", lambda tensor: tensor[1:], r"rewards is torch.float32 \[14\], and should be torch.float32 \[15\]"),
        ("rewards", lambda tensor: tensor.double(), r"rewards is torch.float64 \[15\]"),
        ("features/Cat.values", lambda tensor: tensor[:, :0], r"features/Cat.values is .* \[.*, 0\], and should be"),
        ("step", None, "step"),
    ],
)
def test_a_forged_chunk_with_the_right_checksum_is_refused(
    name: str, change: Any, message: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = recording.safetensors.torch.load

    def forged(data: bytes) -> dict[str, torch.Tensor]:
        tensors = load(data)
        tensor = tensors.pop(name)
        return tensors if change is None else tensors | {name: change(tensor)}

    monkeypatch.setattr(recording.safetensors.torch, "load", forged)
    with pytest.raises(ValueError, match=f"chunk {min(copy.iterdir())} of a recording cannot be read: .*{message}"):
        read_all(copy)


def test_a_full_disk_is_told_and_leaves_whole_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really_write = recording.replace_file

    def write(path: Path, data: bytes) -> None:
        if path.name.startswith("000002"):
            raise OSError(28, "No space left on device")
        really_write(path, data)

    monkeypatch.setattr(recording, "replace_file", write)
    with pytest.raises(ValueError, match=r"a cannot be written: No space left on device; it holds 2 whole chunks"):
        record(tmp_path / "a", Copycat, rollouts=3)
    assert len(read_all(tmp_path / "a")) == 30


# --- Mistakes ---


def test_a_folder_with_other_files_is_neither_read_nor_written_into(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "notes.txt").write_text("my notes")
    for use in (lambda: read_all(taken), lambda: recorder_for(taken, Copycat())):
        with pytest.raises(ValueError, match="taken is not a recording: it holds notes.txt"):
            use()
    assert os.listdir(taken) == ["notes.txt"]


def test_a_folder_that_holds_a_recording_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "a", Copycat)
    with pytest.raises(ValueError, match="a holds a recording already: remove it, or give another folder"):
        recorder_for(tmp_path / "a", Copycat())


def test_recordings_of_different_worlds_are_not_mixed(tmp_path: Path, three_chunks: Path) -> None:
    record(tmp_path / "b", Copycat)
    with pytest.raises(ValueError, match="b has other spaces than recording .*three"):
        read_all([three_chunks, tmp_path / "b"])


def test_a_recording_that_is_not_there_empty_or_newer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="recording .*none cannot be read: No such file or directory"):
        read_all(tmp_path / "none")
    with pytest.raises(ValueError, match="recording .*file cannot be read: Not a directory"):
        read_all(tmp_path / "file")
    with pytest.raises(ValueError, match="recording .*file cannot be written: File exists"):
        recorder_for(tmp_path / "file", Copycat())
    recorder_for(tmp_path / "empty", Copycat())
    with pytest.raises(ValueError, match="recording .*empty holds no frames"):
        read_all(tmp_path / "empty")
    monkeypatch.setattr(recording, "FORMAT", 6)
    record(tmp_path / "a", Copycat)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="it has format 6, and this version of enn-ppo reads up to 5"):
        read_all(tmp_path / "a")
