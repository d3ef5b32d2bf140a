"""Our segment operations against torch-scatter's, where that package is installed."""

import pytest
import torch

from rogue_net.batch.ragged import segment_max, segment_mean, segment_sum

torch_scatter = pytest.importorskip("torch_scatter", reason="torch-scatter is an optional oracle")


@pytest.fixture
def segments() -> torch.Tensor:
    return torch.tensor([0, 0, 3, 1, 3, 3, 5])  # 2 and 4 are empty


def test_sums_agree(segments: torch.Tensor) -> None:
    values = torch.randn(7)
    expected = torch_scatter.scatter(values, segments, dim=0, dim_size=6, reduce="sum")
    torch.testing.assert_close(segment_sum(values, segments, 6), expected)


def test_means_agree(segments: torch.Tensor) -> None:
    values = torch.randn(7, 3)
    counts = torch.bincount(segments, minlength=6)
    expected = torch_scatter.scatter(values, segments, dim=0, dim_size=6, reduce="mean")
    torch.testing.assert_close(segment_mean(values, segments, 6, counts), expected)


def test_maxima_agree_where_there_is_something(segments: torch.Tensor) -> None:
    values = torch.randn(7)
    expected = torch_scatter.scatter(values, segments, dim=0, dim_size=6, reduce="max")
    filled = torch.bincount(segments, minlength=6) > 0
    torch.testing.assert_close(segment_max(values, segments, 6)[filled], expected[filled])
