"""Starting a run: everything is made, checked and played once before the run is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

import torch

from enn_ppo.checkpoints import (
    Checkpoint,
    load_checkpoint,
    load_common,
    resolve_checkpoint,
    runs_in,
    step_files,
)
from enn_ppo.checkpoints.policy import select_device, set_determinism, set_threads
from enn_ppo.eval.evaluate import bind_evaluation
from enn_ppo.eval.evaluator import Evaluator, check_evaluation
from enn_ppo.settings.config import TrainConfig, default_run_dir
from enn_ppo.training.build import make_learner, make_model, make_pools
from enn_ppo.training.callbacks import Callback
from enn_ppo.training.environment import BoundEnvironment, bind_environment
from enn_ppo.training.interrupt import finish_on_interrupt
from enn_ppo.training.players import cast_of
from enn_ppo.training.ranks import ALONE, Ranks
from enn_ppo.training.run import Run
from enn_ppo.training.sampling import LocalSampler
from enn_ppo.training.self_play.pool import SelfPlay
from enn_ppo.training.state import TrainState
from enn_ppo.training.torchrun.torch_ranks import join_ranks
from enn_ppo.training.tracking.run_dir import RunLock, prepare_run_dir
from enn_ppo.training.tracking.run_output import RunOutput, announce, make_live
from entity_gym.pools.source import EnvFactory
from entity_gym.pools.vec_env import VecEnv


def start_run(config: TrainConfig, env: EnvFactory | None, callbacks: Sequence[Callback]) -> Run:
    """Make or restore everything that `config` asks for.

    Raises:
        ValueError: a setting, the environment, the checkpoint or the run directory is not as it must be.
    """
    with ExitStack() as stack:
        ranks = join_ranks(config)
        stack.push(lambda kind, error, trace: ranks.leave(error))
        # Ray's learners have devices of their own
        device = select_device("cpu" if config.distributed.mode == "ray" else config.device)
        bound = ranks.each(lambda: bind_environment(config.env, env))
        if config.policies:
            cast_of(config.policies, bound.source, bound.config.id)
            if config.eval.interval is not None:
                evaluated = bind_evaluation(bound.config, config.eval, env).source
                cast_of(config.policies, evaluated, f"eval.env_kwargs: {bound.config.id}")
        lock = RunLock()
        stack.callback(lock.close)
        # before the checkpoint is read, so that no trainer can save another one meanwhile
        run_dir = ranks.lead(lambda: take_run_dir(config, bound.config.id, lock))
        checkpoints = ranks.each(lambda: _load(config, ranks))
        if config.policies:
            _check_home(config, run_dir)
        config = replace(config, env=bound.config, run_dir=str(run_dir))
        evaluation = config.eval
        if config.policies and evaluation.opponent is None:
            evaluation = replace(evaluation, opponent="policies")
        set_threads(config.num_threads)
        set_determinism(config.torch_deterministic)

        state = ranks.each(lambda: make_state(config, bound, device, callbacks, ranks))
        stack.callback(state.close)
        spaces = state.sampler.obs_space(), state.sampler.action_space()
        ranks.lead(lambda: check_evaluation(evaluation, config.env, env, *spaces))
        news = state.restore(checkpoints) if checkpoints else {}
        if not checkpoints:
            state.start()
        # a run directory without a checkpoint could not be resumed, so the first one is written to its end
        interrupted = stack.enter_context(finish_on_interrupt(announce))
        outputs = _open(state, checkpoints, news, run_dir, stack)
        evaluators = {}
        for name, output in outputs.items():
            evaluator = Evaluator(evaluation, env, run_dir / name, output.say)
            stack.callback(evaluator.close)
            if _continues(checkpoints, run_dir):
                evaluator.resubmit(state.evaluations)
            evaluators[name] = evaluator
        return Run(state, run_dir, outputs, evaluators, interrupted, stack.pop_all())


def make_state(
    config: TrainConfig,
    env: BoundEnvironment,
    device: torch.device,
    callbacks: Sequence[Callback] = (),
    ranks: Ranks = ALONE,
) -> TrainState:
    """Make the learners and the sampler that `config` asks for, in this process or on Ray.

    Raises:
        ValueError: a setting does not fit the environment or this machine.
    """
    if config.distributed.mode == "ray":
        if find_spec("ray") is None:
            raise ValueError('distributed=ray needs Ray: pip install "enn-ppo[ray]"')
        from enn_ppo.training.on_ray.group import RunnerGroup

        group = RunnerGroup(config, env)
        return TrainState(config, env.config.id, group.learners, group, callbacks, ranks)
    if config.self_play.enabled and find_spec("openskill") is None:
        raise ValueError('self-play rates its snapshots with openskill: pip install "enn-ppo[self-play]"')
    rollout = config.rollout.share(ranks.size, "ranks of torchrun")
    first_env = ranks.rank * rollout.num_envs
    pools: Sequence[VecEnv] = make_pools(env, rollout, config.seed, first_env)
    spaces = pools[0].obs_space(), pools[0].action_space()
    players = config.policies or {"": [0]}
    models = {name: make_model(config.net, config.value_net, spaces, config.seed).to(device) for name in players}
    learners = {
        name: make_learner(
            models[name],
            config.optim,
            config.ppo,
            seed=config.seed,
            ranks=ranks,
            num_players=len(players[name]),
            group_size=rollout.group_size,
        )
        for name in players
    }
    self_play = None
    if config.self_play.enabled:
        self_play = SelfPlay(config.self_play, models[""].policy, config.seed)
        pools = [self_play.seat(pools[0], env.source, env.config.id)]
    nets = {name: model.acting_net for name, model in models.items()}
    cast = cast_of(config.policies, env.source, env.config.id) if config.policies else None
    sampler = LocalSampler(
        pools, nets, device, config.seed, first_env, cast=cast, pipeline=config.rollout.pipeline, ranks=ranks
    )
    return TrainState(config, env.config.id, learners, sampler, callbacks, ranks, self_play)


def _load(config: TrainConfig, ranks: Ranks) -> dict[str, Checkpoint]:
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
    # nothing checks the numbers in a trainer's state; the first rank's machine has the key that signed it
    if not (config.trust or ranks.rank or all(each.is_own for each in found)):
        raise ValueError(
            f"resume={config.resume} is not signed by this installation of enn-ppo, and its state of environments and trainer "
            "would be used as it is. Add trust=true if you trust whoever made it"
        )
    return dict(zip(config.policies or [""], found, strict=True))


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
    checkpoints: Mapping[str, Checkpoint],
    news: Mapping[str, Sequence[str]],
    run_dir: Path,
    stack: ExitStack,
) -> dict[str, RunOutput]:
    """Begin to write into the run directory, and say what is trained; `stack` closes the outputs.

    Args:
        state: of the training.
        checkpoints: policy -> the checkpoint that it resumes from.
        news: policy -> lines about the resumed run.
        run_dir: of the run.
        stack: closes the outputs.

    Returns:
        Policy -> its output; empty on all ranks but the first.
    """
    config, ranks = state.config, state.ranks
    continues = _continues(checkpoints, run_dir)

    def open_outputs() -> dict[str, RunOutput]:
        if config.policies:
            prepare_run_dir(run_dir, resume=False, overwrite=config.overwrite and not config.resume)
        for name in state.learners:
            prepare_run_dir(run_dir / name, resume=continues, overwrite=config.overwrite)
        live, step = make_live(), state.step if checkpoints else None
        outputs = {}
        for name in state.learners:
            own = replace(config, run_dir=str(run_dir / name))
            outputs[name] = stack.enter_context(RunOutput(run_dir / name, own, step, name, live))
        return outputs

    outputs = ranks.each(lambda: {} if ranks.rank else open_outputs())
    for name, output in outputs.items():
        on_ranks = f" with {ranks.size} ranks" if ranks.size > 1 else ""
        resumed = f", resumed from step {state.step:,}" if checkpoints else ""
        device = state.learners[name].device
        output.say(f"training {state.env_name} on {device}{on_ranks} into {run_dir / name}{resumed}")
        for line in news.get(name, ()):
            output.say(line)
        if state.next_steps() == 0:
            total = f"total_timesteps={config.total_timesteps:,}"
            output.say(f"nothing is left to train: {total} and the checkpoint has {state.step:,}")
    # later checkpoints lie beside that of a resumed run: a crash would go on from there, past the rows just dropped
    left_behind = [
        step for each in checkpoints.values() for step, _ in step_files(each.path.parent) if step > each.step
    ]
    if not continues or left_behind:
        evaluations = state.evaluations if continues else ()  # those of another run are its own
        state.save(run_dir, evaluations=evaluations, scores={name: each.score for name, each in checkpoints.items()})
    return outputs


def _continues(checkpoints: Mapping[str, Checkpoint], run_dir: Path) -> bool:
    """Whether the run goes on in the directory of its checkpoints, `<run>/checkpoints/step_<n>.safetensors`."""
    return any(each.path.parent.parent.resolve() == (run_dir / name).resolve() for name, each in checkpoints.items())


def take_run_dir(config: TrainConfig, env_id: str, lock: RunLock) -> Path:
    """Lock the run directory, and return it."""
    if config.run_dir is not None:
        run_dir = Path(config.run_dir)
    elif config.resume is None:
        return lock.take_unused(Path(default_run_dir(env_id, datetime.now())), *config.policies)
    else:
        resumed = Path(config.resume).absolute()
        run_dir = resumed if config.policies else resolve_checkpoint(resumed).parent.parent
        run_dir = run_dir.relative_to(Path.cwd()) if run_dir.is_relative_to(Path.cwd()) else run_dir
    lock.take(run_dir, *config.policies)
    return run_dir
