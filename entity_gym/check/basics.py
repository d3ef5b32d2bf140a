"""Whether there is an environment at all, and whether what it shows fits its spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from entity_gym.actions import KINDS
from entity_gym.batch.saving import spaces_difference, spaces_to_dict
from entity_gym.check.blame import describe_error
from entity_gym.check.report import Outcome, failed, ok, warning
from entity_gym.check.subject import SEED, Subject, global_random
from entity_gym.check.trajectory import Spaces, Trajectory, record
from entity_gym.environment import Environment
from entity_gym.spaces import ObsSpace


def check_constructor(subject: Subject) -> Outcome:
    """An environment can be made."""
    subject.make()
    if subject.draws_too_early:
        return warning("__init__ uses self.rng, which is seeded only afterwards; use it in reset() and act()")
    return ok("a compiled environment" if subject.is_compiled else "a Python environment")


def check_spaces(subject: Subject) -> Outcome:
    """The spaces are what they must be, and always the same."""
    first, second = subject.make(), subject.make()
    spaces = _spaces_of(subject, first)
    if isinstance(spaces, Outcome):
        return spaces
    for whose, env in (("called again", first), ("of a second environment", second)):
        again = _spaces_of(subject, env)
        if isinstance(again, Outcome):
            return again
        changed = _changed(spaces, again)
        if changed:
            return failed(f"the spaces change: {whose}, {changed}")
    subject.learn_spaces(spaces)
    entities, actions = list(spaces.obs.entities), list(spaces.action)
    return ok(f"entities {', '.join(entities) or 'none'}; actions {', '.join(actions)}")


def _spaces_of(subject: Subject, env: Environment) -> Spaces | Outcome:
    with subject.watch.call():
        obs_space: Any = env.obs_space()
        action_space: Any = env.action_space()
    if not isinstance(obs_space, ObsSpace):
        return failed(f"obs_space() returned {obs_space!r:.200}; it must be an ObsSpace")
    if not isinstance(action_space, Mapping):
        return failed(
            f"action_space() returned {action_space!r:.200}; it must be a mapping from names to action spaces"
        )
    if not action_space:
        return failed("action_space() is empty: a policy needs at least one action")
    for name, space in action_space.items():
        if not isinstance(name, str) or type(space) not in KINDS.values():
            kinds = ", ".join(KINDS)
            return failed(f"action_space() has {name!r}: {space!r:.200}; names are texts, and spaces one of {kinds}")
    return Spaces(obs_space, action_space)


def _changed(before: Spaces, after: Spaces) -> str | None:
    return spaces_difference(spaces_to_dict(*before), spaces_to_dict(*after))


def check_reset(subject: Subject) -> Outcome:
    """A first observation comes, is not done, and fits the spaces."""
    pool = subject.pool(1)
    with subject.watch.call(), global_random(SEED):
        obs = pool.reset(SEED)
    acting = [name for name, mask in obs.action_masks.items() if mask.actors.items()]
    return ok(f"{obs.num_entities} entities; {', '.join(acting) or 'nobody'} to act")


def check_observations(subject: Subject) -> Outcome:
    """Random play: every observation, the last ones of episodes included, fits the spaces."""
    effort, pool = subject.effort, subject.pool()
    played = Trajectory(subject.spaces, SEED)
    try:
        with global_random(SEED):
            record(pool, subject.watch, seed=SEED, steps=effort.steps, seconds=effort.seconds, trajectory=played)
    except Exception as error:
        return failed(f"step {len(played) + 1} of random play with seed {SEED}: {describe_error(error)}")
    for env in pool.envs:
        after = _spaces_of(subject, env)
        changed = after.text if isinstance(after, Outcome) else _changed(subject.spaces, after)
        if changed:
            return failed(f"the spaces change while it is played: {changed}")
    subject.learn_trajectory(played)
    if not any(mask.actors.items() for obs in played.shown for mask in obs.action_masks.values()):
        return warning(f"nobody was offered an action in {len(played):,} steps")
    counts = [np.sum([buffer.size1() for buffer in obs.features.values()], axis=0) for obs in played.shown]  # (N,) each
    some = f"{np.mean(counts):.1f} entities each, {np.max(counts):.0f} at most"
    return ok(f"{len(played):,} random steps of {played.num_envs} environments, {some}")
