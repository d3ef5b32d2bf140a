"""`policy.mjs` plays policy files in Node, with the numbers of the modules; and refuses what is damaged."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.policy_file import policy_bytes, read_policy_file
from entity_gym import (
    Entity,
    Observation,
    ObsSpace,
)
from entity_gym.batch.saving import spaces_to_dict
from rogue_net import RogueNetConfig
from tests.enn_ppo.forged import with_header
from tests.node import CLIENT, NO_NODE, NODE, Question, ask_node, run_node
from tests.runtime_policies import (
    ACTIONS,
    FLAG,
    ROCK,
    SHIP,
    SPACE,
    Drawn,
    assert_like_modules,
    draw_policy,
    frames,
    make_net,
    observation_to_json,
    policy_of_world,
)

pytestmark = pytest.mark.skipif(NODE is None, reason=NO_NODE)


def compare(folder: Path, policies: dict[str, Drawn]) -> None:
    """Ask Node in every policy's episode, for greedy and for drawn actions, and compare its answers with the modules."""
    questions = []
    for name, drawn in policies.items():
        file = folder / f"{name}.safetensors"
        file.write_bytes(drawn.bytes())
        told = [observation_to_json(each) for each in drawn.observations]
        questions += [Question(file, told, greedy, seed=7) for greedy in (False, True)]
    answers = iter(ask_node(questions))
    for drawn in policies.values():
        assert_like_modules(drawn, next(answers), greedy=False)
        assert_like_modules(drawn, next(answers), greedy=True)


def test_the_file_is_short_and_imports_nothing() -> None:
    source = (CLIENT / "policy.mjs").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 700
    assert not re.search(
        r"\bimport\b(?! \{ Policy)|require\(|process\.|Buffer\b(?<!\.buffer)", source.replace("ArrayBuffer", "")
    )


def test_drawn_policies_say_what_the_modules_say(tmp_path: Path) -> None:
    compare(tmp_path, {str(seed): draw_policy(seed) for seed in range(24)})


@pytest.mark.parametrize("name", ["MineSweeper", "MultiSnake", "Skirmish", "Minefield", "Knapsack", "Route", "Shells"])
def test_policies_of_worlds_say_what_the_modules_say(name: str, tmp_path: Path) -> None:
    compare(tmp_path, {name: policy_of_world(name)})


def test_a_policy_remembers_over_a_hundred_steps(tmp_path: Path) -> None:
    """Alone, and beside a value network that remembers for itself."""
    remembering = [(seed, draw_policy(seed, steps=1)) for seed in range(60)]
    both = next(seed for seed, each in remembering if each.net.remembers and each.critic and each.critic.remembers)
    one = next(seed for seed, each in remembering if each.net.config.memory == "entity" and not each.critic)
    compare(tmp_path, {str(seed): draw_policy(seed, steps=100) for seed in (both, one)})


# --- Frames


@pytest.mark.parametrize(
    "counts", [{}, {SHIP: 1}, {ROCK: 500}], ids=["no entities", "one entity", "five hundred entities"]
)
def test_frames_of_any_size_say_what_the_modules_say(counts: dict[str, int], tmp_path: Path) -> None:
    compare(tmp_path, {"policy": frames(counts)})


def test_frames_without_actors_have_a_value_and_no_actions(tmp_path: Path) -> None:
    drawn = frames({SHIP: 3})
    drawn = drawn._replace(observations=[replace(each, actions={}) for each in drawn.observations])
    compare(tmp_path, {"policy": drawn})
    answer = ask_node([Question(tmp_path / "policy.safetensors", [observation_to_json(drawn.observations[0])])])[0][0]
    assert answer.keys() == {"actions", "logProbs", "value", "probabilities", "state"}
    assert answer["actions"] == answer["logProbs"] == answer["probabilities"] == {} and answer["state"] is None


def test_a_frame_without_anything_has_the_value_of_nothing(tmp_path: Path) -> None:
    space = ObsSpace({SHIP: Entity(["x"])})
    net = make_net(RogueNetConfig(d_model=8, backend="reference"), space, {"move": ACTIONS["move"]}, 0)
    compare(tmp_path, {"policy": Drawn(net, None, [Observation()])})


