"""Playing beside a checkpoint: what its policy would do, and how likely it finds each choice."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from enn_ppo import EnvConfig, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import load_net
from enn_ppo.play import main
from entity_gym.batch.vec_obs import VecObs
from entity_gym.play.game import Game
from entity_gym.pools.pool import ListEnv
from rogue_net import ObsBatch, RogueNet
from tests.enn_ppo.worlds import tiny_config
from tests.entity_gym.check import broken


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("walk")
    env = EnvConfig(id="tests.entity_gym.check.broken:Walk", kwargs={"size": 5})
    train(tiny_config(folder, env=env, total_timesteps=32))
    return str(folder)


@pytest.fixture(scope="module")
def net(run_dir: str) -> RogueNet:
    return load_net(load_checkpoint(Path(run_dir)))


@pytest.fixture
def obs() -> VecObs:
    """The walker stands at x = 1, where it cannot go left, nor look at the right wall."""
    return ListEnv(lambda: broken.Walk(5), 1, 11).reset()


def game(run_dir: str, *arguments: str) -> dict[str, Any]:
    """The first view on the page of `main`, that of the only step."""
    replays = []

    def shown(game: Game, *_: Any) -> None:
        replays.append(game.replay)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("entity_gym.play.command.serve", shown)
        assert main([run_dir, *arguments]) == 130
    view: dict[str, Any] = replays[0]["episodes"][0]["steps"][0]["views"][0]
    return view


def test_advice_in_the_environment_of_training_is_the_networks(run_dir: str, net: RogueNet, obs: VecObs) -> None:
    view = game(f"checkpoint={run_dir}", "--seed", "11")
    assert view["features"] == {"Walker": [[1]], "Wall": [[0], [5]]}
    batch = ObsBatch.from_vec_obs(obs)
    evaluation = net.evaluate(batch, net.act(batch).actions)
    probs = view["actions"]["step"]["probs"][0]
    assert probs == pytest.approx(evaluation.logits["step"][0].exp().tolist(), abs=1e-6)
    assert probs[0] == 0.0  # a choice that is closed
    assert view["actions"]["look at"]["probs"] == [[1.0, 0.0]]
    assert view["actions"]["look at"]["advised"] == [0]
    assert view["value"] == pytest.approx(evaluation.values[0].item())
    colder = game(run_dir, "--seed", "11", "--temperature", "0.5")["actions"]["step"]["probs"][0]
    assert colder[1] == pytest.approx(probs[1] ** 2 / sum(p**2 for p in probs), abs=1e-5)
    assert game(run_dir, "--set", "size=8")["features"]["Wall"] == [[0], [8]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere/run"], "error: no checkpoint nowhere/run"),
        (["{run_dir}", "--set", "sise=3"], "error: .* has no parameter 'sise'.*did you mean 'size'"),
        (["{run_dir}", "--temperature", "0"], "error: --temperature is 0.0; it must be greater than 0"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, run_dir: str, capsys) -> None:
    assert main([argument.format(run_dir=run_dir) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert re.match(message, captured.err), captured.err
    assert captured.err.count("\n") == 1
