"""The backends compute what the reference computes in float64, whatever the settings; what one cannot, it refuses by name."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings

from rogue_net import RogueNet, RogueNetConfig, backend, transformer
from rogue_net.config import Backend, RelposConfig
from rogue_net.frames import Frames
from rogue_net.kernels.cpu.products import multiply_bf16
from tests.rogue_net.backends import (
    ACTIONS,
    ALL_OF_RELPOS,
    EACH,
    SPACE,
    Scene,
    as_double,
    assert_near,
    assert_tensor_near,
    away_from_edges,
    blocks_of,
    even_scene,
    make_config,
    make_net,
    network,
    plain_configs,
    relative_configs,
    scenes,
    twin,
)


def assert_blocks_exact(name: Backend, config: RogueNetConfig, scene: Scene) -> None:
    batch = scene.batch
    net = make_net(config, batch, scene.seed)
    exact = blocks_of(twin(net, "reference", torch.float64), as_double(batch), scene.seed)
    assert_near(blocks_of(twin(net, name), batch, scene.seed), exact)


def assert_network_exact(name: Backend, config: RogueNetConfig, scene: Scene) -> None:
    batch = scene.batch
    net = make_net(config, batch, scene.seed)
    actions = net.act(batch, generator=torch.Generator().manual_seed(scene.seed)).actions
    exact = network(twin(net, "reference", torch.float64), as_double(batch), actions)
    assert_near(network(twin(net, name), batch, actions), exact)


@EACH
@settings(max_examples=40)
@given(config=plain_configs(), scene=scenes())
def test_blocks_and_their_gradients_are_those_of_float64(name: Backend, config: RogueNetConfig, scene: Scene) -> None:
    assert_blocks_exact(name, config, scene)


@EACH
@settings(max_examples=60)
@given(config=relative_configs(), scene=scenes())
def test_blocks_with_relative_positions_and_their_gradients_are_those_of_float64(
    name: Backend, config: RogueNetConfig, scene: Scene
) -> None:
    assume(away_from_edges(scene.batch, config.relpos))
    assert_blocks_exact(name, config, scene)


@pytest.mark.parametrize("shape", [(32, 2), (64, 2), (80, 2)])
def test_relative_positions_in_heads_of_other_widths(shape: tuple[int, int]) -> None:
    config = make_config(shape, relpos=RelposConfig(**ALL_OF_RELPOS))
    assert_blocks_exact("fused", config, Scene([(5, 6, 1), (0, 0, 0), (1, 0, 0), (17, 20, 0)], seed=1, hide=True))


@EACH
@settings(max_examples=25)
@given(config=plain_configs(), scene=scenes(many=True))
def test_a_network_and_all_its_gradients_are_those_of_float64(
    name: Backend, config: RogueNetConfig, scene: Scene
) -> None:
    assert_network_exact(name, config, scene)


@EACH
@settings(max_examples=25)
@given(config=relative_configs(), scene=scenes(many=True))
def test_a_network_with_relative_positions_and_all_its_gradients_are_those_of_float64(
    name: Backend, config: RogueNetConfig, scene: Scene
) -> None:
    assume(away_from_edges(scene.batch, config.relpos))
    assert_network_exact(name, config, scene)


@EACH
@pytest.mark.parametrize("relpos", [RelposConfig(), RelposConfig(**ALL_OF_RELPOS)], ids=["plain", "relative"])
def test_a_crowd_of_500_among_frames_of_5_is_computed_as_if_alone(name: Backend, relpos: RelposConfig) -> None:
    batch = Scene([(2, 3, 0)] * 20 + [(200, 300, 0)] + [(2, 3, 0)] * 20, seed=2, hide=True).batch
    net = make_net(make_config((16, 2), relpos=relpos, backend=name), batch)
    tokens = net.transformer(net.embedding(batch), batch).detach()
    offsets = batch.layout.offsets.tolist()
    for frame in (0, 20, 40):
        single = batch[torch.tensor([frame])]
        alone = net.transformer(net.embedding(single), single).detach()
        assert_tensor_near(tokens[offsets[frame] : offsets[frame + 1]], alone, f"frame {frame}", bound=1e-6)


# --- What a backend cannot do

BATCH = even_scene(3, 4).batch
NO_KERNELS = {
    "net.pooling=meanmax has no kernels": {"pooling": "meanmax"},
    "net.d_model=24 / net.n_head=2 = 12, is not a multiple of 8": {"d_model": 24},
}


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What was said of backends, as if nothing had been said before."""
    caplog.set_level(logging.INFO, logger="rogue_net")
    backend._say_once.cache_clear()
    yield lambda: [record.getMessage() for record in caplog.records]
    backend._say_once.cache_clear()


