"""A run goes on in an environment that has gained something since, and says what is new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo import EnvConfig, EvalConfig, RogueNetConfig, TrainConfig, evaluate, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import load_net
from enn_ppo.eval.evaluate import EvalResult
from entity_gym import (
    Action,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
)
from tests.enn_ppo.worlds import CHOICES, Copycat, tiny_config


class More(Copycat):
    """Copycat whose lamps have a heat, beside which there are cats and a mood, and switches can be broken off."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Cat": Entity(["age"]), "Lamp": Entity(["heat", *CHOICES])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {
            "Mood": GlobalCategoricalActionSpace(["good", "bad"]),
            "Switch": CategoricalActionSpace(["break off", *CHOICES]),
        }

    def act(self, actions: Mapping[str, Action]) -> Observation:
        switch: Any = actions["Switch"]
        return super().act({"Switch": replace(switch, actions=np.asarray(switch.actions) - 1)})

    def _observation(self, reward: float = 0.0, done: bool = False) -> Observation:
        obs = super()._observation(reward, done)
        count = len(self.colours)
        lamps = np.concatenate([self.rng.normal(1000, 5, (count, 1)), np.eye(len(CHOICES))[self.colours]], axis=1)
        obs.features = {"Cat": [[3.0]], "Lamp": lamps}
        obs.actions = {
            "Mood": GlobalCategoricalActionMask(),
            "Switch": CategoricalActionMask(actor_types=["Lamp"], mask=np.tile([False, True, True, True], (count, 1))),
        }
        return obs


class OneMoreFeature(Copycat):
    """Copycat whose lamps have a heat that says nothing."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Lamp": Entity(["heat", *CHOICES])})

    def _observation(self, reward: float = 0.0, done: bool = False) -> Observation:
        obs = super()._observation(reward, done)
        heat = np.linspace(900, 1100, len(self.colours))[:, None]
        obs.features = {"Lamp": np.concatenate([heat, np.eye(len(CHOICES))[self.colours]], axis=1)}
        return obs


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    value_net = RogueNetConfig(d_model=8, n_layer=1, n_head=1)
    run_dir = tmp_path_factory.mktemp("runs") / "a"
    return tiny_config(run_dir, env=EnvConfig(), value_net=value_net, total_timesteps=160)


@pytest.fixture(scope="module")
def run_dir(config: TrainConfig) -> Path:
    train(config, env=Copycat)
    return Path(str(config.run_dir))


def going_on(config: TrainConfig, run_dir: Path, to: Path, steps: int) -> TrainConfig:
    return replace(config, resume=str(run_dir), run_dir=str(to), total_timesteps=steps)


def test_a_run_goes_on_with_a_feature_a_type_an_action_and_a_choice_more(
    config: TrainConfig, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train(going_on(config, run_dir, tmp_path / "b", 192), env=More)
    assert result.step == 192
    told = capsys.readouterr().out
    for line in (
        "entity type 'Cat' is new: untrained\n",
        "feature 'heat' of 'Lamp' is new: its weights are 0\n",
        "the whole frame is now an entity of its own: untrained\n",
        "action 'Mood' is new: untrained\n",
        "choice 'break off' of action 'Switch' is new: at first as likely as the others are on average\n",
        "the environments start new episodes",
    ):
        assert line in told
    assert result.metrics is not None and all(
        np.isfinite(result.metrics[name] or 0.0) for name in ("policy_loss", "grad_norm")
    )
    again = train(going_on(config, tmp_path / "b", tmp_path / "b", 224), env=More)  # now it is at home there
    assert again.step == 224 and "is new" not in capsys.readouterr().out


def test_before_it_learns_on_it_acts_as_before_and_what_is_new_is_measured(
    config: TrainConfig, run_dir: Path, tmp_path: Path
) -> None:
    train(going_on(config, run_dir, tmp_path / "b", 160), env=OneMoreFeature)  # nothing is left to train
    before, after = load_checkpoint(run_dir), load_checkpoint(tmp_path / "b")
    for network in ("policy", "value_net"):
        old, new = load_net(before, network), load_net(after, network)
        weight, known = (net.embedding.entities[0].project[0].weight for net in (new, old))
        assert torch.equal(weight[:, 1:], known) and (weight[:, 0] == 0).all()
        norm = new.embedding.entities[0].norm
        assert float(norm.mean[0]) == pytest.approx(1000, abs=60)
        assert 1 / float(norm.scale[0]) == pytest.approx(80, abs=40)
        assert torch.equal(norm.mean[1:], old.embedding.entities[0].norm.mean)


def evaluated(run_dir: Path, env: type[Copycat]) -> EvalResult:
    return evaluate(EvalConfig(checkpoint=str(run_dir), episodes=50, greedy=True), env=env)


def test_a_policy_is_evaluated_where_there_is_more_and_does_as_well(run_dir: Path) -> None:
    before = evaluated(run_dir, Copycat)
    one_more = evaluated(run_dir, OneMoreFeature)
    # the same lamps in another order of draws, so the score is the same up to chance
    assert one_more.estimates["episodic_reward"] == before.estimates["episodic_reward"]
    assert "feature 'heat' of 'Lamp' is new: its weights are 0" in one_more.notes[0]
    more = evaluated(run_dir, More)
    score = more.estimates["episodic_reward"]
    assert abs(score.mean - before.estimates["episodic_reward"].mean) < 4 * (score.ci95 or 1) / 1.96
    (told,) = more.notes
    assert "hidden from the others: 'Cat', '__global__'" in told and "action 'Mood' is new" in told


def test_a_value_network_may_join_later_and_is_measured_first(
    config: TrainConfig, run_dir: Path, tmp_path: Path
) -> None:
    train(replace(config, value_net=None, run_dir=str(tmp_path / "a"), total_timesteps=64), env=Copycat)
    train(going_on(config, tmp_path / "a", tmp_path / "b", 64), env=Copycat)
    norm = load_net(load_checkpoint(tmp_path / "b"), "value_net").embedding.entities[0].norm
    assert int(norm.count) > 0
    assert train(going_on(config, tmp_path / "b", tmp_path / "b", 96), env=Copycat).step == 96


def test_a_feature_that_is_gone_is_named(config: TrainConfig, run_dir: Path, tmp_path: Path) -> None:
    train(going_on(config, run_dir, tmp_path / "b", 192), env=OneMoreFeature)
    with pytest.raises(ValueError, match="does not fit .*Copycat: the feature 'heat' of 'Lamp' is gone"):
        train(going_on(config, tmp_path / "b", tmp_path / "c", 192), env=Copycat)
