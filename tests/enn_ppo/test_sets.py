"""Sets on all ways of a policy: what trains, judges, copies, plays and answers treats them as any other action."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from enn_ppo import (
    CloneConfig,
    CloningConfig,
    EnvConfig,
    EvalConfig,
    OptimConfig,
    PPOConfig,
    RogueNetConfig,
    RolloutConfig,
    SelfPlayConfig,
    clone,
    evaluate,
    load_policy,
    train,
)
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import load_net
from enn_ppo.eval.evaluate import evaluate_checkpoint
from enn_ppo.eval.policy import Policy
from enn_ppo.export import main as export
from enn_ppo.ppo import Advantages, Samples, update
from enn_ppo.settings.evaluation import EpisodesConfig
from enn_ppo.settings.learning import PPOSettings
from enn_ppo.training.learning.teacher import Teacher, TeacherLoss
from enn_ppo.training.recording import read_all
from enn_ppo.training.self_play.opponents import RANDOM, Opponents
from enn_ppo.training.tracking.metrics import summarize
from entity_gym import ActionSpace, SelectEntitiesActionSpace
from entity_gym.actions.choices import check_actions
from entity_gym.bridges.remote.messages import spaces_from_json
from entity_gym.pools.players import players_of
from entity_gym.pools.pool import ListEnv
from entity_gym.pools.seats import SeatedVecEnv
from entity_gym.pools.source import as_source
from rogue_net import ActResult, FittedNet, FrameKeys, ObsBatch, RaggedTensor
from tests.enn_ppo.recordings import collector_of, net_for, record, recorder_for
from tests.enn_ppo.rows import assert_same_end, rows_of, rows_without_times
from tests.enn_ppo.served import Running
from tests.enn_ppo.worlds import StopAfter, tiny_config
from tests.set_worlds import Market, Shelf, Stall

CPU = torch.device("cpu")
NET = RogueNetConfig(d_model=16, n_layer=1, n_head=2)
SETS = [name for name, space in Market().action_space().items() if isinstance(space, SelectEntitiesActionSpace)]


def config(run_dir: Path, world: str = "Market", **changes: Any) -> Any:
    """5 updates of 24 frames, some of which begin in the middle of episodes."""
    settings = {"rollout": RolloutConfig(num_envs=4, steps=6), "total_timesteps": 120, "checkpoint_interval": 48}
    return tiny_config(run_dir, env=EnvConfig(id=f"tests.set_worlds:{world}"), **(settings | changes))


@pytest.fixture(scope="module", params=["Market", "Stall"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run in the world that is the folder's name; by PyTorch's modules in a market, and compiled in a stall."""
    run_dir: Path = tmp_path_factory.mktemp("runs") / request.param
    train(config(run_dir, request.param))
    assert (load_net(load_checkpoint(run_dir), device=CPU).program() is not None) == (request.param == "Stall")
    return run_dir


def world_of(run: Path) -> type[Market]:
    return {"Market": Market, "Stall": Stall}[run.name]


# --- Recordings, clones and teachers


def test_a_recording_has_all_that_sets_depend_on(tmp_path: Path) -> None:
    """The net that was recorded gives the recorded sets the recorded log-probs."""
    record(tmp_path / "a", Market)
    frames, net = read_all(tmp_path / "a"), net_for(Market())
    found = net.evaluate(frames.obs, frames.actions).log_probs
    for name, log_probs in frames.log_probs.items():
        torch.testing.assert_close(found[name].values, log_probs.values)
    for name in SETS:
        assert len(frames.actions[name].values) != len(frames.log_probs[name].values), "a set is a number for each pair"
        assert frames.actions[name].values.max() > 0


