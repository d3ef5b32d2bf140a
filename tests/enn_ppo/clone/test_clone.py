"""Cloning: what is learned, what is held out, and that its checkpoint is one like any other."""

from __future__ import annotations

import importlib
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from enn_ppo import (
    CloneConfig,
    CloningConfig,
    EnvConfig,
    Interrupted,
    OptimConfig,
    PPOConfig,
    RogueNetConfig,
    RolloutConfig,
    clone,
    evaluate,
    train,
)
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.clone import hold_out, learn, make_samples, measure, samples_of, settings_of
from enn_ppo.ppo import Samples
from enn_ppo.settings.command_line.cli import run_clone, run_eval, run_train
from enn_ppo.training.environment import bind_environment
from enn_ppo.training.learning.learner import Learner
from enn_ppo.training.recording import RecordedFrames, read_all
from enn_ppo.training.start import make_state
from rogue_net import ActResult, FrameKeys, ObsBatch, RaggedTensor
from rogue_net.heads.distributions import Categorical
from tests.enn_ppo.recordings import Menagerie, collector_of, record, recorder_for
from tests.enn_ppo.rows import assert_same
from tests.enn_ppo.worlds import Copycat, Moment, Scripted, tiny_config

CERTAINTY = 0.9


class Teacher:
    """Sets a switch to its lamp's colour, nine times out of ten; expects a reward of 0.5."""

    def act(self, batch: ObsBatch, state: None = None, *, generator: FrameKeys) -> ActResult:
        lamps, actors = batch.features["Lamp"].values, batch.action_masks["Switch"].actors
        log_p = torch.where(lamps > 0, CERTAINTY, (1 - CERTAINTY) / 2).log()
        chosen = Categorical(log_p, None).sample(generator.of_actors("Switch", actors))
        return ActResult(
            {"Switch": RaggedTensor(chosen, actors.offsets)},
            {"Switch": RaggedTensor(log_p.gather(1, chosen)[:, 0], actors.offsets)},
            self.value(batch),
        )

    def value(self, batch: ObsBatch, state: None = None) -> Tensor:
        return torch.full((len(batch),), 0.5)


@pytest.fixture(scope="module")
def lessons(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """640 episodes of one step."""
    path = tmp_path_factory.mktemp("lessons") / "lessons.rec"
    collector = collector_of(Copycat, 16, net=Teacher())
    collector.recorder = recorder_for(path, Copycat())
    collector.collect(40)
    return path


def clone_config(run_dir: Path | str, data: Path | list[str], **changes: Any) -> CloneConfig:
    """A clone of a second or two, of a world that is given apart."""
    training = {
        name: changes.pop(name)
        for name in list(changes)
        if name in ("net", "ppo", "seed", "record", "overwrite", "run_dir")
    }
    optim = OptimConfig(batch_size=changes.pop("batch_size", 64), lr=changes.pop("lr", 0.01))
    training |= {"env": EnvConfig(), "optim": optim, "rollout": RolloutConfig(num_envs=8, steps=8)}
    cloning = CloningConfig(**{"epochs": 8} | changes)
    files = data if isinstance(data, list) else str(data)
    return CloneConfig(**vars(tiny_config(run_dir, **training)), data=files, clone=cloning)


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "clone.jsonl").read_text().splitlines()]


def learner_of(config: CloneConfig, env: Any) -> Learner:
    """A new learner of the world."""
    state = make_state(config.training, bind_environment(config.env, env), torch.device("cpu"))
    assert isinstance(state.learner, Learner)
    return state.learner


def measured(learner: Learner, samples: Samples, config: CloneConfig) -> dict[str, float]:
    return measure(learner.model, samples, settings_of(config))


def with_returns(learner: Learner, frames: RecordedFrames) -> Samples:
    return samples_of(frames, frames.returns(0.99), learner)


def test_the_loss_falls_and_the_clone_does_what_it_saw(lessons: Path, tmp_path: Path) -> None:
    result = clone(clone_config(tmp_path / "run", lessons), env=Copycat)
    rows = rows_of(tmp_path / "run")
    assert [row["epoch"] for row in rows] == list(range(1, 9))
    assert rows[-1]["loss"] < 0.6 * rows[0]["loss"]
    assert rows[-1]["holdout_loss"] < 0.6 * rows[0]["loss"]
    assert result.metrics == rows[-1]

    frames = read_all(lessons)
    greedy = result.policy.act(frames.obs, greedy=True).actions["Switch"].values
    assert torch.equal(greedy[:, 0], frames.obs.features["Lamp"].values.argmax(dim=1))
    probabilities = result.policy.act(frames.obs, logits=True).logits["Switch"].values.exp()  # type: ignore[index]
    assert probabilities.max(dim=1).values.mean().item() == pytest.approx(CERTAINTY, abs=0.05)


