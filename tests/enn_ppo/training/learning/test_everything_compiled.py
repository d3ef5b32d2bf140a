"""Memory, chained actions and sets in one network: the compiled program acts and learns as the modules do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from enn_ppo.ppo import Samples, sequences_of, update
from enn_ppo.settings.learning import OptimConfig, PPOConfig, PPOSettings
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.learning.compiled import CompiledPPO
from enn_ppo.training.learning.optimizer import AdamW
from enn_ppo.training.policy_states import PolicyStates
from entity_gym import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntitiesActionMask,
    SelectEntitiesActionSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from rogue_net import ActResult, FrameKeys, ObsBatch, RogueNet, RogueNetConfig, keyed
from tests.enn_ppo.training.learning.test_compiled_learning import ppo_settings, samples_of
from tests.rogue_net.kernels.test_chained import as_modules
from tests.rogue_net.worlds import World, to_batch

#: Declared in another order than they are decided in: call, mode, pack, mark, aim, vote, follow, greet.
ACTIONS: dict[str, ActionSpace] = {
    "greet": CategoricalActionSpace(["no", "yes"], after=["aim", "mark"]),
    "follow": SelectEntitiesActionSpace(ordered=True, min=1, max=2, exclude_self=True, after=["mark", "vote"]),
    "vote": GlobalCategoricalActionSpace(["no", "yes"], after=["pack", "mark"]),
    "aim": SelectEntityActionSpace(nobody=True, after=["pack", "actors"]),
    "mark": SelectEntitiesActionSpace(after=["pack", "call"]),
    "pack": SelectEntitiesActionSpace(ordered=True, cost="weight", budget="room", after=["mode", "call"]),
    "mode": GlobalCategoricalActionSpace(["attack", "defend"]),
    "call": CategoricalActionSpace(["a", "b", "c"], after="actors"),
}
WORLD = World(
    ObsSpace({"Unit": Entity(["x", "room"]), "Item": Entity(["x", "weight"])}, global_features=["time"]), ACTIONS
)


def play(num_envs: int, num_steps: int, rng: np.random.Generator) -> tuple[list[ObsBatch], list[Tensor]]:
    """Steps of N environments, and of each (N,) bool, whether it is one of the episode of the step before.

    Units and items come and go; some actions are not on offer, and some pairs are closed.
    """
    steps, follows = [], []
    for step in range(num_steps):
        units, items = ([rng.permutation(6)[: rng.integers(5)].tolist() for _ in range(num_envs)] for _ in range(2))
        batch = to_batch([frame(rng, *each) for each in zip(units, items, strict=True)], WORLD)
        ids = {
            name: batch.features[name]._replace(values=torch.tensor(sum(each, []), dtype=torch.int64).view(-1, 1))
            for name, each in (("Unit", units), ("Item", items))
        }
        steps.append(replace(batch, ids=ids))
        follows.append(torch.from_numpy(rng.random(num_envs) < (0.8 if step else 0)))
    return steps, follows


def frame(rng: np.random.Generator, units: list[int], items: list[int]) -> Observation:
    actees = {"pack": ["Item"], "mark": ["Item", "Unit"], "follow": ["Unit"]}
    masks: dict[str, Any] = {
        **{name: CategoricalActionMask(actor_types=["Unit"]) for name in ("greet", "call")},
        **{name: GlobalCategoricalActionMask() for name in ("vote", "mode")},
        **{name: SelectEntitiesActionMask(actor_types=["Unit"], actee_types=each) for name, each in actees.items()},
        "aim": SelectEntityActionMask(actor_types=["Unit"], actee_types=["Item", "Unit"]),
    }
    if rng.random() < 0.5:
        masks["mark"] = replace(masks["mark"], mask=rng.random((len(units), len(items) + len(units))) < 0.7)
    return Observation(
        features={"Unit": rng.random((len(units), 2)), "Item": rng.random((len(items), 2))},
        ids={"Unit": [("unit", each) for each in units], "Item": [("item", each) for each in items]},
        global_features=rng.random(1),
        actions={name: mask for name, mask in masks.items() if rng.random() < 0.8},
    )


def net_of(memory: Any, seed: int) -> RogueNet:
    torch.manual_seed(seed)
    net = RogueNet(RogueNetConfig(d_model=16, d_qk=12, memory=memory, backend="fused"), WORLD.obs_space, ACTIONS)
    with torch.no_grad():  # with 0.2, sets are steep: float32 of modules and program is 1e-4 from float64
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return net.eval()


def acted(net: RogueNet, batch: ObsBatch, states: PolicyStates, begins: Tensor, step: int) -> tuple[ActResult, Any]:
    """Actions of a network in a step of N environments, and what it remembered before."""
    numbers = torch.arange(len(batch))
    before = states.recall(numbers.numpy(), begins.numpy())
    found = net.act(batch, before, generator=FrameKeys(keyed(step, numbers)))
    states.keep(numbers.numpy(), found.state)
    return found, before


def learned(model: ActorCritic, given: Samples, num_envs: int, ppo: PPOConfig) -> tuple[dict[str, Tensor], Any]:
    """The gradient of each parameter in an update of one minibatch, a tenth of which are Adam's first moments, and statistics."""
    optimizer = AdamW([{"params": list(model.policy.parameters())}], lr=0.0, weight_decay=0.0)
    optim, at = OptimConfig(batch_size=len(given), epochs=1, max_grad_norm=1e9), PPOSettings.at(ppo)
    sequences, options = sequences_of(len(given), num_envs, None), {"generator": torch.Generator().manual_seed(0)}
    if model.policy.program() is None:
        stats = update(model, optimizer, given, optim, at, sequences=sequences, **options)
    else:
        compiled = CompiledPPO(model, optimizer)
        learn = partial(compiled.learn, optim=optim, settings=at)
        with compiled.holding(given, num_envs) as frames:
            stats = update(model, optimizer, frames, optim, at, sequences=sequences, optimizer_step=learn, **options)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(each)]: state["exp_avg"] * 10 for each, state in optimizer.state.items()}, stats


