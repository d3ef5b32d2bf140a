"""Test cases of `bench.py policy`: frames of chosen sizes, and a policy with its optimizer that acts and learns on them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from enn_ppo.ppo import Samples, learn_minibatch, weigh
from enn_ppo.settings.config import OptimConfig, PPOConfig  # before torch: sets OpenMP's environment variables
from enn_ppo.settings.learning import PPOSettings
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.learning.learner import can_be_compiled
from entity_gym.actions import ActionSpace, CategoricalActionSpace, SelectEntityActionSpace
from entity_gym.actions.choices import random_actions
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecActionMask, VecObs
from entity_gym.registry import make
from entity_gym.spaces import Entity, ObsSpace
from rogue_net import FrameKeys, ObsBatch, RogueNet, RogueNetConfig, keyed
from rogue_net.config import RelposConfig

import torch  # isort: skip

HEADS = {32: 2, 64: 4, 128: 4}  # width -> number of attention heads
POSITION = ("x", "y")


class Frames(NamedTuple):
    """Observations and their spaces."""

    name: str
    obs: VecObs
    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]

    @property
    def entities_per_frame(self) -> float:
        return self.obs.num_entities / len(self.obs)

    def relpos(self) -> RelposConfig:
        """Relative positions on a grid of 11 by 11 buckets, for entities with coordinates."""
        elsewhere = [
            name for name, entity in self.obs_space.entities.items() if not set(POSITION) <= {*entity.features}
        ]
        return RelposConfig(kind="grid", extent=[5, 5], position_features=POSITION, exclude_entities=elsewhere)


def ragged_frames(name: str, lengths: Sequence[int], *, select: bool = False, seed: int = 0) -> Frames:
    """Frames with `lengths` entities each, on a board of 16 by 16 cells: one unit, which moves, and things around it.

    Args:
        name: of the frames in reports.
        lengths: entities in each frame, at least 1.
        select: whether the unit also selects a thing.
        seed: of the random features.
    """
    rng = np.random.default_rng(seed)
    num_frames, num_things = len(lengths), np.asarray(lengths) - 1
    ones = np.ones(num_frames, np.int64)

    def entities(counts: np.ndarray) -> RaggedBuffer[np.float32]:
        values = np.concatenate([rng.integers(0, 16, (counts.sum(), 2)), rng.random((counts.sum(), 2))], axis=1)
        return RaggedBuffer.from_flattened(values.astype(np.float32), counts)

    entity = Entity([*POSITION, "health", "speed"])
    units = RaggedBuffer.from_flattened(np.zeros((num_frames, 1), np.int64), ones)  # the first entity of its frame
    action_space: dict[str, ActionSpace] = {"Move": CategoricalActionSpace(["left", "right", "up", "down", "stay"])}
    masks: dict[str, VecActionMask] = {"Move": VecActionMask(units)}
    if select:
        things = np.concatenate([np.arange(1, length) for length in lengths] or [np.zeros(0)]).astype(np.int64)
        action_space["Take"] = SelectEntityActionSpace()
        masks["Take"] = VecActionMask(units, RaggedBuffer.from_flattened(things[:, None], num_things))
    nothing = np.zeros(num_frames, bool)
    obs = VecObs(
        features={"Unit": entities(ones), "Thing": entities(num_things)},
        action_masks=masks,
        reward=np.zeros(num_frames, np.float32),
        done=nothing,
        truncated=nothing,
        env_id=np.arange(num_frames),
        elapsed_step=np.zeros(num_frames, np.int64),
    )
    return Frames(name, obs, ObsSpace({"Unit": entity, "Thing": entity}), action_space)


def minesweeper_frames(num_frames: int, *, steps: int = 10, seed: int = 0) -> Frames:
    """Observations of MineSweeper after `steps` random steps."""
    return world_frames("MineSweeper", num_frames, steps=steps, seed=seed)


def world_frames(name: str, num_frames: int, *, steps: int = 10, seed: int = 0) -> Frames:
    """Observations of a registered environment after `steps` random steps."""
    rng = np.random.default_rng(seed)
    with make(name, num_envs=num_frames, seed=seed) as env:
        obs = env.reset(seed)
        for _ in range(steps):
            obs = env.act(random_actions(obs, rng, env.action_space()))
        return Frames(name, obs, env.obs_space(), dict(env.action_space()))


def save_frames(frames: Frames, path: Path) -> None:
    """Write the observations as plain arrays, for `peers/policy_peer.py`."""
    arrays: dict[str, np.ndarray] = {}
    buffers = {f"features/{name}": buffer for name, buffer in frames.obs.features.items()}
    for name, mask in frames.obs.action_masks.items():
        buffers[f"actors/{name}"] = mask.actors
        if mask.actees is not None:
            buffers[f"actees/{name}"] = mask.actees
        elif mask.mask is not None:
            buffers[f"mask/{name}"] = mask.mask
    for name, buffer in buffers.items():
        arrays[f"values/{name}"], arrays[f"lengths/{name}"] = buffer.values, buffer.size1()
    np.savez(path, **arrays)


class Policy:
    """A network that acts and learns repeatedly on the same frames, as training does, with a tiny learning rate.

    Attributes:
        compiled: whether `update` is the compiled step.

    Args:
        frames: the observations.
        config: of the network.
        device: of the network. Calls on devices other than the CPU are asynchronous.
    """

    def __init__(self, frames: Frames, config: RogueNetConfig, device: torch.device | str = "cpu") -> None:
        torch.manual_seed(0)
        self.config = config
        self.device = torch.device(device)
        self.obs = frames.obs
        self.net = RogueNet(config, frames.obs_space, frames.action_space).to(self.device)
        self.batch = ObsBatch.from_vec_obs(frames.obs, self.device)
        self.net.update_normalization(self.batch)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-6, eps=1e-5, fused=True)
        number = torch.arange(len(self.batch), device=self.device)
        self.keys = FrameKeys(keyed(keyed(0, number), torch.zeros_like(number)))
        acted = self.net.act(self.batch, generator=self.keys)
        never = torch.zeros_like(number, dtype=torch.bool)
        self.samples = Samples(
            obs=self.batch,
            env_id=number,
            step=number,
            actions=acted.actions,
            log_probs=acted.log_probs,
            values=acted.values,
            rewards=torch.zeros_like(acted.values),
            terminated=never,
            truncated=never,
            final_values=torch.zeros_like(acted.values),
            advantages=torch.randn(len(self.batch)).to(self.device),
            returns=torch.randn(len(self.batch)).to(self.device),
        )
        self.optim = OptimConfig(batch_size=len(self.batch), max_grad_norm=2.0)
        self.settings = PPOSettings.at(PPOConfig())
        self.compiled = self.device.type == "cpu" and can_be_compiled(ActorCritic(self.net))
        self._learn: Callable[[], object] | None = None
        self._within = ExitStack()  # the update that all compiled steps are part of
        weakref.finalize(self, self._within.close)  # not while Python shuts down, when torch is gone

    def act(self) -> None:
        """Convert observations of environments to a batch, sample actions by keyed noise, and convert these back."""
        self.net.act(ObsBatch.from_vec_obs(self.obs, self.device), generator=self.keys).to_buffers()

    def update(self) -> None:
        """Train on one minibatch as training does: by the compiled step where it can be, else by `autograd`."""
        if not self.compiled:
            return self.autograd()
        if self._learn is None:
            self._learn = self._compiled_step()
        self._learn()

    def _compiled_step(self) -> Callable[[], object]:
        from enn_ppo.training.learning.compiled import CompiledPPO

        learning = CompiledPPO(ActorCritic(self.net), self.optimizer)
        frames = self._within.enter_context(learning.holding(self.samples, len(self.samples)))

        def learn() -> None:
            columns = weigh(frames, [frames.frames], [len(frames)], self.settings)[0]
            learning.learn(replace(frames, **columns), self.optim, self.settings)

        return learn

    def autograd(self) -> None:
        """Train on one minibatch by torch's operations: evaluation, losses, gradient, clipping, optimizer step."""
        fresh = replace(self.samples, obs=replace(self.batch))  # without cached properties of the last call
        learn_minibatch(self.net, self.optimizer, fresh.weighed(self.settings), self.optim, self.settings)

    def gflop(self, kind: str) -> float:
        """Floating point operations of the transformer's matrix products, in 10^9, for `act` or `update`.

        A token is multiplied by 3 D² weights for queries, keys and values, D² after the attention and 8 D² in the MLP, two
        operations each; training needs the same number again for the gradients of inputs, and again for those of weights.
        """
        forward = 2 * 12 * self.config.d_model**2 * self.config.n_layer * self.batch.num_tokens
        return forward * (3 if kind == "update" else 1) / 1e9


def seconds_per_call(function: Callable[[], object], seconds: float) -> float:
    """The mean time of a call, over at least one call and about `seconds`."""
    calls, start = 0, time.perf_counter()
    while calls == 0 or time.perf_counter() - start < seconds:
        function()
        calls += 1
    return (time.perf_counter() - start) / calls


def gemm_gflops(seconds: float, size: int = 1024) -> float:
    """The speed of `torch.mm` of large square matrices, in 10^9 operations per second: the best of several calls."""
    a, b, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    torch.mm(a, b, out=out)
    best, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < seconds:
        best = min(best, seconds_per_call(lambda: torch.mm(a, b, out=out), 0))
    return 2 * size**3 / best / 1e9
