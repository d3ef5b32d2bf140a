"""Episodes are counted from outside: an episode's length is its number of steps."""

import numpy as np

from entity_gym import Observation
from entity_gym.batch.batching import batch_observations
from entity_gym.batch.vec_obs import VecObs
from entity_gym.pools.episodes import Episode, EpisodeTracker
from entity_gym.pools.pool import ListEnv
from entity_gym.spaces import ObsSpace
from tests.entity_gym.compiled.comparing import play_pool
from tests.entity_gym.compiled.worlds import Everything
from tests.worlds import Script, making


def step(*observations: Observation) -> VecObs:
    return batch_observations(observations, ObsSpace(), {})


def test_the_first_episode_is_as_long_as_the_others() -> None:
    # three steps of reward 1 each; `reset`, and the reward it shows, are no step. The ancestor counted 4 and then 3.
    first, going, last = Observation(reward=100), Observation(reward=1), Observation(reward=1, done=True)
    env = ListEnv(making(Script([first, going, going, last])), 1)
    env.reset()
    tracker = EpisodeTracker(1)
    ended = [tracker.step(env.act({})) for _ in range(6)]
    assert ended == [[], [], [Episode(0, 3.0, 3, False)], [], [], [Episode(0, 3.0, 3, False)]]


def test_some_of_the_environments_in_any_order_are_counted_as_all_of_them_are() -> None:
    tracker, both = EpisodeTracker(2), np.array([1, 0])
    part = step(Observation(reward=10), Observation(reward=1, done=True))
    part.env_id = both
    assert tracker.step(part) == [Episode(0, 1.0, 1, False)]
    part = step(Observation(reward=20, done=True))
    part.env_id = both[:1]
    assert tracker.step(part) == [Episode(1, 30.0, 2, False)]
    assert tracker.rewards.tolist() == [0, 0] and tracker.lengths.tolist() == [0, 0]


def test_rewards_add_up_without_the_rounding_of_float32() -> None:
    tracker = EpisodeTracker(1)
    tracker.step(step(Observation(reward=2.0**24)))
    (episode,) = tracker.step(step(Observation(reward=1.0, done=True)))
    assert episode.reward == 2**24 + 1


def test_a_restored_tracker_goes_on_where_it_was() -> None:
    tracker = EpisodeTracker(1)
    tracker.step(step(Observation(reward=1)))
    state = tracker.state()
    tracker.step(step(Observation(reward=50, done=True)))
    tracker.load_state(state)
    assert tracker.step(step(Observation(reward=2, done=True))) == [Episode(0, 3.0, 2, False)]
    other = EpisodeTracker(1)
    other.load_state(state)  # the saved state is not what the first one counted on in
    assert other.step(step(Observation(done=True))) == [Episode(0, 1.0, 2, False)]


def test_episodes_of_a_compiled_pool_are_numbered_from_its_first_environment_and_come_with_their_reports() -> None:
    tracker, ended = EpisodeTracker(6, first_env=100), []
    for obs in play_pool(Everything, steps=80, compile=False):
        episodes = tracker.step(obs)
        assert [episode.env_id - 100 for episode in episodes] == np.flatnonzero(obs.done).tolist()
        assert [episode.info for episode in episodes] == list(obs.end_of_episode_info.values())
        running = np.flatnonzero(~obs.done)
        assert all(obs.end_of_episode_info.get(env, "none") == "none" for env in running.tolist())
        ended += episodes
    assert len(ended) > 10 and {type(value) for episode in ended for value in episode[:4]} == {int, float, bool}
