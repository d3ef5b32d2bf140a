"""Running statistics: NumPy's numbers, changed by `update` alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rogue_net.inputs.normalization import RunningNorm


def std_of(norm: RunningNorm) -> np.ndarray:
    return (norm.squares / norm.count).sqrt().numpy()


@given(
    features=arrays(np.float32, st.tuples(st.integers(1, 40), st.just(2)), elements=st.floats(-1e4, 1e4, width=32)),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_statistics_of_uneven_parts_are_those_of_the_whole(features: np.ndarray, cuts: list[int]) -> None:
    norm = RunningNorm(2)
    for part in np.split(features, sorted(cuts)):  # empty parts are among them
        norm.update(torch.from_numpy(np.ascontiguousarray(part)))
    exact = features.astype(np.float64)
    assert int(norm.count) == len(features)
    np.testing.assert_allclose(norm.mean.numpy(), exact.mean(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(std_of(norm), exact.std(0), rtol=1e-6, atol=1e-6)


def test_normalized_features_have_mean_zero_and_deviation_one() -> None:
    features = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1e-3, 1.0, 1e4]) + 7
    norm = RunningNorm(3)
    norm.update(features)
    normalized = norm(features).double()
    torch.testing.assert_close(normalized.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-3, rtol=0)
    torch.testing.assert_close(normalized.std(0, correction=0), torch.ones(3, dtype=torch.float64), atol=1e-2, rtol=0)


@pytest.mark.parametrize("value", [0.0, 0.1, -1 / 3, 1e-30, 123456.7])
def test_a_feature_that_never_varied_keeps_its_unit(value: float) -> None:
    norm = RunningNorm(1)
    for count in (1, 3, 7, 1000):
        norm.update(torch.full((count, 1), value))
    assert float(norm.squares) == 0.0
    assert norm(torch.full((2, 1), value)).tolist() == [[0.0], [0.0]]
    assert float(norm(torch.tensor([[value]]) + 2.0)) == pytest.approx(2.0, abs=0.01)  # float32 at 123456.7


def test_every_row_counts_where_a_float_stops_counting() -> None:
    norm = RunningNorm(1)
    norm.update(torch.zeros(1, 1))
    norm.count.fill_(2**24)
    norm.update(torch.ones(1, 1))
    assert norm.count.dtype == torch.int64
    assert int(norm.count) == 2**24 + 1  # float32 would stay at 2**24
    assert float(norm.mean) == pytest.approx(1 / (2**24 + 1), rel=1e-12)


@pytest.mark.parametrize("assign", [False, True])
def test_a_copy_and_its_original_go_their_own_ways(assign: bool) -> None:
    norm = RunningNorm(1)
    norm.update(torch.tensor([[0.0], [2.0]]))  # mean 1, std 1
    copied = copy.deepcopy(norm)
    copied.update(torch.tensor([[10.0], [12.0]]))
    assert norm(torch.tensor([[3.0]])).tolist() == [[2.0]]
    other = RunningNorm(1)
    other.update(torch.tensor([[6.0], [10.0]]))  # mean 8, std 2
    copied.load_state_dict(other.state_dict(), assign=assign)
    assert copied(torch.tensor([[10.0]])).tolist() == [[1.0]]
    assert norm(torch.tensor([[3.0]])).tolist() == [[2.0]]


def test_large_whole_numbers_keep_their_differences() -> None:
    norm = RunningNorm(1)
    values = torch.tensor([[1e7 - 4], [1e7], [1e7 + 4]])
    norm.update(values)  # mean 1e7, std sqrt(32 / 3)
    expected = torch.tensor([[-4.0], [0.0], [4.0]]) / (32 / 3) ** 0.5
    torch.testing.assert_close(norm(values), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("spread", [1e-38, 1e-40, 1e-44])
def test_deviations_whose_inverse_float32_does_not_hold_count_as_none(spread: float) -> None:
    norm = RunningNorm(1)
    norm.update(torch.tensor([[0.0], [spread]]))
    torch.testing.assert_close(norm(torch.tensor([[0.0], [1.0]])), torch.tensor([[0.0], [1.0]]))
