"""Networks, batches and comparisons for the tests of backends: ships, rocks and flags that act on each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from entity_gym import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    EntityID,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.batch.batching import batch_observations
from entity_gym.batch.vec_obs import VecObs
from rogue_net import ObsBatch, RaggedTensor, RogueNet, RogueNetConfig
from rogue_net.config import Backend, RelposConfig
from rogue_net.heads.heads import CategoricalHead, SelectEntityHead

SHIP, ROCK, FLAG = "Ship", "Rock", "Flag"
SPACE = ObsSpace(
    {SHIP: Entity(["x", "y", "z", "heading", "dx", "dy"]), ROCK: Entity(["age", "x", "y", "z"]), FLAG: Entity([])}
)
MOVE, STEER, PICK = "move", "steer", "pick"
ACTIONS: dict[str, ActionSpace] = {
    MOVE: CategoricalActionSpace(["stay", "left", "right"]),
    STEER: ContinuousActionSpace([-1, 0], [1, float("inf")]),
    PICK: SelectEntityActionSpace(),
}
#: Every width of a head that is asked for, in networks of width 16 to 128: (D, H).
SHAPES = [(16, 2), (32, 2), (48, 2), (64, 2), (80, 2), (128, 2), (24, 3), (16, 1)]
#: Kernels with relative positions take seconds to compile: fewer widths of heads, the odd ones and the largest.
RELATIVE_SHAPES = [(16, 2), (48, 2), (128, 2), (24, 3)]
ALL_OF_RELPOS: dict[str, Any] = {
    "kind": "polar",
    "extent": [5, 4],
    "position_features": ["x", "y"],
    "interpolate": True,
    "rotation_angle_feature": "heading",
    "per_entity_values": True,
    "key_projection": True,
    "value_projection": True,
    "exclude_entities": [FLAG],
}
#: All that programs have.
RELPOS_OF_PROGRAM = {name: value for name, value in ALL_OF_RELPOS.items() if "projection" not in name}


# --- What is drawn


@st.composite
def relative_positions(draw: st.DrawFn, *, of_program: bool = True) -> RelposConfig:
    kind = draw(st.sampled_from(["grid", "radial", "distance", "polar"]))
    dimensions = 2 if kind in ("radial", "polar") else draw(st.integers(1, 3))
    numbers = {"grid": dimensions, "radial": 1, "distance": 1, "polar": 2}[kind]
    flag, rotation = st.booleans(), {}
    if dimensions == 2:
        rotations = [{}, {"rotation_angle_feature": "heading"}, {"rotation_vec_features": ["dx", "dy"]}]
        rotation = draw(st.sampled_from(rotations))
    modules_only = {}
    if not of_program:
        modules_only = {name: draw(flag) for name in ("key_projection", "value_projection")}
        modules_only["value_gate"] = draw(st.sampled_from(["none", "linear", "relu", "gelu", "sigmoid"]))
    return RelposConfig(
        kind=kind,
        extent=draw(st.lists(st.integers(1, 5), min_size=numbers, max_size=numbers)),
        position_features=["x", "y", "z"][:dimensions],
        scale=draw(st.sampled_from([0.5, 1.0, 3.0])),
        interpolate=draw(flag),
        per_entity_values=draw(flag),
        exclude_entities=draw(st.sampled_from([[FLAG], [FLAG, ROCK]])),
        **rotation,
        **modules_only,
    )


def plain_configs() -> st.SearchStrategy[RogueNetConfig]:
    return st.builds(_config, st.sampled_from(SHAPES), st.integers(1, 3))


def relative_configs(*, of_program: bool = True) -> st.SearchStrategy[RogueNetConfig]:
    positions = relative_positions(of_program=of_program)
    return st.builds(_config, st.sampled_from(RELATIVE_SHAPES), st.integers(1, 3), positions)


def _config(shape: tuple[int, int], n_layer: int, relpos: RelposConfig | None = None) -> RogueNetConfig:
    return make_config(shape, n_layer=n_layer, relpos=relpos or RelposConfig())


def make_config(shape: tuple[int, int] = (16, 2), **options: Any) -> RogueNetConfig:
    return RogueNetConfig(**{"d_model": shape[0], "n_head": shape[1], "d_qk": 8, "backend": "fused"} | options)


class Scene(NamedTuple):
    """Frames, of which each has so many ships, rocks and flags."""

    counts: list[tuple[int, int, int]]
    seed: int
    hide: bool = False
    acting: str = "some"  # who acts: "some", "nobody", "all", or "on one": all, and only one entity can be picked

    @property
    def obs(self) -> VecObs:
        rng = np.random.default_rng(self.seed)
        frames = [self._frame(rng, dict(zip(SPACE.entities, counts, strict=True))) for counts in self.counts]
        return batch_observations(frames, SPACE, ACTIONS)

    @property
    def batch(self) -> ObsBatch:
        return ObsBatch.from_vec_obs(self.obs)

    def _frame(self, rng: np.random.Generator, counts: Mapping[str, int]) -> Observation:
        ids: list[EntityID] = [(name, i) for name, count in counts.items() for i in range(count)]
        share = {"some": 0.5, "nobody": 0.0, "all": 1.0, "on one": 1.0}[self.acting]
        actors = [id_ for id_ in ids if rng.random() < share]
        one_open = [[actee == 0 for actee in range(len(ids))]] * len(actors)
        widths = {name: len(entity.features) for name, entity in SPACE.entities.items()}
        return Observation(
            features={name: (rng.normal(size=(n, widths[name])) * 2).astype(np.float32) for name, n in counts.items()},
            ids={name: [id_ for id_ in ids if id_[0] == name] for name in counts},
            visible={SHIP: rng.random(counts[SHIP]) < 0.6, FLAG: rng.random(counts[FLAG]) < 0.6} if self.hide else {},
            actions={
                MOVE: CategoricalActionMask(actor_ids=actors),
                STEER: ContinuousActionMask(actor_ids=actors),
                PICK: SelectEntityActionMask(
                    actor_ids=actors, actee_ids=ids, mask=one_open if self.acting == "on one" and actors else None
                ),
            },
        )


def scenes(*, many: bool = False) -> st.SearchStrategy[Scene]:
    """Up to six frames, empty ones and single entities among them; or `many`: one of each and eight to twelve with more."""
    few, flags = st.integers(0, 5), st.integers(0, 1)  # two flags are equal, and gradients of keys cancel in equals
    counts = st.one_of(st.just((0, 0, 0)), st.just((1, 0, 0)), st.tuples(few, few, flags))
    frames = st.lists(counts, min_size=1, max_size=6)
    if many:
        crowd = st.lists(st.tuples(st.integers(1, 5), few, flags), min_size=8, max_size=12)
        frames = crowd.map(lambda crowd: [(0, 0, 0), *crowd, (1, 0, 0)])
    return st.builds(Scene, frames, st.integers(0, 2**20), st.booleans(), st.sampled_from(["some", "nobody", "on one"]))


def even_scene(frames: int, entities: int, *, seed: int = 0, hide: bool = True) -> Scene:
    """As many entities in every frame."""
    return Scene([(entities // 2, entities - entities // 2, 0)] * frames, seed, hide)


def away_from_edges(batch: ObsBatch, relpos: RelposConfig) -> bool:
    """Whether no pair stands where rounding decides between two buckets. Written anew, from what the settings say."""
    if relpos.kind == "none" or relpos.interpolate:
        return True
    excluded = [name for name in SPACE.entities if name in relpos.exclude_entities]
    for frame in range(len(batch)):
        rows = {name: _rows(batch, name, frame) for name in SPACE.entities if name not in excluded}
        for name, viewers in rows.items():
            for viewer in viewers:
                for others, theirs in rows.items():
                    difference = _positions(viewer[None], name, relpos) - _positions(theirs, others, relpos)
                    if not _far(difference, _heading(viewer, name, relpos), relpos):
                        return False
    return True


def _rows(batch: ObsBatch, name: str, frame: int) -> NDArray[np.float64]:
    values, offsets = batch.features[name]
    return values[offsets[frame] : offsets[frame + 1]].double().numpy()


def _positions(rows: NDArray[np.float64], name: str, relpos: RelposConfig) -> NDArray[np.float64]:
    features = SPACE.entities[name].features
    return rows[:, [features.index(feature) for feature in relpos.position_features]]


def _heading(row: NDArray[np.float64], name: str, relpos: RelposConfig) -> float:
    """Only ships have one."""
    features = SPACE.entities[name].features
    if relpos.rotation_angle_feature in features:
        return float(row[features.index("heading")])
    if relpos.rotation_vec_features and "dx" in features:
        return math.atan2(row[features.index("dy")], row[features.index("dx")])
    return 0.0


def _far(difference: NDArray[np.float64], heading: float, relpos: RelposConfig) -> bool:
    """Whether what is at these (n, dimensions) differences is in the middle of buckets, for one that looks this way."""
    distance = np.linalg.norm(difference, axis=1)
    if difference.shape[1] == 2:
        cosine, sine = math.cos(heading), math.sin(heading)
        difference = difference @ np.array([[cosine, -sine], [sine, cosine]])
    places = []
    if relpos.kind == "grid":
        places = [*(difference / relpos.scale + 0.5).T]
    if relpos.kind in ("radial", "polar"):
        angles = np.arctan2(difference[:, 1], difference[:, 0]) / (2 * math.pi) * relpos.extent[0]
        places.append(np.where(distance > 0, angles, 0.5))
    if relpos.kind in ("distance", "polar"):
        places.append(np.where(distance > 0, distance / relpos.scale, 0.5))
    return all((np.abs(place - np.round(place)) > 1e-3).all() for place in places)


# --- What is compared


def make_net(config: RogueNetConfig, batch: ObsBatch | None = None, seed: int = 0) -> RogueNet:
    """A network in which everything matters, and scores stay moderate at any width."""
    torch.manual_seed(seed)
    net = RogueNet(config, SPACE, ACTIONS, {"fuel": 2})
    with torch.no_grad():
        for parameter in net.parameters():
            spread = 0.8 / math.sqrt(parameter.shape[1]) if parameter.dim() == 2 else 0.2
            parameter.add_(torch.randn_like(parameter) * spread)
    if batch is not None and batch.num_tokens > 0:
        net.update_normalization(batch)
    return net


def twin(net: RogueNet, backend: Backend, dtype: torch.dtype = torch.float32) -> RogueNet:
    """Another network, of this backend, with the same weights."""
    sizes = {
        name: head.project.out_features for name, head in zip(net.regression_names, net.regression_heads, strict=True)
    }
    other = RogueNet(replace(net.config, backend=backend), net.obs_space, net.action_space, sizes)
    other.load_state_dict(net.state_dict())
    return other if dtype == torch.float32 else other.to(dtype)  # statistics stay in float64


def as_double(batch: ObsBatch) -> ObsBatch:
    features = {name: ragged._replace(values=ragged.values.double()) for name, ragged in batch.features.items()}
    return replace(batch, features=features)


class Results(NamedTuple):
    outputs: dict[str, Tensor]
    gradients: dict[str, Tensor]  # 0 for a parameter that got none
    #: By the end of a parameter's name: the norm of the numbers whose sum is its gradient, where mathematically the sum is
    #: (or may be) 0. What is left of it is made of rounding errors, and so no measure of them.
    summands: dict[str, float]


def blocks_of(net: RogueNet, batch: ObsBatch, seed: int = 0) -> Results:
    """The blocks alone: random tokens in, random gradients back, alike enough that no sum is what chance leaves of it."""
    dtype = next(net.parameters()).dtype
    generator = torch.Generator().manual_seed(seed)
    shape = (batch.num_tokens, net.config.d_model)
    tokens = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    weights = torch.randn(1, shape[1], generator=generator) + 0.5 * torch.randn(shape, generator=generator)
    net.zero_grad()
    with summands(net) as least:
        out, _ = net.transformer(tokens, batch)
        out.backward(weights.to(dtype))
    named = {"tokens": tokens, **dict(net.transformer.named_parameters())}
    return Results({"out": out.detach()}, _gradients(named), least)


def network(net: RogueNet, batch: ObsBatch, actions: Mapping[str, RaggedTensor], seed: int = 0) -> Results:
    """The whole network: every output, and the gradients of a loss to which all of them add."""
    net.zero_grad()
    with summands(net) as least:
        evaluation = net.evaluate(batch, actions)
        outputs = {
            **{f"log-prob of {name}": each.values for name, each in evaluation.log_probs.items()},
            **{f"entropy of {name}": each.values for name, each in evaluation.entropies.items()},
            **{f"{name} regressed": each for name, each in evaluation.regressions.items()},
            "value": evaluation.values,
        }
        loss_of(outputs, seed).backward()
    return Results(
        {name: each.detach() for name, each in outputs.items()}, _gradients(dict(net.named_parameters())), least
    )


def loss_of(outputs: Mapping[str, Tensor], seed: int = 0) -> Tensor:
    """A sum with different, positive weights, so that no gradient is what chance leaves of a difference."""
    generator = torch.Generator().manual_seed(seed)
    weights = [(torch.rand(each.shape, generator=generator) + 0.5).to(each.device) for each in outputs.values()]
    return torch.stack([(each * w).sum() for each, w in zip(outputs.values(), weights, strict=True)]).sum()


def _gradients(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(each) if each.grad is None else each.grad.clone() for name, each in named.items()}


@contextmanager
def summands(net: RogueNet) -> Iterator[dict[str, float]]:
    """Measure while a module of the reference computes; what it yields is filled in at the end.

    Whatever all keys of a query share shifts its scores alike, which softmax does not see. In a row of relative keys that
    all keys of query i share, and so in each row at worst, i leaves sum_j p_ij (dy_i · v_j) q_i / sqrt(K) less
    (dy_i · y_i) q_i / sqrt(K), which are equal. In the bias of the keys with which entities are selected, all keys leave theirs.
    In the bias of their queries, and of a categorical head, what actors did pulls against what others did.
    """
    queries, attended, picked, asked = [], [], [], []

    def keep(outputs: list[Tensor]) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            of = inputs[0] if outputs is attended else output
            if of.requires_grad:
                of.retain_grad()
            outputs.append(of)

        return hook

    chosen: dict[str, Tensor] = {}

    def keep_logits(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, distribution: Any) -> None:
            if distribution.logits.requires_grad:
                distribution.logits.retain_grad()
                chosen[name] = distribution.logits

        return hook

    selecting = [head for head in net.heads if isinstance(head, SelectEntityHead)]
    handles = [head.key.register_forward_hook(keep(picked)) for head in selecting]
    handles += [head.query.register_forward_hook(keep(asked)) for head in selecting]
    for number, head in enumerate(net.heads):
        if isinstance(head, CategoricalHead):
            handles.append(head.register_forward_hook(keep_logits(f"heads.{number}.project.bias")))
    for block in net.transformer.blocks if net.config.pooling == "none" else []:
        handles.append(block.query_key_value.register_forward_hook(keep(queries)))
        handles.append(block.project.register_forward_hook(keep(attended)))
    result: dict[str, float] = {}
    try:
        yield result
    finally:
        for handle in handles:
            handle.remove()
    with torch.no_grad():
        of_positions = 0.0
        for qkv, y in zip(queries, attended, strict=True):
            heads = (len(y), net.config.n_head, net.config.d_model // net.config.n_head)
            q, dy = qkv[:, : y.shape[1]].view(heads), y.grad.view(heads)
            of_positions += float(((dy * y.view(heads)).sum(-1).square() * q.square().sum(-1) / heads[2]).sum())
        of_keys, of_queries = (
            sum(float(each.grad.norm()) for each in outputs if each.grad is not None) for outputs in (picked, asked)
        )
        for name, log_probs in chosen.items():
            if log_probs.grad is not None:
                result[name] = float((log_probs.grad - log_probs.exp() * log_probs.grad.sum(1, keepdim=True)).norm())
    result["relative_positions.key"] = math.sqrt(of_positions)  # the table and the projections
    result["key.bias"], result["query.bias"] = of_keys, of_queries


def assert_near(given: Results, expected: Results) -> None:
    """Every tensor within 1e-5, by norm, of what it is in float64."""
    for name, exact in expected.outputs.items():
        least = 100.0 if name == "entropies" else 0.0  # a sum, which may be near -100 where 100 was added to it
        assert_tensor_near(given.outputs[name], exact, name, least)
    for name, exact in expected.gradients.items():
        least = sum(size for part, size in expected.summands.items() if part in name)
        assert_tensor_near(given.gradients[name], exact, name, least)


def assert_tensor_near(given: Tensor, exact: Tensor, name: str, least: float = 0.0, bound: float = 1e-5) -> None:
    error = float((given.double() - exact.double()).norm()) / max(float(exact.double().norm()), 1e-6, least)
    assert error < bound, f"{name} is off by {error:.1e}"  # NaN is not below


# --- Networks made once more

EACH = pytest.mark.parametrize("name", ["fused", "reference"])
RELPOS = {"plain": RelposConfig(), "relative": RelposConfig(**RELPOS_OF_PROGRAM)}
EACH_RELPOS = pytest.mark.parametrize("relpos", RELPOS.values(), ids=RELPOS)
SMALL = Scene([(3, 4, 1), (0, 0, 0), (1, 0, 0), (5, 9, 0)], 1, hide=True).batch


def net_of(name: Backend, relpos: RelposConfig = RELPOS["relative"], seed: int = 0) -> RogueNet:
    return make_net(make_config(backend=name, relpos=relpos), SMALL, seed)
