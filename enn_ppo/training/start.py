"""Starting a run: everything is made, checked and played once before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from enn_ppo.checkpoints import (
    Checkpoint,
    load_checkpoint,
    load_common,
    resolve_checkpoint,
    runs_in,
    step_files,
)
from enn_ppo.checkpoints.policy import select_device, set_determinism, set_threads
from enn_ppo.eval.checkpoint import bind_evaluation
from enn_ppo.eval.evaluator import Evaluator, check_evaluation
from enn_ppo.settings.config import TrainConfig, TrainEvalConfig, default_run_dir
from enn_ppo.training.callbacks import Callback
from enn_ppo.training.environment import BoundEnvironment, bind_environment
from enn_ppo.training.interrupt import end_on_sigterm, finish_on_interrupt
from enn_ppo.training.memory import check_memory
from enn_ppo.training.players import cast_of
from enn_ppo.training.ranks import Ranks
from enn_ppo.training.run import Run
from enn_ppo.training.state import Restored, TrainState
from enn_ppo.training.torchrun.joining import join_ranks
from enn_ppo.training.tracking.run_dir import CHECKPOINTS, RunLock, prepare_run_dir
from enn_ppo.training.tracking.run_output import RunOutput, announce, make_live
from entity_gym.pools.source import EnvFactory


def start_run(config: TrainConfig, env: EnvFactory | None, callbacks: Sequence[Callback]) -> Run:
    """Make or restore everything that `config` asks for.

    Raises:
        ValueError: a setting, the environment, the checkpoint or the run directory is not as it must be.
        Interrupted: after SIGTERM.
    """
    ranks = join_ranks(config)
    try:
        # torchrun sends SIGTERM to the other ranks when one has ended, which then end in silence
        with end_on_sigterm() if ranks.size == 1 else nullcontext():
            return _start(config, env, callbacks, ranks)
    except BaseException as error:
        ranks.leave(error)
        raise


def _start(config: TrainConfig, env: EnvFactory | None, callbacks: Sequence[Callback], ranks: Ranks) -> Run:
    ranks.each(lambda: check_memory(config, ranks.size))
    device = select_device(
        "cpu" if config.distributed.mode == "ray" else config.device
    )  # Ray's learners have their own
    bound = ranks.each(lambda: bind_environment(config.env, env))
    if config.policies:
        _check_policies(config, bound, env)
    run_dir = ranks.lead(lambda: _run_dir(config, bound.config.id))
    with ExitStack() as stack:
        lock = RunLock()
        stack.callback(lock.close)
        # before the checkpoint is read, so that no trainer can save another one meanwhile
        ranks.lead(lambda: lock.take(run_dir, *config.policies))
        checkpoints = ranks.each(lambda: _load(config))
        trusted = config.trust or all(each.is_own for each in checkpoints.values())
        ranks.lead(lambda: _check_own(trusted, config))
        if config.policies:
            _check_home(config, run_dir)
        config = replace(config, env=bound.config, run_dir=str(run_dir))
        set_threads(config.num_threads)
        set_determinism(config.torch_deterministic)

        state = ranks.each(lambda: TrainState(config, bound, device, callbacks, ranks))
        stack.callback(state.close)
        spaces = state.sampler.obs_space(), state.sampler.action_space()
        ranks.lead(lambda: check_evaluation(_evaluation(config), config.env, env, *spaces))
        restored = None
        if checkpoints:
            restored = state.restore(checkpoints)
        else:
            state.start()
        # a run directory without a checkpoint could not be resumed, so the first one is written to its end
        with finish_on_interrupt(announce) if ranks.size == 1 else nullcontext(lambda: None) as interrupted:
            run = _open(state, env, checkpoints, run_dir, restored, lock)
        stack.pop_all()  # the run closes it
    if how := interrupted():
        with run:
            raise run.interruption(how)
    return run


def _check_policies(config: TrainConfig, bound: BoundEnvironment, env: EnvFactory | None) -> None:
    """Check that the policies fit the world, and that of evaluations."""
    cast_of(config.policies, bound.source, bound.config.id)
    if config.eval.interval is not None:
        source = bind_evaluation(bound.config, config.eval, env).source
        cast_of(config.policies, source, f"eval.env_kwargs: {bound.config.id}")


def _load(config: TrainConfig) -> dict[str, Checkpoint]:
    """Policy -> the checkpoint that it resumes from; empty for a new run."""
    if config.resume is None:
        return {}
    if config.policies:
        found = load_common([Path(config.resume) / name for name in config.policies])
    else:
        found = [load_checkpoint(Path(config.resume))]
    for checkpoint in found:
        if not checkpoint.trainer:
            raise ValueError(
                f"checkpoint {checkpoint.path} cannot be resumed: it is a policy file, without the state of a trainer"
            )
    return dict(zip(config.policies or [""], found, strict=True))


def _check_own(trusted: bool, config: TrainConfig) -> None:
    """Raise a ValueError unless the trainer's state is trusted: nothing checks the numbers in it."""
    if not trusted:
        raise ValueError(
            f"resume={config.resume} is not signed by this installation of enn-ppo, and its state of environments and trainer "
            "would be used as it is. Add trust=true if you trust whoever made it"
        )


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


