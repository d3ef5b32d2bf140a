"""A trained policy that plays in a program: `load_agent("outputs/my_run")` instead of the trainer's agent.

    agent = load_agent("outputs/my_run")        # or a checkpoint, or a policy file that `enn_ppo.export` wrote
    move = agent.act(Obs(Move, score=game.score, entities=[*game.foods], actors=[game.head]))
    decision = agent.decide(obs)                # the same, with probabilities and the value of the position

The trainer is not imported. Entity types, features, actions and choices are matched by name: entity types and features that the
policy does not know are ignored, and those that it needs and lacks are an error. A decision takes milliseconds, the first one
longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray

from enn_ppo.checkpoints import Checkpoint, load_checkpoint
from enn_ppo.checkpoints.policy import load_net, spaces_of
from enn_ppo.eval.policy import Policy, fit
from entity_gym.actions import Action, ActionSpace
from entity_gym.agents.agent import Agent, Obs, check_obs
from entity_gym.batch.batching import batch_frames, batch_observations
from entity_gym.batch.frame import FrameReader
from entity_gym.environment import Observation
from entity_gym.errors import check_whole, nearest
from entity_gym.spaces import Entity, ObsSpace

A = TypeVar("A")


@dataclass(frozen=True)
class Decision(Generic[A]):
    """A decision of a policy: actions, probabilities and value."""

    actions: list[A]  # one per actor
    labels: tuple[str, ...]  # names of the C choices
    probabilities: NDArray[np.float32]  # (A, C) of each actor's choices; 0 for masked choices
    value: float  # estimate of the discounted return, in the unit of training rewards


class TrainedAgent(Agent):
    """A checkpoint's policy as an agent; see `load_agent`."""

    def __init__(self, checkpoint: Checkpoint, *, greedy: bool, seed: int) -> None:
        self._checkpoint, self._greedy = checkpoint, greedy
        known = load_net(checkpoint)
        self._known = known.obs_space, known.action_space
        self._generator = torch.Generator().manual_seed(seed)
        self._types: dict[str, Entity] = {}  # entity types in the program's observations so far
        # action -> the policy, fitted to the spaces of the program, which follow
        self._fits: dict[str, tuple[Policy, ObsSpace, dict[str, ActionSpace]]] = {}

    @property
    def news(self) -> str:
        """Differences of the program's spaces from those of training, in one line; empty if there are none."""
        return "; ".join(dict.fromkeys(policy.fitted.news for policy, *_ in self._fits.values() if policy.fitted.news))

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
        check_obs(obs)
        policy, obs_space, action_space = self._fit(obs)
        name, choices = obs.action.__name__, obs.choices
        batch = batch_observations([obs.to_observation()], obs_space, action_space, "the program")
        acted = policy.act(batch, logits=True)
        assert acted.result.logits is not None
        actions = [choices[index] for index in acted.result.actions[name].values[:, 0].tolist()]
        probabilities = acted.result.logits[name].values.exp().view(len(actions), len(choices)).numpy()
        return Decision(actions, obs.space.labels, probabilities, float(acted.values[0]))

    def _fit(self, obs: Obs[A]) -> tuple[Policy, ObsSpace, dict[str, ActionSpace]]:
        """Fit the policy to the entity types of all observations so far, and to the action of `obs`."""
        for name, shown in obs.types().items():
            if name not in self._types:
                self._types[name] = shown
                self._fits.clear()
            elif self._types[name] != shown:
                raise ValueError(
                    f"the entity type {name!r} is {self._types[name]} since this agent was first shown one, and is now "
                    f"{shown}: a type stays as it is; call load_agent again for a class that has changed"
                )
        action, space, (known, known_actions) = obs.action.__name__, obs.space, self._known
        if action not in known_actions:
            raise ValueError(
                f"checkpoint {self._checkpoint.path} was not trained for the action {action!r}; "
                f"{nearest(action, known_actions)}"
            )
        if action not in self._fits or self._fits[action][2][action] != space:
            entities = {**known.entities, **self._types}  # known types may be shown later
            spaces = ObsSpace(entities, known.global_features, known.global_kinds), {**known_actions, action: space}
            policy = fit(self._checkpoint, *spaces, "the program", self._generator, greedy=self._greedy)
            self._fits[action] = policy, *spaces
        return self._fits[action]


