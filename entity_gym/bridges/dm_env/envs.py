"""dm_env environments over pools: N environments side by side (`DmVecEnv`), or one (`DmEnvironment`).

The observation is one dictionary of the padded form's observation and info (`entity_gym.bridges.padded`).

Actions are arrays of integers, or of float32 for continuous ones, within `action_spec()`. One that is not open becomes the next
open one, unless `invalid_actions="raise"`; `replaced_actions` counts these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.columns import cat, gather
from entity_gym.batch.vec_obs import VecObs
from entity_gym.bridges.outgoing import make_form, prepare_form
from entity_gym.bridges.padded import Field, PaddedPool, Shown, frame_of, in_batch
from entity_gym.pools.spec import EnvSpec
from entity_gym.pools.vec_env import EnvIdLike, VecEnv, check_batch_size
from entity_gym.registry import Prepared, make_pool

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
        self.pool, self.num_envs = pool, len(pool)
        self.batch_size = check_batch_size(spec.config.batch_size, self.num_envs)
        self._padded = PaddedPool(pool, spec)
        self._batch: tuple[int, ...] = (self.num_envs,)  # the dimension before the shapes of specs
        self.obs: VecObs | None = None
        self._forget()

    def reset(self, seed: int | None = None) -> dm_env.TimeStep:
        """Start an episode in every environment.

        Args:
            seed: environment i draws from `SeedSequence((seed, i))`. None: continue with the current random numbers.
        """
        self._forget()
        return dm_env.TimeStep(**self._steps(self._padded.reset(seed)))

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
        ids = self._padded.ids(env_id)
        over = self._over[ids]
        if not over.any():
            return dm_env.TimeStep(**self._steps(self._padded.step(action, ids)))
        parts = [] if over.all() else [self._steps(self._padded.step(_rows(action, ~over), ids[~over]))]
        return _in_order([*parts, self._first(ids[over])], ids)

    def async_reset(self) -> None:
        """Start an episode in every environment without waiting; `recv` returns the first observations."""
        self._forget()
        self._padded.async_reset()
        self._num_under_way = self.num_envs

    def send(self, action: Any, env_id: EnvIdLike | None = None) -> None:
        """Step environments without waiting; arguments as in `step`."""
        ids = self._padded.ids(env_id)
        over = self._over[ids]
        if not over.all():
            self._padded.send(_rows(action, ~over), ids[~over])
            self._num_under_way += int((~over).sum())
        self._ready.extend(self._first(ids[k : k + 1]) for k in np.flatnonzero(over))

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
            self._ready.append(self._steps(self._padded.recv()))
        parts = [self._ready.popleft() for _ in range(self.batch_size)]
        return _in_order(parts, np.sort([part["observation"]["env_id"][0] for part in parts]))

    def observation_spec(self) -> Any:
        """Return name -> bounded array."""
        fields = {**self._padded.form.observation, **self._padded.form.info}
        return {name: self._spec(field, name) for name, field in fields.items()}

    def action_spec(self) -> Any:
        """Return a bounded array, or action -> bounded array."""
        action = self._padded.form.action
        if isinstance(action, Field):
            return self._spec(action, "action")
        return {name: self._spec(field, name) for name, field in action.items()}

    def reward_spec(self) -> specs.Array:
        """Return the spec of one number for each environment."""
        return specs.Array(self._batch, np.float32 if self._batch else np.float64, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Return the spec of one number for each environment."""
        return specs.BoundedArray(self._batch, np.float32 if self._batch else np.float64, 0.0, 1.0, "discount")

    def close(self) -> None:
        """Release everything. May be called twice."""
        self.pool.close()

    def _spec(self, field: Field, name: str) -> specs.BoundedArray:
        shape = (*self._batch, *field.shape)
        return specs.BoundedArray(
            shape, field.dtype, np.broadcast_to(field.low, shape), np.broadcast_to(field.high, shape), name
        )

    def _forget(self) -> None:
        """Forget the episodes that have ended, and what is under way."""
        self._over = np.zeros(self.num_envs, np.bool_)  # the last step of an environment was LAST
        self._next: dict[str, NDArray[Any]] = {}  # first observations of the next episodes of these, in their rows of N
        self._ready: deque[Steps] = deque()  # time steps for `recv`, of one environment each
        self._num_under_way = 0  # in the pool

    def _steps(self, shown: Shown) -> Steps:
        """Return time steps, with last observations where episodes ended; keeps the first ones of the next episodes."""
        self.obs = obs = shown.obs
        frames = {**shown.observation, **shown.info}
        step_type = np.where(obs.done, LAST, np.where(obs.elapsed_step == 0, FIRST, MID)).astype(np.int32)
        discount = np.where(obs.done & ~obs.truncated, np.float32(0), np.float32(1))
        if len(shown.begun):
            ended = obs.env_id[shown.begun]
            self._over[ended] = True
            last = {**shown.last_observation, **shown.last_info}
            for name, array in frames.items():
                if name not in self._next:
                    self._next[name] = np.zeros((self.num_envs, *array.shape[1:]), array.dtype)
                self._next[name][ended] = array[shown.begun]
                frames[name] = array.copy()  # `obs` has some of these arrays
                frames[name][shown.begun] = last[name]
        return {"step_type": step_type, "reward": obs.reward, "discount": discount, "observation": frames}

    def _first(self, ids: NDArray[np.int64]) -> Steps:
        """Return the first time steps of the environments `ids`, whose episodes have ended."""
        self._over[ids] = False
        return {
            "step_type": np.full(len(ids), FIRST, np.int32),
            "reward": np.zeros(len(ids), np.float32),
            "discount": np.ones(len(ids), np.float32),
            "observation": gather(self._next, ids),
        }


