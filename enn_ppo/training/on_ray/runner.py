"""An environment runner: a Ray actor with a share of the environments and a copy of the policy.

`Runner` of `group.py` is its counterpart in the training process.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from enn_ppo.checkpoints.policy import set_determinism
from enn_ppo.settings.config import RolloutConfig, TrainConfig
from enn_ppo.training.build import make_model, make_pools
from enn_ppo.training.on_ray.shipping import Weights, load_weights, ship
from enn_ppo.training.players import cast_of
from enn_ppo.training.sampling import LocalSampler, Parameters, block_state
from entity_gym.actions import ActionSpace
from entity_gym.spaces import ObsSpace

CPU = torch.device("cpu")
#: Observation space, and action name -> its space.
Spaces = tuple[ObsSpace, Mapping[str, ActionSpace]]


class EnvRunner:
    """Plays rollouts on request. Methods run one after the other, in the order of the calls.

    Args:
        config: of the run.
        rollout: settings of this runner's rollouts.
        first_env: number of this runner's first environment in the run.
        env: the pickled `BoundEnvironment`.
    """

    def __init__(self, config: TrainConfig, rollout: RolloutConfig, first_env: int, env: bytes) -> None:
        self._config, self._rollout, self._first_env, self._env = config, rollout, first_env, env
        self._sampler: LocalSampler

    def prepare(self, seed: int | None, parameters: Parameters) -> Spaces:
        """Make the environments and the policies.

        Args:
            seed: resets the environments; None: they are reset or restored later.
            parameters: as in `reset`.

        Raises:
            ValueError: an environment cannot be made, or breaks its contract.
        """
        config = self._config
        torch.set_num_threads(config.num_threads or 1)
        set_determinism(config.torch_deterministic)
        try:
            env = pickle.loads(self._env)
        except (ImportError, AttributeError) as error:
            raise ValueError(
                f"the environment cannot be imported on {socket.gethostname()} ({error}); install it on every machine of the "
                "cluster, or have it under the same path there"
            ) from error
        pools = make_pools(env, self._rollout, config.seed, self._first_env)
        spaces = pools[0].obs_space(), pools[0].action_space()
        self._models = {
            name: make_model(config.net, config.value_net, spaces, config.seed) for name in config.policies or [""]
        }
        nets = {name: model.acting_net for name, model in self._models.items()}
        cast = cast_of(config.policies, env.source, env.config.id) if config.policies else None
        pipeline = config.rollout.pipeline
        self._sampler = LocalSampler(pools, nets, CPU, config.seed, self._first_env, cast=cast, pipeline=pipeline)
        if seed is not None:
            self.reset(seed, parameters)
        return spaces

    def reset(self, seed: int, parameters: Parameters) -> None:
        """Reset all environments, with one value of each parameter for each environment of this runner."""
        self._sampler.reset(seed, parameters)

    def play(self, key: int, parameters: Parameters, steps: int, *weights: Weights) -> list[Any]:
        """Play `steps` steps in every environment.

        Args:
            key: seeds the sampling noise together with the run's seed; the `step` of `LocalSampler.collect`.
            parameters: for episodes that begin from now on, as in `reset`; may be empty.
            steps: number of steps.
            weights: of each policy.

        Returns:
            None, and the rollout of each policy as arrays.

        Raises:
            Exception: raised by an environment; one that calls `sys.exit` must not end this process in silence.
        """
        for model, each in zip(self._models.values(), weights, strict=True):
            load_weights(model, each)
        try:
            played = self._sampler.collect(key, steps, parameters)
        except SystemExit as error:
            raise RuntimeError(f"the environment has called sys.exit({error.code!r})") from error
        # runners play at the same time, so an update, which adds their times, is to get the mean
        for rollout in played.values():
            rollout.stats.env_seconds /= self._config.distributed.num_env_runners
            rollout.stats.act_seconds /= self._config.distributed.num_env_runners
        return [None, *map(ship, played.values())]

    def state(self) -> list[dict[str, Any]]:
        """State of each block's environments."""
        return [block_state(block) for block in self._sampler.blocks]

    def load_state(self, blocks: Sequence[Mapping[str, Any]]) -> str | None:
        """Restore `state()`. Returns the reason if that is impossible, else None."""
        return self._sampler.load_state({"blocks": blocks})

    def close(self) -> None:
        """Release the environments."""
        self._sampler.close()
