"""A compiled environment as a plain one: the same rules, ids instead of indices, and a record that can be written to."""

import numpy as np

from tests.entity_gym.compiled.comparing import exactly
from tests.entity_gym.compiled.test_view import random_choices
from tests.entity_gym.compiled.view import CompiledView
from tests.entity_gym.compiled.worlds import Everything


def test_the_compiled_form_is_the_same_environment() -> None:
    seen = []
    for compile in (False, True):
        env, rng = CompiledView(Everything(), compile=compile), np.random.default_rng(5)
        env.rng = np.random.default_rng(4)
        seen.append([exactly(env.reset())])
        obs = env.show()
        for _ in range(60):
            obs = env.reset() if obs.done else env.act(random_choices(obs, rng))
            seen[-1].append(exactly(obs))
    assert seen[0] == seen[1]
