"""Everything that training changes, and its way into a checkpoint and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from enn_ppo.checkpoint import Checkpoint, save_checkpoint
from enn_ppo.config import OptimConfig, PPOConfig, TrainConfig
from enn_ppo.environment import BoundEnvironment, check_same_spaces
from enn_ppo.policy import load_weights
from enn_ppo.rollout import Collector
from enn_ppo.schedule import at_progress, decayed
from enn_ppo.settings import to_dict
from entity_gym.saving import spaces_to_dict
from rogue_net import RogueNet


class Settings(NamedTuple):
    """Settings of one update: every schedule has become its number."""

    optim: OptimConfig
    ppo: PPOConfig


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
            self.net.parameters(), lr=0.0, eps=1e-5, weight_decay=config.optim.weight_decay, fused=True
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
        if self.config.max_train_seconds is not None and self.seconds >= self.config.max_train_seconds:
            return 0
        left = (self.config.total_timesteps - self.step) // self.config.rollout.num_envs
        return max(0, min(self.config.rollout.steps, left))

    def progress(self) -> float:
        """How much of the training is done, 0 to 1: by steps, or by the wall clock where that is nearer to its end."""
        by_steps = self.step / self.config.total_timesteps
        by_seconds = self.seconds / self.config.max_train_seconds if self.config.max_train_seconds else 0.0
        return min(1.0, max(by_steps, by_seconds))

    def settings(self) -> Settings:
        """What the schedules say for the next update; its learning rates are set."""
        config, progress = self.config, self.progress()
        optim = at_progress(replace(config.optim, lr=decayed(config.optim.lr, config.optim.anneal_lr)), progress)
        if optim.warmup_steps:
            after = self.step + self.next_steps() * config.rollout.num_envs
            optim = replace(optim, lr=float(optim.lr) * min(1.0, after / optim.warmup_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = optim.lr
        ppo = replace(config.ppo, ent_coef=decayed(config.ppo.ent_coef, config.ppo.anneal_entropy))
        return Settings(optim, at_progress(ppo, progress))

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
            keep=self.config.keep_last,
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
