"""A trained policy plays in a program that knows nothing of the trainer."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo import (
    EnvConfig,
    EvalConfig,
    OptimConfig,
    PPOConfig,
    RogueNetConfig,
    RolloutConfig,
    TrainConfig,
    evaluate,
    train,
)
from enn_ppo.checkpoints import load_checkpoint, save_policy
from enn_ppo.checkpoints.policy import CPU, load_net
from enn_ppo.eval.policy import fit
from enn_ppo.export import main as export
from enn_ppo.play import advice
from enn_ppo.serve.agent import load_agent, load_policy
from enn_ppo.serve.policy import ServedPolicies
from enn_ppo.settings.serving import ServeConfig
from entity_gym.agents import Agent, Obs, TrainEnv
from entity_gym.batch.batching import batch_observations
from entity_gym.batch.saving import spaces_to_dict
from rogue_net import ObsBatch
from tests.enn_ppo.worlds import tiny_config
from tests.entity_gym.pools.test_targets import Hidden


class Turn(enum.Enum):
    LEFT = -1
    RIGHT = 1


@dataclass
class Me:
    x: float
    tired: bool


@dataclass
class Apple:
    x: float


def seek(agent: Agent, config: Any, seed: int) -> None:
    """One decision a game: worth 1 if it is towards the apple."""
    rng = random.Random(seed)
    while True:
        me, apple = Me(0.0, rng.random() < 0.5), Apple(rng.choice([-1.0, 1.0]))
        turn = agent.act(Obs(Turn, score=0, entities=[apple], actors=[me]))
        if turn is None:
            return
        agent.game_over(Obs(Turn, score=float(turn.value == apple.x)))


class Eat(enum.Enum):
    NO = 0
    YES = 1


def seek_and_eat(agent: Agent, config: Any, seed: int) -> None:
    """Two decisions a game."""
    while agent.act(Obs(Turn, score=0, entities=[Apple(1.0)], actors=[Me(0.0, False)])) is not None:
        if agent.act(Obs(Eat, score=0, entities=[Apple(1.0)], actors=[Me(0.0, False)])) is None:
            return
        agent.game_over(Obs(Eat, score=1))


env = TrainEnv(seek, [Me, Apple], [Turn])
two = TrainEnv(seek_and_eat, [Me, Apple], [Turn, Eat])


def config_for(run_dir: Path) -> TrainConfig:
    return tiny_config(
        run_dir,
        env=EnvConfig(id="tests.enn_ppo.serve.test_agent:env"),
        rollout=RolloutConfig(num_envs=16, steps=8),
        optim=OptimConfig(batch_size=64, lr="1e-2@0 -> 0@1"),
        ppo=PPOConfig(ent_coef=0.0),
        total_timesteps=3200,
    )


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "seek"
    train(config_for(folder))
    return folder


def obs(apple: float = 1.0, **changes: Any) -> Obs[Turn]:
    return Obs(Turn, **{"score": 0.0, "entities": [Apple(apple)], "actors": [Me(0.0, False)], **changes})


def test_what_was_learned_through_train_agent_is_played(run_dir: Path) -> None:
    agent = load_agent(run_dir, greedy=True)
    assert [agent.act(obs(apple)) for apple in (-1.0, 1.0)] == [Turn.LEFT, Turn.RIGHT]
    assert agent.news == ""


def test_a_decision_tells_probabilities_and_the_value(run_dir: Path) -> None:
    decision = load_agent(run_dir, greedy=True).decide(obs(actors=[Me(0.0, False), Me(0.0, True)]))
    assert decision.labels == ("LEFT", "RIGHT")
    assert decision.probabilities.shape == (2, 2)
    np.testing.assert_allclose(decision.probabilities.sum(axis=1), 1, rtol=1e-5)
    assert (decision.probabilities[:, 1] > 0.6).all()
    assert decision.actions == [Turn.RIGHT, Turn.RIGHT]
    assert 0.5 < decision.value < 1.5


def test_closed_actions_have_probability_0_and_are_not_taken(run_dir: Path) -> None:
    decision = load_agent(run_dir).decide(obs(allowed=[[Turn.LEFT]]))
    assert decision.actions == [Turn.LEFT]
    assert decision.probabilities.tolist() == [[1.0, 0.0]]


def test_greedy_is_always_the_same_and_sampling_follows_the_seed(run_dir: Path) -> None:
    judge = load_agent(run_dir)
    somewhere = min(np.linspace(-1, 1, 101), key=lambda x: abs(judge.decide(obs(x)).probabilities[0, 0] - 0.5))

    def played(**how: Any) -> list[Turn | None]:
        agent = load_agent(run_dir, **how)
        return [agent.act(obs(somewhere)) for _ in range(60)]  # an apple where it can hardly tell what to do

    assert len(set(played(greedy=True))) == 1
    assert set(played(seed=1)) == set(Turn)
    assert played(seed=1) == played(seed=1)
    assert played(seed=1) != played(seed=2)


# ---- one file


def test_one_file_plays_as_the_run_does(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "seek.safetensors"
    assert export([str(run_dir), str(file)]) == 0
    assert capsys.readouterr().out == f"wrote {file}\n"
    alone, whole = load_agent(file).decide(obs()), load_agent(run_dir).decide(obs())
    assert alone.probabilities.tolist() == whole.probabilities.tolist()
    assert alone.value == whole.value
    result = evaluate(EvalConfig(checkpoint=str(file), episodes=16, num_envs=8, greedy=True))
    assert result.estimates["episodic_reward"].mean > 0.9


def values_of(path: Path) -> dict[str, float]:
    """The value of one observation, as each of those tells it that load a policy."""
    seen, checkpoint = obs().to_observation(), load_checkpoint(path)
    policy = load_policy(path, greedy=True)
    batch = batch_observations([seen], policy.obs_space, policy.action_space, "the test")
    served = ServedPolicies(checkpoint, CPU, ServeConfig(checkpoint=str(path)))
    features = {name: np.array(rows).tolist() for name, rows in seen.features.items()}
    asked = {
        "features": features,
        "ids": {"Me": ["me"], "Apple": ["apple"]},
        "actions": {"Turn": {"actor_types": ["Me"]}},
    }
    request = served.read(served.trained, {"type": "act", "observation": asked, "value": True})
    (answer,) = served.decide([request])
    spaces = policy.obs_space, policy.action_space
    played = fit(checkpoint, *spaces, "the test", torch.Generator(), greedy=True)
    return {
        "policy": policy.act(seen).value,
        "agent": load_agent(path, greedy=True).decide(obs()).value,
        "server": answer["value"],
        "play": advice(played, {}, batch).value,
        "evaluation": float(played.values(batch)[0]),
    }


def test_the_value_is_that_of_the_value_network_in_the_unit_of_rewards(tmp_path: Path) -> None:
    config = config_for(tmp_path / "run")
    config = replace(config, ppo=PPOConfig(normalize="returns"), value_net=config.net, total_timesteps=1280)
    train(config)
    file = save_policy(tmp_path / "run", tmp_path / "seek.safetensors")
    values = {
        f"{name} {path.name}": value for path in (tmp_path / "run", file) for name, value in values_of(path).items()
    }
    checkpoint = load_checkpoint(tmp_path / "run")
    critic = load_net(checkpoint, "value_net").eval()
    assert float(critic.value_head.deviation) != 1
    observation = batch_observations([obs().to_observation()], critic.obs_space, critic.action_space, "the test")
    expected = critic.value(ObsBatch.from_vec_obs(observation))[0].item()
    assert values == pytest.approx(dict.fromkeys(values, expected), rel=1e-5)


def test_what_is_no_policy_at_all_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="text is no whole checkpoint or policy file: it is no safetensors file"):
        load_agent(tmp_path / "text")
    with pytest.raises(ValueError, match="no checkpoint .*nowhere"):
        load_agent(tmp_path / "nowhere")
    assert export([str(tmp_path / "nowhere"), str(tmp_path / "x.safetensors")]) == 2
    assert "error: no checkpoint" in capsys.readouterr().err


# ---- newer programs


def renamed(name: str, cls: type) -> type:
    cls.__name__ = name
    return cls


@dataclass
class RicherMe:
    name: int  # features that the policy does not know stand before and after those that it does
    tired: bool
    x: float
    luck: float


@dataclass
class Ghost:
    x: float


class MoreTurns(enum.Enum):
    RIGHT = 1
    JUMP = 5
    LEFT = -1


class LessTurns(enum.Enum):
    LEFT = -1


@dataclass
class PoorerMe:
    x: float


def test_features_and_types_of_a_newer_program_are_ignored_by_name(run_dir: Path) -> None:
    agent, before = load_agent(run_dir, greedy=True), load_agent(run_dir).decide(obs())
    me = renamed("Me", RicherMe)(name=7, tired=False, x=0.0, luck=99.0)
    decision = agent.decide(obs(entities=[Apple(1.0), Ghost(-1.0)], actors=[me]))
    np.testing.assert_allclose(decision.probabilities, before.probabilities, rtol=1e-5)
    assert "feature 'luck' of 'Me' is new" in agent.news and "hidden from the others: 'Ghost'" in agent.news
    assert agent.act(obs(-1.0, actors=[me])) == Turn.LEFT  # and then without a ghost


def test_choices_are_found_by_name(run_dir: Path) -> None:
    agent = load_agent(run_dir, greedy=True)
    more = renamed("Turn", MoreTurns)
    asked: Obs[Any] = Obs(more, score=0, entities=[Apple(1.0)], actors=[Me(0.0, False)])
    decision = agent.decide(asked)
    assert decision.labels == ("RIGHT", "JUMP", "LEFT")
    assert decision.probabilities[0, 0] > decision.probabilities[0, 2]
    assert "choice 'JUMP' of action 'Turn' is new" in agent.news


def test_what_the_policy_needs_and_does_not_get_is_named(run_dir: Path) -> None:
    agent = load_agent(run_dir)
    with pytest.raises(ValueError, match="the feature 'tired' of 'Me' is gone"):
        agent.act(obs(actors=[renamed("Me", PoorerMe)(0.0)]))
    agent = load_agent(run_dir)
    with pytest.raises(ValueError, match="was not trained for the action 'Ghosts'; allowed: 'Turn'"):
        agent.act(Obs(renamed("Ghosts", enum.Enum("Ghosts", ["BOO"])), score=0, actors=[Me(0.0, False)]))
    less: Obs[Any] = Obs(renamed("Turn", LessTurns), score=0, actors=[Me(0.0, False)])
    with pytest.raises(ValueError, match="the choice 'RIGHT' of the action 'Turn' is gone"):
        agent.act(less)


def test_a_class_that_changes_while_it_plays_is_matched_by_name_again(run_dir: Path) -> None:
    agent, before = load_agent(run_dir, greedy=True), load_agent(run_dir).decide(obs())
    agent.act(obs())
    wider = dataclass(type("Apple", (), {"__annotations__": {"ripe": float, "x": float}}))
    decision = agent.decide(obs(entities=[wider(9.0, 1.0)]))
    np.testing.assert_allclose(decision.probabilities, before.probabilities, rtol=1e-5)
    other = dataclass(type("Apple", (), {"__annotations__": {"y": float}}))
    with pytest.raises(ValueError, match="the feature 'x' of 'Apple' is gone"):
        agent.act(obs(entities=[other(1.0)]))


# ---- alone


def test_without_actors_there_are_no_actions(run_dir: Path) -> None:
    assert load_agent(str(run_dir)).act_each(obs(actors=[])) == []


def test_a_policy_that_was_trained_to_predict_targets_decides_without_them(tmp_path: Path) -> None:
    env = EnvConfig(id="tests.entity_gym.pools.test_targets:Hidden")
    train(tiny_config(tmp_path / "run", env=env, ppo=PPOConfig(target_coef=1.0), total_timesteps=32))
    policy, shown = load_policy(tmp_path / "run", greedy=True), Hidden().as_environment().reset()
    assert policy.obs_space.targets and shown.targets
    told, untold = policy.act_all([shown, replace(shown, targets={})])
    assert told.actions["wait"].actions.tolist() == untold.actions["wait"].actions.tolist()  # type: ignore[union-attr]
    served = ServedPolicies(load_checkpoint(tmp_path / "run"), CPU, ServeConfig(checkpoint="run", greedy=True))
    served.warm_up()
    fitted = served.policy(spaces_to_dict(policy.obs_space, policy.action_space))
    door = {"features": {"Door": [[0]]}, "ids": {"Door": ["door"]}, "actions": {"wait": {}}}
    for observation in (door, {**door, "targets": {"steps": [0], "number": [8]}}):
        [answer] = served.decide([served.read(fitted, {"type": "act", "observation": observation})])
        assert answer["actions"] == {"wait": {"actors": ["door"], "choices": told.actions["wait"].actions.tolist()}}  # type: ignore[union-attr]


def test_an_agent_remembers_its_game_whatever_it_decides_until_the_game_is_over(tmp_path: Path) -> None:
    """Both actions of a program are steps of one episode."""
    net = RogueNetConfig(d_model=16, n_layer=1, n_head=2, memory="entity")
    train(tiny_config(tmp_path / "a", env=EnvConfig(id=f"{__name__}:two"), net=net, total_timesteps=64))
    agent = load_agent(tmp_path / "a", greedy=True)

    def asked(kind: type[enum.Enum]) -> Obs[Any]:
        return Obs(kind, score=0, entities=[Apple(1.0)], actors=[Me(0.0, False)])

    def values(*kinds: type[enum.Enum]) -> list[float]:
        agent.game_over(asked(Turn))
        return [agent.decide(asked(kind)).value for kind in kinds]

    (turn,), (eat,) = values(Turn), values(Eat)
    assert values(Turn) == [turn] and values(Eat) == [eat], "the game before is forgotten"
    assert values(Turn, Turn)[1] != turn and values(Eat, Turn)[1] != turn