class DmEnvironment(DmVecEnv):
    """The only environment of a pool, without the dimension of environments; `to_dm_env` makes it."""

    def __init__(self, pool: VecEnv, spec: EnvSpec) -> None:
        super().__init__(pool, spec)
        self._batch = ()

    def reset(self, seed: int | None = None) -> dm_env.TimeStep:
        """Start an episode, which the seed decides, whether the last one came to its end or not."""
        # The next episode after an end has begun already, and is the answer to an action that is ignored.
        if seed is None and self._over.any():
            return self.step(0)
        return _only(super().reset(seed))

    def step(self, action: Any, env_id: EnvIdLike | None = None) -> dm_env.TimeStep:
        """Take one step, or reset if no episode is running; raises ValueError for an action out of bounds."""
        return self.reset() if self.obs is None else _only(super().step(in_batch(action), env_id))


def _only(steps: dm_env.TimeStep) -> dm_env.TimeStep:
    """Return the time step of the only environment."""
    observation = {name: np.asarray(value) for name, value in frame_of(steps.observation, 0).items()}
    if steps.step_type[0] == FIRST:
        return dm_env.restart(observation)
    step_type = dm_env.StepType(int(steps.step_type[0]))
    return dm_env.TimeStep(step_type, float(steps.reward[0]), float(steps.discount[0]), observation)


def _in_order(parts: Sequence[Steps], ids: NDArray[np.int64]) -> dm_env.TimeStep:
    """Return the time steps of `parts` in the order of `ids`."""
    steps: Any = cat(parts)
    place = np.argsort(steps["observation"]["env_id"])[np.argsort(np.argsort(ids))]
    return dm_env.TimeStep(**gather(steps, place))


def _rows(action: Any, keep: NDArray[np.bool_]) -> Any:
    """Return the rows `keep` of an action; raises ValueError if it has another number of rows."""
    if isinstance(action, Mapping):
        return {name: _rows(values, keep) for name, values in action.items()}
    values = np.asarray(action)
    if values.shape[:1] != keep.shape:
        raise ValueError(f"the action has shape {values.shape}; expected one row for each of {len(keep)} environments")
    return values[keep]


def make_dm(env: Any, num_envs: int = 1, **options: Any) -> DmVecEnv:
    """Make a pool of environments as a `dm_env.Environment`; arguments and errors as in `make_gym`, without `render_mode`."""
    prepared = prepare_form(env, {"num_envs": num_envs, **options}, None, is_one=False)
    # An environment whose episode has ended answers without a step, so the form itself collects `batch_size` of them.
    return make_form(prepared, make_pool(Prepared(replace(prepared.config, batch_size=1), prepared.source)), DmVecEnv)


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
    prepared = prepare_form(env, {"seed": seed, **options}, None, is_one=True)
    return make_form(prepared, make_pool(prepared), DmEnvironment)
