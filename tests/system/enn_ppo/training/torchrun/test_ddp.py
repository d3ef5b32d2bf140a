"""Two ranks of torchrun train as one process does, and end together, whatever happens to one of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch

from enn_ppo import PPOConfig, RolloutConfig, train
from enn_ppo.checkpoints import load_checkpoint, step_file
from enn_ppo.training.tracking.run_dir import CHECKPOINTS
from tests.enn_ppo.memory_worlds import remembering
from tests.enn_ppo.rows import assert_same_end, rows_of, rows_without_times
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper
from tests.system.enn_ppo.training.torchrun import on_ranks
from tests.system.enn_ppo.training.torchrun.on_ranks import CASES, first_gradient, long_run, one_update

ROOT = Path(__file__).parents[5]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
PATIENCE = 180.0  # seconds until a run that hangs is a failure


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@contextmanager
def torchrun(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A job of two ranks; none of its processes outlives the context."""
    process = subprocess.Popen(
        [*TORCHRUN, *arguments],
        cwd=ROOT,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)


def command(run_dir: Path, world: str, *more: str) -> list[str]:
    return [
        "-m", "enn_ppo.train", "env=custom", f"env.id={world}", "distributed=ddp", "device=cpu",
        "rollout.num_envs=4", "rollout.steps=8", "optim.batch_size=16", "net.d_model=16", "net.n_layer=1",
        "checkpoint_interval=1", f"run_dir={run_dir}", *more,
    ]  # fmt: skip


class Job(NamedTuple):
    folder: Path
    ranks: list[dict[str, Any]]  # what each has seen


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Every run of `on_ranks`, on two ranks."""
    folder = tmp_path_factory.mktemp("job")
    with torchrun(str(Path(__file__).with_name("on_ranks.py")), str(folder)) as process:
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    return Job(folder, [torch.load(folder / f"rank_{rank}.pt") for rank in range(2)])


@pytest.mark.parametrize(("world", "case"), CASES)
def test_gradients_are_those_of_one_process_with_all_environments(
    job: Job, world: str, case: str, tmp_path: Path
) -> None:
    config, env = one_update(world, case, tmp_path / "a")
    with first_gradient() as seen:
        train(config, env)
    ours = [rank["gradients"][world, case] for rank in job.ranks]
    assert torch.equal(ours[0], ours[1])
    assert (ours[0] - seen[0]).norm() <= 1e-5 * seen[0].norm()
    assert seen[0].norm() > 0


@pytest.mark.parametrize("case", ["per actor", "value net"])
def test_the_first_rows_of_metrics_are_those_of_one_process(job: Job, case: str, tmp_path: Path) -> None:
    for world in ("lamps", "boards"):
        config, env = one_update(world, case, tmp_path / world)
        train(config, env)
        (one,), (other,) = (rows_without_times(run) for run in (tmp_path / world, job.folder / f"{world} {case}"))
        assert list(one) == list(other)
        for name, value in one.items():
            same = other[name] is None if value is None else other[name] == pytest.approx(value, rel=1e-4, abs=1e-6)
            assert same, (name, value, other[name])


def test_ranks_stay_the_same_bit_for_bit_over_a_whole_run(job: Job) -> None:
    one, other = (rank["states"] for rank in job.ranks)
    assert len(one) == len(other) == 6
    for before, after in zip(one, other, strict=True):
        assert before.keys() == after.keys()
        for name, value in before.items():
            assert torch.equal(value, after[name]), name
    assert not torch.equal(one[0]["policy.value_head.project.bias"], one[5]["policy.value_head.project.bias"])
    assert {row["epochs"] for row in rows_without_times(job.folder / "whole")} != {3}, "target_kl has decided nothing"


def test_a_run_that_the_leads_callback_has_stopped_resumes_exactly_and_its_clock_ends_all_ranks(job: Job) -> None:
    assert [rank["step"] for rank in job.ranks] == [192, 192]
    assert len(rows_without_times(job.folder / "whole")) == 6
    assert rows_without_times(job.folder / "parts") == rows_without_times(job.folder / "whole")
    one, other = (rank["timed"] for rank in job.ranks)
    assert 0 < one == other < 10**6
    for rank in job.ranks:  # a thread that is left behind could abort the process at its end
        assert not [name for name in rank["threads"] if "gloo" in name]


def test_one_process_goes_on_from_a_checkpoint_of_ranks(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    saved = load_checkpoint(job.folder / "whole")
    assert len(saved.trainer["collector"]["blocks"]) == 2
    rollout = RolloutConfig(num_envs=4, steps=8, block=2)
    config = long_run(job.folder / "on", rollout=rollout, resume=str(job.folder / "whole"), total_timesteps=4 * 8 * 7)
    assert train(config, PythonMineSweeper).step == 224
    assert "new episodes" not in capsys.readouterr().out


def test_a_world_that_raises_on_one_rank_names_it_and_ends_the_job(tmp_path: Path) -> None:
    with torchrun(*command(tmp_path / "a", f"{on_ranks.__name__}:FailsOnRank1")) as process:
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    (told,) = [line for line in output.splitlines() if line.startswith("error:")]
    assert "the third lamp is broken" in told
    assert "(on rank 1 of 2)" in told


@contextmanager
def going_on(run_dir: Path, rows: int, *more: str) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A job that has far to go, and its ranks, when so many updates are done."""
    with torchrun(*command(run_dir, "tests.enn_ppo.worlds:Slow", "total_timesteps=1000000", *more)) as process:
        deadline, metrics = time.monotonic() + PATIENCE, run_dir / "metrics.jsonl"
        while not metrics.is_file() or len(metrics.read_text().splitlines()) < rows:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        children = psutil.Process(process.pid).children()
        ranks = [child for child in children if "enn_ppo.train" in child.cmdline()]
        yield process, sorted(ranks, key=lambda rank: rank.environ()["RANK"])


