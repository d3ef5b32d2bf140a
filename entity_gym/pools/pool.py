"""The pools that users make: environments in the calling thread, in threads, or in worker processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from entity_gym.errors import check_whole
from entity_gym.pools.processes.slots import ProcessSlots
from entity_gym.pools.slots import EnvSlots, SlotOptions
from entity_gym.pools.source import EnvFactory, as_source
from entity_gym.pools.vec_env import VecEnv, check_batch_size
from entity_gym.pools.workers import Workers


class ThreadedVecEnv(VecEnv):
    """Steps environments in fixed threads or in worker processes, each with a slice of them.

    Compiled environments run at the same time in threads, since they need no GIL. Python environments do only where they
    release it: waiting for a simulator, another process or the network, or in compiled libraries. A second thread costs 40 to
    100 microseconds a step for waking it, so it pays only if a step of all environments together takes several times that.
    One thread is the default, and is the calling thread.

    Worker processes (Linux and macOS) are for pure Python whose steps take several milliseconds together: sharing them out
    costs about one. They pickle what they show. An exception comes with its own type, message and notes, and the worker's
    traceback as a note; when a worker dies, calls raise `WorkerDied`, and the pool has to be made anew. In workers, numeric
    libraries use one thread, and Ctrl-C is handled by the main process alone.

    Trajectories do not depend on the number of threads or processes. Together, environments are divided into slices of equal
    size, and the calling thread takes the first. Asynchronously (`send`, `recv`), all work is done by threads, with a queue
    each: Python environments one by one, so that the first to be done is returned first, and compiled ones in chunks. With one
    thread, `recv` itself takes the steps that were sent, unless `background` gives them a thread of their own.

    Args:
        env: what the environments are made from, of any kind; see `EnvFactory`.
        num_envs: at least 1.
        num_threads: at least 1, the calling thread included. At most one for each environment is used.
        batch_size: how many environments `recv` returns. None: all.
        seed: see `VecEnv.reset`.
        background: with one thread, steps that are sent are taken by a thread of their own, so that the caller can do
            something else until `recv`.
        num_processes: worker processes in place of threads, at most one for each environment; one for each core is a good
            choice. `env` is sent to them, by cloudpickle. 0: none.
        options: fields of `SlotOptions`, by name.

    Raises:
        ValueError: for an argument that is not allowed, or an `env` that cannot be sent to processes.
        WorkerDied: a worker ends while it makes its environments.
    """

    def __init__(
        self,
        env: EnvFactory,
        num_envs: int,
        num_threads: int = 1,
        batch_size: int | None = None,
        seed: int = 0,
        *,
        background: bool = False,
        num_processes: int = 0,
        **options: Any,
    ) -> None:
        check_pool(num_envs, num_threads, batch_size, seed, num_processes)
        source, slot_options = as_source(env), SlotOptions(**options)
        num_threads, num_processes = min(num_threads, num_envs), min(num_processes, num_envs)
        slots: EnvSlots
        if num_processes:
            # The calling thread asks all processes for a step together; submitted steps have a thread for each process.
            workers = Workers(num_shares=num_processes)
            slots = ProcessSlots(source, num_envs, slot_options, num_processes=num_processes)
        else:
            has_threads = num_threads > 1 or background
            workers = Workers(num_threads, num_threads if has_threads else 0)
            num_workers = num_threads + has_threads
            slots = source.make_slots(num_envs, replace(slot_options, num_workers=num_workers))
        super().__init__(slots, workers, batch_size=batch_size, seed=seed)


def check_pool(num_envs: int, num_threads: int, batch_size: int | None, seed: int, num_processes: int) -> None:
    """Raise a ValueError for an argument of `ThreadedVecEnv` that is not allowed."""
    check_whole(num_envs, "num_envs")
    check_whole(num_threads, "num_threads")
    check_batch_size(batch_size, num_envs)
    check_whole(seed, "seed", 0)
    check_whole(num_processes, "num_processes", 0)
    if num_processes and num_threads != 1:
        raise ValueError(
            f"num_processes is {num_processes}, so num_threads={num_threads} would not be used: leave it out"
        )


class ListEnv(ThreadedVecEnv):
    """Steps environments in the calling thread: `ThreadedVecEnv` with one thread.

    Args:
        env, num_envs, seed: as in `ThreadedVecEnv`.
        options: those of `ThreadedVecEnv` that are not about threads, by name.
    """

    def __init__(self, env: EnvFactory, num_envs: int, seed: int = 0, **options: Any) -> None:
        super().__init__(env, num_envs, seed=seed, **options)
