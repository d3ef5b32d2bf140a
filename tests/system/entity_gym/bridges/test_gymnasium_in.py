"""Gymnasium environments in pools. What `gym_worlds` show and pay is worked out by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")


from entity_gym.actions.choices import random_actions  # noqa: E402
from entity_gym.batch.ragged import RaggedBuffer  # noqa: E402
from entity_gym.batch.vec_obs import VecObs  # noqa: E402
from entity_gym.bridges.gymnasium.incoming import (  # noqa: E402
    from_gymnasium,
)
from tests.entity_gym.bridges.gym_worlds import (  # noqa: E402
    register,
)

LEFT, RIGHT = 0, 1


@pytest.fixture
def pools() -> Iterator[Any]:
    """`from_gymnasium`, whose pools are closed."""
    made: list[Any] = []

    def make(*arguments: Any, **options: Any) -> Any:
        made.append(from_gymnasium(*arguments, **options))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def choose(*choices: int) -> dict[str, RaggedBuffer[np.int64]]:
    """One choice for each environment."""
    return {"action": RaggedBuffer.from_array(np.array(choices).reshape(-1, 1, 1))}


def agents(obs: VecObs) -> list[list[float]]:
    """What the agents show, one an environment."""
    assert obs.features["Agent"].size1().tolist() == [1] * len(obs)
    return obs.features["Agent"].values.tolist()  # type: ignore[no-any-return]


# ---- episodes


@pytest.mark.parametrize("option", ["num_threads", "num_processes"])
def test_threads_and_processes_show_the_same(pools: Any, option: str) -> None:
    reference, other = (
        pools("CartPole-v1", 5, seed=3),
        pools("CartPole-v1", 5, seed=3, **{option: 2}),
    )
    one, two = reference.reset(), other.reset()
    rng = np.random.default_rng(0)
    for _ in range(60):
        np.testing.assert_array_equal(one.features["Agent"].values, two.features["Agent"].values)
        np.testing.assert_array_equal(one.done, two.done)
        actions = random_actions(one, rng, reference.action_space())
        one, two = reference.act(actions), other.act(actions)


# ---- where environments come from


def test_an_id_may_have_arguments_and_goes_to_worker_processes_with_what_it_stands_for(pools: Any) -> None:
    register()
    assert agents(pools("Line-v3", 2, seed=1).reset()) == [[1, 0], [2, 0]]
    pool = pools("Line-v3", 2, seed=1, num_processes=2, limit=1)
    pool.reset()
    assert pool.act(choose(RIGHT, LEFT)).truncated.tolist() == [True, True]


def test_without_gymnasium_the_message_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "from entity_gym.bridges.gymnasium.incoming import from_gymnasium\n"
        "from entity_gym.bridges.gymnasium.observations import PlainSpace\n"
        "class E:\n"
        "    observation_space, action_space = PlainSpace('Box', (1,)), PlainSpace('Discrete', n=2)\n"
        "    def reset(self, seed=None, options=None): return [1.0], {}\n"
        "    def step(self, action): return [2.0], 1.0, False, False, {}\n"
        "print(from_gymnasium(E).reset().features['Agent'].values.tolist())\n"
        "from_gymnasium('CartPole-v1')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "[[1.0]]", "other environments need no Gymnasium"
    assert 'pip install "enn-ppo[gymnasium]"' in result.stderr.splitlines()[-1]
