"""Relative positions by Triton kernels against the reference in float64: outputs and every gradient."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rogue_net import ObsBatch
from rogue_net.attention import ragged_attention
from rogue_net.batch.frames import Frames
from rogue_net.config import Kernels, RelposConfig
from rogue_net.kernels.cuda import launching
from rogue_net.kernels.cuda.relative_attention import refusal, with_pairs
from rogue_net.relative.relative_positions import Relative, RelativePositions
from tests.rogue_net.relative_cases import Case, make_case
from tests.system.rogue_net.cuda.devices import EACH_DEVICE

pytest.importorskip("triton")

LENGTHS = [(3, 4), (0, 0), (1, 0), (4, 3), (0, 0)]
ALL: dict[str, Any] = dict(
    kind="polar",
    extent=[5, 4],
    position_features=["x", "y"],
    interpolate=True,
    rotation_angle_feature="heading",
    per_entity_values=True,
    key_projection=True,
    value_projection=True,
    per_entity_projections=True,
)
XY = {"position_features": ["x", "y"]}
KINDS: dict[str, dict[str, Any]] = {
    "grid": {"kind": "grid", "extent": [2, 2], "value_gate": "none", **XY},
    "grid of three axes, with neighbours": {
        "kind": "grid", "extent": [1, 2, 1], "position_features": ["x", "y", "z"], "interpolate": True, "scale": 2.0,
    },
    "radial": {"kind": "radial", "extent": [4], "rotation_vec_features": ["dx", "dy"], "world_axis_at_zero": True, **XY},
    "distance": {
        "kind": "distance", "extent": [3], "position_features": ["x"], "value_projection": True, "value_gate": "sigmoid",
    },
    "polar": ALL,
    "polar, the next sector at the start of one": ALL | {"world_axis_at_zero": True, "next_sector_at_start": True},
    "polar without rocks": ALL | {"exclude_entities": ["Rock"], "value_gate": "none"},
    "values of each type": {"kind": "grid", "extent": [1, 1], "per_entity_values": True, "key_projection": True, **XY},
}  # fmt: skip


class Results(NamedTuple):
    out: Tensor
    gradients: dict[str, Tensor]


def attend(case: Case, kernels: Kernels, device: str, dtype: torch.dtype, padding: int = 0) -> Results:
    module, batch = copy.deepcopy(case.module).to(device, dtype), case.batch.to(torch.device(device))
    frames, num_tokens = batch.frames, batch.num_tokens
    generator = torch.Generator().manual_seed(num_tokens)
    shape = (3, num_tokens + padding, case.num_heads, case.head_width)
    numbers = torch.randn((4, *shape[1:]), generator=generator)
    qkv = numbers[:3].to(device, dtype).requires_grad_()
    x = torch.randn(shape[1], shape[2] * shape[3], generator=generator).to(device, dtype).requires_grad_()
    relative = module(batch, frames.rows.index if kernels == "none" else None)
    relative = relative._replace(gate=module.gate(x))
    out = ragged_attention(qkv.movedim(0, 1), frames, relative, kernels=kernels)
    out.backward(numbers[3].to(device, dtype))
    named = {"qkv": qkv, "x": x, **dict(module.named_parameters())}
    return Results(
        out.detach().cpu(),
        {name: (torch.zeros_like(each) if each.grad is None else each.grad).cpu() for name, each in named.items()},
    )


def assert_near(given: Tensor, expected: Tensor, name: str, least: float = 1e-6) -> None:
    error = (given.double() - expected).norm() / max(float(expected.norm()), least)
    assert error < 1e-5, f"{name}: {error:.1e}"


def assert_equal_to_the_reference(case: Case, device: str) -> None:
    given, expected = attend(case, "triton", device, torch.float32), attend(case, "none", "cpu", torch.float64)
    assert_near(given.out, expected.out, "out")
    # A row that all keys of a query share has the gradient 0: what is left of a sum of such numbers is no measure of error.
    summed = 0.1 * float(expected.gradients["qkv"].norm())
    for name, gradient in expected.gradients.items():
        assert_near(given.gradients[name], gradient, name, least=summed if name.startswith("key") else 1e-6)


def some_entities(lengths: list[tuple[int, int]]) -> bool:
    return any(map(sum, lengths))


def relative_of(case: Case) -> tuple[Frames, Relative]:
    return case.batch.frames, case.module(case.batch)


@EACH_DEVICE
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_compute_what_the_reference_computes(device: str, kind: str) -> None:
    assert_equal_to_the_reference(make_case(RelposConfig(**KINDS[kind]), LENGTHS), device)


@EACH_DEVICE
@pytest.mark.parametrize(("num_heads", "width"), [(1, 20), (3, 12)])
def test_heads_may_be_as_many_and_as_wide_as_they_like(device: str, num_heads: int, width: int) -> None:
    assert_equal_to_the_reference(
        make_case(RelposConfig(**ALL), [(2, 3), (5, 4)], num_heads, width, hide=False), device
    )


@EACH_DEVICE
def test_narrow_numbers_cost_their_roundoff(device: str) -> None:
    case = make_case(RelposConfig(**ALL), [(3, 4)], 1)
    frames = case.batch.frames
    heads, gate = torch.randn(3, 7, 1, 8, generator=torch.Generator().manual_seed(0)), torch.rand(7, 8)
    packed = case.module.double()(case.batch, frames.rows.index)._replace(gate=gate.double())
    exact = ragged_attention(heads.double().movedim(0, 1), frames, packed, kernels="none")
    batch, module = case.batch.to(torch.device(device)), case.module.float().to(device)
    relative = module(batch)._replace(gate=gate.to(device, torch.bfloat16))
    narrow = ragged_attention(heads.to(device, torch.bfloat16).movedim(0, 1), batch.frames, relative, kernels="triton")
    assert narrow.dtype == torch.bfloat16
    assert 1e-4 < float((narrow.detach().cpu().double() - exact.detach()).norm() / exact.detach().norm()) < 2e-2


@EACH_DEVICE
def test_frames_may_be_longer_than_tiles(device: str) -> None:
    assert_equal_to_the_reference(make_case(RelposConfig(**KINDS["grid"]), [(3, 0), (20, 21), (1, 1)], 1), device)


@EACH_DEVICE
def test_tokens_behind_the_last_frame_get_0_and_leave_no_gradient(device: str) -> None:
    case = make_case(RelposConfig(**ALL), [(5, 6)])
    padded = attend(case, "triton", device, torch.float32, padding=20)
    assert not padded.out[11:].any()
    assert not padded.gradients["qkv"][:, 11:].any()
    assert not padded.gradients["x"][11:].any()
    assert padded.out[:11].any()
    assert all(gradient.isfinite().all() for gradient in padded.gradients.values())


@EACH_DEVICE
@settings(max_examples=4)
@given(lengths=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=3).filter(some_entities))
def test_a_frame_does_not_depend_on_others(device: str, lengths: list[tuple[int, int]]) -> None:
    whole = make_case(RelposConfig(**ALL | {"value_gate": "none"}), lengths, 1)
    qkv = torch.randn((3, whole.batch.num_tokens, 1, 8), generator=torch.Generator().manual_seed(0))

    def attend_in(batch: ObsBatch, qkv: Tensor) -> Tensor:
        batch, module = batch.to(torch.device(device)), copy.deepcopy(whole.module).to(device)
        return ragged_attention(qkv.to(device).movedim(0, 1), batch.frames, module(batch), kernels="triton").detach()

    together = attend_in(whole.batch, qkv)
    for frame in range(len(lengths)):
        low, high = whole.batch.frames.offsets[frame : frame + 2].tolist()
        alone = attend_in(whole.batch[torch.tensor([frame])], qkv[:, low:high])
        torch.testing.assert_close(together[low:high], alone, atol=1e-6, rtol=1e-6)


@EACH_DEVICE
@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # the interpreter's, of what hidden entities see
def test_where_a_hidden_entity_is_changes_no_bit_of_what_visible_ones_get(device: str) -> None:
    case = make_case(RelposConfig(**ALL | {"value_gate": "none"}), [(6, 5)], 1, 8, 3)
    visible = case.batch.frames.visible
    assert visible is not None and 0 < int(visible.sum()) < 11
    before = attend(case, "triton", device, torch.float32).out
    hidden = case.batch.features["Ship"].values[~visible[:6]]
    for value in (1e4, math.nan):
        case.batch.features["Ship"].values[~visible[:6]] = torch.full_like(hidden, value)
        after = attend(case, "triton", device, torch.float32).out
        assert torch.equal(after[visible], before[visible])
        assert not torch.equal(after[~visible], before[~visible])


@EACH_DEVICE
def test_layers_share_what_depends_on_positions_alone(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(RelposConfig(**KINDS["grid"]), [(3, 4)])
    case = case._replace(batch=case.batch.to(torch.device(device)), module=case.module.to(device))
    frames, relative = relative_of(case)
    shared = with_pairs(relative, frames, 7)
    heads = torch.randn(7, 2, 8, device=device)
    expected = ragged_attention(torch.stack([heads] * 3, 1), frames, relative, kernels="triton")
    monkeypatch.setattr(RelativePositions, "pairs", None)  # nobody calls it again
    assert torch.equal(ragged_attention(torch.stack([heads] * 3, 1), frames, shared, kernels="triton"), expected)


def test_pairs_take_memory_for_their_terms_and_not_for_their_features(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(RelposConfig(**ALL), [(3, 4), (0, 0), (2, 0)])
    frames, relative = relative_of(case)
    pairs = with_pairs(relative, frames, 10).pairs
    assert pairs is not None
    assert pairs.first.tolist() == [0, 7, 14, 21, 28, 35, 42, 49, 51, 53]  # the last token is padding
    assert (pairs.rows.shape, pairs.rows.dtype) == ((4, 53), torch.int32)
    assert (pairs.coefficients.shape, pairs.coefficients.dtype) == ((4 + 4, 53), torch.float32)
    monkeypatch.setattr("rogue_net.relative.relative_positions.PAIRS_OF_TERMS_AT_ONCE", 10)
    for each, expected in zip(case.module.pairs(relative.geometry, frames, 10), pairs, strict=True):
        assert torch.equal(each, expected)


def test_room_for_more_pairs_than_there_are_changes_nothing() -> None:
    case = make_case(RelposConfig(**ALL), [(3, 4), (2, 0)])
    frames, relative = relative_of(case)
    expected = with_pairs(relative, frames, 9).pairs
    roomy = Frames(frames.offsets, frames.visible, num_pairs=99)
    pairs = with_pairs(relative, roomy, 9).pairs
    assert expected is not None and pairs is not None
    assert torch.equal(pairs.rows[:, :53], expected.rows)
    assert torch.equal(pairs.coefficients[:, :53], expected.coefficients)


def test_nothing_is_read_back_on_the_way_to_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the device `meta` hold nothing: what reads one fails. How many pairs there are is told, not counted."""
    launched: list[Any] = []
    monkeypatch.setattr(launching, "launch", lambda kernel, *_, **__: launched.append(kernel))
    monkeypatch.setattr("rogue_net.kernels.cuda.attention.check_launchable", lambda tensor: None)
    case = make_case(RelposConfig(**ALL), [(3, 4), (2, 0)], hide=False)
    geometry = case.module.geometry(case.batch)
    on_meta = type(geometry)(*(None if each is None else each.to("meta") for each in geometry))
    module = case.module.to("meta")
    frames = Frames(case.batch.frames.offsets.to("meta"), num_pairs=53)
    qkv = torch.zeros(9, 3, 2, 8, device="meta", requires_grad=True)
    relative = Relative(module, on_meta, *module.tables(), gate=module.gate(torch.zeros(9, 16, device="meta")))
    ragged_attention(qkv, frames, relative, kernels="triton").sum().backward()
    assert len(launched) == 2
    assert module.keys.grad is not None and module.keys.grad.shape == module.keys.shape


def test_deterministic_algorithms_have_no_kernels_for_relative_positions() -> None:
    case = make_case(RelposConfig(**KINDS["grid"]), [(2, 0)])
    frames, relative = relative_of(case)
    heads = torch.zeros(2, 2, 8, requires_grad=True)
    assert refusal() is None
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(ValueError, match=r"net\.backend=triton cannot be: .* in any order, .*; allowed: reference"):
            ragged_attention(torch.stack([heads] * 3, 1), frames, relative, kernels="triton")
        with torch.no_grad():
            ragged_attention(torch.stack([heads] * 3, 1), frames, relative, kernels="triton")
    finally:
        torch.use_deterministic_algorithms(False)
