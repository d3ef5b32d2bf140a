"""With the weights of rogue-net, which this project descends from, the network says what rogue-net says.

Every fixture is what rogue-net 0.1.9 answered with one set of options; it was recorded by the program of
`git show 4229c06:scripts/record_rogue_net.py`, which explains the files.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecActionMask, VecObs
from entity_gym.spaces import GLOBAL_ENTITY
from rogue_net import ObsBatch, RaggedTensor, RogueNet
from rogue_net.config import RelposConfig
from rogue_net.kernels.select import why_no_program
from rogue_net.relative import relative_positions
from rogue_net.rogue_net import Evaluation
from tests.rogue_net.rogue_net_weights import Description, joins_globals

NAMES = sorted(path.stem for path in (Path(__file__).parent / "fixtures").glob("*.npz"))


class Recording(NamedTuple):
    """One fixture."""

    arrays: dict[str, NDArray[Any]]
    given: dict[str, Any]  # the description, in rogue-net's words
    weights: dict[str, Tensor]

    def ragged(self, key: str) -> Any:
        return RaggedBuffer.from_flattened(self.arrays[f"{key}/values"], self.arrays[f"{key}/lengths"])

    def under(self, part: str) -> dict[str, NDArray[Any]]:
        return {key.split("/")[1]: array for key, array in self.arrays.items() if key.startswith(f"{part}/")}


@cache
def load(name: str) -> Recording:
    path = Path(__file__).parent / "fixtures" / f"{name}.npz"
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    given = json.loads(str(arrays.pop("description")))
    shapes = given.pop("weights")
    flat = torch.from_numpy(arrays.pop("weights")).split([int(np.prod(shape)) for shape in shapes.values()])
    weights = {key: values.view(shape) for (key, shape), values in zip(shapes.items(), flat, strict=True)}
    return Recording(arrays, given, weights)


def make_net(recording: Recording, backend: str = "reference") -> RogueNet:
    return Description.of(recording.given, backend).make_net(recording.weights)


def make_batch(recording: Recording) -> ObsBatch:
    features = {name: recording.ragged(f"features/{name}") for name in recording.under("features")}
    if joins_globals(recording.given):
        everywhere = features.pop(GLOBAL_ENTITY).values
        for name, own in features.items():
            joined = np.concatenate([own.values, np.repeat(everywhere, own.size1(), axis=0)], axis=1)
            features[name] = RaggedBuffer.from_flattened(joined, own.size1())
    masks: dict[str, Any] = {}
    for name, space in recording.given["action_space"].items():
        actors = recording.ragged(f"actors/{name}")
        if space["kind"] == "select_entity":
            masks[name] = VecActionMask(actors, recording.ragged(f"actees/{name}"))
        else:
            mask = recording.arrays.get(f"mask/{name}")
            lengths = recording.arrays[f"actors/{name}/lengths"]
            masks[name] = VecActionMask(
                actors, mask=None if mask is None else RaggedBuffer.from_flattened(mask, lengths)
            )
    frames = len(next(iter(features.values())))
    nothing = np.zeros(frames)
    return ObsBatch.from_vec_obs(
        VecObs(
            features=features,
            action_masks=masks,
            reward=nothing.astype(np.float32),
            done=nothing.astype(bool),
            truncated=nothing.astype(bool),
            env_id=np.arange(frames),
            elapsed_step=nothing.astype(np.int64),
            visible={name: recording.ragged(f"visible/{name}") for name in recording.under("visible")},
        )
    )


def make_actions(recording: Recording, batch: ObsBatch) -> dict[str, RaggedTensor]:
    """The choices that rogue-net judged; it counts actees, where here an entity is chosen by its index in the frame."""
    actions = {}
    for name, chosen in recording.under("actions").items():
        mask, values = batch.action_masks[name], torch.from_numpy(chosen)
        if mask.actees is not None:
            frames = torch.repeat_interleave(torch.arange(len(batch)), mask.actors.lengths)
            values = mask.actees.values[mask.actees.offsets[frames] + values, 0]
        actions[name] = RaggedTensor(values.unsqueeze(1), mask.actors.offsets)
    return actions


def evaluate(net: RogueNet, recording: Recording) -> Evaluation:
    batch = make_batch(recording)
    return net.evaluate(batch, make_actions(recording, batch))


def per_actor(columns: dict[str, RaggedTensor]) -> dict[str, Tensor]:
    return {name: ragged.values for name, ragged in columns.items()}


def assert_agree(ours: dict[str, Tensor], theirs: dict[str, NDArray[Any]]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        expected = torch.from_numpy(theirs[name])
        torch.testing.assert_close(
            tensor.detach(), expected, atol=1e-5, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def take_rogue_nets_directions(config: RelposConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose as rogue-net does where a direction is arbitrary. Only the modules know these choices.

    An entity sees what stands in its own place where it sees the world's first axis, and not at angle 0. With interpolation, an
    angle at the exact start of a sector counts as the next sector's, and not as that sector's.
    """
    seen_from, angles_of, sectors = relative_positions.seen_from, relative_positions.angles_of, config.extent[0]

    def seen(difference: Tensor, facing: Tensor | None) -> Tensor:
        is_there = (difference == 0).all(-1, keepdim=True)
        return seen_from(torch.where(is_there, torch.tensor([1e-15, 0.0]), difference), facing)

    def angles(direction: Tensor) -> Tensor:
        place = angles_of(direction) * sectors
        is_start = (place - place.round()).abs() <= sectors * 2.0**-23  # the rounding of angles
        return torch.where(is_start, place.round() + 1, place) / sectors

    monkeypatch.setattr(relative_positions, "seen_from", seen)
    if config.interpolate:
        monkeypatch.setattr(relative_positions, "angles_of", angles)


