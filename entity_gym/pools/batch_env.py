"""Worlds that are vectorised by hand: rules over NumPy arrays, with one row for each environment.

The contract of a `BatchEnvironment`:

1. Everything that changes lives in arrays whose first dimension is the environment. They are made once, in the constructor,
   and written in place.
2. Every method is told which environments it concerns, as an array `ids` of row numbers, and touches no other row. So the
   same rules serve steps of all environments together, of some of them, and asynchronous ones.
3. `observe` changes nothing and draws no random numbers: it may be called at any time, and shows the same.
4. Random numbers come from the `rng` that is handed in, which has a stream of its own for each environment. So an
   environment's episodes depend on its seed and its actions, and not on how many there are.

In return it is a full pool: autoreset, last observations, subsets, `send` and `recv`, and saving, with `BatchVecEnv`, or in
`ThreadedVecEnv` and `EpisodeVecEnv`, which take its class as they take any other. Those who want none of this implement
`VecEnv` itself: `obs_space`, `action_space`, `reset`, `act`, `__len__` and `close`, as they are documented there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.actions.choices import check_actions
from entity_gym.actions.reading import BatchActors, Rows
from entity_gym.batch.batch_obs import BatchObservation, Ending, pack_batch
from entity_gym.batch.frame import FrameReader
from entity_gym.batch.ragged import RaggedBufferI64
from entity_gym.batch.vec_obs import Metric, VecAction, VecActionMask, VecObs
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
from entity_gym.spaces import LARGEST_FLOAT32, ObsSpace

__all__ = [
    "BatchActors",
    "BatchEnvironment",
    "BatchObservation",
    "BatchRandom",
    "BatchSlots",
    "BatchStep",
    "CreateBatch",
    "Rows",
]


class BatchStep(NamedTuple):
    """The results of a step of n environments; every array is (n,)."""

    reward: NDArray[Any]
    terminated: NDArray[np.bool_]  # the episode ended by its own rules
    truncated: NDArray[np.bool_]  # it was cut
    # end_of_episode_info, read where the episode ended: by name, or a mapping for each environment
    info: Mapping[str, NDArray[Any]] | Sequence[Mapping[str, Any]] = {}
    metrics: Mapping[str, NDArray[Any]] = {}  # numbers of every step; NaN: none this time


class BatchEnvironment(ABC):
    """N environments with rules over arrays; see the module for the contract.

    Args:
        num_envs: N.
    """

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    @abstractmethod
    def obs_space(self) -> ObsSpace:
        """Return the space of the observations of each environment."""

    @abstractmethod
    def action_space(self) -> Mapping[str, ActionSpace]:
        """Return the action spaces of each environment by name."""

    @abstractmethod
    def reset(self, ids: EnvIds, rng: BatchRandom) -> None:
        """Start episodes in the environments `ids` (n,)."""

    @abstractmethod
    def step(self, ids: EnvIds, actions: Mapping[str, VecAction], rng: BatchRandom) -> BatchStep:
        """Take a step in the environments `ids` (n,).

        Args:
            ids: which.
            actions: action -> n sequences of (A, 1), for the actors that `observe` offered: `actions["Move"].values[:, 0]` are
                the choices of all actors one after another. For select-entity the entity index inside the frame, or -1. For
                continuous actions (A, n) float32.
            rng: random numbers.
        """

    @abstractmethod
    def observe(self, ids: EnvIds) -> BatchObservation:
        """Return the observations of the environments `ids` (n,), in that order."""

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """All arrays that change, by name, each with N rows. With them, pools can be saved, restored and copied. Optional."""
        raise NotImplementedError(f"{type(self).__name__} does not implement arrays()")

    def configure(self, ids: EnvIds, env_info: Sequence[Mapping[str, Any]]) -> None:
        """Set parameters for the coming episodes, one mapping for each of `ids`. Optional."""
        raise NotImplementedError(f"{type(self).__name__} does not implement configure(), so it takes no env_info")

    def render(self, i: int) -> NDArray[np.uint8]:
        """Draw environment `i` as a (height, width, 3) image. Optional."""
        raise NotImplementedError(f"{type(self).__name__} does not implement render()")

    def draw(self, i: int) -> Mapping[str, Any] | None:
        """Return hints on how a replay draws the running episode of environment `i`; see `Environment.draw`. Optional."""
        return None

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release what is held. May be called twice."""


#: What makes one: its class, or a function of the number of environments.
CreateBatch = Callable[[int], BatchEnvironment]


