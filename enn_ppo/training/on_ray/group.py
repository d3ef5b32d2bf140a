"""The sampler of a run on Ray: a group of environment runners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.rollout import Watch, play_all
from enn_ppo.settings.config import TrainConfig
from enn_ppo.training.errors import PartLost, TooManyFailures
from enn_ppo.training.on_ray.board import Board, Gathered, Part
from enn_ppo.training.on_ray.cluster import CLOSE_SECONDS, START_SECONDS, Cluster
from enn_ppo.training.on_ray.runner import NewEpisodes, Plan, Spaces, describe
from enn_ppo.training.on_ray.runner_handle import RunnerDied, RunnerHandle
from enn_ppo.training.random_keys import Purpose, random_key
from enn_ppo.training.sampling import Parameters, blocks_problem
from enn_ppo.training.tracking.logger import Row
from entity_gym.actions import ActionSpace
from entity_gym.pools.episodes import Episode
from entity_gym.spaces import ObsSpace

DEATHS_IN_A_ROW = 5  # a runner that dies more often without finishing a rollout ends the run
WAIT_SECONDS = 60.0  # a message is printed after waiting for a rollout for this long


@dataclass
class Counts:
    """Counters since the last row of metrics."""

    restarts: int = 0  # runners that were restarted
    failures: int = 0  # environments that have raised
    stale: int = 0  # rollouts that were dropped because their weights were too old


class RunnerGroup:
    """Collects rollouts from runners, and restarts runners that die. Implements `Sampler`.

    With `distributed.sync`, an update takes one rollout of every runner, all collected with the current weights. Without it,
    runners never pause: each rollout starts with the newest weights, and an update takes the rollouts that are finished.

    A runner that dies is restarted with new episodes while the others continue; see `docs/distributed.md`.

    Args:
        config: settings of the run.
        plans: one for each runner.
        cluster: explains why a runner does not start.
        board: holds the current weights.

    Raises:
        ValueError: the cluster has not enough CPUs for the runners, or an environment cannot be made.
    """

    def __init__(self, config: TrainConfig, plans: Sequence[Plan], cluster: Cluster, board: Board) -> None:
        self._config, self._settings = config, config.distributed
        self._policies = list(config.policies) or [""]
        self._cluster, self._board = cluster, board
        self._say: Callable[[str], None] | None = None
        self._unsaid = list(cluster.notes)
        self._counts, self._failures = Counts(), 0
        self._step = 0
        self._parameters: dict[str, Sequence[Any]] = {}
        self._finished: list[Part] = []  # rollouts that no update has taken yet
        self._runners = [RunnerHandle(plan, self._settings.runner_cpus) for plan in plans]
        try:
            self.spaces = [self._first_start(runner) for runner in self._runners][0]
        except BaseException:
            self.close()
            raise

    def _first_start(self, runner: RunnerHandle) -> Spaces:
        try:
            return runner.finish_start(START_SECONDS)
        except GetTimeoutError:
            raise ValueError(
                f"runner {runner.number} of distributed.num_env_runners={len(self._runners)} has not started within "
                f"{START_SECONDS:g} s; of the Ray cluster's CPUs {self._cluster.free_cpus():g} are free"
            ) from None
        except RunnerDied as error:
            raise PartLost(f"runner {runner.number} died while it started: {error}") from None
        except Exception as error:
            error.add_note(f"(in runner {runner.number})")
            raise

    # --- Sampler ---

    def obs_space(self) -> ObsSpace:
        return self.spaces.obs

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self.spaces.actions

    def tell(self, say: Callable[[str], None]) -> None:
        self._say = say
        for line in self._unsaid:
            say(line)
        self._unsaid.clear()

    def announce(self, lines: Sequence[str]) -> None:
        """Buffer lines until `tell` is called."""
        self._unsaid += lines

    def metrics(self) -> Row:
        counts, self._counts = self._counts, Counts()
        lost, self._board.rollouts_lost = self._board.rollouts_lost, 0
        return {
            "distributed/rollouts_lost": lost,
            "distributed/rollouts_stale": counts.stale,
            "distributed/runner_restarts": counts.restarts,
            "distributed/env_failures": counts.failures,
        }

    # --- Collecting ---

    def key(self, step: int) -> None:
        self._step = step

    def configure(self, parameters: Parameters) -> None:
        self._parameters |= parameters

    def reset(self, seed: int, parameters: Parameters | None) -> None:
        self._parameters |= parameters or {}
        self._finished.clear()
        asked = [
            (runner, runner.actor.reset.remote(seed, runner.plan.part(parameters or {}))) for runner in self._ready()
        ]
        for runner, reference in asked:
            runner.play = None
            try:
                runner.ask(reference)
            except RunnerDied as error:
                self._lose(runner, str(error))

    def collect(self, steps: int, watch: Watch = play_all) -> dict[str, Gathered]:
        """Collect rollouts: with `sync` one of each runner, otherwise at least `min_samples` frames.

        Returns:
            Policy -> the same parts; each part has the rollouts of every policy.

        Raises:
            TooManyFailures: more environments have raised than `distributed.max_env_failures`.
            PartLost: no runner is alive, and none can be started.
        """
        if not self._settings.sync:
            steps = self._config.rollout.steps  # also in the last update: merged rollouts must have the same length
        self._drop_stale()
        self._join_started()
        while not self._has_enough():
            self._send(steps)
            self._receive()
            self._drop_stale()
            self._join_started()
        if self._overlaps:  # collect the next rollouts while the learner trains
            self._send(steps)
        return dict.fromkeys(self._policies, self._take())

    def state(self) -> dict[str, Any]:
        """State of every block; None for blocks of busy runners, which begin new episodes after a resume."""
        asked = {runner.number: runner.actor.state.remote() for runner in self._ready() if not runner.play}
        blocks: list[dict[str, Any] | None] = []
        for runner in self._runners:
            there: list[dict[str, Any] | None] = [None] * runner.plan.num_blocks
            if runner.number in asked:
                with suppress(RunnerDied):  # the next `_send` handles it
                    there = runner.ask(asked[runner.number])
            blocks += there
        only = blocks[0] if len(blocks) == 1 else None
        return only or {"blocks": blocks}

    def load_state(self, state: Mapping[str, Any]) -> str | None:
        saved = state.get("blocks", [state])
        per_runner = self._runners[0].plan.num_blocks
        because = "rollout.block makes" if self._config.rollout.block else "distributed.num_env_runners makes"
        if problem := blocks_problem(saved, len(self._runners) * per_runner, because):
            return problem
        asked = []
        for runner in self._runners:
            first = runner.number * per_runner
            asked.append((runner, runner.actor.load_state.remote(saved[first : first + per_runner])))
        try:
            problems = [runner.ask(reference) for runner, reference in asked]
        except RunnerDied as error:  # `reset` restarts the runner
            return f"a runner has died: {error}"
        return next((problem for problem in problems if problem), None)

    def final_episodes(self) -> dict[str, list[Episode]]:
        """Play `distributed.final_episodes` episodes, shared among the runners. A runner that fails returns none."""
        ready, wanted = self._ready(), self._settings.final_episodes
        asked = []
        for place, runner in enumerate(ready):
            if number := wanted * (place + 1) // len(ready) - wanted * place // len(ready):
                seed = random_key(self._config.seed, self._step, Purpose.FINAL_EPISODES, runner.number)
                asked.append((runner, runner.actor.final_episodes.remote(number, seed, *self._board.weights)))
        episodes: dict[str, list[Episode]] = {name: [] for name in self._policies}
        for runner, reference in asked:
            try:
                for name, more in runner.ask(reference).items():
                    episodes[name] += more
            except Exception as error:  # the training is finished and saved, so the run must not fail
                self._tell(f"runner {runner.number} has played no final episodes: {describe(error)}")
        return episodes

    def read_checkpoint(self, path: str, policy: str = "") -> Checkpoint:
        """Read a checkpoint on the first runner's machine.

        Raises:
            ValueError: there is no such checkpoint.
        """
        runner = self._runners[0]
        checkpoint: Checkpoint = runner.ask(runner.actor.read_checkpoint.remote(path, policy))
        return checkpoint

    def close(self) -> None:
        """Stop the runners. May be called twice."""
        with suppress(Exception):  # Ray itself may be gone
            closing = [runner.actor.close.remote() for runner in self._ready() if not runner.play]
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
            for runner in self._runners:
                ray.kill(runner.actor)
        self._runners = []

    # --- Rollouts ---

    @property
    def _overlaps(self) -> bool:
        """Whether runners collect rollouts while the learner trains, with weights that are then one update old.

        One rollout per runner is enough: the learner is the slower side, so runners wait for it.
        """
        return not self._settings.sync and self._oldest > 0

    @property
    def _oldest(self) -> int:
        """Largest policy lag, in updates, at which a rollout is still trained on."""
        return self._settings.max_staleness if self._settings.stale == "correct" else 0

    def _ready(self) -> list[RunnerHandle]:
        return [runner for runner in self._runners if runner.is_ready]

    def _has_enough(self) -> bool:
        if self._settings.sync:
            return bool(self._finished) and not any(runner.play for runner in self._runners)
        return _frames(self._finished) >= (self._settings.min_samples or self._full)

    @property
    def _full(self) -> int:
        """Frames of one rollout of every runner."""
        return self._config.rollout.num_envs * self._config.rollout.steps

    def _send(self, steps: int) -> None:
        """Start a rollout on idle runners; with `sync`, one for each version of the weights.

        If these rollouts are too few for an update, runners collect more with the same weights.
        """
        nobody_plays = not any(runner.play for runner in self._runners)
        for runner in self._ready():
            has_new_weights = runner.version_sent != self._board.version
            if not runner.play and (self._overlaps or nobody_plays or has_new_weights):
                # without sync, a runner may play several rollouts in one step of the run: each needs other sampling noise
                key = self._step if self._settings.sync else max(self._step, runner.last_key + 1)
                runner.send(self._board, key, self._parameters, steps)

    def _receive(self) -> None:
        """Wait until a rollout is finished or a runner has started, and receive the rollout."""
        first = {runner.play.told: runner for runner in self._ready() if runner.play}
        starting = [runner.starting for runner in self._runners if not runner.is_ready]
        done, _ = ray.wait([*first, *starting], num_returns=1, timeout=WAIT_SECONDS if first else START_SECONDS)
        if not done and not first:
            raise PartLost(
                f"all runners have died, and none has restarted within {START_SECONDS:g} s; of the Ray cluster's CPUs "
                f"{self._cluster.free_cpus():g} are free"
            )
        if not done:
            numbers = ", ".join(str(runner.number) for runner in first.values())
            self._tell(f"still waiting for a rollout of runner {numbers}: none has come for {WAIT_SECONDS:g} s")
        for reference in done:
            if reference in first:
                self._take_in(first[reference])

    def _take_in(self, runner: RunnerHandle) -> None:
        try:
            part = runner.receive()
        except RunnerDied as error:
            self._lose(runner, str(error))
            return
        if part.told.not_finite:
            raise part.told.not_finite
        if part.told.failure:
            self._board.rollouts_lost += 1
            self._fail(runner, part.told.failure)
            return
        runner.deaths = 0
        self._finished.append(part)

    def _drop_stale(self) -> None:
        fresh = [part for part in self._finished if self._board.version - part.version <= self._oldest]
        self._counts.stale += len(self._finished) - len(fresh)
        self._finished = fresh

    def _take(self) -> Gathered:
        """Take the rollouts of this update: `min_samples` frames, at least one rollout of every runner; keep the rest."""
        taken: list[Part] = []
        limit = max(self._settings.min_samples or 0, self._full)
        while self._finished and _frames(taken) < limit:
            taken.append(self._finished.pop(0))
        taken.sort(key=lambda part: part.runner)
        return Gathered(taken, self._board.version)

    # --- Runners that die or fail ---

    def _join_started(self) -> None:
        """Use runners that have started."""
        for runner in self._runners:
            if runner.is_ready or not ray.wait([runner.starting], timeout=0)[0]:
                continue
            try:
                runner.finish_start()
            except RunnerDied as error:
                self._lose(runner, str(error))
            except Exception as error:
                self._fail(runner, describe(error))
            else:
                self._counts.restarts += 1
                self._tell(f"runner {runner.number} plays again, in new episodes")

    def _lose(self, runner: RunnerHandle, reason: str) -> None:
        """Restart a runner whose process has died."""
        runner.deaths += 1
        if runner.deaths > DEATHS_IN_A_ROW:
            raise PartLost(f"runner {runner.number} died {runner.deaths} times in a row without a rollout: {reason}")
        self._tell(f"runner {runner.number} is gone ({reason}); it is started again, and the others go on meanwhile")
        self._start_again(runner)

    def _fail(self, runner: RunnerHandle, failure: str) -> None:
        """Restart a runner whose environment has raised."""
        self._failures += 1
        self._counts.failures += 1
        what, limit = f"the environment of runner {runner.number} raised {failure}", self._settings.max_env_failures
        if self._failures > limit:
            raise TooManyFailures(f"{what}; that is failure {self._failures} and distributed.max_env_failures={limit}")
        self._tell(f"{what}; the runner is started again (failure {self._failures} of {limit} that are allowed)")
        self._start_again(runner)

    def _start_again(self, runner: RunnerHandle) -> None:
        self._board.rollouts_lost += runner.play is not None
        seed = random_key(self._config.seed, self._step, Purpose.NEW_EPISODES, runner.number, runner.starts)
        runner.start(NewEpisodes(seed, runner.plan.part(self._parameters)))

    def _tell(self, line: str) -> None:
        if self._say:
            self._say(line)
        else:
            self._unsaid.append(line)


def _frames(parts: Sequence[Part]) -> int:
    return sum(part.told.num_frames for part in parts)
