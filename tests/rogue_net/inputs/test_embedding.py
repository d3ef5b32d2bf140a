"""Every kind of feature enters a token in its own way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from entity_gym import CategoricalActionSpace, Entity, Observation, ObsSpace
from entity_gym.batch.batching import batch_observations
from entity_gym.spaces import Angle, Category, Feature, Flag
from rogue_net import ObsBatch, RogueNet, RogueNetConfig
from rogue_net.inputs.embedding import Embedding, EntityEmbedding
from tests.rogue_net import backends
from tests.rogue_net.programs import by_modules, by_program, given_for

D = 8
ACTIONS = {"wait": CategoricalActionSpace(["wait"])}
CARD, HEADING, FROZEN = Category("card", 52), Angle("heading"), Flag("frozen")
NO_CARDS = (-1.0, 52.0, 1e9, -0.5, math.nan)


def entity(*features: Feature, seed: int = 0) -> EntityEmbedding:
    """An embedding in which everything matters: biases and norms are not what they are at first."""
    torch.manual_seed(seed)
    made = EntityEmbedding("Unit", features, D)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return made


def finish(hidden: Tensor, made: EntityEmbedding) -> Tensor:
    """What follows the sum of all features."""
    norm = made.project[2]
    return functional.layer_norm(hidden.relu(), (D,), norm.weight, norm.bias)


def embedding(obs_space: ObsSpace, seed: int = 0, d_model: int = D) -> Embedding:
    torch.manual_seed(seed)
    return Embedding(obs_space, ACTIONS, d_model)


def to_batch(obs_space: ObsSpace, observations: Sequence[Observation]) -> ObsBatch:
    return ObsBatch.from_vec_obs(batch_observations(observations, obs_space, ACTIONS))


# --- Kinds of features ---


def test_plain_numbers_are_normalized_by_what_was_seen() -> None:
    made = entity("x", "y")
    made.update_normalization(torch.tensor([[0.0, 10.0], [4.0, 30.0]]))  # means 2 and 20, deviations 2 and 10
    linear = made.project[0]
    expected = finish(linear(torch.tensor([[-1.0, 1.0], [5.0, 0.0]])), made)  # the second's x is cut off at 5
    torch.testing.assert_close(made(torch.tensor([[0.0, 30.0], [100.0, 20.0]])), expected)


def test_an_angle_is_its_cosine_and_sine_whatever_was_seen() -> None:
    made = entity("x", HEADING, "y")
    made.update_normalization(torch.tensor([[0.0, 3.0, 0.0], [2.0, 3.1, 2.0]]))  # of x and y: means and deviations 1
    linear = made.project[0]
    expected = finish(linear(torch.tensor([[0.0, 1.0, 0.0, 1.0]])), made)  # x, y, cosine, sine
    torch.testing.assert_close(made(torch.tensor([[1.0, math.pi / 2, 2.0]])), expected)
    assert made.norm.mean.tolist() == [1.0, 1.0]


def test_a_flag_is_0_or_1_however_rare_it_was() -> None:
    made = entity(FROZEN)
    made.update_normalization(torch.tensor([[1.0]] + [[0.0]] * 999))
    expected = finish(made.project[0](torch.tensor([[0.0], [1.0]])), made)
    torch.testing.assert_close(made(torch.tensor([[0.0], [1.0]])), expected)
    assert not hasattr(made, "norm")


@settings(max_examples=40, deadline=None)
@given(
    nums=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    num_plain=st.integers(0, 2),
    rows=st.integers(0, 5),
    seed=st.integers(0, 2**16),
)
def test_categories_are_the_one_hot_columns_of_the_linear_layer(
    nums: list[int], num_plain: int, rows: int, seed: int
) -> None:
    plain = [f"x{i}" for i in range(num_plain)]
    made = entity(*[Category(f"c{i}", num) for i, num in enumerate(nums)], *plain, seed=seed)
    rng = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randint(num, (rows,), generator=rng) for num in nums], dim=1)
    x = torch.randn(rows, num_plain, generator=rng)

    one_hot = [functional.one_hot(ids[:, i], num).float() for i, num in enumerate(nums)]
    blocks = [table.T for table in made.tables]
    if num_plain:
        blocks.append(made.project[0].weight)
        bias = made.project[0].bias
    else:
        bias = torch.zeros(D)
    hidden = functional.linear(torch.cat([*one_hot, x], dim=1), torch.cat(blocks, dim=1), bias)
    tokens = made(torch.cat([ids.float(), x], dim=1))
    torch.testing.assert_close(tokens, finish(hidden, made), atol=1e-5, rtol=1e-5)


def test_an_id_outside_the_table_is_named() -> None:
    made = entity("x", CARD)
    for card in NO_CARDS:
        message = rf"'Unit': category 'card' is {card:g}; ids are whole numbers from 0 to 51".replace("+", r"\+")
        with pytest.raises(ValueError, match=message):
            made(torch.tensor([[0.0, 0.0], [0.0, card], [0.0, 51.0]]))


# --- Batches ---

SPACE = ObsSpace(
    {"Ship": Entity(["x", HEADING, CARD]), "Card": Entity([Category("card", 3)]), "Wall": Entity([])},
    global_features=["time", Category("season", 4)],
)
FRAMES = [
    Observation(
        features={"Ship": [[1.0, 0.5, 7], [2.0, 1.5, 51]], "Card": [[2]], "Wall": np.zeros((1, 0))},
        global_features=[5.0, 3],
    ),
    Observation(features={"Card": [[0], [1]]}, global_features=[6.0, 0]),
]


PLAIN = ObsSpace({"A": Entity(["x"]), "Flag": Entity([]), "B": Entity(["x", "y"])})
KINDS = ObsSpace(
    {"A": Entity([Category("a", 3)]), "B": Entity(["x", Category("b", 2), HEADING, FROZEN]), "C": Entity([])}
)
WORLD = ObsSpace({"A": Entity(["x"]), "C": Entity([])}, global_features=["time", Category("season", 4)])


def draw_rows(names: Sequence[str], kinds: Mapping[str, object], count: int, rng: np.random.Generator) -> np.ndarray:
    """Any numbers, and of the categories and flags ids that there are."""
    rows = rng.normal(size=(count, len(names))) * 2
    for column, name in enumerate(names):
        kind = kinds.get(name)
        if isinstance(kind, Category | Flag):
            rows[:, column] = rng.integers(kind.num if isinstance(kind, Category) else 2, size=count)
    return rows


def draw_batch(space: ObsSpace, counts: Sequence[Sequence[int]], rng: np.random.Generator) -> ObsBatch:
    """Frames with `counts[b][t]` entities of type t in frame b."""
    observations = [
        Observation(
            features={
                name: draw_rows(entity.features, entity.kinds, count, rng)
                for (name, entity), count in zip(space.entities.items(), of_types, strict=False)
            },
            global_features=draw_rows(space.global_features, space.global_kinds, 1, rng)[0],
        )
        for of_types in counts
    ]
    return to_batch(space, observations)


def assert_near(given_tensor: Tensor, expected: Tensor) -> None:
    assert float((given_tensor - expected).norm()) <= 1e-5 * max(float(expected.norm()), 1e-1)


# --- Programs ---


def network(space: ObsSpace, seed: int = 0, d_model: int = D) -> RogueNet:
    """A network without layers, in which everything matters."""
    torch.manual_seed(seed)
    net = RogueNet(RogueNetConfig(d_model=d_model, n_head=1, n_layer=0, backend="fused"), space, ACTIONS)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
            if name.endswith("project.0.bias") or ".tables." in name:  # or else rounding alone makes some gradients
                parameter.add_(1.0)
    return net


@pytest.mark.parametrize("d_model", [8, 24, 32])
@pytest.mark.parametrize("space", [PLAIN, KINDS, WORLD])
def test_a_program_embeds_as_modules_do_in_float64(space: ObsSpace, d_model: int) -> None:
    rng, seed, counts = np.random.default_rng(1), 1, [(1, 2, 0), (0, 0, 0), (3, 1, 2), (0, 0, 1)]
    batch, net = draw_batch(space, counts, rng), network(space, seed, d_model)
    net.update_normalization(draw_batch(space, [(5, 5, 5)], rng))
    reference = backends.twin(net, "reference")
    given_frames = given_for(reference, batch, seed)
    exact = by_modules(backends.twin(net, "reference", torch.float64), given_frames)
    found = by_program(net, given_frames)
    assert set(found.gradients) == set(exact.gradients)
    for name, output in exact.outputs.items():
        assert_near(found.outputs[name].double(), output)
    for name, gradient in exact.gradients.items():
        assert_near(found.gradients[name].double(), gradient)


def test_a_program_names_an_id_outside_the_table() -> None:
    net, batch, of_world = network(SPACE), to_batch(SPACE, FRAMES), to_batch(SPACE, FRAMES)
    net.act(batch, greedy=True)
    for card in NO_CARDS:
        batch.features["Ship"].values[1, 2] = of_world.features["__global__"].values[1, 1] = card
        message = rf"'Ship': category 'card' is {card:g}; ids are whole numbers from 0 to 51".replace("+", r"\+")
        with pytest.raises(ValueError, match=message):
            net.act(batch, greedy=True)
        with pytest.raises(ValueError, match=r"'\w+': category 'season' is .*; ids are whole numbers from 0 to 3"):
            net.act(of_world, greedy=True)


def test_a_batch_of_other_types_or_widths_is_refused_by_modules_and_programs() -> None:
    net, batch = network(SPACE), to_batch(SPACE, FRAMES)
    other = ObsSpace({"Ship": Entity(["x"])}, global_features=["time", "season"])
    ships = batch.features["Ship"]
    narrow = replace(batch, features=batch.features | {"Ship": ships._replace(values=ships.values[:, :2])})
    for see in (embedding(SPACE), lambda batch: net.act(batch, greedy=True)):
        message = r"the batch has entities of \['Ship', '__global__'\], the network knows \['Ship', "
        with pytest.raises(ValueError, match=message):
            see(to_batch(other, [Observation(global_features=[0, 0])]))
        with pytest.raises(ValueError, match="'Ship' has 2 features in this batch; the network knows 3"):
            see(narrow)
