"""No run of these tests draws its learning curve, which takes longer than most runs, unless a test is about the picture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from enn_ppo.training.tracking.curves import plot_learning_curve

DRAW = "enn_ppo.training.tracking.run_output.plot_learning_curve"


@pytest.fixture(scope="session", autouse=True)
def no_curves() -> Iterator[None]:
    """Draws no curves of runs in this process; commands that a test starts draw as they do for users."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DRAW, lambda *paths: None)
        yield


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this test draw."""
    monkeypatch.setattr(DRAW, plot_learning_curve)
