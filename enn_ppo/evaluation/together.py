"""Playing whole episodes with the policies of a run that has several, each as its own players: `opponent=policies`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import numpy as np
import torch
from tqdm import tqdm

from enn_ppo.checkpoints import Checkpoint, load_checkpoint
from enn_ppo.checkpoints.fit import fit_policy
from enn_ppo.environment import BoundEnvironment
from enn_ppo.evaluation.episodes import EvalResult, Pilot, check_lengths, summarize
from enn_ppo.evaluation.video import Camera
from enn_ppo.players import Cast, cast_of
from enn_ppo.settings.distributed import check_policies
from enn_ppo.settings.evaluation import EpisodesConfig
from entity_gym.pools.episodes import Episode, EpisodeVecEnv
from entity_gym.pools.players import Seating
from entity_gym.pools.seats import PlayersTracker


def evaluate_together(
    checkpoint: Checkpoint,
    config: EpisodesConfig,
    bound: BoundEnvironment,
    device: torch.device,
    camera: Camera,
    *,
    progress: bool = False,
) -> EvalResult:
    """Play with a checkpoint's policy as its own players, and those of the other policies, of the same step, as theirs.

    Args:
        checkpoint: in a policy's run directory, beside those of the others.
        config: which episodes.
        bound: the environment.
        device: where the policies act.
        camera: films them.
        progress: whether a progress bar is shown.

    Raises:
        ValueError: the run has one policy, or another policy has no checkpoint of that step; and as `evaluate_checkpoint`.
    """
    home = checkpoint.path.parent.parent  # <run>/<policy>
    cast = cast_of(check_policies(checkpoint.config.get("policies", {})), bound.source, bound.config.id)
    if home.name not in cast.policies:
        raise ValueError(
            f"opponent=policies needs the run directory of one of several policies, and {home} is none (policies="
            f"{dict(cast.policies)})"
        )
    with contextlib.closing(
        EpisodeVecEnv(bound.source, min(config.num_envs, config.episodes), seed=config.seed)
    ) as pool:
        pilots, news = {}, ""
        for number, name in enumerate(cast.policies):
            there = home.parent / name / checkpoint.path.parent.name / checkpoint.path.name
            its = checkpoint if name == home.name else load_checkpoint(there)
            fitted = fit_policy(its, pool.obs_space(), pool.action_space(), device, bound.config.id)
            generator = torch.Generator(device).manual_seed(seed_of_policy(config.seed, number))
            pilots[name] = Pilot(fitted.net, fitted.adaptor, device, bool(config.greedy), generator, fitted, 1.0)
            news = fitted.news if name == home.name else news
        episodes = play_together(pilots, cast, pool, config, camera, progress=progress)[home.name]
    notes = [f"the environment is not as it was in training; {news}"] if news else []
    return EvalResult(summarize(episodes), episodes, notes)


@torch.no_grad()
def play_together(
    pilots: Mapping[str, Pilot],
    cast: Cast,
    pool: EpisodeVecEnv,
    config: EpisodesConfig,
    camera: Camera,
    *,
    progress: bool = False,
) -> dict[str, list[Episode]]:
    """Play rounds of episodes, as `play_episodes` does, with several policies.

    Args:
        pilots: name -> policy.
        cast: who plays whom.
        pool: the environments.
        config: which episodes.
        camera: films them.
        progress: whether a progress bar is shown.

    Returns:
        Name -> the episodes as that policy has played them.
    """
    episodes: dict[str, list[Episode]] = {name: [] for name in pilots}
    num_done, tracker = 0, PlayersTracker(len(pool), cast.policies)
    with tqdm(total=config.episodes, unit=" episodes", disable=None if progress else True) as bar:
        while num_done < config.episodes:
            seed = None if num_done else config.seed
            obs, running = pool.reset(seed, env_id=range(min(len(pool), config.episodes - num_done)))
            tracker.reset()
            camera.start(pool, running)
            while len(running):
                check_lengths(tracker.lengths, config.max_episode_steps)
                seating = Seating(obs, cast.mapping)
                parts = []
                for player, name in enumerate(cast.played_by):
                    part = seating.part(player)
                    parts.append((part, pilots[name].act(pilots[name].see(seating.show(part))).to_buffers()))
                step = pool.step(seating.join(parts))
                outcome = step.was_running.obs
                camera.shoot(pool, step.was_running.env_id)
                finished = tracker.step(outcome, Seating(outcome, cast.mapping).rewards)
                for ended in finished:
                    for name, episode in ended.items():
                        episodes[name].append(episode)
                obs, running = step.still_running
                num_done += len(finished)
                bar.update(len(finished))
    return episodes


def seed_of_policy(seed: int, number: int) -> int:
    """Seed of a policy's sampling noise, which differs between policies. That of the first one is `seed`."""
    return (
        int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0] >> np.uint64(1)) if number else seed
    )
