"""The memory game of examples/matching_cards.py: its rules, perfect memory and none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_gym import Observation, SelectEntityAction
from examples.matching_cards import MatchingCards

Policy = Callable[[Observation, dict[int, int]], int]


def faces(obs: Observation) -> dict[int, int]:
    """Card -> the face that it shows; 0 is face down."""
    return dict(zip(obs.ids["Card"], np.ravel(obs.features["Card"]).astype(int).tolist(), strict=True))  # type: ignore[arg-type]


def started(num_pairs: int, seed: int) -> MatchingCards:
    env = MatchingCards(num_pairs)
    env.rng = np.random.default_rng(seed)
    return env


def take(env: MatchingCards, card: int) -> Observation:
    return env.act({"take": SelectEntityAction(["Player"], [card])})


def episode(env: MatchingCards, policy: Policy) -> list[Observation]:
    """The observations of an episode of a policy, which also gets the faces that were shown at first."""
    seen = [env.reset()]
    known = faces(seen[0])
    seen.append(env.act({}))
    while not seen[-1].done:
        seen.append(take(env, policy(seen[-1], known)))
    return seen


def perfect(obs: Observation, known: dict[int, int]) -> int:
    """The card that matches the one turned up, or any."""
    shown = faces(obs)
    for card, face in shown.items():
        if face:
            return next(other for other in shown if other != card and known[other] == face)
    return next(iter(shown))


def without_memory(obs: Observation, _: dict[int, int]) -> int:
    """The first card that is face down."""
    return next(card for card, face in faces(obs).items() if not face)


def test_two_cards_leave_together_and_pay_if_they_match() -> None:
    env = started(2, 0)
    first = env.reset()
    assert "take" not in first.actions and sorted(faces(first).values()) == [1, 1, 2, 2]
    env.faces = [1, 2, 1, 2]
    assert set(faces(env.act({})).values()) == {0}
    obs = take(env, 0)
    assert faces(obs) == {0: 1, 1: 0, 2: 0, 3: 0} and obs.reward == 0
    assert set(obs.actions["take"].actee_ids) == {1, 2, 3}  # type: ignore[union-attr, arg-type]
    obs = take(env, 2)
    assert (set(faces(obs)), obs.reward, obs.done) == ({1, 3}, 0.5, False)
    take(env, 3)
    obs = take(env, 1)
    assert (faces(obs), obs.reward, obs.done) == ({}, 0.5, True)


@given(num_pairs=st.integers(1, 16), seed=st.integers(0, 2**31))
def test_perfect_memory_scores_one_in_every_episode(num_pairs: int, seed: int) -> None:
    seen = episode(started(num_pairs, seed), perfect)
    assert len(seen) == 2 + 2 * num_pairs
    assert sum(obs.reward for obs in seen) == pytest.approx(1)


@pytest.mark.parametrize(("num_pairs", "chance"), [(1, 1), (2, 1 / 3), (4, 1 / 7)])
def test_without_memory_the_score_is_that_of_a_random_pairing(num_pairs: int, chance: float) -> None:
    env = started(num_pairs, 1)
    scores = [sum(obs.reward for obs in episode(env, without_memory)) for _ in range(2000)]
    assert np.mean(scores) == pytest.approx(chance, abs=1e-9 + 5 * np.std(scores) / 2000**0.5)
