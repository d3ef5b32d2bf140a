"""Policies in NumPy say what the modules say: 40 drawn combinations of options here, 300 and all worlds in tests/nightly."""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entity_gym import (
    CategoricalActionMask,
    Category,
    Entity,
    Observation,
    ObsSpace,
)
from rogue_net import RogueNetConfig, TranslationConfig
from rogue_net.numpy import PolicyError
from tests.processes import ROOT
from tests.rogue_net.numpy.playing import answers, compare, load
from tests.runtime_policies import (
    ACTIONS,
    CARD,
    CONFIG,
    FLAG,
    ROCK,
    SHIP,
    SPACE,
    Drawn,
    draw_policy,
    frames,
    make_net,
    policy_of_world,
)


@pytest.mark.parametrize("seed", range(40))
def test_drawn_policies_say_what_the_modules_say(seed: int, tmp_path: Path) -> None:
    compare(draw_policy(seed), tmp_path)


@pytest.mark.parametrize("name", ["MineSweeper", "MultiSnake", "Skirmish", "Knapsack"])
def test_policies_of_worlds_say_what_the_modules_say(name: str, tmp_path: Path) -> None:
    compare(policy_of_world(name), tmp_path)


@pytest.fixture(scope="module")
def remembering() -> list[Drawn]:
    """One that remembers, and one beside a value network that remembers for itself."""
    drawn = [draw_policy(seed, steps=1) for seed in range(60)]
    alone = next(seed for seed, each in enumerate(drawn) if each.net.config.memory == "entity" and not each.critic)
    both = next(s for s, each in enumerate(drawn) if each.net.remembers and each.critic and each.critic.remembers)
    return [draw_policy(seed, steps=100) for seed in (alone, both)]


@pytest.mark.parametrize("which", [0, 1])
def test_a_policy_remembers_over_a_hundred_steps(which: int, remembering: list[Drawn], tmp_path: Path) -> None:
    compare(remembering[which], tmp_path)


# --- Frames


@pytest.mark.parametrize(
    "counts",
    [{}, {SHIP: 1}, {FLAG: 1}, {SHIP: 2, ROCK: 1}, {SHIP: 20, ROCK: 30, CARD: 10}],
    ids=["none", "one", "one flag", "three", "sixty"],
)
def test_frames_of_any_size(counts: dict[str, int], tmp_path: Path) -> None:
    compare(frames(counts, hide=True), tmp_path)


def test_a_frame_of_500_entities(tmp_path: Path) -> None:
    drawn = frames({ROCK: 500}, num=1)
    moves = {"move": CategoricalActionMask(actor_types=[ROCK])}
    compare(drawn._replace(observations=[replace(drawn.observations[0], actions=moves)]), tmp_path)


def test_a_frame_without_anything_has_the_value_of_nothing(tmp_path: Path) -> None:
    space = ObsSpace({SHIP: Entity(["x"])})
    net = make_net(RogueNetConfig(d_model=8, backend="reference"), space, {"move": ACTIONS["move"]}, 0)
    compare(Drawn(net, None, [Observation()]), tmp_path)


def test_hidden_entities_are_seen_by_hidden_ones_and_the_value_alone(tmp_path: Path) -> None:
    drawn = frames({SHIP: 3, ROCK: 4, FLAG: 2})
    hidden = {ROCK: [True, False, False, True], SHIP: [False] * 3}
    observations = [replace(each, visible=hidden) for each in drawn.observations]
    pooling = RogueNetConfig(d_model=16, pooling="meanmax", d_qk=8, backend="reference")
    compare(drawn._replace(observations=observations), tmp_path)
    compare(Drawn(make_net(pooling, SPACE, ACTIONS, 0), None, observations), tmp_path)


TWO_SHIPS: dict[str, Any] = {
    "features": {SHIP: [[0, 1], [2, 3]]},
    "ids": {SHIP: ["a", 7]},
    "global_features": [0.5],
    "actions": {},
}


@pytest.mark.parametrize("greedy", [False, True])
def test_where_one_choice_is_open_it_is_taken_for_certain(greedy: bool, tmp_path: Path) -> None:
    ships = {"actor_types": [SHIP]}
    masks = {
        "move": {**ships, "mask": [[False, True, False], [False, False, True]]},
        "aim": {**ships, "mask": [[False, True], [True, False]]},
        "pack": {**ships, "mask": [[False, False], [False, True]]},
        "mode": {"mask": [True, False]},
    }
    decision = load(frames({}), tmp_path).act({**TWO_SHIPS, "actions": masks}, greedy=greedy)
    assert decision.actions["move"] == {"actors": ["a", 7], "choices": [1, 2]}
    assert decision.actions["aim"] == {"actors": ["a", 7], "actees": [7, "a"]}
    assert decision.actions["pack"]["actees"][0] == []
    assert decision.actions["mode"] == {"choice": 0, "label": "calm"}
    assert decision.log_probs["move"].tolist() == decision.log_probs["aim"].tolist() == [0, 0]
    assert decision.probabilities["move"] == [[0, 1, 0], [0, 0, 1]]
    assert decision.probabilities["aim"] == {"actees": ["a", 7], "rows": [[0, 1], [1, 0]]}
    assert decision.probabilities["mode"] == [1, 0]


