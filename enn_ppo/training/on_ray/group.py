"""The sampler of a run on Ray: a group of environment runners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from statistics import fmean
from typing import Any

import ray
from ray.exceptions import GetTimeoutError

from enn_ppo.rollout import Watch, play_all
from enn_ppo.settings.config import RolloutConfig, TrainConfig
from enn_ppo.training.environment import BoundEnvironment
from enn_ppo.training.errors import ActorDied, PartLost
from enn_ppo.training.on_ray.cluster import CLOSE_SECONDS, START_SECONDS, connect, fetch, not_started
from enn_ppo.training.on_ray.learners import Part, RemoteLearner
from enn_ppo.training.on_ray.runner import EnvRunner, Spaces
from enn_ppo.training.random_keys import Purpose, random_key
from enn_ppo.training.sampling import Parameters, blocks_problem
from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.run_output import announce
from entity_gym.actions import ActionSpace
from entity_gym.pools.processes.pickling import pickled_for_worker
from entity_gym.spaces import ObsSpace

DEATHS_IN_A_ROW = 5  # a runner that dies more often without finishing a rollout ends the run


def start_on_ray(config: TrainConfig, env: BoundEnvironment) -> tuple[dict[str, RemoteLearner], RunnerGroup]:
    """Start the runners, and a learner for each policy.

    Returns:
        Policy -> its learner; and the sampler, which closes the learners too.

    Raises:
        ValueError: the cluster is missing or too small, or the environment cannot be sent or breaks its contract.
    """
    if config.device == "cuda" and not config.distributed.learner_gpus:
        raise ValueError("device=cuda with distributed=ray needs a GPU for the learner: distributed.learner_gpus=1")
    num_runners, players = config.distributed.num_env_runners, config.policies or {"": [0]}
    pickled = pickled_for_worker(env)
    announce(
        f"starting Ray, {num_runners} environment runner{'s' * (num_runners != 1)} and {len(players)} "
        f"learner{'s' * (len(players) != 1)}: each is a process that imports torch"
    )
    with ExitStack() as stack:
        if connect(config.distributed, len(players)):
            stack.callback(ray.shutdown)
        learners = {
            name: RemoteLearner(config, number, name, len(own)) for number, (name, own) in enumerate(players.items())
        }
        for learner in learners.values():
            stack.callback(learner.close)
        sampler = RunnerGroup(config, pickled, list(learners.values()))
        stack.callback(sampler.close)
        sampler.start()
        for learner in learners.values():
            learner.prepare((sampler.obs_space(), sampler.action_space()))
        sampler.resources = stack.pop_all()
    return learners, sampler


class Runner:
    """The training process's proxy of an environment runner.

    Args:
        number: from 0.
        config: of the run.
        rollout: settings of this runner's rollouts.
        env: the pickled `BoundEnvironment`.

    Attributes:
        playing: the rollout in progress; None: the runner is idle.
        starting: reference to the runner's `Spaces` while it starts; None afterwards.
        starts: number of starts.
        deaths: number of times its process has died since its last rollout.
        last_key: key of the last rollout's sampling noise; -1: none yet.
        version_sent: version of the last rollout's weights; -1: none yet.
    """

    def __init__(self, number: int, config: TrainConfig, rollout: RolloutConfig, env: bytes) -> None:
        self.number, self._rollout = number, rollout
        self._first_env = number * rollout.num_envs
        self._arguments = (config, rollout, self._first_env, env)
        self.num_blocks = rollout.num_envs // rollout.block_size
        self.actor: Any = None
        self.starts, self.deaths, self.last_key = 0, 0, -1
        self.start(None, {})

    def start(self, seed: int | None, parameters: Parameters) -> None:
        """Start a new process. A rollout of the previous process is lost. Arguments as in `EnvRunner.prepare`."""
        if self.actor is not None:
            ray.kill(self.actor)
        self.playing: Part | None = None
        self.starts += 1
        self.version_sent = -1
        actor: Any = ray.remote(EnvRunner)
        self.actor = actor.options(num_cpus=1).remote(*self._arguments)
        self.starting: Any = self.actor.prepare.remote(seed, self._own(parameters))

    def reset(self, seed: int, parameters: Parameters) -> Any:
        """Reset the environments; returns a reference. A rollout in progress is dropped."""
        self.playing, self.version_sent = None, -1
        return self.actor.reset.remote(seed, self._own(parameters))

    def play(self, learners: Sequence[RemoteLearner], key: int, parameters: Parameters, steps: int) -> None:
        """Start collecting a rollout with the learners' weights; arguments as in `EnvRunner.play`."""
        play = self.actor.play.options(num_returns=1 + len(learners))
        weights = [learner.weights for learner in learners]
        told, *rollouts = play.remote(key, self._own(parameters), steps, *weights)
        self.last_key, self.version_sent = key, learners[0].version
        self.playing = Part(self.number, self.version_sent, steps * self._rollout.num_envs, rollouts, told)

    def _own(self, parameters: Parameters) -> dict[str, Sequence[Any]]:
        """The parameters of this runner's environments."""
        end = self._first_env + self._rollout.num_envs
        return {name: values[self._first_env : end] for name, values in parameters.items()}


