"""A compiled environment as a plain `Environment`: the same rules for playing, checking and debugging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import (
    Action,
    ActionMask,
    ActionSpace,
    CategoricalAction,
    CategoricalActionMask,
    ContinuousAction,
    ContinuousActionMask,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    SelectEntityAction,
    SelectEntityActionMask,
)
from entity_gym.actions.reading import EntityID
from entity_gym.batch.ragged import RaggedBufferF32, RaggedBufferI64
from entity_gym.batch.vec_obs import VecAction
from entity_gym.compiled.declare import safe_name
from entity_gym.compiled.layout import ActionPlan
from entity_gym.compiled.record import Record
from entity_gym.environment import Environment, Observation
from entity_gym.errors import nearest
from entity_gym.spaces import ObsSpace

if TYPE_CHECKING:
    from entity_gym.compiled.environment import CompiledEnvironment

ONLY = np.zeros(1, dtype=np.int64)  # the one slot


class CompiledView(Environment):
    """One environment of a `CompiledEnvironment`. Ids are `(type, i)`, with i the position in the present list.

    Args:
        env: the description.
        compile: run the compiled form.

    `record` is the environment's `s`; it may be written to between steps, for example by tests.
    """

    def __init__(self, env: CompiledEnvironment, *, compile: bool = False) -> None:
        from entity_gym.compiled.slots import CompiledSlots

        self.env = env
        self.display_name = type(env).__name__  # how a pool's messages name it
        self._slots = CompiledSlots(env, 1, autoreset=False, compile=compile, check=False, numbered=False)
        self._layout = self._slots.layout
        self._seeded_by: np.random.Generator | None = None
        self._in_episode = False

    @property
    def record(self) -> Record:
        """The record `s`; what is written to it is shown by `observe`."""
        return Record(self._slots.slots["S"][0])

    def obs_space(self) -> ObsSpace:  # noqa: D102 - see Environment
        return self._slots.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:  # noqa: D102
        return self._slots.action_space

    def reset(self) -> Observation:  # noqa: D102
        if (
            self.rng is not self._seeded_by
        ):  # a new generator; its numbers are drawn by the environment's own from then on
            from entity_gym.compiled.random import random_state

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

    def configure(self, info: Mapping[str, Any]) -> None:  # noqa: D102
        self._slots.configure(ONLY, [info])

    def state(self) -> dict[str, Any]:  # noqa: D102
        return self._slots.state()

    def load_state(self, state: Mapping[str, Any]) -> None:  # noqa: D102
        self._slots.load_state(state)
        self._seeded_by = self.rng  # the record has its own random state
        self._in_episode = not self._slots.slots["done"][0]

    def show(self) -> Observation:
        """What was shown last."""
        slots, layout = self._slots.slots, self._layout
        counts = {name: int(slots["N"][0][name]) for name in layout.counts.names or ()}
        done = bool(slots["done"][0])
        features, ids, visible = {}, {}, {}
        for attribute, entity in layout.entities.items():
            name, count = layout.entity_names[attribute], counts[attribute]
            features[name] = (
                slots[f"f_{attribute}"][0, :count].copy() if entity.features else np.zeros((count, 0), np.float32)
            )
            ids[name] = [(name, i) for i in range(count)]
            if entity.hideable:
                visible[name] = slots[f"v_{attribute}"][0, :count].copy()
        names: list[EntityID] = [id_ for type_ids in ids.values() for id_ in type_ids]
        offered = {}
        for plan in layout.actions:
            if counts[plan.attribute] and not done:
                offered[plan.name] = self._offer(plan, counts, names)
        info = _reported({name: slots[f"i_{safe_name(name)}"][0].item() for name in layout.info})
        metrics = _reported({name: slots[f"q_{safe_name(name)}"][0].item() for name in layout.metrics})
        return Observation(
            features=features,
            ids=ids,
            actions=offered,
            reward=float(slots["reward"][0]),
            done=done,
            truncated=bool(slots["truncated"][0]),
            global_features=slots["g"][0].copy() if layout.global_features else (),
            visible=visible,
            end_of_episode_info=info if done and layout.info else None,
            metrics=metrics,
            player_rewards=slots["pr"][0].tolist() if layout.player_rewards else (),
        )

    def _offer(self, plan: ActionPlan, counts: Mapping[str, int], names: Sequence[EntityID]) -> ActionMask:
        slots, name = self._slots.slots, plan.attribute
        num_actors = counts[name]
        if plan.is_global:
            return GlobalCategoricalActionMask(mask=slots[f"m_{name}"][0].copy() if plan.masked else None)
        actors = [names[index] for index in slots[f"w_{name}"][0, :num_actors].tolist()]
        if plan.bounds:
            return ContinuousActionMask(actor_ids=actors)
        if plan.num_choices:
            mask = slots[f"m_{name}"][0, :num_actors].copy() if plan.masked else None
            return CategoricalActionMask(actor_ids=actors, mask=mask)
        num_actees = counts[f"{name}_actees"]
        actees = [names[index] for index in slots[f"t_{name}"][0, :num_actees].tolist()]
        pairs = slots[f"m_{name}"][0, :num_actors, :num_actees].copy() if plan.has_mask else None
        return SelectEntityActionMask(actor_ids=actors, actee_ids=actees, mask=pairs)

    def _values(self, plan: ActionPlan, action: Action | None) -> VecAction:
        """The action as the engine takes it: one row for each actor, in the order they were offered."""
        slots, layout = self._slots.slots, self._layout
        counts = slots["N"][0]
        num_actors = int(counts[plan.attribute])
        offsets = np.array([0, num_actors], dtype=np.int64)
        expected = _action_type(plan)
        if action is not None and not isinstance(action, expected):
            raise ValueError(
                f"{layout.name}: action {plan.name!r} is a {type(action).__name__}; it must be a {expected.__name__}"
            )
        if plan.bounds:  # an actor that is left out has NaN, which is refused
            numbers = np.full((num_actors, len(plan.bounds)), np.nan, dtype=np.float32)
            if isinstance(action, ContinuousAction):
                given = self._numbers(plan, action)
                numbers[self._places(plan, action.actors, self._entity_indices())] = given
            return RaggedBufferF32.from_offsets(numbers, offsets)
        values = np.full((num_actors, 1), -1, dtype=np.int64)
        if isinstance(action, GlobalCategoricalAction):
            values[:] = action.action
        elif isinstance(action, CategoricalAction | SelectEntityAction):
            indices = self._entity_indices()
            chosen = action.actions if isinstance(action, CategoricalAction) else action.actees
            if len(action.actors) != len(chosen):
                raise ValueError(
                    f"{layout.name}: action {plan.name!r} has {len(action.actors)} actors and {len(chosen)} choices"
                )
            places = self._places(plan, action.actors, indices)
            for place, choice in zip(places, chosen, strict=True):
                if choice is None and isinstance(action, SelectEntityAction):  # nobody
                    continue
                if isinstance(action, SelectEntityAction) and choice not in indices:
                    raise ValueError(f"{layout.name}: action {plan.name!r} names {choice!r}, which no entity has")
                values[place] = indices[choice] if isinstance(action, SelectEntityAction) else int(choice)
        return RaggedBufferI64.from_offsets(values, offsets)

    def _entity_indices(self) -> dict[EntityID, int]:
        """Id -> entity index, of everything that is shown."""
        indices: dict[EntityID, int] = {}
        for attribute, type_ in self._layout.entity_names.items():
            for i in range(int(self._slots.slots["N"][0][attribute])):
                indices[(type_, i)] = len(indices)
        return indices

    def _places(self, plan: ActionPlan, actors: Sequence[EntityID], indices: Mapping[EntityID, int]) -> list[int]:
        """Which of the actors that were offered these are."""
        slots, name = self._slots.slots, plan.attribute
        offered = slots[f"w_{name}"][0, : int(slots["N"][0][name])].tolist()
        place_of = {index: place for place, index in enumerate(offered)}
        for actor in actors:
            if indices.get(actor) not in place_of:
                raise ValueError(
                    f"{self._layout.name}: action {plan.name!r} names the actor {actor!r}, which was not offered"
                )
        return [place_of[indices[actor]] for actor in actors]

    def _numbers(self, plan: ActionPlan, action: ContinuousAction) -> NDArray[np.float32]:
        """(A, n) what the actors of `action` picked."""
        given, expected = np.asarray(action.values), (len(action.actors), len(plan.bounds))
        if given.shape != expected or given.dtype.kind not in "fiu":
            raise ValueError(
                f"{self._layout.name}: action {plan.name!r} has values of shape {given.shape} and type {given.dtype}; "
                f"expected numbers of shape {expected}, one row for each of its actors"
            )
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
            return given.astype(np.float32)


def _action_type(plan: ActionPlan) -> type[Action]:
    if plan.is_global:
        return GlobalCategoricalAction
    if plan.bounds:
        return ContinuousAction
    return CategoricalAction if plan.num_choices else SelectEntityAction


def _reported(values: Mapping[str, float]) -> dict[str, float]:
    """Without NaN, which stands for nothing to report."""
    return {name: value for name, value in values.items() if value == value}
