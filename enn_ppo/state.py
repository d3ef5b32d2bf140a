"""The state of a training run, and how it is saved to and restored from checkpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from enn_ppo.actor_critic import ActorCritic
from enn_ppo.callbacks import Callback
from enn_ppo.checkpoints import Checkpoint, Retention, save_checkpoint
from enn_ppo.checkpoints.policy import saved_config
from enn_ppo.checkpoints.saving import what_is_there
from enn_ppo.config import EnvConfig, TrainConfig
from enn_ppo.ddp.sampling import RankSampler, make_own_pools
from enn_ppo.environment import BoundEnvironment
from enn_ppo.learner import Learner, Learns, Settings
from enn_ppo.ppo import PPOSettings
from enn_ppo.random_keys import Purpose, random_key
from enn_ppo.ranks import ALONE, Ranks
from enn_ppo.recording.recorder import Recorder, open_recorder
from enn_ppo.sampling import LocalSampler, Sampler
from enn_ppo.self_play.pool import SelfPlay
from enn_ppo.settings.schema import to_dict
from enn_ppo.tracking.counts import Played
from enn_ppo.tracking.logger import Row
from enn_ppo.tracking.metrics import env_info_row
from enn_ppo.tracking.progress import announce
from enn_ppo.tracking.run_dir import CHECKPOINTS
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.pools.vec_env import VecEnv
from rogue_net import RogueNet

RECENT_EPISODES = 100


class Parts(NamedTuple):
    """The learner and the sampler of a run."""

    learner: Learns
    sampler: Sampler


class Restored(NamedTuple):
    """Result of `TrainState.restore`."""

    problem: str | None  # why the environments start new episodes; None if they too continue
    news: tuple[str, ...]  # one line for each entity type, feature or action that is new or has changed


class TrainState:
    """The learner, the sampler and the counters of a run.

    Args:
        config: settings of the run.
        env: the environment to train in.
        device: of the policy.
        callback: may set parameters of the environments (`Callback.env_info`).
        ranks: the processes that train together.
        parts: a learner and a sampler to use; None: they are made here.
    """

    def __init__(
        self,
        config: TrainConfig,
        env: BoundEnvironment,
        device: torch.device,
        callback: Callback,
        ranks: Ranks = ALONE,
        parts: Parts | None = None,
    ) -> None:
        self.config, self.ranks = config, ranks
        self.env_name = env.config.id
        self.callback = callback
        self.learner: Learns
        self.sampler: Sampler
        self.self_play: SelfPlay | None = None
        if parts:
            self.learner, self.sampler = parts
        elif config.distributed.mode == "ray":
            from enn_ppo.distributed.start import start_on_ray  # Ray is optional

            on_ray = start_on_ray(config, env)
            self.learner, self.sampler = on_ray.learners[0], on_ray.sampler
        else:
            self._start_here(env, device)
        self.step = 0  # environment steps trained
        self.num_updates = 0
        self.seconds = 0.0  # of training, including those before the run was resumed
        self.recent_rewards: deque[float] = deque(maxlen=RECENT_EPISODES)
        self.evaluations: Sequence[
            int
        ] = ()  # steps whose evaluation was unfinished when the restored checkpoint was saved
        self.env_info: Mapping[str, Sequence[Any]] = {}  # parameters of the environments, drawn for the last update
        self.recorder: Recorder | None = None

    def _start_here(self, env: BoundEnvironment, device: torch.device) -> None:
        """Make a learner and a sampler in this process."""
        config, ranks = self.config, self.ranks
        pools: list[VecEnv] = make_own_pools(env, config.rollout, config.seed, ranks)
        learner = Learner(config, pools[0].obs_space(), pools[0].action_space(), device, ranks)
        self.learner = learner
        if config.self_play.enabled:
            self.self_play = SelfPlay(config.self_play, self.net, device, config.seed)
            pools = [self.self_play.seat(pools[0], env.source, self.env_name)]
        pipeline = config.rollout.pipeline
        self.sampler = (
            RankSampler(pools, self.model, device, config.seed, ranks, pipeline)
            if ranks.size > 1
            else LocalSampler(
                pools,
                self.model,
                device,
                config.seed,
                pipeline=pipeline,
                graphs=learner.uses_graphs,
                logits=config.record is not None and config.record_logits,
            )
        )

    @property
    def model(self) -> ActorCritic:
        """The policy and the value function."""
        return self.learner.model

    @property
    def net(self) -> RogueNet:
        """The policy's network."""
        return self.model.policy

    def start(self) -> None:
        """Begin a new run. A first rollout, which is not trained on, measures the mean and variance of each input."""
        announce("playing a first rollout, which measures the observations")
        self.reset()
        self.learner.measure_rollout(self.sampler.collect(self.config.rollout.steps))
        if self.self_play:
            self.self_play.add(0)
        self.reset()

    def reset(self) -> None:
        """Reset all environments with the run's seed."""
        self.sampler.key(self.step)
        with _naming_the_setting():
            self.sampler.reset(self.config.seed, self._draw_env_info() or None)

    def next_steps(self) -> int:
        """Steps of the next rollout in each environment.

        The last rollout is shorter, so that the run does not exceed `total_timesteps`. 0 when the training is done.
        """
        if self.config.max_train_seconds is not None and self.seconds >= self.config.max_train_seconds:
            return 0
        left = (self.config.total_timesteps - self.step) // self.config.rollout.num_envs
        return max(0, min(self.config.rollout.steps, left))

    def progress(self) -> float:
        """The part of the training that is done, 0 to 1: the larger of that of the steps and that of `max_train_seconds`."""
        by_steps = self.step / self.config.total_timesteps
        by_seconds = self.seconds / self.config.max_train_seconds if self.config.max_train_seconds else 0.0
        return min(1.0, max(by_steps, by_seconds))

    def begin_update(self) -> Settings:
        """Seed the random numbers of the update, draw parameters of the environments, and evaluate the schedules."""
        self.sampler.key(self.step)
        if info := self._draw_env_info():
            with _naming_the_setting():
                self.sampler.configure(info)
        progress, (policy, value) = self.progress(), self.config.learning_rates
        rates = self._warmed_up(policy(progress)), self._warmed_up(value(progress))
        return Settings(self.step, PPOSettings.at(self.config.ppo, progress), rates)

    def collect(self, steps: int) -> Any:
        """Play `steps` steps in every environment, and record them if `config.record` is set; see `Sampler.collect`.

        Raises:
            RecordingError: the recording cannot be written.
        """
        rollout = self.sampler.collect(steps)
        if self.recorder:
            assert isinstance(self.learner, Learner), "only local runs record"
            frames, unit = rollout.frames, self.learner.value_unit  # recorded values are in rewards
            self.recorder.add(replace(frames, values=frames.values * unit, final_values=frames.final_values * unit))
            self.recorder.flush()
        return rollout

    def _warmed_up(self, rate: float) -> float:
        """The learning rate of the next update, lowered during the warm-up."""
        optim = self.config.optim
        if not optim.warmup_steps:
            return rate
        after = self.step + self.next_steps() * self.config.rollout.num_envs
        return rate * min(1.0, after / optim.warmup_steps)

    def _draw_env_info(self) -> Mapping[str, Sequence[Any]]:
        """Draw the parameters of episodes that begin from now on; empty if none are set."""
        rng = np.random.default_rng(np.random.SeedSequence((self.config.seed, self.step, Purpose.PARAMETERS)))
        num_envs, progress = self.config.rollout.num_envs, self.progress()
        drawn: dict[str, Sequence[Any]] = {
            name: each.draw(progress, num_envs, rng) for name, each in self.config.env.distributions.items()
        }
        asked = self.ranks.lead(lambda: self.callback.env_info(progress, num_envs, rng))
        self.env_info = drawn | dict(asked or {})
        return self.env_info

    def metrics(self) -> Row:
        """Metrics beside those of rollout and update: parameters of environments, ratings, counters of sampler and learner."""
        row = env_info_row(self.env_info) | (self.self_play.metrics() if self.self_play else {})
        return row | dict(self.sampler.metrics()) | dict(self.learner.metrics())

    def recent_reward(self) -> float | None:
        """The mean reward of the last episodes, up to `RECENT_EPISODES`; None before the first."""
        return sum(self.recent_rewards) / len(self.recent_rewards) if self.recent_rewards else None

    def advance(self, played: Played, seconds: float) -> None:
        """Count an update.

        Args:
            played: episodes and frames of its rollout.
            seconds: that it took.
        """
        self.step += played.num_frames
        self.recent_rewards.extend(episode.reward for episode in played.episodes)
        self.num_updates += 1
        self.seconds += seconds
        if self.self_play:
            self.self_play.update(played.episodes, self.step)

    def save(self, run_dir: Path, *, evaluations: Sequence[int] = (), score: float | None = None) -> Path:
        """Write a checkpoint into `run_dir`.

        Args:
            run_dir: the run's directory.
            evaluations: steps whose evaluation is unfinished; a resumed run does it.
            score: of the policy; None if it is not known yet.
        """
        learner, self_play = self.learner.state(), self.self_play
        if self_play:  # the checkpoint refers to these files, so they are written first
            try:
                self_play.write(run_dir)
            except ValueError as error:
                raise ValueError(f"{error}; {what_is_there(run_dir / CHECKPOINTS)}") from error
        trainer = {
            "step": self.step,
            "num_updates": self.num_updates,
            "seconds": self.seconds,
            "optimizer": learner.optimizer,
            "collector": self.sampler.state(),
            "scale": learner.scale,
            "recorder": self.recorder.state() if self.recorder else None,
            "recent_rewards": list(self.recent_rewards),
            "evaluations": list(evaluations),
            "self_play": self_play.state() if self_play else None,
        }
        saved = self.ranks.lead(
            lambda: save_checkpoint(
                run_dir / CHECKPOINTS,
                self.step,
                policy=learner.policy,
                config=to_dict(replace(self.config, resume=None, overwrite=False)),
                spaces=spaces_to_dict(self.sampler.obs_space(), self.sampler.action_space()),
                trainer=trainer,
                retention=Retention(
                    keep_last=self.config.keep_last,
                    keep_best=self.config.keep_best,
                    keep_every_minutes=self.config.keep_every_minutes,
                    protected=evaluations,
                ),
                more_weights={"value_net": learner.value_net} if learner.value_net else None,
                seconds=self.seconds,
                score=score,
            )
        )
        if self_play:
            self_play.clean(run_dir, self.step)
        return saved

    def restore(self, checkpoint: Checkpoint) -> Restored:
        """Continue from `checkpoint`. Entity types, features and actions are matched by name; new ones start untrained.

        Raises:
            ValueError: it belongs to another environment or network.
        """
        news = self.learner.restore(checkpoint, self.env_name)
        saved = checkpoint.trainer
        self.step, self.num_updates, self.seconds = saved["step"], saved["num_updates"], saved["seconds"]
        self.recent_rewards.extend(saved["recent_rewards"])
        self.evaluations = saved["evaluations"]
        if self.self_play:
            self._restore_self_play(saved["self_play"], checkpoint.path.parent.parent)
        problem = (
            news.changed
            or _parameters_changed(saved_config(checkpoint).env, self.config.env)
            or self.sampler.load_state(saved["collector"])
        )
        if problem:  # with another seed than at the start of the run, whose episodes have been played
            key = random_key(self.config.seed, self.step, Purpose.NEW_EPISODES)
            self.sampler.reset(key, self._draw_env_info() or None)
            self.learner.begin_episodes()
        if news.unmeasured:  # new inputs; measured by a rollout that is not trained on, as in `start`
            self.sampler.key(self.step)
            self.learner.measure_what_is_new(self.sampler.collect(self.config.rollout.steps))
        return Restored(problem, news.news)

    def _restore_self_play(self, saved: Mapping[str, Any] | None, run_dir: Path) -> None:
        assert self.self_play is not None
        if saved is None:  # self-play was off until now
            self.self_play.add(self.step)
        else:
            self.self_play.load_state(saved, run_dir)

    def record(self, saved: Mapping[str, Any] | None) -> None:
        """Start recording, if `config.record` is set.

        Args:
            saved: state of the recorder in the checkpoint of a resumed run; None: a new run.

        Raises:
            ValueError: the file cannot be written, or was recorded in another environment.
        """
        if self.config.record is None:
            return
        spaces = self.sampler.obs_space(), self.sampler.action_space()
        self.recorder = open_recorder(self.config.record, *spaces, logits=self.config.record_logits, saved=saved)

    def close(self) -> None:
        """Close the environments, the recording, and the learner."""
        with ExitStack() as stack:
            stack.callback(self.learner.close)
            stack.callback(self.sampler.close)
            if self.recorder:
                stack.callback(self.recorder.close)


@contextmanager
def _naming_the_setting() -> Iterator[None]:
    """Name the setting `env.info` in errors of pools, which call it `env_info`."""
    try:
        yield
    except ValueError as error:
        if "env_info" not in str(error):
            raise
        raise ValueError(str(error).replace("env_info", "env.info")) from error


def _parameters_changed(saved: EnvConfig, now: EnvConfig) -> str | None:
    """The first argument of the environment that differs from the checkpoint's settings; None if all are the same.

    Saved environments keep the arguments that they were made with, so they cannot be used with other ones.
    """
    before, after = saved.kwargs, now.kwargs
    for name in {**before, **after}:
        if before.get(name, "not set") != after.get(name, "not set"):
            return f"env.kwargs.{name} was {before.get(name, 'not set')} and is {after.get(name, 'not set')}"
    for name in saved.info:
        if name not in now.info:
            return f"env.info.{name} was {saved.info[name]} and is not set"
    return None