class RunnerGroup:
    """Collects rollouts from runners, and restarts runners that die; it stands where `LocalSampler` does in a local run.

    With `distributed.sync`, an update takes one rollout of every runner, all collected with the current weights. Without it,
    runners never pause: each rollout starts with the newest weights, and an update takes the rollouts that are finished, of which
    V-trace weighs those with earlier weights.

    A runner that dies is restarted with new episodes while the others continue; see `docs/distributed.md`.

    Args:
        config: settings of the run.
        env: the pickled `BoundEnvironment`.
        learners: of all policies; their weights act.

    Attributes:
        resources: closed by `close`, after the runners.
    """

    def __init__(self, config: TrainConfig, env: bytes, learners: Sequence[RemoteLearner]) -> None:
        self._config, self._learners, self.resources = config, learners, ExitStack()
        self._sync = config.distributed.sync
        self._step = 0
        self._parameters: dict[str, Sequence[Any]] = {}
        self._finished: list[Part] = []  # rollouts that no update has taken yet
        self._counts = {"rollouts_lost": 0, "rollouts_stale": 0, "runner_restarts": 0}  # since the last row of metrics
        self._row: Row = {}
        num_runners = config.distributed.num_env_runners
        own = replace(config.rollout, num_envs=config.rollout.num_envs // num_runners)
        self._runners = [Runner(number, config, own, env) for number in range(num_runners)]
        self._spaces: Spaces

    def start(self) -> None:
        """Wait until all runners have started.

        Raises:
            ValueError: the cluster has not enough CPUs for the runners, or an environment cannot be made.
        """
        for runner in self._runners:
            try:
                self._spaces = fetch(runner.starting, START_SECONDS)
            except GetTimeoutError:
                raise ValueError(not_started(f"runner {runner.number}")) from None
            except ActorDied as error:
                raise PartLost(f"runner {runner.number} died while it started: {error}") from None
            except Exception as error:
                error.add_note(f"(in runner {runner.number})")
                raise
            runner.starting = None

    def obs_space(self) -> ObsSpace:
        """Observation space of the environments."""
        return self._spaces[0]

    def action_space(self) -> Mapping[str, ActionSpace]:
        """Action name -> its space."""
        return self._spaces[1]

    def metrics(self) -> Row:
        """Metrics of the last update's rollouts, and counts since the last call."""
        row = self._row | {f"distributed/{name}": count for name, count in self._counts.items()}
        self._counts = dict.fromkeys(self._counts, 0)
        return row

    # --- Collecting

    def reset(self, seed: int, parameters: Parameters) -> None:
        """See `LocalSampler.reset`."""
        self._parameters |= parameters
        self._finished.clear()
        for runner, reference in [(each, each.reset(seed, parameters)) for each in self._ready()]:
            try:
                fetch(reference)
            except ActorDied as error:
                self._restart(runner, str(error))

    def collect(self, step: int, steps: int, parameters: Parameters, watch: Watch = play_all) -> dict[str, list[Part]]:
        """Collect rollouts: with `sync` one of each runner, otherwise at least as many frames; see `LocalSampler.collect`.

        `watch` is not called.

        Returns:
            Policy -> the same parts in the order of their environments; of one runner, the oldest first.

        Raises:
            PartLost: no runner is alive, and none can be started.
            Exception: raised by an environment.
        """
        self._step = step
        self._parameters |= parameters
        rollout = self._config.rollout
        if not self._sync:
            steps = rollout.steps  # also in the last update: merged rollouts must have the same length
        self._drop_stale()
        taken: list[Part] = []
        while not self._has_enough():
            self._play(steps)
            self._receive()
            self._drop_stale()
        if not self._sync:
            self._play(steps)  # while the learner trains
        while self._finished and _frames(taken) < rollout.num_envs * rollout.steps:
            taken.append(self._finished.pop(0))
        taken.sort(key=lambda part: part.runner)
        ages = [self._version - part.version for part in taken]
        self._row = {
            "distributed/runners": len({part.runner for part in taken}),
            "distributed/staleness": fmean(ages),
            "distributed/staleness_max": max(ages),
            "distributed/rollout_bytes": fmean(part.told[0] for part in taken),
            "distributed/play_seconds": fmean(part.told[1] for part in taken),
        }
        return dict.fromkeys(self._config.policies or [""], taken)

    @property
    def _version(self) -> int:
        return self._learners[0].version

    def _ready(self) -> list[Runner]:
        return [runner for runner in self._runners if runner.starting is None]

    def _has_enough(self) -> bool:
        if self._sync:
            return bool(self._finished) and not any(runner.playing for runner in self._runners)
        return _frames(self._finished) >= self._config.rollout.num_envs * self._config.rollout.steps

    def _play(self, steps: int) -> None:
        """Start a rollout on idle runners; with `sync`, one for each version of the weights."""
        for runner in self._ready():
            if not runner.playing and not (self._sync and runner.version_sent == self._version):
                # without sync, a runner may play several rollouts in one step of the run: each needs other sampling noise
                key = self._step if self._sync else max(self._step, runner.last_key + 1)
                runner.play(self._learners, key, self._parameters, steps)

    def _receive(self) -> None:
        """Wait until a rollout is finished or a runner has started, and receive it."""
        playing = {runner.playing.told: runner for runner in self._runners if runner.playing}
        starting = {runner.starting: runner for runner in self._runners if runner.starting is not None}
        done, _ = ray.wait([*playing, *starting], num_returns=1, timeout=None if playing else START_SECONDS)
        if not done:
            raise PartLost(not_started("all runners have died: none"))
        for reference in done:
            runner = (playing | starting)[reference]
            try:
                told = fetch(reference)
            except ActorDied as error:
                self._restart(runner, str(error))
                continue
            except Exception as error:
                error.add_note(f"(in runner {runner.number})")
                raise
            if runner.playing:
                self._finished.append(runner.playing._replace(told=told))
                runner.playing, runner.deaths = None, 0
            else:
                runner.starting = None
                self._counts["runner_restarts"] += 1
                announce(f"runner {runner.number} plays again, in new episodes")

    def _drop_stale(self) -> None:
        oldest = self._version - (0 if self._sync else self._config.distributed.max_staleness)
        fresh = [part for part in self._finished if part.version >= oldest]
        self._counts["rollouts_stale"] += len(self._finished) - len(fresh)
        self._finished = fresh

    def _restart(self, runner: Runner, reason: str) -> None:
        """Restart a runner whose process has died."""
        number = runner.number
        runner.deaths += 1
        if runner.deaths > DEATHS_IN_A_ROW:
            raise PartLost(f"runner {number} died {runner.deaths} times in a row without a rollout: {reason}")
        announce(f"runner {number} is gone ({reason}); it is started again, and the others go on meanwhile")
        self._counts["rollouts_lost"] += runner.playing is not None
        seed = random_key(self._config.seed, self._step, Purpose.NEW_EPISODES, number, runner.starts)
        runner.start(seed, self._parameters)

    # --- Checkpoints

    def state(self) -> dict[str, Any]:
        """State of every block; None for blocks of busy runners, which begin new episodes after a resume."""
        asked = {runner: runner.actor.state.remote() for runner in self._ready() if not runner.playing}
        blocks: list[dict[str, Any] | None] = []
        for runner in self._runners:
            there: list[dict[str, Any] | None] = [None] * runner.num_blocks
            if runner in asked:
                with suppress(ActorDied):  # the next rollout handles it
                    there = fetch(asked[runner])
            blocks += there
        only = blocks[0] if len(blocks) == 1 else None
        return only or {"blocks": blocks}

    def load_state(self, state: Mapping[str, Any]) -> str | None:
        """See `LocalSampler.load_state`."""
        saved, per_runner = state.get("blocks", [state]), self._runners[0].num_blocks
        if problem := blocks_problem(saved, len(self._runners) * per_runner):
            return problem
        parts = [saved[first : first + per_runner] for first in range(0, len(saved), per_runner)]
        asked = [each.actor.load_state.remote(part) for each, part in zip(self._runners, parts, strict=True)]
        try:
            return next((problem for problem in map(fetch, asked) if problem), None)
        except ActorDied as error:  # `reset` restarts the runner
            return f"a runner has died: {error}"

    def close(self) -> None:
        """Stop the runners and the learners, and Ray if it was started for this run. May be called twice."""
        with self.resources, suppress(Exception):  # Ray itself may be gone
            closing = [runner.actor.close.remote() for runner in self._ready() if not runner.playing]
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
            for runner in self._runners:
                ray.kill(runner.actor)
        self._runners = []


def _frames(parts: Sequence[Part]) -> int:
    return sum(part.num_frames for part in parts)
