"""Learners on Ray: `LearnerActor` trains in a separate process, `RemoteLearner` is its proxy in the training process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError, ObjectLostError

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.policy import select_device, set_determinism
from enn_ppo.rollout import Rollout
from enn_ppo.settings.config import TrainConfig
from enn_ppo.training.build import make_learner, make_model
from enn_ppo.training.errors import ActorDied, PartLost
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.learning.learner import Learned, Learner, LearnerNews, LearnerState, Settings
from enn_ppo.training.on_ray.board import Board, Gathered
from enn_ppo.training.on_ray.cluster import CLOSE_SECONDS, START_SECONDS, Cluster, fetch
from enn_ppo.training.on_ray.runner import Spaces
from enn_ppo.training.on_ray.shipping import Weights, load_weights, ship_weights, unship
from enn_ppo.training.tracking.logger import Row


class LearnerActor:
    """Trains on request. Methods that change the networks return their new weights.

    Rollouts are references into Ray's object store, in the order of their environments; Ray sends rollouts of less than 100 kB
    through the training process instead.
    """

    def __init__(self, config: TrainConfig, num_players: int) -> None:
        self._config, self._num_players = config, num_players
        self._learner: Learner

    def prepare(self, spaces: Spaces) -> torch.device:
        """Make the networks. Returns their device.

        Raises:
            ValueError: there is no such device.
        """
        config = self._config
        torch.set_num_threads(config.num_threads or 1)
        set_determinism(config.torch_deterministic)
        device = select_device(config.device)
        self._learner = make_learner(config, spaces.obs, spaces.actions, device, num_players=self._num_players)
        return self._learner.device

    def weights(self) -> Weights:
        """Weights of the networks, for runners."""
        return ship_weights(self._learner.model)

    def learn(
        self, rollouts: Sequence[Any], num_runners: int, stale: bool, settings: Settings
    ) -> tuple[tuple[Learned, int, float], Weights]:
        """Do one update.

        Args:
            rollouts: references to the rollouts to learn from.
            num_runners: number of runners that collected them.
            stale: whether any rollout was collected with earlier weights.
            settings: of the update.

        Returns:
            (Result of the update, number of rollouts lost with their machines, seconds to fetch the others), and the new weights.
        """
        started = time.perf_counter()
        loaded = self._load(rollouts)
        load_seconds = time.perf_counter() - started
        learned = self._learner.learn(_merged(loaded, num_runners), settings, stale=stale)
        return (learned, len(rollouts) - len(loaded), load_seconds), self.weights()

    def measure(self, rollouts: Sequence[Any], only_what_is_new: bool) -> Weights:
        """Initialise the input statistics from rollouts: of all features, or only of those that are new since the checkpoint."""
        rollout = Rollout.merged(self._load(rollouts))
        if only_what_is_new:
            self._learner.measure_what_is_new(rollout)
        else:
            self._learner.measure_rollout(rollout)
        return self.weights()

    def restore(self, checkpoint: Checkpoint, env_name: str) -> tuple[LearnerNews, Weights]:
        """See `Learner.restore`."""
        return self._learner.restore(checkpoint, env_name), self.weights()

    def begin_episodes(self) -> None:
        """See `Learner.begin_episodes`."""
        self._learner.begin_episodes()

    def state(self) -> LearnerState:
        """See `Learner.state`; tensors are on the CPU."""
        state: LearnerState = _on_cpu(self._learner.state())
        return state

    def _load(self, rollouts: Sequence[Any]) -> list[Rollout]:
        """Fetch the rollouts, except those that were lost with their machines."""
        loaded = []
        for reference in rollouts:
            try:
                loaded.append(unship(ray.get(reference), self._learner.device))
            except ObjectLostError:
                continue
        if not loaded:
            raise PartLost("all rollouts of an update were lost with the machines that had them")
        return loaded


def _merged(rollouts: Sequence[Rollout], num_runners: int) -> Rollout:
    """Merge rollouts. Times are averaged, not added, since runners play at the same time."""
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


class RemoteLearner:
    """Forwards calls to a `LearnerActor`, and publishes its weights on the board.

    It stands where a `Learner` does in a local run.

    Args:
        config: of the run.
        cluster: closed together with the first policy's learner.
        board: passes the weights to runners.
        number: the policy's number, from 0.
        name: the policy's name; empty if it is the only one.
        num_players: players that the policy plays in each environment.

    Raises:
        PartLost: from every method, when the learner's process has died.
    """

    def __init__(
        self, config: TrainConfig, cluster: Cluster, board: Board, number: int, name: str, num_players: int
    ) -> None:
        self._config, self._cluster, self._board, self._number = config, cluster, board, number
        self._called = "the learner" + (f" of policy {name}" if name else "")
        distributed = config.distributed
        actor: Any = ray.remote(LearnerActor)
        actor = actor.options(num_cpus=1, num_gpus=distributed.learner_gpus)
        self._actor = actor.remote(config, num_players)
        self.device = torch.device("cpu")  # until `prepare` returns the learner's
        self._spaces: Spaces
        self._model: ActorCritic | None = None
        self._model_weights: Any = None  # reference to the weights of `_model`
        self._row: Row = {}
        self._is_gone = self._is_closed = False

    def prepare(self, spaces: Spaces) -> None:
        """Make the networks.

        Raises:
            ValueError: there is no such device, or the cluster has no CPU or GPU left for the learner.
        """
        self._spaces = spaces
        try:
            self.device = self._ask(self._actor.prepare.remote(spaces), START_SECONDS)
        except GetTimeoutError:
            raise ValueError(
                f"{self._called} has not started within "
                f"{START_SECONDS:g} s; of the Ray cluster's CPUs {self._cluster.free_cpus():g} are free"
            ) from None
        self._publish(self._actor.weights.remote())

    @property
    def model(self) -> ActorCritic:
        """A copy of the current networks, fetched on first use."""
        return self._fetch_model()

    def _fetch_model(self, timeout: float | None = None) -> ActorCritic:
        if self._model is None:
            self._model = make_model(self._config, self._spaces.obs, self._spaces.actions)
        if self._model_weights is not self._weights:
            if self._is_closed:
                raise PartLost(
                    "the policy is lost: the run has ended, and the learner died before its weights were fetched"
                )
            load_weights(self._model, self._ask(self._weights, timeout))
            self._model_weights = self._weights
        return self._model

    @property
    def _weights(self) -> Any:
        """A reference to the current weights."""
        return self._board.weights[self._number]

    def _publish(self, weights: Any) -> None:
        self._board.publish(weights, self._number)

    def learning(self, gathered: Gathered, settings: Settings) -> Callable[[], Learned]:
        """See `Learner.learning`."""
        stale = any(gathered.staleness)
        learn = self._actor.learn.options(num_returns=2)
        result, weights = learn.remote(self._own(gathered), gathered.num_runners, stale, settings)

        def finish() -> Learned:
            learned, lost, load_seconds = self._ask(result)
            self._publish(weights)
            if self._number == 0:  # count a lost rollout once, not once per learner
                self._board.rollouts_lost += lost
            self._row = gathered.metrics(load_seconds)
            own: Learned = learned
            return own

        return finish

    def measure_rollout(self, gathered: Gathered) -> None:
        """See `Learner.measure_rollout`."""
        self._measure(gathered, only_what_is_new=False)

    def measure_what_is_new(self, gathered: Gathered) -> None:
        """See `Learner.measure_what_is_new`."""
        self._measure(gathered, only_what_is_new=True)

    def _measure(self, gathered: Gathered, only_what_is_new: bool) -> None:
        self._publish(self._actor.measure.remote(self._own(gathered), only_what_is_new))
        self._ask(self._weights)

    def begin_episodes(self) -> None:
        """See `Learner.begin_episodes`."""
        self._ask(self._actor.begin_episodes.remote())

    def state(self) -> LearnerState:
        """See `Learner.state`."""
        state: LearnerState = self._ask(self._actor.state.remote())
        return state

    def restore(self, checkpoint: Checkpoint, env_name: str) -> LearnerNews:
        """See `Learner.restore`; publishes the weights without fetching them."""
        result, weights = self._actor.restore.options(num_returns=2).remote(checkpoint, env_name)
        news: LearnerNews = self._ask(result)
        self._publish(weights)
        return news

    def metrics(self) -> Row:
        """Metrics of the last update's rollouts."""
        return self._row

    def close(self) -> None:
        """Release everything. May be called twice."""
        if not self._is_closed:
            if not self._is_gone:
                with suppress(Exception):  # `model` returns these weights after the run
                    self._fetch_model(CLOSE_SECONDS)
            self._is_closed = True
            with suppress(Exception):  # Ray itself may be gone
                ray.kill(self._actor)
        if self._number == 0:
            self._cluster.close()

    def _own(self, gathered: Gathered) -> list[Any]:
        """References to the rollouts of this policy."""
        return [part.rollouts[self._number] for part in gathered.parts]

    def _ask(self, reference: Any, timeout: float | None = None) -> Any:
        try:
            return fetch(reference, timeout)
        except ActorDied as error:
            self._is_gone = True
            raise PartLost(f"{self._called} is gone: {error}") from None
