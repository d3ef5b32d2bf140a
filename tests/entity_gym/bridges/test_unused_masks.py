"""In PettingZoo, something that looks like an action mask and closes nothing draws one warning; masks that are used draw none."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pettingzoo")


from entity_gym.actions.choices import random_actions  # noqa: E402
from entity_gym.bridges import from_pettingzoo  # noqa: E402
from tests.entity_gym.bridges.herds import Herd  # noqa: E402
from tests.entity_gym.bridges.test_pettingzoo_turns import Nim  # noqa: E402


class TellsHerd(Herd):
    info: str = "valid_actions"

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        observations, infos = super().reset(seed, options)
        return observations, {agent: {self.info: [0]} for agent in infos}


def warned(pool: Any) -> list[str]:
    """The warnings of an episode and the next."""
    with warnings.catch_warnings(record=True) as caught, pool:
        warnings.simplefilter("always")
        obs, rng = pool.reset(), np.random.default_rng(0)
        for _ in range(6):
            obs = pool.act(random_actions(obs, rng, pool.action_space()))
        pool.reset(7)
    return [str(each.message) for each in caught if "mask" in str(each.message)]


def test_a_mask_that_closes_nothing_draws_one_warning() -> None:
    (message,) = warned(from_pettingzoo(TellsHerd, 3))
    assert re.match(r"herd_v0: info\['valid_actions'\] looks like an action mask, and closes nothing", message)


@pytest.mark.parametrize(
    "make", [lambda: from_pettingzoo(Nim, 3), lambda: from_pettingzoo(lambda: Nim(masks="info"), 3)]
)
def test_masks_that_are_used_draw_no_warning(make: Callable[[], Any]) -> None:
    assert warned(make()) == []
