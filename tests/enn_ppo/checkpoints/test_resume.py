"""A run that was stopped and resumed is the run that was not, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from enn_ppo import (
    Callback,
    EnvConfig,
    OptimConfig,
    PPOConfig,
    RogueNetConfig,
    RolloutConfig,
    SelfPlayConfig,
    TrainConfig,
    train,
)
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.training.environment import bind_environment
from enn_ppo.training.start import make_state
from entity_gym import Observation
from tests.enn_ppo.players_worlds import SNAKES
from tests.enn_ppo.rows import assert_same_end, rows_without_times
from tests.enn_ppo.training.test_continuous_actions import EchoAndJudge
from tests.enn_ppo.worlds import SMALL_BOARD, Clock, Copycat, CtrlC, StopAfter, tiny_config

REPOSITORY = Path(__file__).parents[3]


def resumed(config: TrainConfig, source: Path, **changes: Any) -> TrainConfig:
    return replace(config, **({"resume": str(source), "run_dir": None} | changes))


@pytest.fixture(autouse=True)
def nobody_presses() -> Iterator[None]:
    CtrlC.at, CtrlC.acts, CtrlC.presses = 0, 0, 1
    yield
    CtrlC.at = 0


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """Five updates and a short sixth, of MineSweeper with a cannon and with episodes that are cut."""
    board = EnvConfig(kwargs=SMALL_BOARD | {"orbital_cannon": True, "cooldown_period": 2})
    run_dir = tmp_path_factory.mktemp("runs") / "whole"
    return tiny_config(run_dir, env=board, total_timesteps=172, checkpoint_interval=2, keep_last=10)


@pytest.fixture(scope="module")
def whole(config: TrainConfig) -> Path:
    """The uninterrupted run."""
    CtrlC.at = 0
    train(config, env=CtrlC)
    assert [row["step"] for row in rows_without_times(Path(str(config.run_dir)))] == [32, 64, 96, 128, 160, 172]
    return Path(str(config.run_dir))


# --- Bit for bit ---

SMALL = RogueNetConfig(d_model=8, n_layer=0, n_head=1)
DROPPING = RogueNetConfig(d_model=16, n_layer=1, n_head=2, dropout=0.2)
#: Settings that remember something from update to update; the two kinds of actions have a world of their own.
FEATURES: dict[str, dict[str, Any]] = {
    "blocks": {"rollout": RolloutConfig(num_envs=4, steps=8, block=2)},
    "halves": {"rollout": RolloutConfig(num_envs=4, steps=8, pipeline=2)},
    "groups": {
        "rollout": RolloutConfig(num_envs=4, steps=8, group_size=2),
        "ppo": PPOConfig(advantages="group+value"),
    },
    "dropout": {"net": DROPPING},
    "returns": {"ppo": PPOConfig(normalize="returns")},
    "returns, value network": {"ppo": PPOConfig(normalize="returns"), "value_net": SMALL},
    "targets": {
        "env": EnvConfig(id="tests.entity_gym.pools.test_targets:Hidden"),
        "ppo": PPOConfig(target_coef=1.0),
    },
    "teacher": {"ppo": PPOConfig(teacher="{whole}", teacher_kl="3@0 -> 0@1")},
    "self-play": {
        "env": EnvConfig(id="MultiSnake", kwargs=SNAKES.values),
        "self_play": SelfPlayConfig(enabled=True, snapshot_interval=32, pool_size=2),
    },
    "numbers and choices": {"env": EnvConfig(), "net": RogueNetConfig(backend="reference")},
}


@pytest.mark.parametrize("feature", FEATURES)
def test_a_run_that_was_stopped_and_resumed_is_the_one_that_was_not(feature: str, whole: Path, tmp_path: Path) -> None:
    changes = dict(FEATURES[feature])
    if feature == "teacher":
        changes["ppo"] = replace(changes["ppo"], teacher=str(whole))
    own = EchoAndJudge if feature == "numbers and choices" else None

    def run(name: str, *callbacks: Callback, **more: Any) -> None:
        train(tiny_config(tmp_path / name, **changes, **more), own, callbacks)

    run("whole")
    run("parts", StopAfter(64))
    torch.rand(1)  # whatever else draws from torch's own generator
    run("parts", resume=str(tmp_path / "parts"))
    assert rows_without_times(tmp_path / "parts") == rows_without_times(tmp_path / "whole")
    assert_same_end(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.parametrize("step", [0, 64])
def test_any_checkpoint_goes_on_in_another_directory_and_leaves_its_own_alone(
    step: int, config: TrainConfig, whole: Path, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    source, run_dir = whole / f"checkpoints/step_{step:012d}", tmp_path / "b"
    train(resumed(config, source, run_dir=str(run_dir)), env=CtrlC)
    assert rows_without_times(run_dir) == [row for row in rows_without_times(whole) if row["step"] > step]
    assert_same_end(run_dir, whole)
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


def test_a_crash_after_going_back_to_an_earlier_checkpoint_does_not_skip_what_was_trained_anew(
    config: TrainConfig, whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path / "a", symlinks=True)
    CtrlC.at, CtrlC.presses = 33, 2  # aborts in the second update, before any checkpoint is due
    with pytest.raises(KeyboardInterrupt):
        train(resumed(config, tmp_path / "a/checkpoints/step_000000000064"), env=CtrlC)
    assert load_checkpoint(tmp_path / "a").step == 64
    CtrlC.at = 0
    train(resumed(config, tmp_path / "a"), env=CtrlC)
    assert rows_without_times(tmp_path / "a") == rows_without_times(whole)
    assert_same_end(tmp_path / "a", whole)


# --- What is not the same run, and says so ---


def test_environments_that_cannot_be_saved_start_new_episodes_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config(tmp_path / "a", env=EnvConfig(), total_timesteps=64)
    train(config, env=Copycat)
    capsys.readouterr()
    result = train(resumed(config, tmp_path / "a", total_timesteps=128), env=Copycat)
    assert result.step == 128
    said = "the environments start new episodes, so this is not the uninterrupted run: the environment has no state()"
    assert said in capsys.readouterr().out
    assert [row["step"] for row in rows_without_times(tmp_path / "a")] == [32, 64, 96, 128]


def test_another_number_of_environments_starts_new_episodes_and_that_is_said(
    config: TrainConfig, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {"rollout": RolloutConfig(num_envs=6, steps=8), "run_dir": str(tmp_path / "b")}
    result = train(resumed(config, whole / "checkpoints/step_000000000128", total_timesteps=224, **changes), env=CtrlC)
    assert result.step == 224
    assert [row["step"] for row in rows_without_times(tmp_path / "b")] == [176, 224]
    output = capsys.readouterr().out
    assert "new episodes" in output and "the checkpoint has 4 of them, and rollout.num_envs is 6" in output


FOUR = {"max_steps": 4}


@pytest.mark.parametrize(
    ("before", "now", "said", "lengths"),
    [
        ({"kwargs": {"max_steps": 4}}, {"kwargs": {"max_steps": 3}}, "env.kwargs.max_steps was 4 and is 3", (4, 3)),
        (
            {"kwargs": {"max_steps": 4}, "info": {"max_steps": 2}},
            {"kwargs": {"max_steps": 4}},
            "env.info.max_steps was 2",
            (2, 4),
        ),
    ],
)
def test_other_parameters_of_the_environment_start_new_episodes_that_have_them(
    before: dict[str, Any],
    now: dict[str, Any],
    said: str,
    lengths: tuple[int, int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, then = (EnvConfig(**{**each, "kwargs": {**SMALL_BOARD, **each["kwargs"]}}) for each in (before, now))
    config = tiny_config(tmp_path / "a", env=first)
    train(config)
    train(resumed(config, tmp_path / "a", env=then, total_timesteps=320))
    told = " ".join(capsys.readouterr().out.split())
    assert f"the environments start new episodes, so this is not the uninterrupted run: {said}" in told
    found = [row["episode_length_max"] for row in rows_without_times(tmp_path / "a")]
    assert (max(found[:5]), max(found[5:])) == lengths


def test_new_episodes_are_none_that_the_run_began_with(tmp_path: Path) -> None:
    """Else each part of a run that is often interrupted would play the same first episodes."""
    drawn: list[tuple[int, ...]] = []

    class Drawn(Copycat):
        def reset(self) -> Observation:
            obs = super().reset()
            drawn.append(tuple(self.colours))
            return obs

    config = tiny_config(
        tmp_path / "a", env=EnvConfig(), rollout=RolloutConfig(num_envs=32, steps=1), total_timesteps=32
    )
    train(config, env=Drawn)
    first = drawn[:32]
    drawn.clear()
    train(resumed(config, tmp_path / "a", total_timesteps=64), env=Drawn)
    assert drawn[:32] != first


# --- More steps, other settings ---


def test_returns_that_are_normalized_from_now_on_have_statistics_of_their_own(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "a", total_timesteps=32)
    train(config)
    train(resumed(config, tmp_path / "a", ppo=PPOConfig(normalize="returns"), total_timesteps=64))
    assert load_checkpoint(tmp_path / "a").trainer["scale"]["weight"] == pytest.approx(0.1)


def test_a_run_that_no_longer_normalizes_returns_keeps_its_values_and_loses_their_deviation(tmp_path: Path) -> None:
    env = EnvConfig(kwargs={"short": 3, "long": 9})
    config = tiny_config(tmp_path / "a", env=env, ppo=PPOConfig(normalize="returns"), total_timesteps=64)
    saved = train(config, env=Clock).policy
    assert float(saved.value_head.deviation) != 1.0
    changed = resumed(config, tmp_path / "a", ppo=PPOConfig(normalize="none"), total_timesteps=96)
    state = make_state(changed, bind_environment(env, Clock), torch.device("cpu"))
    with closing(state):
        state.restore({"": load_checkpoint(tmp_path / "a")})
        net = state.learner.model.policy
        assert (float(net.value_head.mean), float(net.value_head.deviation)) == (0.0, 1.0)
        obs = state.sampler.collect(0, 8, {})[""].frames.obs
        torch.testing.assert_close(net.value(obs), saved.value(obs))


def test_a_finished_run_has_nothing_left_to_train_and_says_so(
    config: TrainConfig, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(whole, tmp_path / "a", symlinks=True)
    before = rows_without_times(tmp_path / "a")
    result = train(resumed(config, tmp_path / "a"), env=CtrlC)
    assert (result.step, result.metrics) == (172, None)
    assert "nothing is left to train: total_timesteps=172 and the checkpoint has 172" in capsys.readouterr().out
    assert rows_without_times(tmp_path / "a") == before


def test_a_finished_run_goes_on_with_more_timesteps(config: TrainConfig, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "a", symlinks=True)
    assert train(resumed(config, tmp_path / "a", total_timesteps=236), env=CtrlC).step == 236
    rows = rows_without_times(tmp_path / "a")
    assert [row["step"] for row in rows] == [32, 64, 96, 128, 160, 172, 204, 236]
    assert rows[-2]["learning_rate"] == pytest.approx(0.002 * (1 - 172 / 236))


def test_optimizer_settings_given_while_resuming_hold(config: TrainConfig, whole: Path, tmp_path: Path) -> None:
    source = whole / "checkpoints/step_000000000128"
    for name, decay in (("weak", 0.0), ("strong", 10.0)):
        optim = OptimConfig(batch_size=16, epochs=1, lr=1e-2, weight_decay=decay)
        train(resumed(config, source, run_dir=str(tmp_path / name), optim=optim), env=CtrlC)
    norms = [
        sum(
            float(value.float().norm())
            for key, value in load_checkpoint(tmp_path / name).policy.items()
            if "weight" in key
        )
        for name in ("weak", "strong")
    ]
    assert norms[1] < 0.8 * norms[0]


def test_a_network_of_another_shape_is_refused_untouched(config: TrainConfig, whole: Path) -> None:
    before = (whole / "config.yaml").read_bytes()
    with pytest.raises(
        ValueError, match=r"the policy of checkpoint .* does not fit .*: its setting d_model was .* and is 8"
    ):
        train(resumed(config, whole, net=RogueNetConfig(d_model=8, n_layer=1, n_head=2)), env=CtrlC)
    assert (whole / "config.yaml").read_bytes() == before
