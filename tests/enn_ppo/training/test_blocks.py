"""Environments in blocks: what a block plays depends on nothing but the block, and together they are one rollout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from enn_ppo import train
from enn_ppo.rollout import Rollout, play
from enn_ppo.settings.config import EnvConfig, RolloutConfig, TrainConfig
from enn_ppo.training.build import make_model, make_pools
from enn_ppo.training.environment import bind_environment
from enn_ppo.training.random_keys import Purpose, random_key
from tests.enn_ppo.rollouts import OnePolicySampler
from tests.enn_ppo.rows import assert_same, rows_without_times
from tests.enn_ppo.worlds import StopAfter, tiny_config

CPU = torch.device("cpu")
WORLDS = [
    EnvConfig(id="MineSweeper", kwargs={"width": 4, "height": 4, "num_mines": 3}),
    EnvConfig(id="MultiSnake"),
    EnvConfig(id="CherryPick"),
]


def of(num_envs: int, block: int | None) -> RolloutConfig:
    return RolloutConfig(num_envs=num_envs, block=block)


@contextmanager
def sampler(world: EnvConfig, rollout: RolloutConfig, first: int = 0) -> Iterator[OnePolicySampler]:
    """A sampler of environments from number `first` on, that has been reset."""
    config = TrainConfig(env=world, seed=5)
    pools = make_pools(bind_environment(world), rollout, config.seed, first)
    model = make_model(config.net, config.value_net, (pools[0].obs_space(), pools[0].action_space()), config.seed)
    made = OnePolicySampler(pools, model, CPU, config.seed, first, pipeline=rollout.pipeline)
    with closing(made):
        made.reset(config.seed, {})
        yield made


def parts(rollout: Rollout, envs: Sequence[int]) -> dict[str, Any]:
    """Everything that happened in some of the environments."""
    num_envs = rollout.by_step("rewards").shape[1]
    frames = torch.arange(rollout.by_step("rewards").numel()).view(-1, num_envs)[:, list(envs)].flatten()
    obs = rollout.frames.obs[frames]
    return {
        **{f"features/{name}": ragged for name, ragged in obs.features.items()},
        **{f"actors/{name}": mask.actors for name, mask in obs.action_masks.items()},
        **{f"actions/{name}": ragged.gather(frames) for name, ragged in rollout.frames.actions.items()},
        **{f"log_probs/{name}": ragged.gather(frames) for name, ragged in rollout.frames.log_probs.items()},
        **{name: rollout.by_step(name)[:, list(envs)] for name in
           ("values", "rewards", "terminated", "truncated", "final_values")},
        "last_values": rollout.last_values[list(envs)],
        "step": rollout.by_step("step")[:, list(envs)],
        "episodes": [each[1:] for each in rollout.stats.episodes
                     if each.env_id in rollout.by_step("env_id")[0, list(envs)]],
    }  # fmt: skip


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.id)
def test_what_a_block_plays_does_not_depend_on_the_others(world: EnvConfig) -> None:
    with sampler(world, of(12, 4)) as all_, sampler(world, of(8, 4), first=4) as some:
        for _ in range(2):
            whole, part = all_.collect(9), some.collect(9)
            assert_same(parts(whole, range(4, 12)), parts(part, range(8)))


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.id)
def test_blocks_together_are_in_the_order_of_steps_and_then_environments(world: EnvConfig) -> None:
    with sampler(world, of(9, 3)) as blocks:
        key = random_key(5, 0, Purpose.ACTING)
        rollouts = [play([block], 6, key)[0][""] for block in blocks.blocks]
        blocks.reset(5, {})
        whole = blocks.collect(6)
    for number, rollout in enumerate(rollouts):
        assert_same(parts(whole, range(3 * number, 3 * number + 3)), parts(rollout, range(3)))
    assert whole.frames.obs.num_tokens == sum(rollout.frames.obs.num_tokens for rollout in rollouts)
    assert whole.stats.metrics.keys() == rollouts[0].stats.metrics.keys()


def test_blocks_draw_noise_of_their_own() -> None:
    with sampler(EnvConfig(id="MultiArmedBandit"), of(32, 16)) as blocks:
        rollouts = [play([block], 8, 0)[0][""] for block in blocks.blocks]
        one, other = (next(iter(rollout.frames.actions.values())).values for rollout in rollouts)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(("world", "block"), [(WORLDS[0], 1), (WORLDS[1], 3), (WORLDS[2], 3)])
def test_what_is_drawn_does_not_depend_on_the_blocks(world: EnvConfig, block: int) -> None:
    with sampler(world, of(9, block)) as blocks, sampler(world, of(9, None)) as whole:
        one, other = blocks.collect(12), whole.collect(12)
    for name, actions in one.frames.actions.items():
        assert torch.equal(actions.values, other.frames.actions[name].values)
        torch.testing.assert_close(
            one.frames.log_probs[name].values, other.frames.log_probs[name].values, rtol=1e-5, atol=1e-5
        )
    assert torch.equal(one.by_step("rewards"), other.by_step("rewards"))


def test_one_block_of_all_environments_is_the_run_without_blocks(tmp_path: Path) -> None:
    train(tiny_config(tmp_path / "a"))
    train(tiny_config(tmp_path / "b", rollout=RolloutConfig(num_envs=4, steps=8, block=4)))
    assert rows_without_times(tmp_path / "a") == rows_without_times(tmp_path / "b")


@pytest.mark.parametrize("setting", ["block", "pipeline"])
def test_a_run_that_is_resumed_in_other_blocks_starts_new_episodes_and_says_so(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny_config(tmp_path / "a"), callbacks=[StopAfter(96)])
    rollout = RolloutConfig(num_envs=4, steps=8, **{setting: 2})
    train(tiny_config(tmp_path / "a", rollout=rollout, resume=str(tmp_path / "a")))
    said = capsys.readouterr().out
    assert "new episodes" in said
    assert "they were saved in 1 parts, and this run has 2 (blocks, runners or ranks)" in said
