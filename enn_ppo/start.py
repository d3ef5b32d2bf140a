"""Starting a run: everything is made, checked and played once before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from enn_ppo.callbacks import Callback
from enn_ppo.checkpoints import Checkpoint, load_checkpoint
from enn_ppo.checkpoints.common import load_common, runs_in
from enn_ppo.checkpoints.policy import select_device, set_determinism
from enn_ppo.config import TrainConfig, TrainEvalConfig, default_run_dir
from enn_ppo.ddp.followers import NoEvaluator, NoOutput
from enn_ppo.ddp.joining import join_ranks
from enn_ppo.distributed.sharing import PolicyCallback, Shared, SharedRunners
from enn_ppo.environment import BoundEnvironment, EnvFactory, bind_environment
from enn_ppo.evaluation.episodes import bind_evaluation
from enn_ppo.evaluation.evaluator import Evaluator, check_evaluation
from enn_ppo.players import cast_of
from enn_ppo.policy_runs import PolicyRuns
from enn_ppo.ranks import Ranks
from enn_ppo.run import Run
from enn_ppo.state import Parts, Restored, TrainState
from enn_ppo.tracking.run_dir import CHECKPOINTS, prepare_run_dir
from enn_ppo.tracking.run_output import RunOutput

if TYPE_CHECKING:
    from enn_ppo.distributed.remote_learner import RemoteLearner


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


def start_runs(config: TrainConfig, env: EnvFactory | None, callback: Callback) -> PolicyRuns:
    """Start the runs of several policies that play in the same environments; see `start_run`.

    Raises:
        ValueError: see `start_run`.
    """
    bound = bind_environment(config.env, env)
    cast_of(config.policies, bound.source, bound.config.id)
    if config.eval.interval is not None:
        cast_of(
            config.policies,
            bind_evaluation(bound.config, config.eval, env).source,
            f"eval.env_kwargs: {bound.config.id}",
        )
    checkpoints: Sequence[Checkpoint | None] = [None] * len(config.policies)
    if config.resume:
        checkpoints = load_common([Path(config.resume) / name for name in config.policies])
    home = Path(config.run_dir or config.resume or default_run_dir(bound.config.id, datetime.now()))
    _check_home(config, home)
    config = replace(config, env=bound.config)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    set_determinism(config.torch_deterministic)
    states, learners = _states_of_policies(config, bound, callback, home)
    with ExitStack() as stack:
        for state in states:
            stack.callback(state.close)
        restored = [_begin(state, env, checkpoint) for state, checkpoint in zip(states, checkpoints, strict=True)]
        prepare_run_dir(home, resume=False, overwrite=config.overwrite and not config.resume)
        run_dirs = [home / name for name in config.policies]
        for state, checkpoint, run_dir in zip(states, checkpoints, run_dirs, strict=True):
            _prepare(state, checkpoint, run_dir)
        opened = [
            _open(state, env, checkpoint, run_dir, news)
            for state, checkpoint, run_dir, news in zip(states, checkpoints, run_dirs, restored, strict=True)
        ]
        runs = PolicyRuns(opened, learners, home)
        stack.pop_all()  # the runs close them
    return runs


def _check_home(config: TrainConfig, home: Path) -> None:
    """Find before anything starts that other runs are where those of the policies shall be."""
    names = [run.name for run in runs_in(home)]
    if strangers := [name for name in names if name not in config.policies]:
        raise ValueError(
            f"run_dir {home} holds runs that are none of policies={config.policies}: {', '.join(strangers)}; give another run_dir"
        )
    if names and not config.resume and not config.overwrite:
        raise ValueError(
            f"run_dir {home} already holds runs of {', '.join(names)}: continue them with resume={home}, remove them with "
            "overwrite=true, or give another run_dir"
        )


def _states_of_policies(
    config: TrainConfig, bound: BoundEnvironment, callback: Callback, home: Path
) -> tuple[list[TrainState], list[RemoteLearner]]:
    """States and learners of all policies."""
    from enn_ppo.distributed.start import start_on_ray  # Ray is optional

    on_ray, shared = start_on_ray(config, bound), Shared()
    states = []
    for number, (name, learner) in enumerate(zip(config.policies, on_ray.learners, strict=True)):
        own = replace(config, run_dir=str(home / name))
        parts = Parts(learner, SharedRunners(on_ray.sampler, number, shared))
        its_callback = PolicyCallback(callback, name, number == 0, shared)
        states.append(TrainState(own, bound, learner.device, its_callback, parts=parts))
    return states, on_ray.learners


def _start_with(state: TrainState, env: EnvFactory | None, checkpoint: Checkpoint | None, run_dir: Path) -> Run:
    restored = _begin(state, env, checkpoint)
    _prepare(state, checkpoint, run_dir)
    return _open(state, env, checkpoint, run_dir, restored)


def _begin(state: TrainState, env: EnvFactory | None, checkpoint: Checkpoint | None) -> Restored | None:
    """Play once, or go on from a checkpoint."""
    config, ranks = state.config, state.ranks
    spaces = state.sampler.obs_space(), state.sampler.action_space()
    ranks.lead(lambda: check_evaluation(_evaluation(config), config.env, env, *spaces))
    if checkpoint:
        return state.restore(checkpoint)
    state.start()
    return None


def _prepare(state: TrainState, checkpoint: Checkpoint | None, run_dir: Path) -> None:
    resume, overwrite = _continues(checkpoint, run_dir), state.config.overwrite
    state.ranks.lead(lambda: prepare_run_dir(run_dir, resume=resume, overwrite=overwrite))


def _open(
    state: TrainState, env: EnvFactory | None, checkpoint: Checkpoint | None, run_dir: Path, restored: Restored | None
) -> Run:
    """Begin to write into the run directory."""
    config, ranks = state.config, state.ranks
    continues = _continues(checkpoint, run_dir)
    state.record(checkpoint.trainer["recorder"] if checkpoint and continues else None)
    output = ranks.each(
        lambda: (
            NoOutput(run_dir)
            if ranks.rank
            else RunOutput(run_dir, config, state.step if checkpoint else None, run_dir.name if config.policies else "")
        )
    )
    on_ranks = f" with {ranks.size} ranks" if ranks.size > 1 else ""
    resumed = f", resumed from step {state.step:,}" if checkpoint else ""
    output.say(f"training {state.env_name} on {state.learner.device}{on_ranks} into {run_dir}{resumed}")
    state.sampler.tell(output.say_of_all)
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
            NoEvaluator(config.eval)
            if ranks.rank
            else Evaluator(_evaluation(config), env, config.device, run_dir, output.say)
        )
    )
    if continues:
        evaluator.resubmit(state.evaluations, run_dir / CHECKPOINTS)
    return Run(state, output, evaluator, state.callback)


def _evaluation(config: TrainConfig) -> TrainEvalConfig:
    """Evaluations while training: of several policies, with all of them, unless another opponent is asked for."""
    if config.policies and config.eval.opponent is None:
        return replace(config.eval, opponent="policies")
    return config.eval


def _continues(checkpoint: Checkpoint | None, run_dir: Path) -> bool:
    """Whether the run that is continued is in the same directory."""
    return checkpoint is not None and run_dir.resolve() == _home(checkpoint).resolve()


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
