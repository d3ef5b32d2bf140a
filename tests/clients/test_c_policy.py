"""`policy.h` plays policy files in a C program, with the numbers of the modules; and refuses what is damaged."""

from __future__ import annotations

import ctypes
import pickle
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from enn_ppo.checkpoints.policy_file import policy_bytes, read_policy_file
from entity_gym import (
    CategoricalActionMask,
    Category,
    ContinuousActionMask,
    Entity,
    GlobalCategoricalActionMask,
    Observation,
    ObsSpace,
    SelectEntitiesActionMask,
    SelectEntitiesActionSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from rogue_net import RelposConfig, RogueNetConfig, TranslationConfig
from tests.c_policy import (
    COMPILER,
    HEADERS,
    NO_COMPILER,
    Frames,
    PolicyError,
    Program,
    frame_message,
    play,
)
from tests.enn_ppo.forged import with_header
from tests.runtime_policies import (
    ACTIONS,
    CARD,
    CONFIG,
    FLAG,
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

pytestmark = pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)


def compare(folder: Path, drawn: Drawn, seeds: Sequence[int | None] = (None, 7)) -> None:
    """Play a policy's episode, with the likeliest and with drawn actions, and compare the program's numbers with the modules."""
    for seed in seeds:
        assert_like_modules(drawn, play(drawn, folder / "policy.safetensors", seed), greedy=seed is None)


@pytest.mark.parametrize(("command", "language"), [(COMPILER, "c99"), (shutil.which("c++"), "c++11")])
def test_the_headers_are_plain_c99_and_c_plus_plus(command: str | None, language: str, tmp_path: Path) -> None:
    if command is None:
        pytest.skip(NO_COMPILER)
    source = tmp_path / ("policy.cpp" if "+" in language else "policy.c")
    source.write_text('#define POLICY_IMPLEMENTATION\n#include "policy.h"\n', encoding="utf-8")
    flags = [f"-std={language}", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{HEADERS}"]
    subprocess.run([command, *flags, "-c", str(source), "-o", str(tmp_path / "made.o")], check=True, timeout=60)


def test_the_headers_are_short_and_have_no_variables() -> None:
    for file in HEADERS.glob("*.h"):
        text = file.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 800 and max(map(len, text.splitlines())) <= 120
        for line in text.splitlines():  # data outside of functions, or that lasts, is constant
            assert not re.match(r"\s*static (?!const\b)[^(]*[;=]", line), line


@pytest.mark.parametrize("seed", range(24))
def test_drawn_policies_say_what_the_modules_say(seed: int, tmp_path: Path) -> None:
    compare(tmp_path, draw_policy(seed))


@pytest.mark.parametrize("name", ["MineSweeper", "MultiSnake", "Skirmish", "Minefield", "Knapsack", "Shells"])
def test_policies_of_worlds_say_what_the_modules_say(name: str, tmp_path: Path) -> None:
    compare(tmp_path, policy_of_world(name))


# --- Memory

#: Seeds of policies that remember by ids: one alone, and one with a value network that does so, too.
REMEMBERS, BOTH_REMEMBER = 3, 49


@pytest.mark.parametrize("seed", [REMEMBERS, BOTH_REMEMBER])
def test_a_policy_remembers_over_a_hundred_steps(seed: int, tmp_path: Path) -> None:
    """Alone, and beside a value network that remembers for itself."""
    drawn = draw_policy(seed, steps=100)
    assert drawn.net.config.memory == "entity"
    assert (drawn.critic is not None and drawn.critic.remembers) == (seed == BOTH_REMEMBER)
    compare(tmp_path, drawn, seeds=[7])


def test_an_agent_forgets_where_an_episode_begins_and_remembers_nothing_of_a_refused_frame(tmp_path: Path) -> None:
    drawn = frames({SHIP: 3, ROCK: 1}, memory="both")
    file, (first, second, _) = tmp_path / "policy.safetensors", drawn.observations
    file.write_bytes(drawn.bytes())
    game = Frames(drawn)
    with Program(file, ACTIONS) as running:
        values = [running.act(game.message(each)).value for each in (first, second)]
        assert running.act(game.message(first, begins=True)).value == values[0]
        x, y = second.features[SHIP][0]  # type: ignore[misc]
        with pytest.raises(PolicyError, match=r"^type 0, entity 0, feature 0 is NaN or infinite$"):
            running.act(changed(game.message(second), np.float32, [x, y], [np.nan, y]))
        assert running.act(game.message(second)).value == values[1]
        assert running.act(game.message(second)).value != values[1]


# --- Frames


def everybody(**masks: Any) -> dict[str, Any]:
    """Offers of all actions to all ships, who may select rocks, with these masks."""
    ships: dict[str, Any] = {"actor_types": [SHIP]}
    rocks: dict[str, Any] = {**ships, "actee_types": [ROCK]}
    return {
        "move": CategoricalActionMask(**ships, mask=masks.get("move")),
        "aim": SelectEntityActionMask(**rocks, mask=masks.get("aim")),
        "pack": SelectEntitiesActionMask(**rocks, mask=masks.get("pack")),
        "load": SelectEntitiesActionMask(**rocks, mask=masks.get("load")),
        "steer": ContinuousActionMask(**ships),
        "mode": GlobalCategoricalActionMask(mask=masks.get("mode")),
    }


def scene(ships: int, rocks: int, **masks: Any) -> Observation:
    rng = np.random.default_rng(3)
    return Observation(
        features={SHIP: rng.normal(size=(ships, 2)), ROCK: rng.normal(size=(rocks, 2))},
        ids={SHIP: range(ships), ROCK: range(100, 100 + rocks)},
        global_features=[0.5],
        actions=everybody(**masks),
    )


@pytest.mark.parametrize(
    "counts", [{}, {SHIP: 1}, {SHIP: 8, FLAG: 1}, {ROCK: 500}], ids=["no entities", "one", "nine", "five hundred"]
)
def test_frames_of_any_size_say_what_the_modules_say(counts: dict[str, int], tmp_path: Path) -> None:
    drawn = frames(counts)
    compare(tmp_path, drawn._replace(observations=drawn.observations[: 1 if 500 in counts.values() else 3]))


def test_frames_without_actors_have_a_value_and_no_actions(tmp_path: Path) -> None:
    drawn = frames({SHIP: 3})
    drawn = drawn._replace(observations=[replace(each, actions={}) for each in drawn.observations])
    compare(tmp_path, drawn)
    assert all(not answer["actions"] for answer in play(drawn, tmp_path / "policy.safetensors"))


def test_a_frame_without_anything_has_the_value_of_nothing(tmp_path: Path) -> None:
    space = ObsSpace({SHIP: Entity(["x"])})
    net = make_net(RogueNetConfig(d_model=8, backend="reference"), space, {"move": ACTIONS["move"]}, 0)
    compare(tmp_path, Drawn(net, None, [Observation()]))


@pytest.mark.parametrize(
    "config", [CONFIG, replace(CONFIG, relpos=RelposConfig(), pooling="meanmax")], ids=["attention", "pooling"]
)
def test_hidden_entities_change_the_value_and_no_decision_of_visible_ones(
    config: RogueNetConfig, tmp_path: Path
) -> None:
    net = make_net(config, SPACE, ACTIONS, 0)
    shown = [
        replace(scene(2, 3), features={**scene(2, 3).features, FLAG: [[x, 0]]}, visible={FLAG: [False]}) for x in (0, 9)
    ]
    file = tmp_path / "policy.safetensors"
    compare(tmp_path, Drawn(net, None, shown))
    one, other = play(Drawn(net, None, shown), file)
    assert one["value"] != other["value"]
    assert one["logProbs"] == {**other["logProbs"], "mode": one["logProbs"]["mode"]}
    visible = [replace(each, visible={}) for each in shown]
    one, other = play(Drawn(net, None, visible), file)
    assert one["logProbs"] != {**other["logProbs"], "mode": one["logProbs"]["mode"]}


def test_where_one_choice_is_open_it_is_taken_for_certain(tmp_path: Path) -> None:
    net = make_net(CONFIG, SPACE, ACTIONS, 0)
    only = scene(
        2, 2, move=[[False, True, False], [False, False, True]], aim=[[False, True], [True, False]],
        pack=[[False, False], [False, True]], load=[[False, False], [False, False]], mode=[True, False],
    )  # fmt: skip
    drawn = Drawn(net, None, [only])
    for seed in (None, 3):
        [answer] = play(drawn, tmp_path / "policy.safetensors", seed)
        assert answer["actions"]["move"] == {"actors": [0, 1], "choices": [1, 2]}
        assert answer["actions"]["aim"] == {"actors": [0, 1], "actees": [101, 100]}
        assert answer["actions"]["pack"]["actees"][0] == []
        assert answer["actions"]["load"]["actees"] == [[], []]
        assert answer["actions"]["mode"] == {"choice": 0, "label": "calm"}
        assert answer["logProbs"]["move"] == answer["logProbs"]["aim"] == answer["logProbs"]["load"] == [0, 0]
        assert answer["logProbs"]["pack"][0] == answer["logProbs"]["mode"][0] == 0


def test_who_may_select_nobody_alone_selects_nobody(tmp_path: Path) -> None:
    actions = {"aim": SelectEntityActionSpace(nobody=True), "turn": SelectEntityActionSpace(exclude_self=True)}
    net = make_net(replace(CONFIG, relpos=RelposConfig()), SPACE, actions, 0)
    alone = Observation(
        features={SHIP: [[1, 2]]},
        ids={SHIP: [0]},
        global_features=[0],
        actions={name: SelectEntityActionMask(actor_types=[SHIP], actee_types=[SHIP]) for name in actions},
    )
    nobody = replace(
        alone, actions={"aim": SelectEntityActionMask(actor_types=[SHIP], actee_types=[SHIP], mask=[[False]])}
    )
    compare(tmp_path, Drawn(net, None, [alone, nobody]))
    answers = play(Drawn(net, None, [alone, nobody]), tmp_path / "policy.safetensors")
    assert answers[0]["logProbs"]["turn"] == answers[1]["logProbs"]["aim"] == [0]
    assert answers[0]["actions"]["turn"] == answers[1]["actions"]["aim"]


def test_the_same_seed_draws_the_same_and_goes_on(tmp_path: Path) -> None:
    drawn = frames({SHIP: 3, ROCK: 4})
    file = tmp_path / "policy.safetensors"
    file.write_bytes(drawn.bytes())
    with Program(file, ACTIONS) as running:
        message = Frames(drawn).message(scene(3, 4), seed=2**64 - 1)
        one, other = running.act(message), running.act(message)
        assert one.seed == other.seed != 2**64 - 1
        assert all((one.choices[name] == other.choices[name]).all() for name in ACTIONS)
        another = running.act(Frames(drawn).message(scene(3, 4), seed=one.seed))
    assert (one.choices["steer"] != another.choices["steer"]).all()


def test_what_is_drawn_is_as_frequent_as_it_is_likely(tmp_path: Path) -> None:
    """Every kind of action, 4,000 times: 4 standard deviations of a frequency are 0.032 at most."""
    net = make_net(replace(CONFIG, relpos=RelposConfig()), SPACE, ACTIONS, 0)
    drawn, file = Drawn(net, None, [scene(1, 3)]), tmp_path / "policy.safetensors"
    file.write_bytes(drawn.bytes())
    batch, seed, all_acted = Frames(drawn).read(scene(1, 3))[1], 1, []
    with Program(file, ACTIONS) as running:
        for _ in range(4000):
            all_acted.append(running.act(frame_message(batch, list(SPACE.entities), list(ACTIONS), seed)))
            seed = all_acted[-1].seed

    def frequency(name: str, is_so: Callable[[NDArray[Any]], bool]) -> float:
        return float(np.mean([is_so(each.choices[name][:, 0]) for each in all_acted]))

    likely = {name: np.exp(logits) for name, logits in all_acted[0].logits.items()}
    for k in range(3):
        assert frequency("move", lambda made, k=k: made[0] == k) == pytest.approx(likely["move"][k], abs=0.032)
        assert frequency("aim", lambda made, k=k: made[0] == 1 + k) == pytest.approx(likely["aim"][k], abs=0.032)
        assert frequency("load", lambda made, k=k: made[k] == 1) == pytest.approx(likely["load"][k], abs=0.032)
    assert frequency("mode", lambda made: made[0] == 1) == pytest.approx(likely["mode"][1], abs=0.032)
    for name, count in (("pack", 7), ("load", 16)):  # 3 rocks: sets of up to two; lists in any order
        sets = {tuple(each.choices[name][:, 0]): float(each.log_probs[name][0]) for each in all_acted}
        assert len(sets) == count and sum(np.exp(list(sets.values()))) == pytest.approx(1, abs=1e-4)
        for chosen, log_prob in sets.items():
            seen = frequency(name, lambda made, chosen=chosen: tuple(made) == chosen)
            assert seen == pytest.approx(np.exp(log_prob), abs=0.032)
    # the Gaussians behind the numbers
    mean, std = all_acted[0].logits["steer"][0], float(np.exp(all_acted[0].logits["steer"][2]))
    turns = np.arctanh([each.choices["steer"][0, 0] for each in all_acted])
    assert np.std(turns) == pytest.approx(std, rel=0.05)
    assert np.mean(turns) == pytest.approx(mean, abs=4 * std / np.sqrt(4000))


def test_acting_allocates_nothing_in_frames_that_are_no_larger_than_before(tmp_path: Path) -> None:
    drawn, file = frames({}, memory="both"), tmp_path / "policy.safetensors"
    file.write_bytes(drawn.bytes())
    game = Frames(drawn)
    with Program(file, ACTIONS) as running:
        for _ in range(2):  # two states take turns
            most = running.act(game.message(scene(5, 9), seed=1)).allocations
        for ships, rocks in ((5, 9), (1, 1), (0, 0), (2, 9), (5, 9)) * 3:
            assert running.act(game.message(scene(ships, rocks), seed=1)).allocations == most
        assert running.act(game.message(scene(6, 90), seed=1)).allocations > most


# --- Frames that do not fit


def refusal(drawn: Drawn, folder: Path, message: bytes) -> str:
    """Answer of the program to a frame."""
    file = folder / "policy.safetensors"
    file.write_bytes(drawn.bytes())
    with Program(file, drawn.net.action_space) as running, pytest.raises(PolicyError) as refused:
        running.act(message)
    return str(refused.value)


def changed(message: bytes, dtype: type[np.generic], before: Sequence[float], after: Sequence[float]) -> bytes:
    """A message with other numbers in the place where these first stand."""
    one, other = (np.array(numbers, dtype).tobytes() for numbers in (before, after))
    assert one in message
    return message.replace(one, other, 1)


@pytest.mark.parametrize("entity", [-1, 4, 2**31 - 1, -(2**31)])
def test_an_entity_that_is_not_there_is_refused(entity: int, tmp_path: Path) -> None:
    """Four are: three ships, and the frame."""
    drawn = frames({})
    message = changed(Frames(drawn).message(scene(3, 0)), np.int32, [0, 1, 2], [0, entity, 2])
    assert refusal(drawn, tmp_path, message) == f"action 0: entity {entity}, and the frame has 4"


def test_a_number_of_entities_that_cannot_be_is_refused(tmp_path: Path) -> None:
    drawn = frames({})
    message = Frames(drawn).message(scene(3, 0))
    for count in (-1, 2**31 - 1):
        said = refusal(drawn, tmp_path, changed(message, np.int64, [4, 6, 3], [4, 6, count]))
        assert said == f"type 0: {count} entities, or no features"


def test_an_actor_without_an_open_choice_is_refused(tmp_path: Path) -> None:
    drawn = frames({})
    message = Frames(drawn).message(scene(1, 0, move=[[False, True, False]]))
    said = refusal(drawn, tmp_path, message.replace(bytes([0, 1, 0]) + b"\xff" * 8, bytes(3) + b"\xff" * 8))  # its mask
    assert said == "action 0: all is closed to entity 0"


@pytest.mark.parametrize(
    ("card", "said"),
    [
        ([1, 2, 4], "type 1, entity 0, feature 2: 4 is none of 4 categories"),
        ([1, 2, -1], "type 1, entity 0, feature 2: -1 is none of 4 categories"),
        ([1, 2, 3e38], "type 1, entity 0, feature 2: 3e+38 is none of 4 categories"),
        ([1, np.inf, 3], "type 1, entity 0, feature 1 is NaN or infinite"),
    ],
)
def test_a_feature_that_cannot_be_is_refused_by_its_place(card: list[float], said: str, tmp_path: Path) -> None:
    drawn, shown = cards({SHIP: [[0, 1]], CARD: [[1, 2, 3]]})
    assert refusal(drawn, tmp_path, changed(Frames(drawn).message(shown), np.float32, [1, 2, 3], card)) == said


def test_frames_that_a_network_cannot_read_are_refused(tmp_path: Path) -> None:
    drawn, shown = cards({SHIP: [[0, 1], [2, 3]]}, ids={SHIP: [0, 1]})
    said = refusal(drawn, tmp_path, Frames(drawn).message(shown))
    assert said == "type 0 is the origin of a translation: show one"
    drawn, shown = cards({SHIP: [[0, 1]]}, ids={})
    said = refusal(drawn, tmp_path, Frames(drawn).message(shown))
    assert said == "net.memory needs ids of entities, and the frame has none"


def test_weights_that_are_too_large_are_noticed_in_what_they_make(tmp_path: Path) -> None:
    drawn, shown = cards({SHIP: [[0, 1]]})
    with torch.no_grad():
        drawn.net.value_head.project.weight.fill_(3e38)
    said = refusal(drawn, tmp_path, Frames(drawn).message(shown))
    assert said == "the value is NaN or infinite: features or weights are too large"
    drawn, shown = cards({SHIP: [[0, 1]]})
    with torch.no_grad():
        drawn.net.heads[0].project.weight.fill_(3e38)  # type: ignore[union-attr]
    said = refusal(drawn, tmp_path, Frames(drawn).message(shown))
    assert said in ("action 0: all is closed to entity 0", "action 0: the log-prob of actor 0 is NaN or infinite")


def cards(features: dict[str, list[list[float]]], ids: dict[str, list[int]] | None = None) -> tuple[Drawn, Observation]:
    """A policy of a ship, around which cards lie, and a frame of it."""
    space = ObsSpace({SHIP: Entity(["x", "y"]), CARD: Entity(["x", "y", Category("suit", 4)])})
    translation = TranslationConfig(reference_entity=SHIP, position_features=["x", "y"], add_distance=True)
    config = RogueNetConfig(d_model=8, memory="entity", translation=translation, backend="reference")
    ids = {SHIP: [0]} if ids is None else ids
    actions = {"move": CategoricalActionMask(actor_ids=ids.get(SHIP, [])[:1])}
    net = make_net(config, space, {"move": ACTIONS["move"]}, 0)
    return Drawn(net, None, []), Observation(features=features, ids=ids, actions=actions)


# --- Broken files


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy file."""
    file = tmp_path_factory.mktemp("whole") / "policy.safetensors"
    file.write_bytes(frames({}).bytes())
    return file


@pytest.fixture
def file(whole: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    copy = tmp_path / "policy.safetensors"
    copy.write_bytes(whole.read_bytes())
    return copy


def test_reading_takes_no_more_memory_than_the_file_has(file: Path) -> None:
    with Program(file, ACTIONS) as running:
        assert running.memory <= file.stat().st_size


def loading(file: Path) -> str:
    """Why the program refuses a file. All that it has read is in memory of the file's size, behind which sanitizers look."""
    with pytest.raises(PolicyError) as refused:
        Program(file, ACTIONS)
    return str(refused.value)


WEIGHT = "transformer.blocks.1.mlp.1.weight"
NO_FILE = "the length of the header: this is no safetensors file, or it is cut short"
DAMAGED = "the hash does not fit the content: the file is damaged"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", NO_FILE),
        (lambda data: data[:7], NO_FILE),
        (lambda data: data[:1000], NO_FILE),
        (lambda data: data[: len(data) // 2], DAMAGED),
        (lambda data: data[:-1], DAMAGED),
        (lambda data: data + b"\0", DAMAGED),
        (lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], DAMAGED),
        (lambda data: data.replace(b'"F32"', b'"F31"', 1), DAMAGED),
        (lambda data: data.replace(b'"F32"', b'"F32}', 1), "the header is no JSON"),
        (lambda data: data[:8] + b"[" * 10000 + data[10008:], "the header is no JSON"),
        (lambda data: pickle.dumps({"policy": data}), NO_FILE),
        (lambda data: (2**32 - 1).to_bytes(8, "little") + data[8:], NO_FILE),
        (lambda data: (2**63).to_bytes(8, "little") + data[8:], NO_FILE),
        (lambda data: (4).to_bytes(8, "little") + b"null" + data[8:], "the header is no JSON"),
        (lambda data: (2).to_bytes(8, "little") + b"{}" + data[8:], "this version reads format 8, not format none"),
    ],
    ids=["empty", "seven bytes", "cut in the header", "half", "a byte less", "a byte more", "a bit flipped", "a digit",
         "a bracket", "deep", "pickle", "4 GB", "2^63", "null", "no metadata"],
)  # fmt: skip
def test_a_broken_file_is_one_clear_error(damage: Callable[[bytes], bytes], message: str, file: Path) -> None:
    file.write_bytes(damage(file.read_bytes()))
    assert loading(file) == message


@pytest.mark.parametrize("version", ["7", "9"])
def test_a_file_of_another_version_is_refused_by_name(version: str, file: Path) -> None:
    assert loading(with_header(file, format=version)) == f'this version reads format 8, not format "{version}"'


def with_weights(file: Path, weights: Mapping[str, torch.Tensor | None]) -> Path:
    """The file with other weights, or without those that are None; the hash is right."""
    checkpoint = read_policy_file(file)
    policy = {name: each for name, each in {**checkpoint.policy, **weights}.items() if each is not None}
    file.write_bytes(policy_bytes(replace(checkpoint, policy=policy)))
    return file


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (None, f"tensor {WEIGHT} is missing"),
        (torch.zeros(64, 15), f"tensor {WEIGHT} must be F32, of shape 64, 16 (-1: none)"),
        (torch.zeros(64), f"tensor {WEIGHT} must be F32, of shape 64, 16 (-1: none)"),
        (torch.zeros(64, 16, 1), f"tensor {WEIGHT} must be F32, of shape 64, 16 (-1: none)"),
        (torch.zeros(64, 16, dtype=torch.float64), f"tensor {WEIGHT} must be F32, of shape 64, 16 (-1: none)"),
    ],
    ids=["missing", "narrow", "vector", "cube", "float64"],
)
def test_weights_that_do_not_fit_are_refused_by_their_name(
    weights: torch.Tensor | None, message: str, file: Path
) -> None:
    assert loading(with_weights(file, {WEIGHT: weights})) == message


