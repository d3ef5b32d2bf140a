"""Ragged attention by Triton kernels against the reference in float64: outputs and gradients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rogue_net.attention import packed_attention, ragged_attention
from rogue_net.batch.frames import Frames
from rogue_net.kernels.cuda import launching
from rogue_net.kernels.cuda.attention import triton_attention
from rogue_net.kernels.cuda.launching import Precision, Tiles
from tests.system.rogue_net.cuda.devices import EACH_DEVICE

pytest.importorskip("triton")

ROOT = Path(__file__).parents[4]
LENGTHS = [0, 1, 16, 0, 17, 40, 3, 0]


class Case(NamedTuple):
    lengths: list[int]
    num_heads: int = 2
    width: int = 8
    hide: bool = False
    padding: int = 0  # tokens behind the last frame

    @property
    def offsets(self) -> Tensor:
        return torch.tensor([0, *self.lengths]).cumsum(0)

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    @property
    def visible(self) -> Tensor | None:
        if not self.hide:
            return None
        return torch.rand(self.num_tokens, generator=torch.Generator().manual_seed(1)) < 0.6

    @property
    def qkv(self) -> Tensor:
        shape = (self.num_tokens + self.padding, 3, self.num_heads, self.width)
        return torch.randn(shape, generator=torch.Generator().manual_seed(2))

    @property
    def dout(self) -> Tensor:
        shape = (self.num_tokens + self.padding, self.num_heads, self.width)
        return torch.randn(shape, generator=torch.Generator().manual_seed(3))


class Results(NamedTuple):
    out: Tensor  # (E, H, K)
    gradient: Tensor  # (E, 3, H, K)


def frames_of(case: Case, device: str) -> Frames:
    visible = case.visible
    return Frames(case.offsets.to(device), None if visible is None else visible.to(device))


def by_triton(case: Case, device: str, dtype: torch.dtype = torch.float32, precision: Precision = "fp32") -> Results:
    qkv = case.qkv.to(device, dtype).requires_grad_()
    out = ragged_attention(qkv, frames_of(case, device), kernels="triton", precision=precision)
    assert out.dtype == dtype
    (gradient,) = torch.autograd.grad(out, qkv, case.dout.to(device, dtype))
    return Results(out.detach().cpu(), gradient.cpu())


def by_reference(case: Case) -> Results:
    qkv = case.qkv.double().requires_grad_()
    out = packed_attention(qkv, frames_of(case, "cpu"), None, 0.0)
    (gradient,) = torch.autograd.grad(out, qkv, case.dout.double())
    return Results(out.detach(), gradient)


def assert_equal(given: Results, expected: Results) -> None:
    for each, exact in zip(given, expected, strict=True):
        torch.testing.assert_close(each.double(), exact, atol=1e-5, rtol=1e-5)


def use_tiles(monkeypatch: pytest.MonkeyPatch, queries: int, keys: int) -> None:
    for table in (launching.FORWARD, launching.BACKWARD):
        for columns, tiles in table.items():
            monkeypatch.setitem(table, columns, tiles._replace(queries=queries, keys=keys))


@EACH_DEVICE
@pytest.mark.parametrize("hide", [False, True], ids=["all visible", "some hidden"])
@pytest.mark.parametrize(("num_heads", "width"), [(1, 8), (3, 12), (2, 20)])
def test_kernels_compute_what_the_reference_computes(device: str, num_heads: int, width: int, hide: bool) -> None:
    case = Case(LENGTHS, num_heads, width, hide)
    assert_equal(by_triton(case, device), by_reference(case))


@EACH_DEVICE
@pytest.mark.parametrize("width", [1, 33, 128])
def test_heads_have_any_width_up_to_128(device: str, width: int) -> None:
    case = Case([3, 9], 2, width)
    assert_equal(by_triton(case, device), by_reference(case))


@EACH_DEVICE
@pytest.mark.parametrize(("queries", "keys"), [(16, 16), (16, 32), (32, 16)])
def test_frames_may_be_longer_and_shorter_than_tiles(
    device: str, queries: int, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_tiles(monkeypatch, queries, keys)
    case = Case(LENGTHS, hide=True)
    assert_equal(by_triton(case, device), by_reference(case))


@EACH_DEVICE
@pytest.mark.parametrize(
    ("dtype", "precision", "bound"),
    # Operands lose up to 2^-10 in tf32 and 2^-8 in bf16, and a gradient is made of several products.
    [(torch.float32, "tf32", 5e-3), (torch.float32, "bf16", 2e-2), (torch.bfloat16, "fp32", 2e-2)],
)
def test_narrow_numbers_cost_their_roundoff(
    device: str, dtype: torch.dtype, precision: Precision, bound: float
) -> None:
    case = Case(LENGTHS, 1, 16, hide=True)
    for each, exact in zip(by_triton(case, device, dtype, precision), by_reference(case), strict=True):
        error = float((each.double() - exact).norm() / exact.norm())
        assert error < bound
        assert device == "cpu" or error > 1e-6  # they are narrow: the interpreter alone has no tf32


@EACH_DEVICE
def test_tokens_behind_the_last_frame_get_0_and_leave_no_gradient(device: str) -> None:
    case = Case([5, 0, 17], hide=True)
    padded = case._replace(padding=50)  # whole tiles of nothing among them
    qkv = padded.qkv.clone()
    qkv[:22] = case.qkv
    qkv = qkv.to(device).requires_grad_()
    frames = frames_of(case, device)
    dout = torch.cat([case.dout, torch.randn(50, *case.dout.shape[1:])]).to(device)
    out = ragged_attention(qkv, frames, kernels="triton")
    (gradient,) = torch.autograd.grad(out, qkv, dout)
    assert_equal(Results(out[:22].detach().cpu(), gradient[:22].cpu()), by_reference(case))
    assert not out[22:].any()
    assert not gradient[22:].any()


@EACH_DEVICE
@settings(max_examples=10)
@given(lengths=st.lists(st.integers(0, 20), min_size=1, max_size=4).filter(any), data=st.data())
def test_a_frame_does_not_depend_on_others(device: str, lengths: list[int], data: st.DataObject) -> None:
    case = Case(lengths, 1)
    frame = data.draw(st.sampled_from([i for i, length in enumerate(lengths) if length > 0]))
    low, high = case.offsets[frame : frame + 2].tolist()
    qkv = case.qkv.to(device)
    together = ragged_attention(qkv, frames_of(case, device), kernels="triton")
    alone = Frames(torch.tensor([0, high - low], device=device))
    # Not bit for bit: where tiles begin decides the order of sums.
    torch.testing.assert_close(
        together[low:high], ragged_attention(qkv[low:high], alone, kernels="triton"), atol=1e-6, rtol=1e-6
    )


@EACH_DEVICE
def test_a_hidden_token_changes_no_bit_of_what_visible_ones_get(device: str) -> None:
    case = Case([9, 20], hide=True)
    visible = frames_of(case, device).visible
    assert visible is not None
    outs = []
    for value in (0.0, 1e4):
        qkv = case.qkv.to(device)
        qkv[~visible] += value
        outs.append(ragged_attention(qkv, frames_of(case, device), kernels="triton"))
    assert torch.equal(outs[0][visible], outs[1][visible])
    assert not torch.equal(outs[0][~visible], outs[1][~visible])


@EACH_DEVICE
def test_gradients_are_the_same_bits_every_time(device: str) -> None:
    case = Case(LENGTHS, hide=True)
    one, two = by_triton(case, device), by_triton(case, device)
    assert torch.equal(one.gradient, two.gradient)


@EACH_DEVICE
def test_tensors_of_any_strides_are_taken(device: str) -> None:
    case = Case([5, 6])
    qkv = case.qkv.to(device)
    expected = ragged_attention(qkv, frames_of(case, device), kernels="triton")
    for other in (qkv.transpose(0, 2).contiguous().transpose(0, 2), qkv.transpose(2, 3).contiguous().mT):
        assert torch.equal(ragged_attention(other, frames_of(case, device), kernels="triton"), expected)


@EACH_DEVICE
def test_joined_heads_get_the_same_and_their_gradient_in_one_piece(device: str) -> None:
    case = Case([5, 6], hide=True)
    qkv = case.qkv.to(device).requires_grad_()
    out = triton_attention(qkv, frames_of(case, device))
    (gradient,) = torch.autograd.grad(out, qkv, case.dout.to(device))
    expected = by_triton(case, device)
    assert torch.equal(out.cpu(), expected.out)
    assert torch.equal(gradient.cpu(), expected.gradient)


@EACH_DEVICE
def test_without_tokens_nothing_is_launched(device: str) -> None:
    assert by_triton(Case([0, 0]), device).gradient.shape == (0, 3, 2, 8)


def test_nothing_is_read_back_on_the_way_to_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the device `meta` hold nothing: what reads one fails, and so does what depends on their numbers."""
    launched: list[tuple[int, int]] = []

    def launch(kernel: Any, tiles: Tiles, num_tokens: int, num_heads: int, *_: Any, **__: Any) -> None:
        launched.append((num_tokens, num_heads))

    monkeypatch.setattr(launching, "launch", launch)
    monkeypatch.setattr("rogue_net.kernels.cuda.attention.check_launchable", lambda tensor: None)
    offsets = torch.zeros(6, dtype=torch.int64, device="meta")
    visible = torch.zeros(90, dtype=torch.bool, device="meta")
    qkv = torch.zeros(100, 3, 2, 16, device="meta", requires_grad=True)
    ragged_attention(qkv, Frames(offsets, visible), kernels="triton").sum().backward()
    assert launched == [(100, 2), (100, 2)]


