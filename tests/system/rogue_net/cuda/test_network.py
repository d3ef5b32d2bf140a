"""A whole network whose attention is Triton's: what it computes is what the reference does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rogue_net import ObsBatch, RogueNet
from rogue_net.batch.padding import Capacity, fill_up, pad_ragged, padded
from rogue_net.config import RelposConfig
from rogue_net.kernels import select
from tests.rogue_net.backends import ACTIONS, ALL_OF_RELPOS, SPACE, Scene, make_config
from tests.system.rogue_net.cuda.devices import EACH_DEVICE

pytest.importorskip("triton")
CROWD = Scene([(2, 1, 1), (0, 0, 0), (9, 8, 2), (1, 0, 0)], seed=3, hide=True).batch
OPTIONS: dict[str, dict[str, Any]] = {"plain": {}, "relative": {"relpos": RelposConfig(**ALL_OF_RELPOS)}}


def gradients(net: RogueNet, batch: ObsBatch, actions: dict[str, Any], real: int) -> dict[str, torch.Tensor]:
    """Of the sum of all numbers of the first `real` frames, and those numbers."""
    evaluation = net.evaluate(batch, actions)
    loss = evaluation.values[:real].sum()
    for name, log_probs in evaluation.log_probs.items():
        # the others are left out by a factor, as in a loss
        counted = fill_up(torch.ones(int(actions[name].offsets[real]), device=loss.device), len(log_probs))
        loss = loss + ((log_probs + evaluation.entropies[name]) * counted).sum()
    found = torch.autograd.grad(loss, list(net.parameters()))
    return {"values": evaluation.values[:real].detach()} | {
        name: gradient for (name, _), gradient in zip(net.named_parameters(), found, strict=True)
    }


@EACH_DEVICE
@pytest.mark.parametrize("full", [False, True], ids=["ragged", "padded"])
@pytest.mark.parametrize("name", OPTIONS)
def test_numbers_and_gradients_are_those_of_the_reference(
    name: str, full: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    there = torch.device(device)
    reference = RogueNet(make_config(backend="reference", **OPTIONS[name]), SPACE, ACTIONS)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    kernels = RogueNet(make_config(backend="fused", **OPTIONS[name]), SPACE, ACTIONS)
    kernels.load_state_dict(reference.state_dict())
    actions = reference.act(CROWD).actions
    expected = gradients(reference, CROWD, actions, len(CROWD))

    monkeypatch.setattr(select, "TRITON_DEVICES", {there.type})
    batch = CROWD
    if full:
        capacity = Capacity.of(CROWD, token_pairs=True)
        batch = padded(CROWD, capacity)
        actions = {key: pad_ragged(each, capacity.actors[key], capacity.frames) for key, each in actions.items()}
    moved = {key: each.map(lambda tensor: tensor.to(there)) for key, each in actions.items()}
    found = gradients(kernels.to(there), batch.to(there), moved, len(CROWD))
    for key, tensor in expected.items():
        torch.testing.assert_close(
            found[key].cpu(), tensor, atol=2e-4, rtol=2e-4, msg=lambda text, key=key: f"{key}: {text}"
        )
