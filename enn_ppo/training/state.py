"""The state of a training run, and how it is saved to and restored from checkpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from enn_ppo.checkpoints import Checkpoint, check_finite, save_checkpoint, step_file
from enn_ppo.checkpoints.policy import saved_config
from enn_ppo.settings.config import EnvConfig, TrainConfig
from enn_ppo.settings.learning import PPOSettings
from enn_ppo.settings.schema import to_dict
from enn_ppo.training.callbacks import Callback
from enn_ppo.training.learning.learner import (
    Learned,
    Learner,
    LearnerState,
    UpdateSettings,
)
from enn_ppo.training.random_keys import Purpose, random_key
from enn_ppo.training.ranks import ALONE, Ranks
from enn_ppo.training.sampling import LocalSampler
from enn_ppo.training.self_play.pool import SelfPlay
from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.metrics import env_info_row
from enn_ppo.training.tracking.run_dir import CHECKPOINTS
from enn_ppo.training.tracking.run_output import announce
from entity_gym.batch.saving import spaces_to_dict
from rogue_net.finite import NotFinite

if TYPE_CHECKING:
    from enn_ppo.training.on_ray.group import RunnerGroup
    from enn_ppo.training.on_ray.learners import RemoteLearner

RECENT_EPISODES = 100


class TrainState:
    """The learners, the sampler and the counters of a run.

    A run has a learner for each policy of `config.policies`, with a subdirectory in the run directory. Without that setting it
    has one learner, whose name is empty and which uses the run directory itself.

    Args:
        config: of the run.
        env_name: the environment, for messages.
        learners: policy -> its learner.
        sampler: plays with the learners' policies.
        callbacks: may set parameters of the environments (`Callback.env_info`).
        ranks: the processes that train together.
        self_play: of a run with snapshots as opponents.
    """

    def __init__(
        self,
        config: TrainConfig,
        env_name: str,
        learners: Mapping[str, Learner] | Mapping[str, RemoteLearner],
        sampler: LocalSampler | RunnerGroup,
        callbacks: Sequence[Callback] = (),
        ranks: Ranks = ALONE,
        self_play: SelfPlay | None = None,
    ) -> None:
        self.config, self.env_name, self.callbacks, self.ranks = config, env_name, callbacks, ranks
        self.learners, self.sampler, self.self_play = learners, sampler, self_play
        self.step = 0  # environment steps trained
        self.num_updates = 0
        self.seconds = 0.0  # of training, including the time before the run was resumed
        self.recent_rewards: dict[str, deque[float]] = {name: deque(maxlen=RECENT_EPISODES) for name in learners}
        # steps whose evaluations were unfinished when the restored checkpoint was saved
        self.evaluations: Sequence[int] = ()
        self.env_info: Mapping[str, Sequence[Any]] = {}  # environment parameters drawn for the last update

    @property
    def learner(self) -> Learner | RemoteLearner:
        """The learner of a run with one policy."""
        (learner,) = self.learners.values()
        return learner

    def start(self) -> None:
        """Begin a new run: a first rollout, which is not trained on, initialises the input statistics."""
        announce("playing a first rollout, which measures the observations")
        self.reset()
        rollouts: Mapping[str, Any] = self.sampler.collect(self.step, self.config.rollout.steps, {})
        for name, learner in self.learners.items():
            learner.measure_rollout(rollouts[name])
        if self.self_play:
            self.self_play.add(0)
        self.reset()

    def reset(self) -> None:
        """Reset all environments with the run's seed."""
        self.sampler.reset(self.config.seed, self._draw_env_info())

    def next_steps(self) -> int:
        """Steps of the next rollout in each environment.

        The last rollout is shorter, so that the run does not exceed `total_timesteps`. 0 when the training is done.
        """
        if self.config.max_train_seconds is not None and self.seconds >= self.config.max_train_seconds:
            return 0
        left = (self.config.total_timesteps - self.step) // self.config.rollout.num_envs
        return max(0, min(self.config.rollout.steps, left))

    def progress(self) -> float:
        """Fraction of the training that is done."""
        return self.config.progress(self.step, self.seconds)

    def begin_update(self) -> UpdateSettings:
        """Draw environment parameters, and evaluate the schedules."""
        self._draw_env_info()
        progress = self.progress()
        return UpdateSettings(
            self.step, PPOSettings.at(self.config.ppo, progress), self.config.optim.schedule(progress)
        )

    def learn(self, rollouts: Mapping[str, Any], scheduled: UpdateSettings) -> dict[str, Learned]:
        """Update every policy; on Ray all at the same time."""
        learning = {name: learner.learning(rollouts[name], scheduled) for name, learner in self.learners.items()}
        return {name: finish() for name, finish in learning.items()}

    def _draw_env_info(self) -> Mapping[str, Sequence[Any]]:
        """Draw the parameters of episodes that begin from now on; empty if none are set."""
        rng = np.random.default_rng(np.random.SeedSequence((self.config.seed, self.step, Purpose.PARAMETERS)))
        num_envs, progress = self.config.rollout.num_envs, self.progress()
        drawn: dict[str, Sequence[Any]] = {
            name: each.draw(progress, num_envs, rng) for name, each in self.config.env.distributions.items()
        }
        asked = self.ranks.lead(lambda: [each.env_info(progress, num_envs, rng) or {} for each in self.callbacks])
        self.env_info = drawn | {name: values for each in asked for name, values in each.items()}
        if (size := self.config.rollout.group_size) > 1:  # a group plays with the parameters of its first environment
            firsts = [i - i % size for i in range(num_envs)]
            self.env_info = {name: [values[i] for i in firsts] for name, values in self.env_info.items()}
        return self.env_info

    def metrics(self) -> Row:
        """Metrics of environment parameters, self-play ratings, and the sampler."""
        row = env_info_row(self.env_info) | (self.self_play.metrics if self.self_play else {})
        return row | dict(self.sampler.metrics())

    def recent_means(self) -> dict[str, float | None]:
        """Policy -> mean reward of its last episodes, up to `RECENT_EPISODES`; None before the first."""
        return {name: sum(each) / len(each) if each else None for name, each in self.recent_rewards.items()}

    def advance(self, learned: Mapping[str, Learned], seconds: float) -> None:
        """Count an update of all policies that took `seconds`."""
        for name, each in learned.items():
            self.recent_rewards[name].extend(episode.reward for episode in each.played.stats.episodes)
        played = next(iter(learned.values())).played
        self.step += played.num_frames
        self.num_updates += 1
        self.seconds += seconds
        if self.self_play:
            self.self_play.update(played.stats.episodes, self.step)

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
        states = {name: learner.state() for name, learner in self.learners.items()}

        def check() -> None:
            for name, state in states.items():
                for part in ("policy", "value_net", "optimizer"):
                    try:
                        check_finite(getattr(state, part), f"{name} {part}".lstrip())
                    except NotFinite as error:
                        raise NotFinite(f"step {self.step:,} is not saved: {error}") from error

        self.ranks.lead(check)  # all before any is written: all policies or none save this step
        environments = self.sampler.state()
        if self.self_play:  # the checkpoint refers to these files, so they are written first
            try:
                self.self_play.write(run_dir, to_dict(self.config))
            except OSError as error:
                raise ValueError(f"the snapshots in {run_dir} cannot be written: {error.strerror or error}") from error

        def write(name: str, learner: LearnerState) -> Path:
            own = run_dir / name
            trainer = {
                "step": self.step,
                "num_updates": self.num_updates,
                "seconds": self.seconds,
                "optimizer": learner.optimizer,
                "collector": environments,
                "scale": learner.scale,
                "teacher": learner.teacher,
                "recent_rewards": list(self.recent_rewards[name]),
                "evaluations": list(evaluations),
                "self_play": self.self_play.state() if self.self_play else None,
            }
            checkpoint = Checkpoint(
                path=step_file(own / CHECKPOINTS, self.step),
                step=self.step,
                policy=learner.policy,
                config=to_dict(replace(self.config, run_dir=str(own), resume=None, overwrite=False, trust=False)),
                spaces=spaces_to_dict(self.sampler.obs_space(), self.sampler.action_space()),
                value_net=learner.value_net or {},
                trainer=trainer,
                score=(scores or {}).get(name),
            )
            return save_checkpoint(checkpoint, self.config.keep_last, evaluations)

        saved = self.ranks.lead(lambda: {name: write(name, learner) for name, learner in states.items()})
        if self.self_play:
            self.self_play.clean(run_dir)
        return saved

    def restore(self, checkpoints: Mapping[str, Checkpoint]) -> dict[str, list[str]]:
        """Continue from the checkpoint of each policy.

        Entity types, features and actions are matched by name; new ones start untrained.

        Returns:
            Policy -> lines for the user: what is new or has changed, and why the environments start new episodes if they do.

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
        if self.self_play and saved["self_play"] is None:  # self-play was off until now
            self.self_play.add(self.step)
        elif self.self_play:
            self.self_play.load_state(saved["self_play"], checkpoint.path.parent.parent)
        problem = (
            next((each.changed for each in news.values() if each.changed), None)
            or _parameters_changed(saved_config(checkpoint).env, self.config.env)
            or self.sampler.load_state(saved["collector"])
        )
        if problem:  # a new seed, so that the first episodes of the run are not repeated
            key = random_key(self.config.seed, self.step, Purpose.NEW_EPISODES)
            self.sampler.reset(key, self._draw_env_info())
        if any(each.unmeasured for each in news.values()):  # a rollout that is not trained on measures new features
            rollouts: Mapping[str, Any] = self.sampler.collect(self.step, self.config.rollout.steps, {})
            for name, learner in self.learners.items():
                learner.measure_what_is_new(rollouts[name])
        told = f"the environments start new episodes, so this is not the uninterrupted run: {problem}"
        return {name: [*each.news, *[told] * bool(problem)] for name, each in news.items()}

    def close(self) -> None:
        """Close the environments, and on Ray the learners."""
        self.sampler.close()


def _parameters_changed(saved: EnvConfig, now: EnvConfig) -> str | None:
    """The first argument of the environment that differs from the checkpoint's settings; None if all are the same.

    Saved environments keep the arguments that they were made with, so they cannot be restored with other arguments.
    """
    before, after = (
        {f"env.kwargs.{name}": value for name, value in env.kwargs.items()}
        | {"env.view": env.view, "env.wrappers": env.wrappers}
        | {f"env.info.{name}": saved.info[name] for name in saved.info if name in env.info}
        for env in (saved, now)
    )
    for name in {**before, **after}:
        if (was := before.get(name, "not set")) != (is_now := after.get(name, "not set")):
            return f"{name} was {was} and is {is_now}"
    return None
