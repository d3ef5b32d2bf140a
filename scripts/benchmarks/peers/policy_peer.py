"""Measures the ancestor's policy on request: `bench.py policy --peer PYTHON` runs this with an interpreter with enn-trainer.

    PYTHON policy_peer.py FRAMES.npz WIDTH HEADS LAYERS THREADS

Every line on standard input is `act SECONDS` or `update SECONDS`; the answer is a line of JSON with the mean seconds of a call.
The first line of output has the numbers of frames and entities.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from enn_trainer.config import PPOConfig
from enn_trainer.ppo import ppo_loss, value_loss
from entity_gym.env import VecCategoricalActionMask, VecSelectEntityActionMask
from entity_gym.examples import ENV_REGISTRY
from entity_gym.simple_trace import Tracer
from ragged_buffer import RaggedBufferBool, RaggedBufferF32, RaggedBufferI64

from rogue_net.rogue_net import RogueNet, RogueNetConfig, tensor_dict_to_ragged


class Peer:
    def __init__(self, frames: str, width: int, heads: int, layers: int) -> None:
        torch.manual_seed(0)
        env = ENV_REGISTRY["MineSweeper"]()
        self.load(dict(np.load(frames)))
        self.tracer = Tracer(cuda=False)
        self.config = PPOConfig()
        network = RogueNetConfig(d_model=width, n_head=heads, n_layer=layers)
        self.net = RogueNet(network, env.obs_space(), env.action_space(), regression_heads={"value": 1})
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-6, eps=1e-5)
        self.actions, log_probs, _, counts, heads_out, _ = self.act()
        self.log_probs = tensor_dict_to_ragged(RaggedBufferF32, log_probs, counts)
        self.values = heads_out["value"].flatten().clone()
        self.advantages, self.returns = torch.randn(self.num_frames), torch.randn(self.num_frames)

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        kinds = {np.dtype(np.float32): RaggedBufferF32, np.dtype(np.int64): RaggedBufferI64}
        buffers: dict[str, dict[str, Any]] = {"features": {}, "actors": {}, "actees": {}, "mask": {}}
        for key, values in arrays.items():
            part, group, name = key.split("/", 2)
            if part == "values":
                kind = kinds.get(values.dtype, RaggedBufferBool)
                buffers[group][name] = kind.from_flattened(values, arrays[f"lengths/{group}/{name}"])
        self.features = buffers["features"]
        self.masks = {
            name: VecSelectEntityActionMask(actors, buffers["actees"][name])
            if name in buffers["actees"]
            else VecCategoricalActionMask(actors, buffers["mask"].get(name))
            for name, actors in buffers["actors"].items()
        }
        self.num_frames = len(next(iter(self.features.values())).size1())
        self.num_entities = sum(buffer.items() for buffer in self.features.values())

    def act(self) -> Any:
        with torch.no_grad():
            return self.net.get_action_and_auxiliary(self.features, {}, self.masks, tracer=self.tracer)

    def update(self) -> None:
        """One optimizer step of the ancestor's trainer: forward, losses, backward, clipping, optimizer."""
        self.optimizer.zero_grad()
        _, log_probs, entropies, _, heads, _ = self.net.get_action_and_auxiliary(
            self.features, {}, self.masks, prev_actions=self.actions, tracer=self.tracer
        )
        policy, _, _ = ppo_loss(
            self.config, log_probs, self.log_probs, self.advantages, torch.device("cpu"), self.tracer
        )
        value = value_loss(self.config, heads["value"], self.returns, self.values, self.tracer)
        entropy = torch.cat(list(entropies.values())).mean()
        (policy - self.config.ent_coef * entropy + self.config.vf_coef * value).backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 2.0)
        self.optimizer.step()


def seconds_per_call(function: Callable[[], Any], seconds: float) -> float:
    calls, start = 0, time.perf_counter()
    while calls == 0 or time.perf_counter() - start < seconds:
        function()
        calls += 1
    return (time.perf_counter() - start) / calls


def main() -> None:
    width, heads, layers, threads = map(int, sys.argv[2:])
    torch.set_num_threads(threads)
    peer = Peer(sys.argv[1], width, heads, layers)
    print(json.dumps({"frames": peer.num_frames, "entities": peer.num_entities}), flush=True)
    for line in sys.stdin:
        kind, seconds = line.split()
        print(json.dumps(seconds_per_call(getattr(peer, kind), float(seconds))), flush=True)


if __name__ == "__main__":
    main()
