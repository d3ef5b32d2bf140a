"""Policies of policy files as Node plays them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

NODE = shutil.which("node")
NO_NODE = "needs Node 18 or newer"
CLIENT = Path(__file__).parents[1] / "clients" / "javascript"

#: The beginning of scripts that `run_node` runs.
IMPORTS = f"""
import {{ readFileSync }} from "node:fs";
import {{ Policy }} from "{(CLIENT / "policy.mjs").as_uri()}";
import {{ seededRandom }} from "{(CLIENT / "entity_gym.mjs").as_uri()}";
const given = JSON.parse(readFileSync(0));
"""

_ASK = """
const answers = given.map(({ file, observations, greedy, seed }) => {
  const [policy, random] = [Policy.load(readFileSync(file)), seededRandom(seed)];
  let state = null;
  return observations.map((observation) => {
    const answer = policy.act(observation, { state, greedy, random });
    state = JSON.parse(JSON.stringify(answer.state));
    return answer;
  });
});
console.log(JSON.stringify(answers));
"""


class Question(NamedTuple):
    """The observations of an episode, in the form of docs/protocol.md, for the policy of a file."""

    file: Path
    observations: Sequence[Any]
    greedy: bool = False
    seed: int = 0


def run_node(script: str, given: Any = None) -> str:
    """Run a module that begins with `IMPORTS`; returns what it prints.

    Args:
        script: what follows.
        given: a JSON value that the script finds as `given`.

    Raises:
        RuntimeError: it ended with an error, which the message has.
    """
    command = ["node", "--input-type=module", "--eval", IMPORTS + script]
    told = json.dumps(given)
    done = subprocess.run(command, input=told, capture_output=True, text=True, encoding="utf-8", timeout=600)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def ask_node(questions: Sequence[Question]) -> list[list[dict[str, Any]]]:
    """The answers of `Policy.act` to each observation of each question; states go through JSON."""
    told = [{**each._asdict(), "file": str(each.file)} for each in questions]
    answers: list[list[dict[str, Any]]] = json.loads(run_node(_ASK, told))
    return answers
