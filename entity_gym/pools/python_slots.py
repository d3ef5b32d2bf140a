"""Slots for environments that are Python objects."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import Action
from entity_gym.actions.choices import ActionsOfEach, check_actions
from entity_gym.batch.batching import batch_frames, batch_masks
from entity_gym.batch.frame import Frame, FrameReader
from entity_gym.batch.saving import observation_from_state, observation_to_state
from entity_gym.batch.vec_obs import VecAction, VecActionMask, VecObs
from entity_gym.environment import Environment, Observation
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


class _Final(NamedTuple):
    """The last observation of an episode."""

    obs: Observation
    frame: Frame
    length: int  # steps of that episode


class _Shown(NamedTuple):
    """What an environment shows now."""

    obs: Observation
    frame: Frame
    final: _Final | None = None  # where the step that led here ended an episode, and it is kept


class PythonSlots(EnvSlots):
    """Environments made by `create_env`.

    Args:
        create_env: makes one environment; called `num_envs` times.
        num_envs: at least 1.
        first_env: the number of environment 0 in seeds and messages, where this is a part of a larger pool.
        autoreset: see `EnvSlots`.
        final_observations: see `EnvSlots`.
    """

    one_by_one = True

    def __init__(
        self,
        create_env: Callable[[], Environment],
        num_envs: int,
        *,
        first_env: int = 0,
        autoreset: bool = True,
        final_observations: FinalObservations = "truncated",
    ) -> None:
        check_num_envs(num_envs)
        check_final_observations(final_observations)
        self.envs = [_checked(create_env()) for _ in range(num_envs)]
        self.first_env = first_env
        self.autoreset = autoreset
        self.final_observations = final_observations
        self._create_env = create_env
        first = self.envs[0]
        name = getattr(first, "_called", type(first).__name__)
        self._reader = FrameReader(first.obs_space(), first.action_space(), name, first_env)
        self._shown: list[_Shown | None] = [None] * num_envs
        self._elapsed: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self._pending: list[dict[str, Any] | None] = [None] * num_envs  # parameters that wait for the next episode
        self._collected: tuple[list[_Shown], dict[str, VecActionMask]] = ([], {})

    def __len__(self) -> int:
        return len(self.envs)

    def seed(self, seed: int) -> None:
        check_seed(seed)
        for i, env in enumerate(self.envs):
            self._call(i, env.reseed, seed, self.first_env + i)

    def configure(self, ids: EnvIds, env_info: Sequence[Mapping[str, Any]]) -> None:
        for i, info in zip(ids.tolist(), env_info, strict=True):
            env = self.envs[i]
            if type(env).configure is Environment.configure:
                raise ValueError(
                    f"{self.where(i)}: {type(env).__name__} does not implement configure(), so it takes no env_info"
                )
            self._pending[i] = {**(self._pending[i] or {}), **info}

    def reset(self, ids: EnvIds, worker: int = 0) -> None:
        for i in ids.tolist():
            self._show(i, self._reset(i))
            self._elapsed[i] = 0

    def check(self, actions: Mapping[str, VecAction], ids: EnvIds) -> None:
        shown = self._shown_by(ids)
        collected, masks = self._collected
        if len(shown) != len(collected) or not all(map(operator.is_, shown, collected)):
            masks = batch_masks([each.frame for each in shown], self._reader)
        check_actions(actions, masks, self._reader.action_space, lambda k: self._reader.where(int(ids[k])))

    def step(self, actions: Mapping[str, VecAction], ids: EnvIds, lo: int, hi: int, worker: int = 0) -> None:
        self._elapsed[ids[lo:hi]] += 1
        mine = ids[lo:hi].tolist()
        told = ActionsOfEach(actions, lo, hi, self._reader.action_space)
        frames = [shown.frame for shown in self._shown_by(ids[lo:hi])]
        # First all act, then all are read: taking turns with the environments' code is measurably slower.
        ends = []
        actions_of_each = [told.of(k, frame.actions, frame.ids) for k, frame in enumerate(frames, start=lo)]
        for i, obs in zip(mine, self._act(mine, actions_of_each), strict=True):
            if not isinstance(obs, Observation):
                raise ValueError(f"{self.where(i)}: act() returned {obs!r:.200}; expected an Observation")
            ends.append(self._end_of_episode(i, obs) if obs.done else (obs, None))
        for i, (obs, final) in zip(mine, ends, strict=True):
            self._show(i, obs, final)

    def _act(self, ids: list[int], actions: list[dict[str, Action]]) -> Iterable[Observation]:
        """Step the environments `ids`. Worlds elsewhere, which go on at the same time, override it: hand out, then gather."""
        return (self._call(i, self.envs[i].act, told) for i, told in zip(ids, actions, strict=True))

    def collect(self, ids: EnvIds, run: Run) -> VecObs:
        shown = self._shown_by(ids)
        frames = [each.frame for each in shown]
        obs = batch_frames(frames, [each.obs for each in shown], ids.copy(), self._elapsed[ids], self._reader)
        self._collected = shown, obs.action_masks
        finals = [(i, each.final) for i, each in zip(ids.tolist(), shown, strict=True) if each.final is not None]
        if finals:
            obs.final = batch_frames(
                [final.frame for _, final in finals],
                [final.obs for _, final in finals],
                np.array([i for i, _ in finals], dtype=np.int64),
                np.array([final.length for _, final in finals], dtype=np.int64),
                self._reader,
            )
        return obs

    def render(self, i: int) -> NDArray[np.uint8]:
        image: NDArray[np.uint8] = self._call(i, self.envs[i].render)
        return image

    @property
    def can_save(self) -> bool:
        return all(env.can_save() for env in self.envs)

    def state(self) -> dict[str, Any]:
        shown = [None if each is None else observation_to_state(each.obs) for each in self._shown]
        return {
            # Copies: an environment may hand out its own arrays, and write its next step into them.
            "environments": [copy.deepcopy(self._call(i, env.state)) for i, env in enumerate(self.envs)],
            "random": [env.rng.bit_generator.state for env in self.envs],
            "observations": shown,
            "elapsed_step": self._elapsed.copy(),
            "pending": copy.deepcopy(self._pending),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        check_state(state, "environments", "random", "observations")
        if len(state["environments"]) != len(self.envs):
            raise ValueError(
                f"the saved state has {len(state['environments'])} environments; this pool has {len(self.envs)}"
            )
        for i, env in enumerate(self.envs):
            self._call(i, env.load_state, copy.deepcopy(state["environments"][i]))
            env.rng.bit_generator.state = state["random"][i]
        for i, saved in enumerate(state["observations"]):
            if saved is None:
                self._shown[i] = None
            else:
                self._show(i, observation_from_state(saved))
        # States of before steps were counted have none; the count then begins here.
        self._elapsed[:] = state.get("elapsed_step", 0)
        self._pending = copy.deepcopy(list(state.get("pending", [None] * len(self.envs))))

    def clone(self) -> PythonSlots:
        if not self.can_save:
            lacking = next(env for env in self.envs if not env.can_save())
            raise ValueError(
                f"a copy needs environments that can be saved; {type(lacking).__name__} does not implement both "
                "state() and load_state()"
            )
        twin = self._another()
        twin.load_state(self.state())
        for i, (mine, its) in enumerate(zip(self._shown, twin._shown, strict=True)):
            if mine is not None and its is not None:
                twin._shown[i] = its._replace(final=mine.final)
        return twin

    def _another(self) -> PythonSlots:
        """New slots, made as these were."""
        return PythonSlots(
            self._create_env,
            len(self),
            first_env=self.first_env,
            autoreset=self.autoreset,
            final_observations=self.final_observations,
        )

    def close(self) -> None:
        errors = []
        for i, env in enumerate(self.envs):
            try:
                self._call(i, env.close)
            except Exception as error:  # the others are to be closed all the same
                errors.append(error)
        if errors:
            raise errors[0]

    def _shown_by(self, ids: EnvIds) -> list[_Shown]:
        shown = [self._shown[i] for i in ids.tolist()]
        assert None not in shown, "an environment has not been reset"
        return shown

    def _show(self, i: int, obs: Observation, final: _Final | None = None) -> None:
        is_last = obs.done and not self.autoreset
        self._shown[i] = _Shown(obs, self._read_last(i, obs) if is_last else self._reader.read(obs, i), final)

    def _read_last(self, i: int, last: Observation) -> Frame:
        """The frame of the last observation of an episode: nobody acts on it."""
        return self._reader.read(last, i, is_last=True)

    def _reset(self, i: int) -> Observation:
        waiting, self._pending[i] = self._pending[i], None
        if waiting is not None:
            self._call(i, self.envs[i].configure, waiting)
        first = self._call(i, self.envs[i].reset)
        if not isinstance(first, Observation) or first.done:
            given = "one with done=True" if isinstance(first, Observation) else f"{first!r:.200}"
            raise ValueError(f"{self.where(i)}: reset() returned {given}; expected an Observation that is not done")
        return first

    def _end_of_episode(self, i: int, last: Observation) -> tuple[Observation, _Final | None]:
        # Copies, since `reset` may write the next episode into the arrays and dictionaries of this one.
        info = last.end_of_episode_info
        last = replace(
            last,
            metrics=dict(last.metrics),
            end_of_episode_info=None if info is None else dict(info),
            player_rewards=tuple(last.player_rewards),
        )
        if not self.autoreset:
            return last, None
        final = None
        if self.final_observations == "all" or (self.final_observations == "truncated" and last.truncated):
            final = _Final(last, self._read_last(i, last).copy(), int(self._elapsed[i]))
        self._elapsed[i] = 0
        first = replace(
            self._reset(i),
            reward=last.reward,
            done=True,
            truncated=last.truncated,
            end_of_episode_info=last.end_of_episode_info,
            metrics=last.metrics,
            player_rewards=last.player_rewards,
        )
        return first, final

    def _call(self, i: int, method: Callable[..., Any], *args: Any) -> Any:
        """Run an environment's own code; what it raises keeps its type and says which environment it was."""
        try:
            return method(*args)
        except (Exception, SystemExit) as error:
            error.add_note(f"raised by {self.where(i)} in {method.__name__}()")
            raise


def _checked(env: Any) -> Environment:
    if isinstance(env, Environment):
        return env
    hint = ""
    if hasattr(env, "as_environment"):
        hint = ", which is compiled: give it to ThreadedVecEnv, or its as_environment here"
    raise ValueError(f"create_env returned {type(env).__name__}{hint}; it must return an entity_gym.Environment")
