"""Something that looks like an action mask and closes nothing draws one warning; masks that are used draw none."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("pettingzoo")
pytest.importorskip("dm_env")

from dm_env import specs  # noqa: E402
from gymnasium import spaces  # noqa: E402

from entity_gym.actions.choices import random_actions  # noqa: E402
from entity_gym.bridges import from_dm_env, from_gymnasium, from_pettingzoo  # noqa: E402
from entity_gym.bridges.gymnasium.incoming import GymnasiumEnvironment  # noqa: E402
from entity_gym.pools.pool import ListEnv  # noqa: E402
from tests.entity_gym.bridges.gym_worlds import Shows  # noqa: E402
from tests.entity_gym.bridges.herds import Herd  # noqa: E402
from tests.entity_gym.bridges.test_dm_in import Walk  # noqa: E402
from tests.entity_gym.bridges.test_pettingzoo_turns import Nim  # noqa: E402

BOX = spaces.Box(0, 9, (1,), np.float32)
WITH_MASK = spaces.Dict({"place": BOX, "action_mask": spaces.MultiBinary(2)})
PLACE, MASKED_PLACE = np.zeros(1, np.float32), {"place": np.zeros(1, np.float32), "action_mask": np.ones(2, np.int8)}
VIEW = {"entities": {"Agent": {"features": {"place": ["x"]}}}, "actor": "Agent", "action_mask": "action_mask"}


def plain(*infos: dict[str, Any]) -> Callable[[], Shows]:
    """Makes worlds whose reset and first steps have these infos."""
    return lambda: Shows(BOX, [PLACE] * 5, infos=[*infos, *[{}] * 5])


class WithMethod(Shows):
    def __init__(self) -> None:
        super().__init__(BOX, [PLACE] * 5)

    def action_masks(self) -> Any:
        return np.ones(2, np.bool_)


class TellsHerd(Herd):
    info: str = "valid_actions"

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        observations, infos = super().reset(seed, options)
        return observations, {agent: {self.info: [0]} for agent in infos}


class MaskedWalk(Walk):
    def shown(self) -> Any:
        return {**super().shown(), "legal_actions": np.ones(2, np.int64)}

    def observation_spec(self) -> Any:
        return {**super().observation_spec(), "legal_actions": specs.Array((2,), np.int64)}


def warned(pool: Any) -> list[str]:
    """The warnings of an episode and the next."""
    with warnings.catch_warnings(record=True) as caught, pool:
        warnings.simplefilter("always")
        obs, rng = pool.reset(), np.random.default_rng(0)
        for _ in range(6):
            obs = pool.act(random_actions(obs, rng, pool.action_space()))
        pool.reset(7)
    return [str(each.message) for each in caught if "mask" in str(each.message)]


@pytest.mark.parametrize(
    ("make", "name", "found"),
    [
        (lambda: from_gymnasium(plain({"valid_actions": [0]}), 3), "Shows", "info['valid_actions']"),
        (lambda: from_gymnasium(plain({}, {"action_masks": [1, 1]}), 3), "Shows", "info['action_masks']"),
        (lambda: from_gymnasium(plain({"legal_moves": 1}), 3, executor="thread"), "Shows", "info['legal_moves']"),
        (lambda: from_gymnasium(WithMethod, 3), "WithMethod", "action_masks()"),
        (
            lambda: from_gymnasium(WithMethod, 3, wrappers=["gymnasium.wrappers:TimeLimit(max_episode_steps=3)"]),
            "WithMethod",
            "action_masks()",
        ),
        (
            lambda: from_gymnasium(lambda: Shows(WITH_MASK, [MASKED_PLACE] * 5), 3),
            "Shows",
            "observation['action_mask']",
        ),
        (lambda: ListEnv(lambda: GymnasiumEnvironment(WithMethod()), 3), "WithMethod", "action_masks()"),
        (lambda: from_pettingzoo(TellsHerd, 3), "herd_v0", "info['valid_actions']"),
        (lambda: from_dm_env(MaskedWalk, 3), "MaskedWalk", "observation['legal_actions']"),
    ],
)
def test_a_mask_that_closes_nothing_draws_one_warning(make: Callable[[], Any], name: str, found: str) -> None:
    (message,) = warned(make())
    assert re.match(
        rf"{name}: {re.escape(found)} looks like an action mask, and closes nothing.* are closed by", message
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: from_gymnasium(plain({"action_mask": np.ones(2, np.int8), "valid_actions": [0, 1]}), 3),
        lambda: from_gymnasium(plain({"masked": 1, "actions": 2, "mask": 3}), 3),
        lambda: from_gymnasium(lambda: Shows(WITH_MASK, [MASKED_PLACE] * 5), 3, view=VIEW),
        lambda: from_pettingzoo(Nim, 3),
        lambda: from_pettingzoo(lambda: Nim(masks="info"), 3),
        lambda: from_dm_env(Walk, 3),
    ],
)
def test_masks_that_are_used_draw_no_warning(make: Callable[[], Any]) -> None:
    assert warned(make()) == []
