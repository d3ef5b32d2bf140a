"""Slots for environments that are Python objects."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.choices import world_actions
from entity_gym.actions.reading import EntityID
from entity_gym.batch.batching import batch_frames
from entity_gym.batch.frame import EntityNumbers, Frame
from entity_gym.batch.saving import observation_from_state, observation_to_state, plain_copy
from entity_gym.batch.vec_obs import INSTANCE, VecAction, VecObs
from entity_gym.environment import DRAW_IS_A_HOOK, Environment, Observation
from entity_gym.pools.slots import EnvIds, EnvSlots, EpisodeSeeds, Run, SlotOptions, check_distinct, check_state

#: Fields of the observation after an episode's last step that the next episode's first observation takes over.
_OF_A_STEP = ("reward", "truncated", "end_of_episode_info", "metrics", "player_rewards")


class PythonSlots(EnvSlots):
    """Environments made by `create_env`.

    Args:
        create_env: makes one environment; called `num_envs` times.
        num_envs: at least 1.
        options: see `SlotOptions`.

    Raises:
        ValueError: `create_env` makes the same object twice, or environments whose spaces differ.
    """

    one_by_one = True
    has_groups = True

    def __init__(
        self,
        create_env: Callable[[], Environment],
        num_envs: int,
        options: SlotOptions = SlotOptions(),
    ) -> None:
        self.envs = [create_env() for _ in range(num_envs)]
        check_distinct(self.envs, "create_env returned")
        first = self.envs[0]
        super().__init__(
            num_envs, options, first.obs_space(), first.action_space(), first.display_name or type(first).__name__
        )
        for i, env in enumerate(self.envs[1:], start=1):
            for method, expected in (("obs_space", self.obs_space), ("action_space", self.action_space)):
                given = getattr(env, method)()
                if given is not expected and given != expected:
                    raise ValueError(
                        f"{self.where(i)}: {method}() returned {given!r:.300}, and that of {self.where(0)} "
                        f"{expected!r:.300}; environments of one pool must have the same spaces"
                    )
        self._seeds = EpisodeSeeds(num_envs, options) if options.group_size > 1 else None
        self._can_begin = any(type(env).begin is not Environment.begin for env in self.envs)
        self._observations: list[Observation | None] = [None] * num_envs  # each slot's last one
        self._frames: list[Frame | None] = [None] * num_envs  # read from it
        self._elapsed = np.zeros(num_envs, np.int64)  # steps of its episode
        # Environment -> the last observation of the episode that ended with its last step, if it is to be kept.
        self._finals: dict[int, tuple[Observation, Frame, int]] = {}
        self._pending: list[dict[str, Any] | None] = [None] * num_envs  # parameters that wait for the next episode
        # Attributes that `Environment.configure` itself has set, with their values before: no `state()` knows of them.
        self._originals: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        self._numbers = [EntityNumbers() for _ in range(num_envs)]  # of the running episodes
        self._under_way: set[int] = set()  # environments whose own code is running

    def under_way(self) -> str:
        return ", ".join(map(self.where, sorted(self._under_way.copy()))) or super().under_way()

    def seed(self, seed: int) -> None:
        if self._seeds:
            self._seeds.seed(seed)
            return
        for i, env in enumerate(self.envs):
            self._call(i, env.reseed, seed, self.options.first_env + i)

    def configure(self, ids: EnvIds, env_info: Sequence[Mapping[str, Any]]) -> None:
        for i, info in zip(ids.tolist(), env_info, strict=True):
            env = self.envs[i]
            if type(env).configure is Environment.configure:
                try:
                    env.check_parameters(info)
                except ValueError as error:
                    raise ValueError(f"{self.where(i)}: {error}") from None
        for i, info in zip(ids.tolist(), env_info, strict=True):
            self._pending[i] = {**(self._pending[i] or {}), **info}

    def reset(self, ids: EnvIds, worker: int = 0) -> None:
        for i in ids.tolist():
            self._begin(i)
        for i in ids.tolist():
            self._finals.pop(i, None)
            self._show(i, self._first(i))

    def step(self, actions: Mapping[str, VecAction], ids: EnvIds, lo: int, hi: int, worker: int = 0) -> None:
        mine = ids[lo:hi].tolist()
        frames: Any = [self._frames[i] for i in mine]
        assert None not in frames, "an environment has not been reset"
        chosen = world_actions(actions, lo, frames, self.action_space)
        self._elapsed[ids[lo:hi]] += 1
        if self._can_begin:
            for i, own in zip(mine, chosen, strict=True):
                self._call(i, self.envs[i].begin, own)
        # First all act, then all are read: taking turns with the environments' code is measurably slower.
        shown = []
        for i, own in zip(mine, chosen, strict=True):
            obs: Observation = self._call(i, self.envs[i].act, own)
            if self._finals:
                self._finals.pop(i, None)
            if type(obs) is not Observation or obs.done is not False:
                obs = self._end_of_episode(i, obs)
            shown.append(obs)
        for i, obs in zip(mine, shown, strict=True):
            if obs.done and self.options.autoreset:
                kept = {name: getattr(obs, name) for name in _OF_A_STEP}
                obs = replace(self._first(i), done=True, **kept)
            self._show(i, obs)

    def collect(self, ids: EnvIds, run: Run) -> VecObs:
        numbers = ids.tolist()
        frames: Any = [self._frames[i] for i in numbers]
        observations: Any = [self._observations[i] for i in numbers]
        assert None not in frames, "an environment has not been reset"
        obs = batch_frames(frames, observations, ids.copy(), self._elapsed[ids], self._reader)
        if self._seeds:
            obs.arrays[INSTANCE] = self._seeds.instances[ids]
        kept = [i for i in numbers if i in self._finals] if self._finals else ()
        if kept:
            last, read, elapsed = zip(*(self._finals[i] for i in kept), strict=True)
            obs.final = batch_frames(read, last, np.array(kept, np.int64), np.array(elapsed, np.int64), self._reader)
        return obs

    def render(self, i: int) -> NDArray[np.uint8]:
        if type(self.envs[i]).render is Environment.render:
            return super().render(i)
        image: NDArray[np.uint8] = self._call(i, self.envs[i].render)
        return image

    def world_ids(self, i: int) -> Sequence[EntityID | None] | None:
        frame = self._frames[i]
        return None if frame is None else frame.ids

    def draw(self, i: int) -> Mapping[str, Any] | None:
        draw = self.envs[i].draw
        if inspect.signature(draw).parameters:
            raise ValueError(f"{self.where(i)} has a method draw{inspect.signature(draw)}; {DRAW_IS_A_HOOK}")
        hints: Mapping[str, Any] | None = self._call(i, draw)
        return hints

    @property
    def can_save(self) -> bool:
        return all(env.can_save() for env in self.envs)

    def state(self) -> dict[str, Any]:
        return {
            # Copies: an environment may hand out its own arrays, and write its next step into them.
            "environments": [copy.deepcopy(self._call(i, env.state)) for i, env in enumerate(self.envs)],
            "random": [env.rng.bit_generator.state for env in self.envs],
            "observations": [None if obs is None else observation_to_state(obs) for obs in self._observations],
            "elapsed_step": self._elapsed.copy(),
            "pending": copy.deepcopy(self._pending),
            "configured": [
                {name: copy.deepcopy(getattr(env, name)) for name in originals}
                for env, originals in zip(self.envs, self._originals, strict=True)
            ],
            "numbers": [list(numbers) for numbers in self._numbers],  # in the order of the numbers
            **({"seeds": self._seeds.state()} if self._seeds else {}),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        of_envs = ("environments", "random", "observations", "configured", "numbers", "elapsed_step", "pending")
        check_state(state, len(self), *of_envs, *(["seeds"] if self._seeds else []))
        if self._seeds:
            self._seeds.load_state(state["seeds"])
        for i, env in enumerate(self.envs):
            self._configure(i, {**self._originals[i], **state["configured"][i]}, by_default=True)
            self._call(i, env.load_state, copy.deepcopy(state["environments"][i]))
            env.rng.bit_generator.state = state["random"][i]
            self._numbers[i] = EntityNumbers({id_: k for k, id_ in enumerate(state["numbers"][i])})
        self._elapsed[:] = state["elapsed_step"]
        self._finals.clear()
        for i, saved in enumerate(state["observations"]):
            self._observations[i] = self._frames[i] = None
            if saved is not None:
                self._show(i, observation_from_state(saved))
        self._pending = copy.deepcopy(list(state["pending"]))

    def close(self) -> None:
        errors = []
        for i, env in enumerate(self.envs):
            try:
                self._call(i, env.close)
            except Exception as error:  # the others are to be closed all the same
                errors.append(error)
        if errors:
            raise errors[0]

    def _show(self, i: int, obs: Observation) -> None:
        """Read the observation that environment `i` shows from now on."""
        is_last = not self.options.autoreset and bool(obs.done)
        self._frames[i] = self._reader.read(obs, i, is_last=is_last, numbers=self._numbers[i])
        self._observations[i] = obs

    def _begin(self, i: int) -> None:
        """Set the parameters that wait for the next episode, and begin it; `_first` finishes that."""
        waiting, self._pending[i] = self._pending[i], None
        if waiting is not None:
            self._configure(i, waiting, by_default=type(self.envs[i]).configure is Environment.configure)
        if self._seeds:
            self._call(i, self.envs[i].reseed, *self._seeds.begin(i))
        if self._can_begin:
            self._call(i, self.envs[i].begin, None)

    def _first(self, i: int) -> Observation:
        """Return the first observation of the next episode."""
        first: Observation = self._call(i, self.envs[i].reset)
        if (type(first) is not Observation or first.done is not False) and self._is_done(i, first, "reset"):
            raise ValueError(
                f"{self.where(i)}: reset() returned one with done=True; expected an Observation that is not done"
            )
        self._elapsed[i] = 0
        self._numbers[i] = EntityNumbers()
        return first

    def _configure(self, i: int, parameters: Mapping[str, Any], *, by_default: bool) -> None:
        env = self.envs[i]
        if by_default:
            if not parameters:
                return
            for name in parameters:
                self._originals[i].setdefault(name, copy.deepcopy(getattr(env, name)))
        self._call(i, env.configure, parameters)

    def _is_done(self, i: int, obs: Any, method: str) -> bool:
        """Check the fields that are read before the frame is, and return `obs.done`."""
        if not isinstance(obs, Observation):
            expected = "an Observation" if method == "act" else "an Observation that is not done"
            raise ValueError(f"{self.where(i)}: {method}() returned {obs!r:.200}; expected {expected}")
        done: Any = obs.done
        if done is not False and done is not True and not isinstance(done, np.bool_):
            raise ValueError(f"{self.where(i)}: done is {done!r:.200}; it must be a bool")
        if done:
            info = obs.end_of_episode_info
            if info is not None and not isinstance(info, Mapping):
                raise ValueError(
                    f"{self.where(i)}: end_of_episode_info is {info!r:.200}; it must be a mapping from name to value, or None"
                )
        return bool(done)

    def _end_of_episode(self, i: int, last: Any) -> Observation:
        """Check the result of `act`; if it ends an episode, copy it and begin the next one, unless there is no autoreset."""
        if not self._is_done(i, last, "act"):
            going: Observation = last
            return going
        # Copies, since the next episode may be written into the arrays and dictionaries of this one.
        own = {name: plain_copy(getattr(last, name)) for name in _OF_A_STEP}
        ended: Observation = replace(last, **own, targets=plain_copy(last.targets))
        if not self.options.autoreset:
            return ended
        kept = self.options.final_observations
        if kept == "all" or (kept == "truncated" and ended.truncated):
            frame = self._reader.read(ended, i, is_last=True, numbers=self._numbers[i]).copy()
            self._finals[i] = ended, frame, int(self._elapsed[i])
        self._begin(i)
        return ended

    def _call(self, i: int, method: Callable[..., Any], *args: Any) -> Any:
        """Run an environment's own code; what it raises keeps its type and says which environment it was."""
        self._under_way.add(i)
        try:
            return method(*args)
        except StopIteration as error:  # would silently end a loop of whoever called the pool
            raise RuntimeError(f"{self.where(i)} raised {error!r} in {method.__name__}()") from error
        except (Exception, SystemExit) as error:
            error.add_note(f"raised by {self.where(i)} in {method.__name__}()")
            raise
        finally:
            self._under_way.discard(i)
