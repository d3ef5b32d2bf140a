"""One environment of `EnvSlots` as an `Environment`, for playing, checking and debugging worlds that are stepped many at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import Action, ActionMask, ActionSpace
from entity_gym.actions.reading import EntityID
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import PLAYER_REWARD, TARGET, VecActionMask, VecObs
from entity_gym.environment import Environment, Observation
from entity_gym.errors import nearest
from entity_gym.pools.slots import EnvSlots, run_serially
from entity_gym.spaces import GLOBAL_ENTITY, ObsSpace

ONLY = np.zeros(1, dtype=np.int64)  # the one environment


class SlotEnvironment(Environment):
    """One environment that slots step.

    The id of an entity is `(type, number)`: its number in `VecObs.ids`, or, in types that have none there, its position among
    the entities of its type.

    Args:
        slots: of one environment, without autoreset; they belong to this object from now on.
    """

    def __init__(self, slots: EnvSlots) -> None:
        self.slots = slots
        self.display_name = slots._reader.environment  # how the messages of pools name it
        self._in_episode = False
        self._shown: VecObs  # from the first reset on

    def obs_space(self) -> ObsSpace:
        return self.slots.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self.slots.action_space

    def reseed(self, seed: int, number: int) -> None:
        super().reseed(seed, number)
        self.slots._reader.first_env = number
        self.slots.seed(seed)

    def reset(self) -> Observation:
        self.slots.reset(ONLY)
        self._in_episode = True
        return self.show()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Take one step.

        Raises:
            ValueError: for actions that were not offered, or outside an episode: before `reset`, or after `done`.
        """
        if not self._in_episode:
            raise ValueError(f"{self.display_name}.act() was called outside an episode; call reset() first")
        spaces = self.slots.action_space
        for name in actions:
            if name not in spaces:
                raise ValueError(f"{self.display_name} has no action {name!r}; {nearest(name, spaces)}")
        obs = self._shown
        ids = [id_ for of_type in _ids_of(obs).values() for id_ in of_type]
        batch = {}
        for name, offered in obs.action_masks.items():
            where, offsets = f"{self.display_name}: action {name!r}", spaces[name].value_offsets(offered)
            batch[name] = RaggedBuffer(spaces[name].from_world(where, actions.get(name), offered, ids), offsets)
        self.slots.check(batch, ONLY)
        self.slots.step(batch, ONLY, 0, 1)
        shown = self.show()
        self._in_episode = not shown.done
        return shown

    def render(self) -> NDArray[np.uint8]:
        return self.slots.render(0)

    def draw(self) -> Mapping[str, Any] | None:
        return self.slots.draw(0)

    def configure(self, info: Mapping[str, Any]) -> None:
        self.slots.configure(ONLY, [info])

    def can_save(self) -> bool:  # type: ignore[override]  # depends on the slots, and not on the class
        return self.slots.can_save

    def state(self) -> dict[str, Any]:
        return self.slots.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.slots.load_state(state)
        self._shown = self.slots.collect(ONLY, run_serially)
        self._in_episode = not self._shown.done[0]

    def close(self) -> None:
        self.slots.close()

    def show(self) -> Observation:
        """Return the observation that was shown last."""
        obs = self._shown = self.slots.collect(ONLY, run_serially)
        ids = _ids_of(obs)
        names = [id_ for of_type in ids.values() for id_ in of_type]
        spaces, arrays = self.slots.action_space, cast("Mapping[str, Any]", obs.arrays)
        return Observation(
            features={name: obs.features[name].values for name in ids},
            ids=ids,
            actions={
                name: _mask(spaces[name], offered, names)
                for name, offered in obs.action_masks.items()
                if len(offered.actors.values)
            },
            reward=float(obs.reward[0]),
            done=bool(obs.done[0]),
            truncated=bool(obs.truncated[0]),
            global_features=obs.features[GLOBAL_ENTITY].values[0] if GLOBAL_ENTITY in obs.features else (),
            visible={name: flags.values[:, 0] for name, flags in obs.visible.items()},
            end_of_episode_info=obs.end_of_episode_info.get(0),
            metrics={name: metric.sum for name, metric in obs.metrics.items()},
            player_rewards=arrays[PLAYER_REWARD].values.tolist() if PLAYER_REWARD in arrays else (),
            targets={name: arrays[f"{TARGET}{name}"][0] for name in self.slots.obs_space.targets},
        )


def _ids_of(obs: VecObs) -> dict[str, list[EntityID]]:
    """Type -> the ids of the only frame's entities."""
    ids: dict[str, list[EntityID]] = {}
    for name, rows in obs.features.items():
        if name != GLOBAL_ENTITY:
            numbers = obs.ids[name].values[:, 0].tolist() if name in obs.ids else range(len(rows.values))
            ids[name] = [(name, number) for number in numbers]
    return ids


def _mask(space: ActionSpace, offered: VecActionMask, ids: list[EntityID]) -> ActionMask:
    """Return how an `Observation` offers the action."""
    columns = len(offered.actees.values) if offered.actees is not None else len(space.labels)
    num_actors, after = len(offered.actors.values), None
    if offered.mask_after is not None and len(offered.mask_after.values):
        after = offered.mask_after.values.reshape(num_actors, -1, columns)
    parts = {
        "actor_ids": None if space.is_global else [ids[index] for index in offered.actors.values[:, 0].tolist()],
        "actee_ids": None if offered.actees is None else [ids[index] for index in offered.actees.values[:, 0].tolist()],
        "mask": None if offered.mask is None else offered.mask.values.reshape(num_actors, columns),
        "mask_after": after,
    }
    known = {field.name for field in fields(space.mask_type)}
    mask: ActionMask = space.mask_type(**{name: part for name, part in parts.items() if name in known})
    return mask
