"""Learning from what older parameters have played. Golden numbers are computed by hand from the paper's equation 1."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import enn_ppo.ppo
import enn_ppo.training.learning.vtrace
from enn_ppo import EnvConfig, OptimConfig, PPOConfig, RogueNetConfig, RolloutConfig, TrainConfig
from enn_ppo.ppo import Advantages, Samples, gae, sequences_of
from enn_ppo.rollout import Rollout
from enn_ppo.settings.learning import PPOSettings
from enn_ppo.training.build import make_learner, make_model, make_pools
from enn_ppo.training.environment import bind_environment
from enn_ppo.training.frames import Frames
from enn_ppo.training.learning.learner import Learner, UpdateSettings
from enn_ppo.training.learning.vtrace import joint_log_ratios, recompute_log_probs, vtrace
from rogue_net import RaggedTensor
from rogue_net.batch.ragged import offsets_of
from tests.enn_ppo.rollouts import OnePolicySampler

NO = torch.zeros(3, 1, dtype=torch.bool)
ZERO = torch.zeros(3, 1)
REWARDS, VALUES, LAST = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[0.0], [10.0], [20.0]]), torch.tensor([8.0])


def at(step: int) -> Tensor:
    flags = NO.clone()
    flags[step] = True
    return flags


def run(
    ratios: list[float], *, terminated: Tensor = NO, truncated: Tensor = NO, final: Tensor = ZERO, **options: Any
) -> Advantages:
    log_ratios = torch.tensor(ratios).log().unsqueeze(1)
    options = {"gamma": 0.5, "gae_lambda": 1.0} | options
    return vtrace(REWARDS, VALUES, terminated, truncated, final, LAST, log_ratios, **options)


def listed(advantages: Advantages) -> list[float]:
    return advantages.advantages.flatten().tolist()


# --- The equation ---
# With γ = 1/2 the one-step errors of the rollout above are 1 + 10/2 - 0 = 6, 2 + 20/2 - 10 = 2 and 4 + 8/2 - 20 = -12.


def test_ratios_above_one_count_as_one() -> None:
    # ρ is 1/2, 1 and 1/4: -12/4 = -3, then 2 - 3/2 = 1/2, then (6 + 1/4)/2 = 25/8
    assert listed(run([0.5, 2.0, 0.25])) == pytest.approx([3.125, 0.5, -3])


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="step 1 of environment 0 is both"):
        run([1.0, 1.0, 1.0], terminated=at(1), truncated=at(1))
    with pytest.raises(ValueError, match=r"log_ratios has shape \(2, 1\), rewards \(3, 1\)"):
        run([1.0, 1.0])


# --- Properties ---


@st.composite
def played(draw: st.DrawFn) -> dict[str, Tensor]:
    """Any rollout of up to 6 steps of up to 3 environments."""
    steps, envs = draw(st.integers(1, 6)), draw(st.integers(1, 3))

    def numbers(*shape: int, low: float = -8.0, high: float = 8.0) -> Tensor:
        size = math.prod(shape)
        values = draw(st.lists(st.floats(low, high, width=32), min_size=size, max_size=size))
        return torch.tensor(values, dtype=torch.float32).view(shape)

    ends = draw(
        st.lists(st.sampled_from(["", "", "terminated", "truncated"]), min_size=steps * envs, max_size=steps * envs)
    )
    return {
        "rewards": numbers(steps, envs),
        "values": numbers(steps, envs),
        **{kind: torch.tensor([end == kind for end in ends]).view(steps, envs) for kind in ("terminated", "truncated")},
        "final_values": numbers(steps, envs),
        "last_values": numbers(envs),
        "log_ratios": numbers(steps, envs, low=-3, high=3),
    }  # fmt: skip


@given(played(), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_without_any_change_of_the_policy_it_is_gae_to_the_last_bit(
    rollout: dict[str, Tensor], gamma: float, gae_lambda: float
) -> None:
    log_ratios = torch.zeros_like(rollout.pop("log_ratios"))
    expected = gae(*rollout.values(), gamma=gamma, gae_lambda=gae_lambda)
    found = vtrace(*rollout.values(), log_ratios, gamma=gamma, gae_lambda=gae_lambda)
    assert torch.equal(found.advantages, expected.advantages) and torch.equal(found.returns, expected.returns)


def as_written(rollout: dict[str, Tensor], step: int, env: int, gamma: float, decay: float) -> float:
    """v_s - V_s as the paper's equation 1 has it: a sum of products, without recursion."""
    column = {name: values[..., env].double().tolist() for name, values in rollout.items()}
    total, weight = 0.0, 1.0
    for t in range(step, len(column["rewards"])):
        following = column["values"][t + 1] if t + 1 < len(column["rewards"]) else column["last_values"]
        if column["terminated"][t]:
            following = 0.0
        if column["truncated"][t]:
            following = column["final_values"][t]
        ratio = min(1.0, math.exp(column["log_ratios"][t]))
        total += weight * ratio * (column["rewards"][t] + gamma * following - column["values"][t])
        weight *= gamma * decay * ratio
        if column["terminated"][t] or column["truncated"][t]:
            break
    return total


