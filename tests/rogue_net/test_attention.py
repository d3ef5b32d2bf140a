"""Ragged attention of the reference against attention written out frame by frame."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from entity_gym import CategoricalActionSpace, Entity, Observation, ObsSpace
from entity_gym.batch.batching import batch_observations
from rogue_net import ObsBatch
from rogue_net.attention import ragged_attention
from rogue_net.batch.frames import PackedRows

SPACE = ObsSpace({"Unit": Entity(["x"])})
ACTIONS = {"wait": CategoricalActionSpace(["wait"])}
frames_of_flags = st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=6).filter(any)


def batch_of(flags: list[list[bool]]) -> ObsBatch:
    """A frame per list, an entity per flag, which says whether the policy sees it."""
    observations = [Observation(features={"Unit": [[0.0]] * len(frame)}, visible={"Unit": frame}) for frame in flags]
    return ObsBatch.from_vec_obs(batch_observations(observations, SPACE, ACTIONS))


def random_heads(num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(
        3, num_tokens, 2, 8, generator=torch.Generator().manual_seed(num_tokens)
    )  # 2 heads of width 8
    return q, k, v


def naive_attention(q: Tensor, k: Tensor, v: Tensor, flags: list[list[bool]]) -> Tensor:
    """One softmax per token and head: the visible look at the visible, the hidden at everything."""
    rows = []
    start = 0
    for frame in flags:
        for i, i_visible in enumerate(frame):
            seen = [start + j for j, j_visible in enumerate(frame) if j_visible or not i_visible]
            heads = []
            for head in range(q.shape[1]):
                scores = torch.stack([q[start + i, head] @ k[j, head] for j in seen]) / math.sqrt(q.shape[2])
                heads.append(scores.softmax(0) @ v[seen, head])
            rows.append(torch.stack(heads))
        start += len(frame)
    return torch.stack(rows)


@given(flags=frames_of_flags)
def test_attention_and_its_gradients_are_those_of_a_softmax_over_what_each_entity_sees(flags: list[list[bool]]) -> None:
    batch = batch_of(flags)
    inputs, naive_inputs = ([x.clone().requires_grad_() for x in random_heads(batch.num_tokens)] for _ in range(2))
    attended, expected = ragged_attention(torch.stack(inputs, 1), batch.frames), naive_attention(*naive_inputs, flags)
    torch.testing.assert_close(attended, expected)
    attended.square().sum().backward()
    expected.square().sum().backward()
    for given_input, naive in zip(inputs, naive_inputs, strict=True):
        torch.testing.assert_close(given_input.grad, naive.grad, atol=1e-5, rtol=1e-4)


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any))
def test_short_frames_share_rows_and_stay_apart(lengths: list[int]) -> None:
    batch = batch_of([[True] * length for length in lengths])
    rows = PackedRows(batch.frames)
    assert rows.index.shape[1] == max(lengths)
    frame_of_place = torch.full(rows.index.shape, -1).flatten()
    frame_of_place[rows.inverse_index] = batch.frames.of_token
    frame_of_place = frame_of_place.view(rows.index.shape)
    for row, allowed in zip(frame_of_place, rows.allowed[:, 0], strict=True):
        same = (row[:, None] == row[None, :]) & (row[:, None] >= 0)
        assert torch.equal(allowed, same | torch.eye(len(row), dtype=torch.bool))


@given(flags=frames_of_flags)
def test_pairs_are_of_each_token_with_all_of_its_frame(flags: list[list[bool]]) -> None:
    frames, expected, start = batch_of(flags).frames, [], 0
    for frame in flags:
        tokens = range(start, start + len(frame))
        expected += [(i, j) for i in tokens for j in tokens]
        start += len(frame)
    for first, last in [(0, len(expected)), (len(expected) // 3, len(expected) - 1)]:
        i, j = frames.pairs(first, last)
        assert list(zip(i.tolist(), j.tolist(), strict=True)) == expected[first:last]