def test_the_losses_of_a_tiny_recording_by_hand(lessons: Path, tmp_path: Path) -> None:
    """A fresh policy that knows nothing gives every colour a third, and every frame the value 0."""
    frames = read_all(lessons).gather(torch.arange(5))
    learner = learner_of(clone_config(tmp_path, lessons), Copycat)
    with torch.no_grad():
        for parameter in learner.model.policy.heads.parameters():
            parameter.zero_()
    third = torch.log(torch.tensor(1 / 3)).item()
    found = measured(learner, with_returns(learner, frames), clone_config(tmp_path, lessons))
    assert found["loss"] == pytest.approx(-third, rel=1e-5)
    assert found["value_loss"] == pytest.approx(0.5 * frames.rewards.square().mean().item())


def test_actions_of_every_kind_are_learned(tmp_path: Path) -> None:
    record(tmp_path / "zoo.rec", Menagerie, rollouts=4)
    clone(clone_config(tmp_path / "run", tmp_path / "zoo.rec", epochs=15, holdout=0, batch_size=16), env=Menagerie)
    losses = [row["loss"] for row in rows_of(tmp_path / "run")]
    assert losses[-1] < 0.8 * losses[0]


def test_values_learn_the_returns_of_their_own_episodes(tmp_path: Path) -> None:
    moments = [Moment([1], actors=1), Moment([2], actors=1, reward=1), Moment([3], actors=1, reward=1)]
    moments.append(Moment([9], actors=1, reward=2, end="terminated"))
    record(tmp_path / "a.rec", lambda: Scripted(moments), rollouts=6)
    config = clone_config(
        tmp_path / "run", tmp_path / "a.rec", epochs=40, lr="0.02@0", holdout=0, ppo=PPOConfig(gamma=0.5), batch_size=32
    )
    result = clone(config, env=lambda: Scripted(moments))
    frames = read_all(tmp_path / "a.rec").gather(torch.arange(0, 9, 3))  # environment 0, its first three steps
    # 1 + (1 + 2 / 2) / 2, then 1 + 2 / 2, then 2
    assert result.policy.value(frames.obs).tolist() == pytest.approx([2, 2, 2], abs=0.2)
    assert frames.returns(0.5)[2:].isnan().tolist() == [False]


