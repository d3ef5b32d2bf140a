"""Trained policies in NumPy alone: no torch, no other module of this project, and the same numbers.

    policy = Policy.load("snake.safetensors")       # a checkpoint, or a file that `python -m enn_ppo.export` wrote
    decision = policy.act(observation)              # actions in the world's own ids, log-probs, value, probabilities
    decision = policy.act(observation, decision.state, greedy=True)    # the next step of the same episode

The modules describe the network completely, for one frame: `reading` what comes in, `network` its tokens, `heads` the actions.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from .heads import Heads, Rng
from .network import Memories, Network
from .reading import FORMAT, Array, PolicyError, Spaces, read_file

__all__ = ["FORMAT", "Decision", "Policy", "PolicyError"]
__version__ = "0.1.0"


class Decision(NamedTuple):
    """Decisions of a policy in a frame."""

    actions: dict[str, Any]  # those on offer, in the world's own ids and in the form of docs/protocol.md
    log_probs: dict[str, Array]  # action -> (A,) of each actor, in the order of the observation
    value: float  # expected discounted return
    probabilities: dict[str, Any]  # action -> a row for each actor, in the form of docs/protocol.md
    state: tuple[Memories, Memories]  # what the policy and a separate value network remember, for the next step


class Policy:
    """A policy, and its value function."""

    def __init__(self, tensors: dict[str, Array], config: Any, spaces: Spaces) -> None:
        of_value = {name.removeprefix("value_net/"): tensors[name] for name in tensors if name.startswith("value_net/")}
        self.spaces, self.net, self.rng = spaces, Network(tensors, config["net"], spaces), np.random.default_rng()
        self.value_net = Network(of_value, config["value_net"], spaces) if of_value else self.net

    @staticmethod
    @np.errstate(all="ignore")
    def load(path: str | os.PathLike[str]) -> Policy:
        """Read a checkpoint, or a file that `python -m enn_ppo.export` wrote; nothing in it is executed.

        Raises:
            PolicyError: it is damaged, of another format, or its weights do not fit its settings.
        """
        metadata, tensors = read_file(path)
        try:
            policy = Policy(tensors, metadata["config"], Spaces(metadata["spaces"]))
            for net in (policy.net, policy.value_net):  # a frame that asks for all tensors
                Heads(net, policy.spaces.read(policy.spaces.example(net.reference)), {}).decide(None)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, MemoryError) as error:
            raise PolicyError(f"{path} is no policy that can be played: {error or type(error).__name__}") from error
        return policy

    @np.errstate(all="ignore")  # numbers that np.where leaves out, and too large ones, which are found at the end
    def act(self, observation: Any, state: Any = None, greedy: bool = False, rng: Rng = None) -> Any:
        """Choose actions for an observation, or for each of a list of them; returns a `Decision`, or a list.

        Args:
            observation: a mapping as in docs/protocol.md, or an object with its attributes, as `entity_gym.Observation`.
            state: `Decision.state` of the step before in the same episode, or a list of them; None: an episode begins.
            greedy: take the likeliest choices, and of numbers the middle, instead of drawing.
            rng: draws; None: a generator that the system has seeded.

        Raises:
            PolicyError: an observation does not fit the spaces.
        """
        if isinstance(observation, list | tuple):
            states = [None] * len(observation) if state is None else state
            return [self.act(*each, greedy, rng) for each in zip(observation, states, strict=True)]
        frame, (before, of_value) = self.spaces.read(observation), state or ({}, {})
        heads = Heads(self.net, frame, before)
        judge = heads if self.value_net is self.net else Heads(self.value_net, frame, of_value)
        log_probs = heads.decide(None if greedy else rng or self.rng)
        if np.isnan([judge.value, *(each.sum() for each in log_probs.values())]).any():
            raise PolicyError("outputs are NaN: every choice of an actor is closed, or weights are too large")
        results = {name: heads.result(name) for name in frame.offers}
        actions, p = ({name: each[k] for name, each in results.items() if each[k] is not None} for k in (0, 1))
        return Decision(actions, log_probs, judge.value, p, (heads.after, judge.after))
