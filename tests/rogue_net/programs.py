"""A network by its modules, and by the compiled program: outputs, and the gradients of a loss to which all of them add."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rogue_net import ObsBatch, RaggedTensor, RogueNet
from rogue_net.kernels.cpu.calling import entry
from rogue_net.kernels.cpu.compiling import Count, Floats, Ints, kernel
from rogue_net.kernels.cpu.program import Program
from tests.rogue_net.backends import Results, as_double, summands


@kernel
def weighted(
    settings: Floats,
    low: Count,
    high: Count,
    size: Count,
    columns: Floats,
    num_actors: Count,
    actor_frames: Ints,
    log_probs: Floats,
    old_log_probs: Floats,
    entropies: Floats,
    values: Floats,
    dlog_probs: Floats,
    dentropies: Floats,
    dvalues: Floats,
    stats: Floats,
) -> None:
    """The sum of everything that a policy gives for a frame, with weights of the frame: (3, M) columns."""
    for actor in range(num_actors):
        frame = low + actor_frames[actor]
        dlog_probs[actor], dentropies[actor] = columns[frame], columns[size + frame]
        stats[0] += columns[frame] * log_probs[actor]
        stats[1] += columns[size + frame] * entropies[actor]
    for frame in range(high - low):
        dvalues[frame] = columns[2 * size + low + frame]
        stats[2] += columns[2 * size + low + frame] * values[frame]


class Given(NamedTuple):
    batch: ObsBatch
    actions: dict[str, RaggedTensor]
    weights: Tensor  # (3, B) positive, so that no gradient is what chance leaves of a difference


def given_for(net: RogueNet, batch: ObsBatch, seed: int) -> Given:
    generator = torch.Generator().manual_seed(seed)
    drawn = net.act(batch, generator=generator, temperature=1.5)
    return Given(batch, drawn.actions, torch.rand(3, len(batch), generator=generator) + 0.5)


def by_modules(net: RogueNet, given: Given) -> Results:
    """In the precision of the network."""
    net.zero_grad()
    with summands(net) as least:
        found = net.evaluate(as_double(given.batch), as_actions(given.actions, torch.float64))
        of_log_prob, of_entropy, of_value = given.weights.double()
        parts = torch.zeros(3, dtype=torch.float64)
        for name in given.actions:
            frames = found.log_probs[name].sequences
            parts = parts + torch.stack(
                [
                    (of_log_prob[frames] * found.log_probs[name].values).sum(),
                    (of_entropy[frames] * found.entropies[name].values).sum(),
                    torch.zeros((), dtype=torch.float64),
                ]
            )
        parts = parts + torch.stack([*torch.zeros(2, dtype=torch.float64), (of_value * found.values).sum()])
        parts.sum().backward()
    outputs = {f"log-prob of {name}": each.values.detach() for name, each in found.log_probs.items()}
    outputs |= {"value": found.values.detach(), **sums_of(parts.detach())}
    named = {name: each.grad for name, each in net.named_parameters() if not name.startswith("regression")}
    return Results(outputs, {name: each for name, each in named.items() if each is not None}, least)


def sums_of(parts: Tensor) -> dict[str, Tensor]:
    """The sum that is not among the outputs yet; 100 is added, as one that nearly cancels is no measure of errors."""
    return {"entropies": parts[1] + 100}


def as_actions(actions: Mapping[str, RaggedTensor], dtype: torch.dtype) -> dict[str, RaggedTensor]:
    return {
        name: each._replace(values=each.values.to(dtype)) if each.values.is_floating_point() else each
        for name, each in actions.items()
    }


def by_program(net: RogueNet, given: Given) -> Results:
    program = Program(net)
    log_probs, values = program.evaluate(given.batch, given.actions)
    parts = run_program(program, given)
    outputs = (
        {f"log-prob of {name}": each.values for name, each in log_probs.items()} | {"value": values} | sums_of(parts)
    )
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    places = program.parts_of(program.gradient_flat)
    gradients = {names[id(own)]: part for own, part in zip(program.parameters, places, strict=True)}
    return Results(outputs, gradients, {})


def run_program(program: Program, given: Given) -> Tensor:
    """Make the gradient of the loss, with the parameters that the program has; returns the loss's (3,) sums."""
    memory = {name: torch.zeros(len(each.actors.values)) for name, each in given.batch.action_masks.items()}
    columns = program.columns(given.batch, given.actions, memory)
    frames, nothing = np.arange(len(given.batch)), np.zeros(1, np.float32)
    return program.gradient(columns, frames, entry(weighted), nothing, given.weights.numpy(), 3)
