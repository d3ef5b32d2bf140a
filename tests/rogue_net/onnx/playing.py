"""ONNX models of policies beside the modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from entity_gym import ContinuousActionSpace, SelectEntitiesActionSpace, SelectEntityActionSpace
from entity_gym.actions.choices import world_actions
from entity_gym.batch.frame import FrameReader
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.bridges.remote.messages import actions_to_json
from rogue_net.onnx import policy_model
from rogue_net.onnx.playing import Player
from tests.runtime_policies import Drawn, assert_like_modules


def model_of(drawn: Drawn, folder: Path) -> onnx.ModelProto:
    """Write the policy file, and the model of it."""
    file = folder / "policy.safetensors"
    file.write_bytes(drawn.bytes())
    return policy_model(file)


def answers(drawn: Drawn, model: onnx.ModelProto, rng: np.random.Generator | None = None) -> list[dict[str, Any]]:
    """Answers of a model in an episode, in the form that `assert_like_modules` takes."""
    player, spaces, said = Player(model), drawn.net.action_space, []
    reader = FrameReader(drawn.net.obs_space, spaces)
    for observation in drawn.observations:
        made, frame = player.act(observation, rng), reader.read(observation, 0)
        buffers, probabilities = {}, dict[str, Any]()
        for name, space in spaces.items():
            choice = made[f"choice.{name}"].reshape(-1, space.width)
            buffers[name] = RaggedBuffer(choice, np.array([0, len(choice)]))
            if isinstance(space, ContinuousActionSpace) or name not in frame.actions:
                continue
            rows = made[f"logits.{name}"].astype(np.float64)
            if isinstance(space, SelectEntitiesActionSpace) and not space.ordered:
                rows = -np.logaddexp(0, -rows)  # log(1 / (1 + exp(-x)))
            elif isinstance(space, SelectEntityActionSpace) and not space.nobody:
                rows = rows[:, :-1]
            probabilities[name] = np.exp(rows).tolist()
            if space.is_global:
                (probabilities[name],) = probabilities[name]
        said.append(
            {
                "actions": actions_to_json(world_actions(buffers, 0, [frame], spaces)[0]),
                "logProbs": {name: made[f"log_prob.{name}"].tolist() for name in frame.actions},
                "value": float(made["value"]),
                "probabilities": probabilities,
            }
        )
    return said


def compare(drawn: Drawn, folder: Path) -> None:
    """Play an episode greedily, and by drawing, and compare with the modules."""
    model = model_of(drawn, folder)
    assert_like_modules(drawn, answers(drawn, model), greedy=True)
    assert_like_modules(drawn, answers(drawn, model, np.random.default_rng(0)), greedy=False)