def test_weights_of_an_unknown_part_are_refused(file: Path) -> None:
    """They could change what the others mean."""
    unknown = "transformer.blocks.1.gate"
    assert loading(with_weights(file, {unknown: torch.zeros(1)})) == f"this version does not know the tensor {unknown}"


def places_of(name: str, data: bytes) -> re.Match[bytes]:
    """Place of a tensor, as a file's header has it."""
    found = re.search(rb'"%b":[^}]*"data_offsets":\[(\d+),(\d+)\]' % name.encode(), data)
    assert found is not None
    return found


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused_by_their_name(number: float, file: Path) -> None:
    data = file.read_bytes()
    at = 8 + int.from_bytes(data[:8], "little") + int(places_of(WEIGHT, data)[2]) - 4  # the last of them
    file.write_bytes(data[:at] + np.float32(number).tobytes() + data[at + 4 :])
    assert loading(with_header(file)) == f"tensor {WEIGHT} is NaN or infinite"


@pytest.mark.parametrize("places", ["0,4294967296", "4294967296,4294971392", "-4,4092", "0.5,4096.5", "8,4", "", "{}"])
def test_a_tensor_that_is_not_in_the_file_is_refused(places: str, file: Path) -> None:
    data = file.read_bytes()
    length, found = int.from_bytes(data[:8], "little"), places_of(WEIGHT, data)
    header = data[8 : found.start(1)] + places.encode() + data[found.end(2) : 8 + length]
    file.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    assert loading(with_header(file)) == f"shape, data_offsets or file do not fit in tensor {WEIGHT}"


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ({"n_layer": 2**30}, "n_layer in the header must be a whole number from 0 to 2^24"),
        ({"n_layer": 2**20}, "config: n_layer 1048576: the file has fewer"),
        ({"n_head": 3}, "config: d_model, n_head, d_qk, pooling and relpos of a network do not fit together"),
        ({"n_head": 0}, "n_head in the header must be a whole number from 1 to 2^24"),
        ({"pooling": "median"}, 'this version does not know "median" of the header'),
        ({"memory": "frame"}, "tensor transformer.memory.first is missing"),
    ],
)
def test_settings_that_do_not_fit_are_refused(net: dict[str, Any], message: str, file: Path) -> None:
    checkpoint = read_policy_file(file)
    config = {**checkpoint.config, "net": {**checkpoint.config["net"], **net}}
    file.write_bytes(policy_bytes(replace(checkpoint, config=config)))
    assert loading(file) == message


