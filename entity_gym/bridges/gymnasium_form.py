"""The Gymnasium form of a pool, `make(..., env_type="gymnasium")`, and of one environment, `GymnasiumEnv`.

Observations, actions and infos are what `dense` says. Spaces: `Box` for arrays, `MultiBinary` for what is 0 or 1, `Discrete`
for an action that is a plain number, `MultiDiscrete` for others and `Box` for continuous ones, nested in `Dict`s. Rows of
players, whose number varies, are a `Sequence` of these; in a batch the rows of all environments stand one after another, and
info["players"]["env_id"] says whose they are.

Every action of the space can be taken, as Gymnasium promises: one that is not open (see `action_mask`) becomes the next
open one, unless `invalid_actions="raise"`; info["replaced_actions"] counts them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.ragged import RaggedArray
from entity_gym.batch.vec_obs import VecObs
from entity_gym.bridges.dense import Dense, DenseForm, Form, frame_of, frames_of, rows_only
from entity_gym.bridges.dense_obs import Field, Tree, map_tree
from entity_gym.pools.slots import check_num_envs
from entity_gym.pools.spec import EnvSpec
from entity_gym.pools.vec_env import EnvIdLike, VecEnv, check_env_id
from entity_gym.registry import draws, make_single_pool, prepare, spec_of

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError as error:
    raise ImportError(f'the Gymnasium form needs Gymnasium ({error}): pip install "enn-ppo[gymnasium]"') from error

_RENDER_MODES = ["rgb_array"]
_FRAMES_PER_SECOND = 10


def observation_space(spec: EnvSpec) -> spaces.Space[Any]:
    """Of one environment.

    Raises:
        ValueError: if the spec does not say how many entities there can be.
    """
    return _space(DenseForm(spec, 1).observation)


def action_space(spec: EnvSpec) -> spaces.Space[Any]:
    """Of one environment.

    Raises:
        ValueError: if the spec does not say how many actors there can be.
    """
    return _action_space(DenseForm(spec, 1).action)


class GymnasiumVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """A pool as a `gymnasium.vector.VectorEnv`.

    Autoreset is Gymnasium's SAME_STEP: where an episode ends, the observation is the first of the next one, and the finished
    one's own last observation and info are `info["final_obs"]` (an array of objects, None elsewhere) and
    `info["final_info"]`, which also holds what the environment says about the episode. `info["_name"]` says for which
    environments `info["name"]` is valid, as in Gymnasium's own vector environments.

    Args:
        pool: the environments, made with final_observations="all"; belongs to this object from now on.
        spec: of the environments.
        render_mode: "rgb_array", or None.

    Attributes:
        pool: the same.
        env_spec: the same; `spec` is Gymnasium's.
        obs: the whole `VecObs` of the last step, metrics and all.
    """

    def __init__(self, pool: VecEnv, spec: EnvSpec, render_mode: str | None = None) -> None:
        self.metadata = {**GymnasiumEnv.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = render_mode
        self.pool, self.env_spec = pool, spec
        self.spec = _gymnasium_spec(spec)
        self.num_envs = len(pool)
        self._form = DenseForm(spec, self.num_envs)
        self.single_observation_space = _space(self._form.observation)
        self.observation_space = _space(self._form.observation, self.num_envs)
        self.single_action_space = _action_space(self._form.action)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._everyone = np.arange(self.num_envs)
        self.obs: VecObs | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode everywhere.

        Args:
            seed: environment i draws from `SeedSequence((seed, i))`. None: the random numbers go on where they are.
            options: {"env_info": ...}, parameters for the episodes from now on, as in `VecEnv.reset`.

        Raises:
            ValueError: for other options, or a seed that is no number.
        """
        env_info = _env_info(options)
        _check_seed(seed)
        super().reset(seed=seed)
        self._form.forget_replaced()
        return self._first(self.pool.reset(seed, env_info))

    def step(
        self, actions: Any, env_id: EnvIdLike | None = None
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Step environments, and wait for them.

        Args:
            actions: one for each environment stepped, as in `action_space`.
            env_id: the environments to step, in the order of `actions`. None: all.

        Returns:
            Observations, rewards (n,) float64, terminated (n,) bool, truncated (n,) bool and info, in the same order.

        Raises:
            ValueError: for actions outside the space.
        """
        ids = self._everyone if env_id is None else check_env_id(env_id, self.num_envs)
        return self._result(self.pool.act(self._form.ragged(actions, ids), env_id))

    def async_reset(self) -> None:
        """Start an episode everywhere without waiting: `recv` returns the first observations."""
        self._form.forget_replaced()
        self.pool.async_reset()

    def send(self, actions: Any, env_id: EnvIdLike | None = None) -> None:
        """Step environments without waiting; arguments as in `step`."""
        ids = self._everyone if env_id is None else check_env_id(env_id, self.num_envs)
        self.pool.send(self._form.ragged(actions, ids), env_id)

    def recv(self) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Wait for `batch_size` of the environments under way; returns as `step`, and info["env_id"] says which."""
        return self._result(self.pool.recv())

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """An image (height, width, 3) of every environment, or None without a render mode."""
        return None if self.render_mode is None else tuple(self.pool.render(self._everyone))

    def close_extras(self, **kwargs: Any) -> None:  # noqa: D102
        self.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _first(self, obs: VecObs) -> tuple[Any, dict[str, Any]]:
        self.obs = obs
        dense = self._form.show(obs)
        return rows_only(dense.observation), _with_masks(dense.info, np.ones(len(obs), np.bool_))

    def _result(self, obs: VecObs) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        observation, info = self._first(obs)
        if np.count_nonzero(obs.done):
            last = obs.final
            ended = np.flatnonzero(obs.done)
            if last is None or not np.array_equal(last.env_id, obs.env_id[ended]):
                raise ValueError(
                    "the Gymnasium form needs every last observation: make the pool with final_observations='all'"
                )
            info |= _final(self._form.show_last(last), obs, ended)
        return observation, obs.reward.astype(np.float64), obs.done & ~obs.truncated, obs.truncated.copy(), info


class GymnasiumEnv(gymnasium.Env[Any, Any]):
    """One environment as a `gymnasium.Env`: as in `GymnasiumVectorEnv`, without the dimension of environments.

    There is no autoreset: the last observation is returned, and then comes `reset`. The info of a last step also holds what the
    environment says about the episode.

    Args:
        env: what `make` takes: a name, "package.module:Class", a class or a function.
        render_mode: "rgb_array", or None.
        options: those of `make` that concern one environment, and the environment's parameters.

    Raises:
        ValueError: for arguments that cannot be.
    """

    metadata: dict[str, Any] = {
        "render_modes": _RENDER_MODES,
        "render_fps": _FRAMES_PER_SECOND,
    }  # Gymnasium reads the class's

    def __init__(self, env: Any, render_mode: str | None = None, **options: Any) -> None:
        prepared = prepare(env, {**options, "env_type": "gymnasium", "render_mode": render_mode})
        self.render_mode = render_mode
        check_num_envs(prepared.config.num_envs)
        if prepared.config.num_envs != 1:
            raise ValueError(
                f"num_envs is {prepared.config.num_envs}; a GymnasiumEnv is one environment, make() gives more"
            )
        self._pool = make_single_pool(prepared)
        self.env_spec = spec_of(prepared, self._pool)
        self.spec = _gymnasium_spec(self.env_spec, env, type(self))
        if not draws(prepared, self._pool):
            self.metadata = {**self.metadata, "render_modes": []}
        try:
            self._form = self._make_form()
            self.observation_space = _space(self._form.observation)
            self.action_space = _action_space(self._form.action)
        except ValueError:
            self._pool.close()
            raise
        self._only = np.zeros(1, np.int64)
        self._running = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; arguments as in `GymnasiumVectorEnv.reset`, with one mapping as "env_info"."""
        env_info = _env_info(options)
        _check_seed(seed)
        super().reset(seed=seed)
        self._form.forget_replaced()
        observation, info = self._frame(self._pool.reset(seed, None if env_info is None else [env_info]))
        self._running = True
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step.

        Raises:
            ValueError: for an action outside the space, or without a running episode.
        """
        if not self._running:
            raise ValueError("step: no episode is running; call reset first")
        batch = (
            {name: np.asarray(values)[None] for name, values in action.items()}
            if isinstance(action, Mapping)
            else [action]
        )
        obs = self._pool.act(self._form.ragged(batch, self._only))
        done, truncated = bool(obs.done[0]), bool(obs.truncated[0])
        self._running = not done
        observation, info = self._frame(obs)
        if done:
            info |= _unless_taken(obs.end_of_episode_info.get(0, {}), info)
        return observation, float(obs.reward[0]), done and not truncated, truncated, info

    def render(self) -> NDArray[np.uint8] | None:
        """The current state as a (height, width, 3) image, or None without a render mode."""
        return None if self.render_mode is None else self._pool.render([0])[0]

    def close(self) -> None:  # noqa: D102
        self._pool.close()

    def _make_form(self) -> Form:
        """How observations and actions look."""
        return DenseForm(self.env_spec, 1)

    def _frame(self, obs: VecObs) -> tuple[Any, dict[str, Any]]:
        dense = self._form.show(obs)
        return frame_of(dense.observation, 0), map_tree(_plain, frame_of(dense.info, 0))


def _plain(array: NDArray[Any]) -> Any:
    """Without dimensions, a number; Gymnasium takes NumPy's bools for objects."""
    if array.ndim:
        return array
    return bool(array) if array.dtype == np.bool_ else array[()]


def _space(tree: Tree, num_envs: int | None = None) -> spaces.Space[Any]:
    """Of one environment, or of a batch."""
    if isinstance(tree, dict):
        return spaces.Dict({name: _space(branch, num_envs) for name, branch in tree.items()})
    field: Field = tree
    if field.per_player and _is_index(field):
        space: spaces.Space[Any] = spaces.Discrete(field.high - field.low + 1, start=field.low)
    elif field.dtype == np.int8 and (field.low, field.high) == (0, 1):
        space = spaces.MultiBinary(field.shape)
    else:
        space = _box(field)
    if field.per_player:
        return spaces.Sequence(space, stack=True)
    return space if num_envs is None else batch_space(space, num_envs)


def _is_index(field: Field) -> bool:
    """Whether it is one whole number with bounds; in a Sequence, Gymnasium wants such numbers to be Discrete."""
    return not field.shape and field.dtype.kind in "iu" and bool(np.isfinite([field.low, field.high]).all())


def _box(field: Field) -> spaces.Box:
    low, high = field.bounds()
    return spaces.Box(low, high, field.shape, field.dtype.type)


def _action_space(tree: Tree) -> spaces.Space[Any]:
    if isinstance(tree, dict):
        return spaces.Dict({name: _action_space(branch) for name, branch in tree.items()})
    field: Field = tree
    if field.dtype.kind == "f":
        space: spaces.Space[Any] = _box(field)
    elif field.shape:
        space = spaces.MultiDiscrete(np.full(field.shape, field.high + 1))
    else:
        space = spaces.Discrete(field.high + 1)
    return spaces.Sequence(space, stack=True) if field.per_player else space


def _with_masks(info: dict[str, Tree], valid: NDArray[np.bool_]) -> dict[str, Any]:
    """Info in Gymnasium's manner: beside each "name" a "_name" that says where it is valid. Rows of players have none."""
    result: dict[str, Any] = {}
    for name, branch in info.items():
        if isinstance(branch, RaggedArray):
            result[name] = branch.values
            continue
        result[name] = _with_masks(branch, valid) if isinstance(branch, dict) else branch
        result[f"_{name}"] = valid.copy()
    return result


def _final(last: Dense, obs: VecObs, ended: NDArray[np.intp]) -> dict[str, Any]:
    """The `final_...` entries of the info of `obs`, in which the rows `ended` are the ones that `last` belongs to."""
    num_frames = len(obs)
    valid = np.zeros(num_frames, np.bool_)
    valid[ended] = True
    final_obs = np.full(num_frames, None, dtype=object)
    for row, frame in zip(ended, frames_of(last.observation), strict=True):
        final_obs[row] = frame

    def spread(array: NDArray[Any] | RaggedArray) -> NDArray[Any] | RaggedArray:
        if isinstance(array, RaggedArray):
            return array
        wide = np.zeros((num_frames, *array.shape[1:]), array.dtype)
        wide[ended] = array
        return wide

    info = _with_masks(map_tree(spread, last.info), valid)
    for row in ended if obs.end_of_episode_info else ():
        said = obs.end_of_episode_info.get(int(obs.env_id[row]), {})
        for name, value in _unless_taken(said, last.info).items():
            if name not in info:
                info[name], info[f"_{name}"] = _room_for(value, num_frames), np.zeros(num_frames, np.bool_)
            info[name][row] = value
            info[f"_{name}"][row] = True
    return {"final_obs": final_obs, "_final_obs": valid.copy(), "final_info": info, "_final_info": valid}


def _room_for(value: Any, num_frames: int) -> NDArray[Any]:
    if isinstance(value, bool | int | float | np.generic):
        return np.zeros(num_frames, np.asarray(value).dtype)
    if isinstance(value, np.ndarray):
        return np.zeros((num_frames, *value.shape), value.dtype)
    return np.full(num_frames, None, dtype=object)


def _unless_taken(said: Mapping[str, Any], info: Mapping[str, Any]) -> Mapping[str, Any]:
    taken = sorted(said.keys() & info.keys())
    if taken:
        raise ValueError(f"end_of_episode_info has {taken}, which info has already: rename them in the environment")
    return said


def _env_info(options: Mapping[str, Any] | None) -> Any:
    unknown = sorted((options or {}).keys() - {"env_info"})
    if unknown:
        raise ValueError(f"reset: options has {unknown}; allowed: 'env_info'")
    return (options or {}).get("env_info")


def _check_seed(seed: Any) -> None:
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
        raise ValueError(
            f"reset: seed is {seed!r:.200}; it must be one whole number, from which all environments draw theirs"
        )


def _gymnasium_spec(spec: EnvSpec, env: Any = None, made: type[GymnasiumEnv] = GymnasiumEnv) -> GymnasiumSpec:
    """What Gymnasium wants to know; `make` of it makes a `made`."""
    config = spec.config
    kwargs: dict[str, Any] = {
        "env": config.name if env is None else env,
        **config.parameters,
        "seed": config.seed,
        "max_episode_steps": config.max_episode_steps,
        "max_num_players": config.max_num_players,
        "max_entities": config.max_entities,
        "max_actors": config.max_actors,
        "invalid_actions": config.invalid_actions,
        "compile": config.compile,
    }
    return GymnasiumSpec(
        id=re.sub(r"[^\w:.-]", "_", config.name),
        entry_point=f"{made.__module__}:{made.__qualname__}",
        reward_threshold=config.reward_threshold,
        max_episode_steps=config.max_episode_steps,
        kwargs=kwargs,
    )
