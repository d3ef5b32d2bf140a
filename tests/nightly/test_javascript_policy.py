"""`policy.mjs` beside the modules: every world of the package, 200 drawn combinations of options, and 2,000 damaged files."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path

import pytest

from entity_gym.registry import list_envs
from tests.nightly.fuzz import damaged_bytes
from tests.node import NO_NODE, NODE, Question, ask_node, run_node
from tests.runtime_policies import Drawn, assert_like_modules, draw_policy, observation_to_json, policy_of_world

pytestmark = pytest.mark.skipif(NODE is None, reason=NO_NODE)


def compare(folder: Path, policies: dict[str, Drawn]) -> None:
    questions = []
    for name, drawn in policies.items():
        file = folder / f"{name}.safetensors"
        file.write_bytes(drawn.bytes())
        told = [observation_to_json(each) for each in drawn.observations]
        questions += [Question(file, told, greedy, seed=1) for greedy in (False, True)]
    answers = iter(ask_node(questions))
    for drawn in policies.values():
        assert_like_modules(drawn, next(answers), greedy=False)
        assert_like_modules(drawn, next(answers), greedy=True)


@pytest.mark.parametrize("first", range(100, 300, 50))
def test_drawn_combinations_of_options_say_what_the_modules_say(first: int, tmp_path: Path) -> None:
    compare(tmp_path, {str(seed): draw_policy(seed, steps=6, most=6) for seed in range(first, first + 50)})


@pytest.mark.parametrize("name", list_envs())
def test_policies_of_all_worlds_say_what_the_modules_say(name: str, tmp_path: Path) -> None:
    compare(tmp_path, {f"{name}{seed}": policy_of_world(name, steps=20, seed=seed) for seed in range(2)})


def test_damaged_files_are_refused_with_an_error_of_this_file() -> None:
    data, rng = draw_policy(3).bytes(), random.Random(0)
    damaged = [damaged_bytes(data, rng) for _ in range(2000)]
    script = """
    const said = given.map((text) => {
      try {
        Policy.load(Buffer.from(text, "base64"));
        return "loaded";
      } catch (error) {
        return error.message;
      }
    });
    console.log(JSON.stringify(said));
    """
    told = [base64.b64encode(each).decode() for each in damaged]
    for each, said in zip(damaged, json.loads(run_node(script, told)), strict=True):
        if each == data:
            assert said == "loaded"
        else:
            assert (
                said.startswith("no policy can be loaded: ") and "undefined" not in said and "destructure" not in said
            )
