"""A pool with worker threads: for compiled environments, and for Python ones that release the GIL."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from entity_gym.environment import Environment
from entity_gym.pools.batch_env import BatchEnvironment
from entity_gym.pools.batch_slots import BatchSlots
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slot_vec_env import SlotVecEnv
from entity_gym.pools.slots import EnvSlots, FinalObservations, SlotsFactory
from entity_gym.pools.thread_choice import choose_num_threads
from entity_gym.pools.workers import (
    SerialWorkers,
    ThreadWorkers,
    Workers,
    check_affinity,
    numbers_of_workers,
    usable_cores,
)

if TYPE_CHECKING:
    from entity_gym.compiled import CompiledEnvironment

#: A compiled environment, as a class or with its parameters; a function or class that makes a Python environment; or the class
#: of a world that is vectorised by hand.
EnvSource: TypeAlias = (
    "CompiledEnvironment | type[CompiledEnvironment] | Callable[[], Environment] | type[BatchEnvironment]"
)


class ThreadedVecEnv(SlotVecEnv):
    """Steps environments in fixed threads, each with a slice of them.

    Compiled environments run at the same time, since they need no GIL. Python environments run at the same time only where
    they release it: waiting for a simulator, another process or the network, or in compiled libraries. Pure Python gains
    nothing here, see `ProcessVecEnv`. A second thread costs 40 to 100 microseconds a step for waking it, so it pays only
    if a step of all environments together takes several times that; one thread is the default, and starts none at all.

    Trajectories do not depend on the number of threads. Together, environments are divided into slices of equal size, and the
    calling thread takes the first. Asynchronously (`send`, `recv`), all work is done by threads, with a queue each:
    Python environments one by one, so that whichever is done first is returned first, and compiled ones in chunks. With one
    thread, `recv` itself does what was sent.

    Args:
        env: a compiled environment (class, or with parameters), or what makes a Python environment.
        num_envs: at least 1.
        num_threads: at least 1, the calling thread included. "auto": one, or one for each core if that turns out to be
            clearly faster: some random steps are timed, and undone.
        batch_size: how many environments `recv` returns. None: all.
        seed: see `VecEnv.reset`.
        final_observations: which last observations to keep in `VecObs.final`.
        compile: false runs a compiled environment's source as ordinary Python, for debugging.
        boundscheck: check a compiled environment's array indices while it runs.
        first_env: the number of environment 0 in seeds and messages, where this is a part of a larger pool.
        thread_affinity_offset: bind the thread of slice t to core (offset + t) % cores. -1: leave it to the system. The
            calling thread, which has slice 0 of steps together, is never bound. Linux only.

    Attributes:
        num_threads: how many there are.
        threads_report: a line that says why.

    Raises:
        ValueError: for an argument that cannot be.
    """

    def __init__(
        self,
        env: EnvSource,
        num_envs: int,
        num_threads: int | Literal["auto"] = 1,
        batch_size: int | None = None,
        seed: int = 0,
        final_observations: FinalObservations = "truncated",
        compile: bool = True,
        boundscheck: bool = False,
        first_env: int = 0,
        thread_affinity_offset: int = -1,
    ) -> None:
        check_affinity(thread_affinity_offset)
        most = len(usable_cores()) if num_threads == "auto" else check_num_threads(num_threads)
        slots = make_slots(
            env,
            num_envs,
            first_env=first_env,
            final_observations=final_observations,
            compile=compile,
            boundscheck=boundscheck,
            num_workers=numbers_of_workers(min(most, num_envs)),
        )
        most = min(most, num_envs)
        self.num_threads = most
        if num_threads == "auto":
            choice = choose_num_threads(slots, most, seed)
            self.num_threads, self.threads_report = choice.num_threads, f"num_threads=auto: {choice.report}"
        elif num_threads > most:
            self.threads_report = f"num_threads={num_threads}: {most} are used, one for each environment"
        else:
            self.threads_report = f"num_threads={num_threads}"
        super().__init__(
            slots, make_workers(self.num_threads, thread_affinity_offset), batch_size=batch_size, seed=seed
        )


def make_slots(
    env: EnvSource,
    num_envs: int,
    *,
    first_env: int = 0,
    autoreset: bool = True,
    final_observations: FinalObservations = "truncated",
    compile: bool = True,
    boundscheck: bool = False,
    num_workers: int = 1,
) -> EnvSlots:
    """Slots for any kind of environment; arguments as in `ThreadedVecEnv` and `EnvSlots`."""
    given: Any = env  # whatever the annotation says, a user may give anything
    common: dict[str, Any] = {
        "first_env": first_env,
        "autoreset": autoreset,
        "final_observations": final_observations,
    }
    if is_compiled(given):
        world = given() if isinstance(given, type) else given
        slots: EnvSlots = world.make_slots(
            num_envs, compile=compile, boundscheck=boundscheck, num_workers=num_workers, **common
        )
        return slots
    if isinstance(given, type) and issubclass(given, BatchEnvironment):
        return BatchSlots(given, num_envs, **common)
    if isinstance(given, SlotsFactory):
        return given.make_slots(num_envs, **common)
    if isinstance(given, Environment):
        name = type(given).__name__
        raise ValueError(f"env is one {name} object; give what makes one, such as the class {name}")
    if not callable(given):
        raise ValueError(f"env is {given!r:.200}; expected a compiled environment, or what makes a Python one")
    return PythonSlots(given, num_envs, **common)


def is_compiled(env: object) -> bool:
    """Whether `env` is a compiled environment, as a class or with its parameters."""
    # Where there is one, its base class has been imported; otherwise there is no need to wait for the compiler's import.
    module = sys.modules.get("entity_gym.compiled")
    if module is None:
        return False
    base = module.CompiledEnvironment
    return isinstance(env, base) or (isinstance(env, type) and issubclass(env, base))


def make_workers(num_threads: int, thread_affinity_offset: int = -1) -> Workers:
    """Who works for a pool with so many threads."""
    return SerialWorkers() if num_threads == 1 else ThreadWorkers(num_threads, thread_affinity_offset)


def check_num_threads(num_threads: object) -> int:
    """A number of threads that can be.

    Raises:
        ValueError: if this is none.
    """
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
        raise ValueError(f"num_threads is {num_threads!r}; it must be a whole number, at least 1, or 'auto'")
    return num_threads
