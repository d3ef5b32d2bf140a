"""An environment runner: a Ray actor with a share of the environments and a copy of the policy.

`Runner` of `group.py` is its counterpart in the training process.
"""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from enn_ppo.checkpoints.policy import set_determinism
from enn_ppo.settings.config import RolloutConfig, TrainConfig
from enn_ppo.training.build import make_model, make_pools, make_sampler
from enn_ppo.training.environment import BoundEnvironment
from enn_ppo.training.on_ray.shipping import Shipped, Weights, load_weights, ship
from enn_ppo.training.sampling import LocalSampler, Parameters, block_state
from entity_gym.actions import ActionSpace
from entity_gym.pools.processes.pickling import pickled_for_worker
from entity_gym.spaces import ObsSpace

CPU = torch.device("cpu")


class Plan(NamedTuple):
    """Arguments of a runner."""

    number: int  # from 0
    config: TrainConfig  # of the run
    env: bytes  # the pickled `BoundEnvironment`
    num_envs: int  # of this runner

    @property
    def rollout(self) -> RolloutConfig:
        """Rollout settings of this runner."""
        return replace(self.config.rollout, num_envs=self.num_envs)

    @property
    def first_env(self) -> int:
        """Number of this runner's first environment in the run."""
        return self.number * self.num_envs

    @property
    def num_blocks(self) -> int:
        """Number of blocks; see `rollout.block` and `rollout.pipeline`."""
        return self.num_envs // self.rollout.block_size

    def part(self, parameters: Parameters) -> dict[str, Sequence[Any]]:
        """Select this runner's environments from parameters with one value for each environment of the run."""
        return {name: values[self.first_env : self.first_env + self.num_envs] for name, values in parameters.items()}


class Spaces(NamedTuple):
    """Spaces of the environments."""

    obs: ObsSpace
    actions: Mapping[str, ActionSpace]


class NewEpisodes(NamedTuple):
    """Arguments for resetting environments."""

    seed: int
    parameters: Parameters  # one value for each of the runner's environments


class Told(NamedTuple):
    """Sizes and timings of a rollout."""

    num_frames: int
    num_bytes: int  # of the rollout
    play_seconds: float


def plans(config: TrainConfig, env: BoundEnvironment) -> list[Plan]:
    """Make a plan for each runner.

    Raises:
        ValueError: the environment cannot be sent to another process, or `rollout.block` does not divide a runner's share.
    """
    num_runners = config.distributed.num_env_runners
    num_envs = config.rollout.num_envs // num_runners
    replace(config.rollout, num_envs=num_envs)  # raises ValueError if the share is not allowed
    pickled = pickled_for_worker(env)
    return [Plan(number, config, pickled, num_envs) for number in range(num_runners)]


class EnvRunner:
    """Plays rollouts on request. Methods run one after the other, in the order of the calls."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._sampler: LocalSampler

    def prepare(self, begin: NewEpisodes | None) -> Spaces:
        """Make the environments and the policies.

        Args:
            begin: how to reset the environments; None: they are reset or restored later.

        Raises:
            ValueError: an environment cannot be made, or breaks its contract.
        """
        plan, config = self._plan, self._plan.config
        torch.set_num_threads(config.num_threads or 1)
        set_determinism(config.torch_deterministic)
        env = self._environment()
        pools = make_pools(env, plan.rollout, config.seed, plan.first_env)
        spaces = pools[0].obs_space(), pools[0].action_space()
        self._models = {name: make_model(config, *spaces) for name in config.policies or [""]}
        self._sampler = make_sampler(config, env, pools, self._models, CPU, plan.first_env)
        if begin:
            self.reset(*begin)
        return Spaces(*spaces)

    def reset(self, seed: int, parameters: Parameters) -> None:
        """Reset all environments."""
        self._sampler.reset(seed, parameters)

    def play(self, key: int, parameters: Parameters, steps: int, *weights: Weights) -> list[Told | Shipped]:
        """Play `steps` steps in every environment.

        Args:
            key: seeds the sampling noise together with the run's seed; the `step` of `LocalSampler.collect`.
            parameters: for episodes that begin from now on, one value for each environment; may be empty.
            steps: number of steps.
            weights: of each policy.

        Returns:
            A `Told`, and the rollout of each policy.

        Raises:
            Exception: raised by an environment; one that calls `sys.exit` must not end this process in silence.
        """
        started = time.perf_counter()
        for model, each in zip(self._models.values(), weights, strict=True):
            load_weights(model, each)
        try:
            played = self._sampler.collect(key, steps, parameters)
        except SystemExit as error:
            raise RuntimeError(f"the environment has called sys.exit({error.code!r})") from error
        seconds = time.perf_counter() - started
        shipped = [ship(rollout) for rollout in played.values()]
        return [Told(steps * self._plan.num_envs, sum(each.num_bytes for each in shipped), seconds), *shipped]

    def _environment(self) -> BoundEnvironment:
        """Unpickle the environment.

        Raises:
            ValueError: the environment cannot be imported on this machine.
        """
        try:
            env: BoundEnvironment = pickle.loads(self._plan.env)
        except (ImportError, AttributeError) as error:
            raise ValueError(
                f"the environment cannot be imported on {socket.gethostname()} ({error}); install it on every machine of the "
                "cluster, or have it under the same path there"
            ) from error
        return env

    def state(self) -> list[dict[str, Any]]:
        """State of each block's environments."""
        return [block_state(block) for block in self._sampler.blocks]

    def load_state(self, blocks: Sequence[Mapping[str, Any]]) -> str | None:
        """Restore `state()`. Returns the reason if that is impossible, else None."""
        return self._sampler.load_state({"blocks": blocks})

    def close(self) -> None:
        """Release the environments."""
        self._sampler.close()
