"""Which checkpoints a run directory holds: scores, seconds and `best` are on the disk, so that they outlive the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from enn_ppo.checkpoints import (
    CheckpointError,
    Retention,
    load_checkpoint,
    record_score,
    resolve_checkpoint,
    save_checkpoint,
    step_file,
    step_files,
)

LAST = Retention(keep_last=1)
BEST = Retention(keep_last=1, keep_best=1)


def save(directory: Path, step: int, retention: Retention = LAST, **other: Any) -> Path:
    parts: dict[str, Any] = {"policy": {}, "config": {}, "spaces": {}, "trainer": {}}
    return save_checkpoint(directory, step, retention=retention, **(parts | other))


def steps(directory: Path) -> list[int]:
    return sorted(step for step, _ in step_files(directory))


def best(directory: Path) -> int | None:
    try:
        return load_checkpoint(directory / "best").step
    except CheckpointError:
        return None


@pytest.mark.parametrize("score", [None, float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_not_known(tmp_path: Path, score: float | None) -> None:
    assert load_checkpoint(save(tmp_path, 100, score=score)).score is None
    assert best(tmp_path) is None


def test_the_best_stays_and_is_found_under_its_name(tmp_path: Path) -> None:
    for step, score in ((100, 0.5), (200, 0.9), (300, 0.7), (400, 0.9), (500, 0.1), (600, None)):
        save(tmp_path, step, BEST, score=score)
    assert (steps(tmp_path), best(tmp_path)) == ([400, 600], 400)
    assert resolve_checkpoint(tmp_path / "best") == step_file(tmp_path, 400)
    assert load_checkpoint(tmp_path / "best").score == 0.9
    assert load_checkpoint(tmp_path).step == 600


def test_where_none_is_kept_for_being_the_best_best_is_the_best_that_is_there(tmp_path: Path) -> None:
    for step, score in ((100, 0.9), (200, 0.5), (300, 0.7)):
        save(tmp_path, step, Retention(keep_last=2), score=score)
    assert (steps(tmp_path), best(tmp_path)) == ([200, 300], 300)
    save(tmp_path, 400, LAST)
    assert (steps(tmp_path), best(tmp_path)) == ([400], None)


def test_a_checkpoint_that_is_read_right_now_stays_until_it_is_not(tmp_path: Path) -> None:
    save(tmp_path, 100)
    save(tmp_path, 200, Retention(keep_last=1, protected=[100]))
    assert steps(tmp_path) == [100, 200]
    save(tmp_path, 300)
    assert steps(tmp_path) == [300]


# --- Scores that come later ---


def test_a_score_may_come_later_and_counts_from_then_on(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save(tmp_path, step, Retention(keep_last=9), seconds=step / 10)
    record_score(tmp_path, 200, 0.5)
    assert best(tmp_path) == 200
    record_score(tmp_path, 100, 0.7)
    assert best(tmp_path) == 100
    record_score(tmp_path, 300, 0.6)
    assert best(tmp_path) == 100
    save(tmp_path, 400, BEST)
    assert steps(tmp_path) == [100, 400]
    loaded = load_checkpoint(tmp_path / "best")
    assert (loaded.seconds, loaded.score) == (10.0, 0.7)


def test_a_score_of_a_checkpoint_that_is_gone_is_of_no_effect(tmp_path: Path) -> None:
    save(tmp_path, 100)
    record_score(tmp_path, 50, 0.5)
    record_score(tmp_path / "nowhere", 50, 0.5)
    assert (steps(tmp_path), best(tmp_path)) == ([100], None)


def test_after_going_back_what_was_abandoned_is_not_the_best(tmp_path: Path) -> None:
    for step, score in ((100, 0.1), (200, 0.9), (300, 0.5)):
        save(tmp_path, step, Retention(keep_last=9), score=score)
    save(tmp_path, 150, Retention(keep_last=3, keep_best=1), score=0.3)
    assert (steps(tmp_path), best(tmp_path)) == ([100, 150], 150)


def test_a_damaged_checkpoint_has_no_score_and_no_seconds(tmp_path: Path) -> None:
    save(tmp_path, 100, score=0.5, seconds=9.0).write_bytes(b"half")
    save(tmp_path, 200, Retention(keep_last=1, keep_best=5))
    assert steps(tmp_path) == [200]


def test_where_nothing_has_a_score_best_says_so(tmp_path: Path) -> None:
    save(tmp_path, 100)
    with pytest.raises(
        CheckpointError, match="there is no best in .*; the newest checkpoint .*; none of them has a score"
    ):
        load_checkpoint(tmp_path / "best")


def test_a_score_that_cannot_be_written_leaves_the_checkpoint_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "checkpoints", 100, score=0.5)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="the score of .*step_0*100.* cannot be written: No space left on device"):
        record_score(tmp_path / "checkpoints", 100, 0.9)
    assert load_checkpoint(folder).score == 0.5
    assert os.listdir(tmp_path / "checkpoints") == [folder.name]
