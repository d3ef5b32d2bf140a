"""Constructors of other libraries' environments are found, checked, wrapped and named alike by every bridge."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("pettingzoo")
pytest.importorskip("dm_env")


from entity_gym.bridges import from_dm_env, from_gymnasium, from_pettingzoo  # noqa: E402
from entity_gym.bridges.incoming import Constructor, load_wrappers  # noqa: E402
from tests.entity_gym.bridges.gym_worlds import Line  # noqa: E402
from tests.entity_gym.bridges.herds import Herd  # noqa: E402
from tests.entity_gym.bridges.test_dm_in import Walk  # noqa: E402
from tests.entity_gym.bridges.test_tuple_agents import Pair  # noqa: E402

BRIDGES = (from_gymnasium, from_dm_env, from_pettingzoo)

WORLDS = """
import collections as np
from fractions import Fraction

def _hidden(): ...

class Rich:
    def __init__(self, size=2):
        if size == 0:
            raise ZeroDivisionError("size is no divisor")
        if size == 1:
            import dm_env
"""


@pytest.fixture(autouse=True)
def worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules to import from."""
    (tmp_path / "rich_worlds.py").write_text(WORLDS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rich_worlds", raising=False)


def find(bridge: Callable[..., Any], name: str) -> str | Any:
    """`name` as the bridge takes it: `from_dm_env` has no names, so what finds them for the trainer stands in."""
    if bridge is from_dm_env:
        from entity_gym.bridges.dm_env.incoming import DmConstructor

        return DmConstructor(name, {}, "the environment")
    return bridge(name)


@pytest.mark.parametrize("bridge", BRIDGES)
def test_what_a_module_does_not_have_is_told_with_what_it_has(bridge: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"rich_worlds has no class or function 'Rihc'; .* did you mean 'Rich'\?$"):
        find(bridge, "rich_worlds:Rihc")


@pytest.mark.parametrize("bridge", BRIDGES)
def test_arguments_that_do_not_fit_are_told_with_those_that_would(bridge: Callable[..., Any]) -> None:
    from rich_worlds import Rich  # type: ignore[import-not-found]

    with pytest.raises(
        ValueError, match=r"the arguments \{'sise': 3\} do not fit Rich\(size=2\): .*unexpected .*'sise'"
    ):
        bridge(Rich, sise=3)


@pytest.mark.parametrize("bridge", BRIDGES)
def test_what_is_raised_while_an_environment_is_made_says_whose(bridge: Callable[..., Any]) -> None:
    from rich_worlds import Rich

    with pytest.raises(ZeroDivisionError) as caught:
        bridge(Rich, size=0)
    assert caught.value.__notes__ == ["raised by Rich when it was made"]


def test_an_environment_whose_library_is_missing_when_it_is_made_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "dm_env", None)
    make = Constructor("rich_worlds:Rich", {"size": 1}, "the environment")
    with pytest.raises(ValueError, match=r'^rich_worlds:Rich cannot be made: .*pip install "enn-ppo\[dm\]"$'):
        make()


# ---- wrappers

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
        (["gymnasium.wrappers:TimeLimit(3)"], "expected package.module:Name, or package.module:Name(size=3, ...)"),
        (["gymnasium.wrappers:TimeLimit(steps=3)"], "the wrapper TimeLimit cannot be put around"),
    ],
)
def test_a_wrapper_that_cannot_be_is_refused(wrappers: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        from_gymnasium("CartPole-v1", wrappers=wrappers)
    assert message in str(error.value)


# ---- objects


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
    def __init__(self, limits: list[int]) -> None:
        super().__init__(limits.pop())


def test_every_environment_gets_lists_of_its_own() -> None:
    limits = [7]
    with from_gymnasium(Emptied, 3, limits=limits) as pool:
        assert len(pool.reset()) == 3
    assert limits == [7]
