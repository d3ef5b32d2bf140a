"""The evaluation of a checkpoint over a given number of whole episodes.

python -m enn_ppo.eval checkpoint=outputs/my_run episodes=200
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from enn_ppo.checkpoints import Checkpoint, load_checkpoint
from enn_ppo.checkpoints.policy import load_trusted, saved_config, select_device
from enn_ppo.eval.episodes import Estimate, best_episodes, play_episodes, policy_seed, summarize
from enn_ppo.eval.policy import fit
from enn_ppo.eval.replay import Replay
from enn_ppo.eval.video import Video
from enn_ppo.settings.config import EnvConfig, EvalConfig
from enn_ppo.settings.distributed import check_policies
from enn_ppo.settings.evaluation import EpisodesConfig
from enn_ppo.training.environment import BoundEnvironment, bind_environment
from enn_ppo.training.files import replace_file
from enn_ppo.training.players import Cast, cast_of, mapping_of
from enn_ppo.training.recording import Recorder
from enn_ppo.training.self_play.opponents import load_opponent
from enn_ppo.training.tracking.symptoms import PAGE
from entity_gym.pools.episodes import Episode
from entity_gym.pools.players import players_of
from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.pools.seats import SeatedVecEnv
from entity_gym.pools.source import EnvFactory
from entity_gym.pools.vec_env import VecEnv

NUM_FILMED = 3  # episodes of a film that the command writes
MOST_SAMPLED = 100  # episodes with which greedy play is compared


@dataclass(frozen=True)
class EvalResult:
    """Estimates by name: `episodic_reward`, `episode_length`, and the numbers in `end_of_episode_info`.

    Against opponents also `win_rate` and `opponent_reward`, and all rewards are those of the policy's player. With `best_of`,
    estimates and episodes are of the best tries, and `episodic_reward_mean` is of all.
    """

    estimates: dict[str, Estimate]
    episodes: list[Episode] = field(repr=False)
    notes: list[str]  # differences from training, a sentence each
    greedy: bool = False  # whether the most likely actions were taken
    #: The first episodes, in the format of docs/replays.md.
    replay: dict[str, Any] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        lines = []
        for name, estimate in self.estimates.items():
            interval = "" if estimate.ci95 is None else f" ± {estimate.ci95:.4f}"
            lines.append(f"{name}: {estimate.mean:.4f}{interval}  (n = {estimate.n})")
        return "\n".join([*self.notes, *lines])


def evaluate(config: EvalConfig, env: EnvFactory | None = None) -> EvalResult:
    """Play `config.episodes` episodes with a checkpoint's policy, and write the files that the config names.

    Greedy play is compared with at most 100 sampled episodes; if these score more, a note says so.

    `env` is the environment, if the checkpoint's `env.id` cannot be imported; as in `train`.

    Raises:
        ValueError: a setting, the checkpoint or the environment is invalid, the checkpoint names code and is not trusted, or an
            episode does not end.
    """
    device = select_device(config.device)
    checkpoint = load_trusted(config.checkpoint, config.trust or env is not None)
    video = Video(Path(config.render), NUM_FILMED) if config.render else None
    record = Path(config.record) if config.record else None
    result = evaluate_checkpoint(checkpoint, config, env, device, video=video, record=record)
    if result.greedy:
        as_sampled = replace(config, greedy=False, episodes=min(config.episodes, MOST_SAMPLED))
        sampled = evaluate_checkpoint(checkpoint, as_sampled, env, device)
        result = replace(result, notes=result.notes + _compare(result, sampled))
    if config.output:
        world = checkpoint.config["env"]
        report = {name: vars(estimate) for name, estimate in result.estimates.items()} | {
            "checkpoint": str(checkpoint.path),
            "env": world["id"],
            "env_kwargs": {**world.get("kwargs", {}), **config.env_kwargs},
            "seed": config.seed,
            "greedy": result.greedy,
            "temperature": config.temperature,
            "best_of": config.best_of,
            "opponent": config.opponent,
        }
        try:
            Path(config.output).parent.mkdir(parents=True, exist_ok=True)
            replace_file(Path(config.output), json.dumps(report, indent=2).encode() + b"\n")
        except OSError as error:
            raise ValueError(f"output {config.output} cannot be written: {error}") from error
    return result


def _compare(likeliest: EvalResult, sampled: EvalResult) -> list[str]:
    """Say that the likeliest actions score less than sampled ones, if their confidence intervals do not meet."""
    a, b = (each.estimates["episodic_reward"] for each in (likeliest, sampled))
    if a.ci95 is None or b.ci95 is None or a.mean + a.ci95 >= b.mean - b.ci95:
        return []
    return [
        f"the likeliest actions score {a.mean:.4g} and sampled ones {b.mean:.4g}: play may run in a circle; take "
        f"greedy=false, or a temperature between 0 and 1: {PAGE}"
    ]


def evaluate_checkpoint(
    checkpoint: Checkpoint,
    config: EpisodesConfig,
    env: EnvFactory | None,
    device: torch.device,
    *,
    video: Video | None = None,
    replay: int = 0,
    record: Path | None = None,
) -> EvalResult:
    """Play `config.episodes` episodes with a checkpoint's policy.

    `env` is the environment, if `env.id` of the checkpoint cannot be imported. The film of the first episodes is written to the
    file of `video`, and the result has a replay of the first `replay` episodes. Samples are recorded into the folder `record`.

    Raises:
        ValueError: a setting or the environment is invalid, an episode does not end, or a file cannot be written.
    """
    run = saved_config(checkpoint)
    samples = config.best_of > 1 or config.temperature != 1
    greedy = run.eval.greedy and not samples if config.greedy is None else config.greedy
    config = replace(config, greedy=bool(greedy))
    bound = bind_evaluation(run.env, config, env)
    name, checkpoints, cast = "", {"": checkpoint}, None
    if config.opponent == "policies":
        if record:
            raise ValueError(f"opponent=policies and record={record} do not go together; leave one out")
        name, checkpoints, cast = _policies_of_run(checkpoint, bound)
    with own_random_numbers(config.seed), ExitStack() as stack:
        tries = config.best_of
        num_envs = min(config.num_envs, config.episodes) * tries
        pool: VecEnv = ThreadedVecEnv(bound.source, num_envs, seed=config.seed, autoreset=False, group_size=tries)
        stack.callback(pool.close)
        pool = pool if cast else _seated(pool, bound, config, checkpoint, device)
        if tries > 1 and isinstance(pool, SeatedVecEnv):
            raise ValueError(
                f"best_of={tries} is for a policy that plays alone; after self-play, this one plays itself"
            )
        spaces = pool.obs_space(), pool.action_space()
        policies = {}
        for number, (each, its) in enumerate(checkpoints.items()):
            generator = torch.Generator(device).manual_seed(policy_seed(config.seed, number))
            how: dict[str, Any] = {"greedy": bool(config.greedy), "temperature": config.temperature}
            policies[each] = fit(its, *spaces, bound.config.id, generator, **how)
        own, recorder, shown = policies[name].fitted, None, None
        if record:
            recorder = Recorder(record, own.net.obs_space, own.net.action_space)
            stack.callback(recorder.flush)
        if replay:
            shown = Replay(replay, bound.config.id, config.seed, pool, own.net, cast)
        all_of_them = replace(config, episodes=config.episodes * tries)
        episodes = play_episodes(policies, pool, all_of_them, cast, video=video, replay=shown, recorder=recorder)[name]
        best, more = best_episodes(episodes, tries)
    if video:
        video.write()
    notes = [f"the environment is not as it was in training; {own.news}"] if own.news else []
    page = shown.build(f"{bound.config.id}, step {checkpoint.step:,}", bound.config.kwargs) if shown else None
    return EvalResult(summarize(best) | more, best, notes, bool(config.greedy), page)


def _policies_of_run(checkpoint: Checkpoint, bound: BoundEnvironment) -> tuple[str, dict[str, Checkpoint], Cast]:
    """The name of a checkpoint's policy, and the checkpoints of all policies of its run at the same step, with their players.

    Raises:
        ValueError: the run has a single policy, or another policy has no checkpoint of that step.
    """
    home = checkpoint.path.parent.parent  # <run>/<policy>
    cast = cast_of(check_policies(checkpoint.config.get("policies", {})), bound.source, bound.config.id)
    if home.name not in cast.policies:
        raise ValueError(f"opponent=policies needs the run directory of one of several policies, and {home} is none")
    within = checkpoint.path.relative_to(home)
    checkpoints = {
        name: checkpoint if name == home.name else load_checkpoint(home.parent / name / within)
        for name in cast.policies
    }
    return home.name, checkpoints, cast


def _seated(
    pool: VecEnv, bound: BoundEnvironment, config: EpisodesConfig, checkpoint: Checkpoint, device: torch.device
) -> VecEnv:
    """Wrap the environments so that an opponent plays all players but one; without an opponent, return them unchanged.

    Raises:
        ValueError: the opponent does not exist, or does not fit the environments.
    """
    mapping, opponent = players_of(bound.source), config.opponent
    if opponent is None and checkpoint.trainer.get("self_play") and mapping is not None and mapping.num_players > 1:
        opponent = str(checkpoint.path)  # after self-play the policy expects one player's observations: it plays itself
    if opponent is None or mapping is None:
        return pool
    opponents = load_opponent(opponent, checkpoint, pool, device, greedy=bool(config.greedy), seed=config.seed)
    return SeatedVecEnv(pool, mapping, opponents)


def bind_evaluation(trained_in: EnvConfig, config: EpisodesConfig, env: EnvFactory | None) -> BoundEnvironment:
    """The environment of training with the arguments of `config.env_kwargs`.

    Raises:
        ValueError: there is no such environment, it does not take these arguments, or has no second player for `config.opponent`.
    """
    bound = bind_environment(replace(trained_in, kwargs={**trained_in.kwargs, **config.env_kwargs}), env)
    if config.opponent is not None:
        mapping_of(bound.source, bound.config.id, f"opponent={config.opponent}")
    return bound


@contextmanager
def own_random_numbers(seed: int) -> Iterator[None]:
    """Seed the global random generators within this context, and restore them afterwards.

    Policies and environments have their own generators, but making a network and users' environments may use the global ones.
    """
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call, unused-ignore]
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(range(torch.cuda.device_count()) if initialized else ()):
        try:
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
