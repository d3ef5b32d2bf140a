"""Two halves at a time: what goes wrong in one of them ends as it does without, and leaves nothing behind."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from tests.enn_ppo.halves import Halves, SteppingHook
from tests.enn_ppo.rows import assert_same
from tests.enn_ppo.training.test_blocks import parts


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
            assert_same(parts(one, range(2)), parts(other, range(2)))


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
