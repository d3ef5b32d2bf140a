"""Batched inference for the observations of many clients."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.fit import FittedPolicy, fit_net
from enn_ppo.checkpoints.policy import load_net
from enn_ppo.eval.policy import Critic, fit_critic
from enn_ppo.settings.serving import ServeConfig
from entity_gym.actions import ActionSpace
from entity_gym.actions.choices import ActionsOfEach
from entity_gym.batch.batching import batch_frames
from entity_gym.batch.frame import Frame, FrameReader
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.batch.vec_obs import VecObs
from entity_gym.bridges.remote.messages import Message, ProtocolError
from entity_gym.bridges.remote.wire import actions_to_json, observation_from_json, spaces_from_json
from entity_gym.errors import check_parts
from entity_gym.spaces import Category, Entity, ObsSpace
from rogue_net import ObsBatch
from rogue_net.finite import check_finite
from rogue_net.rogue_net import ActResult

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
        fitted: the network, adapted to these spaces.
        critic: its value function.
        config: settings of the server.

    Attributes:
        spaces: the spaces in the form of a policy file's header.
        news: differences from the spaces of training, in one line; empty if there are none.
    """

    def __init__(
        self,
        obs_space: ObsSpace,
        action_space: Mapping[str, ActionSpace],
        fitted: FittedPolicy,
        critic: Critic,
        config: ServeConfig,
    ) -> None:
        self.spaces, self.news = spaces_to_dict(obs_space, action_space), fitted.news
        self._net, self._adaptor, self._critic = fitted.net.eval(), fitted.adaptor, critic
        self._reader = _ObservationReader(obs_space, action_space)
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
        obs = observation_from_json(message.get("observation"), self._reader.action_space)
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

    def decide(self, requests: Sequence[Request], generator: torch.Generator) -> Iterator[Message]:
        """Answer requests with one forward pass. Yields a message for each.

        Args:
            requests: at least one, all with the same `greedy`.
            generator: of the sampling, on the network's device.
        """
        obs = VecObs.cat([request.obs for request in requests])
        shown = ObsBatch.from_vec_obs(obs, generator.device)
        batch = self._adaptor(shown)
        logits = any(request.probabilities for request in requests)
        result = self._net.act(
            batch,
            greedy=requests[0].greedy,
            temperature=self._config.temperature,
            generator=generator,
            logits=logits,
        )
        check_finite(self._net, batch, result)
        told = ActionsOfEach(result.to_buffers(), 0, len(requests), self._reader.action_space)
        asked = any(request.value for request in requests)
        values = self._critic.values_of(self._net, shown, result).tolist() if asked else []
        for k, request in enumerate(requests):
            actions = told.of(k, request.frame.actions, request.frame.ids)
            answer: Message = {"type": "actions", "actions": actions_to_json(actions, self._reader.action_space)}
            if request.id is not None:
                answer["id"] = request.id
            if request.value:
                answer["value"] = values[k]
            if request.probabilities:
                answer["probabilities"] = self._probabilities(result, k, request.frame)
            yield answer

    def _probabilities(self, result: ActResult, k: int, frame: Frame) -> Message:
        """Probability of each choice in frame `k`, by action, except continuous actions."""
        assert result.logits is not None
        told: Message = {}
        for name, offer in frame.actions.items():
            space = self._reader.action_space[name]
            if not space.discrete:
                continue
            values, offsets = result.logits[name]
            rows = values[int(offsets[k]) : int(offsets[k + 1])].exp().cpu().numpy()
            told[name] = space.probabilities_to_json(rows, offer, frame.ids)
        return told


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
        self._saved = load_net(checkpoint, device=device)
        # A policy that no client uses any more is removed.
        self._fitted: weakref.WeakValueDictionary[str, ServedPolicy] = weakref.WeakValueDictionary()
        self.trained = self._fit(self._saved.obs_space, self._saved.action_space)

    def policy(self, given: Any) -> ServedPolicy:
        """Fit the policy to a client's spaces, given as JSON. Takes up to a second, so call it outside of the event loop.

        Raises:
            ValueError: the spaces are invalid or too large, or lack an entity type, feature or action that the policy needs.
        """
        obs_space, action_space = spaces_from_json(given)
        trained = _sizes(self._saved.obs_space, self._saved.action_space)
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
        obs_space, action_space = self._saved.obs_space, self._saved.action_space
        observation = {
            "features": {name: np.zeros((2, len(each.features))).tolist() for name, each in obs_space.entities.items()},
            "ids": {name: [f"{name} 1", f"{name} 2"] for name in obs_space.entities},
            "actions": {name: {} for name in action_space},
            "global_features": [0.0] * len(obs_space.global_features),
        }
        generator = torch.Generator(device=self.device)
        for greedy in (True, False):
            message = {"type": "act", "observation": observation, "greedy": greedy}
            list(self.trained.decide([self.trained.read(message)], generator))

    def _fit(self, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> ServedPolicy:
        fitted = fit_net(self._saved, obs_space, action_space, self.device, f"checkpoint {self.path}", "the client's")
        critic = fit_critic(self._checkpoint, fitted, obs_space, action_space, self.device, "the client's")
        return ServedPolicy(obs_space, action_space, fitted, critic, self._config)


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
