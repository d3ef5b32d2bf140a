"""Everything that training changes, and its way into a checkpoint and back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from enn_ppo.actor_critic import ActorCritic
from enn_ppo.advantages import Advantages, gae, n_step
from enn_ppo.callbacks import Callback
from enn_ppo.checkpoints import Checkpoint, Retention, save_checkpoint
from enn_ppo.checkpoints.policy import saved_config
from enn_ppo.checkpoints.saving import what_is_there
from enn_ppo.checkpoints.transfer import Transferred, transfer_optimizer, transfer_weights, untransferred
from enn_ppo.config import EnvConfig, PPOConfig, TrainConfig
from enn_ppo.environment import BoundEnvironment
from enn_ppo.recording.recorder import open_recorder
from enn_ppo.return_scale import ReturnScale, RewardScale
from enn_ppo.rollout import Collector, Rollout
from enn_ppo.self_play.pool import SelfPlay
from enn_ppo.settings.distributions import draw_parameters
from enn_ppo.settings.schedule import Scheduled, at_progress, decayed, parse_schedule
from enn_ppo.settings.schema import to_dict
from enn_ppo.tracking.metrics import Row, env_info_row
from enn_ppo.tracking.run_dir import CHECKPOINTS
from entity_gym.saving import spaces_to_dict
from rogue_net import ObsBatch, RogueNet

RECENT_EPISODES = 100


class Settings(NamedTuple):
    """Settings of one update: every schedule has become its number."""

    ppo: PPOConfig
    learning_rate: float  # of the policy


class Restored(NamedTuple):
    """How a run continues."""

    problem: str | None  # why the environments start new episodes; None if they too continue
    news: tuple[str, ...]  # a line for each thing that is new, or means something else now


class TrainState:
    """The policy, its optimizer, the environments and every source of random numbers.

    Args:
        config: of the run.
        env: the environment to make.
        device: where the policy lives.
        callback: may choose the parameters of environments.
    """

    def __init__(self, config: TrainConfig, env: BoundEnvironment, device: torch.device, callback: Callback) -> None:
        self.config = config
        self.env_name = env.config.id
        self.callback = callback
        self.vec_env = env.make_vec_env(config.rollout, config.seed)
        self.model = self._make_model().to(device)
        self.self_play: SelfPlay | None = None
        if config.self_play.enabled:
            self.self_play = SelfPlay(config.self_play, self.net, device, config.seed)
            self.vec_env = self.self_play.seat(self.vec_env, env.source, self.env_name)
        self.optimizer = make_optimizer(self.model, config)
        self.shuffling = torch.Generator()
        self.collector = Collector(self.vec_env, self.model, device, torch.Generator(device))
        self.reward_scale = RewardScale(len(self.vec_env)) if config.ppo.normalize == "rewards" else None
        self.return_scale = ReturnScale() if config.ppo.normalize == "returns" else None
        self.step = 0  # environment steps trained
        self.num_updates = 0
        self.seconds = 0.0  # spent training, before an interruption too
        self.recent_rewards: deque[float] = deque(maxlen=RECENT_EPISODES)
        self.evaluations: Sequence[int] = ()  # steps that were being evaluated when the restored checkpoint was saved
        self.env_info: Mapping[str, Sequence[Any]] = {}  # parameters drawn for the last update

    @property
    def net(self) -> RogueNet:
        """The policy's network."""
        return self.model.policy

    def _make_model(self) -> ActorCritic:
        obs_space, action_space = self.vec_env.obs_space(), self.vec_env.action_space()
        # on the CPU whatever the device, so that all start from the same weights
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            policy = RogueNet(self.config.net, obs_space, action_space)
            value_net = self.config.value_net
            return ActorCritic(policy, RogueNet(value_net, obs_space, action_space) if value_net else None)

    def start(self) -> None:
        """Begin a new run: the input statistics come from a rollout that is played once and not learned from."""
        self.reset()
        self.model.update_normalization(self.collector.collect(self.config.rollout.steps).obs)
        if self.self_play:
            self.self_play.add(0)
        self.reset()

    def reset(self) -> None:
        """Start the environments as a new run does."""
        self.seed_generators()
        self.collector.reset(self.config.seed, self._draw_env_info() or None)

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

    def begin_update(self) -> Settings:
        """Seed the generators, draw the environments' parameters, and set the learning rates of the next update."""
        self.seed_generators()
        if info := self._draw_env_info():
            self.vec_env.configure(info)
        if self.reward_scale:
            self.collector.value_unit = self.reward_scale.deviation
        config, progress = self.config, self.progress()
        rates = [self._learning_rate(config.optim.lr), self._learning_rate(config.value_optim.lr or config.optim.lr)]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=False):
            group["lr"] = rate
        ppo = replace(config.ppo, ent_coef=decayed(config.ppo.ent_coef, config.ppo.anneal_entropy))
        return Settings(at_progress(ppo, progress), rates[0])

    def _learning_rate(self, lr: Scheduled) -> float:
        """What the schedule, the annealing and the warm-up make of `lr` now."""
        optim = self.config.optim
        rate = parse_schedule("optim.lr", decayed(lr, optim.anneal_lr))(self.progress())
        if not optim.warmup_steps:
            return rate
        after = self.step + self.next_steps() * self.config.rollout.num_envs
        return rate * min(1.0, after / optim.warmup_steps)

    def _draw_env_info(self) -> Mapping[str, Sequence[Any]]:
        """Parameters for the episodes that begin from now on; empty where nothing says any."""
        rng = np.random.default_rng(np.random.SeedSequence((self.config.seed, self.step, 2)))
        num_envs, progress = len(self.vec_env), self.progress()
        drawn: dict[str, Sequence[Any]] = dict(draw_parameters(self.config.env.info, progress, num_envs, rng))
        self.env_info = drawn | dict(self.callback.env_info(progress, num_envs, rng) or {})
        return self.env_info

    def estimate_advantages(self, rollout: Rollout, ppo: PPOConfig) -> Advantages:
        """Advantages and returns, of rewards and in values that are scaled as `ppo.normalize` says."""
        rewards, gamma = rollout.rewards, float(ppo.gamma)
        if self.reward_scale:
            rewards = self.reward_scale(rewards, rollout.terminated | rollout.truncated, gamma)
        played = (rollout.values, rollout.terminated, rollout.truncated, rollout.final_values, rollout.last_values)
        if ppo.advantages == "gae":
            advantages = gae(rewards, *played, gamma=gamma, gae_lambda=float(ppo.gae_lambda))
        else:
            advantages = n_step(rewards, *played, gamma=gamma, n_steps=ppo.n_steps or len(rewards))
        if self.return_scale:
            self.return_scale(advantages.returns, self.model.value_head)
        return advantages

    def update_normalization(self, obs: ObsBatch) -> None:
        """Take what was seen into the input statistics, unless they are frozen."""
        limit = self.config.rollout.freeze_normalization_after
        if limit is None or self.step < limit:
            self.model.update_normalization(obs)

    def metrics(self) -> Row:
        """What there is to tell beside rollout and update: the parameters that environments got, and ratings."""
        return env_info_row(self.env_info) | (self.self_play.metrics() if self.self_play else {})

    def recent_reward(self) -> float | None:
        """The mean reward of the last episodes, up to `RECENT_EPISODES`; None before the first."""
        return sum(self.recent_rewards) / len(self.recent_rewards) if self.recent_rewards else None

    def advance(self, rollout: Rollout, seconds: float) -> None:
        """Count an update that learned from `rollout` and took so many seconds."""
        self.step += rollout.rewards.numel()
        self.recent_rewards.extend(episode.reward for episode in rollout.episodes)
        self.num_updates += 1
        self.seconds += seconds
        if self.self_play:
            self.self_play.update(rollout.episodes, self.step)

    def save(self, run_dir: Path, *, evaluations: Sequence[int] = (), score: float | None = None) -> Path:
        """Write a checkpoint into `run_dir`.

        Args:
            run_dir: the run's directory.
            evaluations: steps whose checkpoints are being evaluated, or will be.
            score: how good the policy is, where that is known already.
        """
        scale = self.reward_scale or self.return_scale
        value_net, recorder, self_play = self.model.value_net, self.collector.recorder, self.self_play
        if self_play:  # first what the checkpoint needs
            try:
                self_play.write(run_dir)
            except ValueError as error:
                raise ValueError(f"{error}; {what_is_there(run_dir / CHECKPOINTS)}") from error
        saved = save_checkpoint(
            run_dir / CHECKPOINTS,
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
                "scale": scale.state() if scale else None,
                "recorder": recorder.state() if recorder else None,
                "recent_rewards": list(self.recent_rewards),
                "evaluations": list(evaluations),
                "self_play": self_play.state() if self_play else None,
            },
            retention=Retention(
                keep_last=self.config.keep_last,
                keep_best=self.config.keep_best,
                keep_every_minutes=self.config.keep_every_minutes,
                protected=evaluations,
            ),
            more_weights={"value_net": value_net.state_dict()} if value_net else None,
            seconds=self.seconds,
            score=score,
        )
        if self_play:
            self_play.clean(run_dir, self.step)
        return saved

    def restore(self, checkpoint: Checkpoint) -> Restored:
        """Continue where `checkpoint` was written. What the environment has gained since is found by its name.

        Raises:
            ValueError: it belongs to another environment or network.
        """
        networks = [transfer_weights(self.net, checkpoint, self.env_name)]
        if value_net := self.model.value_net:
            is_known = "value_net" in checkpoint.more_weights
            networks.append(
                transfer_weights(value_net, checkpoint, self.env_name, "value_net")
                if is_known
                else untransferred(value_net)
            )
        saved, before = checkpoint.trainer, saved_config(checkpoint)
        transfer_optimizer(self.optimizer, saved["optimizer"], networks)
        scale = self.reward_scale or self.return_scale
        news = list(networks[0].news)
        if before.ppo.normalize != self.config.ppo.normalize:
            news.append(
                f"ppo.normalize was {before.ppo.normalize!r} and is {self.config.ppo.normalize!r}: values, until now in another "
                "unit, are learned anew"
            )
        elif scale and saved["scale"]:
            scale.load_state(saved["scale"])
        self.step, self.num_updates, self.seconds = saved["step"], saved["num_updates"], saved["seconds"]
        self.recent_rewards.extend(saved["recent_rewards"])
        self.evaluations = saved["evaluations"]
        if self.self_play:
            self._restore_self_play(saved["self_play"], checkpoint.path.parent.parent)
        problem = (
            networks[0].changed
            or _parameters_changed(before.env, self.config.env)
            or self.collector.load_state(saved["collector"])
        )
        if problem:  # by a seed of its own, for those of the run's beginning have been played
            key = np.random.SeedSequence((self.config.seed, self.step, 3)).generate_state(1)
            self.collector.reset(int(key[0]), self._draw_env_info() or None)
            if self.reward_scale:
                self.reward_scale.begin()
        self._measure_what_is_new(networks)
        return Restored(problem, tuple(news))

    def _restore_self_play(self, saved: Mapping[str, Any] | None, run_dir: Path) -> None:
        assert self.self_play is not None
        if saved is None:  # the run has played without until now
            self.self_play.add(self.step)
        else:
            self.self_play.load_state(saved, run_dir)

    def record(self, saved: Mapping[str, Any] | None) -> None:
        """Record from now on, if the settings say so.

        Args:
            saved: the recorder's state in the checkpoint that is continued.

        Raises:
            ValueError: the file cannot be written, or does not fit.
        """
        spaces = self.vec_env.obs_space(), self.vec_env.action_space()
        self.collector.recorder = open_recorder(
            self.config.record, *spaces, logits=self.config.record_logits, saved=saved
        )

    def close(self) -> None:
        """Close the environments, and the recording."""
        with closing(self.vec_env):
            if self.collector.recorder:
                self.collector.recorder.close()

    def _measure_what_is_new(self, networks: Sequence[Transferred]) -> None:
        """Give features without statistics those of a rollout that is played once and not learned from, as in `start`."""
        if any(network.unmeasured for network in networks):
            self.seed_generators()
            obs = self.collector.collect(self.config.rollout.steps).obs
            for network in networks:
                network.measure(obs)


