"""Training: rollout, advantages, update, again.

python -m enn_ppo.train env=MineSweeper
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from enn_ppo.advantages import gae
from enn_ppo.config import Interrupted, TrainConfig
from enn_ppo.environment import EnvFactory
from enn_ppo.interrupt import finish_on_interrupt
from enn_ppo.metrics import Row, Timing, metrics_row
from enn_ppo.start import start_run
from enn_ppo.update import update
from rogue_net import RogueNet


class TrainResult(NamedTuple):
    """A finished run."""

    run_dir: Path
    step: int  # environment steps trained
    metrics: Row | None  # the last update's; None if there was nothing left to train
    policy: RogueNet


def train(config: TrainConfig, env: EnvFactory | None = None) -> TrainResult:
    """Train a policy.

    Args:
        config: every setting.
        env: an environment class, or a function that makes one from `config.env.kwargs`; None looks `config.env.id` up.

    Raises:
        ValueError: a setting, the environment or a checkpoint is not as it must be.
        Interrupted: after Ctrl-C; the run was saved.
    """
    state, output = start_run(config, env)
    row: Row | None = None
    with output, closing(state.vec_env), finish_on_interrupt(output.say) as interrupted:
        while (steps := state.next_steps()) > 0:
            started = time.perf_counter()
            state.seed_generators()
            optim, ppo = state.settings()

            rollout = state.collector.collect(steps)
            advantages = gae(
                rollout.rewards,
                rollout.values,
                rollout.terminated,
                rollout.truncated,
                rollout.final_values,
                rollout.last_values,
                gamma=float(ppo.gamma),
                gae_lambda=float(ppo.gae_lambda),
            )
            stats = update(
                state.net,
                state.optimizer,
                rollout,
                advantages,
                optim,
                ppo,
                generator=state.shuffling,
            )
            state.net.update_normalization(rollout.obs)

            seconds = time.perf_counter() - started
            state.advance(rollout.rewards.numel(), seconds)
            timing = Timing(state.seconds, seconds, rollout.env_seconds, rollout.act_seconds)
            row = metrics_row(
                state.step, rollout, stats, learning_rate=float(optim.lr), ent_coef=float(ppo.ent_coef), timing=timing
            )
            output.log(row)
            if interrupted() or state.checkpoint_is_due():
                saved = state.save(output.run_dir)
                if interrupted():
                    raise Interrupted(
                        f"interrupted after {state.step:,} steps; saved {saved}; go on with resume={output.run_dir}"
                    )
    return TrainResult(output.run_dir, state.step, row, state.net)


if __name__ == "__main__":
    from enn_ppo.cli import run_train

    raise SystemExit(run_train(train))
