"""docs/distributed.md: its commands are commands, its arithmetic is right, and a frame is as large as it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from enn_ppo.settings.config import EnvConfig, RolloutConfig, TrainConfig
from enn_ppo.training.environment import bind_environment
from enn_ppo.training.learning.learner import make_model
from enn_ppo.training.on_ray.shipping import ship
from enn_ppo.training.sampling import make_pools
from tests.enn_ppo.rollouts import OnePolicySampler

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "distributed.md").read_text("utf-8")
PLAN = PAGE.split("## A plan for 1,000 runners")[1]


def commands() -> list[str]:
    lines = "".join(re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)).splitlines()
    return [line for line in lines if "enn_ppo.train" in line]


def number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.parametrize("command", commands())
def test_the_settings_of_every_training_command_compose(command: str) -> None:
    words = shlex.split(command, comments=True)
    settings = words[words.index("enn_ppo.train") + 1 :]
    typed = [sys.executable, "-m", "enn_ppo.train", *settings, "--cfg", "job"]
    done = subprocess.run(typed, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    mode = next((word for word in settings if word.startswith("distributed=")), "none").removeprefix("distributed=")
    assert f"mode: {mode}" in done.stdout


def test_a_cluster_starts_in_three_commands() -> None:
    (block,) = re.findall(r"### A cluster in three commands\n```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    assert [line.split()[0] for line in block.splitlines()] == ["ray", "ray", "python"]


def test_every_setting_that_the_page_names_exists() -> None:
    named = set(re.findall(r"(?<!bench_)distributed\.(\w+)", PAGE))
    assert len(named) > 5 and named <= TrainConfig().distributed.__dataclass_fields__.keys()


def plan() -> list[tuple[float, ...]]:
    rows = re.findall(r"^\| [^|]+ \| ([\d,]+) \| ([\d,]+) \| ([\d,.]+) \| ([\d,]+) \|$", PLAN, flags=re.MULTILINE)
    return [tuple(map(number, row)) for row in rows]


def test_the_plan_multiplies_right() -> None:
    (size,) = re.findall(r"entities and is (\d+) bytes", PLAN)
    (rate,) = re.findall(r"One core learns from ([\d,]+) frames a second", PLAN)
    assert len(plan()) == 4
    for each, all_, megabytes, cores in plan():
        assert all_ == 1000 * each
        assert megabytes == pytest.approx(all_ * number(size) / 1e6)
        assert cores == pytest.approx(all_ / number(rate), abs=0.5)


@pytest.mark.parametrize(("world", "pattern"), [("MultiSnake", r"is (\d+) bytes"), ("CherryPick", r"are (\d+) bytes")])
def test_a_frame_is_as_large_as_the_page_says(world: str, pattern: str) -> None:
    (said,) = re.findall(pattern, PLAN)
    config = TrainConfig(env=EnvConfig(id=world), rollout=RolloutConfig(num_envs=64, steps=16))
    pools = make_pools(bind_environment(config.env), config.rollout, config.seed)
    model = make_model(config, pools[0].obs_space(), pools[0].action_space())
    sampler = OnePolicySampler(pools, model, torch.device("cpu"), config.seed)
    sampler.key(0)
    sampler.reset(config.seed, None)
    assert ship(sampler.collect(16)).num_bytes / (64 * 16) == pytest.approx(float(said), rel=0.05)
    sampler.close()
