"""The dm form of a pool, `make(..., env_type="dm")`: dm_env's interface, with a leading dimension for the environments.

The observation is a nested dictionary of what `dense` calls the observation and of its info, with `env_id` and `elapsed_step`;
an observation that is one array (the key `obs`) is called "obs". Rows of players stand one after another over all
environments, and ["players"]["env_id"] says whose they are.

Autoreset happens in the next step, as dm_env has it: an environment's LAST step carries its last observation, and in answer
to the next action, which is ignored, it shows the first observation of the next episode, FIRST with reward 0. (The environment
itself is reset at the end of its episode already, so the same seed gives the same episodes in every form.)

Actions are arrays of whole numbers, or of float32 for continuous ones, within `action_spec()`; one that is not open (see
`action_mask`) becomes the next open one, unless `invalid_actions="raise"`, and `replaced_actions` counts them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.vec_obs import VecObs
from entity_gym.bridges.dense import Dense, DenseForm, join, rows_of, rows_only
from entity_gym.bridges.dense_obs import Field, Tree, merge_trees
from entity_gym.pools.pool import check_batch_size
from entity_gym.pools.spec import EnvSpec
from entity_gym.pools.vec_env import EnvIdLike, VecEnv, check_env_id

try:
    import dm_env
    from dm_env import specs
except ImportError as error:
    raise ImportError(f'the dm form needs dm_env ({error}): pip install "enn-ppo[dm]"') from error

FIRST, MID, LAST = (int(each) for each in dm_env.StepType)


class PlayersArray(specs.Array):  # type: ignore[misc, unused-ignore]
    """Any number of rows of one shape; the first number of `shape` is -1."""

    __slots__ = ()

    def validate(self, value: Any) -> Any:
        """`value` as an array.

        Raises:
            ValueError: if its rows have another shape or type.
        """
        array = np.asarray(value)
        if array.ndim != len(self.shape) or array.shape[1:] != self.shape[1:] or array.dtype != self.dtype:
            raise ValueError(f"{self.name} has shape {array.shape} and dtype {array.dtype}; expected {self}")
        return array

    def generate_value(self) -> NDArray[Any]:
        """One player, all zeros."""
        return np.zeros((1, *self.shape[1:]), self.dtype)


def observation_spec(spec: EnvSpec) -> Any:
    """Of one environment: a nested dictionary of `dm_env.specs`.

    Raises:
        ValueError: if the spec does not say how many entities there can be.
    """
    return _specs(_fields(DenseForm(spec, 1)), ())


def action_spec(spec: EnvSpec) -> Any:
    """Of one environment: a bounded array, or action -> bounded array.

    Raises:
        ValueError: if the spec does not say how many actors there can be.
    """
    return _specs(DenseForm(spec, 1).action, ())


class _Part(NamedTuple):
    """Frames as dm_env wants them: those of ended episodes are their last ones."""

    env_id: NDArray[np.int64]
    step_type: NDArray[np.int32]
    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    observation: Tree


class DmVecEnv(dm_env.Environment):  # type: ignore[misc, unused-ignore]
    """A pool as a `dm_env.Environment` of N environments side by side.

    A `TimeStep` holds arrays: step_type (n,) int32 (0 first, 1 mid, 2 last), reward (n,) float32, discount (n,) float32, which is
    0 where an episode ended by its own rules and 1 elsewhere, also where it was cut, and the observation.

    Asynchronously: `async_reset()`, then `recv()` and `send(action, observation["env_id"])` in turn.

    Args:
        pool: the environments, made with final_observations="all", and with batch_size=1 for asynchronous use; belongs to this
            object from now on.
        spec: of the environments; `spec.config.batch_size` is how many `recv` returns.

    Attributes:
        pool, spec: the same.
        obs: the whole `VecObs` that the pool showed last, `end_of_episode_info` and metrics included.
    """

    def __init__(self, pool: VecEnv, spec: EnvSpec) -> None:
        self.pool, self.spec = pool, spec
        self.num_envs = len(pool)
        self.batch_size = check_batch_size(spec.config.batch_size, self.num_envs)
        self._form = DenseForm(spec, self.num_envs)
        _fields(self._form)  # refuses names that collide
        self._everyone = np.arange(self.num_envs)
        self.obs: VecObs | None = None
        self._forget()

    def reset(self, seed: int | None = None) -> dm_env.TimeStep:
        """Start an episode everywhere.

        Args:
            seed: environment i draws from `SeedSequence((seed, i))`. None: the random numbers go on where they are.
        """
        self._forget()
        return self._time_step([self._shown(self.pool.reset(seed))], self._everyone)

    def step(self, action: Any, env_id: EnvIdLike | None = None) -> dm_env.TimeStep:
        """Step environments, and wait for them. Before the first `reset` this is one.

        Args:
            action: for each environment stepped, as in `action_spec`.
            env_id: the environments to step, in the order of `action`. None: all.

        Raises:
            ValueError: for actions outside their bounds.
        """
        if self.obs is None:
            return self.reset()
        ids = self._everyone if env_id is None else check_env_id(env_id, self.num_envs)
        ended = self._has_ended[ids]
        running = ids[~ended]
        parts = []
        if len(running) or not len(ids):
            parts.append(self._shown(self.pool.act(self._form.ragged(_rows(action, ~ended), running), running)))
        return self._time_step(parts + self._next_episodes(ids[ended]), ids)

    def async_reset(self) -> None:
        """Start an episode everywhere without waiting: `recv` returns the first observations."""
        self._forget()
        self.pool.async_reset()
        self._num_under_way = self.num_envs

    def send(self, action: Any, env_id: EnvIdLike | None = None) -> None:
        """Step environments without waiting; arguments as in `step`."""
        ids = self._everyone if env_id is None else check_env_id(env_id, self.num_envs)
        ended = self._has_ended[ids]
        running = ids[~ended]
        if len(running):
            self.pool.send(self._form.ragged(_rows(action, ~ended), running), running)
            self._num_under_way += len(running)
        for i in ids[ended]:
            self._ready.extend(self._next_episodes(np.array([i])))

    def recv(self) -> dm_env.TimeStep:
        """Wait for `batch_size` of the environments under way; observation["env_id"] says which they are, in ascending order.

        Raises:
            ValueError: if fewer are under way. What an environment raises is raised here.
        """
        under_way = self._num_under_way + len(self._ready)
        if under_way < self.batch_size:
            raise ValueError(
                f"recv returns batch_size={self.batch_size} environments, and {under_way} are under way: send them actions, or "
                "call async_reset"
            )
        while len(self._ready) < self.batch_size:
            self._num_under_way -= 1  # also if this one has failed
            self._ready.append(self._shown(self.pool.recv()))
        parts = [self._ready.popleft() for _ in range(self.batch_size)]
        return self._time_step(parts, np.sort([part.env_id[0] for part in parts]))

    def observation_spec(self) -> Any:
        """Of all environments together; `spec.dm_observation_spec` is of one."""
        return _specs(_fields(self._form), (self.num_envs,))

    def action_spec(self) -> Any:
        """Of all environments together; `spec.dm_action_spec` is of one."""
        return _specs(self._form.action, (self.num_envs,))

    def reward_spec(self) -> specs.Array:
        """Of all environments together."""
        return specs.Array((self.num_envs,), np.float32, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Of all environments together."""
        return specs.BoundedArray((self.num_envs,), np.float32, 0.0, 1.0, "discount")

    def close(self) -> None:
        """Release everything. May be called twice."""
        self.pool.close()

    def _forget(self) -> None:
        """Nothing is under way, and no episode has ended."""
        self._form.forget_replaced()
        self._has_ended = np.zeros(self.num_envs, np.bool_)
        # First frames of next episodes: of ended environment i, number _row[i] in _batches[_batch[i]].
        self._batches: dict[int, Tree] = {}
        self._batch: NDArray[np.int64] = np.zeros(self.num_envs, np.int64)
        self._row: NDArray[np.int64] = np.zeros(self.num_envs, np.int64)
        self._ready: deque[_Part] = deque()  # for `recv`, one environment each
        self._num_under_way = 0  # in the pool

    def _shown(self, obs: VecObs) -> _Part:
        """What the pool shows, with last observations where episodes have ended; the next first ones are kept for later."""
        self.obs = obs
        step_type = np.where(obs.done, LAST, np.where(obs.elapsed_step == 0, FIRST, MID)).astype(np.int32)
        discount = np.where(obs.done & ~obs.truncated, np.float32(0), np.float32(1))
        frames = _merged(self._form.show(obs))
        if np.count_nonzero(obs.done):
            ended = np.flatnonzero(obs.done)
            if obs.final is None or not np.array_equal(obs.final.env_id, obs.env_id[ended]):
                raise ValueError(
                    "the dm form needs every last observation: make the pool with final_observations='all'"
                )
            self._keep(frames, obs.env_id[ended], ended)
            rows = np.arange(len(obs))
            rows[ended] = len(obs) + np.arange(len(ended))
            frames = rows_of(join([frames, _merged(self._form.show_last(obs.final))]), rows)
        return _Part(obs.env_id, step_type, obs.reward, discount, frames)

    def _keep(self, frames: Tree, ids: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """The episodes of `ids` have ended; the next ones begin with the frames `rows`."""
        key = max(self._batches, default=0) + 1
        self._batches[key] = frames
        self._batch[ids], self._row[ids], self._has_ended[ids] = key, rows, True

    def _next_episodes(self, ids: NDArray[np.int64]) -> list[_Part]:
        """First frames of the environments `ids`, whose episodes have ended."""
        parts = []
        for key in np.unique(self._batch[ids]).tolist():
            its = ids[self._batch[ids] == key]
            reward, discount = np.zeros(len(its), np.float32), np.ones(len(its), np.float32)
            step_type = np.full(len(its), FIRST, np.int32)
            parts.append(_Part(its, step_type, reward, discount, rows_of(self._batches[key], self._row[its])))
        self._has_ended[ids] = False
        wanted = set(self._batch[self._has_ended].tolist())
        self._batches = {key: frames for key, frames in self._batches.items() if key in wanted}
        return parts

    def _time_step(self, parts: list[_Part], ids: NDArray[np.int64]) -> dm_env.TimeStep:
        """The frames of `parts`, in the order of `ids`."""
        env_id, step_type, reward, discount, observation = (join(column) for column in zip(*parts, strict=True))
        if not np.array_equal(env_id, ids):
            rows = np.argsort(env_id)[np.argsort(np.argsort(ids))]
            step_type, reward, discount = step_type[rows], reward[rows], discount[rows]
            observation = rows_of(observation, rows)
        return dm_env.TimeStep(step_type, reward, discount, rows_only(observation))


def _merged(dense: Dense) -> dict[str, Tree]:
    """Observation and info in one dictionary."""
    observation = dense.observation if isinstance(dense.observation, dict) else {"obs": dense.observation}
    return merge_trees(observation, dense.info)


def _fields(form: DenseForm) -> dict[str, Tree]:
    return _merged(Dense(form.observation, form.info))


def _specs(tree: Tree, batch: tuple[int, ...]) -> Any:
    """`dm_env.specs` of the fields, `batch` before their shapes."""

    def of(field: Field, name: str) -> specs.Array:
        if field.per_player:
            return PlayersArray((-1, *field.shape), field.dtype, name)
        low, high = (np.broadcast_to(bound, (*batch, *field.shape)) for bound in field.bounds())
        return specs.BoundedArray((*batch, *field.shape), field.dtype, low, high, name)

    def named(tree: Tree, name: str) -> Any:
        if isinstance(tree, dict):
            return {key: named(branch, key) for key, branch in tree.items()}
        return of(tree, name)

    return named(tree, "action" if isinstance(tree, Field) else "observation")


def _rows(action: Any, keep: NDArray[np.bool_]) -> Any:
    """The rows `keep` of an action of some environments.

    Raises:
        ValueError: if it has another number of rows.
    """
    if keep.all():
        return action
    if isinstance(action, Mapping):
        return {name: _rows(values, keep) for name, values in action.items()}
    values = np.asarray(action)
    if values.shape[:1] != keep.shape:
        raise ValueError(f"the action has shape {values.shape}; expected one row for each of {len(keep)} environments")
    return values[keep]
