"""Learners on Ray: `LearnerActor` trains in a separate process, `RemoteLearner` is its proxy in the training process."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

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
from enn_ppo.training.learning.learner import Learned, Learner, LearnerNews, LearnerState, UpdateSettings
from enn_ppo.training.on_ray.cluster import CLOSE_SECONDS, START_SECONDS, fetch, not_started
from enn_ppo.training.on_ray.runner import CPU, Spaces
from enn_ppo.training.on_ray.shipping import Weights, load_weights, ship_weights, unship


class Part(NamedTuple):
    """The rollouts that a runner collects at a time."""

    runner: int
    version: int  # of the weights that act
    rollouts: Sequence[Any]  # a reference to the arrays of each policy's rollout


class LearnerActor:
    """Trains on request. Methods that change the networks also return their new weights.

    Rollouts are references into Ray's object store, in the order of their environments; Ray sends rollouts of less than 100 kB
    through the training process instead.
    """

    def __init__(self, config: TrainConfig, num_players: int) -> None:
        self._config, self._num_players = config, num_players
        self._learner: Learner

    def prepare(self, spaces: Spaces) -> tuple[torch.device, Weights]:
        """Make the networks. Returns their device, too.

        Raises:
            ValueError: there is no such device, or a teacher that remembers would miss rollouts.
        """
        config = self._config
        torch.set_num_threads(config.num_threads or 1)
        set_determinism(config.torch_deterministic)
        model = make_model(config.net, config.value_net, spaces, config.seed).to(select_device(config.device))
        self._learner = make_learner(
            model,
            config.optim,
            config.ppo,
            seed=config.seed,
            num_players=self._num_players,
            group_size=config.rollout.group_size,
        )
        teacher = self._learner.teacher
        if teacher and teacher.net.remembers and config.distributed.max_staleness:
            raise ValueError(
                f"ppo.teacher={config.ppo.teacher} has a memory, and must see all rollouts in their order: set "
                f"distributed.max_staleness=0, got {config.distributed.max_staleness}"
            )
        return self._learner.device, ship_weights(self._learner.model)

    def call(self, method: str, rollouts: Sequence[Any], *arguments: Any, **options: Any) -> tuple[Any, Weights]:
        """Call a method of `Learner`, with the merged rollouts as its first argument if there are any."""
        given = [self._load(rollouts)] if rollouts else []
        return getattr(self._learner, method)(*given, *arguments, **options), ship_weights(self._learner.model)

    def state(self) -> bytes:
        """See `Learner.state`; as a file, which a process without this device reads."""
        file = io.BytesIO()
        torch.save(self._learner.state(), file)
        return file.getvalue()

    def _load(self, references: Sequence[Any]) -> Rollout:
        """Fetch and merge rollouts, except those that were lost with their machines."""
        loaded = []
        for reference in references:
            with suppress(ObjectLostError):
                loaded.append(unship(ray.get(reference), self._learner.device))
        if not loaded:
            raise PartLost("all rollouts of an update were lost with the machines that had them")
        return Rollout.merged(loaded)


class RemoteLearner:
    """A `LearnerActor` in the place that a `Learner` has in a local run.

    Args:
        config: of the run.
        number: the policy's number, from 0.
        name: the policy's name; empty if it is the only one.
        num_players: players that the policy plays in each environment.
        num_gpus: that Ray reserves for it.

    Attributes:
        weights: reference to the current weights.
        version: number of weights that there have been.

    Raises:
        PartLost: from every method, when the learner's process has died.
    """

    def __init__(self, config: TrainConfig, number: int, name: str, num_players: int, num_gpus: int) -> None:
        self._config, self._number = config, number
        self._called = "the learner" + (f" of policy {name}" if name else "")
        actor: Any = ray.remote(LearnerActor).options(num_cpus=1, num_gpus=num_gpus)
        self._actor: Any = actor.remote(config, num_players)
        self.device = CPU  # until `prepare` returns the learner's
        self.weights: Any = None
        self.version = 0
        self._model: ActorCritic
        self._model_weights: Any = None  # reference to the weights of `_model`

    def prepare(self, spaces: Spaces) -> None:
        """Make the networks.

        Raises:
            ValueError: there is no such device, or the cluster has no CPU or GPU left for the learner.
        """
        self._model = make_model(self._config.net, self._config.value_net, spaces, self._config.seed)
        try:
            device, weights = self._actor.prepare.options(num_returns=2).remote(spaces)
            self.device = self._finish(device, weights, START_SECONDS)
        except GetTimeoutError:
            raise ValueError(not_started(self._called)) from None

    @property
    def model(self) -> ActorCritic:
        """A copy of the current networks, fetched on first use; the last ones after the run."""
        self._fetch_model()
        return self._model

    def _fetch_model(self, timeout: float | None = None) -> None:
        if self.weights is not self._model_weights:
            load_weights(self._model, self._ask(self.weights, timeout))
            self._model_weights = self.weights

    def learning(self, parts: Sequence[Part], scheduled: UpdateSettings) -> Callable[[], Learned]:
        """See `Learner.learning`."""
        stale = any(part.version != self.version for part in parts)
        return self._call("learn", parts, scheduled, stale=stale)

    def measure_rollout(self, parts: Sequence[Part]) -> None:
        """See `Learner.measure_rollout`."""
        self._call("measure_rollout", parts)()

    def measure_what_is_new(self, parts: Sequence[Part]) -> None:
        """See `Learner.measure_what_is_new`."""
        self._call("measure_what_is_new", parts)()

    def state(self) -> LearnerState:
        """See `Learner.state`; tensors are on the CPU."""
        file = io.BytesIO(self._ask(self._actor.state.remote()))
        state: LearnerState = torch.load(file, map_location=CPU, weights_only=False)
        return state

    def restore(self, checkpoint: Checkpoint, env_name: str) -> LearnerNews:
        """See `Learner.restore`."""
        news: LearnerNews = self._call("restore", [], checkpoint, env_name)()
        return news

    def close(self) -> None:
        """End the process; `model` keeps its last weights."""
        with suppress(Exception):  # Ray itself may be gone
            self._fetch_model(CLOSE_SECONDS)
        self.weights = self._model_weights
        with suppress(Exception):
            ray.kill(self._actor)

    def _call(self, method: str, parts: Sequence[Part], *arguments: Any, **options: Any) -> Callable[[], Any]:
        """Call a method of `Learner` with the rollouts of this policy; the returned function waits for its result."""
        rollouts = [part.rollouts[self._number] for part in parts]
        call = self._actor.call.options(num_returns=2).remote(method, rollouts, *arguments, **options)
        return partial(self._finish, *call)

    def _finish(self, result: Any, weights: Any, timeout: float | None = None) -> Any:
        """Wait for the result of a call that has changed the networks. Nobody waits for the new weights."""
        found = self._ask(result, timeout)
        self.weights, self.version = weights, self.version + 1
        return found

    def _ask(self, reference: Any, timeout: float | None = None) -> Any:
        try:
            return fetch(reference, timeout)
        except ActorDied as error:
            raise PartLost(f"{self._called} is gone: {error}") from None
