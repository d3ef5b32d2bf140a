"""Chained actions on all ways of a policy: a later choice is always judged after the earlier choice that was really taken."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo import EnvConfig, load_policy, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.eval.evaluate import evaluate_checkpoint
from enn_ppo.eval.policy import Policy
from enn_ppo.ppo import Advantages, Samples
from enn_ppo.settings.evaluation import EpisodesConfig
from enn_ppo.settings.learning import PPOConfig, PPOSettings
from enn_ppo.training.learning.teacher import Teacher, TeacherLoss
from enn_ppo.training.recording import read_all
from enn_ppo.training.self_play.opponents import RANDOM, Opponents
from entity_gym.actions.choices import check_actions
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.bridges.remote.messages import decode, encode, spaces_from_json
from entity_gym.pools.players import players_of
from entity_gym.pools.pool import ListEnv
from entity_gym.pools.seats import SeatedVecEnv
from entity_gym.pools.source import as_source
from rogue_net import FittedNet, RogueNet
from tests.chain_worlds import Doorway
from tests.enn_ppo.recordings import collector_of, net_for, record
from tests.enn_ppo.rows import assert_same_end, rows_without_times
from tests.enn_ppo.served import Running
from tests.enn_ppo.worlds import StopAfter, tiny_config

CPU = torch.device("cpu")


def config(run_dir: Path, **changes: Any) -> Any:
    return tiny_config(run_dir, env=EnvConfig(id="tests.chain_worlds:Doorway"), checkpoint_interval=64, **changes)


def test_a_recording_has_all_that_later_choices_depend_on(tmp_path: Path) -> None:
    """The net that was recorded gives the recorded actions the recorded log-probs; so cloning maximises the right ones."""
    record(tmp_path / "a", Doorway)
    frames, net = read_all(tmp_path / "a"), net_for(Doorway())
    assert frames.obs.action_masks["use"].mask_after is not None
    found = net.evaluate(frames.obs, frames.actions).log_probs
    for name, log_probs in frames.log_probs.items():
        torch.testing.assert_close(found[name].values, log_probs.values)


def test_the_teacher_is_judged_after_the_choices_of_the_policy() -> None:
    policy, teacher = net_for(Doorway(), seed=1), net_for(Doorway(), seed=2)
    rollout = collector_of(Doorway, 3, net=policy).collect(6)
    samples = Samples.of(rollout, Advantages(torch.zeros_like(rollout.by_step("values")), rollout.by_step("values")))
    settings = PPOSettings.at(PPOConfig(teacher="out/a", teacher_kl=1.0))

    def divergence(net: RogueNet) -> float:
        batch = replace(samples, teacher=Teacher(copy.deepcopy(net)).logits(rollout)).weighed(settings)
        new = policy.evaluate(batch.obs, batch.actions)
        return float(TeacherLoss()(new, batch, settings)[1]["teacher_kl"].detach())

    assert abs(divergence(policy)) < 1e-5
    found, batch = divergence(teacher), samples.weighed(settings)
    with torch.no_grad():
        new, p = policy.evaluate(batch.obs, batch.actions), teacher.evaluate(batch.obs, batch.actions).logits
    weights = batch.weights[batch.actions["fire"].sequences]
    by_hand = 0.0
    for name in ("fire", "move", "use"):
        terms = torch.where(p[name] > -np.inf, p[name].exp() * (p[name] - new.logits[name]), 0.0)
        by_hand += float((weights * terms.sum(1)).sum().detach())
    assert 0 < by_hand < found


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    train(config(tmp_path / "whole"))
    train(config(tmp_path / "parts"), callbacks=[StopAfter(64)])
    train(config(tmp_path / "parts", resume=str(tmp_path / "parts")))
    assert rows_without_times(tmp_path / "whole") == rows_without_times(tmp_path / "parts")
    assert_same_end(tmp_path / "parts", tmp_path / "whole")


def test_a_trained_policy_evaluates_explains_and_plays(tmp_path: Path) -> None:
    train(config(tmp_path, total_timesteps=64))
    checkpoint = load_checkpoint(tmp_path)
    settings = EpisodesConfig(episodes=2, num_envs=2)
    replay: Any = evaluate_checkpoint(checkpoint, settings, Doorway, CPU, replay=1).replay
    assert replay is not None
    # a later choice that was taken has a probability after the earlier choice that was taken: never 0
    taken = 0
    for view in (view for step in replay["episodes"][0]["steps"] for view in step["views"]):
        for name in ("use", "fire"):
            shown = view["actions"].get(name, {"chosen": [], "probs": []})
            for chosen, row in zip(shown["chosen"], shown["probs"], strict=True):
                assert row[chosen] > 0
                taken += 1
    assert taken > 0
    policy, env = load_policy(tmp_path), Doorway()
    obs = env.reset()
    for _ in range(4):
        obs = env.act(policy.act(obs).actions)
    assert obs.done


def test_the_server_answers_with_actions_that_go_together(tmp_path: Path) -> None:
    train(config(tmp_path, total_timesteps=64))
    closed = [[[True, False, True], [False, True, False]], [[False, False, True], [True, False, False]]]
    question: Any = {
        "features": {"Robot": [[0, 0.5], [1, 0.2]], "Door": [[0.1], [0.9]]},
        "ids": {"Robot": ["a", "b"], "Door": ["c", "d"]},
        "global_features": [0],
        "actions": {
            "use": {"actor_ids": ["b", "a"], "mask_after": closed},
            "aim": {"actor_types": ["Robot"], "actee_types": ["Door"]},
        },
    }
    aimed = set()
    with Running(load_checkpoint(tmp_path)) as server:
        client = server.client()
        assert spaces_from_json(client.policy["spaces"]) == (Doorway().obs_space(), Doorway().action_space())
        for _ in range(30):
            actions = client.ask(question)["actions"]
            aims = dict(zip(actions["aim"]["actors"], actions["aim"]["actees"], strict=True))
            for robot, (actor, choice) in enumerate(
                zip(actions["use"]["actors"], actions["use"]["choices"], strict=True)
            ):
                if actor in aims:
                    assert closed[robot]["cd".index(aims[actor])][choice]
                    aimed.add((actor, aims[actor]))
    assert len(aimed) > 1


@pytest.mark.parametrize("opponent", [RANDOM, 5])
def test_players_see_the_choices_of_their_own_actors(opponent: int) -> None:
    """The pool checks the actions of both sides together, and the world asserts what it closes."""
    net = net_for(Doorway())
    pool = ListEnv(Doorway, 4, 0)
    mapping = players_of(as_source(Doorway))
    assert mapping is not None
    policies = {opponent: None if opponent == RANDOM else Policy(FittedNet(net))}
    seated = SeatedVecEnv(pool, mapping, Opponents(policies, lambda n, rng: np.full(n, opponent), pool))
    learner, obs = Policy(FittedNet(net), torch.Generator().manual_seed(0)), seated.reset(0)
    for _ in range(12):
        actions = learner.act(obs).buffers
        check_actions(actions, obs.action_masks, pool.action_space(), str)
        obs = seated.act(actions)


def test_spaces_and_masks_are_the_same_in_messages() -> None:
    saved = spaces_to_dict(Doorway().obs_space(), Doorway().action_space())
    message = decode(encode({"type": "worlds", "spaces": saved})[4:])
    assert spaces_from_json(message["spaces"]) == (Doorway().obs_space(), Doorway().action_space())
    assert json.loads(json.dumps(saved)) == saved
