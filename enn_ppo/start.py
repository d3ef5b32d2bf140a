"""How a run begins: everything is made, checked and played once before anything is written."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import torch

from enn_ppo.callbacks import Callback
from enn_ppo.checkpoints import Checkpoint, load_checkpoint
from enn_ppo.checkpoints.policy import select_device, set_determinism
from enn_ppo.config import TrainConfig, default_run_dir
from enn_ppo.ddp.followers import NoEvaluator, NoOutput
from enn_ppo.ddp.joining import join_ranks
from enn_ppo.environment import EnvFactory, bind_environment
from enn_ppo.evaluation.evaluator import Evaluator, check_evaluation
from enn_ppo.ranks import Ranks
from enn_ppo.run import Run
from enn_ppo.state import TrainState
from enn_ppo.tracking.run_dir import CHECKPOINTS, prepare_run_dir
from enn_ppo.tracking.run_output import RunOutput


def start_run(config: TrainConfig, env: EnvFactory | None, callback: Callback) -> Run:
    """Make or restore everything that `config` asks for.

    Raises:
        ValueError: a setting, the environment, the checkpoint or the run directory is not as it must be.
    """
    ranks = join_ranks(config)
    try:
        return _start(config, env, callback, ranks)
    except BaseException as error:
        ranks.leave(error)
        raise


def _start(config: TrainConfig, env: EnvFactory | None, callback: Callback, ranks: Ranks) -> Run:
    device = select_device("cpu" if config.distributed.mode == "ray" else config.device)  # Ray's learner has its own
    bound = ranks.each(lambda: bind_environment(config.env, env))
    checkpoint = ranks.each(lambda: load_checkpoint(Path(config.resume)) if config.resume else None)
    run_dir = ranks.lead(lambda: _run_dir(config, bound.config.id, checkpoint))
    config = replace(config, env=bound.config, run_dir=str(run_dir))
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)

    set_determinism(config.torch_deterministic)
    state = ranks.each(lambda: TrainState(config, bound, device, callback, ranks))
    with ExitStack() as stack:
        stack.callback(state.close)
        run = _start_with(state, env, checkpoint, run_dir)
        stack.pop_all()  # the run closes it
    return run


def _start_with(state: TrainState, env: EnvFactory | None, checkpoint: Checkpoint | None, run_dir: Path) -> Run:
    config, ranks = state.config, state.ranks
    spaces = state.sampler.obs_space(), state.sampler.action_space()
    ranks.lead(lambda: check_evaluation(config.eval, config.env, env, *spaces))
    restored = None
    if checkpoint:
        restored = state.restore(checkpoint)
    else:
        state.start()
    continues = checkpoint is not None and run_dir.resolve() == _home(checkpoint).resolve()
    ranks.lead(lambda: prepare_run_dir(run_dir, resume=continues, overwrite=config.overwrite))
    state.record(checkpoint.trainer["recorder"] if checkpoint and continues else None)
    output = ranks.each(
        lambda: NoOutput(run_dir) if ranks.rank else RunOutput(run_dir, config, state.step if checkpoint else None)
    )
    on_ranks = f" with {ranks.size} ranks" if ranks.size > 1 else ""
    output.say(f"training {state.env_name} on {state.learner.device}{on_ranks} into {run_dir}")
    state.sampler.tell(output.say)
    if config.rollout.num_threads == "auto" and (report := state.sampler.threads_report()):
        output.say(f"rollout.{report}")
    for line in restored.news if restored else ():
        output.say(line)
    if restored and restored.problem:
        output.say(f"the environments start new episodes, so this is not the uninterrupted run: {restored.problem}")
    _say_what_is_left_out(state, output)
    if not continues or _is_left_behind(checkpoint):
        evaluations = state.evaluations if continues else ()  # those of another run are its own
        state.save(run_dir, evaluations=evaluations, score=checkpoint.score if checkpoint else None)
    evaluator = ranks.each(
        lambda: (
            NoEvaluator(config.eval) if ranks.rank else Evaluator(config.eval, env, config.device, run_dir, output.say)
        )
    )
    if continues:
        evaluator.resubmit(state.evaluations, run_dir / CHECKPOINTS)
    return Run(state, output, evaluator, state.callback)


def _run_dir(config: TrainConfig, env_id: str, checkpoint: Checkpoint | None) -> Path:
    if config.run_dir is not None:
        return Path(config.run_dir)
    return _home(checkpoint) if checkpoint else Path(default_run_dir(env_id, datetime.now()))


def _home(checkpoint: Checkpoint) -> Path:
    """The run directory of `<run>/checkpoints/step_<n>`."""
    return checkpoint.path.parent.parent


def _is_left_behind(checkpoint: Checkpoint | None) -> bool:
    """Whether `latest` beside `checkpoint` is another: a crash would then go on from there, past the rows just dropped."""
    return checkpoint is not None and (checkpoint.path.parent / "latest").resolve() != checkpoint.path.resolve()


def _say_what_is_left_out(state: TrainState, output: RunOutput) -> None:
    num_envs, total = state.config.rollout.num_envs, state.config.total_timesteps
    left_out = (total - state.step) % num_envs
    if state.next_steps() == 0:
        output.say(f"nothing is left to train: total_timesteps={total:,} and the checkpoint has {state.step:,}")
    elif left_out:
        output.say(
            f"total_timesteps={total:,}: {total - left_out:,} will be trained; the other {left_out} are less than one step of "
            f"all {num_envs} environments"
        )
