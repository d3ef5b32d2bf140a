"""Processes of a run that die, or that training waits for: recordings, worker processes, evaluations."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from enn_ppo import Interrupted, RolloutConfig, TrainConfig
from enn_ppo.settings.config import EnvConfig
from enn_ppo.training.build import make_model, make_pools
from enn_ppo.training.environment import bind_environment
from enn_ppo.training.recording import read_all
from entity_gym.pools.processes.worker import WorkerDied
from tests.enn_ppo.evaluation_worlds import Gated
from tests.enn_ppo.halves import CPU
from tests.enn_ppo.recordings import Menagerie, assert_same_frames, files_of, record
from tests.enn_ppo.rollouts import OnePolicySampler
from tests.enn_ppo.training.test_training_with_evaluation import TOTAL, evaluation, evaluations, run
from tests.enn_ppo.worlds import SMALL_BOARD
from tests.processes import run as run_program

KILLED = """
import os, signal, sys
from pathlib import Path
from enn_ppo.training import files
from tests.enn_ppo.recordings import Menagerie, collector_of, recorder_for

collector = collector_of(Menagerie, 3)
collector.recorder = recorder_for(Path(sys.argv[1]), Menagerie())
for number in range(2):
    collector.seed_noise(number)
    collector.collect(5)

def write_half(path, data, mode=0o666):
    path.write_bytes(data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)

files.write_file = write_half
collector.collect(5)
"""


def test_a_recording_killed_in_the_middle_of_a_chunk_has_whole_chunks(tmp_path: Path) -> None:
    path, whole = tmp_path / "killed", tmp_path / "whole"
    record(whole, Menagerie)
    assert run_program("-c", KILLED, path).returncode == -signal.SIGKILL
    assert files_of(path).items() > files_of(whole).items()  # and what is half written, under a hidden name
    assert_same_frames(read_all(path), read_all(whole))


def test_a_worker_process_that_dies_in_either_half_is_told_of_as_without() -> None:
    def told(rollout: RolloutConfig, killed: int) -> str:
        config = TrainConfig(env=EnvConfig(kwargs=SMALL_BOARD))
        pools = make_pools(bind_environment(config.env), rollout, seed=0)
        model = make_model(config.net, config.value_net, (pools[0].obs_space(), pools[0].action_space()), config.seed)
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


def test_a_run_terminated_while_it_waits_for_its_last_evaluation_says_so_and_evaluates_when_it_is_resumed(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    settings = evaluation(interval=10**6, env_kwargs={"gate": str(gate)})

    def terminate() -> None:  # the last policy alone is evaluated, so that whoever waits at the gate evaluates that
        while not Path(f"{gate}.pid").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate, daemon=True)
    thread.start()
    saved = tmp_path / f"run/checkpoints/step_{TOTAL:012d}.safetensors"
    with pytest.raises(Interrupted, match=f"terminated after {TOTAL} steps; saved {saved}; go on with") as caught:
        run(tmp_path / "run", Gated, eval=settings)
    thread.join()
    assert caught.value.exit_code == 143
    assert not evaluations(tmp_path / "run")
    gate.write_text("")
    run(tmp_path / "run", Gated, eval=settings, resume=str(tmp_path / "run"))
    assert sorted(evaluations(tmp_path / "run")) == [TOTAL]
