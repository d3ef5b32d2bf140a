"""Entity environments for libraries that have no entities: one environment as a Gymnasium, PettingZoo or dm_env environment.

env = to_gymnasium("MineSweeper", form="ragged")                    # as many rows as there are entities
env = to_gymnasium("MineSweeper")                                   # padded: one Dict of fixed arrays, with masks
env = to_gymnasium(MyWorld, max_entities={"Robot": 4, "Box": 20})   # a Python world does not say how many there can be
env = to_gymnasium("MineSweeper", measure=True)                     # as much room as random episodes have needed
env = to_pettingzoo("MultiSnake", num_snakes=4, num_players=2, max_actors={"move": 2})
env = to_dm_env("MineSweeper", seed=1)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from entity_gym.bridges.measuring import measure_room
from entity_gym.environment import Environment
from entity_gym.errors import nearest
from entity_gym.pools.players import players_of
from entity_gym.pools.pool import SlotVecEnv
from entity_gym.pools.spec import EnvSpec
from entity_gym.registry import Prepared, draws, make, make_single_pool, prepare, spec_of

if TYPE_CHECKING:  # each needs its library
    from entity_gym.bridges.dm_env.envs import DmEnvironment
    from entity_gym.bridges.gymnasium.envs import GymnasiumEnv
    from entity_gym.bridges.pettingzoo.envs import PlayersParallelEnv

Made = TypeVar("Made")
GymnasiumFormName = Literal["padded", "nested", "ragged"]


def to_gymnasium(
    env: Any,
    form: GymnasiumFormName = "padded",
    render_mode: str | None = None,
    *,
    measure: bool = False,
    **options: Any,
) -> GymnasiumEnv:
    """Make one environment as a `gymnasium.Env`.

    Args:
        env: as in `make`: a name, "package.module:Class", a class or a function; or one `Environment`, closed with the result.
        form: "padded", one level of arrays of fixed shapes with masks, for Stable-Baselines3 and others; "nested", the same in
            nested dictionaries, with a dictionary of actions; or "ragged", rows whose number varies.
        render_mode: "rgb_array", or None.
        measure: play up to 50 random episodes first, give the padded arrays as much room as these have needed, and print
            `max_entities` and `max_actors` to standard error; those that are given stay as they are. A trained policy may meet
            more entities than a random one.
        options: those of `make` that concern one environment, and the environment's parameters. `max_entities` (type -> room)
            and `max_actors` (action -> room) are for the padded forms: environments that are not compiled do not say how many
            there can be, and compiled ones may allow many more than there are. An environment that shows more raises ValueError.

    Raises:
        ValueError: for options that are not allowed, and for worlds that do not fit the form, naming one that they fit.
        ImportError: naming what to install.
    """
    from entity_gym.bridges.gymnasium.envs import GymnasiumEnv, PaddedEnv, RaggedEnv, gymnasium_spec

    if form not in get_args(GymnasiumFormName):
        raise ValueError(f"form is {form!r}; {nearest(form, get_args(GymnasiumFormName))}")
    for option, given in (("measure", measure or None), *options.items()):
        if form == "ragged" and given is not None and option in ("measure", "max_entities", "max_actors"):
            raise ValueError(f"{option} is for form='padded'; there is no limit with form='ragged', so leave it out")
    prepared = _prepare_one(env, render_mode, options)
    wrapper = {"padded": PaddedEnv, "nested": GymnasiumEnv, "ragged": RaggedEnv}[form]
    made, pool = _wrap_pool(prepared, lambda pool, spec: wrapper(pool, spec, render_mode), measure)
    if not draws(prepared, pool):
        made.metadata = {**made.metadata, "render_modes": []}
    if not isinstance(env, Environment):  # gymnasium.make would make another environment with the same object inside
        made.spec = gymnasium_spec(made.env_spec, env, form)
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

    prepared = _prepare_one(env, render_mode, options)
    mapping = players_of(prepared.source)
    if mapping is None:
        raise ValueError(
            f"{prepared.config.name} has no players, and PettingZoo's agents are players: give its class num_players(), "
            "players() and seen_by() as entity_gym.pools.players says, or use to_gymnasium, where the whole world is one agent"
        )
    return _wrap_pool(prepared, lambda pool, spec: PlayersParallelEnv(pool, spec, mapping, render_mode))[0]


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

    if options.pop("num_envs", 1) != 1:
        raise ValueError("to_dm_env makes one environment; make(..., num_envs, env_type='dm') has several side by side")
    return DmEnvironment(make(_source_of(env), 1, seed=seed, env_type="dm", **options))


def _prepare_one(env: Any, render_mode: str | None, options: dict[str, Any]) -> Prepared:
    prepared = prepare(_source_of(env), {**options, "env_type": "gymnasium", "render_mode": render_mode})
    if prepared.config.num_envs != 1:
        raise ValueError(f"num_envs is {prepared.config.num_envs}; this is one environment, and make() makes several")
    return prepared


def _wrap_pool(
    prepared: Prepared, wrap: Callable[[SlotVecEnv, EnvSpec], Made], measure: bool = False
) -> tuple[Made, SlotVecEnv]:
    """Make a pool of one environment without autoreset; return wrap(pool, spec) and the pool. An error in `wrap` closes it."""
    pool = make_single_pool(prepared)
    try:
        if measure:
            prepared = _with_measured_room(prepared, pool)
        return wrap(pool, spec_of(prepared, pool)), pool
    except BaseException:
        pool.close()
        raise


def _with_measured_room(prepared: Prepared, pool: SlotVecEnv) -> Prepared:
    """Measure the room that `pool` needs, print it, and set what `max_entities` and `max_actors` do not say already."""
    config = prepared.config
    room = measure_room(pool, config.seed)
    entities, actors = room.entities | dict(config.max_entities or {}), room.actors | dict(config.max_actors or {})
    played = f"{room.episodes} random episodes, {room.steps:,} steps"
    print(f"{config.name}: {played}, need room for {room}", file=sys.stderr)
    return replace(prepared, config=replace(config, max_entities=entities, max_actors=actors))


def _source_of(env: Any) -> Any:
    """Return what `make` takes; for one `Environment` a function that returns it."""
    if not isinstance(env, Environment):
        return env

    def the_one() -> Environment:
        return env

    the_one.__name__ = type(env).__name__  # for messages
    return the_one
