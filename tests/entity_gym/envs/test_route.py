"""Route: minus the length of the closed tour through all cities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_gym.actions import SelectEntitiesAction
from entity_gym.environment import Observation
from entity_gym.envs.route import Route
from tests.entity_gym.compiled.view import CompiledView
from tests.entity_gym.envs.playing import resets, rows, started


def tour(env: CompiledView, cities: Sequence[int]) -> Observation:
    return env.act({"tour": SelectEntitiesAction([("Traveller", 0)], [[("City", city) for city in cities]])})


def square() -> CompiledView:
    """Four cities in the corners of a square, in turn, whose side is 0.5."""
    return started(Route(min_cities=4, max_cities=4), x=[0, 0.5, 0.5, 0], y=[0, 0, 0.5, 0.5])


@pytest.mark.parametrize(
    ("cities", "length"), [([0, 1, 2, 3], 2.0), ([2, 1, 0, 3], 2.0), ([0, 2, 1, 3], 1 + 2**0.5), ([1, 2, 3, 0], 2.0)]
)
def test_the_tour_pays_minus_its_length_and_leads_back_to_its_first_city(cities: list[int], length: float) -> None:
    end = tour(square(), cities)
    assert (end.reward, end.done, end.truncated) == (pytest.approx(-length), True, False)
    assert end.end_of_episode_info == {"num_cities": 4}


@given(num_cities=st.integers(3, 12), seed=st.integers(0, 2**31), data=st.data())
def test_where_a_tour_begins_and_which_way_it_goes_does_not_matter(
    num_cities: int, seed: int, data: st.DataObject
) -> None:
    world = Route(min_cities=num_cities, max_cities=num_cities)
    cities = data.draw(st.permutations(range(num_cities)))
    at = np.array(rows(started(world, seed).observe(), "City"))[cities]
    length = np.linalg.norm(at - np.roll(at, 1, axis=0), axis=1).sum()
    start = data.draw(st.integers(0, num_cities - 1))
    for same in (cities, cities[start:] + cities[:start], cities[::-1]):
        assert tour(started(world, seed), same).reward == pytest.approx(-length, rel=1e-5)


@pytest.mark.parametrize("cities", [[], [0, 1, 2]])
def test_a_tour_that_leaves_a_city_out_is_refused(cities: list[int]) -> None:
    with pytest.raises(ValueError, match="tour"):
        tour(square(), cities)


def test_numbers_of_cities_and_their_places_are_uniform() -> None:
    sizes, places = Counter[int](), []
    for env in resets(Route(min_cities=3, max_cities=5), 600):
        obs = env.observe()
        assert np.shape(obs.features["Traveller"]) == (1, 0)
        sizes[len(rows(obs, "City"))] += 1
        places += rows(obs, "City")
    assert sizes == {size: pytest.approx(200, abs=58) for size in (3, 4, 5)}  # 5 standard deviations
    assert len(rows(started(Route).observe(), "City")) == 20
    counts, _, _ = np.histogram2d(*np.array(places).T, bins=2, range=[(0, 1), (0, 1)])
    assert counts.sum() == len(places) and (abs(counts - len(places) / 4) < 5 * np.sqrt(len(places) * 3 / 16)).all()
