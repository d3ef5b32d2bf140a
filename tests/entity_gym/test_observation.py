"""Observations by themselves: defaults, and parts that do not go together."""

import pytest

from entity_gym import CategoricalActionMask, Observation, SelectEntityActionMask


def test_an_empty_observation_shows_nothing_and_goes_on() -> None:
    obs = Observation()
    assert (dict(obs.features), dict(obs.actions), obs.reward, obs.done, obs.truncated) == ({}, {}, 0.0, False, False)


def test_two_empty_observations_share_nothing() -> None:
    first, second = Observation(), Observation()
    first.features["A"] = [[1.0]]  # type: ignore[index]
    assert second.features == {}


def test_a_truncated_observation_is_done() -> None:
    with pytest.raises(ValueError, match=r"truncated=True, done=False.*done must be True"):
        Observation(truncated=True)
    assert Observation(done=True, truncated=True).done


def test_actors_are_given_by_id_or_by_type() -> None:
    with pytest.raises(
        ValueError, match=r"CategoricalActionMask was given both actor_ids=\[1\] and actor_types=\['A'\]"
    ):
        CategoricalActionMask(actor_ids=[1], actor_types=["A"])
    with pytest.raises(ValueError, match="SelectEntityActionMask was given both actor_ids"):
        SelectEntityActionMask(actor_ids=[], actor_types=[])


def test_actees_are_given_by_id_or_by_type() -> None:
    with pytest.raises(ValueError, match=r"both actee_ids=\[2\] and actee_types=\['B'\]; give one"):
        SelectEntityActionMask(actor_ids=[1], actee_ids=[2], actee_types=["B"])
