"""A trained policy that plays in a program: `load_agent("outputs/my_run")` instead of the trainer's agent.

    agent = load_agent("outputs/my_run")        # or a checkpoint, or a policy file that `enn_ppo.export` wrote
    move = agent.act(Obs(Move, score=game.score, entities=[*game.foods], actors=[game.head]))
    decision = agent.decide(obs)                # the same, with probabilities and the value of the position

The trainer is not imported. Entity types, features, actions and choices are matched by name: entity types and features that the
policy does not know are ignored, and those that it needs and lacks are an error. A decision takes milliseconds, the first one
longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from enn_ppo.checkpoints import Checkpoint, load_checkpoint
from enn_ppo.eval.policy import Acted, fit
from entity_gym.actions import Action, ActionSpace
from entity_gym.agents.agent import Agent, Obs
from entity_gym.batch.batching import batch_frames
from entity_gym.batch.frame import EntityNumbers, Frame, FrameReader
from entity_gym.batch.saving import spaces_from_dict
from entity_gym.batch.vec_obs import VecObs
from entity_gym.environment import Observation
from entity_gym.errors import check_whole, nearest
from entity_gym.spaces import Entity, ObsSpace

A = TypeVar("A")


@dataclass(frozen=True)
class Decision(Generic[A]):
    """A decision of a policy: actions, probabilities and value."""

    actions: list[A]  # one per actor
    labels: tuple[str, ...]  # names of the C choices; empty for a `Selection`, whose choices are `Obs.choices`
    #: (A, C) of each actor's choices; 0 for masked choices. For a `Selection` in the form of docs/protocol.md.
    probabilities: NDArray[np.float32]
    value: float  # estimate of the discounted return, in the unit of training rewards


@dataclass(frozen=True)
class PolicyDecision:
    """A decision of a policy in one observation: actions, probabilities and value."""

    actions: dict[str, Action]  # argument of `Environment.act`
    #: Discrete action -> probabilities of the choices of each actor: lists, as in docs/protocol.md.
    probabilities: dict[str, Any]
    value: float  # estimate of the discounted return


class _ObservationReader(FrameReader):
    def where(self, env_id: int) -> str:
        return self.environment


class TrainedPolicy:
    """A checkpoint's policy for observations; see `load_policy`. `enn_ppo.serve` and `load_agent` decide through it, too.

    Args:
        checkpoint: of the policy.
        generator: samples, on the device of the policy.
        spaces: of the observations, with the action spaces; None: those of training.
        name: of the observations, in messages.
        like: another policy of the same checkpoint, with which it shares what is remembered; None: it remembers for itself.
        how: further arguments of `enn_ppo.eval.policy.fit`.

    Attributes:
        obs_space: of the observations.
        action_space: action name -> its space.
        news: differences from the spaces of training, in one line; empty if there are none.

    Raises:
        ValueError: the policy does not fit the spaces; the message names the first difference.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        generator: torch.Generator,
        spaces: tuple[ObsSpace, Mapping[str, ActionSpace]] | None = None,
        name: str = "the observation",
        like: TrainedPolicy | None = None,
        **how: Any,
    ) -> None:
        self.obs_space, self.action_space = spaces or spaces_from_dict(checkpoint.spaces)
        self._policy = fit(checkpoint, self.obs_space, self.action_space, name, generator, **how)
        # targets are of training alone
        self._reader = _ObservationReader(replace(self.obs_space, targets={}), self.action_space, name)
        self.news = self._policy.fitted.news
        self._numbers: dict[int, EntityNumbers] = {}  # environment -> those of the ids in its episode
        if like is not None:
            self._policy, self._numbers = replace(self._policy, states=like._policy.states), like._numbers

    def act(self, observation: Observation) -> PolicyDecision:
        """Choose actions for one observation; see `act_all`. Call `reset` before the first one of each further episode."""
        return self.act_all([observation])[0]

    def act_all(self, observations: Sequence[Observation]) -> list[PolicyDecision]:
        """Choose actions for at least one observation, for all of them in one forward pass.

        A policy that remembers takes the k-th observation for the next one of environment k.

        Raises:
            ValueError: an observation does not fit the spaces of training.
        """
        read = [self.read(observation, k) for k, observation in enumerate(observations)]
        acted = self.decide([obs for obs, _ in read])
        return [
            PolicyDecision(acted.actions(k, frame), acted.probabilities(k, frame), float(acted.values[k]))
            for k, (_, frame) in enumerate(read)
        ]

    def reset(self, env: int | None = None) -> None:
        """Forget what the policy remembers of an environment, since a new episode begins; None: of all environments."""
        self._policy.states.forget(None if env is None else np.array([env]))
        for each in [*self._numbers] if env is None else [env]:
            self._numbers.pop(each, None)

    @property
    def remembers(self) -> bool:
        """Whether decisions depend on those before in the same episode."""
        return self._policy.fitted.net.remembers

    def read(self, observation: Observation, env: int = 0, *, begins: bool = False) -> tuple[VecObs, Frame]:
        """Check an observation; returns it as a batch of one frame, for `decide`, and with indices in place of ids.

        Args:
            observation: of one environment.
            env: its number, by which the policy remembers.
            begins: whether a new episode begins with it.

        Raises:
            ValueError: it does not fit the spaces.
        """
        observation = replace(observation, targets={})
        if begins:
            self._numbers.pop(env, None)
        numbers = self._numbers.setdefault(env, EntityNumbers()) if self.remembers else None
        frame, elapsed_step = self._reader.read(observation, 0, numbers=numbers), np.array([0 if begins else 1])
        return batch_frames([frame], [observation], np.array([env]), elapsed_step, self._reader), frame

    def decide(self, obs: Sequence[VecObs], *, greedy: bool | None = None, logits: bool = True) -> Acted:
        """Decide for observations that `read` has returned, in one forward pass."""
        return self._policy.act(VecObs.cat(obs), greedy=greedy, logits=logits)


