"""ONNX models say what the modules say: 15 drawn combinations of options here, 200 and all worlds in tests/nightly."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entity_gym import (
    CategoricalActionMask,
    Observation,
    SelectEntitiesActionMask,
    SelectEntityActionMask,
)
from rogue_net import RogueNetConfig
from rogue_net.numpy import PolicyError
from rogue_net.numpy.reading import read_file
from tests.runtime_policies import (
    ACTIONS,
    CONFIG,
    ROCK,
    SHIP,
    SPACE,
    Drawn,
    assert_like_modules,
    draw_policy,
    frames,
    make_net,
    policy_of_world,
)

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from rogue_net.onnx import policy_model  # noqa: E402
from rogue_net.onnx.playing import Player  # noqa: E402
from tests.rogue_net.onnx.playing import answers, compare, model_of  # noqa: E402


@pytest.mark.parametrize("seed", range(15))
def test_drawn_policies_say_what_the_modules_say(seed: int, tmp_path: Path) -> None:
    compare(draw_policy(seed), tmp_path)


@pytest.mark.parametrize("name", ["MineSweeper", "Skirmish", "Knapsack"])
def test_policies_of_worlds_say_what_the_modules_say(name: str, tmp_path: Path) -> None:
    compare(policy_of_world(name), tmp_path)


@pytest.mark.parametrize(("seed", "memory", "of_values"), [(3, "entity", None), (35, "both", "entity")])
def test_policies_remember_over_a_hundred_steps(seed: int, memory: str, of_values: str | None, tmp_path: Path) -> None:
    drawn = draw_policy(seed, steps=100)
    assert (drawn.net.config.memory, drawn.critic and drawn.critic.config.memory) == (memory, of_values)
    assert_like_modules(drawn, answers(drawn, model_of(drawn, tmp_path), np.random.default_rng(0)), greedy=False)


# --- Frames


@pytest.mark.parametrize(
    "counts",
    [{}, {SHIP: 1}, {"Flag": 1}, {SHIP: 2, ROCK: 1}, {SHIP: 20, ROCK: 30, "card.1": 10}],
    ids=["none", "one", "one flag", "three", "sixty"],
)
def test_frames_of_any_size(counts: dict[str, int], tmp_path: Path) -> None:
    compare(frames(counts, hide=True), tmp_path)


def test_a_frame_of_500_entities(tmp_path: Path) -> None:
    drawn, one = frames({ROCK: 500}, num=1), ["Rock 7"]
    actions: dict[str, Any] = {
        "move": CategoricalActionMask(actor_types=[ROCK]),
        "aim": SelectEntityActionMask(actor_ids=one),
        "pack": SelectEntitiesActionMask(actor_ids=one),
        "load": SelectEntitiesActionMask(actor_ids=one),
    }
    compare(drawn._replace(observations=[replace(drawn.observations[0], actions=actions)]), tmp_path)


def test_a_frame_without_anything_has_the_value_of_nothing(tmp_path: Path) -> None:
    space = replace(SPACE, global_features=[])
    net = make_net(RogueNetConfig(d_model=8, backend="reference"), space, {"move": ACTIONS["move"]}, 0)
    compare(Drawn(net, None, [Observation()]), tmp_path)


def test_hidden_entities_are_seen_by_hidden_ones_and_the_value_alone(tmp_path: Path) -> None:
    drawn = frames({SHIP: 3, ROCK: 4, "Flag": 2})
    hidden = {ROCK: [True, False, False, True], SHIP: [False] * 3}
    observations = [replace(each, visible=hidden) for each in drawn.observations]
    pooling = RogueNetConfig(d_model=16, pooling="meanmax", d_qk=8, backend="reference")
    compare(drawn._replace(observations=observations), tmp_path)
    compare(Drawn(make_net(pooling, SPACE, ACTIONS, 0), None, observations), tmp_path)


TWO_SHIPS: dict[str, Any] = {
    "features": {SHIP: [[0, 1], [2, 3]]},
    "ids": {SHIP: ["a", 7]},
    "global_features": [0.5],
}


def test_where_one_choice_is_open_it_is_taken_for_certain(tmp_path: Path) -> None:
    ships = {"actor_types": [SHIP]}
    masks = {
        "move": {**ships, "mask": [[False, True, False], [False, False, True]]},
        "aim": {**ships, "mask": [[False, True], [False, False]]},
        "pack": {**ships, "mask": [[False, False], [False, False]]},
        "mode": {"mask": [False, True]},
    }
    player = Player(model_of(frames({}), tmp_path))
    for rng in (None, np.random.default_rng(0)):
        made = player.act({**TWO_SHIPS, "actions": masks}, rng)
        assert made["choice.move"].tolist() == [1, 2]
        assert made["choice.aim"].tolist() == [1, -1]  # where nothing is open, nobody is selected
        assert made["choice.pack"].tolist() == [[0, 0], [0, 0]]
        assert made["choice.mode"].tolist() == [1]
        assert [made[f"log_prob.{name}"].tolist() for name in ("move", "aim", "pack", "mode")] == [[0, 0]] * 3 + [[0]]
        assert made["choice.load"].shape == (0, 0) and made["choice.steer"].shape == (0, 2)  # not on offer


# --- Inputs and outputs


def fed(model: Any, **changes: Any) -> dict[str, Any]:
    """Outputs of the model of `frames` for two ships that move and load; inputs that are None are left out."""
    player = Player(model)
    of_ships = {name: {"actor_types": [SHIP], "actee_types": [SHIP]} for name in ("aim", "pack", "load")}
    actions = {**of_ships, "move": {"actor_types": [SHIP]}, "steer": {"actor_types": [SHIP]}}
    given = player.feeds({**TWO_SHIPS, "actions": actions})
    given |= {name.replace("__", "."): each for name, each in changes.items()}
    names = [each.name for each in player.session.get_outputs()]
    outputs = player.session.run(names, {name: each for name, each in given.items() if each is not None})
    return dict(zip(names, outputs, strict=True))


def test_what_is_left_out_is_open_and_visible_and_chosen_greedily(tmp_path: Path) -> None:
    model = model_of(frames({}), tmp_path)
    said = fed(model)
    masks: dict[str, Any] = {"mask__move": None, "mask__aim": None, "mask__pack": None, "mask__load": None}
    given = {"visible": np.array([True, True]), "noise__move": np.zeros((2, 3), np.float32)}
    for other in (fed(model, **masks), fed(model, **given)):
        assert all(np.array_equal(said[name], other[name]) for name in said)
    hidden = fed(model, visible=np.array([True, False]))
    assert not np.array_equal(said["logits.move"], hidden["logits.move"])
    assert said["choice.move"].tolist() == said["logits.move"].argmax(1).tolist()


def test_what_is_drawn_is_as_frequent_as_it_is_likely(tmp_path: Path) -> None:
    """Every kind of action, 2,000 times: 4 standard deviations of a frequency are 0.045 at most."""
    model, rng = model_of(frames({}), tmp_path), np.random.default_rng(0)
    player = Player(model)
    of_ship = {name: {"actor_ids": ["ship"], "actee_types": [ROCK]} for name in ("aim", "pack", "load")}
    told = {
        "features": {SHIP: [[0, 1]], ROCK: [[1, 1], [0, 2], [-1, 0]]},
        "ids": {SHIP: ["ship"], ROCK: [0, 1, 2]},
        "global_features": [0.5],
        "actions": {**of_ship, "move": {"actor_ids": ["ship"]}, "steer": {"actor_ids": ["ship"]}, "mode": {}},
    }
    made = [player.act(told, rng) for _ in range(2000)]

    def frequency(name: str, wanted: Any) -> float:
        return float(np.mean([each[f"choice.{name}"][0].tolist() == wanted for each in made]))

    p = {name: np.exp(made[0][f"logits.{name}"][0]) for name in ("move", "aim", "load", "mode")}
    for k in range(3):
        assert frequency("move", k) == pytest.approx(p["move"][k], abs=0.045)
        assert frequency("aim", 1 + k) == pytest.approx(p["aim"][k], abs=0.045)  # the ship has the number 0
        first = np.mean([each["choice.load"][0, k] == 1 for each in made])
        assert first == pytest.approx(p["load"][k], abs=0.045)
    assert frequency("mode", 1) == pytest.approx(p["mode"][1], abs=0.045)
    sets = {tuple(each["choice.pack"][0].tolist()): float(each["log_prob.pack"][0]) for each in made}
    assert sum(np.exp(list(sets.values()))) == pytest.approx(1, abs=1e-6)
    for chosen, log_prob in sets.items():
        assert frequency("pack", list(chosen)) == pytest.approx(np.exp(log_prob), abs=0.045)


def test_the_model_tells_what_it_is(tmp_path: Path) -> None:
    drawn = frames({}, memory="entity")
    model = model_of(drawn, tmp_path)
    onnx.checker.check_model(model, full_check=True)
    assert (model.producer_name, model.ir_version) == ("enn-ppo", 9)
    assert [(each.domain, each.version) for each in model.opset_import] == [
        ("", 20)
    ]  # no operations of onnxruntime's own
    told = {each.key: json.loads(each.value) for each in model.metadata_props}
    assert told["spaces"] == read_file(tmp_path / "policy.safetensors")[0]["spaces"]
    assert told["format"] == 8
    assert told["noise"] == {"move": "gumbel", "aim": "gumbel", "pack": "uniform", "load": "gumbel", "steer": "normal",
                             "mode": "gumbel"}  # fmt: skip
    for part, given in (("inputs", model.graph.input), ("outputs", model.graph.output)):
        assert told[part] == {each.name: each.doc_string for each in given} and all(told[part].values())
    assert told["inputs"]["features.Ship"] == "(n, 2) float32, the features of each Ship: x, y"
    assert [name for name in told["outputs"] if "." not in name] == ["value"]
    session = Player(model).session
    assert {each.name for each in session.get_inputs()} == {
        *(f"features.{name}" for name in SPACE.entities), "global_features", "ids",
        *(f"actors.{name}" for name in ACTIONS), *(f"actees.{name}" for name in ("aim", "pack", "load")),
    }  # fmt: skip
    assert {each.name for each in session.get_overridable_initializers()} == {
        "visible", *(f"noise.{name}" for name in ACTIONS), *(f"mask.{name}" for name in ACTIONS if name != "steer"),
        "memory.keys", "memory.states",
    }  # fmt: skip


def test_inputs_that_change_nothing_are_left_out(tmp_path: Path) -> None:
    net = make_net(replace(CONFIG, n_layer=0), SPACE, {"move": ACTIONS["move"]}, 0)
    inputs = {each.name for each in model_of(Drawn(net, None, []), tmp_path).graph.input}
    assert inputs & {"visible", "ids", "memory.keys"} == set() and "actors.move" in inputs


def test_an_entity_with_a_negative_id_is_not_remembered(tmp_path: Path) -> None:
    model = model_of(frames({}, memory="entity"), tmp_path)
    said = fed(model, ids=np.array([4, -1]))
    assert said["memory.keys.next"].tolist() == [[0, 4]]  # ships are the first type
    memory = {f"memory__{part}": said[f"memory.{part}.next"] for part in ("keys", "states")}
    then, others = fed(model, ids=np.array([4, -1]), **memory), fed(model, ids=np.array([5, -1]), **memory)
    assert not np.array_equal(then["memory.states.next"], said["memory.states.next"])
    assert np.array_equal(others["memory.states.next"], said["memory.states.next"])  # it is new


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    file.write_bytes(frames({}).bytes()[:-1])
    with pytest.raises(PolicyError, match=re.escape(f"{file} is no whole policy file")):
        policy_model(file)
