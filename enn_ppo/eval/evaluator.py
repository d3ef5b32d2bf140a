"""Evaluation of checkpoints during training, in a separate process or in line. Every result can be reproduced.

    evaluator = Evaluator(config.eval, ...)
    if is_due(config.eval.interval, before, state.step):
        evaluator.submit(saved_checkpoint, state.step)
    if done := evaluator.poll():
        row |= done.metrics

An evaluation that fails prints a line, and training continues.
"""

from __future__ import annotations

import gc
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch

from enn_ppo.checkpoints import load_checkpoint, step_file
from enn_ppo.checkpoints.policy import select_device, set_determinism
from enn_ppo.eval.checkpoint import (
    OPPONENTS,
    bind_evaluation,
    check_players,
    evaluate_checkpoint,
    own_random_numbers,
)
from enn_ppo.eval.episodes import Estimate
from enn_ppo.eval.replay import Replay
from enn_ppo.eval.video import Video
from enn_ppo.settings.config import EnvConfig, TrainEvalConfig
from enn_ppo.training.self_play.opponents import load_opponent
from enn_ppo.training.tracking.logger import read_metrics
from enn_ppo.training.tracking.run_dir import METRICS, REPLAYS, VIDEOS
from entity_gym.actions import ActionSpace
from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.pools.processes.interpreter import describe_end, exit_when_orphaned, start_interpreter
from entity_gym.pools.processes.pickling import ErrorReport, pickled_for_parent, pickled_for_worker
from entity_gym.pools.source import EnvFactory
from entity_gym.replay.hints import check_hints
from entity_gym.spaces import ObsSpace
from rogue_net.transfer.transfer import fitted_space

PATIENCE = 0.2  # seconds between checks for Ctrl-C while waiting


class EvalRow(NamedTuple):
    """A finished evaluation."""

    step: int  # of the evaluated checkpoint
    metrics: dict[str, float]  # `eval/<name>`, `eval/<name>_ci95`, `eval/step`, `eval/seconds`
    score: float  # the mean episodic reward
    notes: list[str]  # differences from training, a sentence each


def evaluate_step(
    step: int,
    checkpoint: Path,
    config: TrainEvalConfig,
    env: EnvFactory | None,
    device: str,
    run_dir: Path,
    deterministic: bool,
) -> EvalRow:
    """Evaluate the checkpoint of a step with one thread. The result is the same in any process."""
    started = time.perf_counter()
    video = replay = None
    if config.video:
        film = run_dir / VIDEOS / f"step_{step:012d}.gif"
        video = Video(film, config.video, f"eval.video={config.video}")
    if config.replay:
        page = run_dir / REPLAYS / f"step_{step:012d}.html"
        replay = Replay(page, config.replay, f"eval.replay={config.replay}")
    set_determinism(deterministic)
    with _one_thread():
        result = evaluate_checkpoint(
            load_checkpoint(checkpoint), config, env, select_device(device), video=video, replay=replay
        )
    metrics = as_metrics(result.estimates)
    metrics |= {"eval/step": float(step), "eval/seconds": time.perf_counter() - started}
    return EvalRow(step, metrics, result.estimates["episodic_reward"].mean, result.notes)


