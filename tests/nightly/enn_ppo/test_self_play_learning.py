"""Self-play makes a policy better than its earlier selves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from enn_ppo import EnvConfig, OptimConfig, PPOConfig, RogueNetConfig, RolloutConfig, SelfPlayConfig, TrainConfig, train
from enn_ppo.checkpoints import load_checkpoint, step_file
from enn_ppo.checkpoints.policy import load_net
from enn_ppo.eval.policy import Policy
from enn_ppo.training.self_play.opponents import Opponents
from entity_gym.envs.multi_snake import MultiSnake
from entity_gym.pools.players import players_of
from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.pools.seats import SeatedVecEnv
from rogue_net import FittedNet, ObsBatch, RelposConfig, RogueNet

SHORT_SNAKES = MultiSnake(board_size=4, num_snakes=2, num_players=2, max_snake_length=4, max_steps=30)


def games(policy: RogueNet, opponent: RogueNet, count: int = 2000) -> float:
    """The share of games that a policy wins against another, draws counting half, both seats as often."""
    pool = ThreadedVecEnv(SHORT_SNAKES, 100, seed=99, autoreset=False)
    mapping = players_of(SHORT_SNAKES)
    assert mapping is not None
    env = SeatedVecEnv(
        pool, mapping, Opponents({0: Policy(FittedNet(opponent))}, lambda n, rng: np.zeros(n, int), pool)
    )
    generator = torch.Generator().manual_seed(99)
    results: list[float] = []
    while len(results) < count:
        obs = env.reset()
        while len(obs):
            chosen = policy.act(ObsBatch.from_vec_obs(obs), generator=generator).to_buffers()
            last = env.act(chosen, obs.env_id)
            obs = last.gather(np.flatnonzero(~last.done))
            results += [info["win_rate"] for info in last.end_of_episode_info.values()]
        env.rotate()
    return float(np.mean(results))


@pytest.mark.learning
def test_two_snakes_get_better_than_each_of_their_earlier_selves(tmp_path: Path) -> None:
    """Dying ends the game for both, so that many games are ties, and 0.5 is even."""
    config = TrainConfig(
        env=EnvConfig(id="MultiSnake", kwargs=SHORT_SNAKES.values),
        rollout=RolloutConfig(num_envs=64, steps=16),
        net=RogueNetConfig(
            n_layer=1,
            relpos=RelposConfig(kind="grid", extent=[3, 3], position_features=["x", "y"], per_entity_values=True),
        ),
        optim=OptimConfig(batch_size=256, lr="5e-3@0 -> 0@1", epochs=4),
        ppo=PPOConfig(ent_coef="0.02@0 -> 0@1", gamma=0.9),
        self_play=SelfPlayConfig(enabled=True, snapshot_interval=8192, zero_sum=True),
        total_timesteps=65_536,
        device="cpu",
        run_dir=str(tmp_path / "a"),
    )
    policy = train(config).policy
    earlier = range(0, 65_536, 8192)
    past = {step: load_net(load_checkpoint(step_file(tmp_path / "a/pool", step))) for step in earlier}
    win_rates = {step: games(policy, net) for step, net in past.items()}
    assert win_rates[0] > 0.62 and win_rates[8192] > 0.52, win_rates
    assert sum(win_rates.values()) / len(win_rates) > 0.52, win_rates
    assert min(win_rates.values()) > 0.48, win_rates  # of 2,000 games: the last snapshots are as good as it is
    table = json.loads((tmp_path / "a/ratings.json").read_text())
    assert table["current"]["rating"] > table["snapshots"][0]["rating"] + 3