@given(played(), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_the_recursion_is_the_sum_of_the_paper(rollout: dict[str, Tensor], gamma: float, gae_lambda: float) -> None:
    found = vtrace(*rollout.values(), gamma=gamma, gae_lambda=gae_lambda).advantages
    for step, env in itertools.product(*map(range, found.shape)):
        expected = as_written(rollout, step, env, gamma, gae_lambda)
        assert float(found[step, env]) == pytest.approx(expected, rel=1e-4, abs=1e-4)


# --- Rollouts that the parameters of now have not played ---

CPU = torch.device("cpu")


def stale_config(world: str = "MoveToOrigin", **changes: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "env": EnvConfig(id=world),
        "rollout": RolloutConfig(num_envs=6, steps=8),
        "net": RogueNetConfig(d_model=16, n_layer=1, n_head=2),
        "optim": OptimConfig(batch_size=24, epochs=2),
    }
    return TrainConfig(**(given | changes))


def learner_and_rollout(config: TrainConfig) -> tuple[Learner, Rollout]:
    """A learner, and what its policy has played."""
    pools = make_pools(bind_environment(config.env), config.rollout, config.seed)
    model = make_model(config.net, config.value_net, (pools[0].obs_space(), pools[0].action_space()), config.seed)
    learner = make_learner(model, config.optim, config.ppo, seed=config.seed)
    sampler = OnePolicySampler(pools, learner.model, CPU, config.seed)
    sampler.reset(config.seed, {})
    learner.measure(sampler.collect(config.rollout.steps).frames.obs)
    rollout = sampler.collect(config.rollout.steps)
    sampler.close()
    return learner, rollout


def change(learner: Learner, size: float = 0.3) -> None:
    """Give the policy other parameters."""
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=noise)


def update_settings(config: TrainConfig) -> UpdateSettings:
    return UpdateSettings(0, PPOSettings.at(config.ppo), 1e-3)


def test_log_ratios_add_up_over_all_actors_and_actions_of_a_frame() -> None:
    def ragged(values: list[float], lengths: list[int]) -> RaggedTensor:
        return RaggedTensor(torch.tensor(values), offsets_of(torch.tensor(lengths)))

    now = {"move": ragged([-1.0, -2.0, -3.0], [2, 0, 1]), "fire": ragged([-0.5], [1, 0, 0])}
    before = {"move": ragged([-1.5, -2.25, -2.0], [2, 0, 1]), "fire": ragged([-1.0], [1, 0, 0])}
    assert joint_log_ratios(now, before).tolist() == [0.5 + 0.25 + 0.5, 0.0, -1.0]


def test_what_is_judged_again_is_what_the_parameters_of_now_say_of_it() -> None:
    learner, rollout = learner_and_rollout(stale_config("MineSweeper"))
    change(learner)
    judged, log_ratios = recompute_log_probs(
        learner.model, rollout, sequences_of(len(rollout.frames), rollout.num_envs, 1)
    )
    evaluation = learner.model.evaluate(rollout.frames.obs, rollout.frames.actions)
    torch.testing.assert_close(judged.by_step("values").flatten(), evaluation.values)
    for name, ragged in judged.frames.log_probs.items():
        torch.testing.assert_close(ragged.values, evaluation.log_probs[name].values)
        assert torch.equal(ragged.offsets, rollout.frames.log_probs[name].offsets)
    assert float(log_ratios.abs().max()) > 0.1
    assert judged.last_values is rollout.last_values and judged.stats is rollout.stats
    changed = {"log_probs", "values"}
    for field in dataclasses.fields(Frames):
        same = getattr(judged.frames, field.name) is getattr(rollout.frames, field.name)
        assert same == (field.name not in changed)


def test_stale_rollouts_are_judged_again_and_corrected_before_they_are_learned_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = RogueNetConfig(d_model=16, n_layer=1, n_head=2, backend="reference")  # which learns from `Samples`
    config = stale_config("MineSweeper", ppo=PPOConfig(gamma=0.9, gae_lambda=0.7), net=net)
    learner, rollout = learner_and_rollout(config)
    change(learner)
    now, log_ratios = recompute_log_probs(
        learner.model, rollout, sequences_of(len(rollout.frames), rollout.num_envs, 1)
    )
    seen: list[Samples] = []

    def watched(model: Any, optimizer: Any, samples: Samples, *args: Any, **kwargs: Any) -> Any:
        seen.append(samples)
        return enn_ppo.ppo.update(model, optimizer, samples, *args, **kwargs)

    monkeypatch.setattr("enn_ppo.training.learning.learner.update", watched)
    learned = learner.learn(rollout, update_settings(config), stale=True)
    (samples,) = seen
    columns = map(now.by_step, ("rewards", "values", "terminated", "truncated", "final_values"))
    expected = vtrace(*columns, now.last_values, log_ratios, gamma=0.9, gae_lambda=0.7)
    assert torch.equal(samples.advantages, expected.advantages.flatten())
    assert torch.equal(samples.returns, expected.returns.flatten())
    assert torch.equal(samples.values, now.frames.values)
    assert all(torch.equal(samples.log_probs[name].values, each.values) for name, each in now.frames.log_probs.items())
    assert learned.played.num_frames == 48
