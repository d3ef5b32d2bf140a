"""Random observations for property tests: everything that a frame may leave out is left out in some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from entity_gym import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    EntityID,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.batch.batching import batch_observations
from entity_gym.batch.vec_obs import VecObs
from rogue_net import ObsBatch, RaggedTensor, RogueNet, RogueNetConfig
from rogue_net.config import Backend
from rogue_net.heads.noise import FrameKeys, keyed
from rogue_net.heads.sets import OrderedSetHead
from rogue_net.rogue_net import Evaluation

# names that a module's or a buffer's name may not have
ENTITIES = {"unit.scout": Entity(["x", "y"]), "forward": Entity(["hp"]), "flag": Entity([])}
MOVE, PICK, MODE = "move.to", "pick", "mode"
LOCAL_ACTIONS: dict[str, ActionSpace] = {
    MOVE: CategoricalActionSpace(["stay", "left", "right"]),
    PICK: SelectEntityActionSpace(),
}


class World(NamedTuple):
    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]


LOCAL = World(ObsSpace(ENTITIES), LOCAL_ACTIONS)
GLOBAL = World(
    ObsSpace(ENTITIES, global_features=["time", "weather"]),
    {**LOCAL_ACTIONS, MODE: GlobalCategoricalActionSpace(["attack", "defend"])},
)
WORLDS = [LOCAL, GLOBAL]


def to_obs(observations: Sequence[Observation], world: World = LOCAL) -> VecObs:
    return batch_observations(observations, world.obs_space, world.action_space)


def to_batch(observations: Sequence[Observation], world: World = LOCAL) -> ObsBatch:
    return ObsBatch.from_vec_obs(to_obs(observations, world))


def make_net(world: World = LOCAL, *, n_layer: int = 2, seed: int = 0, backend: Backend = "auto") -> RogueNet:
    """A network in which everything matters: a fresh one has zero values and nearly uniform heads."""
    torch.manual_seed(seed)
    config = RogueNetConfig(d_model=16, n_layer=n_layer, d_qk=8, backend=backend)
    net = RogueNet(config, world.obs_space, world.action_space)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    calm_down(net)
    for entity in net.embedding.entities:
        if entity.num_features:
            entity.norm.update(torch.randn(50, entity.num_features) * 2 + 1)
    return net


def calm_down(net: RogueNet) -> None:
    """Make heads that pick sets about as certain as others: they multiply by 10."""
    with torch.no_grad():
        for head in net.heads:
            if isinstance(head, OrderedSetHead):
                for parameter in (*head.key.parameters(), head.stop):
                    parameter.mul_(0.1)


@cache
def _net_of(number: int, backend: Backend) -> RogueNet:
    return make_net(WORLDS[number], backend=backend)


def net_of(world: World, backend: Backend = "auto") -> RogueNet:
    """One network per world and backend, made once; nothing may change it."""
    return _net_of(WORLDS.index(world), backend)


def frames(world: World) -> st.SearchStrategy[Observation]:
    return _frames(world, st.integers(0, 3))


def batches(world: World, *, min_size: int = 1, max_size: int = 4) -> st.SearchStrategy[list[Observation]]:
    return st.lists(frames(world), min_size=min_size, max_size=max_size)


worlds = st.sampled_from(WORLDS)


@st.composite
def _frames(draw: st.DrawFn, world: World, counts: st.SearchStrategy[int]) -> Observation:
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    count_of = {name: draw(counts) for name in ENTITIES}
    ids: list[EntityID] = [(name, i) for name, count in count_of.items() for i in range(count)]
    visible = {}
    for name, count in count_of.items():
        if draw(st.booleans()):
            visible[name] = draw(st.lists(st.booleans(), min_size=count, max_size=count))

    actions: dict[str, Any] = {}
    if draw(st.booleans()):
        actors = _subset(draw, ids)
        actions[MOVE] = CategoricalActionMask(actor_ids=actors, mask=_open(draw, len(actors), 3))
    if draw(st.booleans()):
        actors, actees = _subset(draw, ids), _subset(draw, ids)
        pairs = _open(draw, len(actors), len(actees)) if actors and actees else None
        actions[PICK] = SelectEntityActionMask(actor_ids=actors, actee_ids=actees, mask=pairs)
    if MODE in world.action_space and draw(st.booleans()):
        mask = _open(draw, 1, 2)
        actions[MODE] = GlobalCategoricalActionMask(mask=mask)
    return Observation(
        features={
            name: (rng.normal(size=(count_of[name], len(entity.features))) * 3).astype(np.float32)
            for name, entity in ENTITIES.items()
        },
        ids={name: [id_ for id_ in ids if id_[0] == name] for name in ENTITIES},
        visible=visible,
        actions=actions,
        global_features=rng.normal(size=len(world.obs_space.global_features)).astype(np.float32),
    )


def _subset(draw: st.DrawFn, ids: list[EntityID]) -> list[EntityID]:
    """In any order, perhaps all and perhaps none."""
    return draw(st.lists(st.sampled_from(ids), unique=True)) if ids else []


def _open(draw: st.DrawFn, rows: int, columns: int) -> list[list[bool]] | None:
    """A mask with something open in every row, or none."""
    if not draw(st.booleans()):
        return None
    row = st.lists(st.booleans(), min_size=columns, max_size=columns).filter(any)
    return draw(st.lists(row, min_size=rows, max_size=rows))


class FrameResult(NamedTuple):
    """What the network says about one frame."""

    value: Tensor  # ()
    log_probs: dict[str, Tensor]  # action -> (A,)
    entropies: dict[str, Tensor]  # action -> (A,)
    logits: dict[str, Tensor]  # action -> (A, C) or (pairs,)


@torch.no_grad()
def evaluate_frames(net: RogueNet, batch: ObsBatch, actions: Mapping[str, RaggedTensor]) -> list[FrameResult]:
    """`net.evaluate`, frame by frame; log-probs and values by the program if the network asks for one."""
    evaluation = net.evaluate(batch, actions)
    if net.config.backend == "fused":
        program = net.program()
        assert program is not None
        log_probs, values = program.evaluate(batch, actions)
        evaluation = Evaluation(log_probs, {}, values, {}, {})
    results = []
    pairs = {}
    for name, mask in batch.action_masks.items():
        rows = mask.actors.lengths * (mask.actees.lengths if mask.actees is not None else 1)
        pairs[name] = [0, *rows.cumsum(0).tolist()]

    def part(columns: Mapping[str, RaggedTensor], b: int) -> dict[str, Tensor]:
        return {name: ragged.values[ragged.offsets[b] : ragged.offsets[b + 1]] for name, ragged in columns.items()}

    for b in range(len(batch)):
        results.append(
            FrameResult(
                evaluation.values[b],
                part(evaluation.log_probs, b),
                part(evaluation.entropies, b),
                {name: rows[pairs[name][b] : pairs[name][b + 1]] for name, rows in evaluation.logits.items()},
            )
        )
    return results


def frame_keys(batch: ObsBatch) -> FrameKeys:
    """What programs draw with."""
    return FrameKeys(keyed(3, torch.arange(len(batch))))


def gather(actions: Mapping[str, RaggedTensor], chosen: Tensor) -> dict[str, RaggedTensor]:
    return {name: action.gather(chosen) for name, action in actions.items()}


def assert_same(given: FrameResult, expected: FrameResult) -> None:
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-5)
