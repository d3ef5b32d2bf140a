"""Worlds with several players: one frame of the world becomes a frame for each player, and their actions one again.

A world has players if its class (or whatever makes it) has three functions, as `MultiSnake` does:

    num_players(values) -> int
    players(values, entity_type, rows) -> (E,) whose each entity is, 0 to num_players - 1
    seen_by(values, player, entity_type, rows) -> (E, F) how the entities look to `player`, (E,) a player for each row

A fourth one is for worlds in which players see different entities, such as `Skirmish`:

    visible_to(values, player, entity_type, rows) -> (E,) bool, which entities the policy of `player`, (E,), may see

Entities that are hidden in the world's own frame stay hidden from everybody. `values` are the world's parameters, `rows` the
(E, F) features of entities of one type, and `__global__` is a type too where there are global features or a global action. The
world says what each player earned with a step in `Observation.player_rewards`
(compiled worlds: `player_rewards`, fields of the state); without that, all players share the reward.

    mapping = players_of(source)                            # None: the world has no players
    seating = Seating(obs, mapping)
    mine, theirs = seating.part(0), seating.part(1)
    seen = seating.show(mine)                               # as player 0 sees it: its own actors, its own reward
    actions = seating.join([(mine, a), (theirs, b)])        # the actions of all players, as the pool takes them

`entity_gym.pools.seats` does both for a learner that plays one player in each environment against `Opponents`:
`SeatedVecEnv(pool, mapping, opponents)` is a pool like any other.

Shapes: N frames, P players, E entities of a type in all frames, A actors of an action in all frames.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.choices import check_counts
from entity_gym.batch.columns import keep_items
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import PLAYER_REWARD, VecAction, VecActionMask, VecObs
from entity_gym.pools.source import EnvFactory, as_source


class PlayerMapping:
    """The players of a world with known parameters: the owner of each entity, and the world as each player sees it.

    Args:
        world: has the functions `num_players`, `players`, `seen_by` and perhaps `visible_to`, whose results are checked here.
        values: its parameters.
        per_pair: its actions with a value for each pair of an actor and an actee.

    Attributes:
        num_players: P, at least 1.
        hides: whether entities are hidden from some of the players.
        fixed: parameters on which the mapping depends, so `env_info` may not change them.
    """

    def __init__(self, world: Any, values: Mapping[str, Any], per_pair: Collection[str] = ()) -> None:
        self._world, self._values, self.per_pair = world, values, per_pair
        self._name = getattr(world, "__name__", repr(world))
        self.num_players = int(world.num_players(values))
        self.hides = callable(getattr(world, "visible_to", None))
        self.fixed: Sequence[str] = tuple(getattr(world, "player_parameters", values))
        if self.num_players < 1:
            raise ValueError(f"{self._name}.num_players() returned {self.num_players}; it must be at least 1")

    def players(self, entity_type: str, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return (E,) the player that owns each entity of a type, from the (E, F) features."""
        owners = np.asarray(self._world.players(self._values, entity_type, rows))
        if not owners.size and owners.shape == (len(rows),):
            return owners.astype(np.int64)
        self._check("players", entity_type, owners, (len(rows),), "iu", "one whole number for each")
        if not (owners.min() >= 0 and owners.max() < self.num_players):
            wrong = owners[(owners < 0) | (owners >= self.num_players)][0]
            raise ValueError(
                f"{self._name}.players() says that an entity of type {entity_type!r} is player {wrong}'s; "
                f"there are players 0 to {self.num_players - 1}"
            )
        return owners.astype(np.int64, copy=False)

    def seen_by(self, player: NDArray[np.int64], entity_type: str, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (E, F) the features of entities of a type, row e as `player[e]` sees it. `rows` stay as they are."""
        seen = np.ascontiguousarray(self._world.seen_by(self._values, player, entity_type, rows), np.float32)
        self._check("seen_by", entity_type, seen, rows.shape, "f", "what it was given")
        return seen

    def visible_to(self, player: NDArray[np.int64], entity_type: str, rows: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return (E,) whether the policy of `player[e]` sees the entity of row e. `rows` are as `seen_by` takes them."""
        visible = np.asarray(self._world.visible_to(self._values, player, entity_type, rows))
        self._check("visible_to", entity_type, visible, (len(rows),), "b", "one bool for each")
        return visible

    def _check(
        self, function: str, entity_type: str, array: NDArray[Any], shape: tuple[int, ...], kinds: str, expected: str
    ) -> None:
        if array.shape != shape or array.dtype.kind not in kinds:
            raise ValueError(
                f"{self._name}.{function}() returned {array.dtype} of shape {array.shape} for {shape[0]} entities of type "
                f"{entity_type!r}; it must return {expected}, of shape {shape}"
            )


class Opponents(Protocol):
    """Policies that play the other players than the learner's."""

    def act(self, obs: VecObs, env_id: NDArray[np.int64]) -> dict[str, VecAction]:
        """Choose actions.

        Args:
            obs: frames as these players see them, each with one player's actors and reward: one of each environment, or
                with more than two players one of each player that is not the learner's. A frame whose `elapsed_step` is 0
                begins an episode.
            env_id: the environments that the frames belong to, as `obs.env_id`.

        Returns:
            Actions as `VecEnv.act` takes them: one sequence for each frame.
        """

    def faced(self, env_id: NDArray[np.int64]) -> Sequence[str]:
        """Return a name of the learner's opponent in each of these environments, for `end_of_episode_info`."""

    def state(self) -> dict[str, Any]:
        """Return plain values and arrays from which `load_state` continues exactly, random numbers included."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""


# ---- finding the mapping


def players_of(env: EnvFactory) -> PlayerMapping | None:
    """Return the mapping of an environment with its parameters, or None if it has none.

    Raises:
        ValueError: the world says that it has less than one player.
    """
    source = as_source(env)
    world = source.world
    if not all(callable(getattr(world, name, None)) for name in ("num_players", "players", "seen_by")):
        return None
    actions = source.spaces()[1]
    return PlayerMapping(world, source.values, [name for name, space in actions.items() if space.per_pair])


# ---- taking frames apart, and putting actions together


@dataclass(frozen=True)
class Part:
    """One player of each frame, and its actors."""

    seats: NDArray[np.int64]  # (N,) the player
    masks: Mapping[str, VecActionMask]  # action -> its actors, and what is open to them
    values: Mapping[str, NDArray[np.bool_]]  # action -> true for the values of its actors, among those of all

    def where(self, frame: int) -> str:
        """Return the name of a frame in messages."""
        return f"frame {frame}, player {self.seats[frame]}"


class Seating:
    """N frames with the owner of each actor, found once for the views of all players and for joining their actions.

    Args:
        obs: N frames.
        mapping: of their world.
    """

    def __init__(self, obs: VecObs, mapping: PlayerMapping) -> None:
        self.obs, self.mapping = obs, mapping
        self._counts = {name: buffer.size1() for name, buffer in obs.features.items()}
        self._frames = {name: mask.actors.sequences for name, mask in obs.action_masks.items()}
        self._owners = {name: self._owners_of(name, mask) for name, mask in obs.action_masks.items()}
        self.rewards = _rewards(obs, mapping.num_players)  # (N, P)

    def part(self, player: int | NDArray[np.integer[Any]]) -> Part:
        """Find the actors of a player: one player, or (N,) one for each frame.

        Raises:
            ValueError: there is no such player.
        """
        seats = np.asarray(player, np.int64)
        if seats.ndim == 0:
            seats = np.full(len(self.obs), seats)
        if seats.size and not (seats.min() >= 0 and seats.max() < self.mapping.num_players):
            raise ValueError(f"player is {player!r:.200}; there are players 0 to {self.mapping.num_players - 1}")
        masks, values = {}, {}
        for name, mask in self.obs.action_masks.items():
            rows = self._owners[name] == seats[self._frames[name]]
            masks[name] = _own(mask, rows)
            values[name] = rows[mask.pair_actors] if name in self.mapping.per_pair else rows
        return Part(seats, masks, values)

    def show(self, part: Part) -> VecObs:
        """Return the frames as the players of `part` see them: all entities, but only their own actors and reward.

        What a player's policy may not see is there too, and not `visible`. Entities keep their indices inside the frame. With no
        actors of its own a frame offers no actees.
        """
        obs = self.obs
        final = None
        if obs.final is not None:
            row_of = np.zeros(int(obs.env_id.max()) + 1, np.int64)
            row_of[obs.env_id] = np.arange(len(obs))
            last = Seating(obs.final, self.mapping)
            final = last.show(last.part(part.seats[row_of[obs.final.env_id]]))
        return replace(
            obs,
            features={name: self._seen(part.seats, name, buffer) for name, buffer in obs.features.items()},
            action_masks=dict(part.masks),
            reward=self.rewards[np.arange(len(obs)), part.seats],
            final=final,
            arrays={name: array for name, array in obs.arrays.items() if name != PLAYER_REWARD},
            visible=self._visible(part.seats) if self.mapping.hides else obs.visible,
        )

    def join(self, parts: Sequence[tuple[Part, Mapping[str, VecAction]]]) -> dict[str, VecAction]:
        """Join the actions of all players, as the pool takes them.

        Args:
            parts: of every player, with its actions for what `show` returned.

        Returns:
            Action -> N sequences, aligned with the actors of `obs`, or with its pairs.

        Raises:
            ValueError: an action is missing or unknown, or has not one value for each of the player's actors.
        """
        for part, actions in parts:
            check_counts(actions, self._offsets(part.masks), part.where)
        joined: dict[str, VecAction] = {}
        for name, offsets in self._offsets(self.obs.action_masks).items():
            first = parts[0][1][name]
            values = np.empty((int(offsets[-1]), first.values.shape[1]), first.values.dtype)
            times = np.zeros(len(values), np.int64)
            for part, actions in parts:
                values[part.values[name]] = actions[name].values
                times += part.values[name]
            assert (times == 1).all(), f"one part must act for each player in action {name!r}"
            joined[name] = first.unchecked(values, offsets)
        return joined

    def _offsets(self, masks: Mapping[str, VecActionMask]) -> dict[str, NDArray[np.int64]]:
        """Return action -> (N + 1,) where the frames begin among its values."""
        pairs = self.mapping.per_pair
        return {name: mask.pair_offsets if name in pairs else mask.actors.offsets for name, mask in masks.items()}

    def _seen(self, seats: NDArray[np.int64], name: str, buffer: RaggedBuffer[np.float32]) -> RaggedBuffer[np.float32]:
        if not buffer.values.size:
            return buffer
        seen = self.mapping.seen_by(np.repeat(seats, self._counts[name]), name, buffer.values)
        return RaggedBuffer.unchecked(seen, buffer.offsets)

    def _visible(self, seats: NDArray[np.int64]) -> dict[str, RaggedBuffer[np.bool_]]:
        """Return what the world hides from everybody and what it hides from these players; types without any are left out."""
        visible = {}
        for name, buffer in self.obs.features.items():
            flags = self.mapping.visible_to(np.repeat(seats, self._counts[name]), name, buffer.values)[:, None]
            if name in self.obs.visible:
                flags = flags & self.obs.visible[name].values
            if not flags.all():
                visible[name] = RaggedBuffer.unchecked(flags, buffer.offsets)
        return visible

    def _owners_of(self, action: str, mask: VecActionMask) -> NDArray[np.int64]:
        """Return (A,) the player of each actor: that of its entity, found by the index through the types of the frame."""
        frames, index = self._frames[action], mask.actors.values[:, 0].copy()
        owners = np.full(len(index), -1, np.int64)
        for name, buffer in self.obs.features.items():
            counts = self._counts[name][frames]
            here = (index >= 0) & (index < counts)
            if here.any():
                rows = buffer.values[buffer.offsets[frames[here]] + index[here]]
                owners[here] = self.mapping.players(name, rows)
                if here.all():
                    break
            index -= counts
        assert len(owners) == 0 or owners.min() >= 0, f"an actor of {action!r} is no entity of its frame"
        return owners


def _rewards(obs: VecObs, num_players: int) -> NDArray[np.float32]:
    """Return (N, P) what each player earned with the step that led here: the frame's reward where the world does not tell.

    Raises:
        ValueError: the world tells the rewards of some of the players only. Rows beyond the last player are not read.
    """
    shared = np.repeat(obs.reward[:, None], num_players, axis=1)
    told = obs.arrays.get(PLAYER_REWARD)
    if told is None:
        return shared
    assert isinstance(told, RaggedBuffer)
    lengths = told.size1()
    wrong = (lengths != 0) & (lengths < num_players)
    if wrong.any():
        i = int(wrong.argmax())
        raise ValueError(
            f"environment {obs.env_id[i]}: player_rewards has {lengths[i]} numbers; the world has {num_players} players: give "
            "one for each, or none where all share the reward"
        )
    tells = lengths > 0
    shared[tells] = told.values[told.offsets[:-1][tells, None] + np.arange(num_players)]
    return shared


def _own(mask: VecActionMask, rows: NDArray[np.bool_]) -> VecActionMask:
    """Return the mask of the actors `rows`, (A,), alone."""
    actors = keep_items(mask.actors, rows)
    if mask.actees is None:
        open_ = None if mask.mask is None else RaggedBuffer.unchecked(mask.mask.values[rows], actors.offsets)
        after, num_actors = mask.mask_after, mask.actors.size1()
        if after is not None:
            num_actees = after.size1() // np.maximum(num_actors, 1)
            after = keep_items(after, np.repeat(rows, np.repeat(num_actees, num_actors)))
        return VecActionMask(actors, mask=open_, mask_after=after)
    # with no actors there are no actees
    actees = keep_items(mask.actees, np.repeat(actors.size1() > 0, mask.actees.size1()))
    pairs = None if mask.mask is None else keep_items(mask.mask, rows[mask.pair_actors])
    return VecActionMask(actors, actees, pairs)