def test_hidden_entities_are_seen_by_hidden_ones_and_the_value_alone(tmp_path: Path) -> None:
    drawn = frames({SHIP: 3, ROCK: 4, FLAG: 2}, hide=True)
    observations = [
        replace(each, visible={ROCK: [True, False, False, True], SHIP: [False] * 3}) for each in drawn.observations
    ]
    pooling = RogueNetConfig(d_model=16, pooling="meanmax", d_qk=8, backend="reference")
    pooled = Drawn(make_net(pooling, SPACE, ACTIONS, 0), None, observations)
    compare(tmp_path, {"attention": drawn._replace(observations=observations), "pooling": pooled})


def test_where_one_choice_is_open_it_is_taken_for_certain(tmp_path: Path) -> None:
    drawn = frames({SHIP: 2})
    ships = {"actor_types": [SHIP]}
    told = {
        "features": {SHIP: [[0, 1], [2, 3]]},
        "ids": {SHIP: [0, 1]},
        "global_features": [0.5],
        "actions": {
            "move": {**ships, "mask": [[False, True, False], [False, False, True]]},
            "aim": {**ships, "mask": [[False, True], [True, False]]},
            "pack": {**ships, "mask": [[False, False], [False, True]]},
            "mode": {"mask": [True, False]},
        },
    }
    file = tmp_path / "policy.safetensors"
    file.write_bytes(drawn.bytes())
    for greedy in (False, True):
        [[answer]] = ask_node([Question(file, [told], greedy)])
        assert answer["actions"]["move"] == {"actors": [0, 1], "choices": [1, 2]}
        assert answer["actions"]["aim"] == {"actors": [0, 1], "actees": [1, 0]}
        assert answer["actions"]["pack"]["actees"][0] == []
        assert answer["actions"]["mode"] == {"choice": 0, "label": "calm"}
        assert answer["logProbs"]["move"] == answer["logProbs"]["aim"] == [0, 0]
        assert answer["probabilities"]["move"] == [[0, 1, 0], [0, 0, 1]]
        assert answer["probabilities"]["aim"] == {"actees": [0, 1], "rows": [[0, 1], [1, 0]]}
        assert answer["probabilities"]["mode"] == [1, 0]


def test_what_is_drawn_is_as_frequent_as_it_is_likely(tmp_path: Path) -> None:
    """Every kind of action, 4,000 times: 4 standard deviations of a frequency are 0.032 at most."""
    drawn = frames({SHIP: 1, ROCK: 3})
    told = {
        "features": {SHIP: [[0, 1]], ROCK: [[1, 1], [0, 2], [-1, 0]]},
        "ids": {SHIP: ["ship"], ROCK: [0, 1, 2]},
        "global_features": [0.5],
        "actions": {
            **{name: {"actor_ids": ["ship"], "actee_types": [ROCK]} for name in ("aim", "pack", "load")},
            "move": {"actor_ids": ["ship"]},
            "steer": {"actor_ids": ["ship"]},
            "mode": {},
        },
    }
    file = tmp_path / "policy.safetensors"
    file.write_bytes(drawn.bytes())
    script = """
    const policy = Policy.load(readFileSync(given.file));
    const random = seededRandom(1);
    console.log(JSON.stringify(Array.from({ length: 4000 }, () => policy.act(given.told, { random }))));
    """
    answers = json.loads(run_node(script, {"file": str(file), "told": told}))

    def frequency(is_so: Callable[[Any], bool]) -> float:
        return float(np.mean([is_so(each["actions"]) for each in answers]))

    likely = answers[0]["probabilities"]
    for k in range(3):
        assert frequency(lambda made, k=k: made["move"]["choices"] == [k]) == pytest.approx(
            likely["move"][0][k], abs=0.032
        )
        assert frequency(lambda made, k=k: made["aim"]["actees"] == [k]) == pytest.approx(
            likely["aim"]["rows"][0][k], abs=0.032
        )
        first = frequency(lambda made, k=k: made["load"]["actees"][0][:1] == [k])
        assert first == pytest.approx(likely["load"]["rows"][0][k], abs=0.032)
    assert frequency(lambda made: made["mode"]["choice"] == 1) == pytest.approx(likely["mode"][1], abs=0.032)
    sets = {
        tuple(each["actions"]["pack"]["actees"][0]): each["logProbs"]["pack"][0] for each in answers
    }  # of up to two of 3 rocks
    assert len(sets) == 7 and sum(np.exp(list(sets.values()))) == pytest.approx(1, abs=1e-9)
    for chosen, log_prob in sets.items():
        seen = frequency(lambda made, chosen=chosen: tuple(made["pack"]["actees"][0]) == chosen)
        assert seen == pytest.approx(np.exp(log_prob), abs=0.032)
    # the Gaussians behind the numbers, whose standard deviation is in the file
    turns = np.arctanh([each["actions"]["steer"]["values"][0][0] for each in answers])
    std = float(drawn.net.head("steer").log_std.detach().exp()[0])  # type: ignore[index, union-attr, operator]
    assert np.std(turns) == pytest.approx(std, rel=0.05)
    assert np.mean(turns) == pytest.approx(np.median(turns), abs=0.1 * std)


