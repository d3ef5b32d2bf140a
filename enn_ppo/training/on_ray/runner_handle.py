"""The training process's proxy of an environment runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import ray

from enn_ppo.training.errors import ActorDied, PartLost
from enn_ppo.training.on_ray.board import Board, Part
from enn_ppo.training.on_ray.cluster import fetch
from enn_ppo.training.on_ray.runner import EnvRunner, NewEpisodes, Plan, Spaces
from enn_ppo.training.sampling import Parameters


class Play(NamedTuple):
    """A rollout that a runner is collecting."""

    rollouts: Sequence[Any]  # one reference per policy
    told: Any
    version: int  # of the weights


class RunnerDied(PartLost):
    """A runner's process has died; the message says how."""


class RunnerHandle:
    """Starts a runner, sends it rollouts to play, and restarts it.

    Args:
        plan: the runner's arguments.
        cpus: CPUs that Ray reserves for the runner.

    Attributes:
        play: the rollout in progress; None: the runner is idle.
        starting: reference to the runner's `Spaces` while it starts; None afterwards.
        has_failed: whether an environment has raised, so that the states of the environments are unknown.
        starts: number of starts.
        deaths: number of times its process has died since its last rollout.
        last_key: key of the last rollout's sampling noise; -1: none yet.
        version_sent: version of the last rollout's weights; -1: none yet.
    """

    def __init__(self, plan: Plan, cpus: float) -> None:
        self.plan = plan
        self._cpus = cpus
        self.play: Play | None = None
        self.starting: Any = None
        self.actor: Any = None
        self.starts, self.deaths, self.last_key, self.version_sent = 0, 0, -1, -1
        self.has_failed = False
        self.start(None)

    @property
    def number(self) -> int:
        """Number of the runner, from 0."""
        return self.plan.number

    @property
    def is_ready(self) -> bool:
        """Whether the runner can collect a rollout: it has started, and no environment has raised."""
        return self.starting is None and not self.has_failed

    def start(self, begin: NewEpisodes | None) -> None:
        """Start a new process. A rollout of the previous process is lost."""
        if self.actor is not None:
            ray.kill(self.actor)
        self.play = None
        self.starts += 1
        self.has_failed = False
        self.version_sent = -1
        actor: Any = ray.remote(EnvRunner)
        self.actor = actor.options(num_cpus=self._cpus).remote(self.plan)
        self.starting = self.actor.prepare.remote(begin)

    def finish_start(self, timeout: float | None = None) -> Spaces:
        """Wait until the runner has started.

        Raises:
            GetTimeoutError: the runner has not started in time.
            RunnerDied: its process has died.
            Exception: raised by the environment.
        """
        spaces: Spaces = self.ask(self.starting, timeout)
        self.starting = None
        return spaces

    def send(self, board: Board, key: int, parameters: Parameters, steps: int) -> None:
        """Start collecting a rollout; arguments as in `EnvRunner.play`."""
        play = self.actor.play.options(num_returns=board.num_policies)
        rollouts = play.remote(key, self.plan.part(parameters), steps, *board.weights)
        self.last_key, self.version_sent = key, board.version
        rollouts = rollouts if board.num_policies > 1 else [rollouts]
        self.play = Play(rollouts, self.actor.told.remote(), board.version)

    def receive(self) -> Part:
        """Wait for the rollout in progress.

        Raises:
            RunnerDied: the runner's process has died.
        """
        assert self.play is not None
        play, told = self.play, self.ask(self.play.told)
        self.play = None
        self.has_failed = told.failure is not None
        return Part(self.number, play.rollouts, told, play.version)

    def ask(self, reference: Any, timeout: float | None = None) -> Any:
        """Call a method of the runner and wait for the result; errors as in `finish_start`."""
        try:
            return fetch(reference, timeout)
        except ActorDied as error:
            raise RunnerDied(str(error)) from None
