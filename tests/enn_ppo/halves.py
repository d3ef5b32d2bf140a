"""Two environments, each half of all, whose steps a test has in its hands."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import TracebackType

import torch
from torch import Tensor

from enn_ppo.training.learning.actor_critic import ActingNet
from entity_gym import Action, Observation
from entity_gym.pools.pool import ThreadedVecEnv
from rogue_net import ActResult, FrameKeys, ObsBatch, RogueNet, RogueNetConfig, State
from tests.enn_ppo.rollouts import OnePolicySampler
from tests.enn_ppo.worlds import Copycat

CPU = torch.device("cpu")


class SteppingHook:
    """Hook that is called with each step."""

    def acting(self) -> None:
        """The policy is about to act in a half."""

    def stepping(self, half: int, step: int) -> None:
        """A half is about to take its step number `step`, from 0 since it was made."""


class HookedCopycat(Copycat):
    def __init__(self, half: int, hook: SteppingHook) -> None:
        self._half, self._hook = half, hook
        self._steps = itertools.count()
        self.closed = False

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self._hook.stepping(self._half, next(self._steps))
        return super().act(actions)

    def close(self) -> None:
        self.closed = True


class HookedNet:
    def __init__(self, net: RogueNet, hook: SteppingHook) -> None:
        self._net, self._hook = net, hook

    def act(self, batch: ObsBatch, state: State | None = None, *, generator: FrameKeys | None = None) -> ActResult:
        self._hook.acting()
        return self._net.act(batch, state, generator=generator)

    def value(self, batch: ObsBatch, state: State | None = None) -> Tensor:
        return self._net.value(batch, state)


class Halves:
    """A sampler of them, reset; as a context, it is closed.

    Attributes:
        envs: one of each half.
        sampler: that plays in them.
    """

    def __init__(self, hook: SteppingHook) -> None:
        self.envs = [HookedCopycat(half, hook) for half in range(2)]
        pools = [
            ThreadedVecEnv(lambda env=env: env, 1, first_env=half, background=True)  # type: ignore[misc]
            for half, env in enumerate(self.envs)
        ]
        torch.manual_seed(0)
        net = RogueNet(RogueNetConfig(d_model=8, n_layer=1, n_head=1), pools[0].obs_space(), pools[0].action_space())
        actor: ActingNet = HookedNet(net, hook)
        self.sampler = OnePolicySampler(pools, actor, CPU, 0, pipeline=2)
        self.begin()

    def begin(self) -> None:
        """As a run does."""
        self.sampler.step = 0
        self.sampler.reset(1, {})

    def __enter__(self) -> Halves:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sampler.close()
