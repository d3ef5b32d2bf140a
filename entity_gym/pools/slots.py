"""Slots: the places of N environments, each with what its environment last showed. Pools are built on them.

Slots know how to step environments and to pack their observations. They know nothing of threads, steps that are under way or
batches: that is `VecEnv`. Because each slot remembers what its environment last showed, any of the environments can be
stepped, in any order, in any number at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.actions.choices import check_actions
from entity_gym.actions.reading import EntityID
from entity_gym.batch.frame import FrameReader
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.errors import check_whole
from entity_gym.spaces import ObsSpace

#: Which last observations are kept in `VecObs.final`: those needed to bootstrap from, all, or none.
FinalObservations = Literal["truncated", "all", "none"]

#: `run(fn, n)` calls fn(0) ... fn(n - 1), possibly at the same time, and returns when all are done; raises what they raise.
Run = Callable[[Callable[[int], None], int], None]

#: (n,) int64, environments of this object: 0 ... len - 1.
EnvIds = NDArray[np.int64]


@dataclass(frozen=True)
class SlotOptions:
    """The options of environments that are stepped together.

    Attributes:
        first_env: the number of environment 0 in seeds and messages, where these are a part of a larger pool.
        autoreset: after the last step of an episode the first observation of the next one is shown, with the finished
            episode's reward, done, truncated, info and metrics. Otherwise the last observation itself is shown, which offers
            no actions, and the environment must be reset before it is stepped again.
        group_size: environments that begin their episodes with the same seeds: environment i is of group
            `(first_env + i) // group_size`. 1: each has its own.
        final_observations: which last observations are kept in `VecObs.final`; without autoreset, none.
        compile: false runs a compiled environment's source as ordinary Python, with checks of array bounds.
        num_workers: threads that may step the environments at the same time.

    Raises:
        ValueError: for `final_observations` that are none.
    """

    first_env: int = 0
    autoreset: bool = True
    group_size: int = 1
    final_observations: FinalObservations = "truncated"
    compile: bool = True
    num_workers: int = 1

    def __post_init__(self) -> None:
        check_whole(self.group_size, "group_size")
        if self.final_observations not in get_args(FinalObservations):
            raise ValueError(
                f"final_observations is {self.final_observations!r}; allowed: {get_args(FinalObservations)}"
            )


def run_serially(fn: Callable[[int], None], n: int) -> None:
    """Call fn(0) ... fn(n - 1), one after the other."""
    for k in range(n):
        fn(k)


class EnvSlots(ABC):
    """N environments of one kind, each with what it last showed.

    Pools take a subclass wherever they take what makes an environment, as long as its constructor takes `num_envs` and
    `options`; further parameters are the world's own. So a world over NumPy arrays is stepped as a whole, as
    `examples/walks.py` shows. It keeps arrays with a row for each environment, and reads and writes only the rows that it is
    asked for.
    `ids` are (n,) int64 and below N, each at most once. Actions are n sequences of (A, 1) int64 or (A, F) float32, for the A
    actors that the last observation of the environment offered. An observation is a `VecObs` of n frames; in one that ends
    an episode nobody acts.

    Who calls what, and when: `reset` and `step` run in several threads at once, with different `worker`s and for environments
    that are not the same. `check`, `act`, `collect` and `render` are called by the thread of worker 0, possibly while *other*
    environments are being stepped by workers 1, 2, ... Everything else is called while nothing is under way.
    What an environment raises keeps its type and message and gets a note with `where(i)`.

    Args:
        num_envs: N, at least 1.
        options: see `SlotOptions`.
        obs_space: of the environments.
        action_space: their actions by name.
        environment: the name of their class in messages.

    Raises:
        ValueError: if there are no environments, or spaces are none.
    """

    #: Whether steps that nobody waits for are best handed out one environment at a time (they are slow, and differ), rather
    #: than as one chunk for each worker (they take microseconds).
    one_by_one: ClassVar[bool]
    #: Whether `act` is there: it checks, steps and packs in one go.
    acts_at_once: ClassVar[bool] = False

    #: Whether `close` may be called while steps are under way, which then end.
    closes_at_once: ClassVar[bool] = False

    #: Whether `options.group_size` may be above 1; see `seed`.
    has_groups: ClassVar[bool] = False

    def __init__(
        self,
        num_envs: int,
        options: SlotOptions,
        obs_space: ObsSpace,
        action_space: Mapping[str, ActionSpace],
        environment: str,
    ) -> None:
        check_whole(num_envs, "num_envs")
        if options.group_size > 1 and not self.has_groups:
            raise ValueError(f"group_size={options.group_size}: {type(self).__name__} cannot seed single episodes")
        self.options = options
        self._num_envs = num_envs
        self._reader = FrameReader(obs_space, action_space, environment, options.first_env)

    @property
    def obs_space(self) -> ObsSpace:
        """Return the space of their observations."""
        return self._reader.obs_space

    @property
    def action_space(self) -> Mapping[str, ActionSpace]:
        """Return their action spaces by name."""
        return self._reader.action_space

    def __len__(self) -> int:
        """The number of environments."""
        return self._num_envs

    def where(self, i: int) -> str:
        """Return the name of environment `i` in messages, such as "MineSweeper (environment 3)"; counts from `first_env`."""
        return self._reader.where(i)

    def under_way(self) -> str:
        """Name the environments that are taking a step, or all that may be, for messages; other threads may call it, too."""
        last = self.where(len(self) - 1)
        return self.where(0) + (f" to {last}" if len(self) > 1 else "")

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Environment i draws from `SeedSequence((seed, first_env + i))` from now on.

        With groups, running episodes go on as they are. The next episode of environment i begins like the first one of
        environment `(first_env + i) // group_size` without groups, and every later one has a seed that follows from the seed
        before. `VecObs.arrays[INSTANCE]` then has the same number for members that play the same episode.
        """

    def configure(self, ids: EnvIds, env_info: Sequence[Mapping[str, Any]]) -> None:
        """Set parameters for the coming episodes, one mapping for each of `ids`; the running ones go on with theirs.

        They wait until the slot is reset, and are part of `state` until then; what is given meanwhile comes on top.

        Raises:
            ValueError: if the environment takes none; for a compiled one also for a parameter that it does not have, or a
                value that it does not allow, which others say when the episode begins.
        """
        raise ValueError(f"{self._reader.environment} does not implement configure(), so it takes no env_info")

    @abstractmethod
    def reset(self, ids: EnvIds, worker: int = 0) -> None:
        """Start episodes. `worker` tells threads apart that do this at the same time: 0 <= worker < number of workers."""

    def check(self, actions: Mapping[str, VecAction], ids: EnvIds, shown: VecObs | None = None) -> None:
        """Check that `actions`, one sequence for each of `ids`, are ones that their last observations offered.

        Args:
            actions: action -> n sequences.
            ids: of the environments to step.
            shown: their last observations, if they are at hand.

        Raises:
            ValueError: naming the action, the environment, what was given and what was offered. Nothing has been stepped.
        """
        masks = (self.collect(ids, run_serially) if shown is None else shown).action_masks
        check_actions(actions, masks, self.action_space, lambda k: self.where(int(ids[k])))

    @abstractmethod
    def step(self, actions: Mapping[str, VecAction], ids: EnvIds, lo: int, hi: int, worker: int = 0) -> None:
        """Step the environments `ids[lo:hi]`. `actions` are for all of `ids`, and have been checked."""

    def act(self, actions: Mapping[str, VecAction], ids: EnvIds) -> VecObs | None:
        """`check`, `step` and `collect` in one go, in the thread of worker 0, for slots that can: see `acts_at_once`.

        Returns None if the actions are not among those that were offered, or not known to be; then nothing has been stepped.

        Raises:
            ValueError: see `collect`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not check, step and pack in one go")

    @abstractmethod
    def collect(self, ids: EnvIds, run: Run) -> VecObs:
        """Pack what the slots `ids` show, in that order, into arrays that nothing writes to later.

        Args:
            ids: of environments that have shown something; may be empty. Becomes `VecObs.env_id`, as a copy.
            run: may be used to split the copying. While other environments are being stepped it calls its parts one after
                the other, in the calling thread.

        Raises:
            ValueError: for an observation that does not fit the spaces.
        """

    def render(self, i: int) -> NDArray[np.uint8]:
        """Draw environment `i` as a (height, width, 3) image: by its hints (`draw`), unless it has a picture of its own.

        Raises:
            NotImplementedError: it has neither.
        """
        from entity_gym.replay.picture import draw_frame

        hints = self.draw(i)
        if hints is None:
            raise NotImplementedError(f"{self._reader.environment} implements neither render() nor draw()")
        return draw_frame(self.collect(np.array([i]), run_serially), hints, self.obs_space, self.where(i))

    def draw(self, i: int) -> Mapping[str, Any] | None:
        """Return how environment `i` wants its running episode to be drawn, as the world says it; None: it does not say."""
        return None

    def world_ids(self, i: int) -> Sequence[EntityID | None] | None:
        """Return the world's own id of each entity that environment `i` shows, by entity index; None: it gives no ids.

        None stands for an entity without an id.
        """
        return None

    @property
    def can_save(self) -> bool:
        """True if `state` and `load_state` work for these environments."""
        return False

    def state(self) -> dict[str, Any]:
        """Return a state from which `load_state` continues exactly, with observations and random numbers.

        Also works before the first reset. It holds `num_envs`, or a list `environments`, and besides only lists and arrays
        with an entry for each environment, and dictionaries of these: pools of processes join and cut them. Entries are
        numbers, strings, None, arrays, and lists, tuples and dictionaries of these. Last observations (`VecObs.final`) belong
        to a step and are not kept.
        """
        raise NotImplementedError(f"{self._reader.environment} does not implement state()")

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned.

        Raises:
            ValueError: if it is of another number of environments.
        """
        raise NotImplementedError(f"{self._reader.environment} does not implement load_state()")

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release the environments. May be called twice."""


class EpisodeSeeds:
    """The seeds with which N environments in groups begin their episodes.

    Attributes:
        instances: (N,) int64, numbers of the running episodes: those that began with the same seed in the same group have the
            same.
    """

    def __init__(self, num_envs: int, options: SlotOptions) -> None:
        self._groups = ((options.first_env + np.arange(num_envs)) // options.group_size).tolist()
        self._coming = [0] * num_envs
        self.instances: NDArray[np.int64] = np.zeros(num_envs, np.int64)

    def seed(self, seed: int) -> None:
        """Begin the next episodes with this seed."""
        self._coming = [seed] * len(self._groups)

    def begin(self, i: int) -> tuple[int, int]:
        """Begin an episode in environment `i`; returns its seed, and the number of its group."""
        seed, group = self._coming[i], self._groups[i]
        drawn = int(np.random.SeedSequence((seed, group)).generate_state(1, np.uint64)[0])
        self.instances[i] = drawn >> 1
        self._coming[i] = drawn >> 33  # 31 bits: some libraries take no larger seeds
        return seed, group

    def state(self) -> dict[str, Any]:
        """Return a state for `load_state`."""
        return {"coming": list(self._coming), "instances": self.instances.copy()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._coming, self.instances = list(state["coming"]), np.array(state["instances"])


def check_distinct(envs: Sequence[Any], told: str) -> None:
    """Raise a ValueError if two environments are the same object, or wrappers of the same; it begins with `told`."""
    inner = [getattr(env, "unwrapped", env) for env in envs]
    if len({id(each) for each in inner}) < len(inner):
        raise ValueError(
            f"{told} the same {type(inner[0]).__name__} object twice; each environment is stepped by itself, so make a new one "
            "for each"
        )


def check_state(state: Mapping[str, Any], num_envs: int | None, *parts: str) -> None:
    """Raise a ValueError unless `state` is of `num_envs` environments (None: of any) and has `parts`: other kinds have others."""
    if not set(parts) <= state.keys():
        raise ValueError(
            f"the saved state is of another kind of environments: it holds {list(state)} and not {list(parts)}"
        )
    saved = num_envs if num_envs is None else state.get("num_envs") or len(state["environments"])
    if saved != num_envs:
        raise ValueError(f"the saved state has {saved} environments; this pool has {num_envs}")
