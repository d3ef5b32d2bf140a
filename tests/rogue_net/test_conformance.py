"""With the weights of rogue-net, which this project descends from, the network says what rogue-net says.

Every fixture is what rogue-net 0.1.9 answered with one set of options; it was recorded by the program of
`git show 4229c06:scripts/record_rogue_net.py`, which explains the files.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from entity_gym.batch.ragged import RaggedBufferBool, RaggedBufferF32, RaggedBufferI64
from entity_gym.batch.vec_obs import VecActionMask, VecObs
from rogue_net import ObsBatch, RaggedTensor, RogueNet, RogueNetConfig
from rogue_net.config import RelposConfig
from rogue_net.rogue_net import Evaluation
from rogue_net.transfer.conversion import convert, read_description

NAMES = sorted(path.stem for path in (Path(__file__).parent / "fixtures").glob("*.npz"))


class Recording(NamedTuple):
    """One fixture."""

    arrays: dict[str, NDArray[Any]]
    given: dict[str, Any]  # the description, in rogue-net's words
    weights: dict[str, Tensor]

    def ragged(self, kind: Any, key: str) -> Any:
        return kind.from_flattened(self.arrays[f"{key}/values"], self.arrays[f"{key}/lengths"])

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
    description = read_description(recording.given)
    description = description._replace(config=dataclasses.replace(description.config, backend=backend))
    net: RogueNet = description.make_net()
    net.load_state_dict(convert(recording.weights, description))
    return net


def make_batch(recording: Recording) -> ObsBatch:
    features = {name: recording.ragged(RaggedBufferF32, f"features/{name}") for name in recording.under("features")}
    masks: dict[str, Any] = {}
    for name, space in recording.given["action_space"].items():
        actors = recording.ragged(RaggedBufferI64, f"actors/{name}")
        if space["kind"] == "select_entity":
            masks[name] = VecActionMask(actors, recording.ragged(RaggedBufferI64, f"actees/{name}"))
        else:
            mask = recording.arrays.get(f"mask/{name}")
            lengths = recording.arrays[f"actors/{name}/lengths"]
            masks[name] = VecActionMask(
                actors, mask=None if mask is None else RaggedBufferBool.from_flattened(mask, lengths)
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
            visible={
                name: recording.ragged(RaggedBufferBool, f"visible/{name}") for name in recording.under("visible")
            },
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


def assert_agree(ours: dict[str, Tensor], theirs: dict[str, NDArray[Any]]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        expected = torch.from_numpy(theirs[name])
        torch.testing.assert_close(
            tensor.detach(), expected, atol=1e-5, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("name", NAMES)
def test_converted_weights_say_what_rogue_net_said_and_every_one_matters(name: str) -> None:
    recording = load(name)
    net = make_net(recording)
    evaluation = evaluate(net, recording)
    assert_agree({name: rows.squeeze(1) for name, rows in evaluation.logits.items()}, recording.under("logits"))
    assert_agree(evaluation.log_probs, recording.under("log_probs"))
    assert_agree(evaluation.entropies, recording.under("entropies"))
    regressions = recording.under("regressions")
    assert_agree({"value": evaluation.values.unsqueeze(1)}, {"value": regressions.pop("value")})
    assert_agree(evaluation.regressions, regressions)

    answers = [evaluation.values, *evaluation.log_probs.values(), *evaluation.regressions.values()]
    torch.cat([answer.flatten() for answer in answers]).square().sum().backward()
    for key, parameter in net.named_parameters():
        # a query times what all keys have in common cancels in the softmax
        if not key.endswith(("key.bias", "key_projections.0.bias")):
            assert parameter.grad is not None and parameter.grad.abs().max() > 1e-4, key

    assert_a_program_agrees(recording)


def assert_a_program_agrees(recording: Recording) -> None:
    net, batch = make_net(recording, "fused"), make_batch(recording)
    program = net.program(batch)
    assert program is not None
    log_probs, values = program.evaluate(batch, make_actions(recording, batch))
    assert_agree(log_probs, recording.under("log_probs"))
    assert_agree({"value": values.unsqueeze(1)}, {"value": recording.under("regressions")["value"]})
    acted = net.act(batch, greedy=True)
    logits = recording.under("logits")
    for choice, ragged in acted.actions.items():
        if logits[choice].ndim == 2:
            best = torch.from_numpy(logits[choice]).argmax(1, keepdim=True)
            assert torch.equal(ragged.values, best), choice
    torch.testing.assert_close(acted.values, values, rtol=0, atol=0)


def test_the_settings_are_those_of_rogue_net_in_our_words() -> None:
    config = read_description(load("polar_vector_interpolated").given).config
    assert config == RogueNetConfig(
        d_model=16,
        relpos=RelposConfig(
            kind="polar",
            extent=[5, 3],
            position_features=["x", "y"],
            scale=2.3,
            interpolate=True,
            rotation_vec_features=["cos", "sin"],
            world_axis_at_zero=True,
            next_sector_at_start=True,
        ),
    )


def test_a_normalization_that_has_seen_one_entity_does_nothing_there_and_here() -> None:
    recording = load("no_layers")
    one = recording.weights | {"embedding.embeddings.Mine.0.count": torch.tensor(1.0)}
    description = read_description(recording.given)
    converted = convert(one, description)
    for part in ("count", "mean", "squares"):
        assert converted[f"embedding.entities.2.norm.{part}"].abs().sum() == 0


def convert_changed(name: str, change: Callable[[dict[str, Any], dict[str, Tensor]], object]) -> None:
    recording = load(name)
    given, weights = copy.deepcopy(recording.given), dict(recording.weights)
    change(given, weights)
    convert(weights, read_description(given))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "default",
            lambda given, weights: weights.pop("backbone.blocks.1.ln2.bias"),
            r"missing \['backbone.blocks.1.ln2.bias'\]",
        ),
        ("default", lambda given, weights: weights.update(extra=torch.ones(1)), r"without a place \['extra'\]"),
        (
            "default",
            lambda given, weights: given["net"].update(n_layer=1),
            "without a place .*backbone.blocks.1.ln1.weight",
        ),
        (
            "default",
            lambda given, weights: given["obs_space"]["entities"]["Ship"].append("fuel"),
            r"embeddings.Ship.0.mean.* of shape \(3,\); by the description it is \(4,\)",
        ),
        (
            "default",
            lambda given, weights: given["obs_space"]["entities"]["Ship"].pop(),
            r"embeddings.Ship.0.mean.* of shape \(3,\); by the description it is \(2,\)",
        ),
        (
            "default",
            lambda given, weights: given.pop("obs_space"),
            "the description's obs_space must be a mapping, got None",
        ),
        ("default", lambda given, weights: given["net"].update(n_layers=1), "net.n_layers .*'n_layer'"),
        ("default", lambda given, weights: given["net"].update(n_head=5), "d_model must be divisible by net.n_head=5"),
        ("default", lambda given, weights: given["regression_heads"].clear(), "regression_heads must hold `value: 1`"),
        (
            "default",
            lambda given, weights: given["action_space"]["aim"].update(kind="select"),
            "'select'.*'select_entity'",
        ),
        (
            "default",
            lambda given, weights: given["action_space"]["move"].pop("choices"),
            "action_space.move has no choices",
        ),
        *(
            (
                "grid",
                lambda given, weights, option=option: given["net"]["relpos_encoding"].update({option: ["x"]}),
                option,
            )
            for option in ("per_entity_projections", "exclude_entities", "enable_negative_distance_weight_bug")
        ),
        (
            "polar_angle",
            lambda given, weights: given["net"]["relpos_encoding"].update(key_relpos_projection=True),
            "has projections and is polar",
        ),
        (
            "translation_globals",
            lambda given, weights: given["obs_space"]["global_features"].append("x"),
            r"position_features names the global features \['x'\]",
        ),
    ],
)
def test_what_cannot_be_converted_is_named(name: str, change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert_changed(name, change)
