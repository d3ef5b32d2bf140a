"""Playing whole episodes with a policy, and estimates from them.

Nothing here changes a policy, or random numbers of others.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from statistics import fmean, stdev
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.fit import FittedPolicy
from enn_ppo.config import EnvConfig
from enn_ppo.environment import BoundEnvironment, EnvFactory, bind_environment
from enn_ppo.evaluation.video import Camera
from enn_ppo.recording.recorder import Recorder
from enn_ppo.self_play.opponents import load_opponent
from enn_ppo.settings.evaluation import EpisodesConfig
from entity_gym.agents import TrainEnv
from entity_gym.batch.vec_obs import VecObs
from entity_gym.pools.episodes import Episode, EpisodeTracker, EpisodeVecEnv
from entity_gym.pools.players import PlayerMapping, players_of
from entity_gym.pools.seats import SeatedEpisodeVecEnv
from rogue_net import ActResult, ObsBatch, RogueNet
from rogue_net.adaptor import ObsAdaptor

#: Episodes side by side, seen by all players at once or by one of them.
EpisodePool: TypeAlias = EpisodeVecEnv | SeatedEpisodeVecEnv

OPPONENTS = "an opponent is random, past, policies, or a run directory or checkpoint"  # for messages

_COUNTED_FROM_OUTSIDE = ("episodic_reward", "episode_length")


@dataclass(frozen=True)
class Estimate:
    """The mean of `n` episodes; with 95 % probability the true mean is within `ci95` of it (None for a single episode)."""

    mean: float
    ci95: float | None
    n: int


@dataclass(frozen=True)
class EvalResult:
    """Estimates by name: `episodic_reward`, `episode_length`, and the numbers in `end_of_episode_info`.

    Against opponents also `win_rate` and `opponent_reward`, and all rewards are those of the policy's player.
    """

    estimates: dict[str, Estimate]
    episodes: list[Episode] = field(repr=False)
    notes: list[str]  # what differs from training, a sentence each
    greedy: bool = False  # whether the likeliest actions were taken

    def __str__(self) -> str:
        lines = []
        for name, estimate in self.estimates.items():
            interval = "" if estimate.ci95 is None else f" ± {estimate.ci95:.4f}"
            lines.append(f"{name}: {estimate.mean:.4f}{interval}  (n = {estimate.n})")
        return "\n".join([*self.notes, *lines])


@dataclass(frozen=True)
class Pilot:
    """A policy that plays, with what shows it the environment's observations as it knows them."""

    net: RogueNet
    adaptor: ObsAdaptor
    device: torch.device
    greedy: bool
    generator: torch.Generator
    critic: FittedPolicy  # tells values: the policy, or the run's value network
    value_unit: float  # of these, in rewards

    def see(self, obs: VecObs) -> ObsBatch:
        """N frames as the policy knows them."""
        return self.adaptor(ObsBatch.from_vec_obs(obs, self.device))

    def act(self, batch: ObsBatch, *, logits: bool = False) -> ActResult:
        """Choose actions in N frames."""
        return self.net.act(batch, greedy=self.greedy, generator=self.generator, logits=logits)

    def values(self, obs: VecObs, result: ActResult | None = None) -> torch.Tensor:
        """(N,) the discounted rewards that the run expects after N frames; `result` is what `act` said of them, if it did."""
        if result is not None and self.critic.net is self.net:
            return result.values * self.value_unit
        return self.critic.net.value(self.critic.adaptor(ObsBatch.from_vec_obs(obs, self.device))) * self.value_unit


def bind_evaluation(trained_in: EnvConfig, config: EpisodesConfig, env: EnvFactory | None) -> BoundEnvironment:
    """The environment of training with the arguments that `config.env_kwargs` changes.

    Raises:
        ValueError: there is no such environment, or it does not take these arguments.
    """
    return bind_environment(replace(trained_in, kwargs={**trained_in.kwargs, **config.env_kwargs}), env)


def make_pool(
    bound: BoundEnvironment, config: EpisodesConfig, checkpoint: Checkpoint, device: torch.device
) -> EpisodePool:
    """The environments of an evaluation; against an opponent, as the policy's player sees them.

    Raises:
        ValueError: the environment has no other players, the opponent does not fit it, or worlds would not be whole.
    """
    mapping = check_players(bound, config)
    check_whole_worlds(bound, config)
    pool = EpisodeVecEnv(bound.source, min(config.num_envs, config.episodes), seed=config.seed)
    self_play = checkpoint.trainer.get("self_play")
    named = config.opponent
    if named is None and self_play and mapping is not None and mapping.num_players > 1:
        named = str(checkpoint.path)  # the policy has learned to see as one player: it plays each of them by itself
    if named is None or mapping is None:
        return pool
    try:
        opponent = load_opponent(
            named,
            checkpoint.path.parent.parent,
            pool,
            device,
            before=checkpoint.step,
            snapshots=self_play["pool"] if self_play else None,
            greedy=bool(config.greedy),
            seed=config.seed,
        )
        return SeatedEpisodeVecEnv(pool, mapping, opponent)
    except BaseException as error:
        pool.close()
        error.add_note(f"(with opponent={named}; {OPPONENTS})")
        raise


