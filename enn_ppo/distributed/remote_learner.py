"""Proxy of a learner in another process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import ray
import torch
from ray.exceptions import GetTimeoutError

from enn_ppo.actor_critic import ActorCritic
from enn_ppo.checkpoints import Checkpoint
from enn_ppo.config import TrainConfig
from enn_ppo.distributed.board import Board, Gathered
from enn_ppo.distributed.cluster import CLOSE_SECONDS, START_SECONDS, Cluster, fetch
from enn_ppo.distributed.learner_actor import LearnerActor, Lesson, Report
from enn_ppo.distributed.runner import Spaces
from enn_ppo.distributed.shipping import load_weights
from enn_ppo.errors import ActorDied, PartLost
from enn_ppo.learner import Learned, LearnerNews, LearnerState, Settings, make_model
from enn_ppo.tracking.logger import Row


class Policy(NamedTuple):
    """The policy that a learner trains, if there are several."""

    number: int = 0
    name: str = ""  # empty if it is the only one
    num_players: int = 1  # that it plays in each environment


class RemoteLearner:
    """Forwards calls to a `LearnerActor`, and publishes its weights on the board. A `Learns`.

    Args:
        config: of the run.
        cluster: closed together with the first policy's learner.
        board: gives the weights to runners.
        policy: that it trains.

    Raises:
        PartLost: of every method, when the learner's process is gone.
    """

    def __init__(self, config: TrainConfig, cluster: Cluster, board: Board, policy: Policy) -> None:
        self._config, self._cluster, self._board = config, cluster, board
        self.policy = policy
        self._called = "the learner" + (f" of policy {policy.name}" if policy.name else "")
        distributed = config.distributed
        actor: Any = ray.remote(LearnerActor)
        actor = actor.options(num_cpus=distributed.learner_cpus, num_gpus=distributed.learner_gpus)
        self._actor = actor.remote(config, self.policy.num_players)
        self.device = torch.device("cpu")  # until `prepare` returns the learner's
        self._spaces: Spaces
        self._model: ActorCritic | None = None
        self._model_weights: Any = None  # reference to the weights of `_model`
        self._row: Row = {}
        self._is_gone = self._is_closed = False
        self._has_adopted = False

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
                f"{self._called} (distributed.learner_cpus={self._config.distributed.learner_cpus:g}) has not started within "
                f"{START_SECONDS:g} s; of the Ray cluster's CPUs {self._cluster.free_cpus():g} are free"
            ) from None
        self._publish(self._actor.weights.remote())

    @property
    def model(self) -> ActorCritic:
        """A copy of the current networks, fetched when it is asked for."""
        return self._fetch_model()

    def _fetch_model(self, timeout: float | None = None) -> ActorCritic:
        if self._model is None:
            self._model = make_model(self._config, self._spaces.obs, self._spaces.actions)
        if self._model_weights is not self._weights:
            if self._is_closed:
                raise PartLost("the policy cannot be had any more: the run is over, and its learner had not told it")
            load_weights(self._model, self._ask(self._weights, timeout))
            self._model_weights = self._weights
        return self._model

    @property
    def _weights(self) -> Any:
        """A reference to the current weights."""
        return self._board.weights[self.policy.number]

    def _publish(self, weights: Any) -> None:
        self._board.publish(weights, self.policy.number)

    def learning(self, gathered: Gathered, settings: Settings) -> Callable[[], Learned]:
        learned, weights = self._start("learn", self._lesson(gathered), settings)

        def finish() -> Learned:
            report: Report = self._ask(learned)
            self._publish(weights)
            if self.policy.number == 0:  # count a lost rollout once, not for every learner
                self._board.rollouts_lost += report.lost
            self._row = gathered.metrics(report.load_seconds)
            return report.learned

        return finish

    def measure_rollout(self, gathered: Gathered) -> None:
        if self._has_adopted:  # the input statistics came with the checkpoint
            self.measure_what_is_new(gathered)
            return
        self._publish(self._actor.measure.remote(self._lesson(gathered)))
        self._ask(self._weights)

    def measure_what_is_new(self, gathered: Gathered) -> None:
        self._publish(self._actor.measure_what_is_new.remote(self._lesson(gathered)))
        self._ask(self._weights)

    def begin_episodes(self) -> None:
        self._ask(self._actor.begin_episodes.remote())

    def state(self) -> LearnerState:
        state: LearnerState = self._ask(self._actor.state.remote())
        return state

    def restore(self, checkpoint: Checkpoint, env_name: str) -> LearnerNews:
        news: LearnerNews = self._publishing("restore", checkpoint, env_name)
        return news

    def adopt(self, checkpoint: Checkpoint, env_name: str) -> LearnerNews:
        """See `Learner.adopt`. After it, `measure_rollout` only measures features that the checkpoint did not have."""
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
        if self.policy.number == 0:
            self._cluster.close()

    def _lesson(self, gathered: Gathered) -> Lesson:
        own = [part.rollouts[self.policy.number] for part in gathered.parts]
        return Lesson(own, gathered.num_runners, any(gathered.staleness))

    def _start(self, method: str, *args: Any) -> tuple[Any, Any]:
        """Call a method that returns (result, new weights); references to both."""
        result, weights = getattr(self._actor, method).options(num_returns=2).remote(*args)
        return result, weights

    def _publishing(self, method: str, *args: Any) -> Any:
        """Call a method that returns (result, new weights), publish the weights without fetching them, and return the result."""
        result, weights = self._start(method, *args)
        found = self._ask(result)
        self._publish(weights)
        return found

    def _ask(self, reference: Any, timeout: float | None = None) -> Any:
        try:
            return fetch(reference, timeout)
        except ActorDied as error:
            self._is_gone = True
            raise PartLost(f"{self._called} is gone: {error}") from None