def test_who_may_select_nobody_is_not_listed_then(tmp_path: Path) -> None:
    masks = {"aim": {"actor_types": [SHIP], "mask": [[False, False], [True, False]]}}
    decision = load(frames({}), tmp_path).act({**TWO_SHIPS, "actions": masks})
    assert decision.actions["aim"] == {"actors": [7], "actees": ["a"]}
    assert decision.log_probs["aim"].tolist() == [0, 0]


def test_what_is_drawn_is_as_frequent_as_it_is_likely(tmp_path: Path) -> None:
    """Every kind of action, 2,000 times: 4 standard deviations of a frequency are 0.045 at most."""
    policy, rng = load(frames({}), tmp_path), np.random.default_rng(0)
    of_ship = {name: {"actor_ids": ["ship"], "actee_types": [ROCK]} for name in ("aim", "pack", "load")}
    told = {
        "features": {SHIP: [[0, 1]], ROCK: [[1, 1], [0, 2], [-1, 0]]},
        "ids": {SHIP: ["ship"], ROCK: [0, 1, 2]},
        "global_features": [0.5],
        "actions": {**of_ship, "move": {"actor_ids": ["ship"]}, "steer": {"actor_ids": ["ship"]}, "mode": {}},
    }
    made = [policy.act(told, rng=rng) for _ in range(2000)]

    def frequency(name: str, part: str, *wanted: Any) -> float:
        return float(np.mean([each.actions[name][part] in wanted for each in made]))

    likely = made[0].probabilities
    for k in range(3):
        assert frequency("move", "choices", [k]) == pytest.approx(likely["move"][0][k], abs=0.045)
        assert frequency("aim", "actees", [k]) == pytest.approx(likely["aim"]["rows"][0][k], abs=0.045)
        first = np.mean([each.actions["load"]["actees"][0][:1] == [k] for each in made])
        assert first == pytest.approx(likely["load"]["rows"][0][k], abs=0.045)
    assert frequency("mode", "choice", 1) == pytest.approx(likely["mode"][1], abs=0.045)
    sets = {tuple(each.actions["pack"]["actees"][0]): float(each.log_probs["pack"][0]) for each in made}
    assert sum(np.exp(list(sets.values()))) == pytest.approx(1, abs=1e-6)
    for chosen, log_prob in sets.items():
        assert frequency("pack", "actees", [list(chosen)]) == pytest.approx(np.exp(log_prob), abs=0.045)
    turns = np.arctanh([each.actions["steer"]["values"][0][0] for each in made])
    std = float(np.exp(policy.net.tensors["heads.4.log_std"][0]))
    assert np.std(turns) == pytest.approx(std, rel=0.1)


# --- Use


def test_a_list_of_observations_gives_a_list_of_decisions_that_each_go_on(tmp_path: Path) -> None:
    drawn = frames({SHIP: 2, ROCK: 3}, num=4, memory="both")
    policy, (first, second, third, fourth) = load(drawn, tmp_path), drawn.observations
    one, other = answers(policy, [first, second], greedy=True), answers(policy, [third, fourth], greedy=True)
    begun = policy.act([first, third], greedy=True)
    ended = policy.act([second, fourth], [each.state for each in begun], greedy=True)
    assert [each.value for each in (*begun, *ended)] == [each["value"] for each in (one[0], other[0], one[1], other[1])]
    assert ended[0].value != policy.act(second, greedy=True).value  # who remembers nothing says something else


def test_the_same_generator_draws_the_same_actions(tmp_path: Path) -> None:
    drawn = frames({SHIP: 4, ROCK: 3})
    policy, shown = load(drawn, tmp_path), drawn.observations[0]
    made = [policy.act(shown, rng=np.random.default_rng(seed)).actions for seed in (1, 1, 2, 3)]
    assert made[0] == made[1] and not made[0] == made[2] == made[3]
    assert len({str(policy.act(shown).actions) for _ in range(5)}) > 1  # the policy's own generator goes on


def test_a_policy_plays_while_arrays_of_observations_change(tmp_path: Path) -> None:
    drawn = frames({SHIP: 2, ROCK: 3}, memory="entity")
    policy, shown = load(drawn, tmp_path), drawn.observations[0]
    before = policy.act(shown, greedy=True)
    kept = {key: row.copy() for key, row in before.state[0].items()}
    for rows in shown.features.values():
        rows[...] = 1e6  # type: ignore[index, call-overload]
    assert all(np.array_equal(before.state[0][key], row) for key, row in kept.items())