@pytest.mark.gpu
def test_on_a_gpu_nothing_synchronises() -> None:
    case = Case(LENGTHS, hide=True)
    expected = by_triton(case, "cuda")  # compiles
    qkv, dout, frames = case.qkv.cuda().requires_grad_(), case.dout.cuda(), frames_of(case, "cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = ragged_attention(qkv, frames, kernels="triton")
        (gradient,) = torch.autograd.grad(out, qkv, dout)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_equal(Results(out.detach().cpu(), gradient.cpu()), by_reference(case))
    assert torch.equal(out.cpu(), expected.out)


@pytest.mark.gpu
def test_a_graph_that_was_captured_with_some_frames_computes_others() -> None:
    captured, replayed = Case([40, 3, 0], padding=57), Case([1, 17, 30], padding=52)
    by_triton(captured, "cuda")  # compiles
    qkv, offsets = captured.qkv.cuda().requires_grad_(), captured.offsets.cuda()
    dout = replayed.dout.cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = triton_attention(qkv, Frames(offsets))
        (gradient,) = torch.autograd.grad(out, qkv, dout)
    with torch.no_grad():
        qkv.copy_(replayed.qkv)
        offsets.copy_(replayed.offsets)
    graph.replay()
    expected = by_triton(replayed, "cuda")
    assert torch.equal(out.detach().cpu(), expected.out)
    assert torch.equal(gradient.cpu(), expected.gradient)


def test_what_has_no_kernels_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(dtype: torch.dtype = torch.float32, width: int = 8, device: str = "cpu") -> None:
        heads = torch.zeros(2, 1, width, dtype=dtype, device=device)
        ragged_attention(torch.stack([heads] * 3, 1), Frames(torch.tensor([0, 2])), kernels="triton")

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ValueError, match=r"float32 and bfloat16, and queries are torch\.float64"):
        attend(torch.float64)
    with pytest.raises(ValueError, match=r"net\.d_model / net\.n_head, is 129; the Triton kernels have 1 to 128"):
        attend(width=129)
    with pytest.raises(ValueError, match=r"compute on CUDA, and the tensors are on meta"):
        attend(device="meta")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ValueError, match=r"compute on CUDA, and the tensors are on cpu"):
        attend()
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ValueError, match=r"need the package triton: .* `pip install triton`"):
        attend()


def test_nothing_imports_triton_before_it_is_used() -> None:
    # A fresh interpreter, in which importing it fails.
    names = (
        "rogue_net, rogue_net.attention, rogue_net.kernels.cuda.attention, rogue_net.kernels.cuda.relative_attention"
    )
    program = f"import sys; sys.modules['triton'] = None; import {names}, rogue_net.kernels.cuda.varlen"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
