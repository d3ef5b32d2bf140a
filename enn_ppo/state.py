"""Everything that training changes, and its way into a checkpoint and back."""

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
from enn_ppo.settings.distributions import draw_parameters
from enn_ppo.settings.schedule import Scheduled, parse_schedule
from enn_ppo.settings.schema import to_dict
from enn_ppo.tracking.counts import Played
from enn_ppo.tracking.metrics import Row, env_info_row
from enn_ppo.tracking.progress import announce
from enn_ppo.tracking.run_dir import CHECKPOINTS
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.pools.vec_env import VecEnv
from rogue_net import RogueNet

RECENT_EPISODES = 100


class Parts(NamedTuple):
    """What learns, and where it plays."""

    learner: Learns
    sampler: Sampler


class Restored(NamedTuple):
    """How a run continues."""

    problem: str | None  # why the environments start new episodes; None if they too continue
    news: tuple[str, ...]  # a line for each thing that is new, or means something else now


class TrainState:
    """What learns, where it plays, and what is counted.

    Args:
        config: of the run.
        env: the environment to make.
        device: where the policy lives.
        callback: may choose the parameters of environments.
        ranks: who trains together.
        parts: what learns, and where it plays, where that is there already.
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
        self.seconds = 0.0  # spent training, before an interruption too
        self.recent_rewards: deque[float] = deque(maxlen=RECENT_EPISODES)
        self.evaluations: Sequence[int] = ()  # steps that were being evaluated when the restored checkpoint was saved
        self.env_info: Mapping[str, Sequence[Any]] = {}  # parameters drawn for the last update
        self.recorder: Recorder | None = None

    def _start_here(self, env: BoundEnvironment, device: torch.device) -> None:
        """Learn and play in this process."""
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
        """The policy, and its values."""
        return self.learner.model

    @property
    def net(self) -> RogueNet:
        """The policy's network."""
        return self.model.policy

    def start(self) -> None:
        """Begin a new run: the input statistics come from a rollout that is played once and not learned from."""
        announce("playing a first rollout, which measures the observations")
        self.reset()
        self.learner.measure_rollout(self.sampler.collect(self.config.rollout.steps))
        if self.self_play:
            self.self_play.add(0)
        self.reset()

    def reset(self) -> None:
        """Start the environments as a new run does."""
        self.sampler.key(self.step)
        with _naming_the_setting():
            self.sampler.reset(self.config.seed, self._draw_env_info() or None)

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
        """Key the random numbers, draw the environments' parameters, and say what the schedules are at now."""
        self.sampler.key(self.step)
        if info := self._draw_env_info():
            with _naming_the_setting():
                self.sampler.configure(info)
        config = self.config
        rates = self._learning_rate(config.optim.lr), self._learning_rate(config.value_optim.lr or config.optim.lr)
        return Settings(self.step, PPOSettings.at(config.ppo, self.progress()), rates)

    def collect(self, steps: int) -> Any:
        """Play so many steps in every environment, and record them if the settings say so; see `Sampler.collect`.

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

    def _learning_rate(self, lr: Scheduled) -> float:
        """What the schedule, the annealing and the warm-up make of `lr` now."""
        optim = self.config.optim
        rate = parse_schedule("optim.lr", lr, decays=optim.anneal_lr)(self.progress())
        if not optim.warmup_steps:
            return rate
        after = self.step + self.next_steps() * self.config.rollout.num_envs
        return rate * min(1.0, after / optim.warmup_steps)

    def _draw_env_info(self) -> Mapping[str, Sequence[Any]]:
        """Parameters for the episodes that begin from now on; empty where nothing says any."""
        rng = np.random.default_rng(np.random.SeedSequence((self.config.seed, self.step, Purpose.PARAMETERS)))
        num_envs, progress = self.config.rollout.num_envs, self.progress()
        drawn: dict[str, Sequence[Any]] = dict(draw_parameters(self.config.env.info, progress, num_envs, rng))
        asked = self.ranks.lead(lambda: self.callback.env_info(progress, num_envs, rng))
        self.env_info = drawn | dict(asked or {})
        return self.env_info

    def metrics(self) -> Row:
        """What there is to tell beside rollout and update: the parameters that environments got, and ratings."""
        row = env_info_row(self.env_info) | (self.self_play.metrics() if self.self_play else {})
        return row | dict(self.sampler.metrics()) | dict(self.learner.metrics())

    def recent_reward(self) -> float | None:
        """The mean reward of the last episodes, up to `RECENT_EPISODES`; None before the first."""
        return sum(self.recent_rewards) / len(self.recent_rewards) if self.recent_rewards else None

    def advance(self, played: Played, seconds: float) -> None:
        """Count an update that learned from what was `played` and took so many seconds."""
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
            evaluations: steps whose checkpoints are being evaluated, or will be.
            score: how good the policy is, where that is known already.
        """
        learner, self_play = self.learner.state(), self.self_play
        if self_play:  # first what the checkpoint needs
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
        """Continue where `checkpoint` was written. What the environment has gained since is found by its name.

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
        if problem:  # by a seed of its own, for those of the run's beginning have been played
            key = random_key(self.config.seed, self.step, Purpose.NEW_EPISODES)
            self.sampler.reset(key, self._draw_env_info() or None)
            self.learner.begin_episodes()
        if news.unmeasured:  # from a rollout that is played once and not learned from, as in `start`
            self.sampler.key(self.step)
            self.learner.measure_what_is_new(self.sampler.collect(self.config.rollout.steps))
        return Restored(problem, news.news)

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
    """Pools call the parameters of environments `env_info`; who trains has given them as `env.info`."""
    try:
        yield
    except ValueError as error:
        if "env_info" not in str(error):
            raise
        raise ValueError(str(error).replace("env_info", "env.info")) from error


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
