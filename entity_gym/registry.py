"""Environments by name: `make` them, `register` your own, `list_envs`.

Nothing is imported before it is made: neither the environments, nor their compiler, nor other libraries' interfaces.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from entity_gym.environment import Environment
from entity_gym.errors import nearest

if TYPE_CHECKING:
    from entity_gym.pools.pool import EnvSource
    from entity_gym.pools.slots import FinalObservations
    from entity_gym.pools.vec_env import VecEnv
    from entity_gym.spec import EnvSpec, EnvType, Executor, InvalidActions

YOUR_OWN = "your own is written as my_package.my_module:MyEnv"


@dataclass(frozen=True)
class Registered:
    """What a name stands for.

    Attributes:
        env: a compiled environment, what makes a Python one, or "package.module:Name" of either.
        max_episode_steps, reward_threshold: in place of the environment's own.
        defaults: parameters, in place of the environment's own defaults.
    """

    env: EnvSource | str
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def load(self, option: str = "the environment") -> Any:
        """The environment's class or what makes it; `option` is what messages call it.

        Raises:
            ValueError: if it is not where `env` says.
        """
        return import_callable(self.env, option, _environments) if isinstance(self.env, str) else self.env

    def arguments(self) -> dict[str, Any]:
        """What to make it with: the registered defaults, and the step limit as the parameter `max_steps`."""
        limit = {} if self.max_episode_steps is None else {"max_steps": self.max_episode_steps}
        return {**limit, **self.defaults}


_ENVS = "entity_gym.envs"
_registered: dict[str, Registered] = {
    name: Registered(f"{_ENVS}.{where}")
    for name, where in {
        "CartPole-v0": "cart_pole:CartPoleV0",
        "CartPole-v1": "cart_pole:CartPole",
        "CherryPick": "cherry_pick:CherryPick",
        "Count": "count:Count",
        "FloorIsLava": "floor_is_lava:FloorIsLava",
        "Minefield": "minefield:Minefield",
        "MineSweeper": "minesweeper:MineSweeper",
        "MoveToOrigin": "move_to_origin:MoveToOrigin",
        "MultiArmedBandit": "multi_armed_bandit:MultiArmedBandit",
        "MultiSnake": "multi_snake:MultiSnake",
        "NotHotdog": "not_hotdog:NotHotdog",
        "PickMatchingBalls": "pick_matching_balls:PickMatchingBalls",
        "RockPaperScissors": "rock_paper_scissors:RockPaperScissors",
        "TreasureHunt": "treasure_hunt:TreasureHunt",
        "Xor": "xor:Xor",
    }.items()
}


def list_envs() -> list[str]:
    """Every name that `make` knows, in alphabetical order."""
    return sorted(_registered, key=str.lower)


def register(
    name: str,
    env: EnvSource | str,
    *,
    max_episode_steps: int | None = None,
    reward_threshold: float | None = None,
    aliases: Sequence[str] = (),
    **defaults: Any,
) -> None:
    """Give an environment a name for `make`.

    Args:
        name: the new name, without ":".
        env: a compiled environment (class, or with parameters), a class or function that makes a Python one, or where to find
            one of these: "package.module:Name". That is imported only when it is made.
        max_episode_steps: in place of the environment's own step limit.
        reward_threshold: in place of the environment's own.
        aliases: further names for the same.
        defaults: parameters, in place of the environment's own defaults.

    Raises:
        ValueError: if a name is taken by something else, or cannot be one.
    """
    new = Registered(env, max_episode_steps, reward_threshold, defaults)
    names = [name, *([aliases] if isinstance(aliases, str) else aliases)]
    if isinstance(env, str):
        _split(env, "the environment")
    elif not callable(env) and not hasattr(env, "as_environment"):
        raise ValueError(
            f"register: env is {env!r:.200}; expected a class, what makes an environment, or 'module:Name'"
        )
    for each in names:
        if not isinstance(each, str) or not each or ":" in each:
            raise ValueError(f"register: the name is {each!r}; it must be a text without ':'")
        if _registered.get(each, new) != new:
            raise ValueError(f"register: the name {each!r} is taken by {_registered[each].env!r}; choose another")
    for each in names:
        _registered[each] = new


def make(
    name: EnvSource | str,
    num_envs: int = 1,
    num_threads: int | Literal["auto"] = 1,
    batch_size: int | None = None,
    seed: int = 0,
    max_episode_steps: int | None = None,
    env_type: EnvType = "entity",
    *,
    executor: Executor | None = None,
    num_processes: int | None = None,
    thread_affinity_offset: int = -1,
    reward_threshold: float | None = None,
    max_num_players: int | None = None,
    final_observations: FinalObservations | None = None,
    compile: bool = True,
    max_entities: Mapping[str, int] | None = None,
    max_actors: Mapping[str, int] | None = None,
    invalid_actions: InvalidActions | None = None,
    render_mode: str | None = None,
    **parameters: Any,
) -> Any:
    """Make a pool of environments.

    Args:
        name: one of `list_envs()`, "package.module:Class", or an environment: a compiled one (class, or with parameters), or a
            class or function that makes a Python one.
        num_envs: how many.
        num_threads: for executor "thread"; see `ThreadedVecEnv`.
        batch_size: how many environments `recv` returns; None: all.
        seed: environment i draws from `SeedSequence((seed, i))`.
        max_episode_steps: steps after which an episode is truncated; None: as the environment says.
        env_type: "entity" returns a `VecEnv`, "gymnasium" a `GymnasiumVectorEnv` and "dm" a `DmVecEnv`.
        executor: "thread" (`ThreadedVecEnv`), "process" (`ProcessVecEnv`) or "list" (`ListEnv`). None: "process" if
            `num_processes` is given, "list" for Python environments unless threads are asked for, and "thread" otherwise.
        num_processes: for executor "process"; None: one for each core.
        thread_affinity_offset: for executor "thread"; see `ThreadedVecEnv`.
        reward_threshold: mean episodic reward at which the environment counts as solved; only said in the spec.
        max_num_players: room for so many rows in arrays with a row a player; None: as the environment says.
        final_observations: which last observations to keep, "truncated" if None; "gymnasium" and "dm" need "all", and get it.
        compile: false runs compiled environments as ordinary Python.
        max_entities: for "gymnasium" and "dm", entity type -> room in padded arrays. Types that are left out have as much as
            they declare; those of Python environments declare nothing.
        max_actors: in the same way, action -> room for those who act.
        invalid_actions: for "gymnasium" and "dm", what happens to an action that is not open: "replace" by the next open one
            (also if None), or "raise". Entity pools always raise.
        render_mode: for "gymnasium": "rgb_array", or None.
        parameters: the environment's own.

    Returns:
        The pool, in the form that `env_type` says.

    Raises:
        ValueError: for names, options and values that cannot be, saying which are near.
        ImportError: naming what to install for the form.
    """
    options = {key: value for key, value in locals().items() if key not in ("name", "parameters")}
    from entity_gym.making import make_pool, prepare, spec_of

    prepared = prepare(name, {**options, **parameters})
    config = prepared.config
    if env_type == "gymnasium":
        from entity_gym.bridges.gymnasium_form import GymnasiumVectorEnv

        pool = make_pool(prepared, config.batch_size)
        return _wrapped(pool, lambda: GymnasiumVectorEnv(pool, spec_of(prepared, pool), render_mode))
    if env_type == "dm":
        from entity_gym.bridges.dm_form import DmVecEnv

        pool = make_pool(prepared, 1)
        return _wrapped(pool, lambda: DmVecEnv(pool, spec_of(prepared, pool)))
    return make_pool(prepared, config.batch_size)


def make_spec(name: EnvSource | str, **config: Any) -> EnvSpec:
    """What `make` with the same arguments makes: its configuration, and all that it shows and takes. Prints readably.

    A Python environment is made once to see its spaces.

    Raises:
        ValueError: as `make` does.
    """
    from entity_gym.making import prepare, spec_of

    return spec_of(prepare(name, config))


def look_up(name: str, option: str = "the environment") -> Registered:
    """What `name` stands for: one of `list_envs()`, or "package.module:Name"; `option` is what messages call it.

    Raises:
        ValueError: if there is no such name.
    """
    if ":" in name:
        return Registered(name)
    if name not in _registered:
        raise ValueError(f"{option} is {name!r}, which is no known one; {nearest(name, list_envs())}; {YOUR_OWN}")
    return _registered[name]


def _wrapped(pool: VecEnv, wrap: Callable[[], Any]) -> Any:
    """`wrap()`; if that is impossible, nothing of the pool stays behind."""
    try:
        return wrap()
    except BaseException:
        pool.close()
        raise


def _split(env_id: str, option: str) -> tuple[str, str]:
    module_name, _, name = env_id.partition(":")
    if not module_name or module_name.startswith(".") or not name:
        raise ValueError(f"{option} is {env_id!r}; {YOUR_OWN}")
    return module_name, name


def import_module(env_id: str, option: str) -> ModuleType:
    """The module of "package.module:Name"; `option` is what messages call that.

    Raises:
        ValueError: there is no such module. What it raises itself is raised here.
    """
    module_name, _ = _split(env_id, option)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # the module is there, and something that it imports is not
        raise ValueError(f"{option} is {env_id!r}, but there is no module {module_name!r} to import") from error


def import_callable(env_id: str, option: str, offered: Callable[[ModuleType], list[str]]) -> Any:
    """The class or function at "package.module:Name".

    Args:
        env_id: that text.
        option: what messages call it.
        offered: the names in a module that could have been meant, for messages.

    Raises:
        ValueError: it is not there. What its module raises is raised here.
    """
    module_name, name = _split(env_id, option)
    module = import_module(env_id, option)
    found = getattr(module, name, None)
    if not callable(found) and not hasattr(found, "as_environment"):
        raise ValueError(
            f"{option} is {env_id!r}, but {module_name} has no class or function {name!r}; {nearest(name, offered(module))}"
        )
    for key, value in vars(module).items():
        if _is_made(value) and getattr(getattr(value, "program", None), "main", None) is found:
            raise ValueError(f"{option} is {env_id!r}, which is the main of {module_name}:{key}; name that")
    return found


def _environments(module: ModuleType) -> list[str]:
    mine = module.__name__.startswith("entity_gym.")  # elsewhere our classes are what somebody has subclassed
    return [
        key
        for key, value in vars(module).items()
        if _is_made(value) or (_is_environment(value) and (mine or not value.__module__.startswith("entity_gym.")))
    ]


def _is_made(value: Any) -> bool:
    """Whether this makes environments, and is no class: a `SlotsFactory`."""
    return callable(value) and hasattr(value, "make_slots") and not isinstance(value, type)


def _is_environment(value: Any) -> bool:
    return isinstance(value, type) and (issubclass(value, Environment) or hasattr(value, "as_environment"))
