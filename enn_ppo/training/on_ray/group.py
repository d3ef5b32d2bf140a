"""The sampler of a run on Ray: a group of environment runners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from statistics import fmean
from typing import Any

import ray

from enn_ppo.rollout import Watch, play_all
from enn_ppo.settings.config import RolloutConfig, TrainConfig
from enn_ppo.training.environment import BoundEnvironment
from enn_ppo.training.errors import ActorDied, PartLost
from enn_ppo.training.on_ray.cluster import CLOSE_SECONDS, START_SECONDS, connection, fetch, not_started
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


class Runner:
    """The training process's proxy of an environment runner.

    Args:
        number: from 0.
        config: of the run.
        rollout: settings of this runner's rollouts.
        env: the pickled `BoundEnvironment`.

    Attributes:
        awaited: reference to the result of a start or a rollout in progress; None: the runner is idle.
        playing: the rollout in progress; None: there is none.
        starts: number of starts.
        deaths: number of times its process has died since its last rollout.
        last_key: key of the last rollout's sampling noise; -1: none yet.
    """

    def __init__(self, number: int, config: TrainConfig, rollout: RolloutConfig, env: bytes) -> None:
        self.number, self._num_envs, self._first_env = number, rollout.num_envs, number * rollout.num_envs
        self._arguments = (config, rollout, self._first_env, env)
        self.num_blocks = rollout.num_envs // rollout.block_size
        self.actor: Any = None
        self.starts, self.deaths, self.last_key = 0, 0, -1
        self.start(None, {})

    @property
    def is_starting(self) -> bool:
        """Whether its process is not ready yet."""
        return self.awaited is not None and self.playing is None

    def start(self, seed: int | None, parameters: Parameters) -> None:
        """Start a new process. A rollout of the previous process is lost. Arguments as in `EnvRunner.prepare`."""
        if self.actor is not None:
            ray.kill(self.actor)
        self.starts += 1
        actor: Any = ray.remote(EnvRunner)
        self.actor = actor.options(num_cpus=1).remote(*self._arguments)
        self.playing: Part | None = None
        self.awaited: Any = self.actor.prepare.remote(seed, self._own(parameters))

    def reset(self, seed: int, parameters: Parameters) -> Any:
        """Reset the environments; returns a reference. A rollout in progress is dropped."""
        self.playing = self.awaited = None
        return self.actor.reset.remote(seed, self._own(parameters))

    def play(self, learners: Sequence[RemoteLearner], key: int, parameters: Parameters, steps: int) -> None:
        """Start collecting a rollout with the learners' weights; arguments as in `EnvRunner.play`."""
        play = self.actor.play.options(num_returns=1 + len(learners))
        weights = [learner.weights for learner in learners]
        self.awaited, *rollouts = play.remote(key, self._own(parameters), steps, *weights)
        self.playing, self.last_key = Part(self.number, learners[0].version, rollouts), key

    def _own(self, parameters: Parameters) -> dict[str, Sequence[Any]]:
        """The parameters of this runner's environments."""
        end = self._first_env + self._num_envs
        return {name: values[self._first_env : end] for name, values in parameters.items()}


