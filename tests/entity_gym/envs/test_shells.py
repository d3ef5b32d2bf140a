"""Shells: ids alone tell which shell was marked."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_gym.actions import SelectEntityAction, SelectEntityActionMask
from entity_gym.environment import Observation
from entity_gym.envs.shells import Shells
from tests.entity_gym.compiled.view import CompiledView
from tests.entity_gym.envs.playing import resets, rows, started


def marked(obs: Observation) -> list[object]:
    """The ids of the shells that show a mark."""
    return [id for id, (_, is_marked) in zip(obs.ids["Shell"], rows(obs, "Shell"), strict=True) if is_marked]


def shuffled(env: CompiledView) -> list[Observation]:
    """The observations up to the one that asks."""
    seen = [env.observe()]
    while "pick" not in seen[-1].actions:
        seen.append(env.act({}))
    return seen


def pick(env: CompiledView, shell: object) -> Observation:
    return env.act({"pick": SelectEntityAction([("Player", 0)], [shell])})


@given(
    least=st.integers(2, 16),
    more=st.integers(0, 14),
    num_shuffles=st.integers(1, 10),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_the_marked_shell_is_shown_once_and_pays_one(
    least: int, more: int, num_shuffles: int, seed: int, data: st.DataObject
) -> None:
    most = min(least + more, 16)
    env = started(Shells(min_shells=least, max_shells=most, num_shuffles=num_shuffles), seed)
    seen = shuffled(env)
    assert len(seen) == 1 + num_shuffles
    shells = len(seen[0].ids["Shell"])
    assert least <= shells <= most
    for obs in seen:
        assert sorted(place for place, _ in rows(obs, "Shell")) == list(range(shells))
        assert set(obs.ids["Shell"]) == {("Shell", i) for i in range(shells)}
        assert (obs.reward, obs.done) == (0.0, False)
    assert [len(marked(obs)) for obs in seen] == [1] + [0] * num_shuffles
    mask = seen[-1].actions["pick"]
    assert isinstance(mask, SelectEntityActionMask)
    assert mask.actee_ids is not None and set(mask.actee_ids) == set(seen[-1].ids["Shell"])
    shell = data.draw(st.sampled_from(list(seen[-1].ids["Shell"])))
    end = pick(env, shell)
    assert (end.reward, end.done, end.truncated) == (float([shell] == marked(seen[0])), True, False)
    assert end.end_of_episode_info == {"num_shells": shells}


def test_places_and_order_at_the_end_tell_nothing_about_the_mark_and_numbers_of_shells_are_uniform() -> None:
    found, sizes = Counter[tuple[str, float]](), Counter[int]()
    for env in resets(Shells(min_shells=3, max_shells=3), 900):
        seen = shuffled(env)
        [shell] = marked(seen[0])
        row = list(seen[-1].ids["Shell"]).index(shell)
        found.update([("row", row), ("place", rows(seen[-1], "Shell")[row][0]), ("id", shell[1])])  # type: ignore[index]
    each = {(what, i): pytest.approx(300, abs=71) for what in ("row", "place", "id") for i in range(3)}
    assert found == each  # 5 standard deviations
    sizes.update(int(env.record.num_shells) for env in resets(Shells, 800))
    assert sizes == {size: pytest.approx(200, abs=62) for size in (3, 4, 5, 6)}


def test_places_and_order_are_dealt_anew_in_every_step() -> None:
    """In each step 1 of 720 permutations stays, so 200 steps have 0.28 of them on average."""
    env = started(Shells(min_shells=6, max_shells=6, num_shuffles=200))
    seen = shuffled(env)
    for dealt in ([tuple(obs.ids["Shell"]) for obs in seen], [places(obs) for obs in seen]):
        assert sum(first == second for first, second in pairwise(dealt)) <= 3


def places(obs: Observation) -> tuple[float, ...]:
    """The place of each shell, by its id."""
    dealt = dict(zip(obs.ids["Shell"], rows(obs, "Shell"), strict=True))
    return tuple(dealt["Shell", i][0] for i in range(len(dealt)))
