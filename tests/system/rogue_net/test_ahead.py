"""Kernels are compiled ahead by two processes: all of them, once, told, and without a process that is left over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core import caching

from rogue_net.kernels.cpu import ahead
from rogue_net.kernels.cpu.ahead import Job, compile_all
from rogue_net.kernels.cpu.compiling import Const, Count, Floats, address, bind, kernel, signature, value
from tests.processes import output_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def add(number: Const, numbers: Floats, count: Count) -> None:
    for i in range(count):
        numbers[i] = numbers[i] + np.float32(value(number))


@pytest.fixture(autouse=True)
def two_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty cache on a machine with two cores; no process is left behind."""
    monkeypatch.setattr(caching.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    really_fork, children = os.fork, []

    def fork() -> int:
        child = really_fork()
        if child:
            children.append(child)
        return child

    monkeypatch.setattr(os, "fork", fork)
    yield
    for child in children:  # of this test alone: others may have left processes of their own
        with pytest.raises(ChildProcessError):
            os.waitpid(child, os.WNOHANG)


def jobs_for(*numbers: int) -> list[Job]:
    """A kernel of its own for each number, as kernels of one function share an index on disk."""
    return [(kernel(_copied(number)), (Const(number),)) for number in numbers]


def _copied(number: int) -> Any:
    made = type(add)(add.__code__, add.__globals__, f"add_{number}")
    made.__annotations__, made.__qualname__ = add.__annotations__, f"add_{number}"
    return made


def check(jobs: list[Job]) -> None:
    for each, (number,) in jobs:
        numbers = np.arange(3, dtype=np.float32)
        bind(each, number)(address(numbers), 3)
        assert numbers.tolist() == [number.number, number.number + 1, number.number + 2]


def is_on_disk(job: Job) -> bool:
    compiled, consts = job
    return bool(compiled._cache.has(signature(compiled, *consts), compiled.targetctx))


def test_two_processes_compile_all_and_leave_them_on_disk() -> None:
    jobs = jobs_for(*range(1, 7))
    compile_all(jobs)
    assert all(map(is_on_disk, jobs))
    check(jobs)


def test_a_child_that_is_not_needed_any_more_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ahead._Jobs, "finish", interrupted)
    with pytest.raises(ZeroDivisionError):
        compile_all(jobs_for(*range(10, 20)))


def test_what_a_child_does_not_leave_behind_is_compiled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead._Jobs, "_compile_and_exit", lambda jobs: (os.read(jobs._numbers, 4), os._exit(1)))
    jobs = jobs_for(20, 21, 22)
    compile_all(jobs)
    assert all(signature(compiled, *consts) in compiled.overloads for compiled, consts in jobs)
    check(jobs)


def test_it_says_how_many_there_are_and_when_they_are_compiled(capfd: pytest.CaptureFixture[str]) -> None:
    jobs = jobs_for(23, 24)
    compile_all([*jobs, jobs[0]])
    begin, end = capfd.readouterr().err.splitlines()
    assert begin == "compiling the network: 2 kernels, once"
    assert end.startswith("compiled the network: 2 kernels in ")
    compile_all(jobs)
    assert capfd.readouterr().err == ""


TRAINING = """
import gc, sys
from numba.core.dispatcher import Dispatcher
from enn_ppo.training.learning import compiled_loss
from rogue_net.kernels.cpu.compiling import KernelCache, signature
from rogue_net.kernels.cpu.program import jobs_of
from enn_ppo import EnvConfig, OptimConfig, RolloutConfig, TrainConfig, train
from entity_gym import make
from rogue_net import RogueNetConfig

config = RogueNetConfig(**{settings})
train(
    TrainConfig(
        env=EnvConfig(id="MineSweeper"),
        net=config,
        rollout=RolloutConfig(num_envs=4, steps=4),
        optim=OptimConfig(batch_size=8, epochs=1),
        total_timesteps=16,
        num_threads=1,
        run_dir=sys.argv[1],
    )
)
action_space = make("MineSweeper", num_envs=1).action_space()
jobs = [*jobs_of(config, action_space), (compiled_loss.ppo, ())]
ahead = {(id(compiled), signature(compiled, *consts)) for compiled, consts in jobs}
for compiled in [each for each in gc.get_objects() if isinstance(each, Dispatcher)]:
    if isinstance(compiled._cache, KernelCache):
        late = [each for each in compiled.overloads if (id(compiled), each) not in ahead]
        print("kernel", compiled.py_func.__name__, len(compiled.overloads), late)
"""


@pytest.mark.parametrize("settings", ["{}", "{'d_model': 24, 'n_head': 1}"])
def test_all_that_acts_and_learns_is_known_ahead(
    settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # kernels of the usual cache
    said = output_of(TRAINING.replace("{settings}", settings), tmp_path / "run")
    used = [line.split(" ", 3)[1:] for line in said.splitlines() if line.startswith("kernel ")]
    assert sum(int(count) for _, count, _ in used) > 20
    assert [line for line in used if line[2] != "[]"] == []