# --- What does not fit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feature": {}}, 'a part of the observation is "feature"; expected one of type,'),
        ({"features": {"Boat": []}}, 'a part of features is "Boat"; expected one of Ship,'),
        ({"features": {SHIP: [[1]]}, "ids": {SHIP: [0]}}, "features of Ship is [1]; expected a list of 2"),
        ({"features": {SHIP: [[1, None]]}, "ids": {SHIP: [0]}}, "y of Ship is null; expected a number of float32"),
        ({"features": {SHIP: [["1", 2]]}, "ids": {SHIP: [0]}}, 'x of Ship is "1"; expected a number of float32'),
        ({"features": {SHIP: [[1, 1e39]]}, "ids": {SHIP: [0]}}, "y of Ship is 1e+39; expected a number of float32"),
        ({"global_features": []}, "features of __global__ is []; expected a list of 1"),
        ({"ids": {SHIP: ["a"]}}, 'ids of Ship is ["a"]; expected a list of 2'),
        ({"ids": {SHIP: ["a", "a"]}}, 'an id of Ship is "a"; expected an own text or whole number'),
        ({"ids": {SHIP: ["a", 0.5]}}, "an id of Ship is 0.5; expected an own text or whole number"),
        ({"visible": {SHIP: [1, 0]}}, "visible of Ship is [1,0]; expected true or false"),
        ({"actions": {"fly": {}}}, 'a part of actions is "fly"; expected one of'),
        ({"actions": {"move": {"actors": []}}}, 'a part of action move is "actors"; expected one of mask'),
        ({"actions": {"move": {"actor_ids": ["b"]}}}, 'an id of the actors of action move is "b"; expected that of an entity'),
        ({"actions": {"move": {"actor_types": ["Boat"]}}}, 'a type of the actors of action move is "Boat"; expected one of'),
        ({"actions": {"move": {"actor_ids": [0, 0]}}}, "the list of the actors of action move is [0,0]; expected each of them"),
        ({"ids": {}, "actions": {"move": {}}}, "an id of the actors of action move is null; expected ids"),
        ({"actions": {"move": {"mask": [[True, True, True]]}}}, "the mask of action move is"),
        ({"actions": {"move": {"mask": [[False] * 3] * 2}}}, "a row of the mask of action move is [false,false,false]"),
        ({"actions": {"move": {"mask_after": [[]]}}}, "after of action move is []; expected one select-entity action"),
    ],
)  # fmt: skip
def test_an_observation_that_does_not_fit_is_an_error_that_says_where(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "policy.safetensors"
    file.write_bytes(frames({}).bytes())
    told = {"features": {SHIP: [[0, 1], [2, 3]]}, "ids": {SHIP: [0, 1]}, "global_features": [0], **change}
    script = """
    try {
      Policy.load(readFileSync(given.file)).act(given.told);
    } catch (error) {
      console.log(error.message);
    }
    """
    said = run_node(script, {"file": str(file), "told": told})
    assert said.startswith(f"the observation: {message}")


def test_a_policy_that_remembers_by_ids_asks_for_them(tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    file.write_bytes(frames({}, memory="entity").bytes())
    with pytest.raises(RuntimeError, match="ids of Ship is null; expected some"):
        ask_node([Question(file, [{"features": {SHIP: [[0, 1]]}, "global_features": [0]}])])


# --- Broken files

LOAD = """
const [bytes, before] = [readFileSync(given.file), process.memoryUsage()];
try {
  Policy.load(bytes);
  console.log("loaded");
} catch (error) {
  console.log(error.message);
}
const after = process.memoryUsage();
const taken = ["heapUsed", "arrayBuffers"].map((kind) => after[kind] - before[kind]).reduce((all, each) => all + each);
console.log((taken - 2 ** 20) / bytes.length);
"""


def loaded(file: Path) -> tuple[str, float]:
    """What loading says, and the memory that it took besides the file and a megabyte, as a multiple of the file."""
    said, taken = run_node(LOAD, {"file": str(file)}).splitlines()
    return said, float(taken)


@pytest.fixture
def heavy(tmp_path: Path) -> Path:
    """A policy file of 8 MB: it carries a tensor that nobody needs, behind all others."""
    drawn = frames({})
    file = tmp_path / "heavy.safetensors"
    weights = {**drawn.net.state_dict(), "z": torch.arange(2_000_000.0)}
    checkpoint = Checkpoint(path=file, step=0, policy=weights, config={}, spaces=spaces_to_dict(SPACE, ACTIONS))
    file.write_bytes(policy_bytes(replace(checkpoint, config=read_policy_file(_written(tmp_path, drawn)).config)))
    return file


def _written(folder: Path, drawn: Drawn) -> Path:
    file = folder / "written.safetensors"
    file.write_bytes(drawn.bytes())
    return file


def _nan(data: bytes) -> bytes:
    return data[:-4] + np.float32(np.nan).tobytes()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "it is no safetensors file, or is cut short"),
        (lambda data: data[:7], "it is no safetensors file, or is cut short"),
        (lambda data: data[:1000], "it is no safetensors file, or is cut short"),
        (lambda data: data[: len(data) // 2], "its hash does not fit its content"),
        (lambda data: data[:-1], "its hash does not fit its content"),
        (lambda data: data + b"\0", "its hash does not fit its content"),
        (lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], "its hash does not fit its content"),
        (lambda data: data.replace(b'"d_model', b'"d_mod\xffl', 1), "The encoded data was not valid for encoding utf-8"),
        (lambda data: pickle.dumps({"policy": data}), "it is no safetensors file, or is cut short"),
        (lambda data: (2**32 - 1).to_bytes(8, "little") + data[8:], "it is no safetensors file, or is cut short"),
        (lambda data: (2**63).to_bytes(8, "little") + data[8:], "it is no safetensors file, or is cut short"),
        (lambda data: (4).to_bytes(8, "little") + b"null" + data[8:], "it has format none of enn-ppo"),
    ],
    ids=["empty", "seven bytes", "cut in the header", "half", "a byte less", "a byte more", "a bit flipped", "no text", "pickle",
         "4 GB", "2^63", "null"],
)  # fmt: skip
def test_a_broken_file_is_one_clear_error_and_takes_no_more_than_its_size(
    damage: Callable[[bytes], bytes], message: str, heavy: Path
) -> None:
    heavy.write_bytes(damage(heavy.read_bytes()))
    said, taken = loaded(heavy) if heavy.stat().st_size > 10_000 else (loaded(heavy)[0], 0)
    assert said.startswith(f"no policy can be loaded: {message}")
    assert said.endswith("; give a file that enn_ppo.export wrote, or a checkpoint")
    assert taken <= 1


@pytest.mark.parametrize("version", ["7", "9"])
def test_a_file_of_another_version_is_refused_by_name(version: str, heavy: Path) -> None:
    said, taken = loaded(with_header(heavy, format=version))
    assert said.startswith(f"no policy can be loaded: it has format {version}, and this policy.mjs reads 8")
    assert taken <= 1


def test_weights_that_are_not_numbers_are_refused_by_their_name(heavy: Path) -> None:
    heavy.write_bytes(_nan(heavy.read_bytes()))
    said, taken = loaded(with_header(heavy))  # whose hash is right
    assert said.startswith("no policy can be loaded: its tensor z is NaN or infinite")
    assert taken <= 1


def test_a_checkpoint_is_read_without_the_state_of_its_trainer(heavy: Path) -> None:
    checkpoint = replace(read_policy_file(heavy), trainer={"scale": None, "step": torch.ones(3)})
    heavy.write_bytes(policy_bytes(checkpoint))
    assert loaded(heavy)[0] == "loaded"