class BatchRandom:
    """Random numbers for many environments at once, from a stream of its own for each.

    splitmix64, whose state is one number an environment. Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom
    number generators".

    Args:
        num_envs: how many streams.
    """

    def __init__(self, num_envs: int) -> None:
        self.states: NDArray[np.uint64] = np.zeros(num_envs, dtype=np.uint64)

    def seed(self, seed: int, first_env: int = 0) -> None:
        """Stream i begins where `SeedSequence((seed, first_env + i))` says."""
        for i in range(len(self.states)):
            sequence = np.random.SeedSequence((seed, first_env + i))
            self.states[i] = sequence.generate_state(1, np.uint64)[0]

    def floats(self, ids: EnvIds, *shape: int) -> NDArray[np.float64]:
        """(n, *shape) numbers in [0, 1), multiples of 2^-53, from the streams of `ids`."""
        return (self._bits(ids, shape) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def integers(self, ids: EnvIds, high: int | NDArray[np.integer[Any]], *shape: int) -> NDArray[np.int64]:
        """(n, *shape) whole numbers from 0 to `high` - 1, from the streams of `ids`.

        Args:
            ids: (n,) which.
            high: from 1 to 2^32; may be different for each, as an array that broadcasts to the result.
            shape: how many for each environment; nothing for one.
        """
        bound = np.asarray(high)
        if bound.size and (bound.min() < 1 or bound.max() > 2**32):
            raise ValueError(f"high is {high!r:.200}; it must be from 1 to 2^32")
        bits = self._bits(ids, shape) >> np.uint64(32)
        return ((bits * bound.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)

    def _bits(self, ids: EnvIds, shape: tuple[int, ...]) -> NDArray[np.uint64]:
        """(n, *shape) 64 random bits each."""
        many = int(np.prod(shape, dtype=np.int64))
        steps = np.arange(1, many + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # wraps, as it is meant to
        z = self.states[ids][:, None] + steps
        if many:
            self.states[ids] = z[:, -1]
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits: NDArray[np.uint64] = (z ^ (z >> np.uint64(31))).reshape(len(ids), *shape)
        return bits


class BatchSlots(EnvSlots):
    """The environments of one `BatchEnvironment`. Observations are read from its arrays on demand; slots cache nothing.

    Args:
        create_env: its class, or a function of the number of environments.
        num_envs, first_env, autoreset, final_observations, entity_ids: as in `PythonSlots`; all entities have the id -1.
    """

    one_by_one = False

    def __init__(
        self,
        create_env: CreateBatch,
        num_envs: int,
        *,
        first_env: int = 0,
        autoreset: bool = True,
        final_observations: FinalObservations = "truncated",
        entity_ids: bool = False,
    ) -> None:
        check_num_envs(num_envs)
        check_final_observations(final_observations)
        self.env = create_env(num_envs)
        name = type(self.env).__name__
        if not isinstance(self.env, BatchEnvironment) or self.env.num_envs != num_envs:
            raise ValueError(
                f"create_env({num_envs}) returned {self.env!r:.200}; it must return as many as a BatchEnvironment"
            )
        if self.env.obs_space().targets:
            raise ValueError(f"{name}: obs_space has targets, which worlds over arrays cannot tell yet; leave them out")
        self.first_env, self.autoreset, self.final_observations = first_env, autoreset, final_observations
        self.entity_ids = entity_ids
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
        collected = self._collected  # a worker that steps other environments may forget it meanwhile
        if collected is not None and np.array_equal(collected[0], ids):
            masks = collected[1]
        else:
            masks = self._pack(ids, self._ending(ids)).action_masks
        check_actions(actions, masks, self._reader.action_space, lambda k: self._reader.where(int(ids[k])))

    def step(self, actions: Mapping[str, VecAction], ids: EnvIds, lo: int, hi: int, worker: int = 0) -> None:
        self._collected = None
        mine = ids[lo:hi]
        if len(mine) < len(ids):
            actions = {name: buffer[lo:hi] for name, buffer in actions.items()}
        result = self._checked(self._call(mine, self.env.step, mine, actions, self._random), mine)
        self._forget(mine)
        self._elapsed[mine] += 1
        self._reward[mine] = result.reward
        self._truncated[mine] = result.truncated & ~result.terminated
        self._done[mine] = result.terminated | result.truncated
        for name, values in result.metrics.items():
            self._metrics_of(name)[mine] = values
        ended = np.flatnonzero(self._done[mine])
        for k, i in zip(ended.tolist(), mine[ended].tolist(), strict=True):
            self._infos[i] = _info(result.info, k)
        if self.autoreset and len(ended):
            self._start_again(mine[ended])

    def collect(self, ids: EnvIds, run: Run) -> VecObs:
        obs = self._pack(ids, self._ending(ids))
        obs.end_of_episode_info = {i: self._infos[i] for i in ids[obs.done].tolist() if self._infos.get(i)}
        obs.metrics = {
            name: metric for name in list(self._metrics) if (metric := _metric(self._metrics[name][ids])).count
        }
        obs.final = self._final(ids)
        self._collected = ids.copy(), obs.action_masks
        return obs

    def render(self, i: int) -> NDArray[np.uint8]:
        image: NDArray[np.uint8] = self._call(np.array([i]), self.env.render, i)
        return image

    def draw(self, i: int) -> Mapping[str, Any] | None:
        hints: Mapping[str, Any] | None = self._call(np.array([i]), self.env.draw, i)
        return hints

    @property
    def can_save(self) -> bool:
        return type(self.env).arrays is not BatchEnvironment.arrays

    def state(self) -> dict[str, Any]:
        return {
            "num_envs": len(self),
            "arrays": {name: array.copy() for name, array in self.env.arrays().items()},
            "shown": {name: array.copy() for name, array in self._shown().items()},
            # One entry for each environment, so that states of parts of a pool can be joined.
            "metrics": [
                {name: float(values[i]) for name, values in self._metrics.items() if not np.isnan(values[i])}
                for i in range(len(self))
            ],
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
        for i, metrics in enumerate(state["metrics"]):
            for name, value in metrics.items():
                self._metrics_of(name)[i] = value
        self._infos = {i: dict(info) for i, info in enumerate(state["infos"]) if info is not None}
        self._pending = {i: dict(info) for i, info in enumerate(state["pending"]) if info is not None}
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
            entity_ids=self.entity_ids,
        )
        twin.load_state(self.state())
        twin._finals = dict(self._finals)
        return twin

    def close(self) -> None:
        self.env.close()

    def _metrics_of(self, name: str) -> NDArray[np.float64]:
        """Return (N,) the values of a metric in the last step of each environment, NaN for none."""
        return self._metrics.setdefault(name, np.full(len(self), np.nan))

    def _shown(self) -> dict[str, NDArray[Any]]:
        """Return the arrays, one entry for each environment, that are saved besides the world's own."""
        return {
            "reward": self._reward,
            "done": self._done,
            "truncated": self._truncated,
            "elapsed_step": self._elapsed,
            "random": self._random.states,
        }

    def _ending(self, ids: EnvIds) -> Ending:
        return Ending(self._reward[ids], self._done[ids], self._truncated[ids], self._elapsed[ids])

    def _pack(self, ids: EnvIds, ending: Ending, *, last: bool = False) -> VecObs:
        without_actions = ending.done if last or not self.autoreset else np.zeros(len(ids), np.bool_)
        observed = self._call(ids, self.env.observe, ids)
        if not isinstance(observed, BatchObservation):
            raise ValueError(
                f"{self._reader.environment}: observe() returned {observed!r:.200}; expected a BatchObservation"
            )
        obs = pack_batch(observed, ids, ending, self._reader, without_actions)
        if self.entity_ids:  # such worlds give their entities no ids
            for name in self._reader.widths:
                features = obs.features[name]
                unknown = np.full((features.items(), 1), -1, np.int64)
                obs.ids[name] = RaggedBufferI64.from_offsets(unknown, features.offsets)
        return obs

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
        """Drop infos, metrics and last observations of the last step: they are reported once."""
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

    def _checked(self, result: Any, ids: EnvIds) -> BatchStep:
        name, n = self._reader.environment, len(ids)
        if not isinstance(result, BatchStep):
            raise ValueError(f"{name}: step() returned {result!r:.200}; expected a BatchStep")
        reward = self._column("reward", result.reward, n, "biuf")
        if not (fits := np.abs(reward) <= LARGEST_FLOAT32).all():
            k = int(np.argmin(fits))
            raise ValueError(
                f"{self.where(int(ids[k]))}: step() returned the reward {reward[k]}; it must be a finite number that float32 can "
                "hold"
            )
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
        """Run the user's code; add to its exceptions the environments for which it was called."""
        try:
            return method(*args)
        except Exception as error:
            first = self.first_env + int(ids[0]) if len(ids) else 0
            more = f" and {len(ids) - 1} others" if len(ids) > 1 else ""
            where = f"{self._reader.environment} (environment {first}{more})"
            if isinstance(error, StopIteration):  # would silently end a loop of whoever called the pool
                raise RuntimeError(f"{where} raised {error!r} in {method.__name__}()") from error
            error.add_note(f"raised by {where} in {method.__name__}()")
            raise


def _info(given: Mapping[str, NDArray[Any]] | Sequence[Mapping[str, Any]], k: int) -> Mapping[str, Any]:
    """Return the info of the `k`-th environment."""
    if isinstance(given, Mapping):
        return {name: values[k : k + 1].tolist()[0] for name, values in given.items()}
    return dict(given[k])


def _metric(values: NDArray[np.float64]) -> Metric:
    known = values[~np.isnan(values)]
    if not len(known):
        return Metric()
    return Metric(len(known), float(known.sum()), float(known.min()), float(known.max()))