class RunnerGroup:
    """Collects rollouts from runners, and restarts runners that die; it stands where `LocalSampler` does in a local run.

    In step, with `distributed.max_staleness=0`, an update takes one rollout of every runner, all collected with the current
    weights. Otherwise runners never pause: each rollout starts with the newest weights, and an update takes as many rollouts as
    there are runners. V-trace weighs those with earlier weights.

    A runner that dies is restarted with new episodes while the others continue; see `docs/distributed.md`.

    Args:
        config: settings of the run.
        env: the environment.

    Attributes:
        learners: policy -> its learner, which `close` closes, too.

    Raises:
        ValueError: the cluster is missing or too small, or the environment cannot be sent or breaks its contract.
    """

    def __init__(self, config: TrainConfig, env: BoundEnvironment) -> None:
        num_runners, players = config.distributed.num_env_runners, config.policies or {"": [0]}
        own, pickled = config.rollout.share(num_runners, "runners"), pickled_for_worker(env)
        announce(
            f"starting Ray, {num_runners} environment runner{'s' * (num_runners != 1)} and {len(players)} "
            f"learner{'s' * (len(players) != 1)}: each is a process that imports torch"
        )
        self._config, self._in_step = config, config.distributed.max_staleness == 0
        self._step = 0
        self._parameters: dict[str, Sequence[Any]] = {}
        self._finished: list[Part] = []  # rollouts that no update has taken yet
        self._counts = {"rollouts_lost": 0, "rollouts_stale": 0, "runner_restarts": 0}  # since the last row of metrics
        self._row: Row = {}
        self._runners: list[Runner] = []
        self.learners: dict[str, RemoteLearner] = {}
        self._spaces: Spaces
        with ExitStack() as stack:
            gpus = stack.enter_context(connection(config.distributed, len(players), config.device))
            stack.callback(self._end)
            self.learners |= {
                name: RemoteLearner(config, number, name, len(own_players), gpus)
                for number, (name, own_players) in enumerate(players.items())
            }
            self._runners += [Runner(number, config, own, pickled) for number in range(num_runners)]
            while any(runner.is_starting for runner in self._runners):
                self._receive()
            for learner in self.learners.values():
                learner.prepare(self._spaces)
            self._resources = stack.pop_all()

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
        there = [runner for runner in self._runners if not runner.is_starting]
        for runner, reference in [(each, each.reset(seed, parameters)) for each in there]:
            try:
                fetch(reference)
            except ActorDied as error:
                self._restart(runner, str(error))

    def collect(self, step: int, steps: int, parameters: Parameters, watch: Watch = play_all) -> dict[str, list[Part]]:
        """Collect a rollout of each runner, or, out of step, as many of any runners; see `LocalSampler.collect`.

        `watch` is not called.

        Returns:
            Policy -> the same parts in the order of their environments; of one runner, the oldest first.

        Raises:
            PartLost: no runner is alive, and none can be started.
            Exception: raised by an environment.
        """
        self._step = step
        self._parameters |= parameters
        if not self._in_step:
            steps = self._config.rollout.steps  # also in the last update: merged rollouts must have the same length
        self._drop_stale()
        while not self._has_enough():
            self._play(steps)
            self._receive()
            self._drop_stale()
        if not self._in_step:
            self._play(steps)  # while the learner trains
        number = len(self._runners)
        taken, self._finished = self._finished[:number], self._finished[number:]
        taken.sort(key=lambda part: part.runner)
        ages = [self._version - part.version for part in taken]
        self._row = {
            "distributed/runners": len({part.runner for part in taken}),
            "distributed/staleness": fmean(ages),
            "distributed/staleness_max": max(ages),
        }
        return dict.fromkeys(self.learners, taken)

    @property
    def _version(self) -> int:
        return next(iter(self.learners.values())).version

    def _has_enough(self) -> bool:
        if self._in_step:
            return bool(self._finished) and not any(runner.playing for runner in self._runners)
        return len(self._finished) >= len(self._runners)

    def _play(self, steps: int) -> None:
        """Start a rollout on idle runners; in step, on those that have not finished one yet."""
        for runner in self._runners:
            has_played = self._in_step and any(part.runner == runner.number for part in self._finished)
            if runner.awaited is None and not has_played:
                # out of step, a runner may play several rollouts in one step of the run: each needs other sampling noise
                key = self._step if self._in_step else max(self._step, runner.last_key + 1)
                runner.play(list(self.learners.values()), key, self._parameters, steps)

    def _receive(self) -> None:
        """Wait until a rollout is finished or a runner has started, and receive it."""
        awaited = {runner.awaited: runner for runner in self._runners if runner.awaited is not None}
        is_played = any(runner.playing for runner in self._runners)
        done, _ = ray.wait([*awaited], num_returns=1, timeout=None if is_played else START_SECONDS)
        if not done:
            raise PartLost(not_started("a runner"))
        for reference in done:
            runner = awaited[reference]
            try:
                told = fetch(reference)
            except ActorDied as error:
                self._restart(runner, str(error))
                continue
            except Exception as error:
                error.add_note(f"(in runner {runner.number})")
                raise
            if runner.playing:
                self._finished.append(runner.playing)
                runner.deaths = 0
            else:
                self._spaces = told
                if runner.starts > 1:
                    self._counts["runner_restarts"] += 1
                    announce(f"runner {runner.number} plays again, in new episodes")
            runner.playing = runner.awaited = None

    def _drop_stale(self) -> None:
        oldest = self._version - self._config.distributed.max_staleness
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
        asked = {runner: runner.actor.state.remote() for runner in self._runners if runner.awaited is None}
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
        self._resources.close()

    def _end(self) -> None:
        with suppress(Exception):  # Ray itself may be gone
            closing = [runner.actor.close.remote() for runner in self._runners if runner.awaited is None]
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
            for runner in self._runners:
                ray.kill(runner.actor)
        for learner in self.learners.values():
            learner.close()
