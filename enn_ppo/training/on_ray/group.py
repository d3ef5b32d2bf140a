"""The sampler of a run on Ray: a group of environment runners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import ray
from ray.exceptions import GetTimeoutError

from enn_ppo.rollout import Watch, play_all
from enn_ppo.settings.config import TrainConfig
from enn_ppo.training.errors import ActorDied, PartLost
from enn_ppo.training.on_ray.board import Board, Gathered, Part
from enn_ppo.training.on_ray.cluster import CLOSE_SECONDS, START_SECONDS, Cluster, fetch
from enn_ppo.training.on_ray.runner import EnvRunner, NewEpisodes, Plan, Spaces
from enn_ppo.training.random_keys import Purpose, random_key
from enn_ppo.training.sampling import Parameters, blocks_problem
from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.progress import announce
from entity_gym.actions import ActionSpace
from entity_gym.spaces import ObsSpace

DEATHS_IN_A_ROW = 5  # a runner that dies more often without finishing a rollout ends the run
WAIT_SECONDS = 60.0  # a message is printed after waiting for a rollout for this long


class Play(NamedTuple):
    """A rollout that a runner is collecting."""

    told: Any  # a reference to its `Told`
    rollouts: Sequence[Any]  # a reference for each policy
    version: int  # of the weights


class Runner:
    """The training process's proxy of an environment runner.

    Args:
        plan: the runner's arguments.

    Attributes:
        play: the rollout in progress; None: the runner is idle.
        starting: reference to the runner's `Spaces` while it starts; None afterwards.
        starts: number of starts.
        deaths: number of times its process has died since its last rollout.
        last_key: key of the last rollout's sampling noise; -1: none yet.
        version_sent: version of the last rollout's weights; -1: none yet.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.actor: Any = None
        self.starts, self.deaths, self.last_key = 0, 0, -1
        self.start(None)

    def start(self, begin: NewEpisodes | None) -> None:
        """Start a new process. A rollout of the previous process is lost."""
        if self.actor is not None:
            ray.kill(self.actor)
        self.play: Play | None = None
        self.starts += 1
        self.version_sent = -1
        actor: Any = ray.remote(EnvRunner)
        self.actor = actor.options(num_cpus=1).remote(self.plan)
        self.starting: Any = self.actor.prepare.remote(begin)

    def send(self, board: Board, key: int, parameters: Parameters, steps: int) -> None:
        """Start collecting a rollout; arguments as in `EnvRunner.play`."""
        play = self.actor.play.options(num_returns=1 + len(board.weights))
        told, *rollouts = play.remote(key, self.plan.part(parameters), steps, *board.weights)
        self.last_key, self.version_sent = key, board.version
        self.play = Play(told, rollouts, board.version)


