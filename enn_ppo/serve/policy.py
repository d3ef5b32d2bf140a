"""Batched inference for the observations of many clients."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.serve.agent import TrainedPolicy
from enn_ppo.settings.serving import ServeConfig
from entity_gym.actions import ActionSpace
from entity_gym.batch.frame import Frame
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.batch.vec_obs import VecObs
from entity_gym.bridges.remote.messages import (
    FLAG,
    OBJECT,
    TEXT,
    Message,
    Parts,
    ProtocolError,
    actions_to_json,
    check,
    observation_from_json,
    spaces_from_json,
)
from entity_gym.environment import Observation
from entity_gym.spaces import Category, Entity, ObsSpace

_REQUEST: Parts = {
    "type": TEXT,
    "id": ((int, str, type(None)), "a whole number or a text"),
    "observation": OBJECT,
    "begins": FLAG,
    "greedy": FLAG,
    "value": FLAG,
    "probabilities": FLAG,
}
MAX_ENTITIES = 2048  # of an observation
#: Entity types, features, actions and choices together, if those of training are fewer: a fit takes up to 0.3 s.
_LARGEST_SPACES = 1024
_MOST_SPACES = 8  # spaces of connected clients besides those of training: each takes a copy of the network


class Request(NamedTuple):
    """A client's question that `ServedPolicies.read` has checked."""

    asked: Message  # without the observation
    policy: TrainedPolicy  # in the spaces of the client
    obs: VecObs  # one frame
    frame: Frame
    greedy: bool


class ServedPolicies:
    """A checkpoint's policy, adapted to the spaces of each client; clients with the same spaces share an instance.

    Attributes:
        path: of the checkpoint.
        trained: the policy for clients that do not give spaces.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device, config: ServeConfig) -> None:
        self.path, self._config, self._checkpoint = checkpoint.path, config, checkpoint
        self._generator = torch.Generator(device=device).manual_seed(config.seed)
        # A policy that no client uses any more is removed.
        self._fitted: weakref.WeakValueDictionary[str, TrainedPolicy] = weakref.WeakValueDictionary()
        self.trained = self._fit()
        self._largest = max(_LARGEST_SPACES, _size(self.trained.obs_space, self.trained.action_space))

    def policy(self, given: Any) -> TrainedPolicy:
        """Fit the policy to a client's spaces, given as JSON; None: those of training. It may take a second.

        Raises:
            ValueError: the spaces are invalid or too large, or lack an entity type, feature or action that the policy needs.
        """
        if given is None:
            return self.trained
        obs_space, action_space = spaces_from_json(given)
        if (size := _size(obs_space, action_space)) > self._largest:
            raise ValueError(
                f"the spaces have {size:,} entity types, features, actions and choices together; at most {self._largest:,} "
                "are taken"
            )
        key = json.dumps(spaces_to_dict(obs_space, action_space))
        if (policy := self._fitted.get(key)) is None:
            if len(self._fitted) >= _MOST_SPACES:
                raise ValueError(f"clients with {_MOST_SPACES} other spaces are connected, which is the limit")
            policy = self._fitted[key] = self._fit((obs_space, action_space))
        return policy

    def read(self, policy: TrainedPolicy, message: Message, client: int = 0) -> Request:
        """Check and convert a question of a client with this policy; `client` is its number.

        Raises:
            ValueError: the question is invalid; the message says why.
        """
        check(message, _REQUEST, "'act'", ("observation",))
        observation = observation_from_json(message["observation"], policy.action_space)
        if (num_entities := sum(map(len, observation.features.values()))) > MAX_ENTITIES:
            raise ProtocolError(f"the observation has {num_entities:,} entities; at most {MAX_ENTITIES:,} are taken")
        try:
            obs, frame = policy.read(observation, client, begins=bool(message.get("begins")))
        except OverflowError as error:
            raise ProtocolError(f"the observation holds a number that is too large: {error}") from None
        asked = {name: value for name, value in message.items() if name != "observation"}
        return Request(asked, policy, obs, frame, message.get("greedy", self._config.greedy))

    def decide(self, requests: Sequence[Request]) -> Iterator[Message]:
        """Answer requests with one forward pass. Yields a message for each.

        Args:
            requests: at least one, all with the same `policy` and `greedy`.
        """
        policy, greedy = requests[0].policy, requests[0].greedy
        logits = any(request.asked.get("probabilities") for request in requests)
        acted = policy.decide([request.obs for request in requests], greedy=greedy, logits=logits)
        for k, (asked, _, _, frame, _) in enumerate(requests):
            answer: Message = {"type": "actions", "actions": actions_to_json(acted.actions(k, frame))}
            if asked.get("id") is not None:
                answer["id"] = asked["id"]
            if asked.get("value"):
                answer["value"] = float(acted.values[k])
            if asked.get("probabilities"):
                answer["probabilities"] = acted.probabilities(k, frame)
            yield answer

    def warm_up(self) -> None:
        """Decide once, greedily and by sampling: the first decision loads or compiles kernels, which takes seconds."""
        types, num_global = self.trained.obs_space.entities, len(self.trained.obs_space.global_features)
        observation = Observation(
            features={name: np.zeros((2, len(each.features))) for name, each in types.items()},
            ids={name: [f"{name} 1", f"{name} 2"] for name in types},
            actions={name: space.mask_type() for name, space in self.trained.action_space.items()},
            global_features=np.zeros(num_global),
        )
        for greedy in (True, False):
            self.trained.decide([self.trained.read(observation)[0]], greedy=greedy)
        self.trained.reset()
        self._generator.manual_seed(self._config.seed)

    def _fit(self, spaces: tuple[ObsSpace, Mapping[str, ActionSpace]] | None = None) -> TrainedPolicy:
        return TrainedPolicy(self._checkpoint, self._generator, spaces)


def _size(obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> int:
    """Number of entity types, features, values of categories, actions, choices, and numbers of continuous actions."""
    entities = [*obs_space.entities.values(), Entity(obs_space.global_features, obs_space.global_kinds)]
    categories = [kind.num for each in entities for kind in each.kinds.values() if isinstance(kind, Category)]
    choices = [1 + (space.num_choices or space.width) for space in action_space.values()]
    return sum(1 + len(each.features) for each in entities) + sum(categories) + sum(choices)
