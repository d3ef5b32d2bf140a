"""A policy that has become NaN is reported as such, and not as an action that the environment refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo import EnvConfig, PPOConfig, RogueNetConfig, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.serve.agent import load_policy
from enn_ppo.settings.command_line.cli import run_train
from enn_ppo.training.learning.learner import Learned
from enn_ppo.training.state import TrainState
from enn_ppo.training.tracking.logger import read_metrics
from enn_ppo.training.tracking.symptoms import PAGE
from entity_gym import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
    make,
)
from rogue_net import ActResult, ObsBatch, RaggedTensor, RogueNet
from rogue_net.finite import NotFinite, fetch_actions
from tests.enn_ppo.worlds import SMALL_BOARD, tiny_config
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("run") / "a"
    train(tiny_config(run_dir))
    return run_dir


def break_weights(net: RogueNet) -> None:
    with torch.no_grad():
        for parameter in net.transformer.parameters():
            parameter[..., 0] = torch.nan


def first_observation() -> Observation:
    env = PythonMineSweeper(**SMALL_BOARD)
    env.rng = np.random.default_rng(0)
    return env.reset()


def test_training_says_which_parameters_are_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["env=MineSweeper", "total_timesteps=20000", "optim.lr=1e30", f"run_dir={tmp_path / 'a'}", "device=cpu"]
    assert run_train(train, [*command, "eval.interval=null"]) == 2
    error = capsys.readouterr().err
    assert "error: the network's outputs are NaN or infinite: so are its parameters " in error
    first = tmp_path / "a/checkpoints/step_000000000000.safetensors"
    assert f" more; saved {first}; go on with resume={tmp_path / 'a'} and a lower optim.lr" in error
    assert "Traceback" not in error


class Payments(Environment):
    """A game of two steps, whose rewards are drawn from two numbers."""

    def __init__(self, amount: float) -> None:
        self.amount = amount

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Coin": Entity(["side"])})

    def action_space(self) -> dict[str, ActionSpace]:
        return {"guess": CategoricalActionSpace(["heads", "tails"])}

    def reset(self) -> Observation:
        self.left = 2
        return self.seen(0.0)

    def act(self, actions: Any) -> Observation:
        self.left -= 1
        return self.seen(self.amount * float(self.rng.integers(1, 3)))

    def seen(self, reward: float) -> Observation:
        mask = {"guess": CategoricalActionMask(actor_ids=[0])}
        return Observation(
            features={"Coin": [[1.0]]}, ids={"Coin": [0]}, reward=reward, done=self.left == 0, actions=mask
        )


def train_payments(run_dir: Path, amount: float, **changes: Any) -> Any:
    env = EnvConfig(id="payments", kwargs={"amount": amount})
    return train(tiny_config(run_dir, env=env, **changes), env=Payments)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("normalize", ["none", "returns"])
def test_rewards_that_exceed_float32_end_the_training_and_are_named(
    normalize: Any, compiled: bool, tmp_path: Path
) -> None:
    amount, said = (1e30, r"^value_loss.* of this update exceeds float32, after rewards of up to 2e\+30")
    if normalize == "returns":
        amount, said = 1.6e38, r"^returns of rewards of up to 3.2e\+38 exceed float32"
    net = RogueNetConfig(d_model=16, n_layer=1, n_head=2, backend="auto" if compiled else "reference")
    with pytest.raises(ValueError, match=said + ".*: make the environment's rewards smaller"):
        train_payments(tmp_path / "a", amount, net=net, ppo=PPOConfig(normalize=normalize))
    rows = read_metrics(tmp_path / "a/metrics.jsonl")
    assert all(value is not None for row in rows for name, value in row.items() if "loss" in name)


def test_rewards_that_are_far_from_1_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train_payments(tmp_path / "small", 1e-8, ppo=PPOConfig(normalize="returns"))
    train_payments(tmp_path / "large", 1e6)
    train_payments(tmp_path / "usual", 1.0)
    train_payments(tmp_path / "normalized", 1e6, ppo=PPOConfig(normalize="returns"))
    said = [record.message for record in caplog.records if "learns badly" in record.message]
    assert [line.partition(":")[0] for line in said] == [
        "ppo.normalize=returns learns badly from rewards of up to 2e-08",
        "ppo.normalize=none learns badly from rewards of up to 2e+06",
    ]
    assert all(line.endswith(f": {PAGE}") for line in said)


def test_weights_that_are_not_finite_are_not_saved_and_the_last_good_checkpoint_is_named(tmp_path: Path) -> None:
    run_dir = tmp_path / "a"
    config = tiny_config(run_dir)
    train(config)
    good = run_dir / "checkpoints/step_000000000160.safetensors"
    more = replace(
        config,
        resume=str(run_dir),
        total_timesteps=config.total_timesteps * 4,
        optim=replace(config.optim, lr=1e30),
        checkpoint_interval=1,  # due before NaN acts
        keep_last=1,
    )
    with pytest.raises(NotFinite, match=r"^step 192 is not saved: policy\[.* is NaN or infinite") as caught:
        train(more)
    assert good in good.parent.glob("step_*") and not (good.parent / "step_000000000192.safetensors").exists()
    assert load_checkpoint(run_dir).path == good
    assert caught.value.__notes__ == [f"saved {good}; go on with resume={run_dir} and a lower optim.lr"]


def test_where_one_of_several_policies_breaks_none_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(
        tmp_path / "run",
        env=EnvConfig(id="MultiSnake", kwargs={"num_players": 2, "num_snakes": 2}),
        policies={"red": [0], "blue": [1]},
        total_timesteps=64,
        checkpoint_interval=1,
        keep_last=2,
    )

    def break_blue(state: TrainState, *given: object) -> dict[str, Learned]:
        learned = learn(state, *given)  # type: ignore[arg-type]
        if state.step == 32:  # in the second update
            break_weights(state.learners["blue"].model.policy)
        return learned

    learn = TrainState.learn
    monkeypatch.setattr(TrainState, "learn", break_blue)
    with pytest.raises(NotFinite, match=r"^step 64 is not saved: blue policy\["):
        train(config)
    assert [load_checkpoint(tmp_path / "run" / name).step for name in config.policies] == [32, 32]


def test_observations_that_are_not_finite_are_what_is_reported(trained: Path) -> None:
    net = load_policy(trained)._policy.fitted.net
    with make("MineSweeper", 2, **SMALL_BOARD) as pool:
        batch = ObsBatch.from_vec_obs(pool.reset(0))
    fetch_actions(net, batch, net.act(batch))
    break_weights(net)
    batch.features["Mine"].values[0, 0] = torch.inf
    with pytest.raises(NotFinite, match="the observations hold such numbers, in features of Mine$"):
        fetch_actions(net, batch, net.act(batch))
    observation = first_observation()
    observation.features["Mine"][0, 0] = np.nan  # type: ignore[index]
    with pytest.raises(ValueError, match="Mine") as caught:
        load_policy(trained).act(observation)
    assert not isinstance(caught.value, NotFinite)  # found before anybody acts


def test_actions_are_fetched_in_one_copy_with_what_tells_whether_all_is_finite(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = load_policy(trained)._policy.fitted.net
    with make("MineSweeper", 3, **SMALL_BOARD) as pool:
        obs = pool.reset(0)
    batch = ObsBatch.from_vec_obs(obs)
    result = net.act(batch)
    expected = result.to_buffers()
    assert fetch_actions(net, batch, result) == expected
    broken = result._replace(values=torch.tensor([0.0, torch.nan, 0.0]))
    with pytest.raises(NotFinite, match="the network's outputs are NaN or infinite"):
        fetch_actions(net, batch, broken)
    large = result._replace(values=torch.tensor([3e38, 3e38, 0.0]))
    assert fetch_actions(net, batch, large) == expected


def test_large_values_are_no_mistake() -> None:
    values = torch.tensor([3e38, 3e38])  # whose sum is infinite
    not_a_number = RaggedTensor(torch.tensor([torch.nan]), torch.tensor([0, 0, 1]))
    with pytest.raises(NotFinite):
        fetch_actions(None, ObsBatch(2, {}, {}), ActResult({}, {"a": not_a_number}, values))
    assert fetch_actions(None, ObsBatch(2, {}, {}), ActResult({}, {}, values)) == {}