def outcomes(net: RogueNet) -> dict[str, torch.Tensor]:
    actions = make_net(make_config()).act(BATCH, generator=torch.Generator().manual_seed(0)).actions
    return network(net, BATCH, actions).outputs


@pytest.mark.parametrize(("message", "options"), NO_KERNELS.items(), ids=str)
def test_fused_refuses_by_name_what_has_no_kernels(message: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"net.backend=fused cannot be: .*{message}; allowed: reference, auto"):
        net = make_net(make_config(**options))  # where the settings tell
        net.act(BATCH)


@pytest.mark.parametrize(("message", "options"), NO_KERNELS.items(), ids=str)
def test_auto_falls_back_where_there_are_no_kernels_and_says_so_once(
    message: str, options: dict[str, Any], said: Callable[[], list[str]]
) -> None:
    net = make_net(make_config(**options, backend="auto"))
    given_outcomes = outcomes(net)
    for _ in range(3):
        net.act(BATCH)
    [line] = said()
    assert message in line and "net.backend=auto takes the reference" in line
    torch.testing.assert_close(given_outcomes, outcomes(twin(net, "reference")))


def test_auto_takes_the_kernels_where_it_can_and_says_nothing(
    said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = make_net(make_config(backend="auto"))
    forbid_modules(net, monkeypatch)
    outcomes(net)
    assert said() == []


def forbid_modules(net: RogueNet, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a block was computed by its modules")

    for block in net.transformer.blocks:
        monkeypatch.setattr(block, "forward", refuse)


def test_fused_refuses_other_numbers_than_float32_and_auto_falls_back(said: Callable[[], list[str]]) -> None:
    net = make_net(make_config())
    with pytest.raises(ValueError, match="it computes in float32, and the network in float64"):
        outcomes(twin(net, "fused", torch.float64))
    exact = outcomes(twin(net, "reference", torch.float64))
    torch.testing.assert_close(outcomes(twin(net, "auto", torch.float64)), exact)
    [line] = said()
    assert "float64" in line


def test_fused_refuses_other_devices_and_auto_falls_back(said: Callable[[], list[str]]) -> None:
    elsewhere = torch.empty(3, 16, device="meta")
    with pytest.raises(ValueError, match="it computes on the CPU, and the network is on meta"):
        backend.choose(make_config(), elsewhere, drop=False)
    assert backend.choose(make_config(backend="auto"), elsewhere, drop=False) == backend.REFERENCE
    assert len(said()) == 1


def test_where_torch_makes_other_tensors_by_default_auto_falls_back(said: Callable[[], list[str]]) -> None:
    net = make_net(make_config(backend="auto"))
    expected = twin(net, "reference").value(BATCH)
    torch.set_default_dtype(torch.float64)
    try:
        torch.testing.assert_close(net.value(BATCH), expected)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        torch.testing.assert_close(net.value(BATCH), expected)
    assert [line.rpartition(" they are ")[2] for line in said()] == ["torch.float64 on cpu", "torch.float32 on meta"]


def test_attention_dropout_has_no_kernels_while_learning_only(said: Callable[[], list[str]]) -> None:
    options = {"attention_dropout": 0.25}
    net = make_net(make_config(**options))
    net.act(BATCH)
    actions = net.act(BATCH).actions
    with pytest.raises(ValueError, match="net.attention_dropout=0.25 has no kernels, and is active while learning"):
        net.evaluate(BATCH, actions)
    net.eval().evaluate(BATCH, actions)
    twin(net, "auto").eval().evaluate(BATCH, actions)
    assert said() == []
    twin(net, "auto").train().evaluate(BATCH, actions)
    assert len(said()) == 1


def test_other_dropout_is_computed_by_both_backends_and_the_same() -> None:
    net = make_net(make_config(embedding_dropout=0.3, residual_dropout=0.3))
    actions = net.act(BATCH).actions
    results = {}
    for name in ("fused", "reference"):
        torch.manual_seed(5)
        results[name] = network(twin(net, name).train(), BATCH, actions)  # type: ignore[arg-type]
    torch.testing.assert_close(results["fused"].outputs, results["reference"].outputs)
    undropped = network(net.eval(), BATCH, actions)
    assert not torch.allclose(results["fused"].outputs["value"], undropped.outputs["value"], atol=1e-3)


def test_without_a_compiler_fused_refuses_and_auto_works() -> None:
    program = """
import torch
from tests.rogue_net.backends import even_scene, make_config, make_net
batch = even_scene(2, 3).batch
net = make_net(make_config(backend="auto"))
net.evaluate(batch, net.act(batch).actions).values.sum().backward()
try:
    make_net(make_config()).act(batch)
except ValueError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True
    )
    assert "net.backend=fused cannot be: Numba is switched off by NUMBA_DISABLE_JIT" in done.stdout, done.stderr


# --- CUDA, as far as it can be told without


@pytest.fixture
def like_cuda(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """(3, 16) tokens on a device that counts as CUDA."""
    monkeypatch.setattr(backend, "TRITON_DEVICES", {"meta"})
    return torch.empty(3, 16, device="meta")


def test_on_cuda_attention_is_tritons_and_of_long_frames_in_bf16_torchs(like_cuda: torch.Tensor) -> None:
    for name in ("auto", "fused"):
        choice = backend.choose(make_config(backend=name), like_cuda, drop=True)
        assert choice == backend.Choice(trunk=False, attention="triton", products="fp32")
    assert backend.choose(make_config(backend="reference"), like_cuda, drop=False) == backend.REFERENCE
    rough = make_config(precision="bf16", backend="auto")
    offsets = torch.tensor([0, 3], device="meta")
    long = torch.empty(1000, 16, device="meta")
    assert backend.choose(rough, long, Frames(offsets), drop=False).attention == "varlen"
    assert backend.choose(rough, like_cuda, Frames(offsets), drop=False).attention == "triton"
    assert backend.choose(rough, long, Frames(offsets, padded=True), drop=False).attention == "triton"
    hides = Frames(offsets, visible=torch.ones(1000, dtype=torch.bool, device="meta"))
    assert backend.choose(rough, long, hides, drop=False).attention == "triton"
    assert backend.choose(make_config(precision="tf32", backend="auto"), like_cuda, drop=False).products == "tf32"


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("net.pooling=mean has no kernels", {"pooling": "mean"}),
        ("the width of a head, net.d_model / net.n_head = 160, is above 128", {"d_model": 160, "n_head": 1}),
        ("net.attention_dropout=0.5 has no kernels", {"attention_dropout": 0.5}),
    ],
)
def test_what_triton_cannot_do_is_refused_by_name_and_auto_falls_back(
    message: str, options: dict[str, Any], like_cuda: torch.Tensor, said: Callable[[], list[str]]
) -> None:
    with pytest.raises(ValueError, match=f"net.backend=fused cannot be: .*{message}.*; allowed: reference, auto"):
        backend.choose(make_config(**options), like_cuda, drop=True)
    choice = backend.choose(make_config(backend="auto", precision="bf16", **options), like_cuda, drop=True)
    assert choice == backend.REFERENCE._replace(products="bf16")
    assert len(said()) == 1


def test_modules_round_products_to_bf16_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = even_scene(10, 8).batch
    net = make_net(make_config((32, 2), backend="reference"), batch)
    exact = blocks_of(net, batch)
    rounding = backend.REFERENCE._replace(products="bf16")
    monkeypatch.setattr(transformer, "choose", lambda *_, **__: rounding)
    evaluation = net.evaluate(batch, net.act(batch).actions)
    numbers = [evaluation.values, *evaluation.logits.values(), *evaluation.log_probs.values()]
    assert all(each.dtype == torch.float32 for each in numbers)
    rounded = blocks_of(net, batch)
    assert_tensor_near(rounded.outputs["out"], exact.outputs["out"], "out", bound=0.01)
    assert not torch.equal(rounded.outputs["out"], exact.outputs["out"])


# --- bfloat16


def test_a_cpu_without_instructions_for_bf16_refuses_it_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "has_bf16", lambda: False)
    backend.why_not_precision.cache_clear()
    with pytest.raises(ValueError, match=r"net.precision=bf16 cannot be: this CPU \(.+\) has no instructions for it"):
        make_net(make_config(precision="bf16")).act(BATCH)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("net.backend=reference computes in fp32", {"backend": "reference"}),
        ("net.pooling=mean has no kernels", {"pooling": "mean"}),
        ("net.residual_dropout=0.1 leaves the products to modules", {"residual_dropout": 0.1}),
        ("net.attention_dropout=0.1 leaves the products to modules", {"attention_dropout": 0.1}),
    ],
)
def test_bf16_is_refused_where_nothing_would_compute_in_it(
    message: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "has_bf16", lambda: True)
    backend.why_not_precision.cache_clear()
    with pytest.raises(ValueError, match=f"net.precision=bf16 cannot be: {message}.*; allowed: fp32"):
        make_net(make_config(precision="bf16", **options)).act(BATCH)


def test_bf16_is_refused_on_tokens_that_nothing_would_compute_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "has_bf16", lambda: True)
    backend.why_not_precision.cache_clear()
    config, elsewhere = make_config(precision="bf16", backend="auto"), torch.empty(3, 16, device="meta")
    with pytest.raises(ValueError, match="net.precision=bf16 cannot be: .* the network is on meta; allowed: fp32"):
        backend.choose(config, elsewhere, drop=False)


def test_tf32_is_for_cuda() -> None:
    with pytest.raises(ValueError, match="net.precision=tf32 cannot be: it is for device=cuda; allowed: fp32"):
        make_net(make_config(precision="tf32")).act(BATCH)
    for precision in ("tf32", "bf16"):
        backend.check_backend(make_config(precision=precision, backend="reference"), "cuda")


def test_each_bf16_product_is_rounded_once_and_added_up_in_float32() -> None:
    x, weight = torch.randn(64, 300), torch.randn(300, 32)
    exact = x.bfloat16().double() @ weight.bfloat16().double()
    out = torch.empty(64, 32)
    multiply_bf16(x, weight, out)
    assert torch.equal(out.bfloat16().float(), out)  # the result has 8 bits
    assert (
        float(((out - exact).abs() / exact.abs().clamp(min=1)).max()) < 2**-8
    )  # and one rounding, not one for each summand
    total = torch.full((64, 32), 1000.0)
    multiply_bf16(x, weight, total, add=True)
    assert torch.equal(total, 1000.0 + out)  # in bfloat16 it would be a multiple of 4


@pytest.mark.parametrize("relpos", [RelposConfig(), RelposConfig(**ALL_OF_RELPOS)], ids=["plain", "relative"])
def test_bf16_rounds_products_and_nothing_else(relpos: RelposConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "has_bf16", lambda: True)
    backend.why_not_precision.cache_clear()
    batch = even_scene(10, 8).batch
    net = make_net(make_config((32, 2), relpos=relpos), batch)
    rough = RogueNet(replace(net.config, precision="bf16"), SPACE, ACTIONS, {"fuel": 2})
    rough.load_state_dict(net.state_dict())
    actions = net.act(batch).actions
    evaluation = rough.evaluate(batch, actions)
    numbers = [evaluation.values, *evaluation.logits.values(), *evaluation.log_probs.values()]
    assert all(each.dtype == torch.float32 for each in numbers)
    exact, rounded = blocks_of(net, batch), blocks_of(rough, batch)
    assert_tensor_near(rounded.outputs["out"], exact.outputs["out"], "out", bound=0.01)
    assert not torch.allclose(rounded.outputs["out"], exact.outputs["out"], rtol=1e-5, atol=1e-5)
    of_all = [torch.cat([each.flatten() for each in results.gradients.values()]) for results in (rounded, exact)]
    assert_tensor_near(*of_all, "gradients", bound=0.02)
    assert all(each.dtype == torch.float32 for each in rounded.gradients.values())
