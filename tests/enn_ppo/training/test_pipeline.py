"""Two halves of the environments, one stepping while the policy acts in the other: the same is played, and sooner."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from enn_ppo import EnvConfig, RolloutConfig, train
from enn_ppo.rollout import Rollout
from enn_ppo.training.build import make_pools
from enn_ppo.training.environment import BoundEnvironment
from enn_ppo.training.players import Cast
from enn_ppo.training.sampling import LocalSampler
from tests.enn_ppo.halves import Halves, SteppingHook
from tests.enn_ppo.players_worlds import SNAKES
from tests.enn_ppo.rows import assert_same, assert_same_end, rows_without_times, same
from tests.enn_ppo.training.test_blocks import CPU, WORLDS, parts, sampler
from tests.enn_ppo.training.test_players import make_nets, mapping_of
from tests.enn_ppo.worlds import StopAfter, tiny_config


def all_of(rollout: Rollout) -> dict[str, Any]:
    """Everything that happened, but for how long it took."""
    return parts(rollout, range(rollout.by_step("rewards").shape[1])) | {"metrics": rollout.stats.metrics}


# --- The same ---


@pytest.mark.parametrize(
    ("world", "halves", "blocks"),
    [
        (WORLDS[0], RolloutConfig(num_envs=6, pipeline=2), RolloutConfig(num_envs=6, block=3)),
        (WORLDS[1], RolloutConfig(num_envs=8, pipeline=2, block=2), RolloutConfig(num_envs=8, block=2)),
        (WORLDS[2], RolloutConfig(num_envs=6, pipeline=2, num_threads=2), RolloutConfig(num_envs=6, block=3)),
    ],
    ids=["halves", "blocks, two at a time", "with threads"],
)
def test_what_is_played_is_what_the_same_blocks_play_one_after_the_other(
    world: EnvConfig, halves: RolloutConfig, blocks: RolloutConfig
) -> None:
    with sampler(world, halves) as pipelined, sampler(world, blocks) as serial:
        for _ in range(3):
            assert_same(all_of(pipelined.collect(9)), all_of(serial.collect(9)))
        assert same(pipelined.state(), serial.state())
        assert serial.load_state(pipelined.state()) is pipelined.load_state(serial.state()) is None


def test_several_policies_play_what_they_play_without() -> None:
    cast = Cast({"red": [0], "blue": [1]}, mapping_of(SNAKES))
    nets = make_nets(cast.policies)

    def played(rollout: RolloutConfig) -> list[dict[str, Rollout]]:
        pools = make_pools(BoundEnvironment(SNAKES, EnvConfig()), rollout, 3)
        made = LocalSampler(pools, nets, CPU, 3, cast=cast, pipeline=rollout.pipeline)
        made.reset(3, {})
        rollouts = [made.collect(step, 7, {}) for step in (0, 28)]
        made.close()
        return rollouts

    halves, blocks = played(RolloutConfig(num_envs=4, pipeline=2)), played(RolloutConfig(num_envs=4, block=2))
    for one, other in zip(halves, blocks, strict=True):
        for name in cast.policies:
            assert_same(all_of(one[name]), all_of(other[name]))


# --- At the same time ---


class Turns(SteppingHook):
    """Steps that end only when the policy has acted in the other half meanwhile."""

    def __init__(self, steps: int) -> None:
        self.last = 2 * steps  # times that it acts
        self.acted = 0
        self.changed = threading.Condition()

    def acting(self) -> None:
        with self.changed:
            self.acted += 1
            self.changed.notify_all()

    def stepping(self, half: int, step: int) -> None:
        needed = min(2 * step + half + 2, self.last)
        with self.changed:
            if not self.changed.wait_for(lambda: self.acted >= needed, timeout=30):
                raise TimeoutError(f"step {step} of half {half} saw nobody act")


def test_the_policy_acts_in_one_half_while_the_other_is_stepped() -> None:
    with Halves(Turns(steps=5)) as halves:
        assert halves.sampler.collect(5).by_step("rewards").shape == (5, 2)


# --- Going on ---


def test_a_run_goes_on_exactly_with_and_without_where_the_blocks_are_the_same(tmp_path: Path) -> None:
    halves = RolloutConfig(num_envs=4, steps=8, pipeline=2)
    blocks = RolloutConfig(num_envs=4, steps=8, block=2)
    train(tiny_config(tmp_path / "whole", rollout=blocks))
    train(tiny_config(tmp_path / "parts", rollout=halves), callbacks=[StopAfter(64)])
    train(tiny_config(tmp_path / "parts", rollout=blocks, resume=str(tmp_path / "parts")), callbacks=[StopAfter(96)])
    train(tiny_config(tmp_path / "parts", rollout=halves, resume=str(tmp_path / "parts")))
    assert rows_without_times(tmp_path / "whole") == rows_without_times(tmp_path / "parts")
    assert_same_end(tmp_path / "parts", tmp_path / "whole")
