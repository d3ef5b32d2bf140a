"""Environments of other libraries: each is an object of its own, with lists and mappings of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("pettingzoo")
pytest.importorskip("dm_env")

from entity_gym.bridges import from_dm_env, from_gymnasium, from_pettingzoo  # noqa: E402
from tests.entity_gym.bridges.gym_worlds import Line  # noqa: E402
from tests.entity_gym.bridges.herds import Herd  # noqa: E402
from tests.entity_gym.bridges.test_dm_in import Walk  # noqa: E402
from tests.entity_gym.bridges.test_tuple_agents import Pair  # noqa: E402


def always(env: Any) -> Callable[[], Any]:
    return lambda: env


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: from_gymnasium(always(Line()), 2, wrappers=["gymnasium.wrappers:TimeLimit(max_episode_steps=3)"]), "Line"),
        (lambda: from_gymnasium(always(Pair()), 2), "Pair"),
        (lambda: from_pettingzoo(always(Herd()), 2), "Herd"),
        (lambda: from_dm_env(always(Walk()), 2), "Walk"),
    ],
)  # fmt: skip
def test_a_factory_that_returns_the_same_object_twice_is_refused(make: Callable[[], Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"returned the same {name} object twice; .* make a new one for each"):
        make()


class Emptied(Line):
    def __init__(self, limits: list[int], **kwargs: Any) -> None:
        super().__init__(limits.pop())


class Cut(gymnasium.Wrapper):  # type: ignore[misc, name-defined]
    def __init__(self, env: Any, limits: list[int]) -> None:
        super().__init__(env)
        self.limit = limits.pop()


@pytest.mark.parametrize(
    "make",
    [
        lambda limits: from_gymnasium(Emptied, 3, limits=limits),
        lambda limits: from_gymnasium("Emptied-v0", 3, limits=limits),
        lambda limits: from_gymnasium(Line, 3, wrappers=[f"{__name__}:Cut(limits={limits})"]),
    ],
)
def test_every_environment_gets_lists_of_its_own(make: Callable[[list[int]], Any], monkeypatch: Any) -> None:
    registered = {**gymnasium.registry, "Emptied-v0": gymnasium.envs.registration.EnvSpec("Emptied-v0", Emptied)}
    monkeypatch.setattr("gymnasium.envs.registration.registry", registered)
    limits = [7]
    with make(limits) as pool:
        assert len(pool.reset()) == 3
    assert limits == [7]
