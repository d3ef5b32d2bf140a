"""Chance, a policy, or several past ones as the other players."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo import EnvConfig, OptimConfig, RogueNetConfig, RolloutConfig, train
from enn_ppo.checkpoints import load_checkpoint, step_file
from enn_ppo.checkpoints.policy import load_net
from enn_ppo.eval.policy import Policy
from enn_ppo.training.self_play.opponents import LATEST, RANDOM, Opponents, load_opponent
from enn_ppo.training.self_play.pool import write_snapshot
from entity_gym.actions.choices import random_actions
from entity_gym.batch.vec_obs import VecObs
from entity_gym.pools.players import players_of
from rogue_net import FittedNet, RogueNet
from tests.enn_ppo.players_worlds import CPU, DOWN, LEFT, SNAKES, UP, always, snake_net, snake_pool
from tests.enn_ppo.worlds import tiny_config
from tests.entity_gym.pools.player_worlds import split


def theirs(num_envs: int = 6) -> VecObs:
    """First frames, as the second player sees them."""
    mapping = players_of(SNAKES)
    assert mapping is not None
    return split(snake_pool(num_envs).reset(), mapping, 1)


def opponents(nets: dict[int, RogueNet], drawn: list[int], greedy: bool = False) -> Opponents:
    """Environments face `drawn`, one after the other."""
    policies, source = {number: Policy(FittedNet(net), greedy=greedy) for number, net in nets.items()}, iter(drawn)
    return Opponents(policies, lambda n, rng: np.array([next(source) for _ in range(n)]), snake_pool(8))


def test_every_environment_is_played_by_the_policy_that_it_faces() -> None:
    nets = {LATEST: always(UP), 100: always(DOWN), 200: always(LEFT)}
    who = opponents(nets, [100, LATEST, 200, 100, 200, LATEST])
    obs = theirs()
    assert who.act(obs, obs.env_id)["move"].values[:, 0].tolist() == [DOWN, UP, LEFT, DOWN, LEFT, UP]
    named = who.faced(np.array([0, 1, 5]))
    assert named == ["step_000000000100", "latest", "latest"]


def test_whom_an_environment_faces_changes_when_an_episode_begins_and_only_then() -> None:
    nets = {0: always(UP), 1: always(DOWN)}
    who = opponents(nets, [0, 0, 1, 1])
    obs = theirs(2)
    assert who.act(obs, obs.env_id)["move"].values[:, 0].tolist() == [UP, UP]
    obs.elapsed_step[:] = [1, 5]
    assert who.act(obs, obs.env_id)["move"].values[:, 0].tolist() == [UP, UP]
    obs.elapsed_step[:] = [0, 6]
    assert who.act(obs, obs.env_id)["move"].values[:, 0].tolist() == [DOWN, UP]


def test_a_policy_plays_its_frames_as_it_would_alone() -> None:
    nets = {0: snake_net(0), 1: snake_net(1)}
    obs = theirs(8)
    mixed = opponents(nets, [0, 1] * 4, greedy=True).act(obs, obs.env_id)["move"].values[:, 0]
    alone = [opponents(nets, [k] * 8, greedy=True).act(obs, obs.env_id)["move"].values[:, 0] for k in (0, 1)]
    assert mixed.tolist() == [int(alone[i % 2][i]) for i in range(8)]


def test_saved_opponents_go_on_in_the_same_way() -> None:
    def make(seed: int) -> Opponents:
        policies = {0: Policy(FittedNet(snake_net(0))), 1: Policy(FittedNet(snake_net(1))), RANDOM: None}
        return Opponents(policies, lambda n, rng: rng.choice([0, 1, RANDOM], n), snake_pool(), seed)

    first, second = make(3), make(4)
    obs = theirs()
    first.act(obs, obs.env_id)
    state = first.state()
    expected = [(first.act(obs, obs.env_id)["move"].to_list(), first.faced(obs.env_id)) for _ in range(5)]
    assert [(second.act(obs, obs.env_id)["move"].to_list()) for _ in range(5)] != [moves for moves, _ in expected]
    second.load_state(state)
    assert [(second.act(obs, obs.env_id)["move"].to_list(), second.faced(obs.env_id)) for _ in range(5)] == expected


def test_opponents_draw_no_random_numbers_of_the_environments() -> None:
    of_first = np.random.default_rng(np.random.SeedSequence((7, 0))).random(4)
    own = np.random.default_rng()
    own.bit_generator.state = load_opponent("random", None, snake_pool(), CPU, seed=7).state()["random"]
    assert not np.isin(own.random(100), of_first).any()


# --- By name


def test_random_picks_what_is_open() -> None:
    who, obs = load_opponent("random", None, snake_pool(), CPU, seed=5), theirs()
    rng = np.random.default_rng(np.random.SeedSequence(5, spawn_key=(0,)))
    assert who.act(obs, obs.env_id) == random_actions(obs, rng, SNAKES.action_space())
    assert who.faced(np.arange(2)) == ["random", "random"] and who.decided[0][0] is None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("run") / "a"
    train(
        tiny_config(
            run_dir,
            env=EnvConfig(id="MultiSnake", kwargs=SNAKES.values),
            net=RogueNetConfig(d_model=8, n_layer=1, n_head=1),
            rollout=RolloutConfig(num_envs=4, steps=8),
            optim=OptimConfig(batch_size=32, epochs=1, lr=1e-9),
            total_timesteps=64,
            checkpoint_interval=1,
            keep_last=5,
        )
    )
    return run_dir


def faced_over_time(who: Any) -> set[str]:
    obs, names = theirs(), set()
    for _ in range(40):  # every frame begins an episode
        who.act(obs, obs.env_id)
        names |= set(who.faced(obs.env_id))
    return names


def test_a_run_or_checkpoint_plays_itself(run: Path) -> None:
    for path, step in ((run, 64), (run / "checkpoints/step_000000000032", 32)):
        assert faced_over_time(load_opponent(str(path), None, snake_pool(), CPU)) == {f"step_{step:012d}"}


def test_the_past_of_a_checkpoint_are_the_checkpoints_before_it(run: Path) -> None:
    who = load_opponent("past", load_checkpoint(run), snake_pool(), CPU)
    assert faced_over_time(who) == {f"step_{step:012d}" for step in (0, 32)}
    who = load_opponent("past", load_checkpoint(run / "checkpoints/step_000000000000"), snake_pool(), CPU)
    assert "step_000000000064" in faced_over_time(who)  # nothing is earlier than the first


def test_the_past_of_a_self_play_run_are_the_snapshots_of_its_pool(run: Path, tmp_path: Path) -> None:
    for step in (0, 7, 21):
        write_snapshot(tmp_path, step, snake_net(), {})
    saved = load_checkpoint(run)
    (tmp_path / "checkpoints").symlink_to(run / "checkpoints")
    here = tmp_path / "checkpoints" / saved.path.name

    def faced(pool: list[int]) -> set[str]:
        checkpoint = replace(saved, path=here, trainer={**saved.trainer, "self_play": {"pool": pool}})
        return faced_over_time(load_opponent("past", checkpoint, snake_pool(), CPU))

    assert faced([0, 7]) == {"step_000000000000", "step_000000000007"}
    assert faced([7, 14]) == {"step_000000000007"}  # what other checkpoints need is not its past


def test_an_opponent_that_is_not_there_is_named(run: Path, tmp_path: Path) -> None:
    gone = replace(load_checkpoint(run), path=tmp_path / "checkpoints/step_000000000064.safetensors")
    with pytest.raises(ValueError, match="has neither snapshots nor checkpoints"):
        load_opponent("past", gone, snake_pool(), CPU)
    with pytest.raises(ValueError, match="opponent=past needs a run directory"):
        load_opponent("past", None, snake_pool(), CPU)


# --- Snapshots on the disk


def test_a_snapshot_comes_back_whole_and_draws_no_random_numbers(tmp_path: Path) -> None:
    net = snake_net(3)
    write_snapshot(tmp_path, 12, net, {"value_net": {"d_model": 8, "n_head": 1}})
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    again = load_net(load_checkpoint(step_file(tmp_path / "pool", 12)))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in net.state_dict().items())
    assert again.config == net.config and again.obs_space == net.obs_space
    assert [path.name for path in (tmp_path / "pool").iterdir()] == ["step_000000000012.safetensors"]
