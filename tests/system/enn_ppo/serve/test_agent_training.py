"""Programs that own their main loop under the command line: interrupted, together in one world, and at fault."""

from __future__ import annotations

import enum
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from enn_ppo import EvalConfig, evaluate
from enn_ppo.play import main as play
from enn_ppo.settings.command_line.cli import run_train
from enn_ppo.train import train
from entity_gym.agents import Agent, Obs, TrainEnvBuilder
from entity_gym.check.command import main as check

ROOT = Path(__file__).resolve().parents[4]
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


def shown(score: float = 0) -> Obs[Sign]:
    return Obs(Sign, score=score, actors=[Me(0.5)])


def hang(agent: Agent, config: Any, seed: int) -> None:
    for _ in range(40):
        if agent.act(shown()) is None:
            return
    print("it hangs", flush=True)
    time.sleep(1000)


def together(agents: Sequence[Agent], config: Any, seed: int) -> None:
    """Three signs are drawn against each other."""
    rng = random.Random(seed)
    while True:
        scores = [0.0, 0.0]
        for _ in range(3):
            signs = [handle.receive() for handle in [agent.act_async(shown(rng.random())) for agent in agents]]
            if signs[0] is None or signs[1] is None:
                return
            won = (signs[0].value - signs[1].value) % 3
            scores = [scores[0] + (won == 1), scores[1] + (won == 2)]
        for agent, score in zip(agents, scores, strict=True):
            agent.game_over(shown(score))


def sleep(agent: Agent, config: Any, seed: int) -> None:
    agent.act(shown())
    time.sleep(2)


def ask_twice(agent: Agent, config: Any, seed: int) -> None:
    agent.act_async(shown())
    agent.act_async(shown())


def ignore_none(agent: Agent, config: Any, seed: int) -> None:
    while True:
        agent.act(shown())


def stumble(agent: Agent, config: Any, seed: int) -> None:
    agent.act(shown())
    raise LookupError("the map is lost")


builder = TrainEnvBuilder().entity(Me).action(Sign)
hanging = builder.build(hang)
pair = builder.build(together, num_agents=2)
sleeping = builder.build(sleep, time_limit=0.3)
asking_twice = builder.build(ask_twice)
ignoring_none = builder.build(ignore_none)
stumbling = builder.build(stumble)


@pytest.mark.parametrize("workers", ["num_threads=2", "num_processes=2"])
def test_a_second_ctrl_c_ends_a_run_whose_programs_all_hang(workers: str, tmp_path: Path) -> None:
    arguments = [*TINY, f"rollout.{workers}", f"env.id={HERE}:hanging", f"run_dir={tmp_path / 'run'}"]
    command = [sys.executable, "-u", "-m", "enn_ppo.train", *arguments]
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, **how) as process:
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


# ---- several agents in a world


@pytest.fixture(scope="module")
def run_of_a_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained with evaluations meanwhile."""
    run_dir = tmp_path_factory.mktemp("pair") / "run"
    evaluated = ["eval.interval=256", "eval.episodes=6", "eval.num_envs=4", "eval.process=false"]
    assert run_train(train, [*TINY, f"env.id={HERE}:pair", f"run_dir={run_dir}", *evaluated]) == 0
    assert '"eval/episodic_reward"' in (run_dir / "metrics.jsonl").read_text()
    return run_dir


@pytest.mark.parametrize("setting", ["episodes=5", "num_envs=3"])
def test_evaluations_of_parts_of_worlds_are_refused_by_the_name_of_the_setting(
    run_of_a_pair: Path, setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, _, value = setting.partition("=")
    why = f"{name} is {value}; it must be a multiple of 2: each world of {HERE}:pair has 2 agents"
    with pytest.raises(ValueError, match=f"^{why}"):
        evaluate(EvalConfig(checkpoint=str(run_of_a_pair), device="cpu", **{name: int(value)}))
    new = [*TINY, f"env.id={HERE}:pair", f"run_dir={tmp_path / 'run'}", "eval.interval=256", f"eval.{setting}"]
    assert run_train(train, new) == 2
    assert f"error: eval.{why}" in capsys.readouterr().err


def test_those_who_look_at_one_environment_say_what_to_do_instead(
    run_of_a_pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play([str(run_of_a_pair)]) == 2
    assert "give agents of load_agent or random_agent to the game's own loop" in capsys.readouterr().err
    check([f"{HERE}:pair", "--quick"])
    said = capsys.readouterr()
    assert "give agents of load_agent or random_agent to the game's own loop" in " ".join((said.out + said.err).split())


# ---- mistakes


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ("sleeping", "for 0.3 seconds (time_limit); it is at test_agent_training.py:"),
        ("asking_twice", "agent 0 asked for another action before it received"),
        ("ignoring_none", "the trainer is gone, and main must return"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*it is left behind:RuntimeWarning")  # which a user reads above that line
def test_a_mistake_of_a_program_is_one_line(
    env: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_train(train, [*TINY, f"env.id={HERE}:{env}", f"run_dir={tmp_path / 'run'}"])
    said = capsys.readouterr().err
    assert (code, "Traceback" in said) == (2, False), said
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert why in line


def test_a_mistake_of_a_program_in_a_worker_process_is_one_line_without_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = [f"env.id={HERE}:asking_twice", f"run_dir={tmp_path / 'run'}", "rollout.num_processes=2"]
    assert run_train(train, [*TINY, *run]) == 2
    said = capsys.readouterr().err
    assert "error: agent 0 asked for another action before it received" in said
    assert re.search(r"raised in worker (0 \(environments 0 to 3|1 \(environments 4 to 7),", said)  # whichever is first
    assert "Traceback" not in said and 'File "' not in said


def test_what_a_program_raises_keeps_its_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_train(train, [*TINY, f"env.id={HERE}:stumbling", f"run_dir={tmp_path / 'run'}"]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said and "LookupError: the map is lost" in said
