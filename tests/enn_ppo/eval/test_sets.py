"""Sets that a trained policy selects: played by an agent, told with probabilities, shown in replays and as advice."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo import EnvConfig, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import CPU
from enn_ppo.eval.evaluate import evaluate_checkpoint
from enn_ppo.eval.policy import fit
from enn_ppo.play import advice
from enn_ppo.serve.agent import load_agent
from enn_ppo.serve.policy import ServedPolicies
from enn_ppo.settings.evaluation import EpisodesConfig
from enn_ppo.settings.serving import ServeConfig
from entity_gym.agents import Agent, Obs, Selection, TrainEnv
from entity_gym.play.game import Game
from tests.enn_ppo.replay_contract import check_replay
from tests.enn_ppo.worlds import tiny_config


class Pack(Selection, max=2, ordered=True):
    """Boxes, the first at the bottom."""


class Wash(Selection):
    """Any boxes."""


class Keep(Selection, min=1, max=2):
    """One box or two."""


@dataclass
class Packer:
    pass


@dataclass
class Box:
    weight: float


def boxes(rng: random.Random) -> list[Box]:
    return [Box(rng.random()) for _ in range(rng.randint(1, 4))]


def pack_and_wash(agent: Agent, config: Any, seed: int) -> None:
    """A game is one set of each kind, the heavier the better."""
    rng = random.Random(seed)
    while True:
        score = 0.0
        for action in (Pack, Wash, Keep):
            chosen = agent.act(Obs(action, score=score, entities=boxes(rng), actors=[Packer()]))
            if chosen is None:
                return
            score += sum(box.weight for box in chosen)
        agent.game_over(Obs(Pack, score=score))


env = TrainEnv(pack_and_wash, [Packer, Box], [Pack, Wash, Keep])


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "sets"
    train(tiny_config(folder, env=EnvConfig(id="tests.enn_ppo.eval.test_sets:env"), total_timesteps=64))
    return folder


def obs(action: Any, count: int = 3, **changes: Any) -> Obs[Any]:
    return Obs(
        action, score=0.0, **{"entities": [Box(k / 3) for k in range(count)], "actors": [Packer(), Packer()]} | changes
    )


def test_an_agent_selects_objects_and_tells_how_likely_each_was(run_dir: Path) -> None:
    agent = load_agent(run_dir)
    for action, width in ((Pack, 4), (Wash, 3), (Keep, 3)):
        shown = obs(action)
        decision = agent.decide(shown)
        assert decision.probabilities.shape == (2, width)
        for chosen in decision.actions:
            assert isinstance(chosen, action)
            assert {id(box) for box in chosen} <= {id(box) for box in shown.entities}
    np.testing.assert_allclose(agent.decide(obs(Pack)).probabilities.sum(axis=1), 1, rtol=1e-5)
    allowed = obs(Pack)
    allowed.allowed = [[allowed.entities[1]], []]
    decision = agent.decide(allowed)
    assert decision.probabilities[1].tolist() == [0, 1] and decision.actions[1] == []
    for action in (Pack, Wash, Keep):
        assert agent.decide(obs(action, count=0)).actions == [[], []]
    assert agent.decide(obs(Pack, actors=[])).actions == []


def test_the_server_tells_sets_and_their_probabilities(run_dir: Path) -> None:
    served = ServedPolicies(load_checkpoint(run_dir), CPU, ServeConfig(checkpoint=str(run_dir), greedy=True))
    offer = {"actor_types": ["Packer"], "actee_types": ["Box"]}
    asked = {
        "features": {"Packer": [[]], "Box": [[0.5], [0.25]]},
        "ids": {"Packer": ["p"], "Box": ["a", "b"]},
        "actions": {"Pack": offer, "Wash": offer},
    }
    request = served.read(served.trained, {"type": "act", "observation": asked, "probabilities": True})
    (answer,) = served.decide([request])
    told = answer["probabilities"]
    assert told["Pack"]["actees"] == told["Wash"]["actees"] == ["a", "b"]
    (first,), (washed,) = told["Pack"]["rows"], told["Wash"]["rows"]
    assert sum(first) == pytest.approx(1, abs=1e-5) and len(first) == 3
    (packed,), (kept,) = answer["actions"]["Pack"]["actees"], answer["actions"]["Wash"]["actees"]
    assert packed[:1] == ["a", "b", ""][int(np.argmax(first))].split()
    assert kept == [box for box, probability in zip("ab", washed, strict=True) if probability > 0.5]


def test_a_replay_shows_the_sets_that_were_selected(run_dir: Path) -> None:
    settings = EpisodesConfig(episodes=4, num_envs=2)
    replay: Any = evaluate_checkpoint(load_checkpoint(run_dir), settings, env, CPU, replay=4).replay
    check_replay({**replay, "order": list(replay["entities"])})
    views = [view for episode in replay["episodes"] for step in episode["steps"] for view in step["views"]]
    shown = [(name, decision) for view in views for name, decision in view["actions"].items()]
    assert {name for name, _ in shown} == {"Pack", "Wash", "Keep"}
    for _, decision in shown:  # whatever was selected was not impossible
        assert all(decision["probs"][0][column] > 0 for column in decision["chosen"][0])


def test_a_policy_advises_sets(run_dir: Path) -> None:
    policy = fit(load_checkpoint(run_dir), *env.spaces(), "the test", torch.Generator().manual_seed(1))
    known: dict[int, Any] = {}
    game = Game(env, 0, lambda shown: advice(policy, known, shown))
    for _ in range(3):
        actions = game.replay["episodes"][0]["steps"][-1]["views"][0]["actions"]
        for decision in actions.values():
            assert len(decision["probs"][0]) - len(decision["actees"]) in (0, 1)
        game.act({"actions": {name: decision["advised"] for name, decision in actions.items()}})
    assert game.moments[-1].obs.done[0]
    game.close()