#: In a joint ratio the rounding errors of all actors add up.
ppo_of_actors = ppo_settings.map(lambda each: replace(each, ratio="per_actor"))


@pytest.mark.parametrize("memory", ["entity", "both"])
@given(num_envs=st.integers(1, 3), num_steps=st.integers(1, 4), seed=st.integers(0, 2**20), ppo=ppo_of_actors)
@settings(max_examples=6, deadline=None)
def test_what_is_acted_and_an_update(memory: str, num_envs: int, num_steps: int, seed: int, ppo: PPOConfig) -> None:
    net, (steps, follows) = net_of(memory, seed % 4), play(num_envs, num_steps, np.random.default_rng(seed))
    reference, parts = as_modules(net), []
    rng, (states, expected_states) = torch.Generator().manual_seed(seed), (PolicyStates(), PolicyStates())
    for each, own in ((net, states), (reference, expected_states)):  # something is remembered before the first step
        acted(each, steps[0], own, torch.ones(num_envs, dtype=torch.bool), 0)
    for step, batch in enumerate(steps):
        begins = ~follows[step] if step else torch.zeros(num_envs, dtype=torch.bool)
        found, before = acted(net, batch, states, begins, step + 1)
        expected, _ = acted(reference, batch, expected_states, begins, step + 1)
        for name in ACTIONS:
            torch.testing.assert_close(found.actions[name], expected.actions[name], atol=0, rtol=0, msg=name)
        torch.testing.assert_close(found.log_probs, expected.log_probs, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.values, expected.values, atol=1e-5, rtol=1e-5)
        old = {
            name: each._replace(values=each.values + 0.2 * torch.randn(each.values.shape, generator=rng))
            for name, each in found.log_probs.items()
        }
        of_frames = torch.randn(3, num_envs, generator=rng)
        learned_from = {"advantages": of_frames[0], "returns": of_frames[1], "follows": follows[step], "state": before}
        parts.append(samples_of(batch, found.actions, old, found.values + of_frames[2], **learned_from))
    samples = Samples.cat(parts)
    exact, expected_stats = learned(ActorCritic(reference, None), samples, num_envs, ppo)
    gradients, stats = learned(ActorCritic(net, None), samples, num_envs, ppo)
    assert stats == pytest.approx(expected_stats, abs=1e-5, rel=1e-5, nan_ok=True)
    assert set(gradients) == set(exact)
    largest = max(1.0, *(float(each.abs().max()) for each in exact.values()))
    for name, gradient in exact.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-5 * largest, rtol=1e-5, msg=name)
