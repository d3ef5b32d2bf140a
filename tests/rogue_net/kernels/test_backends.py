"""The reference computes what it computes in float64, whatever the settings; a program takes its place where it can, and else a
line says why not."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.learning.learner import can_be_compiled
from rogue_net import FrameKeys, ObsBatch, RogueNet, RogueNetConfig, keyed
from rogue_net.config import RelposConfig
from rogue_net.inputs.embedding import Embedding
from rogue_net.kernels import select
from tests.rogue_net.backends import (
    ACTIONS,
    ALL_OF_RELPOS,
    FLAG,
    RELPOS_OF_PROGRAM,
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

# --- The reference; `test_program.py` has the programs


@settings(max_examples=20)
@given(config=st.one_of(plain_configs(), relative_configs(of_program=False)), scene=scenes(many=True))
def test_a_network_of_the_reference_and_all_its_gradients_are_those_of_float64(
    config: RogueNetConfig, scene: Scene
) -> None:
    batch = scene.batch
    assume(away_from_edges(batch, config.relpos))
    net = make_net(config, batch, scene.seed)
    actions = net.act(batch, generator=torch.Generator().manual_seed(scene.seed)).actions
    exact = network(twin(net, "reference", torch.float64), as_double(batch), actions)
    assert_near(network(twin(net, "reference"), batch, actions), exact)


# --- What no program can compute

BATCH = even_scene(3, 4).batch
WEIGHT = torch.empty(0)


def with_places(**options: Any) -> RelposConfig:
    return RelposConfig(kind="distance", extent=[3], position_features=["x", "y"], exclude_entities=[FLAG], **options)


KEYS = FrameKeys(keyed(3, torch.arange(3)))
NO_PROGRAM = {
    "the width of a head, net.d_model=24 / net.n_head=2 = 12, is not a multiple of 8": {"d_model": 24},
    "net.dropout=0.25 has no kernels on CPUs": {"dropout": 0.25},
    "net.precision=bf16 has no kernels on CPUs": {"precision": "bf16"},
    "net.pooling=mean has no kernels on CPUs": {"pooling": "mean"},
    "net.relpos.key_projection=true has no kernels on CPUs": {"relpos": with_places(key_projection=True)},
    "net.relpos.value_projection=true has no kernels on CPUs": {"relpos": with_places(value_projection=True)},
    "net.relpos.value_gate=none has no kernels on CPUs": {"relpos": with_places(value_gate="none")},
}
EACH_OF_NO_PROGRAM = pytest.mark.parametrize(("reason", "options"), NO_PROGRAM.items(), ids=str)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What was said of backends, as if nothing had been said before."""
    caplog.set_level(logging.INFO, logger="rogue_net")
    select.say_once.cache_clear()
    yield lambda: [record.getMessage() for record in caplog.records]
    select.say_once.cache_clear()


