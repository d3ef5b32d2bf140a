"""The training loop: rollout, advantage estimation, update.

python -m enn_ppo.train env=MineSweeper
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from enn_ppo.settings.config import TrainConfig
from enn_ppo.training.callbacks import Callback
from enn_ppo.training.interrupt import finish_on_interrupt
from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.run_output import announce

if TYPE_CHECKING:  # `start` imports torch and the compiler, which `--help` does not need
    from entity_gym.pools.source import EnvFactory
    from rogue_net import RogueNet


class TrainResult(NamedTuple):
    """A finished run."""

    run_dir: Path
    step: int  # environment steps trained
    metrics: Row | None  # the last update's; None if there was nothing left to train
    policy: RogueNet
    policies: Mapping[str, TrainResult] = MappingProxyType(
        {}
    )  # policy name -> its result, in runs with several policies

    def __repr__(self) -> str:
        reward = (self.metrics or {}).get("episodic_reward")
        known = "" if reward is None else f", episodic_reward={reward:.4g}"
        several = f", policies={list(self.policies)}" if self.policies else ""
        return f"TrainResult(run_dir={str(self.run_dir)!r}, step={self.step}{known}{several})"


def train(config: TrainConfig, env: EnvFactory | None = None, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Train a policy, or several with `config.policies`.

    Args:
        config: every setting.
        env: an environment class, or a function that makes an environment from `config.env.kwargs`; None: `config.env.id`.
        callbacks: called after updates, episodes and checkpoints; see `Callback`.

    Returns:
        The result of the run. With `config.policies`, `policies` has the result of each policy and `run_dir` holds their run
        directories; `step`, `metrics` and `policy` are those of the first policy.

    Raises:
        ValueError: a setting is invalid, the environment breaks its contract, or the checkpoint does not fit.
        Interrupted: after Ctrl-C or SIGTERM; the run was saved.
    """
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ValueError(f"callbacks must hold instances of enn_ppo.Callback, got {callback!r}")
    world = config.env.id if env is None else getattr(env, "__qualname__", type(env).__name__)
    announce(f"starting {world}: importing torch")
    from enn_ppo.training.start import start_run

    run = start_run(config, env, callbacks)
    state = run.state
    with run, finish_on_interrupt(run.say) as interrupted:
        while not run.stopped and (steps := state.next_steps()) > 0:
            started = time.perf_counter()
            settings = state.begin_update()
            rollouts = state.collect(steps, run.watch(steps, interrupted))
            learned = state.learn(rollouts, settings)
            run.report(learned, settings, seconds=time.perf_counter() - started)
            run.save_if_due(interrupted())
        run.finish(interrupted)
    results = {
        name: TrainResult(run.run_dir / name, state.step, run.metrics.get(name), learner.model.policy)
        for name, learner in state.learners.items()
    }
    first = next(iter(results.values()))
    return first._replace(run_dir=run.run_dir, policies=results) if config.policies else first


if __name__ == "__main__":
    from enn_ppo.settings.command_line.cli import run_train

    raise SystemExit(run_train(train))