def check_players(bound: BoundEnvironment, config: EpisodesConfig) -> PlayerMapping | None:
    """The mapping of a world in which `config.opponent` can play; None if there is none and none is needed.

    Raises:
        ValueError: an opponent is asked for and there is nobody for it to play.
    """
    mapping = players_of(bound.source)
    if config.opponent is not None and (mapping is None or mapping.num_players < 2):
        has = "says nothing of players (see entity_gym.pools.players)" if mapping is None else "has one player"
        raise ValueError(
            f"opponent={config.opponent} needs an environment with several players, and {bound.config.id} {has}"
        )
    return mapping


def check_whole_worlds(bound: BoundEnvironment, config: EpisodesConfig) -> int:
    """Number of environments that make one world, and are played together.

    Raises:
        ValueError: `config` asks for parts of worlds.
    """
    num_agents = bound.source.num_agents if isinstance(bound.source, TrainEnv) else 1
    for name in ("episodes", "num_envs"):
        value = getattr(config, name)
        if value % num_agents:
            raise ValueError(
                f"{config._section}{name} is {value}; it must be a multiple of {num_agents}: each world of {bound.config.id} has "
                f"{num_agents} agents, and each of them is an environment"
            )
    return num_agents


@torch.no_grad()
def play_episodes(
    pilot: Pilot,
    pool: EpisodePool,
    config: EpisodesConfig,
    camera: Camera,
    recorder: Recorder | None = None,
    *,
    progress: bool = False,
) -> list[Episode]:
    """Play rounds of episodes, one in each environment, every one of them to its end.

    Whether an episode counts thus never depends on how long it is: taking the first to finish would favour short ones.
    """
    episodes: list[Episode] = []
    with tqdm(total=config.episodes, unit=" episodes", disable=None if progress else True) as bar:
        while len(episodes) < config.episodes:
            seed = None if episodes else config.seed
            obs, running = pool.reset(seed, env_id=range(min(len(pool), config.episodes - len(episodes))))
            tracker = EpisodeTracker(len(pool))
            camera.start(pool, running)
            while len(running):
                check_lengths(tracker.lengths, config.max_episode_steps)
                batch = pilot.see(obs)
                result = pilot.act(batch, logits=recorder is not None and recorder.logits)
                step = pool.step(result.to_buffers())
                outcome = step.was_running.obs
                if recorder:
                    told = result._replace(values=pilot.values(obs, result))
                    recorder.add_step(batch, obs, told, outcome, _final_values(pilot, outcome))
                camera.shoot(pool, step.was_running.env_id)
                finished = tracker.step(outcome)
                obs, running = step.still_running
                episodes += finished
                bar.update(len(finished))
    return episodes


def _final_values(pilot: Pilot, outcome: VecObs) -> torch.Tensor | None:
    """(N,) values of what a step led to, in which a truncated episode shows its own last observation; None without such."""
    return pilot.values(outcome) if outcome.truncated.any() else None


def summarize(episodes: Sequence[Episode]) -> dict[str, Estimate]:
    """Estimates of everything numeric that the episodes tell; NaN tells nothing."""
    values: dict[str, list[float]] = {
        "episodic_reward": [episode.reward for episode in episodes],
        "episode_length": [float(episode.length) for episode in episodes],
    }
    for episode in episodes:
        for name, value in episode.info.items():
            if isinstance(value, Real) and not math.isnan(value) and name not in _COUNTED_FROM_OUTSIDE:
                values.setdefault(name, []).append(float(value))
    return {name: _estimate(numbers) for name, numbers in values.items()}


@contextlib.contextmanager
def own_random_numbers(seed: int) -> Iterator[None]:
    """Within this context, what draws from the global generators draws what `seed` says; afterwards they are as before.

    Policies and environments have generators of their own. Making a network, and what users' environments do, may not.
    """
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call, unused-ignore]
    devices = range(torch.cuda.device_count()) if initialized else ()
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices):
        try:
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _estimate(values: Sequence[float]) -> Estimate:
    """Mean and 1.96 standard errors, the normal approximation of the 95 % interval."""
    ci95 = 1.96 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Estimate(fmean(values), ci95, len(values))


def check_lengths(lengths: NDArray[np.int64], limit: int) -> None:
    """Raise a ValueError where a running episode has `limit` steps."""
    if lengths.max() >= limit:
        raise ValueError(
            f"environment {int(lengths.argmax())} has played {limit} steps without ending its episode "
            f"(max_episode_steps={limit}); "
            "give the environment a step limit that truncates, or raise max_episode_steps"
        )