def is_due(interval: int | None, before: int, after: int, last: bool = False) -> bool:
    """Whether an update from step `before` to `after` passes a multiple of `interval`, or is the last of the run."""
    return interval is not None and (last or after // interval > before // interval)


class Evaluator:
    """Evaluates checkpoints of a run, one after the other.

    Args:
        config: settings of evaluations.
        env: the environment, if it cannot be imported by name; as in `train`.
        device: `cpu`, `cuda` or `auto`.
        run_dir: of the run; videos are written as `videos/step_<12 digits>.gif` or `.mp4`, replays as
            `replays/step_<12 digits>.html`.
        say: prints a line.
    """

    def __init__(
        self,
        config: TrainEvalConfig,
        env: EnvFactory | None,
        device: str,
        run_dir: Path,
        say: Callable[[str], None],
    ) -> None:
        self.config = config
        self._env, self._device, self._run_dir, self._say = env, device, run_dir, say
        # (step, evaluation) of unfinished evaluations, oldest first; the process runs the first
        self._waiting: deque[tuple[int, Callable[[], EvalRow]]] = deque()
        self._finished: deque[EvalRow] = deque()  # not returned by `poll` yet
        self._process: EvaluationProcess | None = None
        self._asked = False  # whether the process is running the first of `_waiting`
        self._told: set[str] = set()

    def submit(self, checkpoint: Path, step: int) -> None:
        """Queue a checkpoint, which must stay on disk while `step` is in `pending_steps`. In line, evaluate it at once."""
        deterministic = torch.are_deterministic_algorithms_enabled()
        evaluation = partial(
            evaluate_step, step, checkpoint, self.config, self._env, self._device, self._run_dir, deterministic
        )
        self._waiting.append((step, evaluation))
        if self.config.process:
            self._advance()
            behind = len(self._waiting) - 1
            if behind >= 2 and behind & (behind - 1) == 0:  # at 2, 4, 8 and so on
                self._say(
                    f"evaluations are behind: at step {step:,}, {behind + 1} are under way; take fewer eval.episodes, a longer "
                    "eval.interval, or eval.process=false, with which training waits"
                )
        else:
            answer: EvalRow | ErrorReport
            try:
                answer = evaluation()
            except Exception as error:
                answer = ErrorReport.of(error)
            self._take(answer)

    def resubmit(self, steps: Iterable[int], checkpoints: Path) -> None:
        """Submit the evaluations that were unfinished when the run's checkpoint was saved, unless evaluation is off now.

        Evaluations that are in metrics.jsonl already are left out. A line names checkpoints that were not kept.
        """
        if self.config.interval is None:
            return
        metrics = self._run_dir / METRICS
        told = {row.get("eval/step") for row in (read_metrics(metrics) if metrics.is_file() else [])}
        for step in steps:
            if step in told:
                continue
            checkpoint = step_file(checkpoints, step)
            if checkpoint.is_file():
                self.submit(checkpoint, step)
            else:
                self._say(f"step {step:,} is not evaluated any more: {checkpoint} is gone")

    @property
    def pending_steps(self) -> list[int]:
        """Steps of the evaluations that `poll` has not returned yet, in the order of submission."""
        return [row.step for row in self._finished] + [step for step, _ in self._waiting]

    def poll(self) -> EvalRow | None:
        """The oldest finished evaluation that was not returned yet; None if there is none."""
        self._advance()
        return self._finished.popleft() if self._finished else None

    def wait(self, stop: Callable[[], object] = lambda: False) -> EvalRow | None:
        """Wait for the running evaluation, or until `stop()` is true."""
        while True:
            row = self.poll()
            if row or not self._waiting or stop():
                return row
            if self._process:
                self._process.has_answered(PATIENCE)

    def close(self) -> None:
        """End the process. Unfinished evaluations stay in `pending_steps`. May be called twice."""
        if self._process:
            self._process.close()
            self._process, self._asked = None, False

    def _advance(self) -> None:
        """Receive a result from the process, if there is one, and send the next evaluation. Does not wait."""
        if self._process and self._process.has_answered():
            answer = self._process.answer()
            if isinstance(answer, str):  # the process has died
                self._process = None
                self._say(f"the evaluation process {answer}" + f"; {self._first()} is given up" * self._asked)
                if self._asked:
                    self._next()
            else:
                self._take(answer)
        if self._waiting and not self._asked:
            try:
                self._process = self._process or EvaluationProcess()
                self._process.ask(self._waiting[0][1])
                self._asked = True
            except (OSError, ValueError) as error:
                self._say(f"{self._first()} is given up: {error}")
                self._next()

    def _take(self, answer: EvalRow | ErrorReport) -> None:
        """Store the result of the first evaluation."""
        if isinstance(answer, EvalRow):
            self._finished.append(answer)
            for note in answer.notes:
                if note not in self._told:
                    self._say(f"in evaluations, {note}")
                    self._told.add(note)
        else:
            self._say(f"{self._first()} failed: {answer.type_name}: {' '.join(answer.message.split())}")
        self._next()

    def _first(self) -> str:
        return f"the evaluation of step {self._waiting[0][0]:,}"

    def _next(self) -> None:
        self._waiting.popleft()
        self._asked = False


# --- The process


class EvaluationProcess:
    """The trainer's handle of the process that evaluates checkpoints, one after the other, until the trainer ends.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self) -> None:
        self._process, connection = start_interpreter(__name__, "run_tasks")
        self._connection = Connection(connection.detach())
        self.pid = self._process.pid

    def ask(self, task: Callable[[], EvalRow]) -> None:
        """Send a task. `answer` reports a dead process.

        Raises:
            ValueError: the task cannot be pickled.
        """
        message = pickled_for_worker(task)
        with suppress(OSError):
            self._connection.send_bytes(message)

    def has_answered(self, seconds: float = 0.0) -> bool:
        """Wait at most `seconds` for an answer. Returns whether there is one, or the process has ended."""
        return self._connection.poll(seconds) or self._process.poll() is not None

    def answer(self) -> EvalRow | ErrorReport | str:
        """Return the result of the task, its error, or how the process ended: `was killed by SIGKILL (signal 9)`."""
        with suppress(EOFError, OSError):
            if self._connection.poll(0):
                answer: EvalRow | ErrorReport = pickle.loads(self._connection.recv_bytes())
                return answer
        how = describe_end(self._process)
        self._connection.close()
        return how

    def close(self) -> None:
        """Kill the process. May be called twice."""
        self._process.kill()
        self._process.wait()
        self._connection.close()


def run_tasks(descriptor: int) -> None:
    """Run tasks in the evaluation process until training closes the connection."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # sent to the whole group; the trainer ends this process
    connection = Connection(descriptor)
    exit_when_orphaned(descriptor)
    with suppress(EOFError, OSError):  # the trainer has ended
        while True:
            task = connection.recv_bytes()
            try:
                answer = pickled_for_parent(pickle.loads(task)())
            except Exception as error:
                answer = pickle.dumps(ErrorReport.of(error))
            connection.send_bytes(answer)
            gc.collect()  # what an evaluation has made refers to itself: the next one can use its memory


# --- Before training


def check_evaluation(
    config: TrainEvalConfig,
    trained_in: EnvConfig,
    env: EnvFactory | None,
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
) -> None:
    """Check before training that evaluations are possible.

    Args:
        config: settings of evaluations.
        trained_in: the environment of training.
        env: the environment, if it cannot be imported by name; as in `train`.
        obs_space: of training.
        action_space: of training.

    Raises:
        ValueError: the environment does not take `eval.env_kwargs`, has other spaces with them, has no second player for
            `eval.opponent`, cannot be rendered for `eval.video`, or has wrong hints for `eval.replay`; there is no such opponent;
            films cannot be written; or the environment cannot be sent to a process.
    """
    if config.interval is None:
        return
    if config.process:
        try:
            pickled_for_worker(env)
        except ValueError as error:
            raise ValueError(f"eval.process=true: {error}; or evaluate in line, with eval.process=false") from error
    video = None
    if config.video:
        video = Video(Path("videos/step.gif"), 1, f"eval.video={config.video}")
    try:
        bound = bind_evaluation(trained_in, config, env)
        check_players(bound, config)
        pool = ThreadedVecEnv(bound.source, 1, seed=config.seed, autoreset=False)
        with own_random_numbers(config.seed), pool:
            spaces = pool.obs_space(), pool.action_space()
            try:
                fitted_space(obs_space, action_space, *spaces)
            except ValueError as error:
                raise ValueError(f"the policy of this run does not fit {bound.config.id}: {error}") from None
            # these opponents do not exist before training
            if config.opponent not in (None, "past", "policies"):
                load_opponent(str(config.opponent), None, pool, torch.device("cpu"))
            if video:
                video.start(pool.render, pool.reset().env_id)
            if config.replay:
                pool.reset()
                (hints,) = pool.draw([0])
                check_hints(hints, spaces[0], bound.config.id)
    except ValueError as error:
        if config.opponent:
            error.add_note(f"(with eval.opponent={config.opponent}; {OPPONENTS})")
        if config.env_kwargs:
            error.add_note(f"(with eval.env_kwargs={config.env_kwargs})")
        raise


def as_metrics(estimates: Mapping[str, Estimate]) -> dict[str, float]:
    """Convert estimates to metrics `eval/<name>`, and `eval/<name>_ci95` if there is a confidence interval."""
    metrics = {}
    for name, estimate in estimates.items():
        metrics[f"eval/{name}"] = estimate.mean
        if estimate.ci95 is not None:
            metrics[f"eval/{name}_ci95"] = estimate.ci95
    return metrics


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread, so that results do not depend on the number of threads, and training keeps the other cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
