"""Statistics of several ranks are those of one process that has all of their numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enn_ppo.training.learning.moments import moments_of_all, update_normalization
from enn_ppo.training.ranks import ALONE
from entity_gym.actions import CategoricalActionSpace
from entity_gym.spaces import Entity, ObsSpace
from rogue_net import ObsBatch, RaggedTensor, RogueNet, RogueNetConfig
from rogue_net.batch.obs_batch import ActionMask
from rogue_net.inputs.normalization import RunningNorm
from tests.enn_ppo.threads import InThread, on_two

numbers = st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20)


@given(numbers, numbers)
def test_moments_of_two_are_those_of_all_their_numbers(one: list[float], other: list[float]) -> None:
    parts = [torch.tensor(one), torch.tensor(other)]
    first, second = on_two(lambda ranks: moments_of_all(parts[ranks.rank], ranks))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    together = np.array(one + other, dtype=np.float64)
    assert float(first.number) == len(together)
    assert float(first.mean) == pytest.approx(together.mean(), abs=1e-9)
    assert float(first.variance) == pytest.approx(together.var(), rel=1e-9, abs=1e-9)


def frames(robots: list[list[float]], mines: list[list[float]]) -> ObsBatch:
    """One frame with these entities."""

    def of(rows: list[list[float]]) -> RaggedTensor:
        return RaggedTensor(torch.tensor(rows).reshape(-1, 1), torch.tensor([0, len(rows)]))

    nobody = RaggedTensor(torch.zeros(0, 1, dtype=torch.int64), torch.tensor([0, 0]))
    return ObsBatch(1, {"Robot": of(robots), "Mine": of(mines)}, {"go": ActionMask(nobody)})


def network() -> RogueNet:
    space = ObsSpace(entities={"Robot": Entity(["x"]), "Mine": Entity(["x"])})
    return RogueNet(RogueNetConfig(d_model=8, n_layer=1, n_head=1), space, {"go": CategoricalActionSpace(["a", "b"])})


def test_input_statistics_are_of_all_ranks_even_where_one_has_seen_none_of_a_type() -> None:
    updates = [(frames([[1.0], [3.0]], []), frames([[8.0]], [[2.0]])), (frames([[2.0]], []), frames([], []))]
    expected = network()
    for parts in updates:
        for part in parts:
            update_normalization(expected, part, ALONE)

    def learn(ranks: InThread) -> list[RunningNorm]:
        net = networks[ranks.rank]
        for parts in updates:
            update_normalization(net, parts[ranks.rank], ranks)
        return [module for module in net.modules() if isinstance(module, RunningNorm)]

    networks = [network(), network()]
    one, other = on_two(learn)
    known = [module for module in expected.modules() if isinstance(module, RunningNorm)]
    for a, b, both in zip(one, other, known, strict=True):
        for name in ("count", "mean", "squares", "offset", "scale"):
            assert torch.equal(getattr(a, name), getattr(b, name))
            torch.testing.assert_close(getattr(a, name), getattr(both, name), rtol=1e-12, atol=1e-12)
    assert [int(norm.count) for norm in one] == [4, 1]
