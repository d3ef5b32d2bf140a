"""Each setting of learning, switched on in a tiny run: what is different then, in numbers worked out by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from enn_ppo import OptimConfig, PPOConfig, RogueNetConfig, RolloutConfig, TrainConfig, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.settings.config import EnvConfig
from enn_ppo.settings.learning import PPOSettings
from enn_ppo.training.callbacks import Callback, Update
from enn_ppo.training.environment import bind_environment
from enn_ppo.training.start import make_state
from enn_ppo.training.state import TrainState
from enn_ppo.training.tracking.symptoms import PAGE
from entity_gym import Environment, Observation
from tests.enn_ppo.rows import rows_of
from tests.enn_ppo.worlds import Copycat, Moment, Scripted, tiny_config

CPU = torch.device("cpu")
ONE_STEP = OptimConfig(batch_size=32, epochs=1, lr=0.002)  # one optimizer step in each update of 32 frames
CONSTANT = PPOConfig(ent_coef=0.05)


def tiny(run_dir: Path | str, **changes: Any) -> TrainConfig:
    """Five updates of 32 frames, in a world without arguments."""
    return tiny_config(run_dir, **({"env": EnvConfig()} | changes))


def run(config: TrainConfig, env: Callable[[], Environment] = Copycat, *callbacks: Callback) -> list[dict[str, Any]]:
    """Train, and return the rows of metrics."""
    train(config, env, callbacks)
    return rows_of(Path(str(config.run_dir)))


def column(rows: list[dict[str, Any]], name: str) -> Any:
    return pytest.approx([row[name] for row in rows])


def state_of(config: TrainConfig, env: Callable[[], Environment] = Copycat) -> TrainState:
    """A run that is about to begin."""
    state = make_state(config, bind_environment(config.env, env), CPU)
    state.start()
    return state


def learn(state: TrainState, updates: int = 1) -> None:
    """The algorithm, without what is around it."""
    for _ in range(updates):
        settings = state.begin_update()
        state.advance(state.learn(state.sampler.collect(state.step, state.next_steps(), state.env_info), settings), 1.0)


def weights(module: torch.nn.Module | None) -> Tensor:
    assert module is not None
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def learned(config: TrainConfig, env: Callable[[], Environment] = Copycat, updates: int = 1) -> TrainState:
    state = state_of(config, env)
    learn(state, updates)
    return state


# --- Learning rate: annealing, schedules, the wall clock ---


def test_a_schedule_is_followed_over_the_environment_steps(tmp_path: Path) -> None:
    optim = OptimConfig(batch_size=16, epochs=1, lr="0.002@0 -> 0.001@0.5 step 0@0.8")  # 0 is allowed on the way
    ppo = PPOConfig(ent_coef="0@0.2 -> 0.03@0.8")
    rows = run(tiny(tmp_path / "a", optim=optim, ppo=ppo))
    assert column(rows, "learning_rate") == [0.002, 0.0016, 0.0012, 0.001, 0]
    assert column(rows, "entropy_coefficient") == [0, 0, 0.01, 0.02, 0.03]


def test_every_setting_of_the_loss_that_may_be_scheduled_is_a_number_in_each_update() -> None:
    ppo = PPOConfig(
        gamma="0.9@0 -> 1@1", gae_lambda="0@0 step 1@0.2", clip="0.1@0 -> 0.2@1", vf_coef="1@0 -> 0@1", ent_coef=0.01
    )
    state = state_of(tiny("unused", ppo=ppo))
    state.step = 80
    now = state.begin_update().ppo
    assert [now.gamma, now.gae_lambda, now.clip, now.vf_coef, now.ent_coef] == pytest.approx([0.95, 1, 0.15, 0.5, 0.01])


class Clock:
    """Goes on by a second whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def a_second_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer looks at the clock at the beginning and at the end of an update."""
    monkeypatch.setattr(sys.modules["enn_ppo.train"], "time", Clock())


@pytest.mark.usefixtures("a_second_an_update")
def test_training_ends_with_its_seconds_and_annealing_follows_the_clock_where_that_is_nearer(tmp_path: Path) -> None:
    optim = OptimConfig(batch_size=16, epochs=1, lr="0.004@0 -> 0@1")
    rows = run(tiny(tmp_path / "a", optim=optim, total_timesteps=10**6, max_train_seconds=4.0))
    assert column(rows, "seconds") == [1, 2, 3, 4]
    # the share of the steps that is done, 32 of a million, is always behind that of the seconds
    assert column(rows, "learning_rate") == [0.004, 0.003, 0.002, 0.001]
    assert load_checkpoint(tmp_path / "a").step == 4 * 32


def test_an_update_has_as_many_epochs_as_asked_for_or_as_the_divergence_allows(tmp_path: Path) -> None:
    def epochs(name: str, target_kl: float | None) -> list[int]:
        optim = OptimConfig(batch_size=8, epochs=6, lr=0.01)
        rows = run(tiny(tmp_path / name, optim=optim, ppo=PPOConfig(target_kl=target_kl), total_timesteps=96))
        return [row["epochs"] for row in rows]

    assert epochs("without", None) == [6, 6, 6]
    assert epochs("loose", 100.0) == [6, 6, 6]
    assert epochs("strict", 1e-9) == [1, 1, 1]
    between = epochs("between", 0.02)
    assert any(1 < each < 6 for each in between), between


# --- Returns ---


class Doubling(Scripted):
    """Episodes of four steps, with the rewards 1, 2, 4 and 8."""

    def __init__(self) -> None:
        moments = [Moment(items=[reward], actors=1, reward=reward) for reward in (0.0, 1.0, 2.0, 4.0)]
        super().__init__([*moments, Moment(items=[8.0], actors=1, reward=8.0, end="terminated")])

    def reset(self) -> Observation:
        self.now = -1
        return super().reset()


def estimated(ppo: PPOConfig) -> list[float]:
    """Returns of an episode of `Doubling`, where the values of its frames were 10, 20, 30, 40 and of the next one 50."""
    config = tiny("unused", rollout=RolloutConfig(num_envs=1, steps=4), optim=OptimConfig(batch_size=4), ppo=ppo)
    state = state_of(config, Doubling)
    state.begin_update()
    rollout = state.sampler.collect(state.step, 4, state.env_info)[""]
    assert rollout.by_step("rewards").flatten().tolist() == [1, 2, 4, 8]
    assert rollout.by_step("terminated").flatten().tolist() == [False, False, False, True]
    frames = replace(rollout.frames, values=torch.tensor([10.0, 20.0, 30.0, 40.0]))
    rollout = replace(rollout, frames=frames, last_values=torch.tensor([50.0]))
    return state.learner.estimate_advantages(rollout, PPOSettings.at(ppo)).returns.flatten().tolist()


@pytest.mark.parametrize(
    ("ppo", "returns"),
    [
        # gamma 0.5: a reward and half of the next value
        (PPOConfig(gamma=0.5, gae_lambda=0.0), [1 + 10, 2 + 15, 4 + 20, 8]),
        # rewards to the end of the episode
        (PPOConfig(gamma=0.5, gae_lambda=1.0), [4, 6, 8, 8]),
        # halfway between one step and what the next return is: δ = 1, -3, -6, -32 and A_t = δ_t + A_{t+1} / 4
        (PPOConfig(gamma=0.5, gae_lambda=0.5), [10 + 1 - 3 / 4 - 6 / 16 - 32 / 64, 20 - 3 - 6 / 4 - 32 / 16, 30 - 6 - 8, 8]),
        (PPOConfig(gamma=0.0), [1, 2, 4, 8]),
    ],
)  # fmt: skip
def test_returns_are_those_that_the_settings_describe(ppo: PPOConfig, returns: list[float]) -> None:
    assert estimated(ppo) == pytest.approx(returns)


# --- Normalization of rewards, returns and features ---


class Rich(Copycat):
    """Copycat whose rewards are `gain` times as large."""

    def __init__(self, gain: float = 1.0, floor: float = 0.0) -> None:
        self.gain, self.floor = gain, floor

    def act(self, actions: Mapping[str, Any]) -> Any:
        obs = super().act(actions)
        obs.reward = self.gain * obs.reward + self.floor
        return obs


def rich(ppo: PPOConfig, **kwargs: float) -> TrainState:
    """After two updates."""
    return learned(tiny("unused", ppo=ppo), lambda: Rich(**kwargs), updates=2)


def test_with_returns_normalized_values_are_right_from_the_first_update_on() -> None:
    state = rich(PPOConfig(normalize="returns", gamma=0.0), gain=300.0, floor=5000.0)
    values = state.sampler.collect(state.step, 8, {})[""].by_step(
        "values"
    )  # rewards are 5,000 to 5,300, and episodes one step
    assert 4900 < values.min() and values.max() < 5400
    assert float(state.learner.model.value_head.mean) == pytest.approx(5100, abs=60)
    without = rich(PPOConfig(gamma=0.0), gain=300.0, floor=5000.0)
    assert without.sampler.collect(without.step, 8, {})[""].by_step("values").max() < 100


class Statistics(Callback):
    """How many items the policy's input statistics have seen, after each update."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_update(self, update: Update) -> None:
        self.counts.append(sum(int(v) for k, v in update.policy.state_dict().items() if k.endswith("count")))


