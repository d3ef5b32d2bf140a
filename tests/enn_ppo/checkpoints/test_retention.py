"""Retention of checkpoints: by the rules alone, and in a run directory, whose scores outlive the run."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_ppo.checkpoints import (
    CheckpointError,
    load_checkpoint,
    record_score,
    resolve_checkpoint,
    step_file,
    step_files,
)
from enn_ppo.checkpoints.folder import best_of, to_remove
from tests.enn_ppo.forged import save


def staying(
    scores: Mapping[int, float | None], now: int, keep_last: int = 1, protected: Collection[int] = ()
) -> list[int]:
    return sorted(scores.keys() - to_remove(scores, now, keep_last, protected))


FIVE = {100: 0.1, 200: 0.9, 300: 0.9, 400: None, 500: 0.5}


def test_the_newest_the_best_and_the_protected_ones_stay() -> None:
    assert staying(FIVE, 500) == [300, 500]  # of equal ones the later
    assert staying(FIVE, 500, keep_last=2) == [300, 400, 500]
    assert staying(FIVE, 500, protected=[100, 7]) == [100, 300, 500]


def test_what_was_abandoned_by_going_back_goes() -> None:
    assert staying(FIVE, 200, keep_last=3) == [100, 200]
    assert staying(FIVE, 100) == [100]


SCORES = st.one_of(st.none(), st.floats(allow_nan=False), st.sampled_from([0.0, 1.0]))


#: Step -> score of the checkpoints of a run.
RUNS = st.dictionaries(st.integers(0, 100), SCORES, min_size=1, max_size=12)
KEPT = st.integers(1, 5), st.sets(st.integers(0, 100), max_size=3)


@given(RUNS, *KEPT, st.data())
def test_the_last_and_the_best_stay_and_removing_again_in_any_order_removes_nothing(
    run: dict[int, float | None], keep_last: int, protected: set[int], data: st.DataObject
) -> None:
    now = data.draw(st.sampled_from(list(run)))
    removed = to_remove(run, now, keep_last, protected)
    assert now not in removed and removed <= run.keys() and not removed & protected
    assert len(run.keys() - removed) >= min(sum(step <= now for step in run), keep_last)
    assert to_remove(dict(reversed(run.items())), now, keep_last, protected) == removed
    assert to_remove({step: run[step] for step in run.keys() - removed}, now, keep_last, protected) == set()
    best = best_of({step: score for step, score in run.items() if step <= now})
    assert not best or best[0] not in removed


@given(RUNS, *KEPT)
def test_removing_after_every_save_leaves_what_removing_once_would(
    run: dict[int, float | None], keep_last: int, protected: set[int]
) -> None:
    there: dict[int, float | None] = {}
    for step in sorted(run):
        there[step] = run[step]
        for each in to_remove(there, step, keep_last, protected):
            del there[each]
    assert there.keys() == run.keys() - to_remove(run, max(run), keep_last, protected)


# --- In a folder ---


def steps(directory: Path) -> list[int]:
    return sorted(step for step, _ in step_files(directory))


def best(directory: Path) -> int | None:
    try:
        return load_checkpoint(directory / "best").step
    except CheckpointError:
        return None


@pytest.mark.parametrize("score", [None, float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_not_known_and_best_says_so(tmp_path: Path, score: float | None) -> None:
    assert load_checkpoint(save(tmp_path, score=score)).score is None
    with pytest.raises(CheckpointError, match="no checkpoint .*best: none of those in .* has a score yet"):
        load_checkpoint(tmp_path / "best")


def test_the_best_stays_and_is_found_under_its_name(tmp_path: Path) -> None:
    for step, score in ((100, 0.5), (200, 0.9), (300, 0.7), (400, 0.9), (500, 0.1), (600, None)):
        save(tmp_path, step, keep_last=1, score=score)
    assert (steps(tmp_path), best(tmp_path)) == ([400, 600], 400)
    assert resolve_checkpoint(tmp_path / "best") == step_file(tmp_path, 400)
    assert load_checkpoint(tmp_path).step == 600
    save(tmp_path, 700, keep_last=1, score=1.0)
    assert steps(tmp_path) == [700]


def test_after_going_back_what_was_abandoned_is_not_the_best_and_a_protected_one_stays(tmp_path: Path) -> None:
    for step, score in ((100, 0.1), (200, 0.9), (300, 0.5)):
        save(tmp_path, step, score=score)
    save(tmp_path, 150, keep_last=1, protected=[100], score=0.2)
    assert (steps(tmp_path), best(tmp_path)) == ([100, 150], 150)


def test_a_score_may_come_later_and_counts_from_then_on(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save(tmp_path, step, score=None)
    for step, score, expected in ((200, 0.5, 200), (100, 0.7, 100), (300, 0.6, 100)):
        record_score(tmp_path, step, score)
        assert best(tmp_path) == expected
    save(tmp_path, 400, keep_last=1, score=None)
    assert steps(tmp_path) == [100, 400]
    loaded = load_checkpoint(tmp_path / "best")
    assert (loaded.score, loaded.is_own) == (0.7, True)
    record_score(tmp_path, 50, 0.9)  # of a checkpoint that is gone
    record_score(tmp_path / "nowhere", 50, 0.9)
    assert (steps(tmp_path), best(tmp_path)) == ([100, 400], 100)


def test_a_damaged_checkpoint_has_no_score_and_gets_none(tmp_path: Path) -> None:
    save(tmp_path, 100, score=0.5).write_bytes(b"half")
    with pytest.raises(CheckpointError, match="cannot be written: .*step_0*100.safetensors is no whole checkpoint"):
        record_score(tmp_path, 100, 0.75)
    save(tmp_path, 200, keep_last=1)
    assert steps(tmp_path) == [200]


def test_a_score_that_cannot_be_written_leaves_the_checkpoint_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save(tmp_path / "checkpoints")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="the score of .*step_0*100.* cannot be written: No space left on device"):
        record_score(tmp_path / "checkpoints", 100, 0.9)
    assert load_checkpoint(file).score == 0.5
    assert os.listdir(tmp_path / "checkpoints") == [file.name]
