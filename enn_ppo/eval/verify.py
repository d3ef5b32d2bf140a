"""The ONNX model of a policy beside its networks in PyTorch, in episodes of the world that it was trained in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.policy import load_net, saved_config
from enn_ppo.training.environment import bind_environment
from entity_gym.actions import ActionSpace
from entity_gym.actions.choices import world_actions
from entity_gym.batch.batching import batch_frames
from entity_gym.batch.frame import EntityNumbers, FrameReader
from entity_gym.batch.ragged import RaggedBuffer
from rogue_net import ObsBatch, RaggedTensor

if TYPE_CHECKING:
    from rogue_net.onnx.playing import Player

CLOSE = 1e-5  # log-probs and values may differ by this, or by this share of those above 1
CLEAR = 1e-4  # a greedy choice may be another one whose log-prob is at most this much lower: rounding decides there
MOST_STEPS = 1000  # of an episode


@dataclass
class Difference:
    """How far a model is from the networks.

    Attributes:
        frames: that were compared.
        largest: of log-probs and values, the largest difference, as a share of those above 1.
        choices: greedy choices of the model that are others, and less likely by more than `CLEAR`.
    """

    frames: int = 0
    largest: dict[str, float] = field(default_factory=lambda: {"log-probs": 0.0, "values": 0.0})
    choices: int = 0

    def __bool__(self) -> bool:
        return self.choices > 0 or not all(each <= CLOSE for each in self.largest.values())  # NaN is not

    def __str__(self) -> str:
        largest = ", ".join(f"{name} {each:.1e}" for name, each in self.largest.items())
        return f"{self.frames} frames: largest difference of {largest}; {self.choices} other greedy choices"

    def add(self, what: str, given: Any, expected: torch.Tensor) -> None:
        """Compare numbers of the model with those of the networks."""
        one, other = np.asarray(given, np.float64), expected.double().numpy()
        each = np.abs(one - other) / np.maximum(np.abs(other), 1)
        self.largest[what] = float(np.max([self.largest[what], *each.ravel()]))  # NaN stays


@torch.no_grad()
def difference(checkpoint: Checkpoint, player: Player, episodes: int, seed: int = 0) -> Difference:
    """Compare a model with the networks of its checkpoint, in float32, in episodes that the model plays by drawing.

    Raises:
        ValueError: the world cannot be made, or shows what the policy was not trained for.
    """
    in_fp32 = {name: checkpoint.config[name] for name in ("net", "value_net") if checkpoint.config.get(name)}
    in_fp32 = {name: {**settings, "precision": "fp32"} for name, settings in in_fp32.items()}
    checkpoint = replace(checkpoint, config={**checkpoint.config, **in_fp32})
    net = load_net(checkpoint).eval()
    critic = load_net(checkpoint, "value_net").eval() if checkpoint.value_net else None
    env = saved_config(checkpoint).env
    world, rng, found = bind_environment(env).source.as_environment(), np.random.default_rng(seed), Difference()
    reader = FrameReader(replace(net.obs_space, targets={}), net.action_space, env.id)
    world.reseed(seed, 0)
    for _ in range(episodes):
        observation, numbers, state, value_state, steps = world.reset(), EntityNumbers(), None, None, 0
        player.begin()
        while not observation.done and steps < MOST_STEPS:
            steps, observation = steps + 1, replace(observation, targets={})
            frame, one = reader.read(observation, 0, numbers=numbers), np.zeros(1, np.int64)
            batch = ObsBatch.from_vec_obs(batch_frames([frame], [observation], one, one, reader))
            readout = net.readout(batch, state)
            values, state = net.value_head(readout.means), readout.state
            if critic is not None:
                values, value_state = critic.value_and_state(batch, value_state)
            likeliest, drawn = player.act(observation, remember=False), player.act(observation, rng)
            given = [_choices(made, net.action_space) for made in (likeliest, drawn)]
            decided = [net.decide(readout, each) for each in given]
            for made, decisions in zip((likeliest, drawn), decided, strict=True):
                found.add("values", made["value"], values[0])
                for name in net.order:
                    found.add("log-probs", made[f"log_prob.{name}"], decisions[name].log_probs.values)
            greedy = net.decide(readout, greedy=True)
            for name in net.order:
                if (
                    not torch.equal(given[0][name].values, greedy[name].actions.values)
                    and net.action_space[name].discrete
                ):
                    less = greedy[name].log_probs.values - decided[0][name].log_probs.values
                    found.choices += int((less > CLEAR).sum())
                    break  # what is decided after it may be another one, too
            found.frames += 1
            actions = {name: RaggedBuffer(each.values.numpy(), each.offsets.numpy()) for name, each in given[1].items()}
            observation = world.act(world_actions(actions, 0, [frame], net.action_space)[0])
    return found


def _choices(made: Mapping[str, Any], action_space: Mapping[str, ActionSpace]) -> dict[str, RaggedTensor]:
    """The choices among outputs of a model, as batches have them."""
    rows = {
        name: torch.from_numpy(made[f"choice.{name}"]).reshape(-1, space.width) for name, space in action_space.items()
    }
    return {name: RaggedTensor(each, torch.tensor([0, len(each)])) for name, each in rows.items()}
