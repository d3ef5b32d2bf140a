"""Batched inference for the observations of many clients."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.policy import spaces_of
from enn_ppo.serve.agent import TrainedPolicy
from enn_ppo.settings.serving import ServeConfig
from entity_gym.actions import ActionSpace
from entity_gym.batch.frame import Frame
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.batch.vec_obs import VecObs
from entity_gym.bridges.remote.messages import (
    Message,
    ProtocolError,
    actions_to_json,
    observation_from_json,
    spaces_from_json,
)
from entity_gym.errors import check_parts
from entity_gym.spaces import Category, Entity, ObsSpace

_REQUEST = ("type", "id", "observation", "greedy", "value", "probabilities")
_LARGEST_SPACES = 4096  # entity types, features, actions and choices together, if those of training are fewer
_MOST_SPACES = 8  # spaces of connected clients besides those of training: each takes a copy of the network


class Request(NamedTuple):
    """A request of a client."""

    id: int | str | None  # chosen by the client, returned with the answer
    obs: VecObs  # one frame
    frame: Frame
    greedy: bool
    value: bool  # whether to return the value
    probabilities: bool


class ServedPolicy:
    """The policy for all clients with the same spaces.

    Attributes:
        spaces: the spaces in the form of a policy file's header.
        news: differences from the spaces of training, in one line; empty if there are none.
    """

    def __init__(self, policy: TrainedPolicy, config: ServeConfig) -> None:
        self._policy, self._config, self.news = policy, config, policy.news
        self._action_space = policy.action_space
        self.spaces = spaces_to_dict(policy.obs_space, policy.action_space)

    def read(self, message: Message) -> Request:
        """Check and convert a request.

        Raises:
            ValueError: the request is invalid; the message says why.
        """
        check_parts(message, _REQUEST, "'act'")
        id_ = message.get("id")
        if id_ is not None and type(id_) not in (int, str):
            raise ProtocolError(f"id is {id_!r:.200}; it must be a whole number or a text")
        for name in ("greedy", "value", "probabilities"):
            if type(message.get(name, False)) is not bool:
                raise ProtocolError(f"{name} is {message[name]!r:.200}; it must be true or false")
        observation = observation_from_json(message.get("observation"), self._action_space)
        num_entities, limit = sum(map(len, observation.features.values())), self._config.max_entities
        if num_entities > limit:
            raise ProtocolError(f"the observation has {num_entities:,} entities; at most {limit:,} are taken")
        try:
            obs, frame = self._policy.read(observation)
        except OverflowError as error:
            raise ProtocolError(f"the observation holds a number that is too large: {error}") from None
        value, probabilities = message.get("value", False), message.get("probabilities", False)
        return Request(id_, obs, frame, message.get("greedy", self._config.greedy), value, probabilities)

    def decide(self, requests: Sequence[Request]) -> Iterator[Message]:
        """Answer requests with one forward pass. Yields a message for each.

        Args:
            requests: at least one, all with the same `greedy`.
        """
        logits = any(request.probabilities for request in requests)
        acted = self._policy.decide([request.obs for request in requests], greedy=requests[0].greedy, logits=logits)
        for k, request in enumerate(requests):
            answer: Message = {"type": "actions", "actions": actions_to_json(acted.actions(k, request.frame))}
            if request.id is not None:
                answer["id"] = request.id
            if request.value:
                answer["value"] = float(acted.values[k])
            if request.probabilities:
                answer["probabilities"] = acted.probabilities(k, request.frame)
            yield answer


class ServedPolicies:
    """A checkpoint's policy, adapted to the spaces of each client; clients with the same spaces share an instance.

    Attributes:
        path: of the checkpoint.
        trained: the policy for clients that do not give spaces.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device, config: ServeConfig) -> None:
        self.path, self._config, self._checkpoint = checkpoint.path, config, checkpoint
        self._spaces = spaces_of(checkpoint)
        self._generator = torch.Generator(device=device).manual_seed(config.seed)
        # A policy that no client uses any more is removed.
        self._fitted: weakref.WeakValueDictionary[str, ServedPolicy] = weakref.WeakValueDictionary()
        self.trained = self._fit(*self._spaces)

    def policy(self, given: Any) -> ServedPolicy:
        """Fit the policy to a client's spaces, given as JSON. Takes up to a second, so call it outside of the event loop.

        Raises:
            ValueError: the spaces are invalid or too large, or lack an entity type, feature or action that the policy needs.
        """
        obs_space, action_space = spaces_from_json(given)
        size, limit = _size(obs_space, action_space), max(_LARGEST_SPACES, _size(*self._spaces))
        if size > limit:
            raise ValueError(
                f"the spaces have {size:,} entity types, features, actions and choices together; at most {limit:,} are taken"
            )
        key = json.dumps(spaces_to_dict(obs_space, action_space))
        policy = self._fitted.get(key)
        if policy is None:
            if len(self._fitted) >= _MOST_SPACES:
                raise ValueError(f"clients with {_MOST_SPACES} other spaces are connected, which is the limit")
            policy = self._fitted[key] = self._fit(obs_space, action_space)
        return policy

    def warm_up(self) -> None:
        """Decide once, greedily and by sampling: the first decision loads or compiles kernels, which takes seconds."""
        obs_space, action_space = self._spaces
        observation = {
            "features": {name: np.zeros((2, len(each.features))).tolist() for name, each in obs_space.entities.items()},
            "ids": {name: [f"{name} 1", f"{name} 2"] for name in obs_space.entities},
            "actions": {name: {} for name in action_space},
            "global_features": [0.0] * len(obs_space.global_features),
        }
        for greedy in (True, False):
            message = {"type": "act", "observation": observation, "greedy": greedy}
            list(self.trained.decide([self.trained.read(message)]))
        self._generator.manual_seed(self._config.seed)

    def _fit(self, *spaces: Any) -> ServedPolicy:
        how = {"temperature": self._config.temperature}
        return ServedPolicy(
            TrainedPolicy(self._checkpoint, self._generator, spaces, "the observation", **how), self._config
        )


def _size(obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> int:
    """Number of entity types, features, values of categories, actions, choices, and numbers of continuous actions."""
    entities = [*obs_space.entities.values(), Entity(obs_space.global_features, obs_space.global_kinds)]
    categories = [kind.num for each in entities for kind in each.kinds.values() if isinstance(kind, Category)]
    choices = [1 + (space.num_choices or space.width) for space in action_space.values()]
    return sum(1 + len(each.features) for each in entities) + sum(categories) + sum(choices)
