"""docs/protocol.md: what it shows is what is read and sent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entity_gym import (
    CategoricalAction,
    ContinuousAction,
    GlobalCategoricalAction,
    SelectEntitiesAction,
    SelectEntityAction,
)
from entity_gym.batch.frame import FrameReader
from entity_gym.bridges.remote import ProgramWorlds
from entity_gym.bridges.remote.messages import (
    PROTOCOL,
    MessageReader,
    actions_to_json,
    encode,
    observation_from_json,
    spaces_from_json,
)

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
MESSAGES: list[dict[str, Any]] = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]


def message(kind: str, **parts: Any) -> dict[str, Any]:
    """The first message of this type that has these parts."""
    return next(each for each in MESSAGES if each["type"] == kind and parts.items() <= each.items())


def test_the_bytes_of_a_message_are_those_that_are_sent_and_read() -> None:
    (shown,) = re.findall(r"```text\n([0-9a-f \n]+)```", PAGE)
    assert encode({"type": "close"}) == bytes.fromhex(shown)
    reader = MessageReader()
    reader.feed(bytes.fromhex(shown))
    assert reader.next() == {"type": "close"}


def test_every_message_says_the_version_that_is_spoken() -> None:
    greetings = [each for each in MESSAGES if each["type"] in ("hello", "worlds", "policy")]
    assert [each["protocol"] for each in greetings] == 4 * [PROTOCOL]
    assert message("health", protocol=PROTOCOL)
    assert f"Version {PROTOCOL}." in PAGE


def test_the_observations_fit_the_spaces_that_are_shown() -> None:
    obs_space, action_space = spaces_from_json(message("worlds")["spaces"])
    reader = FrameReader(obs_space, action_space)
    for shown in (message("observation"), message("act", id=17)["observation"]):
        frame = reader.read(observation_from_json(shown, action_space), 0)
        assert frame.ids == ["g", 10, 11, None]
    assert len(reader.read(observation_from_json(message("observation"), action_space), 0).actions) == 5


def test_the_actions_are_those_that_are_sent() -> None:
    speed = np.array([[0.7]])
    sent = actions_to_json(
        {
            "pick": SelectEntityAction(["g", "h"], [10, None]),  # nobody is not told
            "pack": SelectEntitiesAction(["g"], [[11, 10]]),
            "move": CategoricalAction(["g"], np.array([1])),
            "speed": ContinuousAction(["g"], speed),  # type: ignore[arg-type]
            "rest": GlobalCategoricalAction(0, "no"),
        }
    )
    assert sent == message("act", env=3)["actions"]


@pytest.mark.parametrize("name", ["start_seconds", "answer_seconds", "max_message_bytes"])
def test_the_table_has_the_defaults_that_hold(name: str) -> None:
    (told,) = re.findall(rf"^\| `{name}` \| `?([^`|]+?)`? \|", PAGE, re.MULTILINE)
    assert told == f"{getattr(ProgramWorlds(command=['node']), name):{'g' if name.endswith('seconds') else ''}}"
