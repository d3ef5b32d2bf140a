"""One Ray for all tests of this folder that do not start one of their own; starting takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from enn_ppo.settings.config import DistributedConfig


@pytest.fixture(scope="session")
def ray_here() -> Iterator[None]:
    """Within it, this process has Ray already; it has 4 CPUs by Ray's count, which runs take turns on."""
    ray = pytest.importorskip("ray")
    from enn_ppo.training.on_ray.cluster import connection

    assert not ray.is_initialized()
    with connection(DistributedConfig(mode="ray", num_env_runners=3)):
        yield
    assert not ray.is_initialized()
