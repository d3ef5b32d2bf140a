"""dm_env environments over pools: N environments side by side (`DmVecEnv`), or one (`DmEnvironment`).

The observation is one dictionary of the padded form's observation and info (`entity_gym.bridges.padded`).

Actions are arrays of integers, or of float32 for continuous ones, within `action_spec()`. One that is not open becomes the next
open one, unless `invalid_actions="raise"`; `replaced_actions` counts these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.columns import cat, gather
from entity_gym.batch.vec_obs import VecObs
from entity_gym.bridges.padded import Field, PaddedForm, frame_of, in_batch
from entity_gym.pools.spec import EnvSpec
from entity_gym.pools.vec_env import EnvIdLike, VecEnv, check_batch_size, check_env_id

try:
    import dm_env
    from dm_env import specs
except ImportError as error:
    raise ImportError(f'the dm form needs dm_env ({error}): pip install "enn-ppo[dm]"') from error

FIRST, MID, LAST = (int(each) for each in dm_env.StepType)

#: Time steps of n environments: "step_type", "reward" and "discount", (n,), and "observation", whose arrays have n rows.
Steps: TypeAlias = dict[str, Any]


class DmVecEnv(dm_env.Environment):  # type: ignore[misc, unused-ignore]
    """A pool as a `dm_env.Environment` of N environments side by side; `make_dm` makes it.

    A `TimeStep` holds arrays: step_type (n,) int32 (0 first, 1 mid, 2 last), reward (n,) float32, discount (n,) float32, and the
    observation. The discount is 0 where an episode terminated, and 1 elsewhere, also where it was truncated.

    Autoreset happens in the next step, as in dm_env: a LAST step carries the last observation, and the answer to the next
    action, which is ignored, is the first observation of the next episode, FIRST with reward 0. The pool has reset
    the environment at the end of the episode already, so the same seed gives the same episodes in every form.

    Asynchronously: `async_reset()`, then `recv()` and `send(action, observation["env_id"])` in turn.

    Args:
        pool: made with final_observations="all", and with batch_size=1 for asynchronous use; closed with this object.
        spec: its `config.batch_size` is how many environments `recv` returns.

    Attributes:
        obs: the last `VecObs` of the pool, with `end_of_episode_info` and metrics.
    """

    def __init__(self, pool: VecEnv, spec: EnvSpec) -> None:
        self.pool, self.spec = pool, spec
        self.num_envs = len(pool)
        self.batch_size = check_batch_size(spec.config.batch_size, self.num_envs)
        self._form = PaddedForm(spec, self.num_envs)
        self._everyone = np.arange(self.num_envs)
        self.obs: VecObs | None = None
        self._forget()

    def reset(self, seed: int | None = None) -> dm_env.TimeStep:
        """Start an episode in every environment.

        Args:
            seed: environment i draws from `SeedSequence((seed, i))`. None: continue with the current random numbers.
        """
        self._forget()
        return _time_step([self._shown(self.pool.reset(seed))], self._everyone)

    def step(self, action: Any, env_id: EnvIdLike | None = None) -> dm_env.TimeStep:
        """Step environments and wait for them. Before the first `reset` this is one.

        Args:
            action: of `action_spec`, one for each environment in `env_id`.
            env_id: (n,) the environments to step. None: all.

        Raises:
            ValueError: for actions out of bounds.
        """
        if self.obs is None:
            return self.reset()
        ids = self._everyone if env_id is None else check_env_id(env_id, self.num_envs)
        ended = self._ended[ids]
        running = ids[~ended]
        parts = []
        if len(running) or not len(ids):
            parts.append(self._shown(self.pool.act(self._form.to_pool(_rows(action, ~ended), running), running)))
        if len(running) < len(ids):
            parts.append(self._first(ids[ended]))
        return _time_step(parts, ids)

    def async_reset(self) -> None:
        """Start an episode in every environment without waiting; `recv` returns the first observations."""
        self._forget()
        self.pool.async_reset()
        self._num_under_way = self.num_envs

    def send(self, action: Any, env_id: EnvIdLike | None = None) -> None:
        """Step environments without waiting; arguments as in `step`."""
        ids = self._everyone if env_id is None else check_env_id(env_id, self.num_envs)
        ended = self._ended[ids]
        running = ids[~ended]
        if len(running):
            self.pool.send(self._form.to_pool(_rows(action, ~ended), running), running)
            self._num_under_way += len(running)
        self._ready.extend(self._first(ids[k : k + 1]) for k in np.flatnonzero(ended))

    def recv(self) -> dm_env.TimeStep:
        """Wait for `batch_size` of the environments under way; observation["env_id"] names them, in ascending order.

        Raises:
            ValueError: if fewer are under way. Errors of an environment are raised here.
        """
        under_way = self._num_under_way + len(self._ready)
        if under_way < self.batch_size:
            raise ValueError(
                f"recv returns batch_size={self.batch_size} environments, and {under_way} are under way: send them actions, or "
                "call async_reset"
            )
        while len(self._ready) < self.batch_size:
            self._num_under_way -= 1  # also if this environment fails
            self._ready.append(self._shown(self.pool.recv()))
        parts = [self._ready.popleft() for _ in range(self.batch_size)]
        return _time_step(parts, np.sort([part["observation"]["env_id"][0] for part in parts]))

    def observation_spec(self) -> Any:
        """Return the specs of all environments together."""
        return observation_spec(self._form, self.num_envs)

    def action_spec(self) -> Any:
        """Return the specs of all environments together."""
        return action_spec(self._form, self.num_envs)

    def reward_spec(self) -> specs.Array:
        """Return the spec of all environments together."""
        return specs.Array((self.num_envs,), np.float32, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Return the spec of all environments together."""
        return specs.BoundedArray((self.num_envs,), np.float32, 0.0, 1.0, "discount")

    def close(self) -> None:
        """Release everything. May be called twice."""
        self.pool.close()

    def _forget(self) -> None:
        """Forget the episodes that have ended, and what is under way."""
        self._form.forget_replaced()
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._next: Steps | None = None  # first time steps of the environments that have `_ended`, in some order
        self._ready: deque[Steps] = deque()  # time steps for `recv`, of one environment each
        self._num_under_way = 0  # in the pool

    def _shown(self, obs: VecObs) -> Steps:
        """Return the time steps of `obs`, with last observations where episodes ended; keeps the next first ones."""
        self.obs = obs
        observation, info = self._form.show(obs)
        frames = {**observation, **info}
        step_type = np.where(obs.done, LAST, np.where(obs.elapsed_step == 0, FIRST, MID)).astype(np.int32)
        discount = np.where(obs.done & ~obs.truncated, np.float32(0), np.float32(1))
        steps = {"step_type": step_type, "reward": obs.reward, "discount": discount, "observation": frames}
        if not np.count_nonzero(obs.done):
            return steps
        ended = np.flatnonzero(obs.done)
        if obs.final is None or not np.array_equal(obs.final.env_id, obs.env_id[ended]):
            raise ValueError("the dm form needs every last observation: make the pool with final_observations='all'")
        zeros, ones = np.zeros(len(ended), np.float32), np.ones(len(ended), np.float32)
        first: Steps = {"step_type": np.full(len(ended), FIRST, np.int32), "reward": zeros, "discount": ones}
        first["observation"] = gather(frames, ended)
        self._next = first if self._next is None else cat([self._next, first])
        self._ended[obs.env_id[ended]] = True
        rows = np.arange(len(obs))
        rows[ended] = len(obs) + np.arange(len(ended))
        last, last_info = self._form.show_final(obs.final)
        return {**steps, "observation": gather(cat([frames, {**last, **last_info}]), rows)}

    def _first(self, ids: NDArray[np.int64]) -> Steps:
        """Return the first time steps of the environments `ids`, whose episodes have ended, and forget them."""
        assert self._next is not None
        self._ended[ids] = False
        wanted = np.isin(self._next["observation"]["env_id"], ids)
        steps = gather(self._next, np.flatnonzero(wanted))
        self._next = None if wanted.all() else gather(self._next, np.flatnonzero(~wanted))
        return steps


