"""An environment runner: a Ray actor with a share of the environments and a copy of the policy.

`RunnerHandle` is its counterpart in the training process.
"""

from __future__ import annotations

import pickle
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from enn_ppo.checkpoints import Checkpoint, load_checkpoint
from enn_ppo.checkpoints.fit import fit_net
from enn_ppo.checkpoints.policy import set_determinism
from enn_ppo.eval.episodes import play_episodes, policy_seed
from enn_ppo.eval.policy import Policy
from enn_ppo.settings.config import RolloutConfig, TrainConfig
from enn_ppo.settings.evaluation import EpisodesConfig
from enn_ppo.training.environment import BoundEnvironment
from enn_ppo.training.learning.learner import make_model
from enn_ppo.training.on_ray.shipping import Shipped, Weights, load_weights, ship
from enn_ppo.training.players import cast_of
from enn_ppo.training.sampling import LocalSampler, Parameters, block_state, make_pools
from entity_gym.actions import ActionSpace
from entity_gym.pools.episodes import Episode
from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.pools.processes.pickling import pickled_for_worker
from entity_gym.spaces import ObsSpace
from rogue_net.finite import NotFinite

CPU = torch.device("cpu")
MOST_FRAMES = 4  # stack frames of a traceback that are shown: the innermost ones, which are in the environment


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
    """Sizes and timings of a rollout, or the failure of an environment."""

    num_frames: int = 0
    num_bytes: int = 0  # of the rollout
    play_seconds: float = 0.0
    handover_seconds: float = 0.0  # between the last step and the end of the transfer to the object store
    failure: str | None = (
        None  # exception of an environment; then there is no rollout, and the runner must be restarted
    )
    not_finite: NotFinite | None = None  # ends the run; there is no rollout either


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
        self._told = Told()
        self._packed_from = 0.0

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
        self._cast = cast_of(config.policies, env.source, env.config.id) if config.policies else None
        self._sampler = LocalSampler(
            pools, self._models, CPU, config.seed, plan.first_env, cast=self._cast, pipeline=plan.rollout.pipeline
        )
        if begin:
            self.reset(*begin)
        return Spaces(*spaces)

    def reset(self, seed: int, parameters: Parameters) -> None:
        """Reset all environments."""
        self._sampler.reset(seed, parameters or None)

    def play(self, key: int, parameters: Parameters, steps: int, *weights: Weights) -> Shipped | None | list[Any]:
        """Play `steps` steps in every environment. An exception of an environment is reported by `told`.

        Args:
            key: seeds the sampling noise together with the run's seed; see `Sampler.key`.
            parameters: for episodes that begin from now on, one value for each environment; may be empty.
            steps: number of steps.
            weights: of each policy.

        Returns:
            The rollout, or a list with one for each policy.
        """
        started = time.perf_counter()
        try:
            self._load(weights)
            self._sampler.key(key)
            if parameters:
                self._sampler.configure(parameters)
            played = self._sampler.collect(steps)
        except NotFinite as error:
            self._told = Told(not_finite=error)
            return None if len(weights) == 1 else [None] * len(weights)
        except (Exception, SystemExit) as error:
            traceback.print_exc(limit=-MOST_FRAMES)
            sys.stderr.flush()
            self._told = Told(failure=describe(error))
            return None if len(weights) == 1 else [None] * len(weights)
        self._packed_from = time.perf_counter()
        shipped = [ship(rollout) for rollout in played.values()]
        num_frames = steps * self._plan.num_envs
        num_bytes = sum(each.num_bytes for each in shipped)
        self._told = Told(num_frames, num_bytes, self._packed_from - started)
        return shipped[0] if len(shipped) == 1 else list(shipped)

    def _load(self, weights: Sequence[Weights]) -> None:
        for model, each in zip(self._models.values(), weights, strict=True):
            load_weights(model, each)

    def told(self) -> Told:
        """Sizes, timings and failure of the last `play`. Ray calls this after it has stored the rollout."""
        return self._told._replace(handover_seconds=time.perf_counter() - self._packed_from)

    def final_episodes(self, number: int, seed: int, *weights: Weights) -> dict[str, list[Episode]]:
        """Play `number` whole episodes, as an evaluation does; `seed` seeds environments and actions.

        Returns:
            Policy -> its episodes.

        Raises:
            Exception: whatever the environment raises.
        """
        self._load(weights)
        env = self._environment()
        config = EpisodesConfig(episodes=number, num_envs=min(number, self._plan.num_envs), seed=seed)
        spaces = self._sampler.obs_space(), self._sampler.action_space()
        policies = {}
        for place, (name, model) in enumerate(self._models.items()):
            fitted = fit_net(model.policy, *spaces, CPU, "the policy", env.config.id)
            policies[name] = Policy(fitted, torch.Generator().manual_seed(policy_seed(seed, place)))
        with ThreadedVecEnv(env.source, config.num_envs, seed=seed, autoreset=False) as pool:
            return play_episodes(policies, pool, config, self._cast)

    def read_checkpoint(self, path: str, policy: str) -> Checkpoint:
        """Read a checkpoint on this runner's machine. `policy` names one policy of a run with several.

        Raises:
            ValueError: there is no such checkpoint.
        """
        own = Path(path) / policy
        return load_checkpoint(own if own.is_dir() else Path(path))

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


def describe(error: BaseException) -> str:
    """Format an exception as one line: type, message, and its one-line notes."""
    notes = [note for note in getattr(error, "__notes__", []) if "\n" not in note]
    return "; ".join([f"{type(error).__name__}: {error}", *notes])
