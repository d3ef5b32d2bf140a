"""Evaluation of checkpoints during training, in a separate process. Every result can be reproduced.

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
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch

from enn_ppo.checkpoints import load_checkpoint, step_file
from enn_ppo.checkpoints.policy import saved_config, select_device, set_determinism
from enn_ppo.eval.evaluate import bind_evaluation, evaluate_checkpoint, own_random_numbers
from enn_ppo.eval.replay import write_page
from enn_ppo.eval.video import Video
from enn_ppo.settings.config import EnvConfig, TrainEvalConfig
from enn_ppo.training.self_play.opponents import load_opponent
from enn_ppo.training.tracking.logger import read_metrics
from enn_ppo.training.tracking.run_dir import CHECKPOINTS, METRICS, REPLAYS, VIDEOS
from entity_gym.actions import ActionSpace
from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.pools.processes.interpreter import describe_end, exit_when_orphaned, start_interpreter
from entity_gym.pools.processes.pickling import pickled_for_worker
from entity_gym.pools.source import EnvFactory
from entity_gym.replay.hints import check_hints
from entity_gym.replay.page import page_html
from entity_gym.spaces import ObsSpace
from rogue_net.transfer import fitted_space

PATIENCE = 0.2  # seconds between checks for Ctrl-C while waiting


class EvalRow(NamedTuple):
    """A finished evaluation."""

    step: int  # of the evaluated checkpoint
    metrics: dict[str, float]  # `eval/<name>`, `eval/<name>_ci95`, `eval/step`, `eval/seconds`
    notes: list[str]  # differences from training, a sentence each


def evaluate_step(checkpoint: Path, config: TrainEvalConfig, env: EnvFactory | None, run_dir: Path) -> EvalRow:
    """Evaluate the checkpoint of a step with one thread: the result is the same in any process."""
    started, threads, at = time.perf_counter(), torch.get_num_threads(), checkpoint.stem
    video = Video(run_dir / VIDEOS / f"{at}.gif", config.video) if config.video else None
    torch.set_num_threads(1)
    try:
        saved = load_checkpoint(checkpoint)
        trained = saved_config(saved)
        set_determinism(trained.torch_deterministic)
        device = select_device(trained.device)
        result = evaluate_checkpoint(saved, config, env, device, video=video, replay=config.replay)
    finally:
        torch.set_num_threads(threads)
    if result.replay:
        write_page(run_dir / REPLAYS / f"{at}.html", page_html(result.replay))
    metrics = {"eval/step": float(saved.step), "eval/seconds": time.perf_counter() - started}
    for name, estimate in result.estimates.items():
        metrics[f"eval/{name}"] = estimate.mean
        if estimate.ci95 is not None:
            metrics[f"eval/{name}_ci95"] = estimate.ci95
    return EvalRow(saved.step, metrics, result.notes)


def attempt(evaluation: Callable[..., EvalRow], *arguments: bytes) -> EvalRow | str:
    """Return the result of an evaluation, or its error in one line."""
    try:
        return evaluation(*arguments)
    except Exception as error:
        parts = [f"{type(error).__qualname__}: {error}", *getattr(error, "__notes__", [])]
        return " ".join(" ".join(parts).split())


def is_due(interval: int | None, before: int, after: int, last: bool = False) -> bool:
    """Whether an update from step `before` to `after` passes a multiple of `interval`, or is the last of the run."""
    return interval is not None and (last or after // interval > before // interval)


class Evaluator:
    """Evaluates checkpoints of a run, one after the other.

    In `run_dir` films are written as `videos/step_<12 digits>.gif`, and replays as `replays/step_<12 digits>.html`. `env` is the
    environment, if it cannot be imported by name, and `say` prints a line.
    """

    def __init__(
        self, config: TrainEvalConfig, env: EnvFactory | None, run_dir: Path, say: Callable[[str], None]
    ) -> None:
        self.config, self._env, self._run_dir, self._say = config, env, run_dir, say
        self._pending: deque[tuple[int, Future[EvalRow | str]]] = deque()  # (step, evaluation), oldest first
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1)  # sends evaluations to the process, and waits for their results
        self._told: set[str] = set()

    def submit(self, checkpoint: Path, step: int) -> None:
        """Queue a checkpoint, which must stay on disk while `step` is in `pending_steps`."""
        evaluation = partial(evaluate_step, checkpoint, self.config, self._env, self._run_dir)
        self._pending.append((step, self._thread.submit(self._run, evaluation)))

    def resubmit(self, steps: Iterable[int]) -> None:
        """Submit the evaluations that were unfinished when the run's checkpoint was saved, unless evaluation is off now.

        Evaluations that are in metrics.jsonl already are left out, and those whose checkpoint is gone.
        """
        metrics = self._run_dir / METRICS
        told = {row.get("eval/step") for row in (read_metrics(metrics) if metrics.is_file() else [])}
        for step in steps if self.config.interval is not None else ():
            if step not in told and (checkpoint := step_file(self._run_dir / CHECKPOINTS, step)).is_file():
                self.submit(checkpoint, step)

    @property
    def pending_steps(self) -> list[int]:
        """Steps of the evaluations that `poll` has not returned yet, in the order of submission."""
        return [step for step, _ in self._pending]

    def poll(self) -> EvalRow | None:
        """The oldest finished evaluation that was not returned yet; None if there is none. Errors are printed."""
        while self._pending and self._pending[0][1].done():
            step, future = self._pending.popleft()
            row = future.result()
            if isinstance(row, str):
                self._say(f"the evaluation of step {step:,} failed: {row}")
                continue
            for note in row.notes:
                if note not in self._told:
                    self._say(f"in evaluations, {note}")
                    self._told.add(note)
            return row
        return None

    def wait(self, stop: Callable[[], object] = lambda: False) -> EvalRow | None:
        """Wait for the oldest evaluation that succeeds, or until `stop()` is true."""
        while True:
            row = self.poll()
            if row or not self._pending or stop():
                return row
            wait([self._pending[0][1]], PATIENCE)

    def close(self) -> None:
        """End the process. Unfinished evaluations stay in `pending_steps`. May be called twice."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        while True:
            if self._process:
                self._process.kill()
                self._process.wait()
            # the thread may be about to start the process
            if not wait([future for _, future in self._pending if not future.done()], PATIENCE).not_done:
                break

    def _run(self, evaluation: Callable[[], EvalRow]) -> EvalRow | str:
        """Run an evaluation in the process, which is started if there is none; returns an error as a line."""
        try:
            task = pickled_for_worker(evaluation)
            if self._process is None or self._process.poll() is not None:
                self._process, connection = start_interpreter(__name__, "run_tasks")
                self._connection = Connection(connection.detach())
            self._connection.send_bytes(task)
            result: EvalRow | str = pickle.loads(self._connection.recv_bytes())
            return result
        except (EOFError, ConnectionError):
            assert self._process is not None
            return f"its process {describe_end(self._process)}"
        except (OSError, ValueError) as error:
            return str(error)


