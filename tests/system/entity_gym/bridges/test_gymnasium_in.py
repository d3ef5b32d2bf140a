"""Gymnasium environments in pools. What `gym_worlds` show and pay is worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")


from entity_gym.actions.choices import random_actions  # noqa: E402
from entity_gym.bridges import from_gymnasium  # noqa: E402
from tests.entity_gym.bridges.gym_worlds import agents, choose, register  # noqa: E402
from tests.processes import run  # noqa: E402

LEFT, RIGHT = 0, 1


@pytest.mark.parametrize("option", ["num_threads", "num_processes"])
def test_threads_and_processes_show_the_same(option: str) -> None:
    reference, other = from_gymnasium("CartPole-v1", 5, seed=3), from_gymnasium("CartPole-v1", 5, seed=3, **{option: 2})
    one, two = reference.reset(), other.reset()
    rng = np.random.default_rng(0)
    for _ in range(60):
        np.testing.assert_array_equal(one.features["Agent"].values, two.features["Agent"].values)
        np.testing.assert_array_equal(one.done, two.done)
        actions = random_actions(one, rng, reference.action_space())
        one, two = reference.act(actions), other.act(actions)
    other.close()


def test_an_id_may_have_arguments_and_goes_to_worker_processes_with_what_it_stands_for() -> None:
    register()
    assert agents(from_gymnasium("Line-v3", 2, seed=1).reset()) == [[1, 0], [2, 0]]
    with from_gymnasium("Line-v3", 2, seed=1, num_processes=2, limit=1) as pool:
        pool.reset()
        assert pool.act(choose(RIGHT, LEFT)).truncated.tolist() == [True, True]


def test_without_gymnasium_the_message_says_what_to_install() -> None:
    done = run(
        "-c",
        "import sys; sys.modules['gymnasium'] = None\n"
        "from entity_gym.bridges.gymnasium.incoming import from_gymnasium\n"
        "from entity_gym.bridges.gymnasium.observations import PlainSpace\n"
        "class E:\n"
        "    observation_space, action_space = PlainSpace('Box', (1,)), PlainSpace('Discrete', n=2)\n"
        "    def reset(self, seed=None, options=None): return [1.0], {}\n"
        "    def step(self, action): return [2.0], 1.0, False, False, {}\n"
        "print(from_gymnasium(E).reset().features['Agent'].values.tolist())\n"
        "from_gymnasium('CartPole-v1')",
    )
    assert done.stdout.strip() == "[[1.0]]", "other environments need no Gymnasium"
    assert 'pip install "enn-ppo[gymnasium]"' in done.stderr.splitlines()[-1]
