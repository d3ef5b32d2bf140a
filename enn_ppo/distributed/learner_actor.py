"""A learner in a process of its own: an actor of Ray. `RemoteLearner` is its proxy in the training process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import ray
import torch
from ray.exceptions import ObjectLostError

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.policy import select_device, set_determinism
from enn_ppo.config import TrainConfig
from enn_ppo.distributed.runner import Spaces
from enn_ppo.distributed.shipping import Weights, ship_weights, unship
from enn_ppo.errors import PartLost
from enn_ppo.learner import Learned, Learner, LearnerNews, LearnerState, Settings
from enn_ppo.rollout import Rollout


class Lesson(NamedTuple):
    """The rollouts of an update."""

    rollouts: Sequence[Any]  # references to rollouts of runners, in the order of their environments
    num_runners: int  # number of runners that have played them
    stale: bool  # whether earlier weights have played any of them


class Report(NamedTuple):
    """The result of an update."""

    learned: Learned
    lost: int  # rollouts whose machine is gone
    load_seconds: float  # until all rollouts were in this process


class LearnerActor:
    """Trains on request.

    Rollouts come from Ray's object store; those of less than 100 kB, which Ray does not put there, from the training process.
    """

    def __init__(self, config: TrainConfig, num_players: int) -> None:
        self._config, self._num_players = config, num_players
        self._learner: Learner
        self._load_seconds = 0.0

    def prepare(self, spaces: Spaces) -> torch.device:
        """Make the networks. Returns their device.

        Raises:
            ValueError: there is no such device.
        """
        config = self._config
        torch.set_num_threads(config.num_threads or max(1, int(config.distributed.learner_cpus)))
        set_determinism(config.torch_deterministic)
        device = select_device(config.device)
        self._learner = Learner(config, spaces.obs, spaces.actions, device, num_players=self._num_players)
        return self._learner.device

    def weights(self) -> Weights:
        """Weights of the networks, for runners."""
        return ship_weights(self._learner.model)

    def learn(self, lesson: Lesson, settings: Settings) -> tuple[Report, Weights]:
        """One update. Returns its result and the new weights."""
        rollouts = self._load(lesson)
        learned = self._learner.learn(_merged(rollouts, lesson.num_runners), settings, stale=lesson.stale)
        return Report(learned, len(lesson.rollouts) - len(rollouts), self._load_seconds), self.weights()

    def measure(self, lesson: Lesson) -> Weights:
        """Initialise the input statistics from rollouts, without training on them."""
        self._learner.measure_rollout(_merged(self._load(lesson), lesson.num_runners))
        return self.weights()

    def measure_what_is_new(self, lesson: Lesson) -> Weights:
        """See `Learner.measure_what_is_new`."""
        self._learner.measure_what_is_new(_merged(self._load(lesson), lesson.num_runners))
        return self.weights()

    def restore(self, checkpoint: Checkpoint, env_name: str) -> tuple[LearnerNews, Weights]:
        """See `Learner.restore`."""
        return self._learner.restore(checkpoint, env_name), self.weights()

    def adopt(self, checkpoint: Checkpoint, env_name: str) -> tuple[LearnerNews, Weights]:
        """See `Learner.adopt`."""
        return self._learner.adopt(checkpoint, env_name), self.weights()

    def begin_episodes(self) -> None:
        """See `Learner.begin_episodes`."""
        self._learner.begin_episodes()

    def state(self) -> LearnerState:
        """See `Learner.state`; on the CPU."""
        state: LearnerState = _on_cpu(self._learner.state())
        return state

    def _load(self, lesson: Lesson) -> list[Rollout]:
        """Fetch the rollouts; those whose machine is gone are left out."""
        started = time.perf_counter()
        rollouts = []
        for reference in lesson.rollouts:
            try:
                rollouts.append(unship(ray.get(reference), self._learner.device))
            except ObjectLostError:
                continue
        self._load_seconds = time.perf_counter() - started
        if not rollouts:
            raise PartLost("all rollouts of an update were lost with the machines that had them")
        return rollouts


def _merged(rollouts: Sequence[Rollout], num_runners: int) -> Rollout:
    """Merge rollouts. Runners play at the same time, so that times are averaged, not added."""
    merged = Rollout.merged(rollouts)
    env_seconds, act_seconds = merged.stats.env_seconds / num_runners, merged.stats.act_seconds / num_runners
    return replace(merged, stats=replace(merged.stats, env_seconds=env_seconds, act_seconds=act_seconds))


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {name: _on_cpu(each) for name, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_on_cpu, value))
    if isinstance(value, list):
        return [_on_cpu(each) for each in value]
    return value
