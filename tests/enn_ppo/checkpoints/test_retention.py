"""Which checkpoints stay. Hand-made cases, and what holds for any run."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_ppo.checkpoints.retention import Retention, Saved, best_of, which_to_remove


def staying(saved: Collection[Saved], now: int, **retention: object) -> list[int]:
    removed = which_to_remove(saved, now, Retention(**{"keep_last": 1, **retention}))  # type: ignore[arg-type]
    return sorted({each.step for each in saved} - removed)


FIVE = [
    Saved(100, seconds=50, score=0.1),
    Saved(200, seconds=130, score=0.9),
    Saved(300, seconds=190, score=0.9),
    Saved(400, seconds=200, score=None),
    Saved(500, seconds=330, score=0.5),
]


def test_the_newest_stay() -> None:
    assert staying(FIVE, 500, keep_last=1) == [500]
    assert staying(FIVE, 500, keep_last=3) == [300, 400, 500]
    assert staying(FIVE, 500, keep_last=9) == [100, 200, 300, 400, 500]


def test_the_best_stay_besides_and_of_equal_ones_the_later() -> None:
    assert staying(FIVE, 500, keep_best=1) == [300, 500]
    assert staying(FIVE, 500, keep_best=2) == [200, 300, 500]
    assert staying(FIVE, 500, keep_best=3) == [200, 300, 500]  # the third best is the newest
    assert staying(FIVE, 500, keep_best=9) == [100, 200, 300, 500]  # and one has no score


def test_a_score_that_is_not_a_number_is_none() -> None:
    assert best_of([Saved(1, score=float("nan")), Saved(2, score=-1e9)]) == [Saved(2, score=-1e9)]


def test_the_protected_ones_stay() -> None:
    assert staying(FIVE, 500, protected=[100, 7]) == [100, 500]


def test_what_was_abandoned_by_going_back_goes() -> None:
    assert staying(FIVE, 200, keep_last=3) == [100, 200]
    assert staying(FIVE, 200, keep_best=1) == [200]
    assert staying(FIVE, 100, keep_best=1) == [100]


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"keep_last": 0}, "keep_last must be an integer of at least 1, got 0"),
        ({"keep_last": 1, "keep_best": -1}, "keep_best must be an integer of at least 0, got -1"),
    ],
)
def test_numbers_out_of_range_are_named(given_: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Retention(**given_)  # type: ignore[arg-type]


SCORES = st.one_of(st.none(), st.floats(allow_nan=True), st.sampled_from([0.0, 1.0]))


@st.composite
def runs(draw: st.DrawFn) -> list[Saved]:
    """Checkpoints in the order of a run: steps and seconds grow."""
    count = draw(st.integers(1, 12))
    steps = sorted(draw(st.sets(st.integers(0, 100), min_size=count, max_size=count)))
    seconds = sorted(draw(st.lists(st.floats(0, 1000), min_size=count, max_size=count)))
    scores = draw(st.lists(SCORES, min_size=count, max_size=count))
    return [Saved(*each) for each in zip(steps, seconds, scores, strict=True)]


RETENTIONS = st.builds(
    Retention,
    keep_last=st.integers(1, 5),
    keep_best=st.integers(0, 4),
    protected=st.sets(st.integers(0, 100), max_size=3),
)


@given(runs(), RETENTIONS, st.data())
def test_the_last_one_always_stays_and_nothing_is_removed_that_is_not_there(
    run: list[Saved], retention: Retention, data: st.DataObject
) -> None:
    now = data.draw(st.sampled_from(run)).step
    removed = which_to_remove(run, now, retention)
    steps = {each.step for each in run}
    assert now not in removed and removed <= steps and not removed & set(retention.protected)
    assert len(steps - removed) >= min(sum(step <= now for step in steps), retention.keep_last)


@given(runs(), RETENTIONS)
def test_removing_after_every_save_leaves_what_removing_once_would(run: list[Saved], retention: Retention) -> None:
    there: list[Saved] = []
    for each in run:
        there.append(each)
        removed = which_to_remove(there, each.step, retention)
        there = [other for other in there if other.step not in removed]
    at_once = which_to_remove(run, run[-1].step, retention)
    assert [each.step for each in there] == [each.step for each in run if each.step not in at_once]


@given(runs(), RETENTIONS)
def test_removing_again_removes_nothing_and_the_order_is_of_no_matter(run: list[Saved], retention: Retention) -> None:
    now = run[-1].step
    removed = which_to_remove(run, now, retention)
    assert which_to_remove(run[::-1], now, retention) == removed
    assert which_to_remove([each for each in run if each.step not in removed], now, retention) == set()


@given(runs(), RETENTIONS)
def test_the_best_score_of_a_run_is_never_lost_where_one_is_kept(run: list[Saved], retention: Retention) -> None:
    removed = which_to_remove(run, run[-1].step, retention)
    best = best_of(run)
    if best and retention.keep_best:
        assert best[0].step not in removed
