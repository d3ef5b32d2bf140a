"""Gymnasium environments over pools: N environments as a `VectorEnv`, or one as an `Env` in three forms.

`GymnasiumVectorEnv` and `GymnasiumEnv` show the padded form (`entity_gym.bridges.padded`) as nested dictionaries, `PaddedEnv`
flattens it to one level for libraries that want one, and `RaggedEnv` shows as many rows as there are entities.

Spaces are `Box` for arrays, `MultiBinary` for arrays of 0 and 1, `Discrete` for an action that is one integer, `MultiDiscrete`
for other choices, `Box` for continuous actions, and `Sequence` for rows that vary in number; in a batch the rows of all
environments stand one after another, and info["players"]["env_id"] names the environment of each row.

Every action of a space can be taken, as Gymnasium promises: one that is not open becomes the next open one, unless
`invalid_actions="raise"`. info["replaced_actions"] counts these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecObs
from entity_gym.bridges.padded import (
    Field,
    PaddedForm,
    RaggedForm,
    Tree,
    frame_of,
    frames_of,
    in_batch,
    map_tree,
    without_offsets,
)
from entity_gym.pools.pool import SlotVecEnv
from entity_gym.pools.spec import EnvSpec
from entity_gym.pools.vec_env import EnvIdLike, VecEnv, check_env_id

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError as error:
    raise ImportError(f'the Gymnasium form needs Gymnasium ({error}): pip install "enn-ppo[gymnasium]"') from error


def observation_space(spec: EnvSpec) -> spaces.Space[Any]:
    """Return the observation space of one environment in the padded form.

    Raises:
        ValueError: if the spec does not say how many entities or actors there can be.
    """
    return _space(PaddedForm(spec).observation)


def action_space(spec: EnvSpec) -> spaces.Space[Any]:
    """Return the action space of one environment in the padded form; raises as `observation_space` does."""
    return _action_space(PaddedForm(spec).action)


class GymnasiumVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """A pool as a `gymnasium.vector.VectorEnv`.

    Autoreset is Gymnasium's SAME_STEP: where an episode ends, the observation is the first of the next episode, and the last
    observation and info of the finished one are `info["final_obs"]` (an array of objects, None elsewhere) and
    `info["final_info"]`, which includes the environment's own end-of-episode info. `info["_name"]` marks the environments for
    which `info["name"]` is valid, as in Gymnasium's own vector environments.

    Args:
        pool: made with final_observations="all"; closed with this object.

    Attributes:
        env_spec: the spec of the environments; `spec` is Gymnasium's.
        obs: the `VecObs` of the last step, with metrics.
    """

    def __init__(self, pool: VecEnv, spec: EnvSpec, render_mode: str | None = None) -> None:
        self.metadata = {**GymnasiumEnv.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = render_mode
        self.pool, self.env_spec = pool, spec
        self.spec = gymnasium_spec(spec, spec.config.name, "nested")
        self.num_envs = len(pool)
        self._form = PaddedForm(spec, self.num_envs)
        self.single_observation_space = _space(self._form.observation)
        self.observation_space = _space(self._form.observation, self.num_envs)
        self.single_action_space = _action_space(self._form.action)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._everyone = np.arange(self.num_envs)
        self.obs: VecObs | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every environment.

        Args:
            seed: environment i draws from `SeedSequence((seed, i))`. None: continue with the current random numbers.
            options: {"env_info": ...}, parameters for the episodes from now on, as in `VecEnv.reset`.

        Raises:
            ValueError: for other options, or a seed that is not an integer.
        """
        env_info = _env_info(options)
        _check_seed(seed)
        super().reset(seed=seed)
        self._form.forget_replaced()
        return self._first(self.pool.reset(seed, env_info))

    def step(
        self, actions: Any, env_id: EnvIdLike | None = None
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Step environments and wait for them.

        Args:
            actions: of `action_space`, one for each environment in `env_id`.
            env_id: (n,) the environments to step. None: all.

        Returns:
            Observations, rewards (n,) float64, terminated (n,) bool, truncated (n,) bool and info, in the order of `env_id`.

        Raises:
            ValueError: for actions outside the space.
        """
        ids = self._everyone if env_id is None else check_env_id(env_id, self.num_envs)
        return self._result(self.pool.act(self._form.to_pool(actions, ids), env_id))

    def async_reset(self) -> None:
        """Start an episode in every environment without waiting; `recv` returns the first observations."""
        self._form.forget_replaced()
        self.pool.async_reset()

    def send(self, actions: Any, env_id: EnvIdLike | None = None) -> None:
        """Step environments without waiting; arguments as in `step`."""
        ids = self._everyone if env_id is None else check_env_id(env_id, self.num_envs)
        self.pool.send(self._form.to_pool(actions, ids), env_id)

    def recv(self) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Wait for `batch_size` of the environments under way; returns as `step`, and info["env_id"] names them."""
        return self._result(self.pool.recv())

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """Draw every environment as a (height, width, 3) image; None without a render mode."""
        return None if self.render_mode is None else tuple(self.pool.render(self._everyone))

    def close_extras(self, **kwargs: Any) -> None:  # noqa: D102
        self.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _first(self, obs: VecObs) -> tuple[Any, dict[str, Any]]:
        self.obs = obs
        observation, info = self._form.show(obs)
        return without_offsets(observation), _with_masks(info, np.ones(len(obs), np.bool_))

    def _result(self, obs: VecObs) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        observation, info = self._first(obs)
        if np.count_nonzero(obs.done):
            last = obs.final
            ended = np.flatnonzero(obs.done)
            if last is None or not np.array_equal(last.env_id, obs.env_id[ended]):
                raise ValueError(
                    "the Gymnasium form needs every last observation: make the pool with final_observations='all'"
                )
            info |= _final(*self._form.show_final(last), obs, ended)
        return observation, obs.reward.astype(np.float64), obs.done & ~obs.truncated, obs.truncated.copy(), info


class GymnasiumEnv(gymnasium.Env[Any, Any]):
    """The only environment of a pool as a `gymnasium.Env` in the nested padded form; `to_gymnasium` makes it.

    There is no autoreset: the last observation is returned, and `reset` comes next. The info of a last step includes the
    environment's own end-of-episode info.

    Args:
        pool: one environment without autoreset; closed with this object.
        render_mode: "rgb_array", or None.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, pool: SlotVecEnv, spec: EnvSpec, render_mode: str | None = None) -> None:
        self._pool, self.env_spec, self.render_mode = pool, spec, render_mode
        self._form = self._make_form()
        self.observation_space = _space(self._form.observation)
        self.action_space = _action_space(self._form.action)
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
        """Take one step; raises ValueError for an action outside the space, or without a running episode."""
        if not self._running:
            raise ValueError("step: no episode is running; call reset first")
        obs = self._pool.act(self._form.to_pool(in_batch(action), self._only))
        done, truncated = bool(obs.done[0]), bool(obs.truncated[0])
        self._running = not done
        observation, info = self._frame(obs)
        if done:
            info |= unless_taken(obs.end_of_episode_info.get(0, {}), info)
        return observation, float(obs.reward[0]), done and not truncated, truncated, info

    def render(self) -> NDArray[np.uint8] | None:
        """Draw the current state as a (height, width, 3) image; None without a render mode."""
        return None if self.render_mode is None else self._pool.render([0])[0]

    def close(self) -> None:  # noqa: D102
        self._pool.close()

    def _make_form(self) -> PaddedForm | RaggedForm:
        return PaddedForm(self.env_spec)

    def _frame(self, obs: VecObs) -> tuple[Any, dict[str, Any]]:
        observation, info = self._form.show(obs)
        return frame_of(observation, 0), map_tree(_plain, frame_of(info, 0))


class RaggedEnv(GymnasiumEnv):
    """The ragged form (`entity_gym.bridges.padded.RaggedForm`): `Sequence` spaces, all of them stacked."""

    def _make_form(self) -> RaggedForm:
        return RaggedForm(self.env_spec)


class PaddedEnv(GymnasiumEnv):
    """The padded form in one level, and one array for all actions: for Stable-Baselines3 and other libraries.

    Names are joined by "/"; single numbers are arrays of one; `mask/<type>`, (max,) int8, is 1 where there is an entity that
    can be seen, and stands for `counts` and `visible`. A "." in a name becomes "/", since PyTorch modules cannot be named so.

    An action is one integer (`Discrete`) if there is one action with one actor. Otherwise it is one array with the values of all
    actors of the first action of the action space, then those of the second, and so on: `MultiDiscrete`, or `Box` if
    actions are continuous.

    Raises:
        ValueError: for rows of players, whose number varies; for continuous actions beside choices.
    """

    def __init__(self, pool: SlotVecEnv, spec: EnvSpec, render_mode: str | None = None) -> None:
        super().__init__(pool, spec, render_mode)
        self._shows_entities = not any(name.partition(":")[0] == "obs" for name in spec.arrays)
        self._open: Mapping[str, NDArray[np.int8]] = {}  # action -> what the last frame offered
        by_name = self.action_space
        self._actions = {name: by_name[name] for name in spec.actions} if isinstance(by_name, spaces.Dict) else {}
        if self._actions:
            self.action_space = self._joined_space()
        nested = self.observation_space
        if self._shows_entities and isinstance(nested, spaces.Dict):
            masks: dict[str, Any] = {}
            for name, entity in spec.entities.items():
                masks[name] = spaces.MultiBinary(entity.max or 0)
            nested = spaces.Dict(_with_mask(nested.spaces, spaces.Dict(masks)))
        self.observation_space = self._flat_space(nested)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step; raises ValueError for an action outside the space, or without a running episode."""
        return super().step(self._split(action) if self._actions else action)

    def action_masks(self) -> NDArray[np.bool_]:
        """Return (sum of C,) whether each choice is open now, as `MaskablePPO` of sb3-contrib takes it.

        Rows beyond the last actor have choice 0 open. Empty if actions are continuous.
        """
        if isinstance(self.action_space, spaces.Box):
            return np.zeros(0, np.bool_)
        if not self._open:  # choices are never closed
            assert isinstance(self.action_space, spaces.Discrete)
            return np.ones(int(self.action_space.n), np.bool_)
        masks = []
        for name in self.env_spec.actions:
            rows = self._open[name].reshape(-1, self._open[name].shape[-1]).astype(np.bool_)
            rows[~rows.any(axis=1), 0] = True
            masks.append(rows.ravel())
        return np.concatenate(masks)

    def _frame(self, obs: VecObs) -> tuple[Any, dict[str, Any]]:
        observation, info = super()._frame(obs)
        self._open = (observation if self._shows_entities else info).get("action_mask", {})
        if self._shows_entities:
            visible, masks = observation.get("visible", {}), {}
            for name, entity in self.env_spec.entities.items():
                there = (np.arange(entity.max or 0) < observation["counts"][name]).astype(np.int8)
                masks[name] = there & visible[name] if name in visible else there
            observation = _with_mask(observation, masks)
        flat = {path: np.atleast_1d(array) for path, array in _flat(observation)}
        return flat.get("", flat), info

    def _joined_space(self) -> spaces.Space[Any]:
        parts: list[Any] = list(self._actions.values())
        boxes = [part for part in parts if isinstance(part, spaces.Box)]
        if not boxes:
            return spaces.MultiDiscrete(np.concatenate([part.nvec for part in parts]))
        if len(boxes) < len(parts):
            kinds = ", ".join(f"{each!r} is {action.space.kind}" for each, action in self.env_spec.actions.items())
            raise ValueError(
                f"{self.env_spec.config.name} has actions that do not go into one array ({kinds}): use form='nested' or "
                "form='ragged', which take a dictionary of them"
            )
        low = np.concatenate([box.low.ravel() for box in boxes])
        high = np.concatenate([box.high.ravel() for box in boxes])
        return spaces.Box(low, high, dtype=np.float32)

    def _split(self, action: Any) -> dict[str, NDArray[Any]]:
        """Return action -> its part of `action`."""
        given, wanted = np.asarray(action), self.action_space.shape
        if given.shape != wanted:
            raise ValueError(
                f"{self.env_spec.config.name}: the action has shape {given.shape}; expected {wanted}, the numbers of "
                f"{list(self._actions)} one after another"
            )
        shapes = [space.shape or () for space in self._actions.values()]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        parts = np.split(given, ends[:-1])
        return {name: part.reshape(shape) for name, part, shape in zip(self._actions, parts, shapes, strict=True)}

    def _flat_space(self, nested: spaces.Space[Any]) -> spaces.Space[Any]:
        name, flat = self.env_spec.config.name, {}
        for path, space in _flat(nested):
            if isinstance(space, spaces.Sequence):
                raise ValueError(
                    f"{name} shows a row for each player in {path!r}, and their number varies, so it has no padded form; "
                    "use form='ragged', which shows its entities"
                )
            if path in flat:
                raise ValueError(f"{name} has two things called {path!r}; rename one")
            if isinstance(space, spaces.Box) and not space.shape:
                space = spaces.Box(space.low.reshape(1), space.high.reshape(1), dtype=space.low.dtype.type)
            elif isinstance(space, spaces.MultiBinary) and not space.shape:
                space = spaces.MultiBinary(1)
            flat[path] = space
        return flat[""] if "" in flat else spaces.Dict(flat)


def gymnasium_spec(spec: EnvSpec, env: Any, form: str) -> GymnasiumSpec:
    """Return the spec with which `gymnasium.make` makes one environment of the same kind in `form`."""
    config = spec.config
    kwargs: dict[str, Any] = {
        "env": env,
        "form": form,
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
        entry_point="entity_gym.bridges.outgoing:to_gymnasium",
        reward_threshold=config.reward_threshold,
        max_episode_steps=config.max_episode_steps,
        kwargs=kwargs,
    )


def unless_taken(said: Mapping[str, Any], info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the end-of-episode info `said`; raises ValueError if `info` has one of its names."""
    if taken := sorted(said.keys() & info.keys()):
        raise ValueError(f"end_of_episode_info has {taken}, which info has already: rename them in the environment")
    return said


def _plain(array: NDArray[Any]) -> Any:
    """Return arrays without dimensions as numbers; Gymnasium takes NumPy's bools for objects."""
    if array.ndim:
        return array
    return bool(array) if array.dtype == np.bool_ else array[()]


def _space(tree: Tree, num_envs: int | None = None) -> spaces.Space[Any]:
    """Return the space of one environment, or of a batch."""
    if isinstance(tree, dict):
        return spaces.Dict({name: _space(branch, num_envs) for name, branch in tree.items()})
    field: Field = tree
    bounded = field.dtype.kind in "iu" and bool(np.isfinite([field.low, field.high]).all())
    if field.ragged and not field.shape and bounded:  # in a Sequence, Gymnasium wants Discrete rather than Box
        space: spaces.Space[Any] = spaces.Discrete(field.high - field.low + 1, start=field.low)
    elif field.dtype == np.int8 and (field.low, field.high) == (0, 1):
        space = spaces.MultiBinary(field.shape)
    else:
        space = _box(field)
    if field.ragged:
        return spaces.Sequence(space, stack=True)
    return space if num_envs is None else batch_space(space, num_envs)


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
    return spaces.Sequence(space, stack=True) if field.ragged else space


def _flat(nested: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return (path, leaf) of every leaf of nested dictionaries or `Dict`s; the path of a single leaf is ""."""
    if not isinstance(nested, dict | spaces.Dict):
        return [(path, nested)]
    leaves = []
    for name, branch in nested.items():
        name = name.replace(".", "/")
        leaves += _flat(branch, f"{path}/{name}" if path else name)
    return leaves


def _with_mask(nested: Mapping[str, Any], mask: Any) -> dict[str, Any]:
    """Return an observation, or the spaces of one, with `mask` in place of counts and flags of hidden entities."""
    return {"mask": mask, **{name: branch for name, branch in nested.items() if name not in ("counts", "visible")}}


def _with_masks(info: dict[str, Tree], valid: NDArray[np.bool_]) -> dict[str, Any]:
    """Return info in Gymnasium's manner: beside each "name" a mask "_name" of the valid environments; ragged rows have none."""
    result: dict[str, Any] = {}
    for name, branch in info.items():
        if isinstance(branch, RaggedBuffer):
            result[name] = branch.values
            continue
        result[name] = _with_masks(branch, valid) if isinstance(branch, dict) else branch
        result[f"_{name}"] = valid.copy()
    return result


def _final(observation: Tree, info: dict[str, Tree], obs: VecObs, ended: NDArray[np.intp]) -> dict[str, Any]:
    """Return the `final_...` entries of the info of `obs`; `observation` and `info` are of its rows `ended`."""
    num_frames = len(obs)
    valid = np.zeros(num_frames, np.bool_)
    valid[ended] = True
    final_obs = np.full(num_frames, None, dtype=object)
    for row, frame in zip(ended, frames_of(observation), strict=True):
        final_obs[row] = frame

    def spread(array: NDArray[Any] | RaggedBuffer[Any]) -> NDArray[Any] | RaggedBuffer[Any]:
        if isinstance(array, RaggedBuffer):
            return array
        wide = np.zeros((num_frames, *array.shape[1:]), array.dtype)
        wide[ended] = array
        return wide

    final_info = _with_masks(map_tree(spread, info), valid)
    for row in ended if obs.end_of_episode_info else ():
        said = obs.end_of_episode_info.get(int(obs.env_id[row]), {})
        for name, value in unless_taken(said, info).items():
            if name not in final_info:
                final_info[name], final_info[f"_{name}"] = _room_for(value, num_frames), np.zeros(num_frames, np.bool_)
            final_info[name][row] = value
            final_info[f"_{name}"][row] = True
    return {"final_obs": final_obs, "_final_obs": valid.copy(), "final_info": final_info, "_final_info": valid}


def _room_for(value: Any, num_frames: int) -> NDArray[Any]:
    if isinstance(value, bool | int | float | np.generic):
        return np.zeros(num_frames, np.asarray(value).dtype)
    if isinstance(value, np.ndarray):
        return np.zeros((num_frames, *value.shape), value.dtype)
    return np.full(num_frames, None, dtype=object)


def _env_info(options: Mapping[str, Any] | None) -> Any:
    if unknown := sorted((options or {}).keys() - {"env_info"}):
        raise ValueError(f"reset: options has {unknown}; allowed: 'env_info'")
    return (options or {}).get("env_info")


def _check_seed(seed: Any) -> None:
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
        raise ValueError(
            f"reset: seed is {seed!r:.200}; it must be one whole number, from which all environments draw theirs"
        )
