"""Two halves at a time: what goes wrong in one of them ends as it does without, and leaves nothing behind."""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enn_ppo import Interrupted, RolloutConfig, TrainConfig, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.settings.config import EnvConfig
from enn_ppo.training.environment import bind_environment
from enn_ppo.training.learning.learner import make_model
from enn_ppo.training.sampling import make_pools
from entity_gym import Action, Observation
from entity_gym.pools.processes.handle import WorkerDied
from tests.enn_ppo.halves import CPU, Halves, SteppingHook
from tests.enn_ppo.rollouts import OnePolicySampler
from tests.enn_ppo.rows import assert_same_end, rows_without_times
from tests.enn_ppo.training.test_blocks import assert_equal, parts
from tests.enn_ppo.worlds import SMALL_BOARD, tiny_config
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper

HALVES = RolloutConfig(num_envs=4, steps=8, pipeline=2)


class FuseError(Exception):
    """An error of an environment's own."""


class Steps(SteppingHook):
    """Counts the steps that were begun and ended, and has `at` happen in one of them."""

    def __init__(self, half: int = 0, step: int = 0) -> None:
        self.half, self.step = half, step
        self.begun: list[tuple[int, int]] = []
        self.ended: list[tuple[int, int]] = []
        self.on = True

    def stepping(self, half: int, step: int) -> None:
        self.begun.append((half, step))
        if self.on:
            self.at(half, step)
        self.ended.append((half, step))

    def at(self, half: int, step: int) -> None:
        pass


def assert_goes_on_as_anew(halves: Halves, hook: Steps) -> None:
    """Reset, it plays what others play."""
    hook.on = False
    halves.begin()
    with Halves(SteppingHook()) as others:
        for _ in range(2):
            one, other = halves.sampler.collect(5), others.sampler.collect(5)
            assert_equal(parts(one, range(2)), parts(other, range(2)))


# --- Environments that raise ---


class Blown(Steps):
    """Half `half` raises while the other takes its time."""

    def __init__(self, half: int, step: int) -> None:
        super().__init__(half, step)
        self.blown = threading.Event()
        self.meanwhile = (1 - half, step + half)  # the other's step that is under way then: the first half is ahead

    def at(self, half: int, step: int) -> None:
        if (half, step) == (self.half, self.step):
            self.blown.set()
            raise FuseError(f"the fuse of half {half} is blown")
        if (half, step) == self.meanwhile:
            assert self.blown.wait(30)
            time.sleep(0.05)  # whoever does not wait for this is gone by then


@pytest.mark.parametrize("half", [0, 1])
def test_what_an_environment_raises_comes_as_it_is_and_the_other_half_ends_its_step(half: int) -> None:
    hook = Blown(half, step=2)
    with Halves(hook) as halves:
        with pytest.raises(FuseError, match=f"the fuse of half {half} is blown") as raised:
            halves.sampler.collect(5)
        assert raised.value.__notes__ == [f"raised by HookedCopycat (environment {half}) in act()"]
        assert_goes_on_as_anew(halves, hook)
        assert hook.meanwhile in hook.ended
        assert set(hook.begun) - set(hook.ended) == {(half, 2)}
    assert all(env.closed for env in halves.envs)


class BothBlown(Steps):
    """The first half raises after the second."""

    def __init__(self) -> None:
        super().__init__()
        self.blown = threading.Event()

    def at(self, half: int, step: int) -> None:
        if step == 1:
            assert half or self.blown.wait(30)
            self.blown.set()
            raise FuseError(f"the fuse of half {half} is blown")


def test_of_two_errors_the_one_of_the_earlier_turn_is_told_whichever_came_first() -> None:
    hook = BothBlown()
    with Halves(hook) as halves:
        with pytest.raises(FuseError, match="half 0"):
            halves.sampler.collect(3)
        assert_goes_on_as_anew(halves, hook)


class FailingPolicy(Steps):
    def acting(self) -> None:
        if self.on and len(self.ended) >= 3:
            raise FuseError("the policy's own")


def test_what_the_policy_raises_comes_as_it_is_and_both_halves_end_their_steps() -> None:
    hook = FailingPolicy()
    with Halves(hook) as halves:
        with pytest.raises(FuseError, match="the policy's own"):
            halves.sampler.collect(5)
        assert_goes_on_as_anew(halves, hook)
        assert sorted(hook.begun) == sorted(hook.ended)


