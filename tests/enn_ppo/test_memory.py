"""The state of a policy is data: it follows the episodes of every environment, wherever the policy acts and learns."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from enn_ppo import EnvConfig, OptimConfig, RogueNetConfig, load_policy, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.eval.episodes import play_episodes
from enn_ppo.eval.evaluate import evaluate_checkpoint
from enn_ppo.eval.policy import Acted, Policy
from enn_ppo.play import advice
from enn_ppo.ppo import Samples, gae, ppo_loss, sequences_of, update
from enn_ppo.rollout import Rollout
from enn_ppo.settings.evaluation import EpisodesConfig
from enn_ppo.settings.learning import PPOConfig, PPOSettings
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.learning.vtrace import recompute_log_probs
from enn_ppo.training.policy_states import PolicyStates
from enn_ppo.training.self_play.opponents import Opponents
from entity_gym.batch.vec_obs import VecObs
from entity_gym.pools.pool import ListEnv
from rogue_net import FittedNet, RaggedTensor
from rogue_net.explain import explain
from tests.enn_ppo.remembering import Counting, Crowd, by_frame, ids_of, worth, worth_of_frames
from tests.enn_ppo.rollouts import Collector
from tests.enn_ppo.rows import assert_same_end, rows_without_times
from tests.enn_ppo.served import Client, Running
from tests.enn_ppo.worlds import StopAfter, tiny_config

CPU, NUM_ENVS = torch.device("cpu"), 3


def counting() -> Counting:
    torch.manual_seed(0)
    return Counting(RogueNetConfig(d_model=8, n_layer=1, n_head=1), Crowd().obs_space(), Crowd().action_space())


def collector(net: Counting, seed: int = 0) -> Collector:
    made = Collector(ListEnv(Crowd, NUM_ENVS, seed), net, CPU, 0)
    made.reset(seed)
    return made


def samples(rollout: Rollout) -> Samples:
    columns = ("rewards", "values", "terminated", "truncated", "final_values")
    return Samples.of(rollout, gae(*map(rollout.by_step, columns), rollout.last_values, gamma=0.9, gae_lambda=1))


# --- Rollouts


def test_a_rollout_goes_on_from_what_was_known_and_forgets_where_an_episode_begins() -> None:
    net = counting()
    block = collector(net)
    whole = collector(net).collect(24).frames
    parts = [block.collect(12) for _ in range(2)]
    expected = worth_of_frames(whole, NUM_ENVS)
    assert torch.equal(torch.cat([part.by_step("values") for part in parts]), expected)
    assert torch.equal(parts[0].last_values, expected[12]), "the value after the last step knows what came before"
    assert len({int(step) for step in whole.step}) > 3 and whole.truncated.any() and whole.terminated.any()


def test_the_last_observation_of_a_truncated_episode_is_valued_with_what_was_known_in_it() -> None:
    block, steps = collector(counting()), []
    act = block.vec_env.act
    block.vec_env.act = lambda *arguments: steps.append(act(*arguments)) or steps[-1]  # type: ignore
    rollout = block.collect(24)
    people, step = ids_of(rollout.frames.obs), rollout.by_step("step")
    ended = [(t, final, row) for t, obs in enumerate(steps) if (final := obs.final) for row in range(len(final))]
    assert len(ended) > 2
    for t, final, row in ended:
        env = int(final.env_id[row])
        episode = [people[k * NUM_ENVS + env] for k in range(t - int(step[t, env]), t + 1)]
        episode.append(final.ids["Person"][row].values[:, 0].tolist())
        assert rollout.by_step("final_values")[t, env] == worth(episode, [True] + [False] * (len(episode) - 1))[-1]


def test_a_policy_that_remembers_nothing_has_no_state() -> None:
    states = PolicyStates()
    states.keep(np.arange(2), None)
    assert states.recall(np.arange(2), np.zeros(2, bool)) is None and states.state() is None


def test_states_are_found_by_their_keys() -> None:
    def state(*rows: list[int]) -> Any:
        offsets = torch.tensor([0, *np.cumsum([len(row) for row in rows])])
        return {"ids": RaggedTensor(torch.tensor([[x] for row in rows for x in row]), offsets)}

    def recall(*keys: int, begins: bool = False) -> list[list[int]]:
        values, offsets = states.recall(np.array(keys), np.full(len(keys), begins))["ids"]  # type: ignore[index]
        return [values[a:b, 0].tolist() for a, b in zip(offsets[:-1], offsets[1:], strict=True)]

    states = PolicyStates()
    states.keep(np.array([7, 3]), state([1, 2], [5]))
    assert recall(3, 9, 7) == [[5], [], [1, 2]] and recall(3, begins=True) == [[]]
    states.keep(np.array([9, 7]), state([8], []))
    assert recall(3, 7, 9) == [[5], [], [8]]
    states.forget(np.array([9]))
    twin = PolicyStates()
    twin.load_state(states.state(), CPU)
    states = twin
    assert recall(9, 3) == [[], [5]]


# --- Learning


def test_minibatches_are_of_frames_with_what_was_known_or_of_whole_sequences() -> None:
    net, seen = counting(), []
    rollout = collector(net).collect(12)

    def spy(*arguments: Any) -> Any:
        seen.append(arguments[1])
        return ppo_loss(*arguments)

    def learn(optim: OptimConfig, length: int) -> None:
        seen.clear()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        settings, generator = PPOSettings.at(PPOConfig()), torch.Generator().manual_seed(0)
        sequences = sequences_of(12 * NUM_ENVS, NUM_ENVS, length)
        update(net, optimizer, samples(rollout), optim, settings, generator=generator, loss=spy, sequences=sequences)

    learn(OptimConfig(batch_size=12, micro_batch_size=4, epochs=1), 1)
    assert [len(batch) for batch in seen] == [4] * 9 and not any(batch.follows.any() for batch in seen)
    for batch in seen:
        assert torch.equal(net.evaluate(batch.obs, batch.actions, batch.state).values, batch.values)
    learn(OptimConfig(batch_size=24, micro_batch_size=9, epochs=1), 4)
    assert [len(batch) for batch in seen] == [8, 8, 4, 8, 8], "micro-batches do not cut sequences"
    for batch in seen:
        assert not batch.follows[::4].any() and torch.equal(batch.follows[1::4], batch.step[1::4] > 0)
        found = net.evaluate(batch.obs, batch.actions, batch.state, batch.follows).values
        assert torch.equal(found, batch.values)
    learn(OptimConfig(batch_size=24, micro_batch_size=13, epochs=1), 12)
    assert [len(batch) for batch in seen] == [12] * 3
    for batch in seen:
        assert len(batch.env_id.unique()) == 1 and torch.equal(batch.follows[1:], batch.step[1:] > 0)
        assert not batch.follows[0]
        found = net.evaluate(batch.obs, batch.actions, batch.state, batch.follows).values
        assert torch.equal(found, batch.values)
        # with what was known in the rollout, each value is one gain of each person; in a sequence all that came before it
        (of_sequence,) = torch.autograd.grad(found.sum(), net.gain)
        assert float(of_sequence) == float(found.detach().sum()) > sum(map(len, by_frame(batch.state)))


def test_stale_rollouts_are_evaluated_in_both_ways() -> None:
    net = counting()
    rollout = collector(net).collect(12)
    net.gain.data.fill_(2.0)
    of_frames, _ = recompute_log_probs(ActorCritic(net), rollout, sequences_of(36, NUM_ENVS, 1))
    known = torch.tensor([float(sum(each.values())) for each in by_frame(rollout.frames.state)])
    num_people = rollout.frames.obs.ids["Person"].lengths
    assert ((of_frames.frames.values - 2 * num_people) <= known).all(), "the states are those of the rollout"
    whole, log_ratios = recompute_log_probs(ActorCritic(net), rollout, sequences_of(36, NUM_ENVS, None))
    assert torch.equal(whole.frames.values, 2 * rollout.frames.values) and log_ratios.abs().max() < 1e-5


def test_sequences_are_consecutive_steps_of_an_environment() -> None:
    assert sequences_of(6, 3, None).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert sequences_of(8, 2, 2).tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert sequences_of(12, 2, 4).shape == (4, 3), "6 steps are no multiple of 4, but of 3"
    assert sequences_of(4, 4, 1, group_size=2).tolist() == [[0, 1], [2, 3]], "equal frames stay together"
    assert sequences_of(8, 2, 99).shape == (2, 4) and sequences_of(8, 2, 1).tolist() == [[k] for k in range(8)]


@pytest.fixture
def remembering(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("enn_ppo.training.build", "enn_ppo.checkpoints.policy"):
        monkeypatch.setattr(f"{module}.RogueNet", Counting)


def config(run_dir: Path, **changes: Any) -> Any:
    optim = OptimConfig(batch_size=16, epochs=1)
    env = EnvConfig(id="tests.enn_ppo.remembering:Crowd")
    return tiny_config(run_dir, env=env, optim=optim, total_timesteps=160, checkpoint_interval=64, **changes)


def test_a_resumed_run_is_the_uninterrupted_one(remembering: None, tmp_path: Path) -> None:
    train(config(tmp_path / "whole"))
    train(config(tmp_path / "parts"), callbacks=[StopAfter(64)])
    assert load_checkpoint(tmp_path / "parts").trainer["collector"]["policies"][0]["known"]
    train(config(tmp_path / "parts", resume=str(tmp_path / "parts")))
    assert rows_without_times(tmp_path / "whole") == rows_without_times(tmp_path / "parts")
    assert_same_end(tmp_path / "parts", tmp_path / "whole")


# --- Acting


def test_an_evaluation_remembers_while_its_batch_shrinks() -> None:
    steps: list[tuple[VecObs, Tensor]] = []

    class Seen(Policy):
        def act(self, obs: VecObs, *keys: Any, **how: Any) -> Acted:
            acted = super().act(obs, *keys, **how)
            steps.append((obs, acted.values))
            return acted

    pool = ListEnv(Crowd, 4, 0, autoreset=False)
    play_episodes({"": Seen(FittedNet(counting()))}, pool, EpisodesConfig(episodes=6, num_envs=4))
    assert len({len(obs) for obs, _ in steps}) > 2
    for env in range(4):
        shown = [
            (obs.ids["Person"][row].values[:, 0].tolist(), bool(obs.elapsed_step[row] == 0), float(values[row]))
            for obs, values in steps
            for row in np.flatnonzero(obs.env_id == env)
        ]
        people, begins, values = zip(*shown, strict=True)
        assert worth(people, begins) == list(values)


def test_opponents_remember_by_player_and_are_saved() -> None:
    pool = ListEnv(Crowd, 2, 0)
    obs = pool.reset()
    twice = VecObs.cat([obs, obs])  # two players of each environment

    def values(who: Opponents) -> list[float]:
        who.act(twice, np.array([0, 1, 0, 1]))
        twice.elapsed_step[:] = 1
        ((acted, _),) = who.decided
        assert acted is not None
        return acted.values.tolist()

    def opponents() -> Opponents:
        return Opponents({5: Policy(FittedNet(counting()))}, lambda n, rng: np.full(n, 5), pool)

    who = opponents()
    assert [values(who), values(who)] == [[2.0] * 4, [4.0] * 4]
    loaded = opponents()
    loaded.load_state(who.state())
    assert [values(each) for each in (who, loaded)] == [[6.0] * 4] * 2


def test_a_loaded_policy_remembers_until_it_is_reset(remembering: None, tmp_path: Path) -> None:
    train(config(tmp_path))
    policy, env = load_policy(tmp_path), Crowd()
    first = env.reset()
    gain = policy.act(first).value / 2
    assert policy.remembers and policy.act(first).value == pytest.approx(4 * gain)
    both = policy.act_all([first, first])
    assert [each.value for each in both] == pytest.approx([6 * gain, 2 * gain]), "each environment for itself"
    policy.reset(0)
    assert [each.value for each in policy.act_all([first, first])] == pytest.approx([2 * gain, 4 * gain])
    policy.reset()
    assert policy.act(first).value == pytest.approx(2 * gain)


def test_advice_goes_back_with_the_player() -> None:
    advise = partial(advice, Policy(FittedNet(counting())), {})
    obs = ListEnv(Crowd, 1, 0).reset()

    def at(step: int) -> float | None:
        obs.elapsed_step[:] = step
        return advise(obs).value

    assert [at(step) for step in (0, 1, 2, 1, 2, 3, 0, 1)] == [2, 4, 6, 4, 6, 8, 2, 4]


def test_the_server_remembers_by_client_until_an_episode_begins_or_it_leaves(remembering: None, tmp_path: Path) -> None:
    train(config(tmp_path))
    checkpoint = load_checkpoint(tmp_path)
    gain = float(checkpoint.policy["gain"])
    question: Any = {"features": {"Person": [[0.0], [0.1]]}, "ids": {"Person": ["a", "b"]}, "actions": {"Wave": {}}}
    with Running(checkpoint) as server:
        one, other = server.client(), server.client()

        def ask(client: Client, **how: Any) -> float:
            question["ids"]["Person"].reverse()  # known by their ids, not by their places
            return float(client.ask(question, value=True, **how)["value"]) / (2 * gain)

        found = [ask(one), ask(one), ask(other), ask(one), ask(one, begins=True), ask(other), ask(one)]
        assert found == pytest.approx([1, 2, 1, 3, 1, 2, 2])
        for _ in range(4):  # answered one after the other, although they come together
            one.send({"type": "act", "observation": question, "value": True})
        assert [one.receive()["value"] / (2 * gain) for _ in range(4)] == pytest.approx([3, 4, 5, 6])
        one.send({"type": "close"})
        assert server.has_said(f"{one.name} left") and ask(server.client()) == pytest.approx(1)
        assert ask(other) == pytest.approx(3)


def test_a_replay_explains_with_what_was_known(remembering: None, tmp_path: Path) -> None:
    train(config(tmp_path))
    checkpoint = load_checkpoint(tmp_path)
    explained: list[Any] = []

    def spy(net: Any, batch: Any, state: Any, **how: Any) -> Any:
        explained.append((ids_of(batch), state and by_frame(state)))
        return explain(net, batch, state, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("enn_ppo.eval.replay.explain", spy)
        config_ = EpisodesConfig(episodes=1, num_envs=1)
        replay = evaluate_checkpoint(checkpoint, config_, Crowd, CPU, replay=1).replay
    assert replay is not None
    (episode,) = replay["episodes"]
    people = [of_frame for ((of_frame,), _) in explained]
    expected = worth(people, [True] + [False] * (len(people) - 1))
    values = [step["views"][0]["value"] for step in episode["steps"][:-1]]
    assert values == pytest.approx([float(checkpoint.policy["gain"]) * each for each in expected], rel=1e-3)
    assert explained[0][1] is None and all(known for _, known in explained[1:])