def test_a_checkpoint_is_read_without_the_state_of_its_trainer(file: Path) -> None:
    trainer = {"scale": None, "step": torch.ones(3), "numbers": np.arange(4, dtype=np.int16)}
    file.write_bytes(policy_bytes(replace(read_policy_file(file), trainer=trainer)))
    with Program(file, ACTIONS) as running:
        assert running.memory <= file.stat().st_size


def test_names_are_found_whatever_they_hold(tmp_path: Path) -> None:
    """Texts in the file have escapes inside of escapes."""
    name, feature = 'a "b" \\ é\t', 'x "y"'
    space = ObsSpace({name: Entity([feature, "z"]), "rock": Entity(["z"])}, ["time"])
    actions = {name: SelectEntitiesActionSpace(ordered=True, cost=feature, budget="time", exclude_self=True)}
    positions = RelposConfig(kind="grid", extent=[2], position_features=[feature], exclude_entities=["rock"])
    net = make_net(RogueNetConfig(d_model=8, n_head=1, relpos=positions, backend="reference"), space, actions, 0)
    shown = Observation(
        features={name: [[1, 2], [0.5, 1], [3, 0]], "rock": [[1]]},
        ids={name: [0, 1, 2]},
        global_features=[2],
        actions={name: SelectEntitiesActionMask(actor_types=[name], actee_types=[name])},
    )
    compare(tmp_path, Drawn(net, None, [shown]))


