"""Worker threads at the end of the interpreter."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.entity_gym.pools.kinds_of_pools import pool_threads


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    assert pool_threads() == []
    yield
    assert pool_threads() == []


# --- Nothing is left behind


@pytest.mark.parametrize(
    "last", ["env.act(add(1, 1, 1))", "env.send(add(1, 1, 1))", "env.async_reset()", "raise SystemExit(0)"]
)
def test_the_interpreter_exits_quietly_whatever_a_pool_was_doing(last: str) -> None:
    script = f"""
        from entity_gym.pools.pool import ThreadedVecEnv
        from tests.entity_gym.pools.kinds_of_pools import Counter, add
        env = ThreadedVecEnv(Counter, 3, 3)
        env.reset()
        {last}
    """
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
