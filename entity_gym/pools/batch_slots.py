"""Slots, and a pool, for worlds that are vectorised by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.choices import check_actions
from entity_gym.batch.batch_obs import Ending, pack_batch
from entity_gym.batch.frame import FrameReader
from entity_gym.batch.vec_obs import Metric, VecAction, VecActionMask, VecObs
from entity_gym.pools.batch_env import BatchEnvironment, BatchRandom, BatchStep, CreateBatch
from entity_gym.pools.slot_vec_env import SlotVecEnv
from entity_gym.pools.slots import (
    EnvIds,
    EnvSlots,
    FinalObservations,
    Run,
    check_final_observations,
    check_num_envs,
    check_seed,
    check_state,
)


class BatchVecEnv(SlotVecEnv):
    """Steps a `BatchEnvironment` in the calling thread.

    Args:
        create_env: makes one, of `num_envs` environments: its class, or a function of that number.
        num_envs: at least 1.
        seed: see `VecEnv.reset`.
        final_observations: which last observations to keep in `VecObs.final`.
        batch_size: how many environments `recv` returns. None: all.
        first_env: the number of environment 0 in seeds and messages, where this is a part of a larger pool.
    """

    def __init__(
        self,
        create_env: CreateBatch,
        num_envs: int,
        seed: int = 0,
        final_observations: FinalObservations = "truncated",
        batch_size: int | None = None,
        first_env: int = 0,
    ) -> None:
        slots = BatchSlots(create_env, num_envs, first_env=first_env, final_observations=final_observations)
        super().__init__(slots, batch_size=batch_size, seed=seed)
        self.env = slots.env


class BatchSlots(EnvSlots):
    """The environments of one `BatchEnvironment`. What a slot shows is asked for when it is needed, since it is in the arrays."""

    one_by_one = False

    def __init__(
        self,
        create_env: CreateBatch,
        num_envs: int,
        *,
        first_env: int = 0,
        autoreset: bool = True,
        final_observations: FinalObservations = "truncated",
    ) -> None:
        check_num_envs(num_envs)
        check_final_observations(final_observations)
        self.env = create_env(num_envs)
        name = type(self.env).__name__
        if not isinstance(self.env, BatchEnvironment) or self.env.num_envs != num_envs:
            raise ValueError(
                f"create_env({num_envs}) returned {self.env!r:.200}; it must return as many as a BatchEnvironment"
            )
        self.first_env, self.autoreset, self.final_observations = first_env, autoreset, final_observations
        self._create_env = create_env
        self._reader = FrameReader(self.env.obs_space(), self.env.action_space(), name, first_env)
        self._random = BatchRandom(num_envs)
        self._reward = np.zeros(num_envs, np.float32)
        self._done = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)
        self._elapsed = np.zeros(num_envs, np.int64)
        self._metrics: dict[str, NDArray[np.float64]] = {}
        self._infos: dict[int, Mapping[str, Any]] = {}
        self._finals: dict[int, tuple[VecObs, int]] = {}  # environment -> last observations, and its row there
        self._pending: dict[int, dict[str, Any]] = {}  # parameters that wait for the next episode
        self._collected: tuple[EnvIds, dict[str, VecActionMask]] | None = None

    def __len__(self) -> int:
        return self.env.num_envs

    def seed(self, seed: int) -> None:
        check_seed(seed)
        self._random.seed(seed, self.first_env)

    def configure(self, ids: EnvIds, env_info: Sequence[Mapping[str, Any]]) -> None:
        if type(self.env).configure is BatchEnvironment.configure:
            raise ValueError(f"{self._reader.environment} does not implement configure(), so it takes no env_info")
        for i, info in zip(ids.tolist(), env_info, strict=True):
            self._pending[i] = {**self._pending.get(i, {}), **info}

    def reset(self, ids: EnvIds, worker: int = 0) -> None:
        self._collected = None
        self._begin(ids)
        self._reward[ids], self._done[ids], self._truncated[ids], self._elapsed[ids] = 0, False, False, 0
        self._forget(ids)

    def check(self, actions: Mapping[str, VecAction], ids: EnvIds) -> None:
        if self._collected is not None and np.array_equal(self._collected[0], ids):
            masks = self._collected[1]
        else:
            masks = self._pack(ids, self._ending(ids)).action_masks
        check_actions(actions, masks, self._reader.action_space, lambda k: self._reader.where(int(ids[k])))

    def step(self, actions: Mapping[str, VecAction], ids: EnvIds, lo: int, hi: int, worker: int = 0) -> None:
        self._collected = None
        mine = ids[lo:hi]
        if len(mine) < len(ids):
            actions = {name: buffer[lo:hi] for name, buffer in actions.items()}
        result = self._checked(self._call(mine, self.env.step, mine, actions, self._random), len(mine))
        self._forget(mine)
        self._elapsed[mine] += 1
        self._reward[mine] = result.reward
        self._truncated[mine] = result.truncated & ~result.terminated
        self._done[mine] = result.terminated | result.truncated
        for name, values in result.metrics.items():
            self._metrics.setdefault(name, np.full(len(self), np.nan))[mine] = values
        ended = np.flatnonzero(self._done[mine])
        for k, i in zip(ended.tolist(), mine[ended].tolist(), strict=True):
            self._infos[i] = _info(result.info, k)
        if self.autoreset and len(ended):
            self._start_again(mine[ended])

    def collect(self, ids: EnvIds, run: Run) -> VecObs:
        obs = self._pack(ids, self._ending(ids))
        obs.end_of_episode_info = {i: self._infos[i] for i in ids[obs.done].tolist() if self._infos.get(i)}
        obs.metrics = {name: metric for name in self._metrics if (metric := _metric(self._metrics[name][ids])).count}
        obs.final = self._final(ids)
        self._collected = ids.copy(), obs.action_masks
        return obs

    def render(self, i: int) -> NDArray[np.uint8]:
        image: NDArray[np.uint8] = self._call(np.array([i]), self.env.render, i)
        return image

    @property
    def can_save(self) -> bool:
        return type(self.env).arrays is not BatchEnvironment.arrays

    def state(self) -> dict[str, Any]:
        return {
            "num_envs": len(self),
            "arrays": {name: array.copy() for name, array in self.env.arrays().items()},
            "shown": {name: array.copy() for name, array in self._shown().items()},
            # One entry for each environment, like everything here: pools of worker processes cut and join states.
            "metrics": [self._metrics_of(i) for i in range(len(self))],
            "infos": [dict(self._infos[i]) if i in self._infos else None for i in range(len(self))],
            "pending": [dict(self._pending[i]) if i in self._pending else None for i in range(len(self))],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        check_state(state, "num_envs", "arrays", "shown")
        if state["num_envs"] != len(self):
            raise ValueError(f"the saved state has {state['num_envs']} environments; this pool has {len(self)}")
        arrays = self.env.arrays()
        if arrays.keys() != state["arrays"].keys():
            raise ValueError(f"the saved state has the arrays {list(state['arrays'])}; this world has {list(arrays)}")
        for saved, present in ((state["arrays"], arrays), (state["shown"], self._shown())):
            for name, array in present.items():
                array[...] = saved[name]
        self._metrics = {}
        for i, told in enumerate(state["metrics"]):
            for name, value in told.items():
                self._metrics.setdefault(name, np.full(len(self), np.nan))[i] = value
        self._infos = {i: dict(info) for i, info in enumerate(state["infos"]) if info is not None}
        self._pending = {i: dict(info) for i, info in enumerate(state.get("pending", [])) if info is not None}
        self._finals.clear()
        self._collected = None

    def clone(self) -> BatchSlots:
        if not self.can_save:
            raise ValueError(
                f"a copy needs a world that can be saved; {self._reader.environment} does not implement arrays()"
            )
        twin = BatchSlots(
            self._create_env,
            len(self),
            first_env=self.first_env,
            autoreset=self.autoreset,
            final_observations=self.final_observations,
        )
        twin.load_state(self.state())
        twin._finals = dict(self._finals)
        return twin

    def close(self) -> None:
        self.env.close()

    def _shown(self) -> dict[str, NDArray[Any]]:
        return {
            "reward": self._reward,
            "done": self._done,
            "truncated": self._truncated,
            "elapsed_step": self._elapsed,
            "random": self._random.states,
        }

    def _metrics_of(self, i: int) -> dict[str, float]:
        """The metrics that environment `i` reported with its last step."""
        return {name: float(values[i]) for name, values in self._metrics.items() if not np.isnan(values[i])}

    def _ending(self, ids: EnvIds) -> Ending:
        return Ending(self._reward[ids], self._done[ids], self._truncated[ids], self._elapsed[ids])

    def _pack(self, ids: EnvIds, ending: Ending, *, last: bool = False) -> VecObs:
        without_actions = ending.done if last or not self.autoreset else np.zeros(len(ids), np.bool_)
        return pack_batch(self._call(ids, self.env.observe, ids), ids, ending, self._reader, without_actions)

    def _start_again(self, ended: EnvIds) -> None:
        """Keep what is wanted of the episodes that ended, and start the next ones."""
        keep = {"all": ended, "truncated": ended[self._truncated[ended]], "none": ended[:0]}[self.final_observations]
        if len(keep):
            last = self._pack(keep, self._ending(keep), last=True)
            last.end_of_episode_info = {i: self._infos[i] for i in keep.tolist() if self._infos[i]}
            for row, i in enumerate(keep.tolist()):
                self._finals[i] = last, row
        self._elapsed[ended] = 0
        self._begin(ended)

    def _begin(self, ids: EnvIds) -> None:
        """Start episodes, with the parameters that wait for them."""
        waiting = [i for i in ids.tolist() if i in self._pending] if self._pending else []
        if waiting:
            which = np.array(waiting, np.int64)
            self._call(which, self.env.configure, which, [self._pending.pop(i) for i in waiting])
        self._call(ids, self.env.reset, ids, self._random)

    def _forget(self, ids: EnvIds) -> None:
        """What was said with the last step is not said again."""
        for kept in (self._infos, self._finals):
            if kept:
                for i in ids.tolist():
                    kept.pop(i, None)
        for values in list(self._metrics.values()):  # other workers may add to it meanwhile
            values[ids] = np.nan

    def _final(self, ids: EnvIds) -> VecObs | None:
        kept = [self._finals[i] for i in ids.tolist() if i in self._finals]
        parts = []
        while kept:
            batch = kept[0][0]  # those of one step were observed together
            together = next((k for k, (other, _) in enumerate(kept) if other is not batch), len(kept))
            parts.append(batch.gather(np.array([row for _, row in kept[:together]])))
            kept = kept[together:]
        return VecObs.cat(parts) if parts else None

    def _checked(self, result: Any, n: int) -> BatchStep:
        name = self._reader.environment
        if not isinstance(result, BatchStep):
            raise ValueError(f"{name}: step() returned {result!r:.200}; expected a BatchStep")
        reward = self._column("reward", result.reward, n, "biuf")
        if not np.isfinite(reward).all():
            raise ValueError(f"{name}: step() returned a reward that is not a finite number: {reward!r:.200}")
        return BatchStep(
            reward,
            self._column("terminated", result.terminated, n, "b"),
            self._column("truncated", result.truncated, n, "b"),
            self._info(result.info, n),
            {key: self._column(f"metrics[{key!r}]", values, n, "biuf") for key, values in result.metrics.items()},
        )

    def _info(
        self, given: Mapping[str, NDArray[Any]] | Sequence[Mapping[str, Any]], n: int
    ) -> Mapping[str, NDArray[Any]] | Sequence[Mapping[str, Any]]:
        if isinstance(given, Mapping):
            return {key: self._column(f"info[{key!r}]", values, n, "biufUSO") for key, values in given.items()}
        if len(given) != n:
            raise ValueError(f"{self._reader.environment}: info of step() has {len(given)} entries; expected {n}")
        return given

    def _column(self, field: str, given: Any, n: int, kinds: str) -> NDArray[Any]:
        values = np.asarray(given)
        if values.shape != (n,) or values.dtype.kind not in kinds:
            expected = "bools" if kinds == "b" else "numbers" if "O" not in kinds else "values"
            raise ValueError(
                f"{self._reader.environment}: {field} of step() has shape {values.shape} and type {values.dtype}; "
                f"expected {n} {expected}"
            )
        return values

    def _call(self, ids: EnvIds, method: Callable[..., Any], *args: Any) -> Any:
        """Run the user's code; what it raises keeps its type and says for which environments it was called."""
        try:
            return method(*args)
        except Exception as error:
            first = self.first_env + int(ids[0]) if len(ids) else 0
            more = f" and {len(ids) - 1} others" if len(ids) > 1 else ""
            error.add_note(f"raised by {self._reader.environment} (environment {first}{more}) in {method.__name__}()")
            raise


def _info(given: Mapping[str, NDArray[Any]] | Sequence[Mapping[str, Any]], k: int) -> Mapping[str, Any]:
    """What the `k`-th environment said."""
    if isinstance(given, Mapping):
        return {name: values[k : k + 1].tolist()[0] for name, values in given.items()}
    return dict(given[k])


def _metric(values: NDArray[np.float64]) -> Metric:
    known = values[~np.isnan(values)]
    if not len(known):
        return Metric()
    return Metric(len(known), float(known.sum()), float(known.min()), float(known.max()))
