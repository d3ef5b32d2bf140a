"""Whether episodes end, and whether one that is cut says so."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from entity_gym.actions.choices import random_actions
from entity_gym.check.report import Outcome, failed, ok, skipped, warning
from entity_gym.check.subject import SEED, Stopwatch, Subject
from entity_gym.check.trajectory import Trajectory
from entity_gym.pools.episodes import Episode, EpisodeTracker

_LIMIT_NAME = re.compile(r"max.*(step|turn|tick|length|time)|(step|turn|tick|length|time|episode).*limit|limit|horizon")
ENOUGH = 2  # episodes that end after as many steps as something called a limit says
SUSPICIOUS = 5  # episodes that end after the same number of steps, none after more


def check_end(subject: Subject) -> Outcome:
    """Episodes end, and one that is cut by a step limit is truncated."""
    episodes = episodes_of(subject.trajectory)
    if not episodes:
        return _hunt(subject)
    limits = _limits(subject)
    longest = max(episode.length for episode in episodes)
    at_longest = [episode for episode in episodes if episode.length == longest]
    named = [name for name, value in limits.items() if value == longest]
    if not any(episode.truncated for episode in at_longest) and len(at_longest) >= ENOUGH:
        seen = (
            f"{len(at_longest)} of {len(episodes)} episodes ended after exactly {longest} steps, with truncated=False"
        )
        if named:
            return failed(
                f"{seen}, and {named[0]} is {longest}: an episode that is cut by a step limit has truncated=True"
            )
        if len(at_longest) >= SUSPICIOUS and longest >= SUSPICIOUS:
            return warning(f"{seen}, and none later: if that is a step limit, set truncated=True")
    lengths = [episode.length for episode in episodes]
    shape = (
        f"{min(lengths)} to {longest} steps" if min(lengths) < longest else f"{longest} step{'s' * (longest > 1)} each"
    )
    return ok(f"{len(episodes)} episodes, {shape}, {sum(episode.truncated for episode in episodes)} truncated")


def episodes_of(trajectory: Trajectory) -> list[Episode]:
    """The finished episodes."""
    tracker = EpisodeTracker(trajectory.num_envs)
    return [episode for obs in trajectory.shown[1:] for episode in tracker.step(obs)]


def _hunt(subject: Subject) -> Outcome:
    """Play one environment until its first episode ends."""
    effort, pool, rng = subject.effort, subject.pool(1), np.random.default_rng(SEED)
    clock, steps = Stopwatch(), 0
    with subject.watch.call():
        obs = pool.reset(SEED)
    while steps < effort.longest_episode:
        if clock.seconds > effort.hunt_seconds:
            return skipped(f"no episode ended in {steps:,} steps, and more take too long")
        with subject.watch.call():
            obs = pool.act(random_actions(obs, rng, pool.action_space()))
        steps += 1
        if obs.done[0]:
            return ok(f"the first episode ended after {steps:,} steps{', truncated' * bool(obs.truncated[0])}")
    if effort.is_quick:
        return skipped(f"no episode ended in {steps:,} steps; the whole check looks further")
    return failed(f"no episode ended in {steps:,} steps: give it a step limit that truncates")


def _limits(subject: Subject) -> dict[str, int]:
    """What looks like a step limit among the environment's parameters and attributes."""
    if subject.is_compiled:
        values: dict[str, Any] = dict(subject.description.values)
    else:
        values = dict(vars(subject.make()))
    return {
        name: int(value)
        for name, value in values.items()
        if isinstance(value, int | np.integer) and not isinstance(value, bool) and _LIMIT_NAME.search(name.lower())
    }