def test_a_rank_that_is_killed_ends_the_job_and_the_run_resumes(tmp_path: Path) -> None:
    run_dir = tmp_path / "a"
    with going_on(run_dir, 3) as (process, ranks):
        ranks[1].kill()
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0 and len(ranks) == 2
    assert not any(rank.is_running() for rank in ranks)
    assert f"go on with resume={run_dir}" in output
    step = load_checkpoint(run_dir).step
    assert step >= 64  # the third row is written before its checkpoint is
    resumed = ["-m", "enn_ppo.train", f"resume={run_dir}", f"total_timesteps={step + 64}"]
    with torchrun(*resumed) as process:
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert load_checkpoint(run_dir).step == step + 64


def test_ctrl_c_finishes_the_update_and_saves_once(tmp_path: Path) -> None:
    run_dir = tmp_path / "a"
    with going_on(run_dir, 2, "checkpoint_interval=1000") as (process, ranks):
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE)
    saved = load_checkpoint(run_dir)
    assert saved.step == rows_of(run_dir)[-1]["step"] >= 64
    (told,) = [line for line in output.splitlines() if line.startswith("interrupted after")]
    assert told == f"interrupted after {saved.step} steps; saved {saved.path}; go on with resume={run_dir}"
    assert len(ranks) == 2 and not any(rank.is_running() for rank in ranks)


def test_ranks_that_remember_go_on_exactly_from_the_middle_of_episodes(tmp_path: Path) -> None:
    """So does what a teacher remembers."""
    train(remembering(tmp_path / "teacher", total_timesteps=32))
    settings = ["net.memory=entity", f"ppo.teacher={tmp_path / 'teacher'}", "rollout.steps=6", "total_timesteps=96"]
    parts = {"whole": [], "parts": [f"resume={step_file(tmp_path / 'whole' / CHECKPOINTS, 48)}"]}
    for name, more in parts.items():
        arguments = command(tmp_path / name, "tests.enn_ppo.memory_worlds:Marks", *settings, *more)
        with torchrun(*arguments) as process:
            output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, output
    taught = load_checkpoint(step_file(tmp_path / "whole" / CHECKPOINTS, 48)).trainer["teacher"]
    assert [state["keys"].tolist() for state in taught] == [[0, 1], [2, 3]]
    assert rows_without_times(tmp_path / "parts") == rows_without_times(tmp_path / "whole")[2:]
    assert_same_end(tmp_path / "parts", tmp_path / "whole")
    # one process goes on from what all ranks have remembered
    rollout = RolloutConfig(num_envs=4, steps=6, block=2)
    ppo = PPOConfig(teacher=str(tmp_path / "teacher"))
    resume = {"resume": str(tmp_path / "whole"), "total_timesteps": 120}
    train(remembering(tmp_path / "on", rollout=rollout, ppo=ppo, **resume))
    (state,) = load_checkpoint(tmp_path / "on").trainer["teacher"]
    assert state["keys"].tolist() == [0, 1, 2, 3]
