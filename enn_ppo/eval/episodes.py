"""Playing whole episodes with one or several policies, and estimating mean rewards."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from operator import attrgetter
from statistics import fmean, stdev

import numpy as np
import torch

from enn_ppo.eval.policy import Acted, Policy
from enn_ppo.eval.replay import Replay
from enn_ppo.eval.video import Video
from enn_ppo.settings.evaluation import EpisodesConfig, TrainEvalConfig
from enn_ppo.training.frames import Frames
from enn_ppo.training.players import Cast
from enn_ppo.training.policy_states import PolicyStates
from enn_ppo.training.recording import Recorder
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.pools.episodes import Episode, EpisodeTracker
from entity_gym.pools.players import Seating
from entity_gym.pools.seats import SeatedVecEnv
from entity_gym.pools.vec_env import VecEnv

_COUNTED_FROM_OUTSIDE = ("episodic_reward", "episode_length")


@dataclass(frozen=True)
class Estimate:
    """The mean over `n` episodes, with the half-width of its 95 % confidence interval (None for a single episode)."""

    mean: float
    ci95: float | None
    n: int


@torch.no_grad()
def play_episodes(
    policies: Mapping[str, Policy],
    pool: VecEnv,
    config: EpisodesConfig,
    cast: Cast | None = None,
    *,
    video: Video | None = None,
    replay: Replay | None = None,
    recorder: Recorder | None = None,
) -> dict[str, list[Episode]]:
    """Play `config.episodes` episodes to their end, in rounds of one episode per environment.

    Taking the first episodes to finish instead would favour short ones. A terminal shows the progress, except during training.

    Without a `cast` there is a single policy, which acts for all actors, and `recorder` records every step. The environments have
    no autoreset; with seats, the policy plays every side in turn.

    Returns:
        Policy name -> the episodes, with the rewards of that policy's players.

    Raises:
        ValueError: an episode is longer than `config.max_episode_steps`.
    """
    from rich.console import Console  # imported here: slow to import
    from rich.progress import Progress

    (name, *_), num_done = policies, 0
    episodes: dict[str, list[Episode]] = {each: [] for each in policies}
    seated = pool if isinstance(pool, SeatedVecEnv) else None
    # each player remembers for itself
    players = [replace(policies[each], states=PolicyStates()) for each in cast.played_by] if cast else []
    tracker = EpisodeTracker(len(pool), policies=cast.policies if cast else None)
    is_shown, stays = sys.stderr.isatty() and not isinstance(config, TrainEvalConfig), sys.stdout.isatty()
    with Progress(console=Console(stderr=True), redirect_stdout=stays, disable=not is_shown) as bar:
        task = bar.add_task("episodes", total=config.episodes)
        while num_done < config.episodes:
            seed = None if num_done else config.seed
            if seated and num_done:
                seated.rotate()
            obs = pool.reset(seed)
            if config.episodes - num_done < len(pool):
                obs = obs.gather(np.arange(config.episodes - num_done))
            tracker.reset()
            if video:
                video.start(pool, obs.env_id)
            if replay:
                replay.start(obs.env_id)
            while len(obs):
                if tracker.lengths.max() >= (limit := config.max_episode_steps):
                    raise ValueError(
                        f"environment {int(tracker.lengths.argmax())} has played {limit} steps without ending its episode "
                        f"(max_episode_steps={limit}); give the environment a step limit that truncates, or raise "
                        "max_episode_steps"
                    )
                if cast:
                    actions = _act_together(players, cast, obs, replay)
                else:
                    acted = policies[name].act(obs)
                    actions = acted.buffers
                    if replay:
                        seats = seated.seats[obs.env_id] if seated else None
                        replay.see(obs, actions, [(acted, np.arange(len(obs)))], seats)
                outcome = pool.act(actions, obs.env_id)
                if recorder and not cast:
                    _record(recorder, obs, acted, outcome)
                if video:
                    video.add(pool, outcome.env_id)
                if replay:
                    replay.step(outcome.env_id, outcome.end_of_episode_info)
                if cast:
                    ended = tracker.step_players(outcome, Seating(outcome, cast.mapping).rewards)
                else:
                    ended = {name: tracker.step(outcome)}
                for each, own in ended.items():
                    episodes[each] += own
                num_done += int(outcome.done.sum())
                bar.update(task, completed=num_done)
                obs = outcome.gather(np.flatnonzero(~outcome.done)) if outcome.done.any() else outcome
    return episodes


def _act_together(players: Sequence[Policy], cast: Cast, obs: VecObs, replay: Replay | None) -> dict[str, VecAction]:
    """The actions of all players, each chosen by the player's policy from the player's observations."""
    seating, parts = Seating(obs, cast.mapping), []
    for player, policy in enumerate(players):
        part = seating.part(player)
        seen = seating.show(part)
        acted = policy.act(seen)
        actions = acted.buffers
        if replay:
            replay.see(seen, actions, [(acted, np.arange(len(obs)))], part.seats)
        parts.append((part, actions))
    return seating.join(parts)


def _record(recorder: Recorder, obs: VecObs, acted: Acted, outcome: VecObs) -> None:
    """Record a step."""
    done, truncated = torch.from_numpy(outcome.done), torch.from_numpy(outcome.truncated)
    final_values = torch.zeros(len(obs))
    if truncated.any():
        final_values = torch.where(truncated, acted.policy.values(outcome), 0.0)
    recorder.add(
        Frames(
            obs=acted.batch,
            env_id=torch.from_numpy(obs.env_id),
            step=torch.from_numpy(obs.elapsed_step),
            actions=acted.result.actions,
            log_probs=acted.result.log_probs,
            values=acted.values,
            rewards=torch.from_numpy(outcome.reward),
            terminated=done & ~truncated,
            truncated=truncated,
            final_values=final_values,
        )
    )


def policy_seed(seed: int, number: int) -> int:
    """Sampling seed of a run's policy `number`; the first policy has `seed`."""
    if number == 0:
        return seed
    return int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def summarize(episodes: Sequence[Episode]) -> dict[str, Estimate]:
    """Estimates of episodic reward, episode length, and all numbers in the episodes' infos; NaN is ignored."""
    values: dict[str, list[float]] = {
        "episodic_reward": [episode.reward for episode in episodes],
        "episode_length": [float(episode.length) for episode in episodes],
    }
    for episode in episodes:
        for name, value in episode.info.items():
            if isinstance(value, Real) and not math.isnan(value) and name not in _COUNTED_FROM_OUTSIDE:
                values.setdefault(name, []).append(float(value))
    return {name: _estimate(numbers) for name, numbers in values.items()}


def best_episodes(episodes: Sequence[Episode], tries: int) -> tuple[list[Episode], dict[str, Estimate]]:
    """Return the episode with the most reward of each group, and an estimate of the mean reward of all, if there are several.

    Args:
        episodes: of environments in groups of `tries`, which have played equally many.
        tries: at least 1.
    """
    if tries == 1:
        return list(episodes), {}
    groups: dict[tuple[int, int], list[Episode]] = {}
    played: Counter[int] = Counter()
    for episode in episodes:
        groups.setdefault((played[episode.env_id], episode.env_id // tries), []).append(episode)
        played[episode.env_id] += 1
    best = [max(each, key=attrgetter("reward")) for each in groups.values()]
    means = [fmean(episode.reward for episode in each) for each in groups.values()]
    return best, {"episodic_reward_mean": _estimate(means)}


def _estimate(values: Sequence[float]) -> Estimate:
    """Mean and 1.96 standard errors, the normal approximation of the 95 % confidence interval."""
    ci95 = 1.96 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Estimate(fmean(values), ci95, len(values))
