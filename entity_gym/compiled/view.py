"""A compiled environment as a plain `Environment`: the same rules for playing, checking and debugging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import Action, ActionMask, ActionSpace
from entity_gym.actions.reading import EntityID
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecAction
from entity_gym.compiled.actions import ActionPlan
from entity_gym.compiled.declare import Kind, safe_name
from entity_gym.compiled.description import Description
from entity_gym.compiled.random import random_state
from entity_gym.compiled.record import Record
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.environment import Environment, Observation
from entity_gym.errors import nearest
from entity_gym.pools.slots import SlotOptions
from entity_gym.spaces import ObsSpace

ONLY = np.zeros(1, dtype=np.int64)  # the one slot


class CompiledView(Environment):
    """One environment of a `CompiledEnvironment`. Ids are `(type, i)`, with i the position in the present list.

    Args:
        env: the description.
        compile: run the compiled form.

    `record` is the environment's `s`; it may be written to between steps, for example by tests.
    """

    def __init__(self, env: Description, *, compile: bool = False) -> None:
        self.env = env
        self.display_name = type(env).__name__  # how a pool's messages name it
        self._slots = CompiledSlots(env, 1, SlotOptions(autoreset=False, compile=compile), numbered=False)
        self._layout = self._slots.layout
        self._seeded_by: np.random.Generator | None = None
        self._in_episode = False

    @property
    def record(self) -> Record:
        """The record `s`; what is written to it is shown by `observe`."""
        return Record(self._slots.slots["record"][0])

    def obs_space(self) -> ObsSpace:  # noqa: D102 - see Environment
        return self._slots.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:  # noqa: D102
        return self._slots.action_space

    def reset(self) -> Observation:  # noqa: D102
        if (
            self.rng is not self._seeded_by
        ):  # a new generator; its numbers are drawn by the environment's own from then on
            self._seeded_by = self.rng
            sequence = self.rng.bit_generator.seed_seq
            assert isinstance(sequence, np.random.SeedSequence)
            self.record["rng"] = random_state(sequence)
        self._slots.reset(ONLY)
        self._in_episode = True
        return self.show()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Take one step.

        Raises:
            ValueError: for actions that were not offered, or outside an episode: before `reset`, or after `done`.
        """
        if not self._in_episode:
            raise ValueError(f"{self._layout.name}.act() was called outside an episode; call reset() first")
        for name in actions:
            if name not in self._slots.action_space:
                raise ValueError(
                    f"{self._layout.name} has no action {name!r}; {nearest(name, self._slots.action_space)}"
                )
        batch = {plan.name: self._values(plan, actions.get(plan.name)) for plan in self._layout.actions}
        self._slots.check(batch, ONLY)
        self._slots.step(batch, ONLY, 0, 1)
        self._in_episode = not self._slots.slots["done"][0]
        return self.show()

    def observe(self) -> Observation:
        """What there is to see now, for example after writing to `record`."""
        self._slots.observe(ONLY)
        self._in_episode = True
        return self.show()

    def render(self) -> NDArray[np.uint8]:  # noqa: D102
        return self._slots.render(0)

    def draw(self) -> Mapping[str, Any] | None:  # noqa: D102
        return self._slots.draw(0)

    def configure(self, info: Mapping[str, Any]) -> None:  # noqa: D102
        self._slots.configure(ONLY, [info])

    def state(self) -> dict[str, Any]:  # noqa: D102
        return self._slots.state()

    def load_state(self, state: Mapping[str, Any]) -> None:  # noqa: D102
        self._slots.load_state(state)
        self._seeded_by = self.rng  # the record has its own random state
        self._in_episode = not self._slots.slots["done"][0]

    def show(self) -> Observation:
        """The observation that was shown last."""
        slots, layout = self._slots.slots, self._layout
        counts = self._counts()
        done = bool(slots["done"][0])
        features, ids, visible = {}, self._all_ids(), {}
        for attribute, name in layout.entity_names.items():
            count = counts[attribute]
            shown = slots.get(f"features_{attribute}")
            features[name] = np.zeros((count, 0), np.float32) if shown is None else shown[0, :count].copy()
        for slot in layout.of_kind(Kind.VISIBLE):
            visible[layout.entity_names[slot.owner]] = slots[slot.name][0, : counts[slot.owner]].copy()
        names: list[EntityID] = [id_ for type_ids in ids.values() for id_ in type_ids]
        offered = {plan.name: self._offer(plan, names) for plan in layout.actions if counts[plan.attribute]}
        info = _reported({name: slots[f"info_{safe_name(name)}"][0].item() for name in layout.info})
        metrics = _reported({name: slots[f"metric_{safe_name(name)}"][0].item() for name in layout.metrics})
        return Observation(
            features=features,
            ids=ids,
            actions=offered,
            reward=float(slots["reward"][0]),
            done=done,
            truncated=bool(slots["truncated"][0]),
            global_features=slots["global_features"][0].copy() if layout.global_features else (),
            visible=visible,
            end_of_episode_info=info if done and layout.info else None,
            metrics=metrics,
            player_rewards=slots["player_rewards"][0].tolist() if layout.player_rewards else (),
            targets={name: [float(slots["record"][0][field])] for name, field in layout.targets.items()},
        )

    def _counts(self) -> dict[str, int]:
        return {name: int(self._slots.slots["counts"][0][name]) for name in self._layout.counts.names or ()}

    def _all_ids(self) -> dict[str, list[EntityID]]:
        """Type -> ids of the entities that are shown: those that `observe` has written, else the positions."""
        counts, ids = self._counts(), dict[str, list[EntityID]]()
        for attribute, name in self._layout.entity_names.items():
            count = counts[attribute]
            written = self._slots.slots.get(f"ids_{attribute}")
            numbers = range(count) if written is None else written[0, :count].tolist()
            ids[name] = [(name, number) for number in numbers]
        return ids

    def _offer(self, plan: ActionPlan, names: Sequence[EntityID]) -> ActionMask:
        slots, counts = self._slots.slots, self._counts()
        listed = []
        for each in plan.lists:
            places = slots[each.slot.name][0, : counts[each.count]].tolist()
            listed.append([names[place] for place in places if place < len(names)])  # but for the global entity
        actors, actees = listed[0], listed[1] if len(listed) > 1 else []
        mask = None
        if plan.mask is not None:
            columns = plan.num_columns(len(actees))
            mask = slots[plan.mask.name][0, : counts[plan.attribute], :columns].copy()
        return plan.offer(actors, actees, mask)

    def _values(self, plan: ActionPlan, action: Action | None) -> VecAction:
        """The action as the engine takes it: one row for each actor, in the order they were offered."""
        num_actors = self._counts()[plan.attribute]
        offsets = np.array([0, num_actors], dtype=np.int64)
        if action is not None and not isinstance(action, plan.action):
            raise ValueError(
                f"{self._layout.name}: action {plan.name!r} is a {type(action).__name__}; it must be a "
                f"{plan.action.__name__}"
            )
        # an actor that is left out has -1 or NaN, which are refused unless nobody may be selected
        values = np.full((num_actors, plan.width or 1), -1 if plan.dtype.kind == "i" else np.nan, dtype=plan.dtype)
        if action is not None:
            where = f"{self._layout.name}: action {plan.name!r}"
            plan.read(where, action, values, lambda actors: self._places(plan, actors), self._entity_indices())
        buffer: VecAction = RaggedBuffer(values, offsets)
        return buffer

    def _entity_indices(self) -> dict[EntityID, int]:
        """Id -> entity index, of everything that is shown."""
        names = [id_ for ids in self._all_ids().values() for id_ in ids]
        return {id_: index for index, id_ in enumerate(names)}

    def _places(self, plan: ActionPlan, actors: Sequence[EntityID]) -> list[int]:
        """The places of these actors among those that were offered."""
        offered = self._slots.slots[plan.actors.slot.name][0, : self._counts()[plan.attribute]].tolist()
        place_of = {index: place for place, index in enumerate(offered)}
        indices = self._entity_indices()
        for actor in actors:
            if indices.get(actor) not in place_of:
                raise ValueError(
                    f"{self._layout.name}: action {plan.name!r} names the actor {actor!r}, which was not offered"
                )
        return [place_of[indices[actor]] for actor in actors]


def _reported(values: Mapping[str, float]) -> dict[str, float]:
    """Without NaN, which stands for nothing to report."""
    return {name: value for name, value in values.items() if value == value}
