"""One real batch of three 3x3 MineSweeper environments through the network's stages, number by number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from entity_gym import (
    CategoricalActionSpace,
    Entity,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.actions.choices import world_actions
from entity_gym.batch.batching import batch_observations
from entity_gym.batch.frame import FrameReader
from rogue_net import ActResult, ObsBatch, RaggedTensor
from rogue_net.batch.packing import pack
from rogue_net.heads.heads import ActionHead, CategoricalHead, SelectEntityHead
from rogue_net.heads.readout import Readout
from tests.entity_gym.envs.minesweeper_python import ACTION_SPACE, FIRE, MOVE, OBS_SPACE, PythonMineSweeper

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "minesweeper_internals.json").read_text())


@pytest.fixture(scope="module")
def observations() -> list[Observation]:
    observations = []
    for state in GOLDEN["states"]:
        env = PythonMineSweeper(**GOLDEN["env_kwargs"], num_mines=1, num_robots=1)
        observations.append(env.golden(state))
    return observations


@pytest.fixture(scope="module")
def batch(observations: list[Observation]) -> ObsBatch:
    return ObsBatch.from_vec_obs(batch_observations(observations, OBS_SPACE, ACTION_SPACE))


def ragged(tensor: RaggedTensor) -> list[Any]:
    bounds = tensor.offsets.tolist()
    return [tensor.values[a:b].tolist() for a, b in zip(bounds[:-1], bounds[1:], strict=True)]


def test_the_batch_holds_the_features_and_masks_of_the_observations(batch: ObsBatch) -> None:
    expected = GOLDEN["vec_obs"]
    assert {name: ragged(features) for name, features in batch.features.items()} == expected["features"]
    move, fire = batch.action_masks[MOVE], batch.action_masks[FIRE]
    assert ragged(move.actors) == expected["action_masks"][MOVE]["actors"]
    assert ragged(move.mask) == expected["action_masks"][MOVE]["mask"]
    assert ragged(fire.actors) == expected["action_masks"][FIRE]["actors"]
    assert ragged(fire.actees) == expected["action_masks"][FIRE]["actees"]
    assert fire.mask is None


def test_tokens_are_ordered_by_frame_and_then_by_entity_index(batch: ObsBatch) -> None:
    frames = batch.frames
    assert list(frames.positions) == GOLDEN["entity_order"]
    assert frames.offsets[:-1].tolist() == GOLDEN["move_head"]["frame_starts"]
    assert frames.lengths.tolist() == GOLDEN["packing"]["lengths"]
    assert frames.of_token.tolist() == [0] * 6 + [1] * 3 + [2] * 5
    # tokens  0-5: five mines, a robot;  6-8: a mine, a robot, the cannon;  9-13: three mines, two robots
    assert {name: tokens.tolist() for name, tokens in frames.positions.items()} == {
        "Mine": [0, 1, 2, 3, 4, 6, 9, 10, 11],
        "Robot": [5, 7, 12, 13],
        "Orbital Cannon": [8],
    }


def test_frames_are_packed_into_rows_as_the_tables_say(batch: ObsBatch) -> None:
    expected = GOLDEN["packing"]
    packing = pack(batch.frames.lengths.numpy())
    frames = [[None if np.isnan(frame) else frame for frame in row] for row in packing.batch.tolist()]
    assert frames == expected["batch"]
    rows = batch.frames.rows
    assert rows.index.tolist() == packing.index.tolist() == expected["index"]
    assert rows.inverse_index.tolist() == packing.inverse_index.tolist() == expected["inverse_index"]


def test_actors_are_found_among_the_tokens_of_all_frames(batch: ObsBatch) -> None:
    move, fire = batch.action_tokens[MOVE], batch.action_tokens[FIRE]
    assert move.actors.tolist() == GOLDEN["move_head"]["flat_actor_indices"]
    assert fire.actors.tolist() == [8]
    assert fire.actees.tolist() == [6, 7]


def mode_of(head: ActionHead, tokens: torch.Tensor, batch: ObsBatch, name: str) -> torch.Tensor:
    read = Readout(tokens, batch)
    return head(read.actors(name), batch.action_masks[name], read.actees(name), {}).mode()


def test_the_heads_decide_for_the_actors_and_the_actions_go_back_in_the_environments_ids(
    batch: ObsBatch, observations: list[Observation]
) -> None:
    # tokens and weights by hand: a robot's token points at its choice, all other tokens elsewhere
    wanted = dict(zip(GOLDEN["move_head"]["flat_actor_indices"], GOLDEN["move_head"]["sampled_actions"], strict=True))
    tokens = torch.eye(5)[[wanted.get(token, 3) for token in range(batch.num_tokens)]]
    move_head = CategoricalHead(5, 5)
    with torch.no_grad():
        move_head.project.weight.copy_(torch.eye(5))
    moves = mode_of(move_head, tokens, batch, MOVE)
    assert moves[:, 0].tolist() == GOLDEN["move_head"]["sampled_actions"]

    fire_head = SelectEntityHead(5, 5)
    tokens = torch.zeros(batch.num_tokens, 5)
    tokens[8] = tokens[6] = torch.ones(5)  # the cannon's query meets the mine's key, not the robot's
    with torch.no_grad():
        for linear in (fire_head.query, fire_head.key):
            linear.weight.copy_(torch.eye(5))
            linear.bias.zero_()
    shots = mode_of(fire_head, tokens, batch, FIRE)

    chosen = {MOVE: moves, FIRE: shots}
    actions = {name: RaggedTensor(chosen[name], mask.actors.offsets) for name, mask in batch.action_masks.items()}
    buffers = ActResult(actions, {}, torch.zeros(3)).to_buffers()
    assert buffers[MOVE].to_list() == GOLDEN["move_head"]["ragged_actions"]
    assert buffers[FIRE].to_list() == GOLDEN["fire_head"]["ragged_actions"]

    reader = FrameReader(OBS_SPACE, ACTION_SPACE, "MineSweeper")
    for i, expected in enumerate(GOLDEN["env_actions"]):
        frame = reader.read(observations[i], i)
        received = world_actions(buffers, i, [frame], ACTION_SPACE)[0]
        assert plain(received[MOVE].actors) == expected[MOVE]["actors"]
        assert received[MOVE].actions.tolist() == expected[MOVE]["actions"]
        assert plain(received[FIRE].actors) == expected[FIRE]["actors"]
        assert plain(received[FIRE].actees) == expected[FIRE]["actees"]


def test_a_selection_is_the_entity_index_inside_the_frame_and_not_the_position_among_the_actees() -> None:
    obs_space = ObsSpace({"Wall": Entity(["x"]), "Ship": Entity(["x"])})
    action_space = {"target": SelectEntityActionSpace(), "wait": CategoricalActionSpace(["wait"])}
    # entity indices: walls 0 and 1 (which have no ids), ships 2 to 5
    observation = Observation(
        features={"Wall": [[0], [0]], "Ship": [[1], [2], [3], [4]]},
        ids={"Ship": ["a", "b", "c", "d"]},
        actions={"target": SelectEntityActionMask(actor_ids=["a", "c"], actee_ids=["d", "b"])},
    )
    obs = batch_observations([Observation(features={"Wall": [[9]]}), observation], obs_space, action_space)
    batch = ObsBatch.from_vec_obs(obs)
    assert batch.action_tokens["target"].actees.tolist() == [1 + 5, 1 + 3]

    head = SelectEntityHead(1, 1)
    with torch.no_grad():
        for linear in (head.query, head.key):
            linear.weight.fill_(1.0)
            linear.bias.zero_()
    tokens = torch.tensor([[9.0], [0.0], [0.0], [1.0], [2.0], [-1.0], [3.0]])  # "c" prefers the smallest key
    choice = mode_of(head, tokens, batch, "target")
    assert choice.tolist() == [[5], [3]]  # "d" stands first and "b" second among the actees

    actions = {
        "target": RaggedTensor(choice, batch.action_masks["target"].actors.offsets),
        "wait": RaggedTensor(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)),
    }
    frame = FrameReader(obs_space, action_space).read(observation, 1)
    buffers = ActResult(actions, {}, torch.zeros(2)).to_buffers()
    received = world_actions(buffers, 1, [frame], action_space)[0]["target"]
    assert list(received.actors) == ["a", "c"]
    assert list(received.actees) == ["d", "b"]


def plain(ids: Sequence[Any]) -> list[list[Any]]:
    return [list(id_) for id_ in ids]
