"""Two halves at a time: a worker process that dies is told of as without."""

from __future__ import annotations

import re
from contextlib import closing

import pytest

from enn_ppo import RolloutConfig, TrainConfig
from enn_ppo.settings.config import EnvConfig
from enn_ppo.training.build import make_model, make_pools
from enn_ppo.training.environment import bind_environment
from entity_gym.pools.processes.worker import WorkerDied
from tests.enn_ppo.halves import CPU
from tests.enn_ppo.rollouts import OnePolicySampler
from tests.enn_ppo.worlds import SMALL_BOARD


def test_a_worker_process_that_dies_in_either_half_is_told_of_as_without() -> None:
    def told(rollout: RolloutConfig, killed: int) -> str:
        config = TrainConfig(env=EnvConfig(kwargs=SMALL_BOARD))
        pools = make_pools(bind_environment(config.env), rollout, seed=0)
        model = make_model(config, pools[0].obs_space(), pools[0].action_space())
        with closing(OnePolicySampler(pools, model, CPU, 0, pipeline=rollout.pipeline)) as sampler:
            sampler.reset(0, {})
            sampler.collect(3)
            (worker,) = sampler.blocks[killed].vec_env.slots._workers  # type: ignore[attr-defined]
            worker.process.kill()
            worker.process.wait()
            with pytest.raises(WorkerDied) as raised:
                sampler.collect(3)
            return re.sub(r"\d{3,}", "<process>", str(raised.value))

    blocks = RolloutConfig(num_envs=4, num_processes=1, block=2)
    expected = told(blocks, 1)
    halves = RolloutConfig(num_envs=4, num_processes=1, pipeline=2)
    assert [told(halves, 0), told(halves, 1)] == [told(blocks, 0), expected]
