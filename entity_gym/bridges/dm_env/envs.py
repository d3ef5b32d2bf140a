"""dm_env environments over pools: N environments side by side (`DmVecEnv`), or one (`DmEnvironment`).

The observation is one dictionary of the padded form's observation and info (`entity_gym.bridges.padded`).

Actions are arrays of integers, or of float32 for continuous ones, within `action_spec()`. One that is not open becomes the next
open one; `replaced_actions` counts these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.batch.columns import cat, gather
from entity_gym.batch.vec_obs import VecObs
from entity_gym.bridges.padded import Field, Frames, PaddedPool, frame_of, in_batch, make_form
from entity_gym.pools.spec import EnvSpec
from entity_gym.pools.vec_env import EnvIdLike, VecEnv

try:
    import dm_env
    from dm_env import specs
except ImportError as error:
    raise ImportError(f'the dm form needs dm_env ({error}): pip install "enn-ppo[dm]"') from error

FIRST, MID, LAST = (int(each) for each in dm_env.StepType)


class DmPool(PaddedPool, dm_env.Environment):  # type: ignore[misc, unused-ignore]
    """The specs of a pool's environments, and `reset`: what one environment and several have in common."""

    _batch: tuple[int, ...] = ()  # the dimension of environments before the shapes of specs

    def reset(self, seed: int | None = None) -> dm_env.TimeStep:
        """Start an episode in every environment.

        Args:
            seed: environment i draws from `SeedSequence((seed, i))`. None: continue with the current random numbers.
        """
        return self.begin(seed)

    def observation_spec(self) -> Any:
        """Return name -> bounded array."""
        return {name: self._spec(field, name) for name, field in {**self.form.observation, **self.form.info}.items()}

    def action_spec(self) -> Any:
        """Return a bounded array, or action -> bounded array."""
        action = self.form.action
        if isinstance(action, Field):
            return self._spec(action, "action")
        return {name: self._spec(field, name) for name, field in action.items()}

    def reward_spec(self) -> specs.Array:
        """Return the spec of one number for each environment."""
        return specs.Array(self._batch, np.float32, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Return the spec of one number for each environment."""
        return specs.BoundedArray(self._batch, np.float32, 0.0, 1.0, "discount")

    def _spec(self, field: Field, name: str) -> specs.BoundedArray:
        low, high = (np.broadcast_to(side, (*self._batch, *field.shape)) for side in (field.low, field.high))
        return specs.BoundedArray(low.shape, field.dtype, low, high, name)


class DmEnvironment(DmPool):
    """The only environment of a pool without autoreset as a `dm_env.Environment`; `to_dm_env` makes it."""

    def step(self, action: Any) -> dm_env.TimeStep:  # type: ignore[override]
        """Take one step, or reset if no episode is running; raises ValueError for an action out of bounds."""
        return self.reset() if self.obs is None or self.obs.done[0] else super().step(in_batch(action))

    def tell(self, obs: VecObs, observation: Frames, info: Frames) -> dm_env.TimeStep:  # noqa: D102
        shown = {name: np.asarray(value) for name, value in frame_of({**observation, **info}, 0).items()}
        if obs.done[0]:
            return dm_env.TimeStep(dm_env.StepType.LAST, obs.reward[0], np.float32(obs.truncated[0]), shown)
        if obs.elapsed_step[0] == 0:
            return dm_env.restart(shown)
        return dm_env.TimeStep(dm_env.StepType.MID, obs.reward[0], np.float32(1), shown)


class DmVecEnv(DmPool):
    """A pool as a `dm_env.Environment` of N environments side by side; `make_dm` makes it.

    A `TimeStep` holds arrays: step_type (n,) int32 (0 first, 1 mid, 2 last), reward (n,) float32, discount (n,) float32, and the
    observation. The discount is 0 where an episode terminated, and 1 elsewhere, also where it was truncated.

    Autoreset happens in the next step, as in dm_env: a LAST step carries the last observation, and the answer to the next
    action, which is ignored, is the first observation of the next episode, FIRST with reward 0. The pool has reset
    the environment at the end of the episode already, so the same seed gives the same episodes in every form.

    Asynchronously: `async_reset()`, then `recv()` and `send(action, observation["env_id"])` in turn. `recv` returns the
    environments whose episodes begin by themselves, and otherwise `batch_size` of those under way.
    """

    def __init__(self, pool: VecEnv, spec: EnvSpec) -> None:
        super().__init__(pool, spec)
        self.num_envs = len(pool)
        self._batch = (self.num_envs,)
        self.forget()

    def step(self, actions: Any, env_id: EnvIdLike | None = None) -> dm_env.TimeStep:
        """Step environments and wait for them, as `PaddedPool.step`. Before the first `reset` this is one."""
        if self.obs is None:
            return self.reset()
        ids = self.ids(env_id)
        running = ~self._over[ids]
        if running.all():
            return super().step(actions, env_id)
        parts = []
        if running.any():
            parts.append(self._told(self.pool.act(self.form.to_pool(actions, ids, running), ids[running]))._asdict())
        joined: Any = cat([*parts, self._first(ids[~running])._asdict()])
        place = np.argsort(joined["observation"]["env_id"])[np.argsort(np.argsort(ids))]
        return dm_env.TimeStep(**gather(joined, place))

    def send(self, actions: Any, env_id: EnvIdLike | None = None) -> None:  # noqa: D102
        ids = self.ids(env_id)
        running = ~self._over[ids]
        if running.any():
            self.pool.send(self.form.to_pool(actions, ids, running), ids[running])
        self._beginning += ids[~running].tolist()

    def recv(self) -> dm_env.TimeStep:  # noqa: D102
        if not self._beginning:
            return super().recv()
        ids = np.array(sorted(self._beginning), np.int64)
        self._beginning.clear()
        return self._first(ids)

    def tell(self, obs: VecObs, observation: Frames, info: Frames) -> dm_env.TimeStep:
        """Return time steps, with last observations where episodes ended; keep the first ones of the next episodes."""
        frames = {**observation, **info}
        step_type = np.where(obs.done, LAST, np.where(obs.elapsed_step == 0, FIRST, MID)).astype(np.int32)
        discount = np.where(obs.done & ~obs.truncated, np.float32(0), np.float32(1))
        if len(self.begun):
            ended, last = obs.env_id[self.begun], {**self.last[0], **self.last[1]}
            self._over[ended] = True
            for name, array in frames.items():
                if name not in self._next:
                    self._next[name] = np.zeros((self.num_envs, *array.shape[1:]), array.dtype)
                self._next[name][ended] = array[self.begun]
                frames[name] = array.copy()  # `obs` has some of these arrays
                frames[name][self.begun] = last[name]
        return dm_env.TimeStep(step_type, obs.reward, discount, frames)

    def forget(self) -> None:  # noqa: D102
        super().forget()
        self._over = np.zeros(self.num_envs, np.bool_)  # the last step of an environment was LAST
        self._next: dict[str, NDArray[Any]] = {}  # first observations of the next episodes of these, in their rows of N
        self._beginning: list[int] = []  # those of these that were sent an action

    def _first(self, ids: NDArray[np.int64]) -> dm_env.TimeStep:
        """Return the first time steps of the environments `ids`, whose episodes have ended."""
        self._over[ids] = False
        zeros = np.zeros(len(ids), np.float32)
        return dm_env.TimeStep(np.full(len(ids), FIRST, np.int32), zeros, zeros + 1, gather(self._next, ids))


# ---- for users


def make_dm(env: Any, num_envs: int = 1, **options: Any) -> DmVecEnv:
    """Make a pool of environments as a `dm_env.Environment`; arguments and errors as in `make_gym`."""
    return make_form(DmVecEnv, env, options, num_envs)


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
    return make_form(DmEnvironment, env, {"seed": seed, **options})
