import pytest

from entity_gym.envs.multi_armed_bandit import MultiArmedBandit
from tests.entity_gym.envs.playing import act, episode, episodic_rewards, started


@pytest.mark.parametrize(("lever", "reward"), [("A", 1 / 32), ("B", 0), ("C", 0), ("D", 0), ("E", 0)])
def test_only_lever_a_pays(lever: str, reward: float) -> None:
    assert act(started(MultiArmedBandit), pull=lever).reward == reward


def test_pulling_a_in_every_step_scores_one() -> None:
    assert episodic_rewards(started(MultiArmedBandit), lambda obs: {"pull": "A"}, 2) == [1.0, 1.0]


def test_an_episode_counts_its_32_steps_and_ends_by_itself() -> None:
    seen = episode(started(MultiArmedBandit), lambda obs: {"pull": "B"})
    assert [list(obs.global_features) for obs in seen] == [[step] for step in range(33)]
    assert seen[-1].done and not seen[-1].truncated
    assert seen[-1].actions == {}


def test_the_lever_just_pulled_is_filled_and_the_bar_shows_the_time() -> None:
    env = started(MultiArmedBandit)
    act(env, pull="C")
    image = env.render()
    assert image.shape == (8 + 33, 161, 3)
    levers = [image[8 + 16, 32 * lever + 16].tolist() for lever in range(5)]
    assert levers.count(levers[0]) == 4 and levers[2] != levers[0]
    blue = (image[4] == [38, 110, 200]).all(axis=1)
    assert blue.sum() == round(161 / 32)
