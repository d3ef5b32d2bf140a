"""Evaluating a checkpoint: with its policy alone, or with all policies of its run."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.fit import fit_policy
from enn_ppo.checkpoints.policy import saved_config
from enn_ppo.config import EnvConfig
from enn_ppo.environment import BoundEnvironment, EnvFactory
from enn_ppo.evaluation.episodes import (
    EvalResult,
    Pilot,
    bind_evaluation,
    make_pool,
    own_random_numbers,
    play_episodes,
    summarize,
)
from enn_ppo.evaluation.together import evaluate_together
from enn_ppo.evaluation.video import Camera, check_film
from enn_ppo.recording.recorder import Recorder
from enn_ppo.return_scale import value_unit
from enn_ppo.settings.evaluation import EpisodesConfig
from enn_ppo.settings.schema import from_dict


@dataclass(frozen=True)
class Outputs:
    """Files that an evaluation writes."""

    film: Path | None = None  # of the first `num_filmed`
    num_filmed: int = 0
    filmed_by: str = ""  # the setting that asked for it, for messages
    record: Path | None = None  # samples
    record_logits: bool = False


def evaluate_checkpoint(
    checkpoint: Checkpoint,
    config: EpisodesConfig,
    env: EnvFactory | None,
    device: torch.device,
    outputs: Outputs | None = None,
    *,
    progress: bool = False,
) -> EvalResult:
    """Play `config.episodes` episodes with a checkpoint's policy.

    Args:
        checkpoint: whose policy, environment and run.
        config: which episodes.
        env: the environment where `env.id` of the checkpoint cannot be imported; as in `train`.
        device: where the policy acts.
        outputs: what to write; None: nothing.
        progress: whether a progress bar is shown.

    Raises:
        ValueError: a setting or the environment is not as it must be, an episode does not end, or a file cannot be written.
    """
    outputs = outputs or Outputs()
    if outputs.film:
        check_film(outputs.film)
    if config.greedy is None:
        config = replace(config, greedy=bool(saved_config(checkpoint).eval.greedy))
    bound = bind_evaluation(from_dict(EnvConfig, checkpoint.config["env"], "env"), config, env)
    camera = Camera(outputs.num_filmed if outputs.film else 0, outputs.filmed_by)
    if config.opponent == "policies":
        if outputs.record:
            raise ValueError(f"opponent=policies and record={outputs.record} do not go together; leave one out")
        evaluate_with = partial(evaluate_together, progress=progress)
    else:
        evaluate_with = partial(_evaluate_alone, outputs=outputs, progress=progress)
    with own_random_numbers(config.seed):
        result = evaluate_with(checkpoint, config, bound, device, camera)
    if outputs.film:
        camera.write(outputs.film)
    return replace(result, greedy=bool(config.greedy))


def _evaluate_alone(
    checkpoint: Checkpoint,
    config: EpisodesConfig,
    bound: BoundEnvironment,
    device: torch.device,
    camera: Camera,
    *,
    outputs: Outputs,
    progress: bool,
) -> EvalResult:
    """Evaluate one policy; see `evaluate_checkpoint`."""
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(contextlib.closing(make_pool(bound, config, checkpoint, device)))
        fitted = fit_policy(checkpoint, pool.obs_space(), pool.action_space(), device, bound.config.id)
        recorder = None
        if outputs.record:
            recorder = Recorder(
                outputs.record, fitted.net.obs_space, fitted.net.action_space, logits=outputs.record_logits
            )
            stack.enter_context(contextlib.closing(recorder))
        critic = fitted
        if recorder and "value_net" in checkpoint.more_weights:
            critic = fit_policy(checkpoint, pool.obs_space(), pool.action_space(), device, bound.config.id, "value_net")
        pilot = Pilot(
            fitted.net,
            fitted.adaptor,
            device,
            bool(config.greedy),
            torch.Generator(device).manual_seed(config.seed),
            critic,
            value_unit(saved_config(checkpoint).ppo.normalize, checkpoint.trainer.get("scale")),
        )
        episodes = play_episodes(pilot, pool, config, camera, recorder, progress=progress)
    notes = [f"the environment is not as it was in training; {fitted.news}"] if fitted.news else []
    return EvalResult(summarize(episodes), episodes, notes)