class Librarian:
    """Does what is right in `Shelf`."""

    def act(self, batch: ObsBatch, state: None = None, *, generator: FrameKeys) -> ActResult:
        (wanted, sizes), books = batch.features["Book"].values.unbind(1), batch.features["Book"]
        before = books.sequences.unsqueeze(1) == books.sequences
        ranks = (before & (sizes > sizes.unsqueeze(1))).sum(dim=1) + 1
        actors = batch.action_masks["take"].actors
        certain = RaggedTensor(torch.zeros(len(actors.values)), actors.offsets)
        return ActResult(
            {
                "take": RaggedTensor(wanted.long()[:, None], books.offsets),
                "line": RaggedTensor(ranks[:, None], books.offsets),
            },
            {"take": certain, "line": certain},
            self.value(batch),
        )

    def value(self, batch: ObsBatch, state: None = None) -> Tensor:
        return torch.ones(len(batch))


def test_a_clone_selects_and_orders_as_it_has_seen(tmp_path: Path) -> None:
    collector = collector_of(Shelf, 16, net=Librarian())
    collector.recorder = recorder_for(tmp_path / "lessons", Shelf())
    collector.collect(40)
    training = tiny_config(tmp_path / "run", env=EnvConfig(), optim=OptimConfig(batch_size=32, lr=0.01))
    result = clone(
        CloneConfig(**vars(training), data=str(tmp_path / "lessons"), clone=CloningConfig(epochs=10)), env=Shelf
    )
    assert float(result.metrics["holdout_loss"] or 9) < 0.5
    score = evaluate(EvalConfig(checkpoint=str(tmp_path / "run"), episodes=200, greedy=True, device="cpu"), env=Shelf)
    assert score.estimates["episodic_reward"].mean > 0.9


def samples_for(policy: Any, teacher: Any) -> Samples:
    rollout = collector_of(Market, 3, net=policy).collect(6)
    samples = Samples.of(rollout, Advantages(torch.zeros_like(rollout.by_step("values")), rollout.by_step("values")))
    return replace(samples, teacher=Teacher(copy.deepcopy(teacher)).logits(rollout))


def test_the_divergence_from_a_teacher_is_that_of_all_decisions_and_0_from_itself() -> None:
    policy, teacher = net_for(Market(), seed=1), net_for(Market(), seed=2)
    settings = PPOSettings.at(PPOConfig(teacher="out/a", teacher_kl=1.0))

    def divergence(samples: Samples) -> float:
        batch = samples.weighed(settings)
        new = policy.evaluate(batch.obs, batch.actions)
        return float(TeacherLoss()(new, batch, settings)[1]["teacher_kl"].detach())

    assert abs(divergence(samples_for(policy, policy))) < 1e-6
    samples = samples_for(policy, teacher)
    batch = samples.weighed(settings)
    with torch.no_grad():
        new, told = policy.evaluate(batch.obs, batch.actions).logits, teacher.evaluate(batch.obs, batch.actions).logits
    assert batch.teacher is not None
    by_hand = 0.0
    for name, p in told.items():
        torch.testing.assert_close(batch.teacher[name].values, p)
        terms = torch.where(p > -np.inf, p.exp() * (p - new[name]), 0.0).sum(dim=1)
        by_hand += float((batch.weights[batch.teacher[name].sequences] * terms).sum())
    assert divergence(samples) == pytest.approx(by_hand, rel=1e-4) and by_hand > 0.01
    # of a part of the frames, in another order, it is the divergence of these
    chosen = torch.tensor([7, 2, 3, 16])
    part, of_part = replace(batch.gather(chosen)), {name: each.gather(chosen) for name, each in batch.teacher.items()}
    found = policy.evaluate(part.obs, part.actions)
    for name, each in of_part.items():
        assert part.teacher is not None
        torch.testing.assert_close(part.teacher[name].values, each.values)
        assert len(found.logits[name]) == len(each.values)


# --- Minibatches


def test_sets_are_cut_gathered_and_joined_with_their_frames() -> None:
    samples = samples_for(net_for(Market()), net_for(Market(), seed=1))
    order = torch.randperm(18, generator=torch.Generator().manual_seed(0))
    net = net_for(Market(), seed=2)
    whole = net.evaluate(samples.obs, samples.actions)
    shuffled = samples.gather(order, all_of_them=True)
    for part, frames in zip(shuffled.split([5, 1, 12]), order.split([5, 1, 12]), strict=True):
        found = net.evaluate(part.obs, part.actions)
        for name in samples.actions:
            for each, own in ((whole.log_probs, found.log_probs), (whole.entropies, found.entropies)):
                expected = each[name].gather(frames)
                torch.testing.assert_close(own[name].values, expected.values, atol=1e-5, rtol=1e-5)
                assert torch.equal(own[name].offsets, expected.offsets)