# --- What does not fit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feature": {}}, "'feature' is unknown; allowed: features ids visible"),
        ({"features": {"Boat": []}}, "'Boat' is unknown; types: ['Ship', 'Rock', 'card.1', 'Flag', '__global__']"),
        ({"actions": {"fly": {}}}, "'fly' is unknown"),
        ({"features": {SHIP: [[1]]}}, "features of 'Ship': [[1]]; expected rows of finite ['x', 'y']"),
        ({"features": {SHIP: [[1, None]]}}, "features of 'Ship': [[1, None]]; expected rows of finite"),
        ({"features": {SHIP: [[1, 1e39]]}}, "features of 'Ship': [[1, 1e+39]]; expected rows of finite"),
        ({"features": {SHIP: 3}}, "features of 'Ship': 3; expected rows of finite"),
        ({"global_features": []}, "features of '__global__': [[]]; expected rows of finite ['time']"),
        ({"ids": {SHIP: ["a"]}}, "1 ids for the 2 entities of type 'Ship'"),
        ({"ids": {SHIP: ["a", "a"]}}, "ids are ['a', 'a', None]; they must be unique across all types"),
        ({"visible": {SHIP: [1, 0]}}, "visible of 'Ship' is [1, 0]; expected true or false in the shape (2,)"),
        ({"visible": {SHIP: [True]}}, "visible of 'Ship' is [True]; expected true or false in the shape (2,)"),
        ({"actions": {"move": {"actors": []}}}, "'actors' is unknown; allowed: mask mask_after actor_ids"),
        ({"actions": {"move": {"actor_ids": ["b"]}}}, "actors of action 'move': nothing has the id or type 'b'"),
        ({"actions": {"move": {"actor_types": ["Boat"]}}}, "actors of action 'move': nothing has the id or type 'Boat'"),
        ({"actions": {"move": {"actor_ids": [7, 7]}}}, "actors of action 'move' are [7, 7]; each must have an id"),
        ({"ids": {}, "actions": {"move": {}}}, "actors of action 'move' are None; each must have an id"),
        ({"actions": {"move": {"mask": [[True] * 3]}}}, "the mask of 'move' is [[True, True, True]]; expected true or"),
        ({"actions": {"move": {"mask": [[True], [True, False]]}}}, "the mask of 'move' is [[True], [True, False]]"),
        ({"actions": {"move": {"mask": [[False] * 3] * 2}}}, "outputs are NaN: every choice of an actor is closed"),
        ({"actions": {"move": {"mask_after": [[[True]]]}}}, "mask_after of 'move' is [[[True]]]; expected true or"),
    ],
)  # fmt: skip
def test_an_observation_that_does_not_fit_is_an_error_that_says_where(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    policy = load(frames({}), tmp_path)
    with pytest.raises(PolicyError, match=re.escape(message)):
        policy.act({**TWO_SHIPS, **change})


@pytest.mark.parametrize(
    ("row", "message"), [([4], "'rank' of 'Card' is [4.0]; allowed are 0 to 3"), ([0.5], "[0.5]"), ([-1], "[-1.0]")]
)
def test_categories_are_whole_numbers_of_their_table(row: list[float], message: str, tmp_path: Path) -> None:
    net = make_net(
        RogueNetConfig(d_model=8), ObsSpace({"Card": Entity([Category("rank", 4)])}), {"move": ACTIONS["move"]}, 0
    )
    with pytest.raises(PolicyError, match=re.escape(message)):
        load(Drawn(net, None, []), tmp_path).act({"features": {"Card": [row]}})


def test_a_policy_that_remembers_by_ids_asks_for_them(tmp_path: Path) -> None:
    policy = load(frames({}, memory="entity"), tmp_path)
    with pytest.raises(PolicyError, match="the policy remembers entities of .* by their ids; give `ids`"):
        policy.act({**TWO_SHIPS, "ids": {}})


def test_the_reference_of_a_translation_is_alone(tmp_path: Path) -> None:
    translation = TranslationConfig(reference_entity=SHIP, position_features=["x", "y"])
    net = make_net(replace(CONFIG, translation=translation), SPACE, ACTIONS, 0)
    with pytest.raises(PolicyError, match="the observation shows 2 of 'Ship'; it may show one or none"):
        load(Drawn(net, None, []), tmp_path).act(TWO_SHIPS)


def test_numbers_that_are_too_large_for_float32_are_an_error(tmp_path: Path) -> None:
    drawn = frames({})
    drawn.net.value_head.project.weight.data.fill_(3e38)  # a sum of infinite numbers of both signs
    policy = load(drawn, tmp_path)
    with pytest.raises(
        PolicyError, match="outputs are NaN: every choice of an actor is closed, or weights are too large"
    ):
        policy.act(TWO_SHIPS)


def test_the_page_about_the_network_quotes_it() -> None:
    page, source = ((ROOT / file).read_text("utf-8") for file in ("docs/network.md", "rogue_net/numpy/network.py"))
    (quoted,) = re.findall(r"^```python\n(def block.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert textwrap.indent(quoted, "    ") in source
