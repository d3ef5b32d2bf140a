"""Evaluation: exactly as many episodes as asked for, every environment counted fairly.

python -m enn_ppo.eval checkpoint=outputs/my_run episodes=200
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from enn_ppo.checkpoint import load_checkpoint
from enn_ppo.config import EnvConfig, EvalConfig
from enn_ppo.environment import EnvFactory, adapt_spaces, bind_environment
from enn_ppo.policy import load_policy, select_device
from enn_ppo.settings import from_dict
from enn_ppo.video import record_episode
from entity_gym.episode_env import EpisodeVecEnv
from entity_gym.episodes import Episode, EpisodeTracker
from rogue_net import ObsBatch, RogueNet
from rogue_net.adaptor import ObsAdaptor


@dataclass(frozen=True)
class Estimate:
    """The mean of `n` episodes; with 95 % probability the true mean is within `ci95` of it (None for a single episode)."""

    mean: float
    ci95: float | None
    n: int


@dataclass(frozen=True)
class EvalResult:
    """What was measured, by name: `episodic_reward`, `episode_length`, and the numbers in `end_of_episode_info`."""

    estimates: dict[str, Estimate]
    episodes: list[Episode]


def evaluate(config: EvalConfig, env: EnvFactory | None = None) -> EvalResult:
    """Play `config.episodes` episodes with a checkpoint's policy; print, and write what the config asks for.

    Args:
        config: every setting.
        env: the environment where the checkpoint's own `env.id` cannot be imported; as in `train`.

    Raises:
        ValueError: a setting, the checkpoint or the environment is not as it must be, or an episode does not end.
    """
    device = select_device(config.device)
    checkpoint = load_checkpoint(Path(config.checkpoint))
    bound = bind_environment(from_dict(EnvConfig, checkpoint.config["env"], "env"), env)
    net = load_policy(checkpoint, device)
    pool = EpisodeVecEnv(bound.source, min(config.num_envs, config.episodes), seed=config.seed)
    obs_space, action_space = pool.obs_space(), pool.action_space()
    with contextlib.closing(pool):
        adaptor = adapt_spaces(
            checkpoint.spaces, obs_space, action_space, checkpoint=checkpoint.path, env=bound.config.id
        )
        if told := adaptor.describe():
            print(f"observations are not as they were in training; {told}")
        episodes = play_episodes(net, pool, config, device, adaptor)
    estimates = summarize(episodes)
    for name, estimate in estimates.items():
        interval = "" if estimate.ci95 is None else f" ± {estimate.ci95:.4f}"
        print(f"{name}: {estimate.mean:.4f}{interval}  (n = {estimate.n})")
    if config.output:
        _write(Path(config.output), _report(config, estimates, checkpoint.path))
    if config.render:
        record_episode(net, bound.create, config, device, adaptor)
    return EvalResult(estimates, episodes)


def play_episodes(
    net: RogueNet, pool: EpisodeVecEnv, config: EvalConfig, device: torch.device, adaptor: ObsAdaptor
) -> list[Episode]:
    """Play rounds of episodes, one in each environment, every one of them to its end.

    Whether an episode counts thus never depends on how long it is: taking the first to finish would favour short ones.
    """
    generator = torch.Generator(device).manual_seed(config.seed)
    episodes: list[Episode] = []
    with tqdm(total=config.episodes, unit=" episodes", disable=None) as progress:
        while len(episodes) < config.episodes:
            seed = None if episodes else config.seed
            obs, running = pool.reset(seed, env_id=range(min(len(pool), config.episodes - len(episodes))))
            tracker = EpisodeTracker(len(pool))
            while len(running):
                _check_lengths(tracker.lengths, config.max_episode_steps)
                batch = adaptor(ObsBatch.from_vec_obs(obs, device))
                result = net.act(batch, greedy=config.greedy, generator=generator)
                step = pool.step(result.to_buffers())
                finished = tracker.step(step.was_running.obs)
                obs, running = step.still_running
                episodes += finished
                progress.update(len(finished))
    return episodes


def summarize(episodes: Sequence[Episode]) -> dict[str, Estimate]:
    """Estimates of everything numeric that the episodes tell."""
    values: dict[str, list[float]] = {
        "episodic_reward": [episode.reward for episode in episodes],
        "episode_length": [float(episode.length) for episode in episodes],
    }
    for episode in episodes:
        for name, value in episode.info.items():
            if isinstance(value, Real) and name not in ("episodic_reward", "episode_length"):
                values.setdefault(name, []).append(float(value))
    return {name: _estimate(numbers) for name, numbers in values.items()}


def _estimate(values: Sequence[float]) -> Estimate:
    """Mean and 1.96 standard errors, the normal approximation of the 95 % interval."""
    ci95 = 1.96 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Estimate(fmean(values), ci95, len(values))


def _check_lengths(lengths: NDArray[np.int64], limit: int) -> None:
    if lengths.max() >= limit:
        raise ValueError(
            f"environment {int(lengths.argmax())} has played {limit} steps without ending its episode "
            f"(max_episode_steps={limit}); "
            "give the environment a step limit that truncates, or raise max_episode_steps"
        )


def _report(config: EvalConfig, estimates: dict[str, Estimate], checkpoint: Path) -> dict[str, Any]:
    settings = {"checkpoint": str(checkpoint), "seed": config.seed, "greedy": config.greedy}
    return {name: vars(estimate) for name, estimate in estimates.items()} | settings


def _write(path: Path, report: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=2) + "\n")
    except OSError as error:
        raise ValueError(f"output {path} cannot be written: {error}") from error


if __name__ == "__main__":
    from enn_ppo.cli import run_eval

    raise SystemExit(run_eval(evaluate))
