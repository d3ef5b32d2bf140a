"""A policy: what a program loads, and asks for actions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .heads import Heads, Rng
from .network import Memories, Network
from .reading import Array, Frame, PolicyError, Spaces, is_global, read_file, selects

State = tuple[Memories, Memories]  # what the policy, and its separate value network, remember of an episode


@dataclass(frozen=True)
class Decision:
    """What a policy decides in a frame.

    Attributes:
        actions: those on offer, in the world's own ids and in the form of docs/protocol.md.
        log_probs: action -> (A,) of each actor, in the order of the observation.
        value: expected discounted return.
        state: for the next step of the episode.
    """

    actions: dict[str, Any]
    log_probs: dict[str, Array]
    value: float
    state: State
    _heads: Heads

    @cached_property
    def probabilities(self) -> dict[str, Any]:
        """Action -> a row for each actor, in the form of docs/protocol.md; of numbers there are none.

        A row has the choices, or the actees and perhaps nobody. Of a set it has the probability of each actee given those decided
        before; of an ordered one a row for each pick, of the actees and of stopping.
        """
        told: dict[str, Any] = {}
        for name, made in self._heads.made.items():
            rows, action, ids = made.probabilities(self._heads.chosen[name]), self._heads.net.actions[name], self._heads.frame.ids
            if rows is not None and selects(action):
                actees = [ids[k] for k in self._heads.frame.offers[name].actees]
                told[name] = {"actees": actees, "rows": rows}
            elif rows is not None:
                told[name] = rows[0] if is_global(action) else rows
        return told


    @property
    def choices(self) -> dict[str, Array]:
        """Action -> what its actors chose, in the form of batches: (A, 1) or (A, n), of sets (A * N, 1)."""
        found, offers = dict(self._heads.chosen), self._heads.frame.offers
        for name, chosen in found.items():
            if self._heads.net.actions[name]["type"] == "SelectEntityActionSpace":
                chosen = np.append(offers[name].actees, -1)[chosen]
            found[name] = chosen if "low" in self._heads.net.actions[name] else chosen.reshape(-1, 1)
        return found


class Policy:
    """A policy, and its value function; `load` makes it from a file.

    Attributes:
        spaces: what the worlds show and ask for.
    """

    def __init__(self, tensors: dict[str, Array], config: Any, spaces: Spaces) -> None:
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith("value_net/")}
        of_value = {name.removeprefix("value_net/"): tensors[name] for name in tensors.keys() - own.keys()}
        self.spaces, self.net = spaces, Network(own, config["net"], spaces)
        self.value_net = Network(of_value, config["value_net"], spaces) if of_value else None
        self.rng = np.random.default_rng()

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Policy:
        """Read a checkpoint, or a file that `python -m enn_ppo.export` wrote. Nothing in it is executed.

        Raises:
            PolicyError: it is damaged, of another format, or its weights do not fit its settings.
        """
        metadata, tensors = read_file(path)
        try:
            return Policy(tensors, metadata["config"], Spaces(metadata["spaces"]))
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, MemoryError) as error:
            raise PolicyError(f"{path} is no policy that this runtime can play: {error!r:.300}") from error

    def act(self, observation: Any, state: Any = None, greedy: bool = False, rng: Rng = None) -> Any:
        """Choose actions for one observation, or for each of a list of them.

        Args:
            observation: a mapping as in docs/protocol.md, or an object with the same attributes, such as
                `entity_gym.Observation`.
            state: `Decision.state` of the step before in the same episode, or a list; None where an episode begins.
            greedy: take the likeliest choices, and of numbers the middle, instead of drawing.
            rng: draws; None: a generator of the policy, which the system has seeded.

        Returns:
            A `Decision`, or a list of them.

        Raises:
            PolicyError: an observation does not fit the spaces.
        """
        if isinstance(observation, list | tuple):
            states = [None] * len(observation) if state is None else state
            return [self.act(*each, greedy, rng) for each in zip(observation, states, strict=True)]
        with np.errstate(all="ignore"):  # numbers that np.where leaves out
            return self._act(self.spaces.read(observation), state or ({}, {}), None if greedy else rng or self.rng)

    def _act(self, frame: Frame, state: State, rng: Rng) -> Decision:
        before, of_value = state
        rows = self.net.rows(frame)
        tokens, after = self.net(rows, frame, before)
        heads = Heads(self.net, frame, rows, tokens)
        for name in self.spaces.order:
            if name in frame.offers:
                heads.decide(name, rng)
        value = self.net.value(tokens)
        if self.value_net is not None:
            tokens, of_value = self.value_net(self.value_net.rows(frame), frame, of_value)
            value = self.value_net.value(tokens)
        log_probs = {name: heads.made[name].log_prob(heads.chosen[name]) for name in frame.offers}
        actions = {name: _for_world(self.spaces.actions[name], frame, name, heads.chosen[name]) for name in frame.offers}
        return Decision(actions, log_probs, value, (after, of_value), heads)


def _for_world(action: dict[str, Any], frame: Frame, name: str, chosen: Array) -> dict[str, Any]:
    """The choices of an action's actors in the form of docs/protocol.md."""
    offer = frame.offers[name]
    actors, actees = [frame.ids[k] for k in offer.actors], [frame.ids[k] for k in offer.actees]
    if is_global(action):
        return {"choice": int(chosen[0]), "label": action["choices"][chosen[0]]}
    if action["type"] == "SelectEntitiesActionSpace":
        sets = [sorted(np.flatnonzero(places), key=places.__getitem__) for places in chosen]
        return {"actors": actors, "actees": [[actees[k] for k in found] for found in sets]}
    if action["type"] == "SelectEntityActionSpace":  # who selects nobody is not listed
        pairs = [(actor, actees[k]) for actor, k in zip(actors, chosen, strict=True) if k < len(actees)]
        return {"actors": [actor for actor, _ in pairs], "actees": [actee for _, actee in pairs]}
    return {"actors": actors, "values" if "low" in action else "choices": chosen.tolist()}