@pytest.fixture
def has_bf16(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Make this CPU one that has instructions for bf16, or has none."""

    def say(there: bool) -> None:
        monkeypatch.setattr(select, "has_bf16", lambda: there)
        select.why_not_precision.cache_clear()

    yield say
    select.why_not_precision.cache_clear()


def acted(net: RogueNet, batch: ObsBatch = BATCH) -> dict[str, Tensor]:
    """What a network does where a program acts if it can."""
    result = net.act(batch, generator=KEYS)
    actions = {f"actions of {name}": ragged.values for name, ragged in result.actions.items()}
    log_probs = {name: ragged.values for name, ragged in result.log_probs.items()}
    return {"values": result.values, **actions, **log_probs}


def forbid_modules(net: RogueNet, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("modules computed it")

    monkeypatch.setattr(Embedding, "forward", refuse)
    for block in net.transformer.blocks:
        monkeypatch.setattr(block, "forward", refuse)


@EACH_OF_NO_PROGRAM
def test_fused_refuses_by_name_what_has_no_kernels_and_else_modules_act_which_is_said_once(
    reason: str, options: dict[str, Any], said: Callable[[], list[str]], has_bf16: Callable[[bool], None]
) -> None:
    has_bf16(True)
    with pytest.raises(ValueError) as error:
        select.uses_program(make_config(**options), WEIGHT)
    assert str(error.value) == f"net.backend=fused cannot be: {reason}; allowed: reference, auto"
    assert not select.uses_program(make_config(**options, backend="reference"), WEIGHT)
    assert select.uses_program(make_config(), WEIGHT)
    net = make_net(make_config(**options, backend="auto"))
    assert select.why_no_program(net.config, net.value_head.project.weight) == reason
    for _ in range(3):
        torch.testing.assert_close(acted(net), acted(twin(net, "reference")), rtol=0, atol=0)
        assert not can_be_compiled(ActorCritic(net, None))
    assert said() == [f"PyTorch's modules take the place of the compiled program, which is slower: {reason}"]


@pytest.mark.parametrize("options", [{}, {"relpos": RelposConfig(**RELPOS_OF_PROGRAM)}, {"n_layer": 0}])
def test_a_program_acts_where_it_can_and_nothing_is_said(
    options: dict[str, Any], said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    nets = [make_net(make_config(**options, backend=name)) for name in ("auto", "fused")]
    expected = [twin(net, "reference").act(BATCH, greedy=True).values for net in nets]
    for net, values in zip(nets, expected, strict=True):
        forbid_modules(net, monkeypatch)
        torch.testing.assert_close(net.act(BATCH, greedy=True).values, values, atol=1e-5, rtol=1e-5)
        acted(net)
        assert can_be_compiled(ActorCritic(net, None))
    reference = make_net(make_config(**options, backend="reference"))
    assert reference.program() is None and not can_be_compiled(ActorCritic(reference, None))
    assert said() == []


def test_modules_draw_what_a_program_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """At other temperatures, from a generator, and with logits."""
    net = make_net(make_config())
    generator = torch.Generator().manual_seed(0)
    ways: list[dict[str, Any]] = [
        {"generator": generator},
        {"generator": KEYS, "temperature": 2.0},
        {"greedy": True, "logits": True},
        {"generator": KEYS, "logits": True},
    ]
    for way in ways:
        net.act(BATCH, **way)
    assert net._program is None
    assert net.program() is not None
    forbid_modules(net, monkeypatch)
    for way in ways:
        with pytest.raises(AssertionError, match="modules computed it"):
            net.act(BATCH, **way)


def test_other_numbers_than_float32_and_other_devices_are_left_to_modules(said: Callable[[], list[str]]) -> None:
    net, batch = make_net(make_config()), as_double(BATCH)
    exact, other = twin(net, "reference", torch.float64), twin(net, "auto", torch.float64)
    torch.testing.assert_close(acted(other, batch), acted(exact, batch), rtol=0, atol=0)
    assert not can_be_compiled(ActorCritic(other, None))
    elsewhere = torch.empty(3, 16, device="meta")
    assert not select.uses_program(make_config(backend="auto"), elsewhere)
    for weight, reason in (
        (torch.empty(0, dtype=torch.float64), "it computes in float32, and the network in float64"),
        (elsewhere, "it computes on the CPU, and the network is on meta"),
    ):
        with pytest.raises(ValueError, match=f"net.backend=fused cannot be: {reason}; allowed: reference, auto"):
            select.uses_program(make_config(), weight)
    [line] = said()  # of other devices nothing is said
    assert line.endswith("it computes in float32, and the network in float64")


@pytest.mark.parametrize("relpos", [RelposConfig(), RelposConfig(**RELPOS_OF_PROGRAM)], ids=["plain", "relative"])
def test_a_program_computes_the_same_whatever_tensors_torch_makes_by_default(relpos: RelposConfig) -> None:
    net = make_net(make_config(relpos=relpos))
    expected = acted(net)
    torch.set_default_dtype(torch.float64)
    try:
        torch.testing.assert_close(acted(copy.deepcopy(net)), expected, rtol=0, atol=0)
        torch.set_default_device("meta")
        torch.testing.assert_close(acted(net), expected, rtol=0, atol=0)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


def test_dropout_is_active_while_learning_only() -> None:
    net = make_net(make_config(backend="auto", dropout=0.3))
    plain = make_net(make_config(backend="reference"))
    plain.load_state_dict(net.state_dict())
    expected, actions = plain.value(BATCH), plain.act(BATCH, generator=KEYS).actions
    torch.testing.assert_close(acted(net.train())["values"], expected)
    torch.testing.assert_close(net.eval().evaluate(BATCH, actions).values, expected)
    dropped = []
    for _ in range(2):
        torch.manual_seed(5)
        dropped.append(network(net.train(), BATCH, actions).outputs)
    torch.testing.assert_close(dropped[0], dropped[1], rtol=0, atol=0)
    assert not torch.allclose(dropped[0]["value"], expected, atol=1e-3)


# --- bfloat16


@pytest.mark.parametrize(
    ("precision", "message"),
    [
        ("bf16", r"net.precision=bf16 cannot be: this CPU \(.+\) has no instructions for it; allowed: fp32"),
        ("tf32", "net.precision=tf32 cannot be: it is for device=cuda; allowed: fp32"),
    ],
)
def test_a_cpu_refuses_a_precision_that_it_has_not_by_name_and_cuda_has_all(
    precision: str, message: str, has_bf16: Callable[[bool], None]
) -> None:
    has_bf16(False)
    for backend in ("auto", "fused", "reference"):
        config = make_config(precision=precision, backend=backend)
        with pytest.raises(ValueError, match=message):
            make_net(config).act(BATCH, greedy=True)
        with pytest.raises(ValueError, match=message):
            select.uses_program(config, WEIGHT)
        assert select.why_not_precision(config, "cuda") is None


@pytest.mark.parametrize(
    "options",
    [{}, {"relpos": RelposConfig(**ALL_OF_RELPOS)}, {"pooling": "meanmax"}],
    ids=["plain", "relative", "pooling"],
)
def test_bf16_rounds_products_and_nothing_else(options: dict[str, Any], has_bf16: Callable[[bool], None]) -> None:
    has_bf16(True)
    batch = even_scene(10, 8).batch
    net = make_net(make_config((32, 2), backend="auto", **options), batch)
    rough = RogueNet(replace(net.config, precision="bf16"), SPACE, ACTIONS, {"fuel": 2})
    rough.load_state_dict(net.state_dict())
    actions = net.act(batch).actions
    evaluation = rough.evaluate(batch, actions)
    numbers = [evaluation.values, *evaluation.logits.values(), *(each.values for each in evaluation.log_probs.values())]
    assert all(each.dtype == torch.float32 for each in numbers)
    exact, rounded = blocks_of(net, batch), blocks_of(rough, batch)
    assert_tensor_near(rounded.outputs["out"], exact.outputs["out"], "out", bound=0.01)
    assert not torch.allclose(rounded.outputs["out"], exact.outputs["out"], rtol=1e-5, atol=1e-5)
    of_all = [torch.cat([each.flatten() for each in results.gradients.values()]) for results in (rounded, exact)]
    assert_tensor_near(*of_all, "gradients", bound=0.02)
    assert all(each.dtype == torch.float32 for each in rounded.gradients.values())
