"""What is recorded reads back: every frame as it was, every reward with its own episode, up to the last whole chunk."""

from __future__ import annotations

import errno
import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from enn_ppo import Callback, EnvConfig, Interrupted, PPOConfig, TrainConfig, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.training.environment import bind_environment
from enn_ppo.training.recording.columns import RecordedFrames
from enn_ppo.training.recording.reading import RecordedEpisode, read_all, read_episodes, read_frames, read_header
from enn_ppo.training.recording.recorder import Recorder, RecordingError
from enn_ppo.training.state import TrainState
from entity_gym import Environment
from entity_gym.pools.episodes import Episode
from tests.enn_ppo.recordings import (
    Menagerie,
    RecordedCollector,
    assert_same_frames,
    collector_of,
    net_for,
    record,
    recorder_for,
)
from tests.enn_ppo.test_rollout import TERMINATES, TRUNCATES, SumOfItems
from tests.enn_ppo.worlds import SMALL_BOARD, Copycat, CtrlC, Moment, Scripted, tiny_config
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper


def small_board() -> Environment:
    return PythonMineSweeper(**SMALL_BOARD)


def scripted(path: Path, *scripts: list[Moment], steps: int = 4) -> RecordedCollector:
    """Rollouts of one environment per script are recorded; a frame is worth the sum of its items."""
    envs = iter([Scripted(scripts[0]), *map(Scripted, scripts)])  # the first is only asked for its spaces
    spaces = next(envs)
    collector = collector_of(lambda: next(envs), len(scripts), net=SumOfItems())
    collector.recorder = recorder_for(path, spaces)
    collector.collect(steps)
    return collector


def episodes_of(path: Path, **options: Any) -> list[RecordedEpisode]:
    return list(read_episodes(path, **options))


# --- Frames ---


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**20),
    steps=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    num_envs=st.integers(1, 3),
    most=st.integers(0, 3),
    logits=st.booleans(),
)
def test_what_was_played_reads_back_bit_for_bit(
    seed: int, steps: list[int], num_envs: int, most: int, logits: bool, tmp_path: Path
) -> None:
    """Ragged entities, hidden ones, masks of every kind, and all four kinds of actions; each of them comes and goes."""
    path = tmp_path / f"{seed}_{most}.arrow"
    path.unlink(missing_ok=True)
    collector = collector_of(lambda: Menagerie(most), num_envs, seed)
    collector.recorder = kept = Kept(recorder_for(path, Menagerie(most), logits=logits))
    for each in steps:
        collector.collect(each)
    kept.close()

    found = list(read_frames(path))
    assert [len(chunk) for chunk in found] == [num_envs * each for each in steps]
    for chunk, given_frames in zip(found, kept.frames, strict=True):
        numbered = RecordedFrames(**vars(given_frames), episode=chunk.episode)
        assert_same_frames(chunk, numbered)
        assert (chunk.logits is not None) == logits
    assert_same_frames(read_all(path), RecordedFrames.cat(found))


