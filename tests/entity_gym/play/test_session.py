"""A session: an environment that is played step by step, and back."""

import pytest

from entity_gym import CategoricalActionMask, Environment, Observation, SelectEntityActionMask
from entity_gym.play.session import CannotGoBackError, Session
from entity_gym.pools.pool import ListEnv
from tests.entity_gym.check import broken
from tests.worlds import choose

STAY = {"step": [2], "look at": [1]}


class Unsaved(broken.Walk):
    """The same, and cannot be saved."""

    state, load_state = Environment.state, Environment.load_state


def walk(size: int = 6, *, saved: bool = True, seed: int = 0, **options: int) -> Session:
    kind = broken.Walk if saved else Unsaved
    return Session(lambda: kind(size, **options), seed, "Walk")


def moments(session: Session) -> tuple[int, int, float, float]:
    now = session.now
    return now.episode, now.step, now.total, float(now.frame.features["Walker"][0, 0])


either_way = pytest.mark.parametrize("saved", [True, False], ids=["with state()", "by playing it again"])


@either_way
def test_undo_goes_back_step_by_step_over_the_ends_of_episodes(saved: bool) -> None:
    session = walk(saved=saved, max_steps=2)
    seen = []
    for _ in range(3):
        while not session.ended:
            seen.append(moments(session))
            session.act(STAY)
        seen.append(moments(session))
        session.begin_episode()
    seen.append(moments(session))
    for expected in reversed(seen[:-1]):
        assert session.undo()
        assert moments(session) == expected
    assert not session.undo()
    assert moments(session) == seen[0]


@either_way
def test_what_comes_after_undo_is_what_would_have_come(saved: bool) -> None:
    session = walk(saved=saved, max_steps=1)
    session.act(STAY)
    session.begin_episode()
    expected = moments(session)
    session.undo()
    session.undo()
    session.act(STAY)
    session.begin_episode()
    assert moments(session) == expected


@either_way
def test_restart_goes_back_to_the_beginning_of_this_episode(saved: bool) -> None:
    session = walk(saved=saved, max_steps=3)
    for _ in range(3):
        session.act(STAY)
    session.begin_episode()
    first = moments(session)
    assert first[:3] == (2, 0, 0.0)
    session.act(STAY)
    session.act(STAY)
    assert session.restart()
    assert moments(session) == first
    assert not session.restart(), "the episode has only begun"


def test_an_environment_that_neither_saves_nor_repeats_itself_has_no_way_back() -> None:
    class Moody(Unsaved):
        moods = iter(range(10))

        def reset(self) -> Observation:
            super().reset()
            self.x = next(self.moods)
            return self.observe()

    session = Session(Moody, 0, "Moody")
    session.act(STAY)
    with pytest.raises(CannotGoBackError, match="Moody cannot be saved, and does not repeat itself"):
        session.undo()
    assert moments(session)[:2] == (1, 1)
    session.act(STAY)
    assert moments(session)[:2] == (1, 2)


def test_the_same_seed_is_environment_0_of_a_pool_with_that_seed() -> None:
    for seed in range(4):
        obs = ListEnv(broken.Walk, 2, seed).reset()
        assert walk(seed=seed).vec_obs().features["Walker"].values[0, 0] == obs.features["Walker"].values[0, 0]


def test_rewards_add_up_over_an_episode() -> None:
    session = walk()
    assert moments(session) == (1, 0, 0.0, 4.0)
    session.act({"step": [1], "look at": [1]})
    assert moments(session) == (1, 1, 1.0, 5.0) and session.ended
    session.begin_episode()
    assert moments(session)[:3] == (2, 0, 0.0)


def test_actions_that_are_not_offered_are_refused() -> None:
    session = walk(seed=11)
    with pytest.raises(
        ValueError, match="action 'step' of entity 0 is 0; expected a choice below 3 that is not masked"
    ):
        session.act({"step": [0], "look at": [1]})


def test_an_observation_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Walk \(environment 0\): feature 'x' of entity 0 of type 'Walker' is nan"):
        Session(broken.ShowsNaN, 0, "Walk").act(STAY)
    with pytest.raises(ValueError, match=r"reset\(\) returned .*; expected an Observation that is not done"):
        Session(broken.DoneAtReset, 0, "Walk")


def test_a_last_observation_is_read_without_its_actions_as_pools_read_it() -> None:
    class Leaves(broken.Walk):
        """The walker is gone at the end, and its actions are still offered."""

        def observe(self) -> Observation:
            obs = super().observe()
            if obs.done:
                obs.features, obs.ids = {}, {}
                obs.actions = {
                    "step": CategoricalActionMask(actor_ids=["walker"]),
                    "look at": SelectEntityActionMask(actor_ids=["walker"], actee_types=["Wall"]),
                }
            return obs

    with ListEnv(lambda: Leaves(max_steps=1), 1, 0, final_observations="all") as pool:
        pool.reset()
        last = pool.act(choose("step", [[2]]) | choose("look at", [[1]])).final
    session = Session(lambda: Leaves(max_steps=1), 0, "Leaves")
    session.act(STAY)
    shown = session.vec_obs()
    assert last is not None and session.ended
    for obs in (last, shown):
        assert len(obs.features["Walker"].values) == 0
        assert [len(mask.actors.values) for mask in obs.action_masks.values()] == [0, 0]
