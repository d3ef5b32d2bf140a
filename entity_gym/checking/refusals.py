"""Whether actions that were not offered are refused, and nothing is stepped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from entity_gym.checking.report import Outcome, failed, ok
from entity_gym.checking.subject import NUM_ENVS, SEED, Subject
from entity_gym.checking.trajectory import follow
from entity_gym.ragged import RaggedBufferI64
from entity_gym.sampling import random_actions
from entity_gym.threaded_env import ThreadedVecEnv
from entity_gym.vec_env import VecEnv
from entity_gym.vec_obs import VecCategoricalActionMask, VecObs

Actions = dict[str, RaggedBufferI64]
TRIED = 20  # steps


class Wrong(NamedTuple):
    """Actions with one thing wrong."""

    what: str
    actions: Actions


def check_refusals(subject: Subject) -> Outcome:
    """Actions that were not offered raise a ValueError in every pool, and leave the environments as they were."""
    problem = _refused_by(subject, subject.pool()) 
    return problem