class Kept:
    """A recorder that also keeps what it is given."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.frames: list[Any] = []
        self.logits = recorder.logits

    def add(self, frames: Any) -> None:
        self.frames.append(frames)
        self._recorder.add(frames)

    def flush(self) -> None:
        self._recorder.flush()

    def close(self) -> None:
        self._recorder.close()


def test_the_policy_finds_the_recorded_log_probs_values_and_logits_again(tmp_path: Path) -> None:
    record(tmp_path / "zoo.arrow", Menagerie, logits=True)
    frames = read_all(tmp_path / "zoo.arrow")
    assert frames.logits is not None
    evaluation = net_for(Menagerie()).evaluate(frames.obs, frames.actions)
    torch.testing.assert_close(evaluation.values, frames.values)
    for name, log_probs in frames.log_probs.items():
        assert len(log_probs.values) > 0
        torch.testing.assert_close(evaluation.log_probs[name], log_probs.values)
        torch.testing.assert_close(
            evaluation.logits[name].reshape(frames.logits[name].values.shape), frames.logits[name].values
        )


def test_recording_changes_nothing_in_what_is_played(tmp_path: Path) -> None:
    alone, recorded = (collector_of(Menagerie, 3, seed=5) for _ in range(2))
    recorded.recorder = recorder_for(tmp_path / "zoo.arrow", Menagerie(), logits=True)
    for _ in range(2):
        one, other = alone.collect(6), recorded.collect(6)
        assert torch.equal(one.frames.rewards, other.frames.rewards) and torch.equal(
            one.frames.values, other.frames.values
        )
        for name, actions in one.frames.actions.items():
            assert torch.equal(actions.values, other.frames.actions[name].values)
            assert torch.equal(one.frames.log_probs[name].values, other.frames.log_probs[name].values)


def test_the_spaces_come_with_the_file(tmp_path: Path) -> None:
    record(tmp_path / "zoo.arrow", Menagerie, logits=True)
    header = read_header(tmp_path / "zoo.arrow")
    assert header.obs_space == Menagerie().obs_space()
    assert header.action_space == Menagerie().action_space()
    assert header.logits


def test_any_program_that_knows_arrow_reads_it(tmp_path: Path) -> None:
    moments = [Moment([1, 2], [7], actors=1), Moment([3], reward=5), Moment([4], reward=6, end="terminated")]
    scripted(tmp_path / "a.arrow", moments, steps=3)
    first, second, third = pa.ipc.open_stream(str(tmp_path / "a.arrow")).read_all().to_pylist()
    names = ("episode", "env", "step", "reward", "done", "truncated", "value")
    assert [first[name] for name in names] == [0, 0, 0, 5, False, False, 3]
    assert [second[name] for name in names] == [0, 0, 1, 6, True, False, 3]
    assert [third[name] for name in names] == [1, 0, 0, 5, False, False, 3]
    assert first["features/Item"] == [[1], [2]] and first["features/Wall"] == [[7]]
    assert second["features/Item"] == [[3]] and second["features/Wall"] == []
    assert first["actors/Switch"] == [0] and first["action/Switch"] == [0] and first["log_prob/Switch"] == [0]
    assert second["actors/Switch"] == [] and second["action/Switch"] == []
    assert first["mask/Switch"] is None  # everything is open


# --- Rewards and episodes ---


def test_a_reward_stands_with_the_frame_whose_actions_earned_it(tmp_path: Path) -> None:
    scripted(tmp_path / "a.arrow", TERMINATES)
    frames = read_all(tmp_path / "a.arrow")
    assert frames.values.tolist() == [1, 2, 3, 4]  # the sums of their items
    assert frames.rewards.tolist() == [10, 20, 30, 40]
    assert frames.terminated.tolist() == [False, True, False, False]
    assert frames.episode.tolist() == [0, 0, 1, 1]
    assert frames.step.tolist() == [0, 1, 0, 1]


def test_an_episode_has_its_own_return_and_not_that_of_the_one_before(tmp_path: Path) -> None:
    """The reward that comes with the first observation of an episode is the last one of the episode before."""
    short_then_long = [
        Moment([1], actors=1),
        Moment([1], actors=1, reward=100, end="terminated"),
        Moment([1], actors=1),
        Moment([1], actors=1, reward=1),
        Moment([1], actors=1, reward=1, end="terminated"),
    ]
    collector = scripted(tmp_path / "a.arrow", short_then_long, steps=6)
    episodes = episodes_of(tmp_path / "a.arrow")
    assert [episode.reward for episode in episodes] == [100, 2, 100, 2]
    assert [len(episode) for episode in episodes] == [1, 2, 1, 2]
    assert collector.recorder is not None


def test_recorded_episodes_are_those_that_the_environments_finished(tmp_path: Path) -> None:
    collector = collector_of(Menagerie, 3)
    collector.recorder = recorder_for(tmp_path / "zoo.arrow", Menagerie())
    finished: list[Episode] = [episode for _ in range(4) for episode in collector.collect(5).stats.episodes]
    recorded = episodes_of(tmp_path / "zoo.arrow")
    assert len(finished) > 8
    assert sorted((e.env_id, e.reward, len(e)) for e in recorded) == sorted(
        (e.env_id, e.reward, e.length) for e in finished
    )
    assert len({int(e.frames.episode[0]) for e in recorded}) == len(recorded)
    for episode in recorded:
        assert episode.frames.step.tolist() == list(range(len(episode)))


def test_returns_by_hand(tmp_path: Path) -> None:
    scripted(tmp_path / "a.arrow", TERMINATES, TRUNCATES)
    frames = read_all(tmp_path / "a.arrow")
    returns = frames.returns(gamma=0.5).reshape(4, 2)
    # terminated: 10 + 20 / 2 and 20; truncated in front of a last observation worth 99: 20 + 99 / 2, and 10 + 69.5 / 2
    assert returns[:2].tolist() == [[20, 44.75], [20, 69.5]]
    assert returns[2:].isnan().all()  # these episodes go on


def test_the_return_of_a_truncated_episode_is_unknown_without_the_value_of_its_last_observation(tmp_path: Path) -> None:
    moments = [Moment([1], actors=1), Moment([2], actors=1, reward=1), Moment([3], actors=1, reward=2, end="truncated")]
    scripted(tmp_path / "a.arrow", moments, steps=2)
    frames = read_all(tmp_path / "a.arrow")
    unknown = replace(frames, final_values=torch.full((2,), torch.nan))
    assert unknown.returns(0.5).isnan().all() and not frames.returns(0.5).isnan().any()
    ended = replace(unknown, terminated=frames.truncated, truncated=frames.terminated)
    assert ended.returns(0.5).tolist() == [1 + 2 / 2, 2]


def test_an_episode_whose_beginning_was_not_recorded_is_not_whole(tmp_path: Path) -> None:
    moments = [Moment([1], actors=1), *[Moment([1], actors=1, reward=1)] * 3]
    moments.append(Moment([1], actors=1, reward=1, end="terminated"))
    collector = collector_of(lambda: Scripted(moments), 1, net=SumOfItems())
    collector.collect(2)
    collector.recorder = recorder_for(tmp_path / "a.arrow", Scripted(moments))
    collector.collect(3)  # the last two steps of an episode, and the first of the next
    assert episodes_of(tmp_path / "a.arrow") == []
    rest, begun = episodes_of(tmp_path / "a.arrow", unfinished=True)
    assert rest.frames.step.tolist() == [2, 3] and not rest.is_whole
    assert rest.frames.returns(1.0).tolist() == [2, 1]  # what is still to come is known nevertheless
    assert begun.frames.step.tolist() == [0] and not begun.is_whole


def test_an_episode_may_span_chunks(tmp_path: Path) -> None:
    moments = [Moment([1], actors=1), *[Moment([1], actors=1, reward=k) for k in (1, 2, 4)]]
    moments.append(Moment([1], actors=1, reward=8, end="terminated"))
    collector = scripted(tmp_path / "a.arrow", moments, steps=1)
    collector.collect(2)
    collector.collect(2)
    assert [len(chunk) for chunk in read_frames(tmp_path / "a.arrow")] == [1, 2, 2]
    (episode,) = episodes_of(tmp_path / "a.arrow")
    assert episode.frames.rewards.tolist() == [1, 2, 4, 8]


def test_episodes_of_several_files_have_different_numbers(tmp_path: Path) -> None:
    files = [tmp_path / "a.arrow", tmp_path / "b.arrow"]
    for file in files:
        scripted(file, TERMINATES)
    assert read_all(files).episode.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [episode.reward for episode in read_episodes(files)] == [30, 30]


# --- Appending and resuming ---


def test_a_file_that_exists_is_appended_to_with_new_episodes(tmp_path: Path) -> None:
    for _ in range(2):
        scripted(tmp_path / "a.arrow", TERMINATES).recorder.close()
    frames = read_all(tmp_path / "a.arrow")
    assert frames.episode.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [episode.reward for episode in read_episodes(tmp_path / "a.arrow")] == [30, 30]


@pytest.mark.parametrize("create", [small_board, Menagerie])
def test_a_resumed_recording_is_cut_to_where_the_run_was_saved_and_equals_the_uninterrupted_one(
    create: Any, tmp_path: Path
) -> None:
    whole, resumed = tmp_path / "whole.arrow", tmp_path / "resumed.arrow"
    record(whole, create, rollouts=5)

    first = collector_of(create, 3)
    first.recorder = recorder_for(resumed, create())
    for number in range(2):
        first.seed_noise(number)
        first.collect(5)
    saved, recording = first.state(), first.recorder.state()
    first.collect(5)  # after the checkpoint: lost, and played again
    first.collect(3)
    first.recorder.close()
    assert resumed.stat().st_size > recording["position"]

    second = collector_of(create, 3)
    assert second.load_state(saved) is None
    second.recorder = recorder_for(resumed, create(), state=recording)
    assert resumed.stat().st_size == recording["position"]
    for number in range(2, 5):
        second.seed_noise(number)
        second.collect(5)
    assert resumed.read_bytes() == whole.read_bytes()


def test_a_run_whose_environments_start_anew_records_new_episodes(tmp_path: Path) -> None:
    collector = scripted(tmp_path / "a.arrow", [Moment([1], actors=1), *[Moment([1], actors=1, reward=1)] * 9])
    state = collector.recorder.state()  # type: ignore[union-attr]
    collector.recorder.close()
    collector.recorder = recorder_for(tmp_path / "a.arrow", Scripted([]), state=state)
    collector.reset()
    collector.collect(1)
    frames = read_all(tmp_path / "a.arrow")
    assert frames.episode.tolist() == [0, 0, 0, 0, 1]
    assert frames.step.tolist() == [0, 1, 2, 3, 0]


def test_what_was_saved_of_another_file_is_no_matter(tmp_path: Path) -> None:
    spaces = Copycat().obs_space(), Copycat().action_space()
    first = Recorder(tmp_path / "a.arrow", *spaces)
    saved = first.state() | {"position": 10**9}
    first.close()
    second = Recorder(tmp_path / "b.arrow", *spaces, state=saved)
    assert second.num_frames == 0


@pytest.mark.parametrize("left", [0, 100])
def test_a_file_that_is_shorter_than_the_run_remembers_is_not_resumed(left: int, tmp_path: Path) -> None:
    collector = scripted(tmp_path / "a.arrow", TERMINATES)
    state = collector.recorder.state()  # type: ignore[union-attr]
    collector.recorder.close()
    os.truncate(tmp_path / "a.arrow", left)
    with pytest.raises(
        ValueError, match=rf"a.arrow has {left} bytes, and had {state['position']} when the run was saved"
    ):
        recorder_for(tmp_path / "a.arrow", Scripted([]), state=state)
    assert (tmp_path / "a.arrow").stat().st_size == left


# --- Faults ---


@pytest.fixture(scope="module")
def three_chunks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A recording of three chunks, and where each ends."""
    path = tmp_path_factory.mktemp("recordings") / "three.arrow"
    collector = collector_of(Menagerie, 3)
    collector.recorder = recorder_for(path, Menagerie())
    ends = []
    for _ in range(3):
        collector.collect(5)
        ends.append(path.stat().st_size)
    return path, ends


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_cut_anywhere_a_recording_reads_up_to_the_last_whole_chunk(
    data: st.DataObject, three_chunks: tuple[Path, list[int]], tmp_path: Path
) -> None:
    path, ends = three_chunks
    end = data.draw(st.one_of(st.sampled_from(ends), st.integers(ends[0], ends[2])))
    whole = sum(each <= end for each in ends)
    missing = ends[min(whole, 2)] - end  # bytes of the next chunk
    tail = data.draw(st.sampled_from([b"", b"\0" * min(7, missing), b"\0" * min(64, missing // 2)]))
    assume(not tail or path.read_bytes()[end : end + len(tail)] != tail)  # else this is no damage
    cut = tmp_path / "cut.arrow"
    cut.write_bytes(path.read_bytes()[:end] + tail)
    rest = end + len(tail) - ends[whole - 1]
    if rest:
        with pytest.warns(UserWarning, match=f"the last {rest:,} bytes"):
            found = read_all(cut)
    else:
        found = read_all(cut)
    assert len(found) == 15 * whole
    recorder_for(cut, Menagerie()).close()
    assert cut.read_bytes() == path.read_bytes()[: ends[whole - 1]]  # what an appended chunk will stand behind


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A recording of two small chunks, and where its header and its chunks end."""
    path = tmp_path_factory.mktemp("recordings") / "small.arrow"
    collector = collector_of(Menagerie, 1)
    collector.recorder = recorder_for(path, Menagerie())
    ends = [path.stat().st_size]
    for _ in range(2):
        collector.collect(2)
        ends.append(path.stat().st_size)
    return path, ends


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_bit_in_the_header_is_refused_and_in_a_chunk_costs_that_chunk_and_those_after_it(
    data: st.DataObject, small: tuple[Path, list[int]], tmp_path: Path
) -> None:
    path, ends = small
    damaged = bytearray(path.read_bytes())
    place, bit = data.draw(st.integers(0, len(damaged) - 1)), data.draw(st.integers(0, 7))
    damaged[place] ^= 1 << bit
    (tmp_path / "damaged.arrow").write_bytes(damaged)
    if place < ends[0]:
        for read in (read_all, read_header):
            with pytest.raises(
                ValueError, match=r"damaged.arrow is not a recording .* or its header is damaged"
            ) as error:
                read(tmp_path / "damaged.arrow")
            assert type(error.value) is ValueError
        return
    whole = 0 if place < ends[1] else 1
    with pytest.warns(
        UserWarning, match=f"the last {len(damaged) - ends[whole]:,} bytes begin with a chunk that is damaged"
    ):
        chunks = list(read_frames(tmp_path / "damaged.arrow"))
    assert len(chunks) == whole
    for chunk, undamaged in zip(chunks, read_frames(path), strict=False):
        assert_same_frames(chunk, undamaged)


def test_a_choice_that_was_renamed_in_the_header_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    record(path, Menagerie)
    content = path.read_bytes()
    place = content.index(b'"choices"')
    renamed = content[:place] + re.sub(rb'\["(\w)', rb'["X', content[place:], count=1)
    assert len(renamed) == len(content) and renamed != content
    path.write_bytes(renamed)
    with pytest.raises(ValueError, match="a.arrow is not a recording .* or its header is damaged"):
        read_header(path)
    with pytest.raises(ValueError, match="a.arrow is not a recording .* or its header is damaged"):
        recorder_for(path, Menagerie())
    assert path.read_bytes() == renamed


@pytest.mark.parametrize("left", [0, 1, 7, 100])
def test_a_file_that_was_cut_off_in_its_header_is_begun_anew(
    left: int, three_chunks: tuple[Path, list[int]], tmp_path: Path
) -> None:
    path = tmp_path / "cut.arrow"
    path.write_bytes(three_chunks[0].read_bytes()[:left])
    record(path, Menagerie)
    assert len(read_all(path)) == 30


def test_a_full_disk_ends_the_recording_with_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    collector = collector_of(Menagerie, 3)
    collector.recorder = recorder_for(path, Menagerie())
    collector.collect(5)
    whole = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 1000, limits[1]))  # in the middle of the next chunk
    try:
        with pytest.raises(
            RecordingError, match=r"recording into .*a.arrow failed: File too large; it holds 15 whole frames"
        ):
            collector.collect(5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == whole
    collector.recorder.close()  # has nothing more to say
    assert path.read_bytes() == whole
    record(path, Menagerie)
    assert len(read_all(path)) == 45


def test_a_disk_that_is_full_from_the_start_says_so(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(RecordingError, match="File too large; it holds 0 whole frames"):
            recorder_for(tmp_path / "a.arrow", Menagerie())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(ValueError, match="a.arrow is empty"):
        read_all(tmp_path / "a.arrow")


# --- In training ---


def recording_config(tmp_path: Path, name: str, **changes: Any) -> TrainConfig:
    """Five updates of 32 frames."""
    board = EnvConfig(kwargs=SMALL_BOARD)
    return tiny_config(tmp_path / name, env=board, record=str(tmp_path / f"{name}.arrow"), **changes)


@pytest.fixture
def nobody_presses() -> Iterator[None]:
    CtrlC.at, CtrlC.acts, CtrlC.presses = 0, 0, 1
    yield
    CtrlC.at = 0


def test_a_training_run_that_was_interrupted_records_what_the_uninterrupted_one_does(
    tmp_path: Path, nobody_presses: None
) -> None:
    train(recording_config(tmp_path, "whole"), env=CtrlC)
    whole = read_all(tmp_path / "whole.arrow")
    assert len(whole) == 160  # and not what only measures the inputs

    config = recording_config(tmp_path, "resumed")
    CtrlC.acts, CtrlC.at = 0, 32 + 32 + 1  # in the second update
    with pytest.raises(Interrupted):
        train(config, env=CtrlC)
    assert len(read_all(tmp_path / "resumed.arrow")) == 64
    # a crash after the checkpoint: what was recorded then is played again
    with open(tmp_path / "resumed.arrow", "ab") as file:
        file.write(b"torn")
    CtrlC.at = 0
    train(replace(config, resume=str(tmp_path / "resumed"), run_dir=None), env=CtrlC)
    assert (tmp_path / "resumed.arrow").read_bytes() == (tmp_path / "whole.arrow").read_bytes()


def test_a_run_that_branches_off_leaves_what_the_other_recorded(tmp_path: Path, nobody_presses: None) -> None:
    config = recording_config(tmp_path, "first", total_timesteps=64)
    train(config, env=CtrlC)
    first = (tmp_path / "first.arrow").read_bytes()
    train(
        replace(config, resume=str(tmp_path / "first"), run_dir=str(tmp_path / "branch"), total_timesteps=96), env=CtrlC
    )
    assert (tmp_path / "first.arrow").read_bytes()[: len(first)] == first
    assert len(read_all(tmp_path / "first.arrow")) == 96


def test_a_disk_that_fills_up_ends_training_with_a_checkpoint_to_go_on_from(
    tmp_path: Path, nobody_presses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = recording_config(tmp_path, "run", checkpoint_interval=1)
    train(recording_config(tmp_path, "whole", checkpoint_interval=1), env=CtrlC)
    really_write, writes = os.write, []

    def write(file: int, data: Any) -> int:
        if os.path.exists(config.record) and os.path.samestat(os.fstat(file), os.stat(config.record)):
            writes.append(len(data))
        if len(writes) == 4:  # the header and two chunks were written
            really_write(file, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return really_write(file, data)

    monkeypatch.setattr("enn_ppo.training.recording.recorder.os.write", write)
    with pytest.raises(
        ValueError, match=r"run.arrow failed: No space left on device; it holds 64 whole frames"
    ) as caught:
        train(config, env=CtrlC)
    last = tmp_path / "run/checkpoints/step_000000000064"
    assert caught.value.__notes__ == [f"saved is {last}: go on with resume={tmp_path / 'run'}"]
    monkeypatch.undo()
    assert len(read_all(tmp_path / "run.arrow")) == 64
    assert load_checkpoint(tmp_path / "run").step == 64
    train(replace(config, resume=str(tmp_path / "run"), run_dir=None), env=CtrlC)
    assert (tmp_path / "run.arrow").read_bytes() == (tmp_path / "whole.arrow").read_bytes()


def test_values_are_recorded_in_rewards_also_where_training_scales_them(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "a", record=str(tmp_path / "a.arrow"), ppo=PPOConfig(normalize="rewards"))
    state = TrainState(
        config, bind_environment(EnvConfig(), lambda: Scripted(TRUNCATES)), torch.device("cpu"), Callback()
    )
    with closing(state):
        state.start()
        state.learn(state.collect(8), state.begin_update())  # from here on a value is not 1 reward
        state.record(None)
        unit = state.learner.value_unit
        rollout = state.collect(8)[""]
    frames = read_all(tmp_path / "a.arrow")
    assert unit != 1.0
    torch.testing.assert_close(frames.values, rollout.frames.values * unit)
    torch.testing.assert_close(frames.final_values, rollout.frames.final_values * unit)
    assert torch.equal(frames.rewards, rollout.frames.rewards)


# --- Mistakes ---


def test_a_run_that_cannot_record_leaves_nothing_in_the_way_of_the_next(tmp_path: Path) -> None:
    taken = tmp_path / "taken.arrow"
    taken.write_bytes(b"something else")
    config = tiny_config(tmp_path / "run", record=str(taken))
    with pytest.raises(ValueError, match="taken.arrow"):
        train(config)
    train(replace(config, record=str(tmp_path / "free.arrow")))


def test_a_file_that_somebody_records_into_is_refused(tmp_path: Path) -> None:
    first = recorder_for(tmp_path / "a.arrow", Copycat())
    with pytest.raises(ValueError, match="another process is recording into .*a.arrow: give each run its own file"):
        recorder_for(tmp_path / "a.arrow", Copycat())
    first.close()
    recorder_for(tmp_path / "a.arrow", Copycat()).close()


def test_a_recording_of_another_world_is_not_appended_to(tmp_path: Path) -> None:
    record(tmp_path / "a.arrow", Menagerie)
    before = (tmp_path / "a.arrow").read_bytes()
    with pytest.raises(ValueError, match=r"other spaces than what would be recorded: entities\['Lamp'\]"):
        recorder_for(tmp_path / "a.arrow", Copycat())
    with pytest.raises(ValueError, match="has no logits, and cannot be appended to with them.*record_logits=false"):
        recorder_for(tmp_path / "a.arrow", Menagerie(), logits=True)
    assert (tmp_path / "a.arrow").read_bytes() == before
    record(tmp_path / "b.arrow", Copycat)
    with pytest.raises(ValueError, match="b.arrow has other spaces than .*a.arrow"):
        read_all([tmp_path / "a.arrow", tmp_path / "b.arrow"])


def test_what_is_no_recording_is_neither_read_nor_written_over(tmp_path: Path) -> None:
    text, table = tmp_path / "notes.txt", tmp_path / "table.arrow"
    text.write_text("my notes about this and that, and much more " * 20)
    columns = pa.record_batch({"height": pa.array([1.0])})
    with pa.ipc.new_stream(str(table), columns.schema) as writer:
        writer.write_batch(columns)
    for path in text, table:
        before, message = path.read_bytes(), f"{path.name} is not a recording of this version of enn-ppo"
        with pytest.raises(ValueError, match=message):
            read_all(path)
        with pytest.raises(ValueError, match=message):
            recorder_for(path, Copycat())
        assert path.read_bytes() == before


def test_a_file_that_is_not_there_or_cannot_be_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="recording .*none.arrow cannot be read: there is no such file"):
        read_all(tmp_path / "none.arrow")
    with pytest.raises(ValueError, match="recording .* cannot be opened: Is a directory"):
        recorder_for(tmp_path, Copycat())


def test_a_recording_of_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enn_ppo.training.recording.columns.FORMAT", 3)
    record(tmp_path / "a.arrow", Copycat)
    monkeypatch.undo()
    with pytest.raises(
        ValueError, match="a.arrow is a recording of format 3, and this version of enn-ppo reads up to 2"
    ):
        read_all(tmp_path / "a.arrow")


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r'pip install "enn-ppo\[record\]"'):
        recorder_for(tmp_path / "a.arrow", Copycat())