@dataclass(frozen=True)
class PolicyDecision:
    """A decision of a policy in one observation: actions, probabilities and value."""

    actions: dict[str, Action]  # argument of `Environment.act`
    probabilities: dict[
        str, Any
    ]  # discrete action -> probabilities of the choices of each actor: lists, as in docs/protocol.md
    value: float  # estimate of the discounted return


class TrainedPolicy:
    """A checkpoint's policy for observations of the environment of training; see `load_policy`."""

    def __init__(self, checkpoint: Checkpoint, *, greedy: bool, seed: int) -> None:
        spaces = spaces_of(checkpoint)
        generator = torch.Generator().manual_seed(seed)
        self._policy = fit(checkpoint, *spaces, "the observation", generator, greedy=greedy)
        self._spaces = spaces
        # targets are of training alone
        self._reader = FrameReader(replace(spaces[0], targets={}), spaces[1], "the observation")

    @property
    def obs_space(self) -> ObsSpace:
        """Observation space of its training."""
        return self._spaces[0]

    @property
    def action_space(self) -> dict[str, ActionSpace]:
        """Action space of its training."""
        return dict(self._spaces[1])

    @overload
    def act(self, observation: Observation) -> PolicyDecision: ...

    @overload
    def act(self, observation: Sequence[Observation]) -> list[PolicyDecision]: ...

    def act(self, observation: Observation | Sequence[Observation]) -> PolicyDecision | list[PolicyDecision]:
        """Choose actions for one observation, or for several in one forward pass.

        Raises:
            ValueError: an observation does not fit the spaces of training.
        """
        given = [observation] if isinstance(observation, Observation) else observation
        observations = [replace(each, targets={}) for each in given]
        if not observations:
            return []
        frames = [self._reader.read(each, i) for i, each in enumerate(observations)]
        env_id, first = np.arange(len(frames)), np.zeros(len(frames), np.int64)
        acted = self._policy.act(batch_frames(frames, observations, env_id, first, self._reader), logits=True)
        decisions = [
            PolicyDecision(acted.actions(k, frame), acted.probabilities(k, frame), float(acted.values[k]))
            for k, frame in enumerate(frames)
        ]
        return decisions[0] if isinstance(observation, Observation) else decisions


def load_policy(path: str | Path, *, greedy: bool = False, seed: int = 0) -> TrainedPolicy:
    """Load a trained policy: `load_policy("outputs/my_run").act(env.reset()).actions`.

    Args:
        path: a run directory, one of its checkpoints, or a policy file that `enn_ppo.export` wrote.
        greedy: take the most likely action instead of sampling.
        seed: of the sampling.

    Raises:
        ValueError: there is no policy at `path`.
    """
    check_whole(seed, "seed", 0)
    return TrainedPolicy(load_checkpoint(Path(path)), greedy=greedy, seed=seed)


def load_agent(path: str | Path, *, greedy: bool = False, seed: int = 0) -> TrainedAgent:
    """Load a trained policy as an agent. Loading never executes code.

    Args:
        path: a run directory, one of its checkpoints, or a policy file that `enn_ppo.export` wrote.
        greedy: take the most likely choice instead of sampling.
        seed: of the sampling, at least 0.

    Raises:
        ValueError: there is no policy at `path`, it is damaged or was written by another version, or an argument is invalid.
    """
    if not isinstance(path, str | Path):
        raise ValueError(
            f"load_agent: path is {path!r:.200}; it must name a run directory, a checkpoint or a policy file"
        )
    if not isinstance(greedy, bool):
        raise ValueError(f"load_agent: greedy is {greedy!r:.200}; it must be True or False")
    check_whole(seed, "seed", 0)
    return TrainedAgent(load_checkpoint(Path(path)), greedy=greedy, seed=seed)
