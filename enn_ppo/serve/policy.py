"""Batched inference for the observations of many clients."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.policy import spaces_of
from enn_ppo.eval.policy import Policy, fit
from enn_ppo.settings.serving import ServeConfig
from entity_gym.actions import ActionSpace
from entity_gym.batch.batching import batch_frames
from entity_gym.batch.frame import Frame, FrameReader
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.batch.vec_obs import VecObs
from entity_gym.bridges.remote.messages import Message, ProtocolError
from entity_gym.bridges.remote.wire import actions_to_json, observation_from_json, spaces_from_json
from entity_gym.errors import check_parts
from entity_gym.spaces import Category, Entity, ObsSpace

_REQUEST = ("type", "id", "observation", "greedy", "value", "probabilities")
_PROBABILITY_BYTES = 22  # of a number in an answer, at most
_OFFERED_PER_ENTITY, _WRITTEN_PER_ENTITY = (
    1000,
    20,
)  # choices, and probabilities of some, that cost as much as an entity


class Request(NamedTuple):
    """A request of a client."""

    id: int | str | None  # chosen by the client, returned with the answer
    obs: VecObs  # one frame
    frame: Frame
    greedy: bool
    value: bool  # whether to return the value
    probabilities: bool
    cost: float  # of the answer; an entity counts 1


class ServedPolicy:
    """The policy for all clients with the same spaces.

    Args:
        obs_space: of the clients.
        action_space: of the clients.
        policy: fitted to these spaces.
        config: settings of the server.

    Attributes:
        spaces: the spaces in the form of a policy file's header.
        news: differences from the spaces of training, in one line; empty if there are none.
    """

    def __init__(
        self,
        obs_space: ObsSpace,
        action_space: Mapping[str, ActionSpace],
        policy: Policy,
        config: ServeConfig,
    ) -> None:
        self.spaces, self.news = spaces_to_dict(obs_space, action_space), policy.fitted.news
        self._policy = policy
        self._reader = _ObservationReader(replace(obs_space, targets={}), action_space)  # targets are of training alone
        self._config = config

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
        obs = replace(observation_from_json(message.get("observation"), self._reader.action_space), targets={})
        try:
            frame = self._reader.read(obs, 0)
            cost = self._cost(frame, message.get("probabilities", False))
            # checks the numbers of this request alone, so that an invalid one fails only its client
            batch = batch_frames([frame], [obs], np.zeros(1, np.int64), np.zeros(1, np.int64), self._reader)
        except OverflowError as error:
            raise ProtocolError(f"the observation holds a number that is too large: {error}") from None
        value, probabilities = message.get("value", False), message.get("probabilities", False)
        return Request(id_, batch, frame, message.get("greedy", self._config.greedy), value, probabilities, cost)

    def _cost(self, frame: Frame, probabilities: bool) -> float:
        """Return what an answer costs, in entities, by measurement.

        Raises:
            ProtocolError: it would cost too much.
        """
        config, num_entities = self._config, len(frame.ids)
        if num_entities > config.max_entities:
            raise ProtocolError(
                f"the observation has {num_entities:,} entities; at most {config.max_entities:,} are taken"
            )
        choices = 0
        for name, offer in frame.actions.items():
            of_each = _num_choices(self._reader.action_space[name]) if offer.actees is None else len(offer.actees)
            choices += len(offer.actors) * of_each
        if choices > config.max_offered:
            raise ProtocolError(
                f"the observation offers {choices:,} choices to all actors together; at most {config.max_offered:,} are taken"
            )
        if probabilities and choices * _PROBABILITY_BYTES > config.max_message_bytes:
            raise ProtocolError(
                f"the probabilities of {choices:,} choices do not fit into max_message_bytes={config.max_message_bytes:,}; ask "
                "without them"
            )
        return 1 + num_entities + choices / (_WRITTEN_PER_ENTITY if probabilities else _OFFERED_PER_ENTITY)

    def decide(self, requests: Sequence[Request]) -> Iterator[Message]:
        """Answer requests with one forward pass. Yields a message for each.

        Args:
            requests: at least one, all with the same `greedy`.
        """
        logits = any(request.probabilities for request in requests)
        acted = self._policy.act(
            VecObs.cat([request.obs for request in requests]), greedy=requests[0].greedy, logits=logits
        )
        for k, request in enumerate(requests):
            actions = acted.actions(k, request.frame)
            answer: Message = {"type": "actions", "actions": actions_to_json(actions, self._reader.action_space)}
            if request.id is not None:
                answer["id"] = request.id
            if request.value:
                answer["value"] = float(acted.values[k])
            if request.probabilities:
                answer["probabilities"] = acted.probabilities(k, request.frame)
            yield answer


class ServedPolicies:
    """A checkpoint's policy, adapted to the spaces of each client; clients with the same spaces share an instance.

    Args:
        checkpoint: of the policy.
        device: of the policy.
        config: settings of the server.

    Attributes:
        path: of the checkpoint.
        device: of the policy.
        trained: the policy for clients that do not give spaces.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device, config: ServeConfig) -> None:
        self.path, self.device, self._config, self._checkpoint = checkpoint.path, device, config, checkpoint
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
        trained = _sizes(*self._spaces)
        for setting, size in _sizes(obs_space, action_space).items():
            limit = max(getattr(self._config, setting), trained[setting])
            if size > limit:
                counted = setting.removeprefix("max_").replace("_", " ")
                raise ValueError(f"the spaces have {size:,} {counted}; at most {setting}={limit:,} are taken")
        key = json.dumps(spaces_to_dict(obs_space, action_space))
        policy = self._fitted.get(key)
        if policy is None:
            if len(self._fitted) >= self._config.max_spaces:
                raise ValueError(
                    f"clients with {len(self._fitted)} other spaces are connected: max_spaces={self._config.max_spaces}"
                )
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

    def _fit(self, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> ServedPolicy:
        temperature = self._config.temperature
        policy = fit(
            self._checkpoint, obs_space, action_space, "the client's", self._generator, temperature=temperature
        )
        return ServedPolicy(obs_space, action_space, policy, self._config)


def _sizes(obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> dict[str, int]:
    """Return the sizes of spaces that `ServeConfig` limits, by the setting's name."""
    entities = [*obs_space.entities.values(), Entity(obs_space.global_features, obs_space.global_kinds)]
    categories = [kind.num for each in entities for kind in each.kinds.values() if isinstance(kind, Category)]
    return {
        "max_entity_types": len(obs_space.entities),
        "max_features": sum(len(each.features) for each in entities),
        "max_actions": len(action_space),
        "max_choices": sum(map(_num_choices, action_space.values())) + sum(categories),
    }


def _num_choices(space: ActionSpace) -> int:
    """Return the number of choices of an actor, or of the numbers that it gives; 1 if the number of entities decides."""
    return space.num_choices or space.width


class _ObservationReader(FrameReader):
    def where(self, env_id: int) -> str:
        return "the observation"
