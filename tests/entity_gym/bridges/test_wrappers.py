"""Wrappers by name, and observations that need one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium import spaces  # noqa: E402

from entity_gym.bridges import from_gymnasium, from_pettingzoo  # noqa: E402
from entity_gym.bridges.incoming import load_wrappers  # noqa: E402
from tests.entity_gym.bridges.gym_worlds import Shows  # noqa: E402
from tests.entity_gym.bridges.herds import Herd  # noqa: E402

LIMIT = "gymnasium.wrappers:TimeLimit(max_episode_steps=3)"


class Longer:
    """A wrapper of any environment, which shows what it was given."""

    def __init__(self, env: Any, name: str = "plain") -> None:
        self.env, self.name = env, name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.env, attribute)


def test_wrappers_are_put_around_each_environment_the_innermost_first() -> None:
    inner, outer = load_wrappers([LIMIT, f"{__name__}:Longer(name='outer')"])
    env = outer(inner(gymnasium.make("CartPole-v1").unwrapped))
    assert isinstance(env, Longer) and env.name == "outer"
    assert isinstance(env.env, gymnasium.wrappers.TimeLimit)
    pool = from_gymnasium("CartPole-v1", 2, wrappers=[LIMIT, "gymnasium.wrappers:TimeAwareObservation"])
    assert len(pool.obs_space().entities["Agent"].features) == 5
    herd = from_pettingzoo(Herd, wrappers=[lambda env: Longer(env, "herd")])
    assert herd.reset().features["wolf"].values.shape == (1, 3)


@pytest.mark.parametrize(
    ("wrappers", "message"),
    [
        (LIMIT, "expected a list, such as [my_pkg.my_wrappers:MyWrapper]"),
        (["TimeLimit"], "wrappers is 'TimeLimit'"),
        (["gymnasium.wrappers:TimeLimt"], "no class or function 'TimeLimt'"),
        (["gymnasium.wrappers:TimeLimit(3)"], "expected package.module:Name, or package.module:Name(size=3, ...)"),
        (["gymnasium.wrappers:TimeLimit(max_episode_steps=x)"], "with plain values"),
        (["gymnasium.wrappers:TimeLimit"], "the wrapper TimeLimit cannot be put around"),
        (["gymnasium.wrappers:TimeLimit(steps=3)"], "the wrapper TimeLimit cannot be put around"),
    ],
)
def test_a_wrapper_that_cannot_be_is_refused(wrappers: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        from_gymnasium("CartPole-v1", wrappers=wrappers)
    assert message in str(error.value)


def test_text_is_refused_with_the_wrapper_that_leaves_it_out() -> None:
    box = spaces.Box(-1, 1, (2,), np.float32)
    space = spaces.Dict({"image": box, "mission": spaces.Text(20), "direction": spaces.Discrete(4)})
    shown = [{"image": np.zeros(2, np.float32), "mission": "go", "direction": 1}] * 2
    with pytest.raises(
        ValueError, match="the observation space at 'mission' is a Text, .* in a wrapper such as "
    ) as error:
        from_gymnasium(lambda: Shows(space, shown))
    pool = from_gymnasium(lambda: Shows(space, shown), wrappers=[str(error.value).split("such as ")[1]])
    assert pool.reset().features["Agent"].values.tolist() == [[1, 0, 0]]
