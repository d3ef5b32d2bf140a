"""A compiled environment as a plain one: the same rules, ids instead of indices, and a record that can be written to."""

from typing import Any

import numpy as np

from entity_gym import (
    CategoricalAction,
    CategoricalActionMask,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    Observation,
    SelectEntityAction,
    SelectEntityActionMask,
)
from tests.entity_gym.compiled.comparing import exactly
from tests.entity_gym.compiled.worlds import Everything


def random_choices(obs: Observation, rng: np.random.Generator) -> dict[str, Any]:
    """What an agent that knows ids alone would do."""
    actions: dict[str, Any] = {}
    for name, mask in obs.actions.items():
        if isinstance(mask, GlobalCategoricalActionMask):
            open_ = np.ones(3, np.bool_) if mask.mask is None else mask.mask[0]
            actions[name] = GlobalCategoricalAction(int(rng.choice(np.flatnonzero(open_))), "")
        elif isinstance(mask, CategoricalActionMask):
            assert mask.actor_ids is not None
            rows = np.ones((len(mask.actor_ids), 3), np.bool_) if mask.mask is None else mask.mask
            actions[name] = CategoricalAction(
                mask.actor_ids, np.array([rng.choice(np.flatnonzero(row)) for row in rows])
            )
        else:
            assert (
                isinstance(mask, SelectEntityActionMask) and mask.actor_ids is not None and mask.actee_ids is not None
            )
            actors, actees = [], []
            for k, actor in enumerate(mask.actor_ids):
                row = np.ones(len(mask.actee_ids), np.bool_) if mask.mask is None else mask.mask[k]
                if row.any():
                    actors.append(actor)
                    actees.append(mask.actee_ids[rng.choice(np.flatnonzero(row))])
            actions[name] = SelectEntityAction(actors, actees)
    return actions


def test_the_compiled_form_is_the_same_environment() -> None:
    seen = []
    for compile in (False, True):
        env, rng = Everything().as_environment(compile=compile), np.random.default_rng(5)
        env.rng = np.random.default_rng(4)
        seen.append([exactly(env.reset())])
        obs = env.show()
        for _ in range(60):
            obs = env.reset() if obs.done else env.act(random_choices(obs, rng))
            seen[-1].append(exactly(obs))
    assert seen[0] == seen[1]
