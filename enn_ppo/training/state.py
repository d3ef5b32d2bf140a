"""The state of a training run, and how it is saved to and restored from checkpoints."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from enn_ppo.checkpoints import Checkpoint, Retention, check_finite, save_checkpoint, what_is_there
from enn_ppo.checkpoints.policy import saved_config
from enn_ppo.rollout import Rollout, Watch, play_all
from enn_ppo.settings.config import EnvConfig, TrainConfig
from enn_ppo.settings.learning import PPOSettings
from enn_ppo.settings.schema import to_dict
from enn_ppo.training.callbacks import Callback
from enn_ppo.training.environment import BoundEnvironment
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.learning.learner import (
    Learned,
    Learner,
    LearnerState,
    Settings,
    compiling_networks,
)
from enn_ppo.training.players import cast_of
from enn_ppo.training.random_keys import Purpose, random_key
from enn_ppo.training.ranks import ALONE, Ranks
from enn_ppo.training.recording import Recorder
from enn_ppo.training.sampling import LocalSampler, make_pools
from enn_ppo.training.self_play.pool import SelfPlay
from enn_ppo.training.self_play.ratings import rating_model
from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.metrics import env_info_row
from enn_ppo.training.tracking.run_dir import CHECKPOINTS
from enn_ppo.training.tracking.run_output import PLAIN_SECONDS, announce, clock_text
from enn_ppo.training.watchdog import Watchdog
from entity_gym.batch.saving import spaces_to_dict
from entity_gym.pools.vec_env import VecEnv
from rogue_net import RogueNet
from rogue_net.finite import NotFinite

if TYPE_CHECKING:
    from enn_ppo.training.on_ray.group import RunnerGroup
    from enn_ppo.training.on_ray.learners import RemoteLearner

RECENT_EPISODES = 100


class Restored(NamedTuple):
    """Result of `TrainState.restore`."""

    problem: str | None  # reason why the environments start new episodes; None if they were restored
    news: Mapping[
        str, Sequence[str]
    ]  # policy -> one line for each entity type, feature or action that is new or has changed


class TrainState:
    """The learners, the sampler and the counters of a run.

    A run has a learner for each policy of `config.policies`, with a subdirectory in the run directory. Without that setting it
    has one learner, whose name is empty and which uses the run directory itself.

    Args:
        callbacks: may set parameters of the environments (`Callback.env_info`).
    """

    def __init__(
        self,
        config: TrainConfig,
        env: BoundEnvironment,
        device: torch.device,
        callbacks: Sequence[Callback] = (),
        ranks: Ranks = ALONE,
    ) -> None:
        self.config, self.ranks = config, ranks
        self.env_name = env.config.id
        self.callbacks = callbacks
        self.learners: Mapping[str, Learner | RemoteLearner]
        self.sampler: LocalSampler | RunnerGroup
        self.self_play: SelfPlay | None = None
        if config.distributed.mode == "ray":
            from enn_ppo.training.on_ray.start import start_on_ray  # Ray is optional

            self.learners, self.sampler = start_on_ray(config, env)
        else:
            self._start_here(env, device)
        self.step = 0  # environment steps trained
        self.num_updates = 0
        self.seconds = 0.0  # of training, including the time before the run was resumed
        self.recent_rewards: dict[str, deque[float]] = {name: deque(maxlen=RECENT_EPISODES) for name in self.learners}
        # steps whose evaluations were unfinished when the restored checkpoint was saved
        self.evaluations: Sequence[int] = ()
        self.env_info: Mapping[str, Sequence[Any]] = {}  # environment parameters drawn for the last update
        self.recorder: Recorder | None = None

    def _start_here(self, env: BoundEnvironment, device: torch.device) -> None:
        """Make the learners and a sampler in this process."""
        config, ranks = self.config, self.ranks
        if config.self_play.enabled:
            rating_model()  # what it lacks is said before anything is compiled
        share = config.rollout.num_envs // ranks.size
        first_env = ranks.rank * share
        with compiling_networks(config, env.source, device):  # while the world compiles, if it does
            made = make_pools(env, replace(config.rollout, num_envs=share), config.seed, first_env)
            spaces = made[0].obs_space(), made[0].action_space()
            cast = cast_of(config.policies, env.source, self.env_name) if config.policies else None
            players = cast.policies if cast else {"": [0]}
            learners = {
                name: Learner(config, *spaces, device, ranks, num_players=len(own)) for name, own in players.items()
            }
        self.learners = learners
        pools: Sequence[VecEnv] = made
        if config.self_play.enabled:
            self.self_play = SelfPlay(config.self_play, self.net, device, config.seed)
            pools = [self.self_play.seat(made[0], env.source, self.env_name)]
        self.sampler = LocalSampler(
            pools,
            {name: learner.model for name, learner in learners.items()},
            device,
            config.seed,
            first_env,
            cast=cast,
            pipeline=config.rollout.pipeline,
            logits=config.record is not None and config.record_logits,
            ranks=ranks,
            watchdog=Watchdog(config.env.timeout),
        )

    @property
    def learner(self) -> Learner | RemoteLearner:
        """The learner of a run with one policy."""
        (learner,) = self.learners.values()
        return learner

    @property
    def model(self) -> ActorCritic:
        """The policy and the value function of a run with one policy."""
        return self.learner.model

    @property
    def net(self) -> RogueNet:
        """The policy's network."""
        return self.model.policy

    def start(self) -> None:
        """Begin a new run: a first rollout, which is not trained on, initialises the input statistics.

        A rollout that would take longer than `rollout.max_seconds` becomes shorter, from now on.
        """
        announce("playing a first rollout, which measures the observations")
        self.reset()
        if self.config.rollout.max_seconds is not None and self.config.distributed.mode != "ray":
            self._fit_steps(self.config.rollout.max_seconds)
            self.reset()
        rollouts: Mapping[str, Any] = self.sampler.collect(self.config.rollout.steps, self._watch_first_rollout())
        for name, learner in self.learners.items():
            learner.measure_rollout(rollouts[name])
        if self.self_play:
            self.self_play.add(0)
        self.reset()

    def _fit_steps(self, max_seconds: float) -> None:
        """Lower `rollout.steps` if the environments need more than `max_seconds` for a rollout, but not below a minibatch."""
        rollout, num_envs = self.config.rollout, self.config.rollout.num_envs
        seconds = self._seconds_of_a_step()
        for _ in range(2):  # the first step may take longer than all others
            if seconds * rollout.steps <= max_seconds:
                return
            seconds = min(seconds, self._seconds_of_a_step())
        minibatch = math.ceil(self.config.optim.batch_size / num_envs)
        steps = max(1, int(max_seconds / seconds) // minibatch) * minibatch
        if steps >= rollout.steps:
            return
        self.config = replace(self.config, rollout=replace(rollout, steps=steps, max_seconds=None))
        announce(
            f"the environments take {num_envs / seconds:,.3g} steps a second, so rollout.steps={rollout.steps} would take "
            f"{seconds * rollout.steps:,.0f} seconds: this run has rollout.steps={steps}, {seconds * steps:,.0f} seconds. Give "
            "rollout.steps=<number> to choose it yourself"
        )

    def _seconds_of_a_step(self) -> float:
        (played, *_) = self.sampler.collect(1).values()
        assert isinstance(played, Rollout), "on Ray there are references"
        return self.ranks.lead(lambda: played.stats.env_seconds)

    def _watch_first_rollout(self) -> Watch:
        """Prints how far the first rollout is every `PLAIN_SECONDS`, and ends it after `max_train_seconds`."""
        config, started = self.config, time.monotonic()
        told = started

        def watch(played: float) -> bool:
            nonlocal told
            now = time.monotonic()
            seconds = now - started
            if now - told >= PLAIN_SECONDS:
                told = now
                rate = played * config.rollout.steps * config.rollout.num_envs / seconds
                left = clock_text(seconds / played - seconds)
                announce(f"first rollout: {played:.0%}  {rate:,.0f} steps/s  {left} left")
            return config.max_train_seconds is not None and seconds >= config.max_train_seconds

        return watch

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
        """Progress of the training, 0 to 1: the larger fraction of `total_timesteps` and `max_train_seconds`."""
        by_steps = self.step / self.config.total_timesteps
        by_seconds = self.seconds / self.config.max_train_seconds if self.config.max_train_seconds else 0.0
        return min(1.0, max(by_steps, by_seconds))

    def begin_update(self) -> Settings:
        """Seed the update, draw environment parameters, and evaluate the schedules."""
        self.sampler.key(self.step)
        if info := self._draw_env_info():
            with _naming_the_setting():
                self.sampler.configure(info)
        progress, (policy, value) = self.progress(), self.config.learning_rates
        rates = self._warmed_up(policy(progress)), self._warmed_up(value(progress))
        return Settings(self.step, PPOSettings.at(self.config.ppo, progress), rates)

    def collect(self, steps: int, watch: Watch = play_all) -> Mapping[str, Any]:
        """Play `steps` steps in every environment, or fewer, and record them if `config.record` is set.

        See `LocalSampler.collect`. On Ray the rollouts are references, and `watch` is not called.

        Raises:
            RecordingError: the recording cannot be written.
        """
        rollouts: Mapping[str, Any] = self.sampler.collect(steps, watch)
        if self.recorder:
            assert isinstance(self.learner, Learner), "only local runs record"
            frames, unit = rollouts[""].frames, self.learner.value_unit  # recorded values are in the unit of rewards
            self.recorder.add(replace(frames, values=frames.values * unit, final_values=frames.final_values * unit))
            self.recorder.flush()
        return rollouts

    def learn(self, rollouts: Mapping[str, Any], settings: Settings) -> dict[str, Learned]:
        """Update every policy; on Ray all at the same time."""
        learning = {name: learner.learning(rollouts[name], settings) for name, learner in self.learners.items()}
        return {name: finish() for name, finish in learning.items()}

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
        asked = self.ranks.lead(lambda: [each.env_info(progress, num_envs, rng) or {} for each in self.callbacks])
        self.env_info = drawn | {name: values for each in asked for name, values in each.items()}
        return self.env_info

    def metrics(self) -> Row:
        """Metrics of environment parameters, self-play ratings, and the sampler."""
        row = env_info_row(self.env_info) | (self.self_play.metrics() if self.self_play else {})
        return row | dict(self.sampler.metrics())

    def recent_reward(self, name: str = "") -> float | None:
        """The mean reward of a policy's last episodes, up to `RECENT_EPISODES`; None before the first."""
        rewards = self.recent_rewards[name]
        return sum(rewards) / len(rewards) if rewards else None

    def advance(self, learned: Mapping[str, Learned], seconds: float) -> None:
        """Count an update of all policies that took `seconds`."""
        for name, each in learned.items():
            self.recent_rewards[name].extend(episode.reward for episode in each.played.episodes)
        played = next(iter(learned.values())).played
        self.step += played.num_frames
        self.num_updates += 1
        self.seconds += seconds
        if self.self_play:
            self.self_play.update(played.episodes, self.step)

    def save(
        self, run_dir: Path, *, evaluations: Sequence[int] = (), scores: Mapping[str, float | None] | None = None
    ) -> dict[str, Path]:
        """Write a checkpoint of every policy.

        Args:
            run_dir: the run's directory.
            evaluations: steps whose evaluation is unfinished; a resumed run repeats it.
            scores: policy -> its score; None if it is not known yet.

        Returns:
            Policy -> its checkpoint.

        Raises:
            NotFinite: weights are NaN or infinite; nothing was written.
            ValueError: a file cannot be written; earlier checkpoints still load.
        """
        states = {
            name: learner.state() for name, learner in self.learners.items()
        }  # an error here writes no checkpoint
        # all are checked before any is written: all policies or none save this step
        self.ranks.lead(lambda: self._check_finite(states))
        environments = self.sampler.state()
        if self.self_play:  # the checkpoint refers to these files, so they are written first
            try:
                self.self_play.write(run_dir, to_dict(self.config))
            except ValueError as error:
                raise ValueError(f"{error}; {what_is_there(run_dir / CHECKPOINTS)}") from error

        def write(name: str, learner: LearnerState) -> Path:
            own = run_dir / name
            trainer = {
                "step": self.step,
                "num_updates": self.num_updates,
                "seconds": self.seconds,
                "optimizer": learner.optimizer,
                "collector": environments,
                "scale": learner.scale,
                "recorder": self.recorder.state() if self.recorder else None,
                "recent_rewards": list(self.recent_rewards[name]),
                "evaluations": list(evaluations),
                "self_play": self.self_play.state() if self.self_play else None,
            }
            return save_checkpoint(
                own / CHECKPOINTS,
                self.step,
                policy=learner.policy,
                config=to_dict(replace(self.config, run_dir=str(own), resume=None, overwrite=False, trust=False)),
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
                score=(scores or {}).get(name),
            )

        saved = self.ranks.lead(lambda: {name: write(name, learner) for name, learner in states.items()})
        if self.self_play:
            self.self_play.clean(run_dir, self.step)
        return saved

    def _check_finite(self, states: Mapping[str, LearnerState]) -> None:
        for name, state in states.items():
            try:
                for part in ("policy", "value_net", "optimizer"):
                    check_finite(getattr(state, part), f"{name} {part}".lstrip())
            except NotFinite as error:
                raise NotFinite(f"step {self.step:,} is not saved: {error}") from error

    def restore(self, checkpoints: Mapping[str, Checkpoint]) -> Restored:
        """Continue from the checkpoint of each policy.

        Entity types, features and actions are matched by name; new ones start untrained.

        Raises:
            ValueError: a checkpoint belongs to another environment or network.
        """
        news = {name: self.learners[name].restore(each, self.env_name) for name, each in checkpoints.items()}
        for name, each in checkpoints.items():
            self.recent_rewards[name].extend(each.trainer["recent_rewards"])
        checkpoint = next(iter(checkpoints.values()))
        saved = checkpoint.trainer
        self.step, self.num_updates, self.seconds = saved["step"], saved["num_updates"], saved["seconds"]
        self.evaluations = saved["evaluations"]
        if self.self_play:
            self._restore_self_play(saved["self_play"], checkpoint.path.parent.parent)
        problem = (
            next((each.changed for each in news.values() if each.changed), None)
            or _parameters_changed(saved_config(checkpoint).env, self.config.env)
            or self.sampler.load_state(saved["collector"])
        )
        if problem:  # a new seed, so that the first episodes of the run are not repeated
            key = random_key(self.config.seed, self.step, Purpose.NEW_EPISODES)
            self.sampler.reset(key, self._draw_env_info() or None)
            for learner in self.learners.values():
                learner.begin_episodes()
        if any(each.unmeasured for each in news.values()):  # a rollout that is not trained on measures new features
            self.sampler.key(self.step)
            rollouts: Mapping[str, Any] = self.sampler.collect(self.config.rollout.steps)
            for name, learner in self.learners.items():
                learner.measure_what_is_new(rollouts[name])
        return Restored(problem, {name: each.news for name, each in news.items()})

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
            ValueError: the folder cannot be written, or was recorded in another environment.
        """
        if self.config.record is None:
            return
        spaces = self.sampler.obs_space(), self.sampler.action_space()
        self.recorder = Recorder(self.config.record, *spaces, logits=self.config.record_logits, state=saved)

    def close(self) -> None:
        """Close the environments and the learners."""
        with ExitStack() as stack:
            for learner in self.learners.values():
                stack.callback(learner.close)
            stack.callback(self.sampler.close)


@contextmanager
def _naming_the_setting() -> Iterator[None]:
    """Replace `env_info` in errors of pools by the setting's name, `env.info`."""
    try:
        yield
    except ValueError as error:
        if "env_info" not in str(error):
            raise
        raise ValueError(str(error).replace("env_info", "env.info")) from error


def _parameters_changed(saved: EnvConfig, now: EnvConfig) -> str | None:
    """The first argument of the environment that differs from the checkpoint's settings; None if all are the same.

    Saved environments keep the arguments that they were made with, so they cannot be restored with other arguments.
    """
    before, after = saved.kwargs, now.kwargs
    for name in {**before, **after}:
        if before.get(name, "not set") != after.get(name, "not set"):
            return f"env.kwargs.{name} was {before.get(name, 'not set')} and is {after.get(name, 'not set')}"
    for name in ("view", "wrappers"):
        if getattr(saved, name) != getattr(now, name):
            return f"env.{name} was {getattr(saved, name)} and is {getattr(now, name)}"
    for name in saved.info:
        if name not in now.info:
            return f"env.info.{name} was {saved.info[name]} and is not set"
    return None
