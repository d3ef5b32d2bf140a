"""Entity environments for libraries that have no entities: in the padded form (`entity_gym.bridges.padded`).

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
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from entity_gym.actions.choices import random_actions
from entity_gym.environment import Environment
from entity_gym.pools.players import players_of
from entity_gym.pools.spec import EnvSpec
from entity_gym.pools.vec_env import VecEnv
from entity_gym.registry import Prepared, draws, make_pool, make_single_pool, prepare, spec_of

if TYPE_CHECKING:  # each needs its library
    from entity_gym.bridges.dm_env.envs import DmEnvironment, DmVecEnv
    from entity_gym.bridges.gymnasium.envs import GymnasiumEnv, GymnasiumVectorEnv
    from entity_gym.bridges.pettingzoo.envs import PlayersParallelEnv

Made = TypeVar("Made")
Pool = TypeVar("Pool", bound=VecEnv)

#: What `measure` plays: so many episodes, or so many steps if these are fewer.
EPISODES, STEPS = 50, 20_000


def make_gym(env: Any, num_envs: int = 1, *, render_mode: str | None = None, **options: Any) -> GymnasiumVectorEnv:
    """Make a pool of environments as a `gymnasium.vector.VectorEnv`, with `send` and `recv` for asynchronous steps.

    Args:
        env: as in `make`.
        num_envs: number of environments.
        render_mode: "rgb_array", or None.
        options: as in `make`, with `max_entities` and `max_actors` as in `to_gymnasium`.

    Raises:
        ValueError: as `make` does, and if it is not known how many entities or actors there can be.
        ImportError: naming what to install.
    """
    from entity_gym.bridges.gymnasium.envs import GymnasiumVectorEnv

    prepared = _prepare(env, {"num_envs": num_envs, **options}, render_mode, is_one=False)
    return _wrap(prepared, make_pool(prepared), lambda pool, spec: GymnasiumVectorEnv(pool, spec, render_mode))


def make_dm(env: Any, num_envs: int = 1, **options: Any) -> DmVecEnv:
    """Make a pool of environments as a `dm_env.Environment`; arguments and errors as in `make_gym`, without `render_mode`."""
    from entity_gym.bridges.dm_env.envs import DmVecEnv

    prepared = _prepare(env, {"num_envs": num_envs, **options}, None, is_one=False)
    # An environment whose episode has ended answers without a step, so the form itself collects `batch_size` of them.
    return _wrap(prepared, make_pool(Prepared(replace(prepared.config, batch_size=1), prepared.source)), DmVecEnv)


def to_gymnasium(env: Any, render_mode: str | None = None, *, measure: bool = False, **options: Any) -> GymnasiumEnv:
    """Make one environment as a `gymnasium.Env`, for Stable-Baselines3 and other libraries.

    Args:
        env: as in `make`: a name, "package.module:Class", a class or a function; or one `Environment`, closed with the result.
        render_mode: "rgb_array", or None.
        measure: play up to 50 random episodes first, give the padded arrays as much room as these have needed, and print
            `max_entities` and `max_actors` to standard error; those that are given stay as they are. A trained policy may meet
            more entities than a random one.
        options: those of `make` that concern one environment, and the environment's parameters. With `max_entities` (type ->
            room) and `max_actors` (action -> room): environments that are not compiled do not say how many there can be, and
            compiled ones may allow many more than there are. An environment that shows more raises ValueError.

    Raises:
        ValueError: for options that are not allowed, or if it is not known how many entities or actors there can be.
        ImportError: naming what to install.
    """
    from entity_gym.bridges.gymnasium.envs import GymnasiumEnv, gymnasium_spec

    prepared = _prepare(env, options, render_mode, is_one=True)
    pool = make_single_pool(prepared)
    made = _wrap(prepared, pool, lambda pool, spec: GymnasiumEnv(pool, spec, render_mode), measure)
    if not draws(prepared, pool):
        made.metadata = {**made.metadata, "render_modes": []}
    if not isinstance(env, Environment):  # gymnasium.make would make another environment with the same object inside
        made.spec = gymnasium_spec(made.env_spec, env)
    return made


def to_pettingzoo(env: Any, *, render_mode: str | None = None, **options: Any) -> PlayersParallelEnv:
    """Make one environment of a world with players as a PettingZoo parallel environment whose agents are the players.

    Args:
        env: as in `to_gymnasium`.
        render_mode: "rgb_array", or None.
        options: as in `to_gymnasium`; `max_actors` is the room for the actors of *one player*.

    Raises:
        ValueError: if the world has no players, or does not say how many entities or actors there can be.
        ImportError: naming what to install.
    """
    from entity_gym.bridges.pettingzoo.envs import PlayersParallelEnv

    prepared = _prepare(env, options, render_mode, is_one=True)
    mapping = players_of(prepared.source)
    if mapping is None:
        raise ValueError(
            f"{prepared.config.name} has no players, and PettingZoo's agents are players: give its class num_players(), "
            "players() and seen_by() as entity_gym.pools.players says, or use to_gymnasium, where the whole world is one agent"
        )
    pool = make_single_pool(prepared)
    return _wrap(prepared, pool, lambda pool, spec: PlayersParallelEnv(pool, spec, mapping, render_mode))


def to_dm_env(env: Any, seed: int = 0, **options: Any) -> DmEnvironment:
    """Make one environment as a `dm_env.Environment`.

    Args:
        env: as in `to_gymnasium`.
        seed: of all random numbers; dm_env has no other place for it.
        options: as in `to_gymnasium`.

    Raises:
        ValueError: for options that are not allowed, or if it is not known how many entities or actors there can be.
        ImportError: naming what to install.
    """
    from entity_gym.bridges.dm_env.envs import DmEnvironment

    prepared = _prepare(env, {"seed": seed, **options}, None, is_one=True)
    return _wrap(prepared, make_pool(prepared), DmEnvironment)


def _prepare(env: Any, options: dict[str, Any], render_mode: str | None, *, is_one: bool) -> Prepared:
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


def _wrap(prepared: Prepared, pool: Pool, wrap: Callable[[Pool, EnvSpec], Made], measure: bool = False) -> Made:
    """Return wrap(pool, spec). An error in `wrap` closes the pool."""
    try:
        return wrap(pool, spec_of(_measured(prepared, pool) if measure else prepared, pool))
    except BaseException:
        pool.close()
        raise


def _measured(prepared: Prepared, pool: VecEnv) -> Prepared:
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