def test_the_same_seed_gives_the_same_clone(lessons: Path, tmp_path: Path) -> None:
    net = RogueNetConfig(d_model=16, n_layer=1, n_head=2, dropout=0.2)
    one, same, other = (
        clone(clone_config(tmp_path / name, lessons, epochs=1, seed=seed, net=net), env=Copycat)
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert_same(one.policy.state_dict(), same.policy.state_dict())
    assert not torch.equal(one.policy.value_head.project.weight, other.policy.value_head.project.weight)


@pytest.mark.parametrize(("share", "number"), [(0.001, 1), (0.25, 10), (0.999, 39), (0, 0)])
def test_whole_episodes_are_held_out(share: float, number: int, tmp_path: Path) -> None:
    moments = [Moment([1], actors=1), Moment([2], actors=1), Moment([3], actors=1, end="terminated")]
    collector = collector_of(lambda: Scripted(moments), 4)
    collector.recorder = recorder_for(tmp_path / "a.rec", Scripted(moments))
    collector.collect(20)  # 10 episodes of two steps in each environment
    frames = read_all(tmp_path / "a.rec")
    learned, held_out = hold_out(frames, share, seed=1)
    episodes = [set(part.episode.tolist()) for part in (learned, held_out)]
    assert len(episodes[1]) == number and len(held_out) == 2 * number
    assert not episodes[0] & episodes[1]
    assert len(learned) + len(held_out) == 80


def test_nothing_is_learned_from_what_is_held_out(lessons: Path, tmp_path: Path) -> None:
    """Neither by the weights nor by the statistics of the inputs: what is held out may be anything."""
    config = clone_config(tmp_path, lessons, epochs=2)
    frames = read_all(lessons)
    learned, held_out = hold_out(frames, 0.5, seed=1)
    nonsense = replace(held_out.gather(torch.arange(7)), rewards=torch.full((7,), 1e6))
    weights = []
    for apart in (held_out, nonsense):
        learner = learner_of(config, Copycat)
        assert len(list(learn(learner.model, *make_samples(learner, learned, apart), config))) == 2
        weights.append(learner.model.state_dict())
    assert_same(weights[0], weights[1])


def test_a_single_episode_is_not_held_out_from_itself(tmp_path: Path) -> None:
    moments = [Moment([1], actors=1), *[Moment([2], actors=1)] * 20]
    collector = collector_of(lambda: Scripted(moments), 1)
    collector.recorder = recorder_for(tmp_path / "a.rec", Scripted(moments))
    collector.collect(5)
    result = clone(clone_config(tmp_path / "run", tmp_path / "a.rec"), env=lambda: Scripted(moments))
    assert "holdout_loss" not in result.metrics
    assert result.metrics["value_loss"] == 0  # the episode has no end, so nobody knows its return


def test_training_goes_on_from_a_clone_elsewhere_or_in_its_own_directory(lessons: Path, tmp_path: Path) -> None:
    cloned = tmp_path / "cloned"
    clone(clone_config(cloned, lessons), env=Copycat)
    with pytest.raises(ValueError, match="already holds a run"):
        clone(clone_config(cloned, lessons), env=Copycat)
    saved = load_checkpoint(cloned)
    assert saved.step == 0
    assert "clone" not in saved.config and "data" not in saved.config
    for run_dir in (tmp_path / "run", cloned):
        config = replace(tiny_config(run_dir, env=EnvConfig()), resume=str(cloned), total_timesteps=64)
        assert train(config, env=Copycat).step == 64
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        assert rows[0]["step"] == 32 and rows[0]["episodic_reward"] > 0.8  # a new policy gets a third
    assert len(rows_of(cloned)) == 8


def test_a_separate_value_network_learns_the_values(lessons: Path, tmp_path: Path) -> None:
    config = clone_config(tmp_path / "run", lessons)
    config = replace(config, value_net=config.net)
    clone(config, env=Copycat)
    rows = rows_of(tmp_path / "run")
    assert rows[-1]["value_loss"] < 0.5 * rows[0]["value_loss"]
    train(replace(config.training, resume=str(tmp_path / "run")), env=Copycat)


def test_values_are_learned_in_the_unit_that_training_goes_on_with(lessons: Path, tmp_path: Path) -> None:
    config = clone_config(tmp_path / "run", lessons, ppo=PPOConfig(normalize="returns"))
    learner = learner_of(config, Copycat)
    frames = read_all(lessons)
    larger = replace(frames, rewards=100 * frames.rewards)
    learned, _ = make_samples(learner, larger, larger)
    deviation = (100 * frames.rewards).std(correction=0).item()  # episodes of one step: their returns are their rewards
    assert torch.equal(learned.returns, larger.rewards)
    assert learner.model.value_head.deviation.item() == pytest.approx(deviation, rel=1e-4)
    assert learner.model.value_head.mean.item() == pytest.approx(larger.rewards.mean().item(), rel=1e-4)


def test_ctrl_c_saves_the_clone_after_the_pass_under_way(
    lessons: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = clone_config(tmp_path / "run", lessons)
    learning = importlib.import_module("enn_ppo.clone")
    monkeypatch.setattr(learning, "measure", lambda *arguments: os.kill(os.getpid(), signal.SIGINT) or {})
    with pytest.raises(Interrupted, match="interrupted after pass 1 of 8; saved .*step_000000000000"):
        clone(config, env=Copycat)
    assert load_checkpoint(tmp_path / "run").step == 0


def test_a_recording_that_does_not_fit_is_refused(lessons: Path, tmp_path: Path) -> None:
    other = r"lessons.rec has other spaces than the environment: entities\['"
    with pytest.raises(ValueError, match=other):
        clone(clone_config(tmp_path / "run", lessons), env=lambda: Scripted([Moment()]))
    with pytest.raises(ValueError, match="none.rec cannot be read: No such file"):
        clone(clone_config(tmp_path / "run", [str(lessons), "none.rec"]), env=Copycat)
    recorder_for(tmp_path / "empty.rec", Copycat())
    with pytest.raises(ValueError, match="empty.rec holds no frames"):
        clone(clone_config(tmp_path / "run", tmp_path / "empty.rec"), env=Copycat)
    assert not (tmp_path / "run").exists()


def test_a_setting_that_is_not_allowed_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"clone\.epochs"):
        CloningConfig(epochs=0)
    config = clone_config(tmp_path, tmp_path / "a.rec")
    for data in ("", [], [""], 3):
        with pytest.raises(ValueError, match="data must name a recording"):
            replace(config, data=data)
    with pytest.raises(ValueError, match="resume=x is for training"):
        replace(config, resume="x")


def test_record_clone_and_train_on_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, more, copy = tmp_path / "a.rec", tmp_path / "more.rec", tmp_path / "clone"
    settings = ["env=Count", "device=cpu", "net.d_model=16", "net.n_layer=1", "rollout.num_envs=8", "rollout.steps=8"]
    settings.append("optim.batch_size=32")
    expert = f"{tmp_path}/expert"
    assert run_train(train, [*settings, f"run_dir={expert}", "total_timesteps=128"]) == 0
    for file, episodes in ((data, 128), (more, 20)):
        assert run_eval(evaluate, [f"checkpoint={expert}", f"episodes={episodes}", f"record={file}"]) == 0
        assert len(read_all(file)) == episodes  # of one step

    typed = [f"data=[{data},{more}]", "clone.epochs=2", "optim.lr=0.01@0 -> 0@1", f"run_dir={copy}"]
    assert run_clone(clone, [*settings, *typed]) == 0
    cloning = yaml.safe_load((copy / "clone.yaml").read_text())
    assert cloning["data"] == [str(data), str(more)] and cloning["clone"]["epochs"] == 2
    capsys.readouterr()
    assert run_train(train, [f"resume={copy}", "total_timesteps=64"]) == 0
    assert "start new episodes" not in capsys.readouterr().out  # they start as those of a new run, which were saved
    assert load_checkpoint(copy).step == 64

    assert run_clone(clone, ["env=Count"]) == 2
    assert "data has no value, and no default: add data=..." in capsys.readouterr().err
