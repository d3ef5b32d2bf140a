"""Training: rollout, advantages, update, again.

python -m enn_ppo.train env=MineSweeper
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from enn_ppo.callbacks import Callback, Callbacks
from enn_ppo.config import TrainConfig
from enn_ppo.interrupt import finish_on_interrupt
from enn_ppo.tracking.logger import Row
from enn_ppo.tracking.progress import announce

if TYPE_CHECKING:  # `start` imports torch and the compiler, for which `--help` need not wait
    from enn_ppo.environment import EnvFactory
    from rogue_net import RogueNet


class TrainResult(NamedTuple):
    """A finished run."""

    run_dir: Path
    step: int  # environment steps trained
    metrics: Row | None  # the last update's; None if there was nothing left to train
    policy: RogueNet
    policies: Mapping[str, TrainResult] = MappingProxyType({})  # of several, by name

    def __repr__(self) -> str:
        reward = (self.metrics or {}).get("episodic_reward")
        known = "" if reward is None else f", episodic_reward={reward:.4g}"
        several = f", policies={list(self.policies)}" if self.policies else ""
        return f"TrainResult(run_dir={str(self.run_dir)!r}, step={self.step}{known}{several})"


def train(config: TrainConfig, env: EnvFactory | None = None, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Train a policy, or with `config.policies` several.

    Args:
        config: every setting.
        env: an environment class, or a function that makes one from `config.env.kwargs`; None looks `config.env.id` up.
        callbacks: what else to do after updates, episodes and checkpoints; see `Callback`.

    Returns:
        What came of it. With `config.policies`, `policies` has that of each, `run_dir` holds their run directories, and the rest
        is the first one's.

    Raises:
        ValueError: a setting, the environment or a checkpoint is not as it must be.
        Interrupted: after Ctrl-C or SIGTERM; the run was saved.
        DeviceMemoryFull: the device has not enough memory; the message says which settings take less.
    """
    world = config.env.id if env is None else getattr(env, "__qualname__", type(env).__name__)
    announce(f"starting {world}: importing torch")
    from enn_ppo.memory import explained_if_full

    with explained_if_full(config):
        return (_train_policies if config.policies else _train)(config, env, Callbacks(callbacks))


def _train(config: TrainConfig, env: EnvFactory | None, callback: Callback) -> TrainResult:
    from enn_ppo.start import start_run

    run = start_run(config, env, callback)
    state = run.state
    with run, finish_on_interrupt(run.output.say) as interrupted:
        while not run.stopped and (steps := state.next_steps()) > 0:
            started = time.perf_counter()
            settings = state.begin_update()
            rollout = state.collect(steps)
            learned = state.learner.learn(rollout, settings)
            run.report(learned, settings, seconds=time.perf_counter() - started)
            run.save_if_due(interrupted())
        run.finish(interrupted)
    return TrainResult(run.output.run_dir, state.step, run.metrics, state.net)


def _train_policies(config: TrainConfig, env: EnvFactory | None, callback: Callback) -> TrainResult:
    """The same with several policies: they play together, and each learns from what its players have seen."""
    from enn_ppo.start import start_runs

    runs = start_runs(config, env, callback)
    first = runs.first
    with first, finish_on_interrupt(first.output.say_of_all) as interrupted:
        while not first.stopped and (steps := first.state.next_steps()) > 0:
            started = time.perf_counter()
            settings = runs.begin_update()
            played = first.state.sampler.collect(steps)
            learned = runs.learn(played, settings)
            runs.report(learned, settings, seconds=time.perf_counter() - started)
            first.save_if_due(interrupted())
        runs.finish(interrupted)
    results = {
        name: TrainResult(run.output.run_dir, run.state.step, run.metrics, run.state.net)
        for name, run in zip(config.policies, runs.runs, strict=True)
    }
    return results[next(iter(results))]._replace(run_dir=runs.home, policies=results)


if __name__ == "__main__":
    from enn_ppo.command_line.cli import run_train

    raise SystemExit(run_train(train))
