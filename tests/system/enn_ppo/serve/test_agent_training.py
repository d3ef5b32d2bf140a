"""Programs that own their main loop under the command line: interrupted, and at fault."""

from __future__ import annotations

import enum
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from enn_ppo.settings.command_line.cli import run_train
from enn_ppo.train import train
from entity_gym.agents import Agent, Obs, TrainEnv
from tests.processes import start

HERE = "tests.system.enn_ppo.serve.test_agent_training"
SMALL = ["env=custom", "rollout.num_envs=8", "rollout.steps=16", "optim.batch_size=64", "device=cpu"]
# without kernels, which the first process to use them compiles for a minute
TINY = [*SMALL, "net.d_model=16", "net.n_layer=1", "net.backend=reference", "total_timesteps=512"]


class Sign(enum.Enum):
    ROCK = 0
    PAPER = 1
    SCISSORS = 2


@dataclass
class Me:
    bias: float


@dataclass
class Stranger:
    pass


def shown(score: float = 0) -> Obs[Sign]:
    return Obs(Sign, score=score, actors=[Me(0.5)])


def hang(agent: Agent, config: Any, seed: int) -> None:
    for _ in range(40):
        if agent.act(shown()) is None:
            return
    print("it hangs", flush=True)
    time.sleep(1000)


def show_a_stranger(agent: Agent, config: Any, seed: int) -> None:
    agent.act(Obs(Sign, score=0, actors=[Stranger()]))


hanging = TrainEnv(hang, [Me], [Sign])
showing_a_stranger = TrainEnv(show_a_stranger, [Me], [Sign])


@pytest.mark.parametrize("workers", ["num_threads=2", "num_processes=2"])
def test_a_second_ctrl_c_ends_a_run_whose_programs_all_hang(workers: str, tmp_path: Path) -> None:
    arguments = [*TINY, f"rollout.{workers}", f"env.id={HERE}:hanging", f"run_dir={tmp_path / 'run'}"]
    with start("-u", "-m", "enn_ppo.train", *arguments, stderr=subprocess.STDOUT) as process:
        try:
            assert process.stdout is not None
            for sign_of in ("it hangs", "Ctrl-C: finishing this update"):
                line = next((line for line in process.stdout if sign_of in line), None)
                assert line is not None, f"it ended without {sign_of!r}"
                process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=50)  # 10 seconds for each of eight programs would be too long
        finally:
            process.kill()
    assert process.returncode == 130
    assert said.endswith("interrupted\n")
    assert "Traceback" not in said


# ---- mistakes


def test_a_mistake_of_a_program_in_a_worker_process_is_one_line_without_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = [f"env.id={HERE}:showing_a_stranger", f"run_dir={tmp_path / 'run'}", "rollout.num_processes=2"]
    assert run_train(train, [*TINY, *run]) == 2
    said = capsys.readouterr().err
    assert "error: TrainEnv has no 'Stranger' in entity_types" in said
    assert re.search(r"raised in worker (0 \(environments 0 to 3|1 \(environments 4 to 7),", said)  # whichever is first
    assert "Traceback" not in said and 'File "' not in said
