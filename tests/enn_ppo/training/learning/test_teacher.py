"""Staying close to a teacher: the divergence by hand, its gradient, and runs with one."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from enn_ppo import EnvConfig, OptimConfig, PPOConfig, train
from enn_ppo.ppo import Advantages, Samples, learn_minibatch, ppo_loss
from enn_ppo.settings.learning import PPOSettings
from enn_ppo.training.learning.teacher import Teacher, TeacherLoss
from entity_gym import ContinuousActionSpace, Environment
from rogue_net import RogueNet
from rogue_net.heads.distributions import Categorical
from rogue_net.heads.gaussian import BoundedGaussian, Bounds
from tests.enn_ppo.recordings import Menagerie, collector_of, net_for
from tests.enn_ppo.worlds import Copycat, tiny_config

NEVER = float("-inf")
SETTINGS = PPOSettings.at(PPOConfig(teacher="out/a", teacher_kl=2.0, ent_coef=0.0, normalize_advantages=False))


def samples_for(create: type[Environment], net: RogueNet, teacher: RogueNet) -> Samples:
    """Frames of the environment in which no action was better than another, with the logits of a teacher."""
    rollout = collector_of(create, 3, net=net).collect(6)
    nothing = Advantages(torch.zeros_like(rollout.by_step("values")), rollout.by_step("values"))
    return replace(Samples.of(rollout, nothing), teacher=Teacher(copy.deepcopy(teacher)).logits(rollout))


def term(policy: RogueNet, samples: Samples, settings: PPOSettings = SETTINGS) -> tuple[Tensor, Tensor]:
    """The term of the loss, and the divergence."""
    batch = samples.weighed(settings)
    value, stats = TeacherLoss()(policy.evaluate(batch.obs, batch.actions), batch, settings)
    return value.detach(), stats["teacher_kl"].detach()


def test_the_divergence_from_a_teacher_by_hand() -> None:
    policy, teacher = net_for(Copycat(), seed=1), net_for(Copycat(), seed=2)
    samples = samples_for(Copycat, policy, teacher)
    (name,) = samples.actions
    p, q = (net.evaluate(samples.obs, samples.actions).logits[name] for net in (teacher, policy))
    by_hand = (p.exp() * (p - q)).sum(1).mean()  # of an actor; every actor counts the same
    value, divergence = term(policy, samples)
    torch.testing.assert_close(divergence, by_hand)
    torch.testing.assert_close(value, 2 * by_hand)
    assert by_hand > 0.01


@pytest.mark.parametrize("ratio", ["per_actor", "joint"])
@pytest.mark.parametrize("weighting", ["actor", "frame"])
def test_a_policy_does_not_diverge_from_itself_whatever_the_kinds_of_actions(ratio: Any, weighting: Any) -> None:
    net = net_for(Menagerie())
    settings = replace(SETTINGS, ratio=ratio, weighting=weighting)
    assert abs(float(term(net, samples_for(Menagerie, net, net), settings)[1])) < 1e-5


def test_without_better_actions_the_policy_becomes_its_teacher() -> None:
    policy, teacher = net_for(Menagerie(), seed=1), net_for(Menagerie(), seed=2)
    samples = samples_for(Menagerie, policy, teacher)
    before = float(term(policy, samples)[1])
    loss = partial(ppo_loss, terms=[TeacherLoss()])
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    for _ in range(60):
        stats = learn_minibatch(policy, optimizer, samples.weighed(SETTINGS), OptimConfig(), SETTINGS, loss)
    after = float(term(policy, samples)[1])
    assert after < 0.2 * before
    assert float(stats["teacher_kl"]) == pytest.approx(after, rel=0.2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher": "nowhere"}, "ppo.teacher: no checkpoint nowhere.*ppo.teacher=null trains without"),
        ({"teacher": "{other}"}, "ppo.teacher=.*/other was trained in another environment: "),
    ],
)
def test_a_teacher_that_cannot_be_is_told(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    train(tiny_config(tmp_path / "other", env=EnvConfig(id="Count"), total_timesteps=32))
    changes = {name: value.format(other=tmp_path / "other") for name, value in changes.items()}
    with pytest.raises(ValueError, match=message):
        train(tiny_config(tmp_path / "a", ppo=PPOConfig(**changes)))


# --- The divergences


def logs(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities).log()


def test_what_was_never_done_counts_nothing_and_has_a_finite_gradient() -> None:
    recorded = torch.tensor([[log(0.5), log(0.5), NEVER]])
    for last in (NEVER, -200.0, log(0.2)):
        logits = torch.tensor([[0.3, 0.1, last]], requires_grad=True)
        clone = Categorical(logits, None)
        loss = clone.kl(recorded).sum()
        loss.backward()
        by_hand = sum(0.5 * (log(0.5) - clone.logits[0, c].item()) for c in range(2))
        assert loss.item() == pytest.approx(by_hand)
        assert bool(logits.grad.isfinite().all())  # type: ignore[union-attr]


def test_the_divergence_of_numbers() -> None:
    # two numbers: N(1, 1) from N(0, 4): log 2 + (1 + 1) / 8 - 1/2, and N(3, 1) from itself: 0
    recorded = torch.tensor([[1.0, 3.0, 0.0, 0.0]])
    bounds = Bounds(ContinuousActionSpace([-1, -1], [1, 1]))
    clone = BoundedGaussian(torch.tensor([[0.0, 3.0]]), torch.tensor([log(2), 0.0]), bounds)
    assert clone.kl(recorded).item() == pytest.approx(log(2) + 0.25 - 0.5)
