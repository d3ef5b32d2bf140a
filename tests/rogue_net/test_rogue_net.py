"""The network as a whole: heads, visibility, values, parameters, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch

from entity_gym import (
    CategoricalActionMask,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
)
from rogue_net import RogueNet, RogueNetConfig
from tests.rogue_net.worlds import (
    GLOBAL,
    LOCAL,
    MODE,
    MOVE,
    PICK,
    World,
    make_net,
    to_batch,
)

SCOUTS = ["a", "b", "c"]


def scouts(**kwargs: object) -> Observation:
    """Three scouts and a fort; by default everybody acts and may select everybody."""
    fields = {
        "features": {"unit.scout": [[0.0, 1.0], [2.0, 3.0], [-1.0, 0.5]], "forward": [[4.0]]},
        "ids": {"unit.scout": SCOUTS, "forward": ["fort"]},
        "actions": {MOVE: CategoricalActionMask(), PICK: SelectEntityActionMask()},
    }
    return Observation(**(fields | kwargs))


# --- Categorical and global categorical


def test_a_global_action_is_taken_once_by_the_frames_that_offer_it() -> None:
    offer = {MODE: GlobalCategoricalActionMask()}
    forced = {MODE: GlobalCategoricalActionMask(mask=[False, True])}
    observations = [Observation(actions=actions, global_features=[1, 2]) for actions in (offer, {}, forced)]
    net, batch = make_net(GLOBAL), to_batch(observations, GLOBAL)
    result = net.act(batch)
    assert result.actions[MODE].offsets.tolist() == [0, 1, 1, 2]
    assert result.actions[MODE].values[1].tolist() == [1]
    evaluation = net.evaluate(batch, result.actions)
    assert evaluation.entropies[MODE].values[0] > 0
    assert evaluation.entropies[MODE].values[1] == evaluation.log_probs[MODE].values[1] == 0


# --- Acting


def test_greedy_takes_the_most_probable_and_sampling_does_not_always() -> None:
    net, batch = make_net(), to_batch([scouts()] * 200)
    greedy = net.act(batch, greedy=True)
    logits = net.evaluate(batch, greedy.actions).logits
    assert torch.equal(greedy.actions[MOVE].values[:, 0], logits[MOVE].argmax(1))
    assert torch.equal(greedy.actions[PICK].values[:, 0], logits[PICK].view(-1, 4).argmax(1))
    sampled = net.act(batch, generator=torch.Generator().manual_seed(0))
    for name in (MOVE, PICK):
        assert not torch.equal(sampled.actions[name].values, greedy.actions[name].values)


# --- Layers


def test_without_layers_an_entity_sees_only_itself() -> None:
    net = make_net(n_layer=0)
    crowd = to_batch([scouts(actions={MOVE: CategoricalActionMask(actor_ids=["b"])})])
    alone = Observation(
        features={"unit.scout": [[2.0, 3.0]]}, ids={"unit.scout": ["b"]}, actions={MOVE: CategoricalActionMask()}
    )
    logits = [net.evaluate(b, net.act(b).actions).logits[MOVE] for b in (crowd, to_batch([alone]))]
    torch.testing.assert_close(*logits)


# --- Statistics of the inputs


def test_acting_and_learning_leave_the_statistics_alone_and_updating_takes_every_entity_once() -> None:
    net, batch = make_net(), to_batch([scouts(), Observation(), scouts()])
    norm = net.embedding.entities[0].norm
    before = norm.mean.clone()
    actions = net.act(batch).actions
    net.train().evaluate(batch, actions).values.sum().backward()
    assert torch.equal(norm.mean, before)
    assert int(norm.count) == 50
    net.update_normalization(batch)
    assert int(norm.count) == 50 + 6
    assert not torch.equal(norm.mean, before)


# --- Construction


def test_parameters_start_as_documented() -> None:
    torch.manual_seed(0)
    net = RogueNet(RogueNetConfig(d_model=64, n_layer=3, n_head=4), LOCAL.obs_space, LOCAL.action_space)
    linears = [m for m in net.transformer.modules() if isinstance(m, torch.nn.Linear)]
    assert len(linears) == 3 * 4
    weights = torch.cat([linear.weight.detach().flatten() for linear in linears])
    assert float(weights.std()) == pytest.approx(0.02, rel=0.02)
    assert abs(float(weights.mean())) < 5e-4
    assert all((linear.bias == 0).all() for linear in linears)

    move = net.heads[0].project
    torch.testing.assert_close(move.weight @ move.weight.T, 1e-4 * torch.eye(3), atol=1e-9, rtol=1e-4)
    assert (move.bias == 0).all()
    batch = to_batch([scouts()])
    evaluation = net.evaluate(batch, net.act(batch).actions)
    assert evaluation.entropies[MOVE].values.tolist() == pytest.approx([math.log(3)] * 4, abs=1e-2)
    assert evaluation.values.tolist() == [0.0]


def test_a_space_without_entities_decides_globally() -> None:
    world = World(ObsSpace({}), {MODE: GlobalCategoricalActionSpace(["go", "stop"])})
    batch = to_batch([Observation(actions={MODE: GlobalCategoricalActionMask()})] * 2, world)
    assert make_net(world).act(batch).actions[MODE].offsets.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d_model": 0}, "net.d_model must be an integer, at least 1, got 0"),
        ({"n_layer": -1}, "net.n_layer must be an integer, at least 0, got -1"),
        ({"d_qk": 0.5}, "net.d_qk must be an integer, at least 1, got 0.5"),
        ({"d_model": 33}, "net.d_model must be divisible by net.n_head=2, got 33; the nearest width that is: 32"),
        ({"backend": "fussed"}, "net.backend is 'fussed'.*fused"),
    ],
)
def test_an_impossible_shape_is_refused_with_what_is_allowed(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RogueNetConfig(**settings)
