"""Learning from a rollout: minibatches, micro-batches, gradients."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from enn_ppo.ppo import Advantages, Samples, update, weigh
from enn_ppo.rollout import Rollout
from enn_ppo.settings.config import OptimConfig, PPOConfig
from enn_ppo.settings.learning import PPOSettings
from entity_gym import Environment
from entity_gym.pools.pool import ListEnv
from rogue_net import Evaluation, ObsBatch, RaggedTensor, RogueNet, RogueNetConfig
from tests.enn_ppo.recordings import assert_same_frames
from tests.enn_ppo.rollouts import Collector
from tests.enn_ppo.threads import InThread, on_two
from tests.enn_ppo.worlds import Copycat, Moment, Scripted
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper

CPU = torch.device("cpu")


def cannon() -> PythonMineSweeper:
    return PythonMineSweeper(
        width=4, height=4, num_mines=3, num_robots=3, orbital_cannon=True, cooldown_period=1, max_steps=6
    )


def make_net(env: Environment) -> RogueNet:
    torch.manual_seed(3)
    net = RogueNet(RogueNetConfig(d_model=16, n_layer=1, n_head=2), env.obs_space(), env.action_space())
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return net


def play(net: RogueNet, create: Any, num_envs: int = 4, steps: int = 6) -> Rollout:
    collector = Collector(ListEnv(create, num_envs), net, CPU, 1)
    collector.reset(1)
    return collector.collect(steps)


def random_advantages(rollout: Rollout) -> Advantages:
    advantages = torch.randn(rollout.by_step("values").shape, generator=torch.Generator().manual_seed(5))
    return Advantages(advantages, rollout.by_step("values") + advantages)


def learn(
    net: RogueNet, rollout: Rollout, advantages: Advantages, ppo: PPOConfig | None = None, **optim: Any
) -> dict[str, float]:
    """Update with plain gradient steps of length 1 times the gradient, so that changes of weights are gradients."""
    settings = {"batch_size": len(rollout.frames.obs), "epochs": 1, "max_grad_norm": 1e9} | optim
    return update(
        net,
        torch.optim.SGD(net.parameters(), lr=1.0),
        Samples.of(rollout, advantages),
        OptimConfig(**settings),
        PPOSettings.at(ppo or PPOConfig(ent_coef=0.1)),
        generator=torch.Generator().manual_seed(7),
    )


def test_a_loss_of_ones_own_need_not_tell_how_far_the_policy_moved() -> None:
    def square(net: Any, batch: Samples, settings: PPOSettings) -> tuple[Tensor, dict[str, Tensor]]:
        values = net.evaluate(batch.obs, batch.actions).values
        return values.square().mean(), {"square": values.square().mean()}

    net = make_net(Copycat())
    rollout = play(net, Copycat)
    found = update(
        net,
        torch.optim.SGD(net.parameters(), lr=0.01),
        Samples.of(rollout, random_advantages(rollout)),
        OptimConfig(batch_size=12, epochs=2),
        PPOSettings.at(PPOConfig()),
        generator=torch.Generator(),
        loss=square,
    )
    assert list(found) == ["square", "grad_norm", "explained_variance", "epochs"] and found["square"] > 0


def weighted(samples: Samples) -> Samples:
    return samples.weighed(PPOSettings.at(PPOConfig()))


def changes(net: RogueNet, before: RogueNet) -> Tensor:
    pairs = zip(net.parameters(), before.parameters(), strict=True)
    return torch.cat([(after - old).flatten() for after, old in pairs]).detach()


# --- Micro-batches ---


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("weighting", ["actor", "frame"])
@pytest.mark.parametrize("ratio", ["per_actor", "joint"])
def test_the_size_of_micro_batches_changes_nothing(ratio: Any, weighting: Any, normalize: bool) -> None:
    ppo = PPOConfig(ratio=ratio, weighting=weighting, normalize_advantages=normalize)
    before = make_net(cannon())
    rollout = play(before, cannon)
    # the policy has moved since, so that clipping, KL and the value's clipping are at work
    moved = copy.deepcopy(before)
    learn(moved, rollout, random_advantages(rollout), max_grad_norm=0.2)

    results = []
    for size in (None, 1, 7, 24):
        net = copy.deepcopy(moved)
        stats = learn(net, rollout, random_advantages(rollout), ppo, micro_batch_size=size)
        results.append((changes(net, moved), torch.tensor(list(stats.values()))))
    gradient, stats = results[0]
    assert gradient.abs().max() > 0.01 and (stats != 0).all()  # it has moved, and does clip
    for other_gradient, other_stats in results[1:]:
        torch.testing.assert_close(other_gradient, gradient, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(other_stats, stats, atol=1e-6, rtol=1e-5)


def test_frames_in_which_nobody_acts_do_not_change_how_advantages_are_normalized() -> None:
    before = make_net(numbered(1))
    rollout = play(before, lambda: numbered(20), num_envs=1, steps=10)  # odd frames have an actor
    given = random_advantages(rollout)
    far_off = given.advantages.clone()
    far_off[::2] += 1000.0
    plain, other = copy.deepcopy(before), copy.deepcopy(before)
    ppo = PPOConfig(vf_coef=0.0)
    learn(plain, rollout, given, ppo, max_grad_norm=0.1)
    learn(other, rollout, Advantages(far_off, given.returns), ppo, max_grad_norm=0.1)
    assert changes(plain, before).abs().max() > 0
    torch.testing.assert_close(changes(other, before), changes(plain, before))


# --- Minibatches ---


class Spy:
    """Notes the items of every batch that is evaluated."""

    def __init__(self, net: RogueNet, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[list[float]] = []
        evaluate = net.evaluate

        def note(batch: ObsBatch, actions: Mapping[str, RaggedTensor], *state: None) -> Evaluation:
            self.batches.append(batch.features["Item"].values.flatten().tolist())
            return evaluate(batch, actions, *state)

        monkeypatch.setattr(net, "evaluate", note)


def numbered(length: int) -> Scripted:
    return Scripted([Moment(items=[float(i)], actors=i % 2) for i in range(length)])


def test_every_epoch_takes_every_frame_once_in_a_new_order_in_minibatches_of_nearly_equal_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = make_net(numbered(1))
    rollout = play(net, lambda: numbered(20), num_envs=1, steps=10)
    spy = Spy(net, monkeypatch)
    learn(net, rollout, random_advantages(rollout), epochs=2, batch_size=4, max_grad_norm=0.01)
    # 10 frames in minibatches of at most 4 are three
    assert [len(batch) for batch in spy.batches] == [4, 3, 3] * 2
    first, second = sum(spy.batches[:3], []), sum(spy.batches[3:], [])
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_parts_of_samples_hold_what_gathering_their_frames_would() -> None:
    net = make_net(cannon())
    rollout = play(net, cannon, num_envs=4, steps=6)
    flat = torch.arange(24.0)
    samples = replace(Samples.of(rollout, Advantages(flat + 100, flat + 200)), values=flat)
    sizes = [5, 0, 1, 18]
    parts = samples.split(sizes)
    assert len(parts) == 4
    start = 0
    for part, size in zip(parts, sizes, strict=True):
        gathered = samples.gather(torch.arange(start, start + size))
        start += size
        assert len(part.obs) == len(gathered.obs) == size
        assert_same_frames(part, gathered)
    assert parts[3].num_actors.tolist() == samples.num_actors[6:].tolist()
    by_action = [action.sequences for action in samples.actions.values()]
    assert weighted(samples).frames_of_actors.tolist() == torch.cat(by_action).tolist()


def test_a_minibatch_in_which_nobody_acts_trains_the_value_alone() -> None:
    net = make_net(numbered(1))
    nobody = Scripted([Moment(items=[1.0]), Moment(items=[2.0])])
    rollout = play(net, lambda: nobody, num_envs=1, steps=2)
    stats = learn(net, rollout, random_advantages(rollout), PPOConfig(clip_value=False), max_grad_norm=0.01)
    assert all(map(math.isfinite, stats.values()))
    assert [stats[name] for name in ("policy_loss", "entropy", "approx_kl", "clip_fraction")] == [0.0] * 4
    assert stats["value_loss"] > 0 and stats["grad_norm"] > 0


# --- What it does ---


def test_the_first_minibatch_of_an_update_finds_the_policy_unmoved() -> None:
    net = make_net(cannon())
    rollout = play(net, cannon)
    entropies = net.evaluate(rollout.frames.obs, rollout.frames.actions).entropies
    expected = torch.cat([ragged.values for ragged in entropies.values()]).mean().item()
    errors = random_advantages(rollout)
    stats = learn(net, rollout, errors)
    assert stats["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert stats["clip_fraction"] == 0.0
    assert stats["entropy"] == pytest.approx(expected, rel=1e-4)
    assert stats["value_loss"] == pytest.approx(0.5 * errors.advantages.square().mean().item(), rel=1e-4)


def test_the_gradient_is_clipped_and_its_norm_reported_as_it_was() -> None:
    before = make_net(Copycat())
    rollout = play(before, Copycat)
    clipped, free = copy.deepcopy(before), copy.deepcopy(before)
    stats = learn(clipped, rollout, random_advantages(rollout), max_grad_norm=0.01)
    learn(free, rollout, random_advantages(rollout))
    assert changes(clipped, before).norm().item() == pytest.approx(0.01, rel=1e-3)
    assert changes(free, before).norm().item() == pytest.approx(stats["grad_norm"], rel=1e-3)


# --- Ranks ---


@pytest.mark.parametrize("weighting", ["actor", "frame"])
def test_weights_and_normalized_advantages_are_those_of_the_minibatches_of_both_ranks(weighting: Any) -> None:
    net = make_net(numbered(1))
    # minibatches of 3, 2 and 2 frames of each rank; nobody acts in the second one
    order, sizes = torch.tensor([3, 0, 5, 2, 4, 6, 1]), [3, 2, 2]
    scripts = [
        [Moment(items=[1.0, 2.0], actors=count) for count in counts]
        for counts in ([1, 2, 0, 0, 0, 1, 2, 0], [0, 2, 0, 0, 0, 1, 2, 0])
    ]
    whole = [play(net, partial(Scripted, script), num_envs=1, steps=7) for script in scripts]
    both = [Samples.of(rollout, random_advantages(rollout)) for rollout in whole]
    settings = PPOSettings.at(PPOConfig(weighting=weighting))
    found = on_two(lambda ranks: weigh(both[ranks.rank], [order, order.flip(0)], sizes, settings, ranks))
    for epoch, numbers in enumerate((order, order.flip(0))):
        parts = [{name: each.split(sizes) for name, each in of_rank[epoch].items()} for of_rank in found]
        for minibatch, frames in enumerate(numbers.split(sizes)):
            expected = Samples.cat([samples.gather(frames) for samples in both]).weighed(settings)
            for name in ("advantages", "weights", "frame_weights"):
                column = torch.cat([of_rank[name][minibatch] for of_rank in parts])
                torch.testing.assert_close(column, getattr(expected, name))


def test_ranks_send_one_message_for_each_minibatch_and_two_for_each_update() -> None:
    before = make_net(numbered(1))
    rollout = play(before, lambda: numbered(20), num_envs=1, steps=10)

    def learn_on(ranks: InThread) -> tuple[Tensor, list[str]]:
        net = copy.deepcopy(before)
        samples, optimizer = Samples.of(rollout, random_advantages(rollout)), torch.optim.SGD(net.parameters(), lr=0.1)
        optim, generator = OptimConfig(batch_size=8, epochs=2), torch.Generator().manual_seed(ranks.rank)
        update(net, optimizer, samples, optim, PPOSettings.at(PPOConfig()), generator=generator, ranks=ranks)
        return changes(net, before), ranks.calls

    (one, calls), (other, _) = on_two(learn_on)
    assert calls == ["gather", *["sum"] * 6, "gather"]
    assert torch.equal(one, other) and one.abs().max() > 0
