"""Gymnasium environments over pools: N environments as a `VectorEnv`, or one as an `Env`, in the padded form.

Spaces (`entity_gym.bridges.padded` says what they hold): an observation is a `Dict` of `Box` and `MultiBinary`. An action is
`Discrete` if it is one integer, `MultiDiscrete` for other choices and sets, `Box` if all actions are continuous, and a `Dict`
of these in worlds that have choices and continuous actions.

Every action of a space can be taken, as Gymnasium promises: one that is not open becomes the next open one.
info["replaced_actions"] counts these.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.vec_obs import VecObs
from entity_gym.bridges.padded import (
    Field,
    Frames,
    PaddedForm,
    PaddedPool,
    frame_of,
    in_batch,
    make_form,
    with_report,
)
from entity_gym.pools.spec import EnvSpec
from entity_gym.pools.vec_env import VecEnv

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError as error:
    raise ImportError(f'the Gymnasium form needs Gymnasium ({error}): pip install "enn-ppo[gymnasium]"') from error


class GymnasiumVectorEnv(PaddedPool, VectorEnv[Any, Any, NDArray[Any]]):
    """A pool as a `gymnasium.vector.VectorEnv`; `make_gym` makes it.

    `step` and `recv` return observations, rewards (n,) float64, terminated (n,) bool, truncated (n,) bool and info, in the order
    of `env_id`. Autoreset is Gymnasium's SAME_STEP: where an episode ends, the observation is the first of the next episode, and
    the last observation and info of the finished one are `info["final_obs"]` (an array of objects, None elsewhere) and
    `info["final_info"]`, which includes the environment's own end-of-episode info. `info["_name"]` marks the environments for
    which `info["name"]` is valid, as in Gymnasium's own vector environments.
    """

    def __init__(self, pool: VecEnv, spec: EnvSpec) -> None:
        super().__init__(pool, spec)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.spec: Any = spec  # as EnvPool's, with reward_threshold and config; Gymnasium's would make environments
        self.num_envs = len(pool)
        self.single_observation_space = observation_space(self.form)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.single_action_space = action_space(self.form)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every environment.

        Args:
            seed: environment i draws from `SeedSequence((seed, i))`. None: continue with the current random numbers.
            options: {"env_info": ...}, parameters for the episodes from now on, as in `VecEnv.reset`.

        Raises:
            ValueError: for other options, or a seed that is not an integer.
        """
        observation, *_, info = self.begin(seed, _env_info(options))
        super().reset(seed=seed)
        return observation, info

    def tell(self, obs: VecObs, observation: Frames, info: Frames) -> tuple[Any, ...]:  # noqa: D102
        valid = np.ones(len(obs), np.bool_)
        final: dict[str, Any] = {}
        for place, row in enumerate(self.begun.tolist()):
            last, told = (frame_of(each, place) for each in self.last)
            final = self._add_info(final, {"final_obs": last, "final_info": with_report(obs, row, told)}, row)
        final = _first_rows(final, len(obs))  # `_add_info` makes rows for all environments
        infos = {**info, **{f"_{name}": valid.copy() for name in info}, **final}
        return observation, obs.reward.astype(np.float64), obs.done & ~obs.truncated, obs.truncated.copy(), infos


