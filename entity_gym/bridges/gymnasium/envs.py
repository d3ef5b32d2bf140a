"""Gymnasium environments over pools: N environments as a `VectorEnv`, or one as an `Env`, in the padded form.

Spaces (`entity_gym.bridges.padded` says what they hold): an observation is a `Dict` of `Box` and `MultiBinary`. An action is
`Discrete` if it is one integer, `MultiDiscrete` for other choices, `Box` if all actions are continuous, and a `Dict` of these
in worlds that have choices and continuous actions.

Every action of a space can be taken, as Gymnasium promises: one that is not open becomes the next open one, unless
`invalid_actions="raise"`. info["replaced_actions"] counts these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.vec_obs import VecObs
from entity_gym.bridges.padded import Field, Frames, PaddedForm, frame_of, in_batch
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


class GymnasiumVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """A pool as a `gymnasium.vector.VectorEnv`; `make_gym` makes it.

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
        self.spec = gymnasium_spec(spec, spec.config.name)
        self.num_envs = len(pool)
        self._form = PaddedForm(spec, self.num_envs)
        self.single_observation_space = observation_space(self._form)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.single_action_space = action_space(self._form)
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
        return observation, _with_masks(info, np.ones(len(obs), np.bool_))

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
    """The only environment of a pool as a `gymnasium.Env`; `to_gymnasium` makes it.

    There is no autoreset: the last observation is returned, and `reset` comes next. The info of a last step includes the
    environment's own end-of-episode info.

    Args:
        pool: one environment without autoreset; closed with this object.
        render_mode: "rgb_array", or None.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, pool: SlotVecEnv, spec: EnvSpec, render_mode: str | None = None) -> None:
        self._pool, self.env_spec, self.render_mode = pool, spec, render_mode
        self._form = PaddedForm(spec)
        self.observation_space = observation_space(self._form)
        self.action_space = action_space(self._form)
        self._only = np.zeros(1, np.int64)
        self._running = False
        self._shown: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; arguments as in `GymnasiumVectorEnv.reset`, with one mapping as "env_info"."""
        env_info = _env_info(options)
        _check_seed(seed)
        super().reset(seed=seed)
        self._form.forget_replaced()
        info = self._show(self._pool.reset(seed, None if env_info is None else [env_info]))
        self._running = True
        return self._shown, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step; raises ValueError for an action outside the space, or without a running episode."""
        if not self._running:
            raise ValueError("step: no episode is running; call reset first")
        obs = self._pool.act(self._form.to_pool(in_batch(action), self._only))
        done, truncated = bool(obs.done[0]), bool(obs.truncated[0])
        self._running = not done
        info = self._show(obs)
        if done:
            info |= unless_taken(obs.end_of_episode_info.get(0, {}), info)
        return self._shown, float(obs.reward[0]), done and not truncated, truncated, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Return (sum of C,) whether each choice is open now, as `MaskablePPO` of sb3-contrib takes it.

        Rows beyond the last actor have choice 0 open. Continuous actions have no choices.

        Raises:
            ValueError: before the first `reset`.
        """
        if not self._shown:
            raise ValueError("action_masks: nothing has been shown yet; call reset first")
        masks = [mask.astype(np.bool_) for masks in self._form.masks(self._shown).values() for mask in masks]
        for mask in masks:
            mask[0] |= not mask.any()
        return np.concatenate(masks) if masks else np.zeros(0, np.bool_)

    def render(self) -> NDArray[np.uint8] | None:
        """Draw the current state as a (height, width, 3) image; None without a render mode."""
        return None if self.render_mode is None else self._pool.render([0])[0]

    def close(self) -> None:  # noqa: D102
        self._pool.close()

    def _show(self, obs: VecObs) -> dict[str, Any]:
        """Keep the observation, and return the info."""
        observation, info = self._form.show(obs)
        self._shown = frame_of(observation, 0)
        return frame_of(info, 0)


def observation_space(form: PaddedForm) -> spaces.Dict:
    """Return the observation space of one environment."""
    return spaces.Dict(
        {
            name: spaces.MultiBinary(field.shape) if field.dtype == np.int8 else _box(field)
            for name, field in form.observation.items()
        }
    )


def action_space(form: PaddedForm) -> spaces.Space[Any]:
    """Return the action space of one environment."""
    if isinstance(form.action, dict):
        return spaces.Dict({name: _action_space(field) for name, field in form.action.items()})
    return _action_space(form.action)


def gymnasium_spec(spec: EnvSpec, env: Any) -> GymnasiumSpec:
    """Return the spec with which `gymnasium.make` makes one environment of the same kind."""
    config = spec.config
    kwargs: dict[str, Any] = {
        "env": env,
        **config.parameters,
        "seed": config.seed,
        "max_episode_steps": config.max_episode_steps,
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


def _box(field: Field) -> spaces.Box:
    low, high = field.bounds()
    return spaces.Box(low, high, field.shape, field.dtype.type)


def _action_space(field: Field) -> spaces.Space[Any]:
    if field.dtype.kind == "f":
        return _box(field)
    return spaces.MultiDiscrete(field.bounds()[1] + 1) if field.shape else spaces.Discrete(field.high + 1)


def _with_masks(info: Frames, valid: NDArray[np.bool_]) -> dict[str, Any]:
    """Return info in Gymnasium's manner: beside each "name" a mask "_name" of the valid environments."""
    return {**info, **{f"_{name}": valid.copy() for name in info}}


def _final(observation: Frames, info: Frames, obs: VecObs, ended: NDArray[np.intp]) -> dict[str, Any]:
    """Return the `final_...` entries of the info of `obs`; `observation` and `info` are of its rows `ended`."""
    num_frames = len(obs)
    valid = np.zeros(num_frames, np.bool_)
    valid[ended] = True
    final_obs = np.full(num_frames, None, dtype=object)
    wide = {name: np.zeros(num_frames, array.dtype) for name, array in info.items()}
    for name, array in info.items():
        wide[name][ended] = array
    final_info = _with_masks(wide, valid)
    for place, row in enumerate(ended.tolist()):
        final_obs[row] = frame_of(observation, place)
        for name, value in unless_taken(obs.end_of_episode_info.get(int(obs.env_id[row]), {}), info).items():
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
