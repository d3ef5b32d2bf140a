"""Models of policies in onnxruntime, which see observations."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

import numpy as np
import onnx
import onnxruntime

from rogue_net.numpy.reading import GLOBAL, Array, Spaces


class Player:
    """A model on one thread, in the steps of one episode after the other.

    Attributes:
        spaces: of the policy.
        session: of onnxruntime.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3  # it warns of inputs that may be left out
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        metadata = self.session.get_modelmeta().custom_metadata_map
        self.spaces, self._noise = Spaces(json.loads(metadata["spaces"])), json.loads(metadata["noise"])
        self._inputs = {
            each.name for each in (*self.session.get_inputs(), *self.session.get_overridable_initializers())
        }
        self._outputs = [each.name for each in self.session.get_outputs()]
        self._numbers, self._memory = dict[Hashable, int](), dict[str, Array]()

    def begin(self) -> None:
        """Forget, since an episode begins."""
        self._numbers, self._memory = {}, {}

    def act(
        self, observation: Any, rng: np.random.Generator | None = None, *, remember: bool = True
    ) -> dict[str, Array]:
        """Outputs for the next observation.

        Args:
            observation: see `rogue_net.numpy.Policy.act`.
            rng: of the noise; None: the likeliest actions.
            remember: whether the next observation follows this one; otherwise it stands in its place.

        Raises:
            PolicyError: the observation does not fit the spaces.
        """
        outputs = self.session.run(self._outputs, self.feeds(observation, rng))
        named: dict[str, Array] = dict(zip(self._outputs, outputs, strict=True))
        if remember:
            self._memory = {name.removesuffix(".next"): each for name, each in named.items() if name.endswith(".next")}
        return named

    def feeds(self, observation: Any, rng: np.random.Generator | None = None) -> dict[str, Array]:
        """Inputs for the next observation."""
        frame = self.spaces.read(observation)
        given: dict[str, Any] = {f"features.{name}": rows for name, rows in frame.features.items() if name != GLOBAL}
        num = sum(map(len, given.values()))  # without the entity of the whole frame
        ids = [-1 if each is None else self._numbers.setdefault(each, len(self._numbers)) for each in frame.ids[:num]]
        given |= {"ids": np.array(ids, np.int64), "global_features": frame.features.get(GLOBAL, np.zeros((1, 0)))[0]}
        if frame.visible is not None:
            given["visible"] = frame.visible[:num]
        for name, action in self.spaces.actions.items():
            offer, nobody = frame.offers.get(name), np.zeros(0, np.int64)
            given[f"actors.{name}"] = nobody if offer is None else offer.actors.astype(np.int64)
            given[f"actees.{name}"] = nobody if offer is None else offer.actees.astype(np.int64)
            if offer is not None:
                given[f"mask.{name}"] = offer.is_open
                given |= {} if offer.after is None else {f"mask_after.{name}": offer.after}
                given |= {} if rng is None else {f"noise.{name}": self._drawn(name, action, offer.is_open.shape, rng)}
        return {name: each for name, each in (given | self._memory).items() if name in self._inputs}

    def _drawn(self, name: str, action: dict[str, Any], shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """The noise of an action, whose mask has this shape."""
        actors, n = shape
        if self._noise[name] == "uniform":
            return rng.random(shape, np.float32)
        if self._noise[name] == "normal":
            return rng.standard_normal((actors, len(action["low"])), np.float32)
        if action.get("ordered"):
            return rng.gumbel(size=(actors, min(n, action.get("max", n)), n + 1)).astype(np.float32)
        return rng.gumbel(size=(actors, n + action["selects"])).astype(np.float32)
