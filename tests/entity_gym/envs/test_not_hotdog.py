from collections import Counter

import numpy as np
import pytest

from entity_gym.actions.choices import random_actions
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.environment import Observation
from entity_gym.envs.not_hotdog import NotHotdog
from entity_gym.pools.pool import SlotVecEnv
from entity_gym.pools.slots import SlotOptions
from tests.entity_gym.envs.playing import act, resets, rows, started


def shown(obs: Observation) -> tuple[list[list[float]], int]:
    """The object's features, and the number of hotdogs."""
    return rows(obs, "Object"), len(obs.features["Hotdog"])


@pytest.mark.parametrize(
    ("is_hotdog", "by_type", "expected"),
    [
        (True, True, ([], 1)),
        (True, False, ([[1.0]], 0)),
        (False, True, ([[0.0]], 0)),
        (False, False, ([[0.0]], 0)),
    ],
)
def test_a_hotdog_is_a_hotdog_or_an_object_that_is_one(
    is_hotdog: bool, by_type: bool, expected: tuple[list[list[float]], int]
) -> None:
    obs = started(NotHotdog, is_hotdog=is_hotdog, by_type=by_type).observe()
    assert shown(obs) == expected
    assert rows(obs, "Player") == [[0.0]]


@pytest.mark.parametrize("by_type", [True, False])
@pytest.mark.parametrize(
    ("is_hotdog", "answer", "reward"),
    [(True, "hotdog", 1), (True, "not_hotdog", 0), (False, "hotdog", 0), (False, "not_hotdog", 1)],
)
def test_the_labels_mean_what_they_say(by_type: bool, is_hotdog: bool, answer: str, reward: float) -> None:
    # An ancestor rewarded "hotdog" for what was none: its labels were in the other order than the numbers compared.
    obs = act(started(NotHotdog, is_hotdog=is_hotdog, by_type=by_type), classify=answer)
    assert obs.reward == reward
    assert obs.done and not obs.truncated
    assert rows(obs, "Player") == [[1.0]]


def test_the_three_sights_come_with_their_probabilities() -> None:
    seen = Counter(str(shown(env.observe())) for env in resets(NotHotdog, 1000))
    assert seen == {
        str(([], 1)): pytest.approx(250, abs=60),
        str(([[1.0]], 0)): pytest.approx(250, abs=60),
        str(([[0.0]], 0)): pytest.approx(500, abs=70),
    }


def test_nobody_is_ever_offered_the_unused_action() -> None:
    env = SlotVecEnv(CompiledSlots(NotHotdog, 8, SlotOptions(compile=False)))
    obs, rng = env.reset(), np.random.default_rng(0)
    for _ in range(5):
        assert obs.action_masks["unused_action"].actors.size1().tolist() == [0] * 8
        assert obs.action_masks["classify"].actors.size1().tolist() == [1] * 8
        obs = env.act(random_actions(obs, rng, env.action_space()))


def test_the_drawing_shows_the_thing_and_then_whether_the_answer_was_right() -> None:
    env = started(NotHotdog, is_hotdog=True)
    before = env.render()
    assert before.shape == (33, 65, 3)
    act(env, classify="hotdog")
    right = env.render()
    act(wrong := started(NotHotdog, is_hotdog=True), classify="not_hotdog")
    assert right[16, 48].tolist() == [30, 150, 90] and wrong.render()[16, 48].tolist() == [210, 40, 40]
    assert (before[:, :32] == right[:, :32]).all() and (
        before[16, 16] != started(NotHotdog, is_hotdog=False).render()[16, 16]
    ).any()