def test_the_input_statistics_grow_by_a_rollout_that_is_not_learned_from_and_by_every_update(tmp_path: Path) -> None:
    statistics = Statistics()
    config = tiny(tmp_path / "a")
    first = sum(int(v) for k, v in state_of(config).learner.model.policy.state_dict().items() if k.endswith("count"))
    run(config, Copycat, statistics)
    assert first >= 32
    assert (np.diff([first, *statistics.counts]) > 0).all()


@pytest.mark.parametrize(("offset", "told"), [(1e7, 0), (-1.7e9, 1)])
def test_features_that_float32_cannot_tell_apart_are_told_once(
    offset: float, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    learned(tiny("unused"), lambda: Scripted([Moment(items=[offset + i], actors=1) for i in range(8)]), updates=2)
    said = [record.getMessage() for record in caplog.records if "2^24" in record.getMessage()]
    advice = "from which on float32 cannot tell x from x + 1: subtract an offset"
    assert said == [f"features of Item exceed 2^24, {advice}: {PAGE}"] * told


# --- A network of its own for the value ---


SMALL = RogueNetConfig(d_model=8, n_layer=0, n_head=1)


def apart(value_net: RogueNetConfig = SMALL, **changes: Any) -> TrainConfig:
    return tiny("unused", **({"value_net": value_net, "optim": ONE_STEP, "ppo": CONSTANT} | changes))


def test_a_value_network_has_its_own_settings_and_the_policy_starts_as_it_would_without() -> None:
    state = state_of(apart(RogueNetConfig(d_model=24, n_layer=2, n_head=3)))
    assert state.learner.model.value_net is not None
    assert (state.learner.model.value_net.config.d_model, state.learner.model.value_net.config.n_layer) == (24, 2)
    assert state.learner.model.policy.config.d_model == 16
    assert torch.equal(weights(state.learner.model.policy), weights(state_of(tiny("unused")).learner.model.policy))


def test_with_a_network_for_the_value_its_loss_does_not_touch_the_policy() -> None:
    def both(vf_coef: float, config: TrainConfig) -> TrainState:
        return learned(replace(config, ppo=replace(CONSTANT, vf_coef=vf_coef)))

    together = tiny("unused", optim=ONE_STEP)
    assert torch.equal(
        weights(both(0.5, apart()).learner.model.policy), weights(both(5.0, apart()).learner.model.policy)
    )
    assert not torch.equal(
        weights(both(0.5, together).learner.model.policy), weights(both(5.0, together).learner.model.policy)
    )