@pytest.mark.parametrize("name", NAMES)
def test_converted_weights_say_what_rogue_net_said_and_every_one_matters(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = load(name)
    net = make_net(recording)
    has_angles = net.config.relpos.kind in ("radial", "polar")
    if has_angles:
        take_rogue_nets_directions(net.config.relpos, monkeypatch)
    evaluation = evaluate(net, recording)
    assert_agree({name: rows.squeeze(1) for name, rows in evaluation.logits.items()}, recording.under("logits"))
    assert_agree(per_actor(evaluation.log_probs), recording.under("log_probs"))
    assert_agree(per_actor(evaluation.entropies), recording.under("entropies"))
    regressions = recording.under("regressions")
    assert_agree({"value": evaluation.values.unsqueeze(1)}, {"value": regressions.pop("value")})
    assert_agree(evaluation.regressions, regressions)

    answers = [evaluation.values, *per_actor(evaluation.log_probs).values(), *evaluation.regressions.values()]
    torch.cat([answer.flatten() for answer in answers]).square().sum().backward()
    for key, parameter in net.named_parameters():
        # a query times what all keys have in common cancels in the softmax
        if not key.endswith(("key.bias", "key_projection.bias")):
            assert parameter.grad is not None and parameter.grad.abs().max() > 1e-4, key

    if not has_angles and why_no_program(net.config, net.value_head.project.weight) is None:
        assert_a_program_agrees(recording)


def assert_a_program_agrees(recording: Recording) -> None:
    net, batch = make_net(recording, "fused"), make_batch(recording)
    program = net.program()
    assert program is not None
    log_probs, values = program.evaluate(batch, make_actions(recording, batch))
    assert_agree(per_actor(log_probs), recording.under("log_probs"))
    assert_agree({"value": values.unsqueeze(1)}, {"value": recording.under("regressions")["value"]})
    acted = net.act(batch, greedy=True)
    logits = recording.under("logits")
    for choice, ragged in acted.actions.items():
        if logits[choice].ndim == 2:
            best = torch.from_numpy(logits[choice]).argmax(1, keepdim=True)
            assert torch.equal(ragged.values, best), choice
    torch.testing.assert_close(acted.values, values, rtol=0, atol=0)
