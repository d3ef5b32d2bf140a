"""Chained actions: each head sees the choices that it is decided after, and nothing else changes."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from entity_gym import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.actions.choices import check_actions
from rogue_net import ObsBatch, RaggedTensor, RogueNet, RogueNetConfig
from rogue_net.batch.ragged import Cuts
from rogue_net.explain import explain
from rogue_net.heads.chains import sums_before
from rogue_net.transfer import transfer
from tests.rogue_net.worlds import World, frame_keys, make_net, to_batch, to_obs

SPACE = ObsSpace({"Ship": Entity(["x", "y"]), "Rock": Entity(["x"])})
MODE, HELP, FIRE, STEER, AIM, MOVE, GUARD = "mode", "help", "fire", "steer", "aim", "move", "guard"
#: Declared in another order than they are decided in: move, fire, aim, steer, mode, help.
CHAINS: dict[str, ActionSpace] = {
    HELP: CategoricalActionSpace(["no", "yes"], after=MODE),
    MODE: GlobalCategoricalActionSpace(["attack", "defend"], after=[AIM, STEER]),
    STEER: ContinuousActionSpace([0, -math.inf], [1, math.inf], after=[AIM, "actors"]),
    AIM: SelectEntityActionSpace(nobody=True, after=["actors", FIRE]),
    FIRE: CategoricalActionSpace(
        ["no", "yes"], after=MOVE, allowed={MOVE: [[True, True], [True, False], [True, True]]}
    ),
    MOVE: CategoricalActionSpace(["stay", "left", "right"], after="actors"),
}
WORLD = World(SPACE, CHAINS)
MASKS: dict[str, Any] = {
    MODE: GlobalCategoricalActionMask(),
    HELP: CategoricalActionMask(actor_types=["Rock", "Ship"]),
    FIRE: CategoricalActionMask(actor_types=["Ship"]),
    STEER: ContinuousActionMask(actor_types=["Ship"]),
    AIM: SelectEntityActionMask(actor_types=["Ship"], actee_types=["Rock"]),
    MOVE: CategoricalActionMask(actor_types=["Ship"]),
    GUARD: SelectEntityActionMask(actor_types=["Ship"], actee_types=["Ship", "Rock"]),
}


def ships(count: int, rocks: int = 2, *actions: str, seed: int = 0) -> Observation:
    """A frame in which every ship takes all of some actions; without names, all of them."""
    rng = np.random.default_rng(seed)
    return Observation(
        features={"Ship": rng.normal(size=(count, 2)), "Rock": rng.normal(size=(rocks, 1))},
        ids={"Ship": range(count), "Rock": [f"rock {i}" for i in range(rocks)]},
        actions={name: MASKS[name] for name in actions or CHAINS},
    )


def mixed() -> ObsBatch:
    """Frames of different sizes; in some, some actions are not on offer."""
    frames = [
        ships(2),
        ships(5, 1, seed=1),
        ships(0),
        ships(1, 0, seed=2),
        ships(3, 2, MOVE, AIM, HELP),
        ships(2, 2, FIRE),
    ]
    return to_batch(frames, WORLD)


def world(**actions: ActionSpace) -> World:
    return World(SPACE, actions)


def joint(net: RogueNet, batch: ObsBatch, actions: dict[str, list[int]]) -> float:
    """The log-prob of everything that the only frame does."""
    given = {
        name: batch.action_masks[name].actors._replace(values=torch.tensor(choices).view(-1, 1))
        for name, choices in actions.items()
    }
    with torch.no_grad():
        return float(sum(each.values.sum() for each in net.evaluate(batch, given).log_probs.values()))


# --- The product of probabilities


FREE_MODE, FREE_AIM = GlobalCategoricalActionSpace(["attack", "defend"]), SelectEntityActionSpace()
#: Actions of a world; and of each the number of actors, and their choices.
JOINT: dict[str, tuple[dict[str, ActionSpace], dict[str, tuple[int, Any]]]] = {
    "actors": ({MOVE: CHAINS[MOVE]}, {MOVE: (3, range(3))}),
    "table": ({MOVE: CHAINS[MOVE], FIRE: CHAINS[FIRE]}, {MOVE: (2, range(3)), FIRE: (2, range(2))}),
    "selecting actors": ({AIM: SelectEntityActionSpace(nobody=True, after="actors")}, {AIM: (3, (-1, 3, 4))}),
    "selecting each other": ({GUARD: SelectEntityActionSpace(after="actors")}, {GUARD: (3, range(5))}),
    "selected": (
        {FIRE: CategoricalActionSpace(["no", "yes"], after=AIM), AIM: FREE_AIM},
        {AIM: (2, (2, 3)), FIRE: (2, (0, 1))},
    ),
    "global later": (
        {MODE: GlobalCategoricalActionSpace(["attack", "defend"], after=MOVE), MOVE: CHAINS[MOVE]},
        {MOVE: (2, range(3)), MODE: (1, (0, 1))},
    ),
    "global earlier": ({HELP: CHAINS[HELP], MODE: FREE_MODE}, {MODE: (1, (0, 1)), HELP: (3, (0, 1))}),
}


@pytest.mark.parametrize("case", JOINT)
def test_the_probabilities_of_all_joint_choices_sum_to_1(case: str) -> None:
    """And the odds of the last decision depend on the decisions before."""
    actions, choices = JOINT[case]
    net = make_net(world(**actions), backend="reference")
    num_ships = 1 if case == "global earlier" else next(iter(choices.values()))[0]  # the two rocks need help, too
    batch = to_batch([ships(num_ships, 2, *choices)], world(**actions))
    options = [list(itertools.product(values, repeat=count)) for count, values in choices.values()]
    every = [dict(zip(choices, map(list, each), strict=True)) for each in itertools.product(*options)]
    log_probs = [joint(net, batch, each) for each in every]
    assert sum(map(math.exp, log_probs)) == pytest.approx(1, abs=1e-5)
    last = len(list(choices.values())[-1][1])  # neighbours in `every` differ in the last actor of the last action
    odds = [first - second for first, second in zip(log_probs[::last], log_probs[1::last], strict=True)]
    assert max(odds) - min(odds) > 0.01


def test_a_combination_that_the_table_closes_has_probability_0_and_is_never_played() -> None:
    actions = {MOVE: CHAINS[MOVE], FIRE: CHAINS[FIRE]}
    net = make_net(world(**actions), backend="reference")
    batch = to_batch([ships(1, 0, MOVE, FIRE)], world(**actions))
    assert joint(net, batch, {MOVE: [1], FIRE: [1]}) == -math.inf
    assert math.isfinite(joint(net, batch, {MOVE: [0], FIRE: [1]}))
    many = to_batch([ships(3, 0, MOVE, FIRE, seed=n) for n in range(200)], world(**actions))
    acted = net.act(many, generator=frame_keys(many), temperature=10)
    move, fire = (acted.actions[name].values[:, 0] for name in (MOVE, FIRE))
    assert (move == 1).sum() > 100  # it is chosen
    assert not fire[move == 1].any()
    assert fire[move != 1].any()


def test_a_choice_that_the_selected_entity_closes_has_probability_0_and_is_never_played() -> None:
    actions = {
        FIRE: CategoricalActionSpace(["no", "yes", "both"], after=AIM),
        AIM: SelectEntityActionSpace(nobody=True),
    }
    net = make_net(world(**actions), backend="reference")
    # ships 0 and 1 of each frame, in the other order; rocks 2 and 3
    mask_after = np.array([[[1, 0, 1], [0, 1, 1]], [[1, 1, 0], [1, 0, 0]]], bool)
    use = CategoricalActionMask(actor_ids=[1, 0], mask_after=mask_after, mask=[[True, True, False], [True, True, True]])
    frames = [
        each
        for seed in range(100)
        for each in (
            replace(ships(2, 2, AIM, seed=seed), actions={AIM: MASKS[AIM], FIRE: use}),
            ships(1, 1, AIM, FIRE, seed=seed),
            ships(2, 0, seed=seed),
        )
    ]
    frames = [
        replace(each, actions={name: each.actions[name] for name in actions if name in each.actions}) for each in frames
    ]
    obs = to_obs(frames, world(**actions))
    batch = ObsBatch.from_vec_obs(obs)
    for how in ({"temperature": 10.0}, {"greedy": True}):
        acted = net.act(batch, generator=frame_keys(batch), **how)  # type: ignore[arg-type]
        check_actions(acted.to_buffers(), obs.action_masks, actions, str)
        halves = ObsBatch.cat(batch.split(Cuts([150, 150], batch.offsets)))[torch.arange(300)]
        evaluated = net.evaluate(halves, acted.actions).log_probs[FIRE].values
        assert torch.isfinite(evaluated).all()
    fires = net.act(batch, generator=frame_keys(batch), temperature=10).actions
    by_frame = list(
        zip(*(fires[name].values[:, 0].split(fires[name].lengths.tolist()) for name in (AIM, FIRE)), strict=True)
    )
    seen = {(int(aim[1]), int(fire[0])) for aim, fire in by_frame[::3]}  # ship 1 stands first in the mask of firing
    assert seen == {(2, 0), (3, 1), (-1, 0), (-1, 1)}


def test_an_actor_that_did_not_choose_before_may_do_everything() -> None:
    net = make_net(WORLD, backend="reference")
    batch = to_batch([ships(40, 0, FIRE)], WORLD)
    fire = net.act(batch, generator=frame_keys(batch), temperature=10).actions[FIRE].values
    assert set(fire.flatten().tolist()) == {0, 1}


# --- Who sees what


def changed(ragged: RaggedTensor, row: int, value: float) -> RaggedTensor:
    values = ragged.values.clone()
    values[row] = value
    return ragged._replace(values=values)


def log_probs_of(net: RogueNet, batch: ObsBatch, actions: dict[str, RaggedTensor]) -> dict[str, Tensor]:
    with torch.no_grad():
        return {name: each.values for name, each in net.evaluate(batch, actions).log_probs.items()}


@pytest.mark.parametrize("name", [MOVE, AIM, STEER])
def test_an_actor_sees_the_choices_of_those_before_it_and_of_none_after(name: str) -> None:
    net, batch = make_net(WORLD, backend="reference"), to_batch([ships(1), ships(4)], WORLD)
    acted = net.act(batch, generator=frame_keys(batch)).actions
    before = log_probs_of(net, batch, acted)[name]
    other = {MOVE: lambda old: (old + 1) % 3, AIM: lambda old: 9 - old if old >= 0 else 4, STEER: lambda old: old / 2}
    third = changed(acted[name], 3, other[name](acted[name].values[3]))  # of 4 in the second frame
    after = log_probs_of(net, batch, {**acted, name: third})[name]
    assert torch.equal(after[:3], before[:3])
    assert after[3] != before[3]  # another choice of its own
    assert after[4] != before[4]


def test_later_actions_see_earlier_ones_on_the_actor_or_the_frame_alone() -> None:
    net, batch = make_net(WORLD, backend="reference"), to_batch([ships(2), ships(2, seed=1)], WORLD)
    acted = net.act(batch, generator=frame_keys(batch)).actions
    before = log_probs_of(net, batch, acted)
    # the first ship of the second frame fires, or does not: only its own aim sees that at once
    acted[MOVE] = acted[MOVE]._replace(values=torch.zeros(4, 1, dtype=torch.int64))  # where firing is open
    before = log_probs_of(net, batch, acted)
    after = log_probs_of(net, batch, {**acted, FIRE: changed(acted[FIRE], 2, 1 - int(acted[FIRE].values[2]))})
    assert [name for name in CHAINS if not torch.equal(after[name], before[name])] == [AIM, FIRE]
    assert torch.equal(after[AIM][[0, 1, 3]], before[AIM][[0, 1, 3]])
    # the mode of the second frame: all of its entities see it
    after = log_probs_of(net, batch, {**acted, MODE: changed(acted[MODE], 1, 1 - int(acted[MODE].values[1]))})
    assert (after[HELP] != before[HELP]).tolist() == [False] * 4 + [True] * 4
    # what a ship aims at: its own steering, and the mode
    aim = 2 if acted[AIM].values[3] != 2 else 3
    after = log_probs_of(net, batch, {**acted, AIM: changed(acted[AIM], 3, aim)})
    assert [name for name in CHAINS if not torch.equal(after[name], before[name])] == [MODE, STEER, AIM]
    assert (after[MODE] != before[MODE]).tolist() == [False, True]
    assert (after[STEER] != before[STEER]).tolist() == [False, False, False, True]


def test_a_selected_entity_is_known_as_taken_by_later_actions() -> None:
    """The rock that a ship aims at says itself whether it needs help."""
    actions = {AIM: SelectEntityActionSpace(), HELP: CategoricalActionSpace(["no", "yes"], after=AIM)}
    net, batch = make_net(world(**actions), backend="reference"), to_batch([ships(1, 2, AIM, HELP)], world(**actions))
    acted = net.act(batch, generator=frame_keys(batch)).actions
    first, second = (log_probs_of(net, batch, {**acted, AIM: changed(acted[AIM], 0, rock)})[HELP] for rock in (1, 2))
    assert (first != second).all()  # both rocks, and the ship


# --- Acting is evaluating


@pytest.mark.parametrize("how", [{}, {"greedy": True}, {"temperature": 0.5}])
def test_what_was_chosen_has_the_log_prob_that_it_had_when_it_was_chosen(how: dict[str, Any]) -> None:
    net, batch = make_net(WORLD, backend="reference"), mixed()
    acted = net.act(batch, generator=frame_keys(batch), logits=True, **how)
    assert list(acted.actions) == list(acted.log_probs) == list(CHAINS)
    evaluated = net.evaluate(batch, acted.actions)
    for name in CHAINS:
        if "temperature" not in how:
            assert torch.equal(acted.log_probs[name].values, evaluated.log_probs[name].values), name
            assert acted.logits is not None
            assert torch.equal(acted.logits[name].values, evaluated.logits[name]), name


def test_actors_in_turn_choose_as_if_they_were_asked_one_by_one() -> None:
    """The greedy choice of each, given those before it, is the most probable one of the evaluation."""
    net = make_net(WORLD, backend="reference")
    with torch.no_grad():
        net.get_parameter(f"heads.{list(CHAINS).index(MOVE)}.told.weight").mul_(30)
    batch = to_batch([ships(4, seed=n) for n in range(20)], WORLD)
    acted = net.act(batch, greedy=True).actions
    logits = net.evaluate(batch, acted).logits
    assert torch.equal(logits[MOVE].argmax(dim=1), acted[MOVE].values[:, 0])
    # and a greedy choice that ignored those before would be another one somewhere
    alone = net.evaluate(batch, {**acted, MOVE: acted[MOVE]._replace(values=(acted[MOVE].values + 1) % 3)}).logits[MOVE]
    assert not torch.equal(alone.argmax(dim=1), acted[MOVE].values[:, 0])


def test_a_frame_alone_decides_as_in_any_batch() -> None:
    net, batch = make_net(WORLD, backend="reference"), mixed()
    keys = frame_keys(batch)
    together = net.act(batch, generator=keys, logits=True)
    order = torch.tensor([4, 1, 0, 5, 3, 2])
    for chosen in [order, *torch.arange(len(batch)).split(1)]:
        part = batch[chosen]
        alone = net.act(part, generator=type(keys)(keys.keys[chosen]), logits=True)
        for name in CHAINS:
            expected, found = together.actions[name].gather(chosen), alone.actions[name]
            torch.testing.assert_close(found.values, expected.values, atol=1e-6, rtol=1e-6)
            assert alone.logits is not None and together.logits is not None
            expected, found = together.logits[name].gather(chosen), alone.logits[name]
            torch.testing.assert_close(found.values, expected.values, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("most", [0, 1, 2, 3, 5, 8, 9])
def test_sums_of_earlier_actors_are_those_of_a_loop(most: int) -> None:
    lengths = [most, 0, min(most, 1), most // 2, most]
    ranks = torch.tensor([rank for length in lengths for rank in range(length)], dtype=torch.int64)
    rows = torch.randn(len(ranks), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.zeros_like(rows)
    for k, rank in enumerate(ranks.tolist()):
        expected[k] = rows[k - rank : k].sum(dim=0)
    torch.testing.assert_close(sums_before(rows, ranks, most), expected)


def test_gradients_of_chained_log_probs_are_those_of_finite_differences() -> None:
    net = make_net(WORLD, backend="reference").double()
    batch = mixed()
    acted = make_net(WORLD, backend="reference").act(batch, generator=frame_keys(batch)).actions
    actions = {name: each.map(lambda x: x.double() if x.is_floating_point() else x) for name, each in acted.items()}
    batch = batch.map(lambda x: x.double() if x.is_floating_point() else x)

    def total() -> Tensor:
        return torch.stack(
            [each.values.double().sum() for each in net.evaluate(batch, actions).log_probs.values()]
        ).sum()

    total().backward()
    rng = np.random.default_rng(0)
    chained = [
        (name, each)
        for name, each in net.named_parameters()
        if any(part in name for part in ("told", "reader", "taken"))
    ]
    for name, parameter in chained:
        place = tuple(rng.integers(parameter.shape))
        assert parameter.grad is not None, name
        with torch.no_grad():
            kept = parameter[place].item()
            found = []
            for step in (1e-3, -1e-3):
                parameter[place] = kept + step
                found.append(float(total()))
            parameter[place] = kept
        assert parameter.grad[place].item() == pytest.approx((found[0] - found[1]) / 2e-3, rel=2e-2, abs=2e-3), name


# --- Nothing changes without `after`, and at first


def test_a_network_without_chains_has_no_parameters_of_them_and_the_same_random_numbers() -> None:
    plain = {
        name: type(space).from_dict({**space.to_dict(), "after": [], "allowed": {}}) for name, space in CHAINS.items()
    }
    net = RogueNet(RogueNetConfig(d_model=16), SPACE, plain)
    assert not [name for name in net.state_dict() if any(part in name for part in ("told", "reader", "taken"))]
    half = {**plain, HELP: CHAINS[HELP]}
    net = RogueNet(RogueNetConfig(d_model=16), SPACE, half)
    found = {
        name.split(".")[1] + "." + name.split(".")[2] for name in net.state_dict() if "told" in name or "reader" in name
    }
    assert found == {"0.reader", "1.told"}  # help reads, the mode tells


def test_a_policy_trained_without_chains_goes_on_as_it_was_in_a_world_with_them() -> None:
    plain = {
        name: type(space).from_dict({**space.to_dict(), "after": [], "allowed": {}}) for name, space in CHAINS.items()
    }
    old = make_net(World(SPACE, plain), backend="reference")
    torch.manual_seed(1)
    new = RogueNet(RogueNetConfig(d_model=16, n_layer=2, d_qk=8, backend="reference"), SPACE, CHAINS)
    moved = transfer(old, new)
    assert "action 'help' is now decided after 'mode': at first as before" in moved.news
    assert "action 'fire' has other combinations with earlier choices that are allowed" in moved.news
    batch = mixed()
    actions = {name: each for name, each in old.act(batch, greedy=True).actions.items()}
    actions[MOVE] = actions[MOVE]._replace(values=torch.zeros_like(actions[MOVE].values))  # which closes nothing
    before, after = old.evaluate(batch, actions), new.evaluate(batch, actions)
    for name in CHAINS:
        assert torch.equal(before.log_probs[name].values, after.log_probs[name].values), name
    modules = dict(new.named_parameters())
    assert all(each.abs().sum() > 0 for name, each in modules.items() if "told" in name or "reader.hidden" in name)
    with pytest.raises(ValueError, match=r"the action 'help' is no longer decided after 'mode'"):
        transfer(new, old)


def test_a_chained_policy_goes_on_where_an_earlier_action_has_gained_a_choice_and_a_number() -> None:
    old = make_net(WORLD, backend="reference")
    table = [[True, False], [True, True], [True, True], [True, True]]
    actions = {
        **CHAINS,
        MOVE: CategoricalActionSpace(["back", "right", "stay", "left"], after="actors"),
        FIRE: CategoricalActionSpace(["no", "yes"], after=MOVE, allowed={MOVE: table}),
        STEER: ContinuousActionSpace([-1, 0, -math.inf], [1, 1, math.inf], ["2", "0", "1"], after=[AIM, "actors"]),
    }
    torch.manual_seed(1)
    new = RogueNet(RogueNetConfig(d_model=16, n_layer=2, d_qk=8, backend="reference"), SPACE, actions)
    news = transfer(old, new).news
    assert [line.split(":")[0] for line in news] == [
        "number '2' of action 'steer' is new",
        "action 'fire' has other combinations with earlier choices that are allowed",
        "choice 'back' of action 'move' is new",
    ]
    told = [net.get_parameter(f"heads.{list(CHAINS).index(MOVE)}.told.weight") for net in (old, new)]
    torch.testing.assert_close(told[1], torch.stack([told[0].mean(0), told[0][2], told[0][0], told[0][1]]))
    # what a ship does given the moves of the others is as likely as it was, relative to the known choices
    batch = to_batch([ships(3)], WORLD)
    given = {name: each for name, each in old.act(batch, greedy=True).actions.items()}
    same = {**given, MOVE: given[MOVE]._replace(values=torch.tensor([2, 3, 1])[given[MOVE].values])}
    same[STEER] = given[STEER]._replace(values=torch.cat([torch.zeros(3, 1), given[STEER].values], dim=1))
    before, after = old.evaluate(batch, given), new.evaluate(batch, same)
    known = after.logits[MOVE][:, [2, 3, 1]].log_softmax(dim=1)
    torch.testing.assert_close(known, before.logits[MOVE])
    torch.testing.assert_close(after.log_probs[AIM].values, before.log_probs[AIM].values)


def test_an_explanation_follows_the_actions_that_were_taken() -> None:
    net, batch = make_net(WORLD, backend="reference"), mixed()
    acted = net.act(batch, generator=frame_keys(batch), logits=True)
    explained = explain(net, batch, actions=acted.actions)
    assert acted.logits is not None
    for name in CHAINS:
        torch.testing.assert_close(explained.logits[name].values, acted.logits[name].values)
