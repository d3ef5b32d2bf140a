"""Gymnasium environments side by side: each writes what it shows into rows of arrays that all share.

Shapes: N environments, n of them, F features, C choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace, ContinuousActionSpace
from entity_gym.actions.reading import Rows
from entity_gym.batch.frame import FrameReader
from entity_gym.batch.vec_obs import VecAction
from entity_gym.bridges.gym_actions import Masks
from entity_gym.bridges.gym_spaces import AGENT
from entity_gym.bridges.gym_world import ACTION_MASK, GymWorld
from entity_gym.pools.batch_env import (
    BatchActors,
    BatchEnvironment,
    BatchObservation,
    BatchRandom,
    BatchSlots,
    BatchStep,
)
from entity_gym.pools.slots import EnvIds, FinalObservations
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace


class GymBatch(BatchEnvironment):
    """N environments with the same spaces, one after the other.

    Args:
        worlds: the environments.

    Raises:
        ValueError: if their spaces differ.
    """

    def __init__(self, worlds: Sequence[GymWorld]) -> None:
        super().__init__(len(worlds))
        self.worlds = list(worlds)
        first = self.worlds[0]
        self._observations, self._actions = first.observations, first.actions
        for i, world in enumerate(self.worlds):
            _check_same(first, world, i)
        empty = self._observations.empty()
        counts = self._observations.counts
        self._fixed = {  # type -> (N, how many there are, F)
            name: np.zeros((len(worlds), *rows.shape), np.float32)
            for name, rows in empty.items()
            if counts[name] is not None
        }
        # Of each environment, type -> (how many there are, F): of those above, and own arrays where the number varies.
        self._rows = [{**empty, **{name: all_[i] for name, all_ in self._fixed.items()}} for i in range(len(worlds))]
        self._masks: dict[
            str, NDArray[np.bool_]
        ] = {}  # action -> (N, C); those that nothing was ever closed in are left out

    def obs_space(self) -> ObsSpace:
        return self._observations.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self._actions.action_space

    def configure(self, ids: EnvIds, env_info: Sequence[Mapping[str, Any]]) -> None:
        for i, info in zip(ids.tolist(), env_info, strict=True):
            self.worlds[i].configure(info)

    def reset(self, ids: EnvIds, rng: BatchRandom) -> None:
        for i in ids.tolist():
            try:
                self._close_choices(i, self.worlds[i].reset(self._rows[i]))
            except Exception as error:
                error.add_note(f"raised by {self.worlds[i].where} in reset()")
                raise

    def step(self, ids: EnvIds, actions: Mapping[str, VecAction], rng: BatchRandom) -> BatchStep:
        chosen = {
            name: actions[name].values if isinstance(space, ContinuousActionSpace) else actions[name].values[:, 0]
            for name, space in self._actions.action_space.items()
        }
        rewards, infos = [], []
        terminated, truncated = np.zeros(len(ids), np.bool_), np.zeros(len(ids), np.bool_)
        numbers = ids.tolist()
        for k, (i, action) in enumerate(zip(numbers, self._actions.decode(chosen, len(ids)), strict=True)):
            try:
                reward, ended, cut, info, masks = self.worlds[i].step(action, self._rows[i])
            except Exception as error:
                error.add_note(f"raised by {self.worlds[i].where} in step()")
                raise
            if masks or self._masks:
                self._close_choices(i, masks)
            rewards.append(reward)
            infos.append(info)
            if ended or cut:
                terminated[k], truncated[k] = ended, cut
                infos[k] = {name: value for name, value in info.items() if name != ACTION_MASK}
        return BatchStep(np.array(rewards), terminated, truncated, infos)

    def observe(self, ids: EnvIds) -> BatchObservation:
        features: dict[str, Any] = {name: rows[ids] for name, rows in self._fixed.items()}
        numbers = ids.tolist()
        for name, count in self._observations.counts.items():
            if count is None:
                parts = [self._rows[i][name] for i in numbers]
                values = np.concatenate([np.zeros((0, self._observations.widths[name]), np.float32), *parts])
                features[name] = Rows(values, np.array([len(part) for part in parts], np.int64))
        everywhere = features.pop(GLOBAL_ENTITY, None)
        masks = dict(self._masks)
        actions = {
            name: BatchActors(actors=AGENT, mask=masks[name][ids][:, None] if name in masks else None)
            for name in self._actions.action_space
        }
        return BatchObservation(
            features=features, actions=actions, global_features=None if everywhere is None else everywhere[:, 0]
        )

    def render(self, i: int) -> NDArray[np.uint8]:
        return self.worlds[i].render()

    def close(self) -> None:
        errors = []
        for world in self.worlds:
            try:
                world.close()
            except Exception as error:  # the others are to be closed all the same
                errors.append(error)
        if errors:
            raise errors[0]

    def _close_choices(self, i: int, masks: Masks) -> None:
        """Environment `i` has these masks now, and everything else open."""
        for name in masks.keys() - self._masks.keys():
            every = np.ones((self.num_envs, len(masks[name])), np.bool_)
            self._masks.setdefault(name, every)  # at once: other threads step other environments
        for name, every in list(self._masks.items()):
            every[i] = masks.get(name, True)


class GymSlots(BatchSlots):
    """Slots of Gymnasium environments; environment i is seeded with `seed + first_env + i`.

    Args:
        worlds: the environments; they belong to these slots from now on.
        first_env, autoreset, final_observations: see `EnvSlots`.
    """

    one_by_one = True

    def __init__(
        self,
        worlds: Sequence[GymWorld],
        *,
        first_env: int = 0,
        autoreset: bool = True,
        final_observations: FinalObservations = "truncated",
    ) -> None:
        self._worlds = list(worlds)
        super().__init__(
            lambda num_envs: GymBatch(self._worlds),
            len(self._worlds),
            first_env=first_env,
            autoreset=autoreset,
            final_observations=final_observations,
        )
        first = self._worlds[0]
        self._reader = FrameReader(self.env.obs_space(), self.env.action_space(), first.name, first_env)
        for i, world in enumerate(self._worlds):
            world.where = self.where(i)
            world.warns = i == 0  # for all

    def seed(self, seed: int) -> None:
        super().seed(seed)
        for i, world in enumerate(self._worlds):
            world.reseed(seed + self.first_env + i)

    def configure(self, ids: EnvIds, env_info: Sequence[Mapping[str, Any]]) -> None:
        for i in ids.tolist():
            self._worlds[i].configure({})  # says so where it takes none
        super().configure(ids, env_info)

    def clone(self) -> GymSlots:
        raise ValueError(f"a copy needs environments that can be saved; {self._reader.environment} cannot be")

    def _call(self, ids: EnvIds, method: Any, *args: Any) -> Any:
        return method(*args)  # which names the environment itself


def _check_same(first: GymWorld, world: GymWorld, i: int) -> None:
    for what, one, other in (
        ("observation", first.observations.obs_space, world.observations.obs_space),
        ("observation", first.observations.counts, world.observations.counts),
        ("action", first.actions.action_space, world.actions.action_space),
        ("action", first.actions.firsts, world.actions.firsts),
    ):
        if one != other:
            raise ValueError(
                f"the environments of a pool must have the same spaces: as entities, the {what} space of environment 0 "
                f"({first.name}) is {one}, and that of environment {i} ({world.name}) is {other}"
            )