class DmEnvironment(dm_env.Environment):  # type: ignore[misc, unused-ignore]
    """The only environment of a `DmVecEnv`, without the dimension of environments; `to_dm_env` makes it."""

    def __init__(self, pool: DmVecEnv) -> None:
        if pool.num_envs != 1:
            raise ValueError(f"the pool has {pool.num_envs} environments; a DmEnvironment is one")
        self.pool = pool
        form = PaddedForm(pool.spec)
        self._observation_spec, self._action_spec = observation_spec(form), action_spec(form)
        self._has_ended = False

    def reset(self) -> dm_env.TimeStep:
        """Start an episode, which the seed decides, whether the last one came to its end or not."""
        # The next episode after an end has begun already, and is the answer to an action that is ignored.
        return self._one(self.pool.step(None) if self._has_ended else self.pool.reset())

    def step(self, action: Any) -> dm_env.TimeStep:
        """Take one step, or reset if no episode is running; raises ValueError for an action out of bounds."""
        return self._one(self.pool.step(in_batch(action)))

    def observation_spec(self) -> Any:
        """Return name -> bounded array."""
        return self._observation_spec

    def action_spec(self) -> Any:
        """Return a bounded array, or action -> bounded array."""
        return self._action_spec

    def reward_spec(self) -> specs.Array:
        """Return the spec of one float."""
        return specs.Array((), np.float64, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Return the spec of one float: 0 where an episode terminated, 1 elsewhere, also where it was truncated."""
        return specs.BoundedArray((), np.float64, 0.0, 1.0, "discount")

    def close(self) -> None:
        """Release everything. May be called twice."""
        self.pool.close()

    def _one(self, steps: dm_env.TimeStep) -> dm_env.TimeStep:
        step_type = dm_env.StepType(int(steps.step_type[0]))
        self._has_ended = step_type is dm_env.StepType.LAST
        observation = {name: np.asarray(value) for name, value in frame_of(steps.observation, 0).items()}
        if step_type is dm_env.StepType.FIRST:
            return dm_env.restart(observation)
        return dm_env.TimeStep(step_type, float(steps.reward[0]), float(steps.discount[0]), observation)


def observation_spec(form: PaddedForm, *batch: int) -> dict[str, Any]:
    """Return the `dm_env.specs` of an observation, with the dimension `batch` before their shapes."""
    return {name: _spec(field, name, *batch) for name, field in {**form.observation, **form.info}.items()}


def action_spec(form: PaddedForm, *batch: int) -> Any:
    """Return the bounded array of an action, or action -> bounded array, with the dimension `batch` before their shapes."""
    if isinstance(form.action, dict):
        return {name: _spec(field, name, *batch) for name, field in form.action.items()}
    return _spec(form.action, "action", *batch)


def _spec(field: Field, name: str, *batch: int) -> specs.BoundedArray:
    low, high = (np.broadcast_to(bound, (*batch, *field.shape)) for bound in field.bounds())
    return specs.BoundedArray((*batch, *field.shape), field.dtype, low, high, name)


def _time_step(parts: list[Steps], ids: NDArray[np.int64]) -> dm_env.TimeStep:
    """Return the time steps of `parts` in the order of `ids`."""
    steps: Any = cat(parts)
    env_id = steps["observation"]["env_id"]
    if not np.array_equal(env_id, ids):
        steps = gather(steps, np.argsort(env_id)[np.argsort(np.argsort(ids))])
    return dm_env.TimeStep(**steps)


def _rows(action: Any, keep: NDArray[np.bool_]) -> Any:
    """Return the rows `keep` of an action; raises ValueError if it has another number of rows."""
    if keep.all():
        return action
    if isinstance(action, Mapping):
        return {name: _rows(values, keep) for name, values in action.items()}
    values = np.asarray(action)
    if values.shape[:1] != keep.shape:
        raise ValueError(f"the action has shape {values.shape}; expected one row for each of {len(keep)} environments")
    return values[keep]