class TrainedAgent(Agent):
    """A checkpoint's policy as an agent; see `load_agent`."""

    def __init__(self, checkpoint: Checkpoint, generator: torch.Generator, *, greedy: bool) -> None:
        self._checkpoint, self._greedy, self._generator = checkpoint, greedy, generator
        self._spaces = spaces_from_dict(checkpoint.spaces)
        self._types: dict[str, Entity] = {}  # entity types in the program's observations so far
        self._policies: dict[str, TrainedPolicy] = {}  # action -> the policy, fitted to the spaces of the program
        self._last: TrainedPolicy | None = None  # all share what is remembered

    @property
    def news(self) -> str:
        """Differences of the program's spaces from those of training, in one line; empty if there are none."""
        return "; ".join(dict.fromkeys(policy.news for policy in self._policies.values() if policy.news))

    def act_each(self, obs: Obs[A]) -> list[A]:
        """Choose an action for each actor; see `Agent.act_each`.

        Raises:
            ValueError: `obs` lacks an entity type, feature or action that the policy needs; the message names it.
        """
        return self.decide(obs).actions

    def decide(self, obs: Obs[A]) -> Decision[A]:
        """Choose actions, and return them with the probability of each choice and the value.

        Raises:
            ValueError: `obs` lacks an entity type, feature or action that the policy needs; the message names it.
        """
        decided = self._policy(obs).act(obs.to_observation())
        told: Any = decided.probabilities[obs.action.__name__]
        rows = told["rows"] if obs.space.selects else told
        probabilities = np.array(rows, np.float32).reshape(len(rows), -1 if rows else len(obs.choices))
        return Decision(obs.chosen(decided.actions), obs.space.labels, probabilities, decided.value)

    def game_over(self, obs: Obs[A], *, truncated: bool = False) -> None:
        """End the game: what was remembered of it is forgotten."""
        super().game_over(obs, truncated=truncated)
        if self._last is not None:
            self._last.reset()

    def _policy(self, obs: Obs[A]) -> TrainedPolicy:
        """Fit the policy to the entity types of all observations so far, and to the action of `obs`."""
        types, action = obs.types(), obs.action.__name__
        if not types.items() <= self._types.items():
            self._types |= types
            self._policies.clear()
        known, known_actions = self._spaces
        if action not in known_actions:
            raise ValueError(
                f"checkpoint {self._checkpoint.path} was not trained for the action {action!r}; "
                f"{nearest(action, known_actions)}"
            )
        if action not in self._policies or self._policies[action].action_space[action] != obs.space:
            entities = {**known.entities, **self._types}  # known types may be shown later
            spaces = ObsSpace(entities, known.global_features, known.global_kinds), {**known_actions, action: obs.space}
            self._policies[action] = self._last = TrainedPolicy(
                self._checkpoint, self._generator, spaces, "the program", self._last, greedy=self._greedy
            )
        return self._policies[action]


def load_policy(path: str | Path, *, greedy: bool = False, seed: int = 0) -> TrainedPolicy:
    """Load a trained policy: `load_policy("outputs/my_run").act(env.reset()).actions`. Loading never executes code.

    Args:
        path: a run directory, one of its checkpoints, or a policy file that `enn_ppo.export` wrote.
        greedy: take the most likely action instead of sampling.
        seed: of the sampling.

    Raises:
        ValueError: there is no policy at `path`, it is damaged or was written by another version, or an argument is invalid.
    """
    return TrainedPolicy(*_load(path, seed), greedy=greedy)


def load_agent(path: str | Path, *, greedy: bool = False, seed: int = 0) -> TrainedAgent:
    """Load a trained policy as an agent; see `load_policy`."""
    return TrainedAgent(*_load(path, seed), greedy=greedy)


def _load(path: str | Path, seed: int) -> tuple[Checkpoint, torch.Generator]:
    check_whole(seed, "seed", 0)
    return load_checkpoint(Path(path)), torch.Generator().manual_seed(seed)
