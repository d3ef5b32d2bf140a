"""Section `parity`: differences between the device's outputs and the CPU's, for every backend and precision.

The CPU computes with `net.backend=reference` in float32. A difference is the largest absolute one; for gradients, also the norm
of the difference over the norm of the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from policy_cases import Frames, minesweeper_frames, ragged_frames
from torch import Tensor

from gpu.cases import network, variants
from gpu.results import Section
from rogue_net import FrameKeys, ObsBatch, RaggedTensor, RogueNet, RogueNetConfig, keyed


def measure(section: Section) -> None:
    """Compare every case with every backend and precision."""
    for name, (frames, relpos) in cases(tiny=section.tiny).items():
        config = network(32, 2, "reference", "fp32", frames.relpos() if relpos else None)
        here = Sides.of(frames, config, torch.device("cpu"))
        for backend, precision in variants(section.device):
            settings = {"frames": name, "backend": backend, "precision": precision}
            other = partial(replace, config, backend=backend, precision=precision)
            section.measured("parity", settings, partial(differences, frames, here, other, section.device))


def cases(*, tiny: bool) -> dict[str, tuple[Frames, bool]]:
    """Name -> frames, and whether to use relative positions."""
    lengths = np.random.default_rng(0).integers(1, 40, 4 if tiny else 128).tolist()
    ragged = ragged_frames("1-39", lengths, select=True)
    return {
        "1-39, select-entity": (ragged, False),
        "1-39, select-entity, relative positions": (ragged, True),
        "MineSweeper": (minesweeper_frames(4 if tiny else 256), False),
    }


class Sides(NamedTuple):
    """Outputs of a network on one device, copied to the host."""

    actions: dict[str, RaggedTensor]  # sampled with keyed noise
    outputs: dict[str, Tensor]
    gradients: dict[str, Tensor]

    @staticmethod
    def of(
        frames: Frames, config: RogueNetConfig, device: torch.device, actions: Mapping[str, RaggedTensor] | None = None
    ) -> Sides:
        """Sample actions, and evaluate `actions`, or the sampled ones."""
        torch.manual_seed(0)
        net = spread_weights(RogueNet(config, frames.obs_space, frames.action_space))
        net.update_normalization(ObsBatch.from_vec_obs(frames.obs))
        net = net.to(device)
        batch = ObsBatch.from_vec_obs(frames.obs, device)
        keys = keyed(keyed(7, torch.arange(len(batch))), torch.tensor(0)).to(device)
        drawn = net.act(batch, generator=FrameKeys(keys)).actions
        chosen = drawn if actions is None else {name: _to(action, device) for name, action in actions.items()}
        evaluation = net.evaluate(batch, chosen)
        outputs = {
            "log_prob": torch.cat(list(evaluation.log_probs.values())),
            "entropy": torch.cat(list(evaluation.entropies.values())),
            "value": evaluation.values,
        }
        torch.stack([each.mean() for each in outputs.values()]).sum().backward()  # type: ignore[no-untyped-call]
        return Sides(
            {name: _to(action, torch.device("cpu")) for name, action in drawn.items()},
            {name: each.detach().cpu() for name, each in outputs.items()},
            {
                name: torch.zeros(each.shape) if each.grad is None else each.grad.cpu()
                for name, each in net.named_parameters()
            },
        )


def spread_weights(net: RogueNet) -> RogueNet:
    """Randomize weights so that all of them affect the outputs: a new network has zero values and nearly uniform logits."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():
            scale = 0.5 / parameter.shape[1] ** 0.5 if parameter.dim() == 2 else 0.1
            parameter.copy_(parameter + scale * torch.randn(parameter.shape, generator=generator))
    return net


def _to(ragged: RaggedTensor, device: torch.device) -> RaggedTensor:
    return RaggedTensor(ragged.values.to(device), ragged.offsets.to(device))


def differences(frames: Frames, here: Sides, other: Any, device: torch.device) -> dict[str, float]:
    """Differences between the device's and the CPU's outputs."""
    there = Sides.of(frames, other(), device, here.actions)
    found = {name: float((there.outputs[name] - here.outputs[name]).abs().max()) for name in here.outputs}
    same = [(there.actions[name].values == each.values).float() for name, each in here.actions.items()]
    ours, theirs = (torch.cat([each.flatten() for each in side.gradients.values()]) for side in (there, here))
    return found | {
        "gradient": float((ours - theirs).abs().max()),
        "gradient_relative": float((ours - theirs).norm() / theirs.norm()),
        "same_actions": float(torch.cat([each.flatten() for each in same]).mean()),
    }
