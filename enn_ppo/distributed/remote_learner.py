"""The learner as the process that trains sees it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError

from enn_ppo.actor_critic import ActorCritic
from enn_ppo.checkpoints import Checkpoint
from enn_ppo.config import TrainConfig
from enn_ppo.distributed.board import Board, Gathered
from enn_ppo.distributed.cluster import CLOSE_SECONDS, START_SECONDS, Cluster, fetch
from enn_ppo.distributed.errors import ActorDied, PartLost
from enn_ppo.distributed.learner_actor import LearnerActor, Lesson, Report
from enn_ppo.distributed.runner import Spaces
from enn_ppo.distributed.shipping import load_weights
from enn_ppo.learner import Learned, LearnerNews, LearnerState, Settings, make_model
from enn_ppo.tracking.logger import Row


class RemoteLearner:
    """Passes on what the run asks, and publishes the learner's weights on the board. See `Learns`.

    Args:
        config: of the run.
        cluster: is left when this is closed.
        board: where runners find the weights.

    Raises:
        PartLost: of every method, when the learner's process is gone.
    """

    def __init__(self, config: TrainConfig, cluster: Cluster, board: Board) -> None:
        self._config, self._cluster, self._board = config, cluster, board
        distributed = config.distributed
        actor: Any = ray.remote(LearnerActor)
        self._actor = actor.options(num_cpus=distributed.learner_cpus, num_gpus=distributed.learner_gpus).remote(config)
        self.device = torch.device("cpu")  # until it is known
        self._spaces: Spaces
        self._model: ActorCritic | None = None
        self._model_version = -1
        self._row: Row = {}
        self._is_gone = self._is_closed = False
        self._has_adopted = False

    def prepare(self, spaces: Spaces) -> None:
        """Make the networks.

        Raises:
            ValueError: there is no such device, or no room for the learner.
        """
        self._spaces = spaces
        try:
            self.device = self._ask(self._actor.prepare.remote(spaces), START_SECONDS)
        except GetTimeoutError:
            raise ValueError(
                f"the learner (distributed.learner_cpus={self._config.distributed.learner_cpus:g}) has not started within "
                f"{START_SECONDS:g} s; of the Ray cluster's CPUs {self._cluster.free_cpus():g} are free"
            ) from None
        self._board.publish(self._actor.weights.remote())

    @property
    def model(self) -> ActorCritic:
        """A copy of the networks as they are now; fetched if it was not yet."""
        return self._fetch_model()

    def _fetch_model(self, timeout: float | None = None) -> ActorCritic:
        if self._model is None:
            self._model = make_model(self._config, self._spaces.obs, self._spaces.actions)
        if self._model_version != self._board.version:
            if self._is_closed:
                raise PartLost("the policy cannot be had any more: the run is over, and its learner had not told it")
            load_weights(self._model, self._ask(self._board.weights, timeout))
            self._model_version = self._board.version
        return self._model

    def learn(self, gathered: Gathered, settings: Settings) -> Learned:
        report: Report = self._publishing("learn", _lesson(gathered), settings)
        self._board.rollouts_lost += report.lost
        self._row = gathered.metrics(report.load_seconds)
        return report.learned

    def measure_rollout(self, gathered: Gathered) -> None:
        if self._has_adopted:  # statistics, too
            self.measure_what_is_new(gathered)
            return
        self._board.publish(self._actor.measure.remote(_lesson(gathered)))
        self._ask(self._board.weights)

    def measure_what_is_new(self, gathered: Gathered) -> None:
        self._board.publish(self._actor.measure_what_is_new.remote(_lesson(gathered)))
        self._ask(self._board.weights)

    def begin_episodes(self) -> None:
        self._ask(self._actor.begin_episodes.remote())

    @property
    def value_unit(self) -> float:
        unit: float = self._ask(self._actor.value_unit.remote())
        return unit

    def state(self) -> LearnerState:
        state: LearnerState = self._ask(self._actor.state.remote())
        return state

    def restore(self, checkpoint: Checkpoint, env_name: str) -> LearnerNews:
        news: LearnerNews = self._publishing("restore", checkpoint, env_name)
        return news

    def adopt(self, checkpoint: Checkpoint, env_name: str) -> LearnerNews:
        """As `Learner.adopt`; `measure_rollout` then only measures what the checkpoint does not know."""
        news: LearnerNews = self._publishing("adopt", checkpoint, env_name)
        self._has_adopted = True
        return news

    def metrics(self) -> Row:
        return self._row

    def close(self) -> None:
        if not self._is_closed:
            if not self._is_gone:
                with suppress(Exception):  # who asks for the policy later gets the last one, if it can be had
                    self._fetch_model(CLOSE_SECONDS)
            self._is_closed = True
            with suppress(Exception):  # Ray itself may be gone
                ray.kill(self._actor)
        self._cluster.close()

    def _publishing(self, method: str, *args: Any) -> Any:
        """What a method returns that also returns new weights; these stay where they are, stored once for all runners."""
        result, weights = getattr(self._actor, method).options(num_returns=2).remote(*args)
        found = self._ask(result)
        self._board.publish(weights)
        return found

    def _ask(self, reference: Any, timeout: float | None = None) -> Any:
        try:
            return fetch(reference, timeout)
        except ActorDied as error:
            self._is_gone = True
            raise PartLost(f"the learner is gone: {error}") from None


def _lesson(gathered: Gathered) -> Lesson:
    return Lesson([part.rollout for part in gathered.parts], gathered.num_runners, any(gathered.staleness))