class GymnasiumEnv(PaddedPool, gymnasium.Env[Any, Any]):
    """The only environment of a pool as a `gymnasium.Env`; `to_gymnasium` makes it.

    There is no autoreset: the last observation is returned, and `reset` comes next. The info of a last step includes the
    environment's own end-of-episode info.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None, pool: VecEnv, spec: EnvSpec) -> None:
        super().__init__(pool, spec)
        self.render_mode = render_mode
        self.observation_space, self.action_space = observation_space(self.form), action_space(self.form)
        self._observation: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; arguments as in `GymnasiumVectorEnv.reset`, with one mapping as "env_info"."""
        env_info = _env_info(options)
        observation, *_, info = self.begin(seed, None if env_info is None else [env_info])
        super().reset(seed=seed)
        return observation, info

    def step(self, action: Any) -> Any:  # type: ignore[override]
        """Take one step; raises ValueError for an action outside the space, or without a running episode."""
        return super().step(in_batch(action))

    def action_masks(self) -> NDArray[np.bool_]:
        """Return (sum of C,) whether each choice is open now, as `MaskablePPO` of sb3-contrib takes it.

        Rows beyond the last actor have choice 0 open. Continuous actions have no choices.
        """
        masks = [np.zeros(0, np.bool_)]
        for mask in self.form.masks(self._observation).values():
            if mask is not None:
                flags = mask.astype(np.bool_)
                flags[..., 0] |= ~flags.any(axis=-1)
                masks.append(flags.ravel())
        return np.concatenate(masks)

    def render(self) -> NDArray[np.uint8] | None:
        """Draw the current state as a (height, width, 3) image; None without a render mode."""
        return None if self.render_mode is None else self.pool.render([0])[0]

    def tell(self, obs: VecObs, observation: Frames, info: Frames) -> tuple[Any, ...]:  # noqa: D102
        self._observation = frame_of(observation, 0)
        done, truncated, told = bool(obs.done[0]), bool(obs.truncated[0]), with_report(obs, 0, frame_of(info, 0))
        return self._observation, float(obs.reward[0]), done and not truncated, truncated, told


def observation_space(form: PaddedForm) -> spaces.Dict:
    """Return the observation space of one environment."""
    return spaces.Dict({name: _space(field) for name, field in form.observation.items()})


def action_space(form: PaddedForm) -> spaces.Space[Any]:
    """Return the action space of one environment."""
    if isinstance(form.action, dict):
        return spaces.Dict({name: _space(field, is_action=True) for name, field in form.action.items()})
    return _space(form.action, is_action=True)


def _space(field: Field, *, is_action: bool = False) -> spaces.Space[Any]:
    if field.dtype == np.int8:
        return spaces.MultiBinary(field.shape)
    if is_action and field.dtype == np.int64:
        return spaces.MultiDiscrete(field.high + 1) if field.shape else spaces.Discrete(int(field.high) + 1)
    return spaces.Box(field.low, field.high, field.shape, field.dtype)


def _first_rows(info: dict[str, Any], num_frames: int) -> dict[str, Any]:
    """Return an info whose arrays are cut after `num_frames` rows; `_add_info` has a row for every environment."""
    return {
        name: _first_rows(value, num_frames) if isinstance(value, dict) else value[:num_frames]
        for name, value in info.items()
    }


def _env_info(options: Mapping[str, Any] | None) -> Any:
    if unknown := sorted((options or {}).keys() - {"env_info"}):
        raise ValueError(f"reset: options has {unknown}; allowed: 'env_info'")
    return (options or {}).get("env_info")


# ---- for users


def make_gym(env: Any, num_envs: int = 1, **options: Any) -> GymnasiumVectorEnv:
    """Make a pool of environments as a `gymnasium.vector.VectorEnv`, with `send` and `recv` for asynchronous steps.

    Args:
        env: as in `make`.
        num_envs: number of environments.
        options: as in `make`, with `max_entities` and `max_actors` as in `to_gymnasium`.

    Raises:
        ValueError: as `make` does, and if it is not known how many entities or actors there can be.
        ImportError: naming what to install.
    """
    return make_form(GymnasiumVectorEnv, env, options, num_envs)


def to_gymnasium(env: Any, render_mode: str | None = None, **options: Any) -> GymnasiumEnv:
    """Make one environment as a `gymnasium.Env`, for Stable-Baselines3 and other libraries.

    Args:
        env: as in `make`: a name, "package.module:Class", a class or a function.
        render_mode: "rgb_array", or None.
        options: those of `make` that concern one environment, and the environment's parameters. With `max_entities` (type ->
            room) and `max_actors` (action -> room): environments that are not compiled do not say how many there can be, and
            compiled ones may allow many more than there are. An environment that shows more raises ValueError.

    Raises:
        ValueError: for options that are not allowed, or if it is not known how many entities or actors there can be.
        ImportError: naming what to install.
    """
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f"render_mode is {render_mode!r}; allowed: None, 'rgb_array'")
    return make_form(partial(GymnasiumEnv, render_mode), env, options)
