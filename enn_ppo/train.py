"""The training loop: rollout, advantage estimation, update.

python -m enn_ppo.train env=MineSweeper env.kwargs.width=8 total_timesteps=1e6 run_dir=outputs/mines
python -m enn_ppo.train env=custom env.id=my_pkg.my_env:MyEnv    # or gymnasium, dm_env, pettingzoo, program
python -m enn_ppo.train 'optim.lr=0.001@0 -> 0@1' 'env.info.num_mines=[3,4,5]'    # quotes: shells read > and [
python -m enn_ppo.train --multirun env=Xor,Count seed=1,2,3 run_dir=outputs/all    # every combination
python -m enn_ppo.train resume=outputs/mines total_timesteps=2e6
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from enn_ppo.settings.config import TrainConfig
from enn_ppo.settings.resuming import resumed
from enn_ppo.training.callbacks import Callback
from enn_ppo.training.errors import Interrupted
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
    policies: Mapping[str, TrainResult] = MappingProxyType({})  # policy -> its result, in runs with several

    def __repr__(self) -> str:
        reward = (self.metrics or {}).get("episodic_reward")
        known = "" if reward is None else f", episodic_reward={reward:.4g}"
        several = f", policies={list(self.policies)}" if self.policies else ""
        return f"TrainResult(run_dir={str(self.run_dir)!r}, step={self.step}{known}{several})"


def train(
    config: TrainConfig | None = None,
    env: EnvFactory | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> TrainResult:
    """Train a policy, or several with `config.policies`.

    Args:
        config: every setting; None: the defaults, or with `resume=<run directory>` those of that run.
        env: an environment class, or a function that makes an environment from `config.env.kwargs`; None: `config.env.id`.
        callbacks: called after updates, episodes and checkpoints; see `Callback`.
        settings: of `TrainConfig`, in place of those of `config`: `train(resume="out/a", total_timesteps=200_000)`.

    Returns:
        The result of the run. With `config.policies`, `policies` has the result of each policy and `run_dir` holds their run
        directories; `step`, `metrics` and `policy` are those of the first policy.

    Raises:
        ValueError: a setting is invalid, the environment breaks its contract, or the checkpoint does not fit.
        Interrupted: after Ctrl-C or SIGTERM; the run was saved. An interactive session gets the result instead.
    """
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ValueError(f"callbacks must hold instances of enn_ppo.Callback, got {callback!r}")
    if config is None and settings.get("resume"):
        config = resumed(settings["resume"], lambda saved: replace(saved, **settings))
    else:
        config = replace(config or TrainConfig(), **settings)
    world = config.env.id if env is None else getattr(env, "__qualname__", type(env).__name__)
    announce(f"starting {world}: importing torch")
    from enn_ppo.training.start import start_run

    run = start_run(config, env, callbacks)
    state = run.state
    try:
        with run:
            while not run.stopped and (steps := state.next_steps()) > 0:
                started = time.perf_counter()
                scheduled = state.begin_update()
                rollouts = state.sampler.collect(state.step, steps, state.env_info, run.watch(steps))
                learned = state.learn(rollouts, scheduled)
                run.report(learned, scheduled, seconds=time.perf_counter() - started)
                run.save_if_due()
            run.finish()
    except Interrupted as interrupted:
        if not hasattr(sys, "ps1"):  # no interactive session, where the result would be lost
            raise
        print(
            f"{interrupted}, or train(resume={str(run.run_dir)!r}, total_timesteps={config.total_timesteps})",
            flush=True,
        )
    results = {
        name: TrainResult(run.run_dir / name, state.step, run.metrics.get(name), learner.model.policy)
        for name, learner in state.learners.items()
    }
    first = next(iter(results.values()))
    return first._replace(run_dir=run.run_dir, policies=results) if config.policies else first


if __name__ == "__main__":
    from enn_ppo.settings.command_line.cli import run_train

    raise SystemExit(run_train(train))
