"""Torch's varlen attention: what it is given, what it is not asked for, and, on a GPU, what it computes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.attention.varlen
from torch import Tensor

from rogue_net.attention import packed_attention, ragged_attention
from rogue_net.batch.frames import Frames
from rogue_net.kernels.cuda.varlen import varlen_attention, why_not_varlen

OFFSETS = torch.tensor([0, 3, 3, 8])


def random_heads(num_tokens: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(num_tokens, 3, 2, 8, generator=torch.Generator().manual_seed(0)).to(dtype)


def standing_in(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int) -> Tensor:
    """As `varlen_attn` computes, on the CPU. It takes no other arguments: releases of torch differ in them."""
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert (type(max_q), type(max_k)) == (int, int)
    assert (max_q, max_k) == (5, 5)
    assert len(q) == len(k) == len(v) == int(cu_q[-1])
    parts = []
    for low, high in zip(cu_q.tolist(), cu_k.tolist()[1:], strict=False):
        scores = torch.einsum("ihk,jhk->hij", q[low:high], k[low:high]) / math.sqrt(q.shape[2])
        parts.append(torch.einsum("hij,jhk->ihk", scores.softmax(2), v[low:high]))
    return torch.cat(parts)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", standing_in)
    monkeypatch.setattr("rogue_net.kernels.cuda.varlen.why_not_varlen", lambda q, frames: None)


@pytest.mark.usefixtures("stand_in")
def test_frames_are_given_as_offsets_and_the_longest_length() -> None:
    qkv = random_heads(8)
    attended = ragged_attention(qkv, Frames(OFFSETS), kernels="varlen")
    torch.testing.assert_close(attended, packed_attention(qkv, Frames(OFFSETS), None, 0.0))


@pytest.mark.usefixtures("stand_in")
def test_tokens_behind_the_last_frame_get_0_and_leave_no_gradient() -> None:
    qkv = random_heads(10).requires_grad_()
    attended = varlen_attention(qkv, Frames(OFFSETS))
    (gradient,) = torch.autograd.grad(attended.square().sum(), qkv)
    assert attended[:8].all() and not attended[8:].any()
    assert gradient[:8].any() and not gradient[8:].any()


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("num_tokens", [0, 2])
def test_without_frames_nothing_is_asked_for(num_tokens: int) -> None:
    qkv = random_heads(num_tokens).requires_grad_()
    attended = varlen_attention(qkv, Frames(torch.tensor([0, 0])))
    assert attended.shape == (num_tokens, 2, 8) and not attended.any()
    attended.sum().backward()
    assert qkv.grad is not None and not qkv.grad.any()


def test_what_it_cannot_compute_is_said() -> None:
    q, k, v = random_heads(8).unbind(1)
    with pytest.raises(
        ValueError, match=r"varlen attention cannot be: it computes on CUDA, .* on cpu; allowed: packed, triton"
    ):
        ragged_attention(torch.stack([q, k, v], 1), Frames(OFFSETS), kernels="varlen")
    relative: Any = object()
    with pytest.raises(ValueError, match=r"no relative positions; allowed: packed, triton"):
        ragged_attention(torch.stack([q, k, v], 1), Frames(OFFSETS), relative, kernels="varlen")


@pytest.mark.gpu
def test_on_a_gpu_it_computes_what_the_reference_computes() -> None:
    qkv = random_heads(10, torch.bfloat16).cuda().requires_grad_()
    frames = Frames(OFFSETS.cuda())
    attended = ragged_attention(qkv, frames, kernels="varlen")
    (gradient,) = torch.autograd.grad(attended.square().sum(), qkv)
    exact = random_heads(10, torch.bfloat16).double().requires_grad_()
    expected = packed_attention(exact[:8], Frames(OFFSETS), None, 0.0)
    (slope,) = torch.autograd.grad(expected.square().sum(), exact)
    for given, each in ((attended[:8], expected), (gradient, slope)):
        assert float((given.cpu().double() - each).norm() / each.norm()) < 2e-2
    assert not attended[8:].any()


@pytest.mark.gpu
def test_on_a_gpu_what_it_cannot_compute_is_said() -> None:
    frames = Frames(OFFSETS.cuda())
    q = random_heads(8).cuda()[:, 0]
    assert why_not_varlen(q.bfloat16(), frames) is None
    assert "float32" in str(why_not_varlen(q, frames))
    assert "multiples of 8" in str(why_not_varlen(q.bfloat16()[..., :7], frames))
    assert "hidden" in str(why_not_varlen(q.bfloat16(), Frames(frames.offsets, torch.ones(8, dtype=torch.bool).cuda())))
