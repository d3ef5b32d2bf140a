"""Choosing actions for observations of many clients at once."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.fit import fit_net
from enn_ppo.checkpoints.policy import load_net
from entity_gym.actions import ActionSpace
from entity_gym.actions.choices import ActionsOfEach
from entity_gym.batch.batching import batch_frames
from entity_gym.batch.frame import Frame, FrameReader
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.batch.vec_obs import VecObs
from entity_gym.bridges.remote.messages import Message, ProtocolError
from entity_gym.bridges.remote.wire import actions_to_json, observation_from_json, spaces_from_json
from entity_gym.errors import check_parts
from entity_gym.spaces import ObsSpace
from rogue_net import ObsBatch
from rogue_net.rogue_net import ActResult

_QUESTION = ("type", "id", "observation", "greedy", "value", "probabilities")


class Question(NamedTuple):
    """A request of a client."""

    id: int | str | None  # of the client; returned with the answer
    obs: VecObs  # one frame
    frame: Frame
    greedy: bool | None  # None: the server's setting
    value: bool  # whether to return the value
    probabilities: bool


class ServedPolicy:
    """The policy for the clients whose environments have these spaces.

    Args:
        obs_space: of the environments.
        action_space: of the environments.
        fitted: the network, adapted to these spaces.
        max_entities: limit of an observation.

    Attributes:
        spaces: in the form of `spaces.json`.
        news: differences from training, in one line; empty if there are none.
    """

    def __init__(
        self, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace], fitted: Any, max_entities: int
    ) -> None:
        self.spaces = spaces_to_dict(obs_space, action_space)
        self.news: str = fitted.news
        self._net, self._adaptor = fitted.net, fitted.adaptor
        self._net.eval()
        self._reader = _ObservationReader(obs_space, action_space)
        self._max_entities = max_entities

    def read(self, message: Message) -> Question:
        """Check and convert a request.

        Raises:
            ValueError: it is invalid; the message says why.
        """
        check_parts(message, _QUESTION, "'act'")
        id_ = message.get("id")
        if id_ is not None and type(id_) not in (int, str):
            raise ProtocolError(f"id is {id_!r:.200}; it must be a whole number or a text")
        for name in ("greedy", "value", "probabilities"):
            if type(message.get(name, False)) is not bool:
                raise ProtocolError(f"{name} is {message[name]!r:.200}; it must be true or false")
        obs = observation_from_json(message.get("observation"), self._reader.action_space)
        try:
            frame = self._reader.read(obs, 0)
            if len(frame.ids) > self._max_entities:
                raise ProtocolError(
                    f"the observation has {len(frame.ids):,} entities; at most {self._max_entities:,} are taken"
                )
            # batched alone, so that an invalid number fails this client only
            batch = batch_frames([frame], [obs], np.zeros(1, np.int64), np.zeros(1, np.int64), self._reader)
        except OverflowError as error:
            raise ProtocolError(f"the observation holds a number that is too large: {error}") from None
        greedy, wants = message.get("greedy"), [message.get(name, False) for name in ("value", "probabilities")]
        return Question(id_, batch, frame, greedy, *wants)

    def decide(
        self, questions: Sequence[Question], greedy: bool, temperature: float, generator: torch.Generator
    ) -> list[Message]:
        """Answer several requests with one forward pass.

        Args:
            questions: at least one.
            greedy: whether to take the most likely actions.
            temperature: of the sampling; see `RogueNet.act`.
            generator: of the sampling, on the network's device.

        Returns:
            A message for each request.
        """
        obs = VecObs.cat([question.obs for question in questions])
        batch = self._adaptor(ObsBatch.from_vec_obs(obs, generator.device))
        wanted = any(question.probabilities for question in questions)
        result = self._net.act(batch, greedy, temperature, generator, logits=wanted)
        told = ActionsOfEach(result.to_buffers(), 0, len(questions), self._reader.action_space)
        values = result.values.tolist()
        answers = []
        for k, question in enumerate(questions):
            actions = told.of(k, question.frame.actions, question.frame.ids)
            answer: Message = {"type": "actions", "actions": actions_to_json(actions, self._reader.action_space)}
            if question.id is not None:
                answer["id"] = question.id
            if question.value:
                answer["value"] = values[k]
            if question.probabilities:
                answer["probabilities"] = self._probabilities(result, k, question.frame)
            answers.append(answer)
        return answers

    def _probabilities(self, result: ActResult, k: int, frame: Frame) -> Message:
        """Probability of each choice in frame `k`, for its actions; continuous actions have none."""
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


class PolicyShelf:
    """A checkpoint's policy, adapted to the spaces of each client; clients with the same spaces share one.

    Args:
        checkpoint: of the policy.
        device: of the policy.
        max_entities: limit of an observation.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device, max_entities: int) -> None:
        self._name = f"checkpoint {checkpoint.path}"
        self._saved = load_net(checkpoint, device=device)
        self._own = self._saved.obs_space, dict(self._saved.action_space)
        self._device, self._max_entities = device, max_entities
        # remove one that no client uses
        self._fitted: weakref.WeakValueDictionary[str, ServedPolicy] = weakref.WeakValueDictionary()

    def policy(self, given: Any) -> ServedPolicy:
        """The policy for these spaces, given as JSON; None: those of training.

        Raises:
            ValueError: the spaces are invalid, or miss something that the policy needs; the message says what.
        """
        spaces = self._own if given is None else spaces_from_json(given)
        key = json.dumps(spaces_to_dict(*spaces))
        policy = self._fitted.get(key)
        if policy is None:
            fitted = fit_net(self._saved, *spaces, self._device, self._name, "the client's")
            policy = self._fitted[key] = ServedPolicy(*spaces, fitted, self._max_entities)
        return policy


class _ObservationReader(FrameReader):
    def where(self, env_id: int) -> str:
        return "the observation"
