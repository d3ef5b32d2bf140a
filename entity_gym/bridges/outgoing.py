"""Entity environments for libraries that have no entities, in the padded form; each library's `envs.py` has its own.

env = make_gym("CartPole-v1", num_envs=8)                           # many, as a Gymnasium vector environment
env = make_dm("CartPole-v1", num_envs=8)                            # many, as a dm_env environment
env = to_gymnasium("MineSweeper")                                   # one
env = to_gymnasium(MyWorld, max_entities={"Robot": 4, "Box": 20})   # a Python world does not say how many there can be
env = to_gymnasium("MineSweeper", measure=True)                     # as much room as random episodes have needed
env = to_pettingzoo("MultiSnake", num_snakes=4, num_players=2, max_actors={"move": 2})
env = to_dm_env("MineSweeper", seed=1)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from entity_gym.actions.choices import random_actions
from entity_gym.environment import Environment
from entity_gym.pools.vec_env import VecEnv
from entity_gym.registry import Prepared, prepare, spec_of

Made = TypeVar("Made")

#: What `measure` plays: so many episodes, or so many steps if these are fewer.
EPISODES, STEPS = 50, 20_000


def prepare_form(env: Any, options: dict[str, Any], render_mode: str | None, *, is_one: bool) -> Prepared:
    """Find an environment and check all options; where it `is_one`, `env` may be the `Environment` itself."""
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f"render_mode is {render_mode!r}; allowed: None, 'rgb_array'")
    if options.get("final_observations", "all") != "all":
        raise ValueError(f"final_observations is {options['final_observations']!r}; make_gym and make_dm need 'all'")
    if is_one and options.get("num_envs", 1) != 1:
        raise ValueError(
            f"num_envs is {options['num_envs']}; this is one environment: make_gym and make_dm make several"
        )
    source = env
    if is_one and isinstance(env, Environment):

        def source() -> Environment:
            return env

        source.__name__ = type(env).__name__  # for messages
    return prepare(source, {**options, "final_observations": "all"})


def make_form(prepared: Prepared, pool: VecEnv, form: Callable[..., Made], *arguments: Any) -> Made:
    """Return form(pool, spec, *arguments); an error in it closes the pool."""
    try:
        return form(pool, spec_of(prepared, pool), *arguments)
    except BaseException:
        pool.close()
        raise


def measure_room(prepared: Prepared, pool: VecEnv) -> Prepared:
    """Play random episodes, and return `prepared` with room for what was shown, which is printed; given room stays."""
    config, space = prepared.config, pool.action_space()
    entities = dict.fromkeys(pool.obs_space().entities, 1)
    actors = {name: 1 for name, each in space.items() if not each.is_global}
    rng = np.random.default_rng(config.seed)
    obs, episodes, steps = pool.reset(config.seed), 0, 0
    while True:
        entities = {name: max(most, int(obs.features[name].items())) for name, most in entities.items()}
        actors = {name: max(most, int(obs.action_masks[name].actors.items())) for name, most in actors.items()}
        if episodes == EPISODES or steps >= STEPS:
            break
        if obs.done.any():
            episodes += 1
            obs = pool.reset()
        else:
            obs, steps = pool.act(random_actions(obs, rng, space)), steps + 1
    print(
        f"{config.name}: {episodes} random episodes, {steps:,} steps, need room for max_entities={entities}, "
        f"max_actors={actors}",
        file=sys.stderr,
    )
    entities |= config.max_entities or {}  # what is given stays
    actors |= config.max_actors or {}
    return Prepared(replace(config, max_entities=entities, max_actors=actors), prepared.source)