def test_a_worker_process_that_dies_in_either_half_is_told_of_as_without() -> None:
    def told(rollout: RolloutConfig, killed: int) -> str:
        config = TrainConfig(env=EnvConfig(kwargs=SMALL_BOARD))
        pools = make_pools(bind_environment(config.env), rollout, seed=0)
        model = make_model(config, pools[0].obs_space(), pools[0].action_space())
        with closing(OnePolicySampler(pools, model, CPU, 0, pipeline=rollout.pipeline)) as sampler:
            sampler.reset(0, None)
            sampler.collect(3)
            (worker,) = sampler.blocks[killed].vec_env._workers  # type: ignore[attr-defined]
            worker.process.kill()
            worker.process.wait()
            with pytest.raises(WorkerDied) as raised:
                sampler.collect(3)
            return re.sub(r"\d{3,}", "<process>", str(raised.value))

    blocks = RolloutConfig(num_envs=4, num_processes=1, block=2)
    expected = told(blocks, 1)
    halves = RolloutConfig(num_envs=4, num_processes=1, pipeline=2)
    assert [told(halves, 0), told(halves, 1)] == [told(blocks, 0), expected]


# --- Ctrl-C ---


class Interrupts(Steps):
    """Ctrl-C comes to the calling thread while half `half` takes step `step`."""

    def at(self, half: int, step: int) -> None:
        if (half, step) == (self.half, self.step):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.05)  # whoever does not wait for this is gone by then


@pytest.mark.parametrize("half", [0, 1])
def test_after_ctrl_c_in_the_middle_of_a_rollout_both_steps_end(half: int) -> None:
    hook = Interrupts(half, step=2)
    with Halves(hook) as halves:
        with pytest.raises(KeyboardInterrupt):
            halves.sampler.collect(50)
        assert len(hook.ended) < 10
        assert_goes_on_as_anew(halves, hook)
        assert sorted(hook.begun) == sorted(hook.ended)


class Stuck(Steps):
    """Ctrl-C comes while half 0 takes a step that does not end."""

    def __init__(self) -> None:
        super().__init__(half=0, step=2)
        self.released = threading.Event()

    def at(self, half: int, step: int) -> None:
        if (half, step) == (self.half, self.step):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert self.released.wait(60)


def test_ctrl_c_does_not_wait_forever_for_an_environment_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entity_gym.pools.workers.PATIENCE", 0.1)
    hook = Stuck()
    halves = Halves(hook)
    with pytest.raises(KeyboardInterrupt):
        halves.sampler.collect(5)
    with pytest.warns(RuntimeWarning, match="environments are still taking a step .* left behind, and not closed"):
        halves.sampler.close()
    assert [env.closed for env in halves.envs] == [False, True]
    hook.released.set()


class Pressed(PythonMineSweeper):
    """MineSweeper in whose first environment somebody presses Ctrl-C, in step number `at`, so many times."""

    number = itertools.count()
    at = 0
    presses = 1

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.steps_left = Pressed.at if next(Pressed.number) == 0 else 0

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.steps_left -= 1
        if self.steps_left == 0:
            for press in range(Pressed.presses):
                while press and signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
                    time.sleep(0.001)  # signals that come at the same time are one
                os.kill(os.getpid(), signal.SIGINT)
        return super().act(actions)


@pytest.fixture
def pressed(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Pressed]]:
    """In the third rollout, which is that of the second update."""
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Pressed, "number", itertools.count())
    monkeypatch.setattr(Pressed, "at", 8 + 8 + 3)
    yield Pressed
    assert signal.getsignal(signal.SIGINT) is before


def undisturbed(run_dir: Path) -> TrainConfig:
    config = tiny_config(run_dir, rollout=replace(HALVES, pipeline=1, block=2))
    train(config, env=Pressed)
    return config


def test_an_interrupted_run_finishes_its_update_and_goes_on_as_if_nothing_had_been(
    tmp_path: Path, pressed: type[Pressed]
) -> None:
    config = tiny_config(tmp_path / "a", rollout=HALVES)
    with pytest.raises(Interrupted, match="interrupted after 64 steps"):
        train(config, env=pressed)
    assert load_checkpoint(tmp_path / "a").step == 64
    train(replace(config, resume=str(tmp_path / "a"), run_dir=None), env=pressed)
    undisturbed(tmp_path / "b")
    assert rows_without_times(tmp_path / "a") == rows_without_times(tmp_path / "b")
    assert_same_end(tmp_path / "a", tmp_path / "b")