def run_tasks(descriptor: int) -> None:
    """Run evaluations in the process until training closes the connection."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # sent to the whole group; the trainer ends this process
    connection = Connection(descriptor)
    exit_when_orphaned(descriptor)
    with suppress(EOFError, OSError):  # the trainer has ended
        while True:
            answer = attempt(lambda task: pickle.loads(task)(), connection.recv_bytes())
            connection.send_bytes(pickle.dumps(answer))
            gc.collect()  # what an evaluation has made refers to itself: the next one can use its memory


def check_evaluation(
    config: TrainEvalConfig,
    trained_in: EnvConfig,
    env: EnvFactory | None,
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
) -> None:
    """Check before training, in the environment `trained_in` with these spaces, that evaluations are possible.

    Raises:
        ValueError: the environment does not take `eval.env_kwargs`, has other spaces with them, has no second player for
            `eval.opponent`, cannot be rendered for `eval.video`, has wrong hints for `eval.replay`, or cannot be sent to a
            process; or there is no such opponent.
    """
    if config.interval is None:
        return
    try:
        pickled_for_worker(env)
    except ValueError as error:
        raise ValueError(f"eval.interval={config.interval} evaluates in another process, and {error}") from error
    try:
        bound = bind_evaluation(trained_in, config, env)
        pool = ThreadedVecEnv(bound.source, 1, seed=config.seed, autoreset=False)
        with own_random_numbers(config.seed), pool:
            spaces = pool.obs_space(), pool.action_space()
            fitted_space(obs_space, action_space, *spaces)
            if config.opponent not in (None, "past", "policies"):  # these do not exist before training
                load_opponent(str(config.opponent), None, pool, torch.device("cpu"))
            if config.video:
                Video(Path(), 1).start(pool, pool.reset().env_id)
            if config.replay:
                pool.reset()
                (hints,) = pool.draw([0])
                check_hints(hints, spaces[0], bound.config.id)
    except ValueError as error:
        if config.env_kwargs:
            error.add_note(f"(with eval.env_kwargs={config.env_kwargs})")
        raise
