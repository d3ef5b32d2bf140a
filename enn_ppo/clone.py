"""Behavioural cloning: a policy learns from recordings to do what was done, and its values what came of it.

python -m enn_ppo.clone data=expert.arrow env=MineSweeper
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import torch

from enn_ppo.callbacks import Callbacks
from enn_ppo.checkpoints.policy import select_device, set_determinism
from enn_ppo.cloning.config import CloneConfig
from enn_ppo.cloning.examples import hold_out, load_examples
from enn_ppo.cloning.learning import learn, match_scales
from enn_ppo.cloning.output import CloneOutput
from enn_ppo.config import default_run_dir
from enn_ppo.environment import EnvFactory, bind_environment
from enn_ppo.errors import Interrupted
from enn_ppo.interrupt import EXIT_CODES, finish_on_interrupt
from enn_ppo.state import TrainState
from enn_ppo.tracking.logger import Row
from rogue_net import RogueNet


class CloneResult(NamedTuple):
    """A finished clone."""

    run_dir: Path
    metrics: Row  # of the pass that was kept
    policy: RogueNet


def clone(config: CloneConfig, env: EnvFactory | None = None) -> CloneResult:
    """Learn a policy from recordings, and save it as a run that has trained for 0 steps: evaluate it, or resume it.

    Args:
        config: every setting.
        env: the environment, as in `train`.

    Raises:
        ValueError: a setting, a recording, the environment or the run directory is not as it must be.
        Interrupted: after Ctrl-C or SIGTERM; the clone was saved as it was after the last pass.
    """
    device = select_device(config.device)
    bound = bind_environment(config.env, env)
    run_dir = config.run_dir or default_run_dir(bound.config.id, datetime.now())
    config = replace(config, env=bound.config, run_dir=run_dir)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    set_determinism(config.torch_deterministic)

    state = TrainState(config.training, bound, device, Callbacks(()))
    with closing(state):
        spaces = state.sampler.obs_space(), state.sampler.action_space()
        examples = load_examples(config, *spaces, bound.config.id)
        split = match_scales(state, hold_out(examples, config.clone.holdout, config.seed))
        state.reset()
        output = CloneOutput(config)
        output.say(
            f"cloning {len(split.learned):,} frames of {split.learned.num_episodes:,} episodes into {run_dir}; "
            f"{split.held_out.num_episodes:,} episodes are held out"
        )
        with finish_on_interrupt(output.say) as interrupted:
            rows: list[Row] = []

            def log(row: Row) -> None:
                output.log(row)
                rows.append(row)

            row = learn(state.model, split, config, log, lambda: bool(interrupted()))
            saved = state.save(Path(run_dir))
            if how := interrupted():
                passes = f"{how} after pass {row['epoch']} of {config.clone.epochs}"
                raise Interrupted(f"{passes}; saved {saved}", EXIT_CODES[how])
        if _still_falls(rows):
            output.say(
                "the held-out loss was still falling at the last pass: more passes (clone.epochs) or more recorded episodes may "
                "make a better clone"
            )
        output.say(
            f"done: {run_dir}; to go on from it without forgetting: python -m enn_ppo.train resume={run_dir} "
            f"ppo.teacher={run_dir}"
        )
    return CloneResult(Path(run_dir), row, state.net)


def _still_falls(rows: Sequence[Row]) -> bool:
    """Whether the held-out loss of the last pass is the lowest, by more than a thousandth of that before."""
    losses = [float(loss) for row in rows if (loss := row.get("holdout_loss")) is not None]
    return len(losses) > 1 and losses[-1] < min(losses[:-1]) - 1e-3 * abs(losses[-2])


if __name__ == "__main__":
    from enn_ppo.command_line.cli import run_clone

    raise SystemExit(run_clone(clone))