# --- The page about it


def test_the_program_of_the_page_plays_mine_sweeper(tmp_path: Path) -> None:
    """As a library, which is how C#, Godot and browsers call it."""
    page = (HEADERS.parents[1] / "docs" / "ship_c.md").read_text(encoding="utf-8")
    program, command = re.search(r"```c\n(.*?)```", page, re.DOTALL), re.search(r"```sh\ncc (.*)\n```", page)
    assert program is not None and command is not None and COMPILER is not None
    (tmp_path / "mines.c").write_text(program[1], encoding="utf-8")
    flags = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    typed = command[1].replace("clients/c", str(HEADERS)).split()
    subprocess.run([COMPILER, *flags, *typed], cwd=tmp_path, check=True, timeout=60)
    mines, drawn = ctypes.CDLL(str(tmp_path / "libmines.so")), policy_of_world("MineSweeper", steps=3)
    mines.player.restype, mines.moves.restype = ctypes.c_void_p, ctypes.c_char_p
    data, error = drawn.bytes(), ctypes.create_string_buffer(200)
    kept = (ctypes.c_uint64 * (len(data) // 8 + 1))()  # begins at a multiple of 8
    ctypes.memmove(kept, data, len(data))
    player = ctypes.c_void_p(mines.player(kept, len(data), error))
    assert player, error.value
    answers = play(drawn, tmp_path / "policy.safetensors")
    for observation, answer in zip(drawn.observations, answers, strict=True):
        xy = [np.ascontiguousarray(observation.features[name], np.float32) for name in ("Mine", "Robot")]
        is_open = np.ascontiguousarray(observation.actions["Move"].mask, np.uint8)  # type: ignore[union-attr]
        places = [each.ctypes.data_as(ctypes.c_void_p) for each in (*xy, is_open)]
        chosen = (ctypes.c_int32 * len(xy[1]))()
        assert mines.moves(player, places[0], len(xy[0]), places[1], len(xy[1]), places[2], chosen) is None
        assert list(chosen) == answer["actions"]["Move"]["choices"]
    assert mines.moves(player, places[0], 1, places[1], 17, None, chosen) == b"at most 16 robots"
    assert not mines.player(kept, len(data) - 1, error) and error.value.decode() == DAMAGED
