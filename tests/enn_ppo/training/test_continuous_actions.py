"""Continuous actions from rollouts to learning, evaluation, playing and checkpoints, alone and beside categorical ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo import OptimConfig, PPOConfig, RogueNetConfig, RolloutConfig, TrainConfig
from entity_gym import (
    Action,
    ActionMask,
    ActionSpace,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousAction,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
)
from entity_gym.pools.pool import ListEnv
from rogue_net import RogueNet
from tests.enn_ppo.rollouts import Collector


class Echo(Environment):
    """One to three microphones hear a number in (-0.8, 0.8). Each is to say it: the reward is 1 less the mean error. One step.

    A policy that says 0 expects 0.6, and one that has not learned about 0.35.
    """

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Microphone": Entity(["number"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"Say": ContinuousActionSpace([-1], [1])}

    def reset(self) -> Observation:
        self.numbers = self.rng.uniform(-0.8, 0.8, size=self.rng.integers(1, 4))
        return self._observation()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        return self._observation(reward=1 - self.error(actions), done=True)

    def error(self, actions: Mapping[str, Action]) -> float:
        say = actions["Say"]
        assert isinstance(say, ContinuousAction)
        assert list(say.actors) == list(range(len(self.numbers)))
        return float(np.abs(say.values[:, 0] - self.numbers).mean())

    def offers(self) -> dict[str, ActionMask]:
        return {"Say": ContinuousActionMask()}

    def state(self) -> dict[str, Any]:
        return {"numbers": self.numbers, "rng": self.rng.bit_generator.state}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.numbers = state["numbers"]
        self.rng.bit_generator.state = state["rng"]

    def _observation(self, reward: float = 0.0, done: bool = False) -> Observation:
        return Observation(
            features={"Microphone": self.numbers[:, None]},
            ids={"Microphone": range(len(self.numbers))},
            actions=self.offers(),
            reward=reward,
            done=done,
        )


class EchoAndJudge(Echo):
    """Each microphone also says whether its number is positive; half of the reward is for that, and chance 0.5 of it."""

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {**super().action_space(), "Judge": CategoricalActionSpace(["negative", "positive"])}

    def offers(self) -> dict[str, ActionMask]:
        return {**super().offers(), "Judge": CategoricalActionMask()}

    def error(self, actions: Mapping[str, Action]) -> float:
        judge = actions["Judge"]
        assert isinstance(judge, CategoricalAction)
        wrong = np.mean(judge.actions != (self.numbers > 0))
        return float(super().error(actions) + wrong) / 2


def config_for(run_dir: Path, **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "rollout": RolloutConfig(num_envs=32, steps=8),
        "net": RogueNetConfig(d_model=16, n_layer=0, backend="reference"),
        "optim": OptimConfig(batch_size=128, lr="2e-2@0 -> 0@1"),
        "ppo": PPOConfig(ent_coef=0.0),
        "total_timesteps": 512,
        "device": "cpu",
        "run_dir": str(run_dir),
    }
    return TrainConfig(**(settings | changes))


def test_a_rollout_stores_what_was_played_and_evaluates_it_as_it_was() -> None:
    torch.manual_seed(0)
    env = ListEnv(EchoAndJudge, 5, seed=0)
    net = RogueNet(RogueNetConfig(backend="reference"), env.obs_space(), env.action_space())
    collector = Collector(env, net, torch.device("cpu"), 0)
    collector.reset(0)
    rollout = collector.collect(6)
    say, judge = rollout.frames.actions["Say"], rollout.frames.actions["Judge"]
    assert say.values.dtype == torch.float32
    assert say.values.shape == judge.values.shape == (len(rollout.frames.obs.action_masks["Say"].actors.values), 1)
    heard = rollout.frames.obs.features["Microphone"].values
    wrong = (judge.values != (heard > 0).long()).float()
    errors = ((say.values - heard).abs() + wrong)[:, 0] / 2
    for frame, reward in enumerate(
        rollout.by_step("rewards").flatten().tolist()
    ):  # the rewards are those of the stored actions
        of_frame = slice(int(say.offsets[frame]), int(say.offsets[frame + 1]))
        assert reward == pytest.approx(1 - float(errors[of_frame].mean()), abs=1e-5)
    evaluation = net.evaluate(rollout.frames.obs, rollout.frames.actions)
    for name in rollout.frames.actions:
        torch.testing.assert_close(
            evaluation.log_probs[name].values, rollout.frames.log_probs[name].values, atol=1e-5, rtol=0
        )