def _parameters_changed(saved: EnvConfig, now: EnvConfig) -> str | None:
    """Which argument of the environment has another value than in the checkpoint's settings; None if none has.

    Saved states hold the parameters of their time, and would bring them back for all episodes to come.
    """
    before, after = saved.kwargs, now.kwargs
    for name in {**before, **after}:
        if before.get(name, "not set") != after.get(name, "not set"):
            return f"env.kwargs.{name} was {before.get(name, 'not set')} and is {after.get(name, 'not set')}"
    for name in saved.info:
        if name not in now.info:
            return f"env.info.{name} was {saved.info[name]} and is not set"
    return None


def make_optimizer(model: ActorCritic, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW of the policy, and in a second group of the value network where there is one."""
    return torch.optim.AdamW(optimizer_groups(model, config), lr=0.0, eps=1e-5, fused=True)


def optimizer_groups(model: ActorCritic, config: TrainConfig) -> list[dict[str, Any]]:
    """The parameters and settings of each group; the learning rates are set before every update."""
    optim, own = config.optim, config.value_optim
    policy = {"params": list(model.policy.parameters()), "weight_decay": optim.weight_decay}
    if model.value_net is None:
        return [policy | {"max_grad_norm": optim.max_grad_norm}]
    value = {
        "params": list(model.value_net.parameters()),
        "weight_decay": optim.weight_decay if own.weight_decay is None else own.weight_decay,
        "max_grad_norm": own.max_grad_norm or optim.max_grad_norm,
    }
    return [policy | {"max_grad_norm": optim.max_grad_norm}, value]
