"""Fixtures for tests of worker processes: some in two processes, and that neither these nor descriptors stay behind."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from entity_gym.pools.pool import ThreadedVecEnv
from tests.entity_gym.pools.fragile import Fragile


def children() -> set[int]:
    """Processes that this one has started, dead ones that nobody waited for included."""
    return {int(child) for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True, scope="module")
def little_garbage() -> Iterator[None]:
    """Collecting garbage after every test is quick where it need not look at the modules."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = children(), descriptors()
    yield
    gc.collect()
    assert (children(), descriptors()) == before


@pytest.fixture(scope="module")
def shared_pool() -> Iterator[ThreadedVecEnv]:
    with ThreadedVecEnv(Fragile, 4, num_processes=2, batch_size=1) as env:
        yield env


@pytest.fixture
def pool(shared_pool: ThreadedVecEnv) -> ThreadedVecEnv:
    """Four fragile environments in two processes, just reset. Not for tests in which a worker dies."""
    shared_pool.reset(seed=0, env_info={"size": [1] * 4})
    return shared_pool