@pytest.mark.parametrize("ratio", ["per_actor", "joint"])
def test_the_size_of_micro_batches_changes_nothing(ratio: Any) -> None:
    rollout = collector_of(Market, 4, net=net_for(Market())).collect(6)
    values = rollout.by_step("values")
    samples = Samples.of(
        rollout, Advantages(torch.randn(values.shape, generator=torch.Generator().manual_seed(0)), values)
    )

    def learned(size: int | None) -> tuple[dict[str, float], Tensor]:
        net = net_for(Market())
        before = torch.cat([each.detach().flatten() for each in net.parameters()])
        stats = update(
            net,
            torch.optim.SGD(net.parameters(), lr=1.0),
            samples,
            OptimConfig(batch_size=24, epochs=1, micro_batch_size=size, max_grad_norm=1e9),
            PPOSettings.at(PPOConfig(ratio=ratio, ent_coef=0.1)),
            generator=torch.Generator().manual_seed(0),
        )
        return stats, torch.cat([each.detach().flatten() for each in net.parameters()]) - before

    (stats, change), (other, of_parts) = learned(None), learned(7)
    assert stats == pytest.approx(other, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(of_parts, change, atol=1e-5, rtol=1e-3)
    assert change.norm() > 0.01 and abs(stats["approx_kl"]) < 1e-6


# --- Exact resume

#: Settings, and in which world.
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "compiled": {"world": "Stall"},
    "compiled, joint, short sequences": {
        "world": "Stall",
        "optim": OptimConfig(batch_size=16, epochs=2, sequence_length=3),
        "ppo": PPOConfig(ratio="joint", weighting="frame"),
    },
    "micro-batches, joint": {
        "optim": OptimConfig(batch_size=16, epochs=2, micro_batch_size=6),
        "ppo": PPOConfig(ratio="joint"),
    },
    "two halves": {"rollout": RolloutConfig(num_envs=4, steps=6, pipeline=2)},
    "a value network": {"value_net": NET},
    "memory": {"net": replace(NET, memory="both"), "value_net": replace(NET, memory="frame")},
    "compiled, memory": {"world": "Stall", "net": replace(NET, memory="both")},
    "self-play": {"self_play": SelfPlayConfig(enabled=True, snapshot_interval=24, pool_size=2)},
    "compiled, self-play": {
        "world": "Stall",
        "self_play": SelfPlayConfig(enabled=True, snapshot_interval=24, pool_size=2),
    },
    "policies": {"policies": {"red": [0], "blue": [1]}},
    "a policy of both players": {"policies": {"both": [1, 0]}, "net": replace(NET, memory="entity")},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_was_stopped_and_resumed_is_the_one_that_was_not(name: str, tmp_path: Path) -> None:
    check_resume(tmp_path, **RUNS[name])


def test_a_run_with_a_teacher_that_was_stopped_and_resumed_is_the_one_that_was_not(run: Path, tmp_path: Path) -> None:
    check_resume(tmp_path, world=run.name, ppo=PPOConfig(teacher=str(run)))
    assert 0 < min(row["teacher_kl"] for row in rows_of(tmp_path / "whole"))


def check_resume(tmp_path: Path, **changes: Any) -> None:
    train(config(tmp_path / "whole", **changes))
    train(config(tmp_path / "parts", **changes), callbacks=[StopAfter(48)])
    train(config(tmp_path / "parts", resume=str(tmp_path / "parts"), **changes))
    for policy in changes.get("policies", {"": []}):
        whole, parts = tmp_path / "whole" / policy, tmp_path / "parts" / policy
        assert rows_without_times(parts) == rows_without_times(whole)
        assert_same_end(parts, whole)
        rows = rows_of(whole)
        assert len(rows) == 5 and all(row["grad_norm"] > 0 for row in rows)


# --- Metrics


def test_metrics_tell_the_mean_size_of_sets(run: Path) -> None:
    rollout = collector_of(Market, 3).collect(6)
    played = summarize(rollout, Market().action_space())
    for name in SETS:
        selected = sum(int((values > 0).sum()) for values in rollout.frames.actions[name].values)
        share = played.shares[f"actions/{name}/selected"]
        assert (share.sum, share.count) == (selected, len(rollout.frames.log_probs[name].values))
        assert played.actors[name] == share.count
        for row in rows_of(run):
            assert 0 <= row[f"actions/{name}/selected"] <= 8
    assert {name for name in rows_of(run)[0] if name.startswith("actions/")} == {
        *(f"actions/{name}/selected" for name in SETS),
        *(f"actions/{name}/{label}" for name in ("greet", "haggle") for label in ("no", "yes")),
    }


# --- Playing


def test_a_trained_policy_evaluates_explains_plays_and_is_exported(run: Path, tmp_path: Path) -> None:
    replay: Any = evaluate_checkpoint(
        load_checkpoint(run), EpisodesConfig(episodes=2, num_envs=2), world_of(run), CPU, replay=1
    ).replay
    views = [view for step in replay["episodes"][0]["steps"] for view in step["views"]]
    assert any(name in view["actions"] for view in views for name in SETS)

    assert export([str(run), str(tmp_path / "file.safetensors")]) == 0
    scores = set()
    for path in (run, tmp_path / "file.safetensors"):
        found = evaluate(EvalConfig(checkpoint=str(path), episodes=4, num_envs=2, greedy=True, device="cpu"))
        scores.add(found.estimates["episodic_reward"].mean)
        policy, env = load_policy(path), world_of(run)()
        obs = env.reset()
        for _ in range(4):  # the world refuses sets that it has closed
            decided = policy.act(obs)
            assert decided.actions.keys() == obs.actions.keys() == decided.probabilities.keys()
            obs = env.act(decided.actions)
        assert obs.done
    assert len(scores) == 1


def test_a_recorded_evaluation_is_judged_as_it_was_played(run: Path, tmp_path: Path) -> None:
    evaluate(EvalConfig(checkpoint=str(run), episodes=6, num_envs=3, device="cpu", record=str(tmp_path / "a.rec")))
    frames, net = read_all(tmp_path / "a.rec"), load_net(load_checkpoint(run), device=CPU)
    found = net.evaluate(frames.obs, frames.actions).log_probs
    for name in SETS:
        torch.testing.assert_close(found[name].values, frames.log_probs[name].values, atol=1e-5, rtol=1e-5)


def test_the_server_answers_with_sets_that_are_on_offer(run: Path) -> None:
    question: Any = {
        "features": {"Buyer": [[0, 4], [1, 1]], "Ware": [[1, 2], [2, 0], [3, 1]]},
        "ids": {"Buyer": ["a", "b"], "Ware": ["x", "y", "z"]},
        "global_features": [0],
        "actions": {
            "buy": {"actor_ids": ["b", "a"], "actee_types": ["Ware"], "mask": [[True] * 3, [True, False, True]]},
            "share": {"actor_types": ["Buyer"], "actee_ids": ["z", "x", "y"]},
            "like": {"actor_ids": ["a"], "actee_types": ["Buyer", "Ware"]},
        },
    }
    seen: dict[str, set[Any]] = {name: set() for name in ("buy a", "buy b", "share", "like")}
    with Running(load_checkpoint(run)) as server:
        client = server.client()
        assert spaces_from_json(client.policy["spaces"]) == (Market().obs_space(), world_of(run)().action_space())
        for _ in range(50):
            answer = client.ask(question, probabilities=True)
            actions = answer["actions"]
            assert actions.keys() == answer["probabilities"].keys() == {"buy", "share", "like"}
            assert [actions[name]["actors"] for name in ("buy", "share", "like")] == [["b", "a"], ["a", "b"], ["a"]]
            seen["buy b"].add(tuple(actions["buy"]["actees"][0]))
            seen["buy a"].add(tuple(actions["buy"]["actees"][1]))
            seen["share"] |= {frozenset(each) for each in actions["share"]["actees"]}
            seen["like"] |= set(actions["like"]["actees"][0])
    assert seen["buy b"] == {(), ("x",)}  # all that a purse of 1 buys
    bought = {(), ("x",), ("z",), ("x", "z"), ("z", "x")}  # y is closed
    assert seen["buy a"] <= bought and len(seen["buy a"]) > 2 and max(map(len, seen["buy a"])) == 2
    sizes = {1, 2} if run.name == "Market" else {0, 1, 2, 3}
    assert {len(each) for each in seen["share"]} == sizes
    assert seen["like"] == {"b", "x", "y", "z"}  # not itself


# --- Several players


@pytest.mark.parametrize("opponents", [[RANDOM], [5], [RANDOM, 5, 7]])
def test_players_select_sets_for_their_own_actors(opponents: list[int]) -> None:
    """The pool checks the actions of both sides together, and the world asserts what it closes."""
    pool, mapping = ListEnv(Market, 6, 0), players_of(as_source(Market))
    assert mapping is not None
    policies = {each: None if each == RANDOM else Policy(FittedNet(net_for(Market(), each))) for each in opponents}
    draw = np.array(opponents)
    seated = SeatedVecEnv(pool, mapping, Opponents(policies, lambda n, rng: rng.choice(draw, n), pool))
    learner, obs = Policy(FittedNet(net_for(Market())), torch.Generator().manual_seed(0)), seated.reset(0)
    for _ in range(20):
        actions = learner.act(obs).buffers
        check_actions(actions, obs.action_masks, pool.action_space(), str)
        obs = seated.act(actions)


@pytest.mark.parametrize("opponent", ["policies", "past", "random"])
def test_policies_and_opponents_with_sets_play_evaluations(opponent: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"policies": {"red": [0], "blue": [1]}} if opponent == "policies" else RUNS["self-play"]
    train(config(tmp_path / "a", total_timesteps=72, **changes))
    run = tmp_path / "a" / ("red" if opponent == "policies" else "")
    found = evaluate(EvalConfig(checkpoint=str(run), episodes=6, num_envs=3, opponent=opponent, device="cpu"))
    assert found.estimates["episodic_reward"].n == 6


# --- Worlds that have changed


class Bazaar(Market):
    """A market in which more can be shared, and liked at least once; and wares may be thrown away."""

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {
            "throw": SelectEntitiesActionSpace(max=1),
            **super().action_space(),
            "share": SelectEntitiesActionSpace(max=3),
            "like": SelectEntitiesActionSpace(exclude_self=True, min=1),
        }


class Sale(Market):
    """A market in which nobody has a purse."""

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {**super().action_space(), "buy": SelectEntitiesActionSpace(ordered=True, after="haggle")}


def test_a_run_goes_on_where_sets_have_other_limits_and_another_action_selects_some(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = EnvConfig(id="tests.enn_ppo.test_sets:Bazaar")
    train(replace(config(tmp_path / "a", resume=str(run), total_timesteps=168), env=changed))
    said = capsys.readouterr().out
    for news in (
        "action 'throw' is new: untrained",
        "action 'share' now selects 0 to 3 entities",
        "action 'like' now selects 1 to all entities",
    ):
        assert news in said
    rows = rows_of(tmp_path / "a")
    assert len(rows) == 2 and rows[-1]["actions/throw/selected"] <= 1 <= rows[-1]["actions/like/selected"]
    # and it plays there as it is
    found = evaluate(EvalConfig(checkpoint=str(run), episodes=4, num_envs=2, device="cpu"), env=Bazaar)
    assert found.estimates["episodic_reward"].n == 4


def test_a_run_does_not_go_on_where_a_budget_is_gone(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the action 'buy' has another cost or budget now: None, None"):
        changed = EnvConfig(id="tests.enn_ppo.test_sets:Sale")
        train(replace(config(tmp_path / "a", resume=str(run), total_timesteps=168), env=changed))
