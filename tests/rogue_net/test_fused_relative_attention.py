"""Relative positions by kernels against the reference in float64, outputs and every gradient."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rogue_net.attention import ragged_attention
from rogue_net.config import RelposConfig
from rogue_net.frames import Frames
from rogue_net.geometry import components_of, seen_from
from rogue_net.kernels.cpu.compiling import address, bind
from rogue_net.kernels.cpu.elementwise import Shape
from rogue_net.kernels.cpu.gates import KINDS, open_gates
from rogue_net.kernels.cpu.relative_attention import OwnScratch
from rogue_net.kernels.cpu.relative_terms import Pairs
from rogue_net.relative_positions import GATES
from tests.rogue_net.relative_cases import Case, make_case

AXES = ["x", "y", "z"]


@st.composite
def configs(draw: st.DrawFn) -> RelposConfig:
    kind = draw(st.sampled_from(["grid", "radial", "distance", "polar"]))
    dimensions = 2 if kind in ("radial", "polar") else draw(st.integers(1, 3))
    numbers = {"grid": dimensions, "radial": 1, "distance": 1, "polar": 2}[kind]
    rotation: dict[str, Any] = {}
    if dimensions == 2:
        rotations = [{}, {"rotation_angle_feature": "heading"}, {"rotation_vec_features": ["dx", "dy"]}]
        rotation = draw(st.sampled_from(rotations))
    flag = st.booleans()
    return RelposConfig(
        kind=kind,
        extent=draw(st.lists(st.integers(1, 4), min_size=numbers, max_size=numbers)),
        position_features=AXES[:dimensions],
        scale=draw(st.sampled_from([0.5, 1.0, 3.0])),
        interpolate=draw(flag),
        world_axis_at_zero=draw(flag),
        per_entity_values=draw(flag),
        key_projection=draw(flag),
        value_projection=draw(flag),
        per_entity_projections=draw(flag),
        value_gate=draw(st.sampled_from(["none", "linear", "relu", "gelu", "sigmoid"])),
        exclude_entities=draw(st.sampled_from([[], ["Rock"]])),
        **rotation,
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    config = draw(configs())
    lengths = draw(
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5).filter(
            lambda n: any(map(sum, n))
        )
    )
    num_heads, head_width = draw(st.sampled_from([1, 3])), 8  # every width is compiled anew
    seed = draw(st.integers(0, 2**20))
    return make_case(config, lengths, num_heads, head_width, seed, hide=draw(st.booleans()))


def far_from_borders(case: Case) -> bool:
    """Whether float32 and float64 find the same buckets."""
    if case.config.interpolate:
        return True
    index = Frames.of(case.batch).rows.index
    reference = copy.deepcopy(case.module).double()
    geometry = reference.geometry(case.batch)
    places = geometry.positions[index].double()
    facing = None if geometry.facing is None else geometry.facing[index].double().unsqueeze(2)
    components = components_of(seen_from(places.unsqueeze(2) - places.unsqueeze(1), facing))
    for position in reference._positions_on_axes(components, geometry.at_zero[index].double().unsqueeze(2)):
        border = position + reference.rounding
        if ((border - border.round()).abs() < 1e-5).any():
            return False
    return True


class Results(NamedTuple):
    out: Tensor
    gradients: dict[str, Tensor]


def attend(case: Case, backend: Any, dtype: torch.dtype) -> Results:
    module = copy.deepcopy(case.module).to(dtype)
    frames = Frames.of(case.batch)
    generator = torch.Generator().manual_seed(case.batch.num_tokens)
    shape = (3, case.batch.num_tokens, case.num_heads, case.head_width)
    qkv = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    x = torch.randn(shape[1], shape[2] * shape[3], generator=generator).to(dtype).requires_grad_()
    relative = module(case.batch, frames.rows.index if backend == "packed" else None)
    relative = relative._replace(gate=module.gate(x))
    out = ragged_attention(*qkv.unbind(0), frames, relative, backend=backend)
    out.backward(torch.randn(out.shape, generator=generator).to(dtype))
    named = {"qkv": qkv, "x": x, **dict(module.named_parameters())}
    return Results(
        out.detach(), {name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in named.items()}
    )


def assert_near(given: Tensor, expected: Tensor, name: str, least: float = 1e-6) -> None:
    error = (given.double() - expected).norm() / max(float(expected.norm()), least)
    assert error < 1e-5, f"{name}: {error:.1e}"


def assert_equal_to_the_reference(case: Case) -> None:
    fused, reference = attend(case, "fused", torch.float32), attend(case, "packed", torch.float64)
    assert_near(fused.out, reference.out, "out")
    # A row that all keys of a query share has the gradient 0: what is left of a sum of such numbers is no measure of error.
    summed = 0.1 * float(reference.gradients["qkv"].norm())
    for name, expected in reference.gradients.items():
        assert_near(fused.gradients[name], expected, name, least=summed if name.startswith("key") else 1e-6)


@settings(max_examples=60)
@given(case=cases().filter(far_from_borders))
def test_kernels_compute_what_the_reference_computes_in_float64(case: Case) -> None:
    assert_equal_to_the_reference(case)


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


@pytest.mark.parametrize("head_width", [16, 24, 64])
def test_heads_of_any_multiple_of_8_features(head_width: int) -> None:
    assert_equal_to_the_reference(
        make_case(RelposConfig(**ALL), [(5, 6), (0, 1), (20, 17)], 2, head_width, 0, hide=True)
    )


def test_things_that_stand_exactly_on_borders_are_in_the_same_buckets_for_all_backends() -> None:
    """On a grid nearly everything does: whole numbers, right angles and diagonals, 3-4-5."""
    for kind, extent in (("grid", [2, 2]), ("radial", [8]), ("distance", [6]), ("polar", [4, 6])):
        for scale in (1.0, 2.0, 0.1):
            config = RelposConfig(kind=kind, extent=extent, position_features=["x", "y"], scale=scale)  # type: ignore[arg-type]
            case = make_case(config, [(13, 12)], 1, 8, 0, hide=False)
            cells = torch.cartesian_prod(torch.arange(-2.0, 3), torch.arange(-2.0, 3)) * (scale if scale < 1 else 1)
            ships, rocks = case.batch.features["Ship"].values, case.batch.features["Rock"].values
            ships[:, :2], rocks[:, 1:3] = cells[:13], cells[13:]
            fused, reference = attend(case, "fused", torch.float32), attend(case, "packed", torch.float32)
            assert_near(fused.out, reference.out.double(), f"{kind} {scale}")


def test_a_hidden_entity_changes_no_bit_of_what_visible_ones_get() -> None:
    case = make_case(RelposConfig(**ALL), [(9, 8)], 2, 8, 3, hide=True)
    visible = case.batch.token_visible
    assert visible is not None and 0 < int(visible.sum()) < 17
    before = attend(case, "fused", torch.float32).out
    hidden = case.batch.features["Ship"].values[~visible[:9]]
    for value in (1e4, -3.0, math.nan):
        case.batch.features["Ship"].values[~visible[:9]] = torch.full_like(hidden, value)
        after = attend(case, "fused", torch.float32).out
        assert torch.equal(after[visible], before[visible])
        assert not torch.equal(after[~visible], before[~visible])


def test_a_frame_does_not_depend_on_others() -> None:
    config = RelposConfig(**ALL)
    whole = make_case(config, [(3, 2), (0, 0), (30, 31), (1, 0)], 2, 8, 5, hide=True)
    out = attend(whole, "fused", torch.float32)
    parts = []
    for frame in range(4):
        part = whole._replace(batch=whole.batch[torch.tensor([frame])])
        if part.batch.num_tokens:
            frames = Frames.of(part.batch)
            low, high = whole.batch.layout.offsets[frame : frame + 2].tolist()
            generator = torch.Generator().manual_seed(whole.batch.num_tokens)
            qkv = torch.randn((3, whole.batch.num_tokens, 2, 8), generator=generator)[:, low:high]
            x = torch.randn(whole.batch.num_tokens, 16, generator=generator)[low:high]
            relative = whole.module(part.batch)._replace(gate=whole.module.gate(x))
            parts.append(ragged_attention(*qkv.unbind(0), frames, relative, backend="fused").detach())
    torch.testing.assert_close(torch.cat(parts), out.out)


def test_two_threads_change_nothing_but_the_order_of_sums() -> None:
    case = make_case(RelposConfig(**ALL), [(40, 40)] * 16, 2, 8, 7, hide=True)
    one = attend(case, "fused", torch.float32)
    torch.set_num_threads(2)
    try:
        two, again = attend(case, "fused", torch.float32), attend(case, "fused", torch.float32)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(one.out, two.out)
    for name, gradient in one.gradients.items():
        assert_near(two.gradients[name], gradient.double(), name)
        assert torch.equal(two.gradients[name], again.gradients[name])


def test_passes_that_are_alive_at_once_keep_what_is_theirs() -> None:
    case = make_case(RelposConfig(**ALL), [(5, 6)], 2, 8, 0, hide=False)
    frames, relative = Frames.of(case.batch), case.module(case.batch)
    inputs = [torch.randn(3, 11, 2, 8, requires_grad=True) for _ in range(2)]

    def loss(qkv: Tensor) -> Tensor:
        return ragged_attention(*qkv.unbind(0), frames, relative, backend="fused").square().sum()

    alone = [torch.autograd.grad(loss(qkv), qkv, retain_graph=True)[0] for qkv in inputs]
    losses = [loss(qkv) for qkv in inputs]
    for one, qkv, expected in zip(losses, inputs, alone, strict=True):
        assert torch.equal(torch.autograd.grad(one, qkv, retain_graph=True)[0], expected)


def test_memory_does_not_grow_with_pairs() -> None:
    case = make_case(RelposConfig(**ALL), [(5, 5)], 2, 8, 0, hide=False)
    pairs = Pairs(case.module(case.batch))
    sizes = [OwnScratch(8, pairs, length)._held.numel() for length in (64, 128, 256)]
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])


@pytest.mark.parametrize("kind", ["linear", "relu", "gelu", "sigmoid"])
def test_gates_and_their_slopes_are_those_of_torch(kind: str) -> None:
    bias = torch.randn(24)
    products = torch.cat([torch.randn(50, 24) * 3, -bias.unsqueeze(0)])  # the last row: z = 0
    z = (products + bias).double().requires_grad_()
    expected = GATES[kind](z)
    (slopes,) = torch.autograd.grad(expected.sum(), z)
    opened, slope = products.clone(), torch.empty_like(products)
    bind(open_gates, *Shape.of(24))(KINDS[kind], address(opened), address(bias), len(opened), address(slope))
    torch.testing.assert_close(opened.double(), expected.detach(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(slope.double(), slopes, atol=1e-6, rtol=1e-6)


def test_a_single_sector_is_all_there_is_at_a_whole_turn_too() -> None:
    config = RelposConfig(
        kind="radial", extent=[1], position_features=["x", "y"], interpolate=True, per_entity_values=True
    )
    case = make_case(config, [(2, 0)], 1, 8, 0, hide=False)
    with torch.no_grad():
        case.batch.features["Ship"].values[:, :2] = torch.tensor([[0.0, 0.0], [1.0, -1e-10]])  # 1 - 1e-11 turns are 1
        case.module.values[1] = torch.nan  # of rocks, which are not there
    q, k, v = torch.randn(3, 2, 1, 8, generator=torch.Generator().manual_seed(0))
    frames = Frames.of(case.batch)
    fused = ragged_attention(q, k, v, frames, case.module(case.batch), backend="fused")
    packed = ragged_attention(q, k, v, frames, case.module(case.batch, frames.rows.index))
    torch.testing.assert_close(fused, packed)


def test_gradients_are_those_of_the_statistics_that_the_forward_pass_saw() -> None:
    config = RelposConfig(kind="distance", extent=[3], position_features=["x"], key_projection=True)
    gradients = []
    for more in (False, True):
        case = make_case(config, [(3, 2)], 1, 8, 0, hide=False)
        q, k, v = torch.randn(3, 5, 1, 8, generator=torch.Generator().manual_seed(0))
        out = ragged_attention(q, k, v, Frames.of(case.batch), case.module(case.batch), backend="fused")
        if more:
            case.module.update_normalization(make_case(config, [(9, 9)], 1, 8, 1, hide=False).batch)
        (out * torch.arange(out.numel()).view_as(out)).sum().backward()
        gradients.append(case.module.key_projections[0].weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)