class RunnerGroup:
    """Collects rollouts from runners, and restarts runners that die; it stands where `LocalSampler` does in a local run.

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
        self._cluster, self._board = cluster, board
        self._restarts = self._stale = 0  # since the last row of metrics
        self._step = 0
        self._parameters: dict[str, Sequence[Any]] = {}
        self._finished: list[Part] = []  # rollouts that no update has taken yet
        self._runners = [Runner(plan) for plan in plans]
        try:
            self.spaces = [self._first_start(runner) for runner in self._runners][0]
        except BaseException:
            self.close()
            raise

    def _first_start(self, runner: Runner) -> Spaces:
        number = runner.plan.number
        try:
            spaces: Spaces = fetch(runner.starting, START_SECONDS)
        except GetTimeoutError:
            raise ValueError(
                f"runner {number} of distributed.num_env_runners={len(self._runners)} has not started within "
                f"{START_SECONDS:g} s; of the Ray cluster's CPUs {self._cluster.free_cpus():g} are free"
            ) from None
        except ActorDied as error:
            raise PartLost(f"runner {number} died while it started: {error}") from None
        except Exception as error:
            error.add_note(f"(in runner {number})")
            raise
        runner.starting = None
        return spaces

    def obs_space(self) -> ObsSpace:
        """Observation space of the environments."""
        return self.spaces.obs

    def action_space(self) -> Mapping[str, ActionSpace]:
        """Action name -> its space."""
        return self.spaces.actions

    def metrics(self) -> Row:
        """Metrics since the last call."""
        row = {
            "distributed/rollouts_lost": self._board.rollouts_lost,
            "distributed/rollouts_stale": self._stale,
            "distributed/runner_restarts": self._restarts,
        }
        self._board.rollouts_lost = self._stale = self._restarts = 0
        return dict(row)

    # --- Collecting

    def reset(self, seed: int, parameters: Parameters) -> None:
        """See `LocalSampler.reset`."""
        self._parameters |= parameters
        self._finished.clear()
        asked = [(each, each.actor.reset.remote(seed, each.plan.part(parameters))) for each in self._ready()]
        for runner, reference in asked:
            runner.play = None
            try:
                fetch(reference)
            except ActorDied as error:
                self._restart(runner, str(error))

    def collect(self, step: int, steps: int, parameters: Parameters, watch: Watch = play_all) -> dict[str, Gathered]:
        """Collect rollouts: with `sync` one of each runner, otherwise at least as many frames; see `LocalSampler.collect`.

        `watch` is not called.

        Returns:
            Policy -> the same parts; each part has the rollouts of every policy.

        Raises:
            PartLost: no runner is alive, and none can be started.
            Exception: raised by an environment.
        """
        self._step = step
        self._parameters |= parameters
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
        return dict.fromkeys(self._config.policies or [""], self._take())

    @property
    def _overlaps(self) -> bool:
        """Whether runners collect rollouts while the learner trains, with weights that are then one update old.

        One rollout per runner is enough: the learner is the slower side, so runners wait for it.
        """
        return not self._settings.sync and self._settings.max_staleness > 0

    @property
    def _full(self) -> int:
        """Frames of one rollout of every runner."""
        return self._config.rollout.num_envs * self._config.rollout.steps

    def _ready(self) -> list[Runner]:
        return [runner for runner in self._runners if runner.starting is None]

    def _has_enough(self) -> bool:
        if self._settings.sync:
            return bool(self._finished) and not any(runner.play for runner in self._runners)
        return _frames(self._finished) >= self._full

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
        playing = {runner.play.told: runner for runner in self._ready() if runner.play}
        starting = [runner.starting for runner in self._runners if runner.starting is not None]
        done, _ = ray.wait([*playing, *starting], num_returns=1, timeout=WAIT_SECONDS if playing else START_SECONDS)
        if not done and not playing:
            raise PartLost(
                f"all runners have died, and none has restarted within {START_SECONDS:g} s; of the Ray cluster's CPUs "
                f"{self._cluster.free_cpus():g} are free"
            )
        if not done:
            numbers = ", ".join(str(runner.plan.number) for runner in playing.values())
            announce(f"still waiting for a rollout of runner {numbers}: none has come for {WAIT_SECONDS:g} s")
        for reference in done:
            if reference in playing:
                self._take_in(playing[reference])

    def _take_in(self, runner: Runner) -> None:
        assert runner.play is not None
        play, number = runner.play, runner.plan.number
        try:
            told = fetch(play.told)
        except ActorDied as error:
            self._restart(runner, str(error))
            return
        except Exception as error:
            error.add_note(f"(in runner {number})")
            raise
        runner.play, runner.deaths = None, 0
        self._finished.append(Part(number, play.rollouts, told, play.version))

    def _drop_stale(self) -> None:
        oldest = 0 if self._settings.sync else self._settings.max_staleness
        fresh = [part for part in self._finished if self._board.version - part.version <= oldest]
        self._stale += len(self._finished) - len(fresh)
        self._finished = fresh

    def _take(self) -> Gathered:
        """Take the rollouts of this update, as many as there are runners; keep the rest."""
        taken: list[Part] = []
        while self._finished and _frames(taken) < self._full:
            taken.append(self._finished.pop(0))
        taken.sort(key=lambda part: part.runner)
        return Gathered(taken, self._board.version)

    # --- Runners that die

    def _join_started(self) -> None:
        """Use runners that have started."""
        for runner in self._runners:
            if runner.starting is None or not ray.wait([runner.starting], timeout=0)[0]:
                continue
            try:
                fetch(runner.starting)
            except ActorDied as error:
                self._restart(runner, str(error))
            else:
                runner.starting = None
                self._restarts += 1
                announce(f"runner {runner.plan.number} plays again, in new episodes")

    def _restart(self, runner: Runner, reason: str) -> None:
        """Restart a runner whose process has died."""
        number = runner.plan.number
        runner.deaths += 1
        if runner.deaths > DEATHS_IN_A_ROW:
            raise PartLost(f"runner {number} died {runner.deaths} times in a row without a rollout: {reason}")
        announce(f"runner {number} is gone ({reason}); it is started again, and the others go on meanwhile")
        self._board.rollouts_lost += runner.play is not None
        seed = random_key(self._config.seed, self._step, Purpose.NEW_EPISODES, number, runner.starts)
        runner.start(NewEpisodes(seed, runner.plan.part(self._parameters)))

    # --- Checkpoints

    def state(self) -> dict[str, Any]:
        """State of every block; None for blocks of busy runners, which begin new episodes after a resume."""
        asked = {runner: runner.actor.state.remote() for runner in self._ready() if not runner.play}
        blocks: list[dict[str, Any] | None] = []
        for runner in self._runners:
            there: list[dict[str, Any] | None] = [None] * runner.plan.num_blocks
            if runner in asked:
                with suppress(ActorDied):  # the next `_send` handles it
                    there = fetch(asked[runner])
            blocks += there
        only = blocks[0] if len(blocks) == 1 else None
        return only or {"blocks": blocks}

    def load_state(self, state: Mapping[str, Any]) -> str | None:
        """See `LocalSampler.load_state`."""
        saved = state.get("blocks", [state])
        per_runner = self._runners[0].plan.num_blocks
        if problem := blocks_problem(saved, len(self._runners) * per_runner):
            return problem
        parts = [saved[first : first + per_runner] for first in range(0, len(saved), per_runner)]
        asked = [each.actor.load_state.remote(part) for each, part in zip(self._runners, parts, strict=True)]
        try:
            return next((problem for problem in map(fetch, asked) if problem), None)
        except ActorDied as error:  # `reset` restarts the runner
            return f"a runner has died: {error}"

    def close(self) -> None:
        """Stop the runners. May be called twice."""
        with suppress(Exception):  # Ray itself may be gone
            closing = [runner.actor.close.remote() for runner in self._ready() if not runner.play]
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
            for runner in self._runners:
                ray.kill(runner.actor)
        self._runners = []


def _frames(parts: Sequence[Part]) -> int:
    return sum(part.told.num_frames for part in parts)
