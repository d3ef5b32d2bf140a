"""A frame that holds NaN makes its own results NaN, and changes no bit of any other frame's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from rogue_net import FrameKeys, ObsBatch, RogueNet, keyed
from rogue_net.config import RelposConfig
from rogue_net.kernels.cpu.calling import entry
from rogue_net.kernels.cpu.program import Program
from tests.rogue_net.backends import (
    EACH,
    RELPOS_OF_PROGRAM,
    SHIP,
    Scene,
    make_config,
    make_net,
    twin,
)
from tests.rogue_net.programs import given_for, weighted

COUNTS = [(3, 2, 1), (1, 0, 0), (5, 4, 0), (0, 0, 0), (9, 8, 1), (2, 1, 0)]
RELPOS = {
    "plain": RelposConfig(),
    "polar": RelposConfig(**RELPOS_OF_PROGRAM),
    "grid": RelposConfig(kind="grid", extent=[2, 2], position_features=["x", "y"], exclude_entities=["Flag"]),
    "radial": RelposConfig(kind="radial", extent=[4], position_features=["x", "y"], exclude_entities=["Flag"]),
    "distance": RelposConfig(kind="distance", extent=[3], position_features=["x"], exclude_entities=["Flag"]),
}
EACH_RELPOS = pytest.mark.parametrize("relpos", RELPOS.values(), ids=RELPOS)
FRAMES = [0, 2, 5]


def with_nan(batch: ObsBatch, frame: int) -> ObsBatch:
    """The batch with NaN in all features of the frame's first ship."""
    values, offsets = batch.features[SHIP]
    values = values.clone()
    values[int(offsets[frame])] = torch.nan
    return replace(batch, features=batch.features | {SHIP: batch.features[SHIP]._replace(values=values)})


def results(net: RogueNet, batch: ObsBatch) -> dict[str, list[Tensor]]:
    """Name -> a tensor for each frame: what a program says if the network asks for one, or else what modules say."""
    keys = FrameKeys(keyed(3, torch.arange(len(batch))))
    acted = net.act(batch, generator=keys)
    of_frames = {f"{name} done": ragged for name, ragged in acted.actions.items()}
    of_frames |= {f"log-prob of {name}": ragged for name, ragged in acted.log_probs.items()}
    found = {"value": list(acted.values)}
    if net.config.backend == "fused":
        assert net._program is not None
        log_probs, values = net._program.evaluate(batch, acted.actions)
        found["value judged"] = list(values)
    else:
        again = net.act(batch, generator=keys, logits=True)
        assert again.logits is not None
        of_frames |= {f"logits of {name}": ragged for name, ragged in again.logits.items()}
        with torch.no_grad():
            judged = net.evaluate(batch, acted.actions)
        log_probs = judged.log_probs
        found |= {"value judged": list(judged.values), "fuel": list(judged.regressions["fuel"])}
        of_frames |= {f"entropy of {name}": each for name, each in judged.entropies.items()}
    of_frames |= {f"log-prob judged of {name}": each for name, each in log_probs.items()}
    for name, ragged in of_frames.items():
        found[name] = list(ragged.values.split(ragged.lengths.tolist()))
    return found


def check(net: RogueNet, batch: ObsBatch, frame: int) -> None:
    expected, given = results(net, batch), results(net, with_nan(batch, frame))
    for name, frames in expected.items():
        for number, each in enumerate(frames):
            if number != frame:
                assert torch.equal(given[name][number], each), (name, number)
    assert given["value"][frame].isnan() and given["value judged"][frame].isnan()
    after = results(net, batch)  # nothing stays behind in memory that is used again
    assert all(torch.equal(a, b) for name in expected for a, b in zip(after[name], expected[name], strict=True))


@EACH
@EACH_RELPOS
def test_nan_in_one_frame_changes_no_bit_of_the_others(name: str, relpos: RelposConfig) -> None:
    batch = Scene(COUNTS, seed=1, hide=True).batch
    net = make_net(make_config(relpos=relpos, backend=name), batch)
    for frame in FRAMES:
        check(net, batch, frame)


@EACH_RELPOS
def test_a_gradient_is_nan_if_a_frame_of_its_minibatch_is_and_the_next_one_is_what_it_was(
    relpos: RelposConfig,
) -> None:
    batch = Scene(COUNTS, seed=1, hide=True).batch
    net = make_net(make_config(relpos=relpos), batch)
    given = given_for(twin(net, "reference"), batch, 0)
    program = Program(net)
    program.refresh()
    memory = {name: torch.zeros(len(each.values)) for name, each in given.actions.items()}

    def gradient(shown: ObsBatch, frames: list[int]) -> tuple[Tensor, Tensor]:
        columns = program.columns(shown, given.actions, memory)
        weights = given.weights[:, frames].contiguous().numpy()
        stats = program.gradient(columns, np.array(frames), entry(weighted), np.zeros(1, np.float32), weights, 3)
        return stats, program.gradient_flat.clone()

    for frame in FRAMES:
        shown, others = with_nan(batch, frame), [each for each in range(len(COUNTS)) if each != frame]
        expected = gradient(batch, others)
        stats, gradients = gradient(shown, [*others, frame])
        assert stats[2].isnan() and gradients.isnan().any()
        for given_part, part in zip(gradient(shown, others), expected, strict=True):
            assert part.isfinite().all() and torch.equal(given_part, part)


@EACH
def test_weights_that_are_nan_make_every_frame_nan(name: str) -> None:
    batch = Scene(COUNTS, seed=1).batch
    net = make_net(make_config(backend=name), batch)
    with torch.no_grad():  # one column of the first head's values
        net.transformer.blocks[0].query_key_value.weight[2 * net.config.d_model, 0] = torch.nan
    values = net.act(batch, greedy=True).values
    assert values[[0, 1, 2, 4, 5]].isnan().all() and values[3].isfinite()
