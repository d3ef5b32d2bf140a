"""A policy in an environment that has gained something: what it knew it does as before, and what is new it can learn."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from entity_gym import (
    ActionMask,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.actions import ContinuousActionMask, ContinuousActionSpace
from entity_gym.batch.batching import batch_observations
from entity_gym.spaces import Angle, Category, Feature, Flag, with_kinds
from rogue_net import ObsBatch, RogueNet, RogueNetConfig, fit
from rogue_net.config import RelposConfig, TranslationConfig
from rogue_net.transfer import Transferred, transfer, transfer_optimizer

NET = RogueNetConfig(d_model=8, n_layer=1, n_head=2, d_qk=4)


class World(NamedTuple):
    """Two ships that act and two rocks; whatever else there is, too."""

    obs: ObsSpace
    actions: Mapping[str, ActionSpace]


def space(
    ship: tuple[Feature, ...] = ("x", "y"), *, more: Mapping[str, Entity] | None = None, **other: Any
) -> ObsSpace:
    return ObsSpace({"Ship": Entity(ship), "Rock": Entity(["size"]), **(more or {})}, **other)


STEER = {"steer": CategoricalActionSpace(["left", "right", "stay"])}
KNOWN = World(space(), STEER)


# --- Frames that show the same in every world ---


def values_of(entity: str, feature: Feature, count: int, frame: int) -> list[float]:
    """The same for a feature of the same name, wherever it stands."""
    name = feature if isinstance(feature, str) else feature.name
    rng = np.random.default_rng(zlib.crc32(f"{entity} {name} {frame}".encode()))
    if isinstance(feature, Category):
        return [float(value) for value in rng.random(count) * 2 // 1]  # the first two
    if isinstance(feature, Flag):
        return [float(value > 0.5) for value in rng.random(count)]
    return [float(value) for value in rng.normal(2, 3, count)]


def mask_for(space: ActionSpace) -> ActionMask:
    if isinstance(space, GlobalCategoricalActionSpace):
        return GlobalCategoricalActionMask()
    if isinstance(space, SelectEntityActionSpace):
        return SelectEntityActionMask(actor_types=["Ship"], actee_types=["Ship", "Rock"])
    if isinstance(space, ContinuousActionSpace):
        return ContinuousActionMask(actor_types=["Ship"])
    return CategoricalActionMask(actor_types=["Ship"])


def frames(world: World, count: int = 3, without: tuple[str, ...] = ()) -> ObsBatch:
    observations = []
    for frame in range(count):
        features, ids = {}, {}
        for name, entity in world.obs.entities.items():
            if name not in without:
                columns = [values_of(name, each, 2, frame) for each in with_kinds(entity.features, entity.kinds)]
                features[name] = np.array(columns, dtype=np.float32).reshape(len(columns), 2).T
                ids[name] = [f"{name} {i}" for i in range(2)]
        everywhere = with_kinds(world.obs.global_features, world.obs.global_kinds)
        observations.append(
            Observation(
                features=features,
                ids=ids,
                actions={name: mask_for(each) for name, each in world.actions.items()},
                global_features=[values_of("", each, 1, frame)[0] for each in everywhere],
            )
        )
    return ObsBatch.from_vec_obs(batch_observations(observations, world.obs, world.actions))


# --- Networks ---


def random_net(world: World, config: RogueNetConfig = NET, seed: int = 1) -> RogueNet:
    """Every weight counts, and features are normalized."""
    torch.manual_seed(seed)
    net = RogueNet(config, world.obs, world.actions)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    net.update_normalization(frames(world))
    return net


def transferred(net: RogueNet, world: World, config: RogueNetConfig | None = None) -> Transferred:
    """`net` as it is in a new network for `world`."""
    torch.manual_seed(2)
    return transfer(net, RogueNet(config or net.config, world.obs, world.actions))


class Acts(NamedTuple):
    log_probs: dict[str, dict[str, Tensor]]  # action -> choice -> of every actor; only of actions with named choices
    values: Tensor


def acts(net: RogueNet, batch: ObsBatch) -> Acts:
    result = net.act(batch, logits=True)
    assert result.logits is not None
    log_probs = {}
    for name, each in net.action_space.items():
        rows = result.logits[name].values
        choices = list(getattr(each, "choices", [str(i) for i in range(rows.shape[1])]))
        log_probs[name] = dict(zip(choices, rows.unbind(1), strict=True))
    return Acts(log_probs, result.values)


def assert_acts_alike(now: Acts, before: Acts, *, values: bool = True) -> None:
    """In every action that both have, the odds between the choices that both have are the same."""
    for action, choices in before.log_probs.items():
        known = torch.stack([now.log_probs[action][choice] for choice in choices])
        expected = torch.stack(list(choices.values()))
        if len(now.log_probs[action]) > len(choices):
            known, expected = known.log_softmax(0), expected.log_softmax(0)
        torch.testing.assert_close(known, expected, atol=1e-5, rtol=1e-4)
    if values:
        torch.testing.assert_close(now.values, before.values, atol=1e-5, rtol=1e-4)


# --- The policy acts as before ---


def test_a_new_feature_can_be_learned_from() -> None:
    world = World(space((Flag("armed"), "y", Angle("course"), Category("kind", 3), "hp", "x")), STEER)
    result = transferred(random_net(KNOWN), world)
    batch = frames(world)
    result.measure(lambda net: net.update_normalization(batch))
    evaluation = result.net.evaluate(batch, result.net.act(batch).actions)
    (evaluation.log_probs["steer"].values * torch.arange(6.0)).sum().backward()
    embedding = result.net.embedding.entities[result.net.embedding.types.index("Ship")]
    linear, _ = embedding.layers
    assert linear is not None and linear.weight.grad is not None
    assert (linear.weight.grad.abs().sum(0) > 0).all()
    assert all((table.grad[:2].abs().sum(1) > 0).any() for table in embedding.tables)


FEATURES = st.dictionaries(
    st.sampled_from("abcdefg"),
    st.sampled_from([str, Angle, Flag, lambda name: Category(name, 2)]),
    min_size=1,
)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_features_are_found_by_their_names_wherever_they_stand(data: st.DataObject) -> None:
    all_features = [make(name) for name, make in data.draw(FEATURES).items()]
    known = tuple(data.draw(st.lists(st.sampled_from(all_features), unique=True)))
    now = tuple(data.draw(st.permutations(all_features)))
    before, after = World(space(known), STEER), World(space(now), STEER)
    net = random_net(before)
    result = transferred(net, after)
    assert_acts_alike(acts(result.net, frames(after)), acts(net, frames(before)))
    names = [each if isinstance(each, str) else each.name for each in now if each not in known]
    assert result.news == tuple(f"feature {name!r} of 'Ship' is new: its weights are 0" for name in names)


def test_a_type_that_had_no_features_gains_some() -> None:
    before = World(space(()), STEER)
    after = World(space(("x", Category("kind", 2))), STEER)
    net = random_net(before)
    result = transferred(net, after)
    assert_acts_alike(acts(result.net, frames(after)), acts(net, frames(before)))
    batch = frames(after)
    result.net.evaluate(batch, result.net.act(batch).actions).log_probs["steer"].values[0].backward()
    gradient = result.net.embedding.entities[0].layers[1].weight.grad
    assert gradient is not None and gradient.abs().sum() > 0  # from there, everything else gets one


def test_types_actions_and_choices_may_stand_in_another_order() -> None:
    before = World(
        space(), {**STEER, "aim": SelectEntityActionSpace(nobody=True), "fire": CategoricalActionSpace(["a", "b"])}
    )
    after = World(
        ObsSpace({"Rock": Entity(["size"]), "Ship": Entity(["y", "x"])}),
        {
            "fire": CategoricalActionSpace(["b", "a"]),
            "steer": CategoricalActionSpace(["stay", "left", "right"]),
            "aim": SelectEntityActionSpace(nobody=True),
        },
    )
    net = random_net(before)
    result = transferred(net, after)
    now, then = acts(result.net, frames(after)), acts(net, frames(before))
    assert result.news == ()
    assert result.changed is not None  # so that the states of environments are not taken over
    assert_acts_alike(now, then)


def test_in_the_same_environment_every_weight_is_the_same_to_the_last_bit() -> None:
    net = random_net(KNOWN)
    result = transferred(net, KNOWN)
    assert all(torch.equal(now, net.state_dict()[name]) for name, now in result.net.state_dict().items())
    assert (result.news, result.changed, result.unmeasured) == ((), None, {})


def test_more_global_features_are_without_effect_at_first() -> None:
    before = World(space(global_features=["time"]), STEER)
    after = World(space(("x", "y", "time"), global_features=["wind", Flag("night"), "time"]), STEER)
    net = random_net(before)
    result = transferred(net, after)
    assert_acts_alike(acts(result.net, frames(after)), acts(net, frames(before)))
    assert result.news == (
        "feature 'time' of 'Ship' is new: its weights are 0",  # another than the whole frame's
        "feature 'wind' of the whole frame is new: its weights are 0",
        "feature 'night' of the whole frame is new: its weights are 0",
    )


def test_a_category_may_have_more_values_and_new_ones_count_as_the_mean() -> None:
    before, after = (World(space(("x", Category("kind", num))), STEER) for num in (2, 4))
    net = random_net(before)
    result = transferred(net, after)
    assert_acts_alike(acts(result.net, frames(after)), acts(net, frames(before)))
    table, known = result.net.embedding.entities[0].tables[0], net.embedding.entities[0].tables[0]
    assert torch.equal(table[:2], known)
    torch.testing.assert_close(table[2:], known.mean(0).expand(2, -1))
    assert result.news == ("feature 'kind' of 'Ship' has 4 categories, 2 before: new ones count as the mean",)


def test_frames_without_entities_of_a_new_type_are_as_before() -> None:
    after = World(space(more={"Comet": Entity(["tail"])}), STEER)
    net = random_net(KNOWN)
    result = transferred(net, after)
    assert_acts_alike(acts(result.net, frames(after, without=("Comet",))), acts(net, frames(KNOWN)))
    assert result.news == ("entity type 'Comet' is new: untrained",)


def test_beside_a_new_action_the_others_are_as_before() -> None:
    after = World(space(), {"aim": SelectEntityActionSpace(), "fire": CategoricalActionSpace(["a", "b"]), **STEER})
    net = random_net(KNOWN)
    result = transferred(net, after)
    now = acts(result.net, frames(after))
    assert_acts_alike(now, acts(net, frames(KNOWN)))
    assert now.log_probs["fire"]["a"].exp().sub(0.5).abs().max() < 0.1  # nearly uniform, as in a new network
    assert result.news == ("action 'aim' is new: untrained", "action 'fire' is new: untrained")


@pytest.mark.parametrize("kind", [CategoricalActionSpace, GlobalCategoricalActionSpace])
def test_a_new_choice_is_as_likely_as_the_others_on_average_and_the_odds_between_them_stay(kind: Any) -> None:
    before = World(space(), {"steer": kind(["left", "right"])})
    after = World(space(), {"steer": kind(["jump", "right", "left"])})
    net = random_net(before)
    result = transferred(net, after)
    now = acts(result.net, frames(after))
    assert_acts_alike(now, acts(net, frames(before)))
    steer = now.log_probs["steer"]
    torch.testing.assert_close(steer["jump"], (steer["left"] + steer["right"]) / 2)
    assert (steer["jump"].exp() <= 1 / 3 + 1e-6).all()
    assert result.news == ("choice 'jump' of action 'steer' is new: at first as likely as the others are on average",)


def test_selecting_nobody_may_be_new() -> None:
    before, after = (World(space(), {"aim": SelectEntityActionSpace(nobody=nobody)}) for nobody in (False, True))
    net = random_net(before)
    result = transferred(net, after)
    rows = acts(result.net, frames(after)).log_probs["aim"]["0"].view(6, 5)[:, :4]
    expected = acts(net, frames(before)).log_probs["aim"]["0"].view(6, 4)
    torch.testing.assert_close(rows.log_softmax(1), expected, atol=1e-5, rtol=1e-4)
    assert result.news == ("action 'aim' may now select nobody: untrained",)


def test_numbers_of_an_action_are_found_by_their_names() -> None:
    before = World(space(), {"push": ContinuousActionSpace([-1, 0], [1, 2], names=["turn", "thrust"])})
    after = World(space(), {"push": ContinuousActionSpace([0, 0, -1], [9, 2, 1], names=["spin", "thrust", "turn"])})
    net = random_net(before)
    result = transferred(net, after)
    now, then = (acts(each, frames(world)).log_probs["push"] for each, world in ((result.net, after), (net, before)))
    for place, known in ((2, 0), (1, 1)):  # means, then log standard deviations
        torch.testing.assert_close(now[str(place)], then[str(known)], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(now[str(place + 3)], then[str(known + 2)], atol=1e-5, rtol=1e-4)
    assert result.news == ("number 'spin' of action 'push' is new: untrained",)


RELATIVE = replace(
    NET,
    relpos=RelposConfig(
        kind="grid",
        extent=[1, 1],
        position_features=["x", "y"],
        per_entity_values=True,
        key_projection=True,
        value_projection=True,
    ),
)


def test_tables_of_relative_positions_are_found_by_their_types() -> None:
    comet = {"Comet": Entity(["x", "y"])}
    before = World(ObsSpace({"Ship": Entity(["x", "y"]), **comet}), STEER)
    after = World(ObsSpace({**comet, "Moon": Entity(["y", "x"]), "Ship": Entity(["hp", "y", "x"])}), STEER)
    net = random_net(before, RELATIVE)
    result = transferred(net, after)
    assert_acts_alike(acts(result.net, frames(after, without=("Moon",))), acts(net, frames(before)))


def test_a_new_type_without_a_position_may_be_excluded_from_relative_positions() -> None:
    before = World(ObsSpace({"Ship": Entity(["x", "y"])}), STEER)
    after = World(ObsSpace({"Score": Entity(["points"]), "Ship": Entity(["x", "y"])}), STEER)
    net = random_net(before, RELATIVE)
    excluding = replace(RELATIVE, relpos=replace(RELATIVE.relpos, exclude_entities=["Score"]))
    result = transferred(net, after, excluding)
    assert_acts_alike(acts(result.net, frames(after, without=("Score",))), acts(net, frames(before)))


def test_the_distance_that_translation_adds_is_found_behind_new_features() -> None:
    seen_from_sun = replace(
        NET,
        translation=TranslationConfig(reference_entity="Sun", position_features=["x", "y"], add_distance=True),
    )
    sun = ObsSpace({"Sun": Entity(["x", "y"])})
    before, after = (
        World(ObsSpace({**sun.entities, "Ship": Entity(features)}), STEER)
        for features in (["x", "y"], ["hp", "x", "y"])
    )

    def one_sun(world: World) -> ObsBatch:
        batch = frames(world)
        keep = torch.arange(0, 6, 2)
        sun = type(batch.features["Sun"])(batch.features["Sun"].values[keep], torch.arange(4))
        actors = {
            n: replace(m, actors=m.actors._replace(values=m.actors.values - 1)) for n, m in batch.action_masks.items()
        }
        return ObsBatch(len(batch), {**batch.features, "Sun": sun}, actors)

    torch.manual_seed(0)
    net = RogueNet(seen_from_sun, before.obs, before.actions)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    net.update_normalization(one_sun(before))
    assert_acts_alike(acts(transferred(net, after).net, one_sun(after)), acts(net, one_sun(before)))


# --- Statistics of new features ---


def test_statistics_of_new_features_are_measured_and_the_others_stay_as_they_are() -> None:
    after = World(space(("hp", "x", "y"), more={"Comet": Entity(["tail"])}), STEER)
    net = random_net(KNOWN)
    result = transferred(net, after)
    batch = frames(after, count=7)
    before = acts(result.net, frames(after, without=("Comet",)))
    result.measure(lambda net: net.update_normalization(batch))
    ship, comet = (result.net.embedding.entities[result.net.embedding.types.index(name)] for name in ("Ship", "Comet"))
    known = net.embedding.entities[0].norm
    assert torch.equal(ship.norm.mean[1:], known.mean) and torch.equal(ship.norm.squares[1:], known.squares)
    hp = batch.features["Ship"].values[:, 0].double()
    torch.testing.assert_close(ship.norm.mean[0], hp.mean())
    torch.testing.assert_close((ship.norm.squares[0] / ship.norm.count).sqrt(), hp.std(correction=0))
    assert (int(ship.norm.count), int(comet.norm.count)) == (int(known.count), 14)
    normalized = ship.norm(batch.features["Ship"].values)[:, 0]
    torch.testing.assert_close(normalized.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    assert_acts_alike(acts(result.net, frames(after, without=("Comet",))), before)


# --- The optimizer ---


def learn(net: RogueNet, optimizer: torch.optim.Optimizer, batch: ObsBatch, actions: Any) -> None:
    optimizer.zero_grad()
    evaluation = net.evaluate(batch, actions)
    log_probs = [ragged.values for ragged in evaluation.log_probs.values()]
    loss = sum((each * torch.linspace(-1, 2, len(each))).mean() for each in log_probs)
    (loss + evaluation.values.square().mean()).backward()
    optimizer.step()


def adam(*nets: RogueNet) -> torch.optim.Optimizer:
    groups = [{"params": list(net.parameters())} for net in nets]
    return torch.optim.AdamW(groups, lr=0.01, eps=1e-5, fused=True)


def test_learning_goes_on_as_if_features_types_and_choices_had_always_stood_in_this_order() -> None:
    before = World(space(("x", "y", Category("kind", 2))), STEER)
    after = World(
        ObsSpace({"Rock": Entity(["size"]), "Ship": Entity([Category("kind", 2), "y", "x"])}),
        {"steer": CategoricalActionSpace(["stay", "left", "right"])},
    )
    net = random_net(before)
    optimizer, batch = adam(net), frames(before)
    actions = net.act(batch).actions
    for _ in range(3):
        learn(net, optimizer, batch, actions)

    result = transferred(net, after)
    goes_on = adam(result.net)
    transfer_optimizer(goes_on, optimizer.state_dict(), [result])
    renumbered = {"steer": actions["steer"]._replace(values=(actions["steer"].values + 1) % 3)}
    for _ in range(3):
        learn(net, optimizer, batch, actions)
        learn(result.net, goes_on, frames(after), renumbered)
    assert_acts_alike(acts(result.net, frames(after)), acts(net, batch))


def test_averages_of_new_columns_start_from_0_and_from_the_mean_square() -> None:
    net, after = random_net(KNOWN), World(space(("hp", "x", "y")), STEER)
    optimizer, batch = adam(net), frames(KNOWN)
    learn(net, optimizer, batch, net.act(batch).actions)
    result = transferred(net, after)
    goes_on = adam(result.net)
    transfer_optimizer(goes_on, optimizer.state_dict(), [result])
    new, known = (
        each.state[parameters["embedding.entities.0.project.0.weight"]]
        for each, parameters in (
            (goes_on, dict(result.net.named_parameters())),
            (optimizer, dict(net.named_parameters())),
        )
    )
    assert torch.equal(new["exp_avg"][:, 1:], known["exp_avg"]) and (new["exp_avg"][:, 0] == 0).all()
    assert torch.equal(new["exp_avg_sq"][:, 1:], known["exp_avg_sq"])
    assert (new["exp_avg_sq"][:, 0] == known["exp_avg_sq"].mean()).all()
    assert new["step"] == known["step"] == 1


def test_an_optimizer_of_several_networks_is_carried_over_part_by_part() -> None:
    policy, value = random_net(KNOWN), random_net(KNOWN, seed=5)
    optimizer, batch = adam(policy, value), frames(KNOWN)
    for net in (policy, value):
        net.evaluate(batch, net.act(batch).actions).values.sum().backward()
    optimizer.step()
    after = World(space(("hp", "x", "y"), more={"Comet": Entity()}), STEER)
    parts = [transferred(policy, after), transferred(value, after)]
    goes_on = adam(*(part.net for part in parts))
    transfer_optimizer(goes_on, optimizer.state_dict(), parts)
    for before, part in ((policy, parts[0]), (value, parts[1])):
        known, now = before.value_head.project.weight, part.net.value_head.project.weight
        assert torch.equal(goes_on.state[now]["exp_avg"], optimizer.state[known]["exp_avg"])
    assert [group["lr"] for group in goes_on.param_groups] == [0.01, 0.01]


def test_a_network_that_the_checkpoint_did_not_have_starts_without_averages() -> None:
    policy = random_net(KNOWN)
    optimizer, batch = adam(policy), frames(KNOWN)
    learn(policy, optimizer, batch, policy.act(batch).actions)
    parts = [transferred(policy, KNOWN), Transferred(random_net(KNOWN, seed=5))]
    goes_on = adam(*(part.net for part in parts))
    transfer_optimizer(goes_on, optimizer.state_dict(), parts)
    assert goes_on.state[parts[0].net.value_head.project.bias]["step"] == 1
    assert all(parameter not in goes_on.state for parameter in parts[1].net.parameters())
    assert set(parts[1].unmeasured) == {"embedding.entities.0.norm", "embedding.entities.1.norm"}


# --- What cannot match ---


def pushing(low: float, names: list[str] | None) -> World:
    return World(space(), {"push": ContinuousActionSpace([low], [1], names=names)})


def steering(steer: ActionSpace, name: str = "steer") -> World:
    return World(space(), {name: steer})


KIND_3, KIND_2 = (World(space((Category("kind", num),)), STEER) for num in (3, 2))
OTHER_ROCK = World(ObsSpace({"Ship": Entity(["x", "y"]), "rock": Entity(["size"])}), STEER)
TIME = World(space(global_features=["time"]), STEER)
NOBODY, SOMEBODY = (steering(SelectEntityActionSpace(nobody=nobody), "aim") for nobody in (True, False))
CANNOT = [
    (KNOWN, World(space(("X", "y")), STEER), "the feature 'x' of 'Ship' is gone; allowed: 'X', 'y'; did you"),
    (TIME, KNOWN, "the feature 'time' of the whole frame is gone; allowed: nothing"),
    (KNOWN, OTHER_ROCK, "the entity type 'Rock' is gone; allowed: 'Ship', 'rock'; did you mean 'rock'?"),
    (KNOWN, steering(CategoricalActionSpace(["a"]), "Steer"), "the action 'steer' is gone; allowed: 'Steer'; did"),
    (KNOWN, steering(CategoricalActionSpace(["left", "stay"])), "the choice 'right' of the action 'steer' is gone"),
    (KNOWN, steering(SelectEntityActionSpace()), "the action 'steer' was a CategoricalActionSpace and is a Sel"),
    (
        KNOWN,
        World(space((Flag("x"), "y")), STEER),
        r"the feature 'x' of 'Ship' was a plain number and is Flag\(name='x'",
    ),
    (
        KIND_3,
        KIND_2,
        r"the feature 'kind' of 'Ship' was Category\(name='kind', num=3\) and is Category\(name='kind', num",
    ),
    (NOBODY, SOMEBODY, "the choice of nobody of the action 'aim' is gone"),
    (
        pushing(-1, ["turn"]),
        pushing(-2, ["turn"]),
        r"the number 'turn' of the action 'push' was within \(-1.0, 1.0\) and is",
    ),
    (pushing(-1, ["turn"]), pushing(-1, ["turns"]), "the number 'turn' of the action 'push' is gone; allowed: 'turns'"),
    (pushing(-1, ["turn"]), pushing(-1, None), "the number 'turn' of the action 'push' is gone; allowed: '0'"),
]


@pytest.mark.parametrize(("before", "after", "message"), CANNOT)
def test_what_is_gone_or_of_another_kind_is_named_and_the_network_stays_as_it_is(
    before: World, after: World, message: str
) -> None:
    net = RogueNet(NET, after.obs, after.actions)
    weights = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    for refused in (lambda: transfer(random_net(before), net), lambda: fit(random_net(before), *after)):
        with pytest.raises(ValueError, match=f"^{message}"):
            refused()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_head": 4}, "n_head was 2 in training and is 4"),  # weights of the same shapes, another function
        (
            {"relpos": RelposConfig(kind="distance", extent=[2], position_features=["x"], exclude_entities=["Rock"])},
            "relpos.kind was none in training and is distance",
        ),
        (
            {"translation": TranslationConfig(reference_entity="Ship", position_features=["size"])},
            "translation.reference_entity was None in training and is Ship",
        ),
    ],
)
def test_a_network_with_other_settings_is_refused_by_their_names(changed: dict[str, Any], message: str) -> None:
    world = World(space(("x", "y", "size")), STEER)
    with pytest.raises(ValueError, match=f"its setting {message}"):
        transferred(random_net(world), world, replace(NET, **changed))


def test_settings_that_change_no_function_may_change() -> None:
    net = random_net(KNOWN)
    free = replace(NET, dropout=0.1, backend="reference")
    assert_acts_alike(acts(transferred(net, KNOWN, free).net, frames(KNOWN)), acts(net, frames(KNOWN)))


# --- Playing without training ---


def test_in_play_nothing_changes_where_nothing_is_new() -> None:
    net, batch = random_net(KNOWN), frames(KNOWN)
    fitted = fit(net, *KNOWN)
    assert fitted.net is net and fitted.adapt(batch) is batch and fitted.news == ""


def test_in_play_entities_of_new_types_are_hidden_so_that_the_others_act_as_before() -> None:
    after = World(
        ObsSpace({"Comet": Entity(["tail"]), "Rock": Entity(["hp", "size"]), "Ship": Entity(["x", "y"])}),
        {"fire": CategoricalActionSpace(["a", "b"]), **STEER},
    )
    before = World(ObsSpace({"Rock": Entity(["size"]), "Ship": Entity(["x", "y"])}), STEER)
    net, shown = random_net(before), frames(after)
    fitted = fit(net, *after)
    assert_acts_alike(acts(fitted.net, fitted.adapt(shown)), acts(net, frames(before)), values=False)
    assert fitted.news == (
        "entity type 'Comet' is new: untrained; feature 'hp' of 'Rock' is new: its weights are 0; "
        "action 'fire' is new: untrained; hidden from the others: 'Comet'"
    )
    assert not shown.visible and list(shown.features) == ["Comet", "Rock", "Ship"]  # the world's batch stays as it is


def test_in_play_new_entities_may_act_and_new_choices_be_taken_always_alike() -> None:
    after = World(
        space(more={"Comet": Entity(["tail"])}), {"steer": CategoricalActionSpace(["left", "right", "stay", "up"])}
    )
    observation = Observation(
        features={"Ship": [[1, 2]], "Comet": [[3], [4]]},
        ids={"Ship": ["s"], "Comet": ["c", "d"]},
        actions={"steer": CategoricalActionMask(actor_types=["Comet", "Ship"])},
    )
    batch = ObsBatch.from_vec_obs(batch_observations([observation], after.obs, after.actions))
    net, results = random_net(KNOWN), []
    for seed in (1, 2):
        torch.manual_seed(seed)  # of no effect
        fitted = fit(net, *after)
        results.append(acts(fitted.net, fitted.adapt(batch)))
    assert torch.equal(results[0].log_probs["steer"]["up"], results[1].log_probs["steer"]["up"])
    assert results[0].log_probs["steer"]["up"].shape == (3,)


def test_in_play_types_that_never_come_are_told() -> None:
    after = World(ObsSpace({"Ship": Entity(["y", "x"])}), STEER)
    net = random_net(KNOWN)
    fitted = fit(net, *after)
    assert fitted.news == "never there: 'Rock'"
    now = acts(fitted.net, fitted.adapt(frames(after)))
    assert_acts_alike(now, acts(net, frames(KNOWN, without=("Rock",))))


def test_in_play_entities_that_the_world_hides_stay_hidden() -> None:
    after = World(space(more={"Comet": Entity(["tail"])}), STEER)
    observation = Observation(features={"Rock": [[1], [2]], "Comet": [[3]]}, visible={"Rock": [False, True]})
    batch = ObsBatch.from_vec_obs(batch_observations([observation], after.obs, after.actions))
    seen = fit(random_net(KNOWN), *after).adapt(batch).frames
    assert seen.visible is not None and seen.visible.tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("obs", "actions"),
    [
        (space(), {**STEER, "mode": GlobalCategoricalActionSpace(["a", "b"])}),
        (space(global_features=["time"]), STEER),
    ],
)
def test_in_play_the_first_global_action_or_feature_comes_with_a_frame_that_is_hidden(
    obs: ObsSpace, actions: Mapping[str, ActionSpace]
) -> None:
    after, net = World(obs, actions), random_net(KNOWN)
    fitted = fit(net, *after)
    now = acts(fitted.net, fitted.adapt(frames(after)))
    assert_acts_alike(now, acts(net, frames(KNOWN)), values=False)
    assert "hidden from the others: '__global__'" in fitted.news
    assert "mode" not in actions or now.log_probs["mode"]["a"].shape == (3,)


def test_in_play_new_types_need_no_position() -> None:
    before = World(ObsSpace({"Ship": Entity(["x", "y"])}), STEER)
    after = World(ObsSpace({"Score": Entity(["points"]), "Ship": Entity(["x", "y"])}), STEER)
    net = random_net(before, RELATIVE)
    fitted = fit(net, *after)
    assert_acts_alike(acts(fitted.net, fitted.adapt(frames(after))), acts(net, frames(before)), values=False)