def _open(
    state: TrainState,
    env: EnvFactory | None,
    checkpoints: Mapping[str, Checkpoint],
    run_dir: Path,
    restored: Restored | None,
    lock: RunLock,
) -> Run:
    """Begin to write into the run directory, which `lock` keeps others out of."""
    config, ranks = state.config, state.ranks
    checkpoint = next(iter(checkpoints.values()), None)
    continues = any(_home(each).resolve() == (run_dir / name).resolve() for name, each in checkpoints.items())

    def open_outputs() -> dict[str, RunOutput]:
        if config.policies:
            prepare_run_dir(run_dir, resume=False, overwrite=config.overwrite and not config.resume)
        for name in state.learners:
            prepare_run_dir(run_dir / name, resume=continues, overwrite=config.overwrite)
        state.record(checkpoint.trainer["recorder"] if checkpoint and continues else None)
        live = make_live()
        with ExitStack() as stack:
            outputs = {}
            for name in state.learners:
                own = run_dir / name
                outputs[name] = RunOutput(
                    own, replace(config, run_dir=str(own)), state.step if checkpoint else None, name, live
                )
                stack.push(outputs[name])
            stack.pop_all()
        return outputs

    outputs = ranks.each(lambda: {} if ranks.rank else open_outputs())
    for name, output in outputs.items():
        _tell_beginning(state, output, name, run_dir / name, restored)
    if not continues or any(_is_left_behind(each) for each in checkpoints.values()):
        evaluations = state.evaluations if continues else ()  # those of another run are its own
        scores = {name: each.score for name, each in checkpoints.items()}
        state.save(run_dir, evaluations=evaluations, scores=scores)
    evaluators = {
        name: Evaluator(_evaluation(config), env, config.device, run_dir / name, output.say)
        for name, output in outputs.items()
    }
    if continues:
        for name, evaluator in evaluators.items():
            evaluator.resubmit(state.evaluations, run_dir / name / CHECKPOINTS)
    return Run(state, run_dir, outputs, evaluators, lock)


def _tell_beginning(state: TrainState, output: RunOutput, name: str, run_dir: Path, restored: Restored | None) -> None:
    """Print what is trained, and what a resumed run has found."""
    ranks = state.ranks
    on_ranks = f" with {ranks.size} ranks" if ranks.size > 1 else ""
    resumed = f", resumed from step {state.step:,}" if restored else ""
    output.say(f"training {state.env_name} on {state.learners[name].device}{on_ranks} into {run_dir}{resumed}")
    for line in restored.news[name] if restored else ():
        output.say(line)
    if restored and restored.problem:
        output.say(f"the environments start new episodes, so this is not the uninterrupted run: {restored.problem}")
    _say_what_is_left_out(state, output)


def _evaluation(config: TrainConfig) -> TrainEvalConfig:
    """Evaluations while training: of several policies, with all of them, unless another opponent is asked for."""
    if config.policies and config.eval.opponent is None:
        return replace(config.eval, opponent="policies")
    return config.eval


def _run_dir(config: TrainConfig, env_id: str) -> Path:
    if config.run_dir is not None:
        return Path(config.run_dir)
    if config.resume is None:
        return Path(default_run_dir(env_id, datetime.now()))
    return Path(config.resume) if config.policies else resolve_checkpoint(Path(config.resume)).parent.parent


def _home(checkpoint: Checkpoint) -> Path:
    """The run directory of `<run>/checkpoints/step_<n>.safetensors`."""
    return checkpoint.path.parent.parent


def _is_left_behind(checkpoint: Checkpoint) -> bool:
    """Whether later checkpoints lie beside `checkpoint`: a crash would then go on from there, past the rows just dropped."""
    return any(step > checkpoint.step for step, _ in step_files(checkpoint.path.parent))


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
