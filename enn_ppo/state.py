"""Everything that training changes, and its way into a checkpoint and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from enn_ppo.checkpoint import Checkpoint, save_checkpoint
from enn_ppo.config import TrainConfig, to_dict
from enn_ppo.environment import BoundEnvironment, check_same_spaces
from enn_ppo.policy import load_weights
from enn_ppo.rollout import Collector
from entity_gym.saving import spaces_to_dict
from rogue_net import RogueNet


class TrainState:
    """The policy, its optimizer, the environments and every source of random numbers.

    Args:
        config: of the run.
        env: the environment to make.
        device: where the policy lives.
    """

    def __init__(self, config: TrainConfig, env: BoundEnvironment, device: torch.device) -> None:
        self.config = config
        self.env_name = env.config.id
        self.vec_env = env.make_vec_env(config.rollout, config.seed)
        with torch.random.fork_rng(
            devices=[]
        ):  # on the CPU whatever the device, so that all start from the same weights
            torch.manual_seed(config.seed)
            net = RogueNet(config.net, self.vec_env.obs_space(), self.vec_env.action_space())
        self.net = net.to(device)
        self.optimizer = torch.optim.AdamW(
            self.net.parameters(), lr=config.optim.lr, eps=1e-5, weight_decay=config.optim.weight_decay, fused=True
        )
        self.shuffling = torch.Generator()
        self.collector = Collector(self.vec_env, self.net, device, torch.Generator(device))
        self.step = 0  # environment steps trained
        self.num_updates = 0
        self.seconds = 0.0  # spent training, before an interruption too

    def start(self) -> None:
        """Begin a new run: the input statistics come from a rollout that is played once and not learned from."""
        self.seed_generators()
        self.collector.reset(self.config.seed)
        self.net.update_normalization(self.collector.collect(self.config.rollout.steps).obs)
        self.collector.reset(self.config.seed)

    def seed_generators(self) -> None:
        """Key the random numbers of the next update by the seed and the step, so that no generator needs saving."""
        for purpose, generator in enumerate((self.collector.generator, self.shuffling)):
            key = np.random.SeedSequence((self.config.seed, self.step, purpose)).generate_state(1, np.uint64)
            generator.manual_seed(int(key[0] >> np.uint64(1)))

    def next_steps(self) -> int:
        """Steps of the next rollout: fewer in the last, so that `total_timesteps` is met; 0 when the training is done."""
        left = (self.config.total_timesteps - self.step) // self.config.rollout.num_envs
        return max(0, min(self.config.rollout.steps, left))

    def learning_rate(self) -> float:
        """Set and return the learning rate of the next update."""
        rate = self.config.optim.lr * (self._remaining() if self.config.optim.anneal_lr else 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def ent_coef(self) -> float:
        """The weight of the entropy bonus in the next update."""
        return self.config.ppo.ent_coef * (self._remaining() if self.config.ppo.anneal_entropy else 1.0)

    def advance(self, steps: int, seconds: float) -> None:
        """Count an update."""
        self.step += steps
        self.num_updates += 1
        self.seconds += seconds

    def checkpoint_is_due(self) -> bool:
        """Whether to save now: every `checkpoint_interval` updates, and at the end."""
        return self.num_updates % self.config.checkpoint_interval == 0 or self.next_steps() == 0

    def save(self, run_dir: Path) -> Path:
        """Write a checkpoint into `run_dir`."""
        return save_checkpoint(
            run_dir / "checkpoints",
            self.step,
            policy=self.net.state_dict(),
            config=to_dict(replace(self.config, resume=None, overwrite=False)),
            spaces=spaces_to_dict(self.vec_env.obs_space(), self.vec_env.action_space()),
            trainer={
                "step": self.step,
                "num_updates": self.num_updates,
                "seconds": self.seconds,
                "optimizer": self.optimizer.state_dict(),
                "collector": self.collector.state(),
            },
            keep=self.config.keep_checkpoints,
        )

    def restore(self, checkpoint: Checkpoint) -> str | None:
        """Continue where `checkpoint` was written.

        Returns:
            Why the environments start new episodes, or None if they too continue.

        Raises:
            ValueError: it belongs to another environment or network.
        """
        obs_space, action_space = self.vec_env.obs_space(), self.vec_env.action_space()
        check_same_spaces(checkpoint.spaces, obs_space, action_space, checkpoint=checkpoint.path, env=self.env_name)
        load_weights(self.net, checkpoint.policy, checkpoint)
        saved = checkpoint.trainer
        self.optimizer.load_state_dict(saved["optimizer"])
        for group in self.optimizer.param_groups:  # the present setting, not the saved one; so is lr, at every update
            group["weight_decay"] = self.config.optim.weight_decay
        self.step, self.num_updates, self.seconds = saved["step"], saved["num_updates"], saved["seconds"]
        problem = self.collector.load_state(saved["collector"])
        if problem:
            self.collector.reset()
        return problem

    def _remaining(self) -> float:
        """Fraction of the training still to come, 1 to 0."""
        return max(0.0, 1 - self.step / self.config.total_timesteps)
