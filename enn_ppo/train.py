"""Training: rollout, advantages, update, again.

python -m enn_ppo.train env=MineSweeper
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from enn_ppo.callbacks import Callback, Callbacks
from enn_ppo.config import TrainConfig
from enn_ppo.environment import EnvFactory
from enn_ppo.interrupt import finish_on_interrupt
from enn_ppo.start import start_run
from enn_ppo.tracking.metrics import Row
from rogue_net import RogueNet


class TrainResult(NamedTuple):
    """A finished run."""

    run_dir: Path
    step: int  # environment steps trained
    metrics: Row | None  # the last update's; None if there was nothing left to train
    policy: RogueNet


def train(config: TrainConfig, env: EnvFactory | None = None, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Train a policy.

    Args:
        config: every setting.
        env: an environment class, or a function that makes one from `config.env.kwargs`; None looks `config.env.id` up.
        callbacks: what else to do after updates, episodes and checkpoints; see `Callback`.

    Raises:
        ValueError: a setting, the environment or a checkpoint is not as it must be.
        Interrupted: after Ctrl-C or SIGTERM; the run was saved.
    """
    run = start_run(config, env, Callbacks(callbacks))
    state = run.state
    with run, finish_on_interrupt(run.output.say) as interrupted:
        while not run.stopped and (steps := state.next_steps()) > 0:
            started = time.perf_counter()
            settings = state.begin_update()
            rollout = state.sampler.collect(steps)
            learned = state.learner.learn(rollout, settings)
            run.report(learned, settings, seconds=time.perf_counter() - started)
            run.save_if_due(interrupted())
        run.finish(interrupted)
    return TrainResult(run.output.run_dir, state.step, run.metrics, state.net)


if __name__ == "__main__":
    from enn_ppo.command_line.cli import run_train

    raise SystemExit(run_train(train))
