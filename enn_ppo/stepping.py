"""Playing in step with environments: one loop, for one block of them, or for several at a time, each ahead of the others.

Of several, one block is stepped while the policy acts in another. The calling thread does everything but the steps: so
torch has one thread that calls it, and what is played does not depend on who was done first.
"""

from __future__ import annotations

import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from queue import SimpleQueue
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import torch

from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.pools.vec_env import VecEnv
from entity_gym.pools.workers import PATIENCE

LOOKS_EVERY = 0.5  # seconds, whether there was a Ctrl-C while an environment takes its time

Actions: TypeAlias = Mapping[str, VecAction]
Played = TypeVar("Played", covariant=True)


class Stepped(NamedTuple):
    """What actions have led to."""

    obs: VecObs
    seconds: float  # that the calling thread has waited for it


class Plays(Protocol[Played]):
    """Environments, and whoever acts in them."""

    vec_env: VecEnv

    def playing(self, steps: int) -> Generator[Actions, Stepped, Played]:
        """Yield the actions of each step, to be sent what they led to; in the end return what was played."""


class Stepper(ABC):
    """Steps one block of environments at a time."""

    @abstractmethod
    def start(self, vec_env: VecEnv, actions: Actions) -> None:
        """Have a step taken. Another was waited for before."""

    @abstractmethod
    def wait(self) -> VecObs:
        """What the step led to.

        Raises:
            BaseException: what the environments have raised.
        """

    def settle(self, until: float | None) -> None:  # noqa: B027 - most have nothing under way
        """Wait for a step that nobody asks for any more, whatever comes of it.

        Args:
            until: the latest time to wait for, of `time.monotonic`; None: as long as it takes.
        """

    def close(self) -> VecEnv | None:
        """Take no more steps. Returns environments that are still taking one, after `PATIENCE` seconds in vain."""
        return None


class StepHere(Stepper):
    """The calling thread takes the step, when it is asked what came of it."""

    def __init__(self) -> None:
        self._next: tuple[VecEnv, Actions] | None = None

    def start(self, vec_env: VecEnv, actions: Actions) -> None:
        self._next = vec_env, actions

    def wait(self) -> VecObs:
        assert self._next is not None, "start first"
        vec_env, actions = self._next
        self._next = None
        return vec_env.act(actions)


class StepThread(Stepper):
    """A thread of its own takes the steps, which is kept until it is closed.

    It is no thread that the interpreter waits for when it exits: nor do steps that never end keep a program alive.
    """

    def __init__(self) -> None:
        self._inbox: SimpleQueue[_Step | None] = SimpleQueue()
        self._step: _Step | None = None  # that is under way
        self._patience = PATIENCE  # of `close`, unless it has been used up
        self._thread = threading.Thread(target=_serve, args=(self._inbox,), name="stepping", daemon=True)
        self._stop = weakref.finalize(self, self._inbox.put, None)
        self._thread.start()

    def start(self, vec_env: VecEnv, actions: Actions) -> None:
        assert self._step is None, "wait or settle first"
        self._step = _Step(vec_env, actions)
        self._inbox.put(self._step)

    def wait(self) -> VecObs:
        step = self._step
        assert step is not None, "start first"
        # Ctrl-C may interrupt this, and `settle` then waits again. One that comes just before a wait begins does not end it.
        while not step.done.wait(LOOKS_EVERY):
            pass
        self._step = None
        if step.error is None:
            assert step.obs is not None
            return step.obs
        try:
            raise step.error
        finally:
            step.error = None  # else it and its trace, which leads here, would hold each other

    def settle(self, until: float | None) -> None:
        if self._step is None:
            return
        if self._step.done.wait(None if until is None else max(0.0, until - time.monotonic())):
            self._step.error = None
            self._step = None
        else:
            self._patience = 0.0

    def close(self) -> VecEnv | None:
        self._stop()
        self._thread.join(self._patience)
        return self._step.vec_env if self._step and self._thread.is_alive() else None


class _Step:
    """One step, and what came of it once it is done."""

    def __init__(self, vec_env: VecEnv, actions: Actions) -> None:
        self.vec_env, self.actions = vec_env, actions
        self.done = threading.Event()
        self.obs: VecObs | None = None
        self.error: BaseException | None = None

    @torch.no_grad()  # as in the thread that plays: environments may use torch, too
    def take(self) -> None:
        try:
            self.obs = self.vec_env.act(self.actions)
        except BaseException as error:  # whatever it is, it belongs to whoever waits
            self.error = error
        self.done.set()


def _serve(inbox: SimpleQueue[_Step | None]) -> None:
    """What the thread does all its life. It knows the steps only, so that it keeps nothing alive."""
    while (step := inbox.get()) is not None:
        step.take()
        del step  # it holds environments, which may be gone before there is another


def make_steppers(pipeline: int) -> list[Stepper]:
    """For so many blocks that are played at a time."""
    return [StepHere()] if pipeline == 1 else [StepThread() for _ in range(pipeline)]


@torch.no_grad()
def play(blocks: Sequence[Plays[Played]], steps: int, steppers: Sequence[Stepper]) -> list[Played]:
    """Play `steps` steps in every block, in turns: while one acts, the steps of the others are under way.

    Args:
        blocks: of environments.
        steps: at least 1.
        steppers: one for each block. Of `StepHere` nothing is under way meanwhile.

    Returns:
        What was played in each.

    Raises:
        BaseException: what environments or policies raise; of several the one whose turn came first. The steps of the
            others have been waited for, after Ctrl-C for at most `PATIENCE` seconds.
    """
    playings = [block.playing(steps) for block in blocks]
    played: list[Played] = []
    try:
        for block, playing, stepper in zip(blocks, playings, steppers, strict=True):
            stepper.start(block.vec_env, next(playing))
        while len(played) < len(blocks):
            for block, playing, stepper in zip(blocks, playings, steppers, strict=True):
                started = time.perf_counter()
                obs = stepper.wait()
                stepped = Stepped(obs, time.perf_counter() - started)
                try:
                    actions = playing.send(stepped)
                except StopIteration as end:  # for all in the same round
                    played.append(end.value)
                else:
                    stepper.start(block.vec_env, actions)
    except BaseException as error:
        until = time.monotonic() + PATIENCE if isinstance(error, KeyboardInterrupt) else None
        for stepper in steppers:
            stepper.settle(until)
        raise
    return played
