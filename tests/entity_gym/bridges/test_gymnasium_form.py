"""The Gymnasium form; what `form_worlds` show and pay is worked out by hand."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium import spaces  # noqa: E402
from gymnasium.utils.env_checker import check_env, data_equivalence  # noqa: E402
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402
from gymnasium.wrappers.vector import RecordEpisodeStatistics  # noqa: E402

from entity_gym.bridges import to_gymnasium  # noqa: E402
from entity_gym.bridges.gymnasium.envs import (  # noqa: E402
    GymnasiumEnv,
    GymnasiumVectorEnv,
    observation_space,
)
from entity_gym.pools.pool import ListEnv  # noqa: E402
from entity_gym.registry import make, make_spec  # noqa: E402
from tests.entity_gym.bridges.form_worlds import Crowd, Hall  # noqa: E402
from tests.entity_gym.pools.kinds_of_pools import Counter  # noqa: E402

Made = Callable[..., GymnasiumVectorEnv]


@pytest.fixture
def vector() -> Iterator[Made]:
    """Makes vector environments, as ordinary Python, and closes them."""
    made: list[GymnasiumVectorEnv] = []

    def make_one(env: Any, num_envs: int = 2, **options: Any) -> GymnasiumVectorEnv:
        if isinstance(env, str) or hasattr(env, "as_environment"):
            options.setdefault("compile", False)
        made.append(make(env, num_envs, env_type="gymnasium", **options))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


def hall_actions(enter: list[list[int]], wave: list[list[int]], light: list[list[int]]) -> dict[str, np.ndarray]:
    return {"enter": np.array(enter), "wave": np.array(wave), "light": np.array(light)}


def plain(tree: Any) -> Any:
    return (
        {name: plain(branch) for name, branch in tree.items()} if isinstance(tree, dict) else np.asarray(tree).tolist()
    )


# ---- fixed arrays


def test_cart_poles_spaces_are_gymnasiums_own(vector: Made) -> None:
    ours, own = vector("CartPole-v1", 3), gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync")
    assert ours.single_observation_space == own.single_observation_space
    assert ours.observation_space == own.observation_space
    assert ours.single_action_space == own.single_action_space
    assert ours.action_space == own.action_space
    assert ours.spec.max_episode_steps == 500
    assert ours.spec.reward_threshold == own.spec.reward_threshold == 475


def test_cart_pole_returns_what_gymnasiums_own_vector_environment_returns(vector: Made) -> None:
    ours = vector("CartPole-v1", 4)
    own = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
    assert ours.metadata["autoreset_mode"] is own.metadata["autoreset_mode"]
    envs, rng = (ours, own), np.random.default_rng(0)
    for env in envs:
        assert env.reset(seed=1)[0] in env.observation_space
    ends = [0, 0]
    for _ in range(60):
        actions = rng.integers(2, size=4)
        results = [env.step(actions) for env in envs]
        for k, (obs, *_, info) in enumerate(results):
            assert obs in ours.observation_space
            if "final_obs" in info:
                ends[k] += 1
                assert info["final_obs"].dtype == object
                valid = info["_final_obs"]
                assert (
                    valid.tolist() == info["_final_info"].tolist() == [each is not None for each in info["final_obs"]]
                )
                assert all(each in ours.single_observation_space for each in info["final_obs"][valid])
        for mine, its in zip(results[0][:4], results[1][:4], strict=True):
            assert (mine.shape, mine.dtype) == (its.shape, its.dtype)
    assert min(ends) > 3


def test_keys_with_dots_are_nested_and_rows_of_players_stand_one_after_another(vector: Made) -> None:
    env = vector(Crowd, 2)
    obs, info = env.reset(options={"env_info": {"players": [3, 1]}})
    assert plain(obs) == {"players": {"view": [[0, 0], [1, 0], [2, 0], [0, 0]]}, "clock": [0, 0]}
    assert plain(info["players"]) == {"env_id": [0, 0, 0, 1], "strength": [7, 8, 9, 7]}
    assert plain(info["weather"]) == {"wind": [[0.5, 0.0], [0.5, 0.0]], "_wind": [True, True]}
    assert obs in env.observation_space
    assert plain(info["action_mask"]["hit"]) == [[[1, 1], [1, 1], [1, 1], [0, 0]], [[1, 1], [0, 0], [0, 0], [0, 0]]]

    # Both players of environment 0 but its second hit; environment 1 ends, since its only player leaves.
    obs, reward, terminated, truncated, info = env.step({"hit": np.array([[1, 0, 1, 1], [1, 1, 1, 1]])})
    assert reward.tolist() == [2.0, 1.0]
    assert (terminated.tolist(), truncated.tolist()) == ([False, True], [False, False])
    assert plain(obs) == {"players": {"view": [[0, 1], [1, 1], [0, 0]]}, "clock": [1, 0]}
    assert plain(info["players"]) == {"env_id": [0, 0, 1], "strength": [7, 8, 7]}
    assert info["final_obs"][0] is None
    assert plain(info["final_obs"][1]) == {"players": {"view": []}, "clock": 1}
    assert info["final_obs"][1] in env.single_observation_space
    assert plain(info["final_info"]["weather"]["wind"]) == [[0, 0], [0.5, 1]]
    assert plain(info["final_info"]["elapsed_step"]) == [0, 1]
    assert plain(info["final_info"]["_elapsed_step"]) == [False, True]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (["obs", "obs:a"], "'obs' is the whole of it"),
        (["obs:a", "obs:a.b"], "'obs:a.b' is no path of names, or leads through"),
        (["obs:a.b", "obs:a"], "'obs:a' is no path of names, or leads through"),
        (["obs:a..b"], "'obs:a..b' is no path of names"),
        (["view"], "these forms know 'obs', 'obs:...' and 'info:...'"),
        (["obs", "info:env_id"], "two values called 'env_id'"),
    ],
)
def test_names_of_arrays_that_cannot_be_are_refused(arrays: list[str], message: str) -> None:
    spec = make_spec(type("Misnamed", (Crowd,), {"arrays": {name: Crowd.arrays["obs:clock"] for name in arrays}}))
    with pytest.raises(ValueError, match=message):
        observation_space(spec)


# ---- padded entities


def test_entities_are_padded_and_hidden_ones_are_not_shown(vector: Made) -> None:
    obs, info = vector(Hall, 2).reset(options={"env_info": {"guests": [2, 1], "doors": [1, 3]}})
    assert plain(obs["entities"]) == {
        "Door": [[[10], [0], [0]], [[10], [11], [12]]],
        "Guest": [[[20, 0], [0, 0]], [[20, 0], [0, 0]]],  # the second guest of environment 0 is hidden
    }
    assert plain(obs["counts"]) == {"Door": [1, 3], "Guest": [2, 1], "Lamp": [1, 1]}
    assert plain(obs["visible"]) == {"Guest": [[1, 0], [1, 0]]}
    assert plain(obs["global"]) == [[0], [0]]
    # Rows: doors 0 to 2, guests 3 and 4, the lamp 5.
    assert plain(obs["actors"]) == {"enter": [[3, 4], [3, -1]], "wave": [[3, 4], [3, -1]]}
    assert plain(obs["action_mask"]) == {
        "enter": [[[1, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 1]], [[1, 1, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0]]],
        "wave": [[[1, 1, 0], [1, 1, 1]], [[1, 1, 0], [0, 0, 0]]],
        "light": [[[1, 1]], [[1, 1]]],
    }
    assert plain(info["elapsed_step"]) == [0, 0]


def test_actions_are_padded_and_entities_are_selected_by_their_rows(vector: Made) -> None:
    env = vector(Hall, 3)
    assert env.single_action_space == spaces.Dict(
        {
            "enter": spaces.MultiDiscrete([6, 6]),
            "wave": spaces.MultiDiscrete([3, 3]),
            "light": spaces.MultiDiscrete([2]),
        }
    )
    env.reset()
    # 100 * light + 10 * door + wave; the lamp counts as door 9; the second column belongs to nobody
    actions = hall_actions([[1, 77], [0, -1], [5, 0]], [[1, 2], [0, 2], [1, 0]], [[1], [0], [0]])
    assert env.step(actions)[1].tolist() == [111.0, 0.0, 91.0]


def test_an_action_that_is_not_open_becomes_the_next_open_one_and_is_counted(vector: Made) -> None:
    env = vector(Hall, 2)
    env.reset()
    # Environment 0: row 2 holds no door, 3 and 4 cannot be entered, so it is the lamp. Waving to the right becomes "no".
    # Environment 1: everything is open.
    _, reward, _, _, info = env.step(hall_actions([[2, 0], [0, 0]], [[2, 0], [1, 0]], [[0], [0]]))
    assert reward.tolist() == [90.0, 1.0]
    assert info["replaced_actions"].tolist() == [2, 0]
    _, _, _, _, info = env.step(hall_actions([[0, 0], [0, 0]], [[0, 0], [0, 0]], [[0], [0]]))
    assert info["replaced_actions"].tolist() == [0, 0]
    # In the last step of an episode the count belongs to that episode.
    _, _, _, truncated, info = env.step(hall_actions([[2, 0], [0, 0]], [[0, 0], [0, 0]], [[0], [0]]))
    assert truncated.all()
    assert info["replaced_actions"].tolist() == [0, 0]
    assert info["final_info"]["replaced_actions"].tolist() == [1, 0]


def test_or_it_is_refused(vector: Made) -> None:
    env = vector(Hall, 2, invalid_actions="raise")
    env.reset()
    with pytest.raises(
        ValueError,
        match=r"Hall \(environment 1\): action 'wave' of actor 0 is 2, which is not open now; open are \[0, 1\]",
    ):
        env.step(hall_actions([[0, 0], [0, 0]], [[0, 0], [2, 0]], [[0], [0]]))
    assert env.step(hall_actions([[0, 0], [0, 0]], [[0, 0], [1, 0]], [[0], [0]]))[1].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"wave": np.array([[3, 0], [0, 0]])},
            r"Hall \(environment 0\): action 'wave' of actor \d is 3; it must be from 0 to 2",
        ),
        (
            {"enter": np.array([[0, 0], [-1, 0]])},
            r"environment 1\): action 'enter' of actor \d is -1; it must be from 0 to 5",
        ),
        (
            {"wave": np.array([0, 0])},
            r"action 'wave' has shape \(2,\) and dtype int64; expected whole numbers of shape",
        ),
        ({"light": np.array([[0.0], [0.0]])}, "dtype float64; expected whole numbers"),
        ({"lights": np.array([[0], [0]])}, "unknown action 'lights'; .*did you mean 'light'"),
    ],
)
def test_an_action_outside_the_space_is_named(vector: Made, changes: dict[str, Any], message: str) -> None:
    env = vector(Hall, 2)
    env.reset()
    with pytest.raises(ValueError, match=message):
        env.step(hall_actions([[0, 0], [0, 0]], [[0, 0], [0, 0]], [[0], [0]]) | changes)
    with pytest.raises(ValueError, match="action 'enter' is missing"):
        env.step({})


def test_the_only_action_of_a_single_actor_is_a_plain_number(vector: Made) -> None:
    for name, number in (("Xor", 2), ("CherryPick", 129), ("Count", 10)):
        env = vector(name, 4)
        assert env.single_action_space == spaces.Discrete(number)
        assert env.action_space == spaces.MultiDiscrete([number] * 4)
        obs, _ = env.reset()
        (mask,) = obs["action_mask"].values()
        assert mask.shape == (4, number)
        for _ in range(3):  # masks are what the space takes to sample from
            action = np.array([env.single_action_space.sample(mask[i]) for i in range(4)])
            obs, *_, info = env.step(action)
            (mask,) = obs["action_mask"].values()
            assert not info.get("replaced_actions", np.zeros(4)).any()


def test_the_room_for_entities_can_be_chosen_and_is_kept_to(vector: Made) -> None:
    env = vector(Hall, 1, max_entities={"Door": 2, "Guest": 1})
    obs, _ = env.reset()
    assert plain(obs["entities"]) == {"Door": [[[10], [11]]], "Guest": [[[20, 0]]]}
    with pytest.raises(
        ValueError, match=r"Hall \(environment 0\) shows 3 entities of type 'Door'; there is room for 2"
    ):
        env.reset(options={"env_info": [{"doors": 3}]})


def test_a_python_environment_needs_to_be_told_how_many_there_can_be(vector: Made) -> None:
    with pytest.raises(ValueError, match=r"say it, for example max_entities=\{'Total': 10\}"):
        vector(Counter)
    env = vector(Counter, 2, max_entities={"Total": 1})
    assert env.single_action_space == spaces.Discrete(3)
    env.reset()
    obs, reward, *_ = env.step(np.array([2, 1]))
    assert (plain(obs["entities"]), reward.tolist()) == ({"Total": [[[2]], [[1]]]}, [2.0, 1.0])
    wide = vector(Counter, 2, max_entities={"Total": 4}, max_actors={"add": 1})
    assert wide.single_action_space == spaces.Discrete(3)


# ---- steps


def test_the_end_of_an_episode_is_reported_as_gymnasium_does(vector: Made) -> None:
    env = vector(Hall, 2)
    env.reset(options={"env_info": [{"max_steps": 2}, {"max_steps": 3}]})
    still = hall_actions([[0, 0], [0, 0]], [[0, 0], [0, 0]], [[1], [0]])
    assert "final_obs" not in env.step(still)[-1]
    obs, _, terminated, truncated, info = env.step(still)
    assert (terminated.tolist(), truncated.tolist()) == ([False, False], [True, False])
    assert plain(obs["global"]) == [[0], [2]]
    assert plain(info["final_obs"][0]["global"]) == [2]
    assert info["final_obs"][0] in env.single_observation_space
    assert info["final_obs"][1] is None
    assert info["_final_obs"].tolist() == info["_final_info"].tolist() == [True, False]
    assert info["final_info"]["light"].tolist() == [1, 0]  # `info` of the environment
    assert info["final_info"]["_light"].tolist() == [True, False]
    assert info["final_info"]["elapsed_step"].tolist() == [2, 0]
    assert (info["elapsed_step"].tolist(), info["env_id"].tolist()) == ([0, 2], [0, 1])


def test_one_environment_is_the_same_in_gymnasiums_own_vector_environment(vector: Made) -> None:
    def one() -> GymnasiumEnv:
        return to_gymnasium(
            "MineSweeper", "nested", compile=False, orbital_cannon=True, cooldown_period=1, max_episode_steps=9
        )

    own = SyncVectorEnv([one], autoreset_mode=AutoresetMode.SAME_STEP)
    ours = vector("MineSweeper", 1, orbital_cannon=True, cooldown_period=1, max_episode_steps=9)
    assert own.observation_space == ours.observation_space
    assert own.action_space == ours.action_space
    own.action_space.seed(0)
    results: list[Any] = [own.reset(seed=3), ours.reset(seed=3)]
    ends = 0
    for _ in range(60):
        assert data_equivalence(*results, exact=True)
        assert results[1][0] in ours.observation_space
        action = own.action_space.sample()
        results = [own.step(action), ours.step(action)]
        ends += "final_obs" in results[1][-1]
    assert ends > 5


def test_asynchronously_every_environment_has_the_same_trajectory(vector: Made) -> None:
    def action(ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
        return (3 * ids + steps // 2) % 2

    seen: dict[int, list[Any]] = {i: [] for i in range(4)}
    env = vector("CartPole-v1", 4, batch_size=2, seed=9, max_episode_steps=11, num_threads=2)
    env.async_reset()
    taken = np.zeros(4, np.int64)
    while min(len(frames) for frames in seen.values()) < 30:
        obs, reward, terminated, truncated, info = env.recv()
        ids = info["env_id"]
        assert len(ids) == 2
        for k, i in enumerate(ids.tolist()):
            final = info["final_obs"][k].tolist() if "final_obs" in info and terminated[k] | truncated[k] else None
            seen[i].append((obs[k].tolist(), reward[k], terminated[k], truncated[k], info["elapsed_step"][k], final))
        env.send(action(ids, taken[ids]), ids)
        taken[ids] += 1

    env = vector("CartPole-v1", 4, seed=9, max_episode_steps=11)
    obs, info = env.reset()
    for t in range(30):
        for i in range(4):
            assert seen[i][t][0] == obs[i].tolist()
            assert seen[i][t][4] == info["elapsed_step"][i]
            if "final_obs" in info and info["_final_obs"][i]:
                assert seen[i][t][5] == info["final_obs"][i].tolist()
        obs, _, _, _, info = env.step(action(np.arange(4), np.full(4, t)))


def test_gymnasiums_wrappers_take_it(vector: Made) -> None:
    env = RecordEpisodeStatistics(vector("MultiArmedBandit", 2, max_episode_steps=4))
    env.reset()
    for _ in range(4):
        *_, info = env.step(np.array([0, 1]))  # lever A pays 1 / 32, the others nothing
    assert info["episode"]["r"].tolist() == [0.125, 0.0]
    assert info["episode"]["l"].tolist() == [4, 4]


def test_reset_refuses_what_it_does_not_know(vector: Made) -> None:
    env = vector("Xor", 2)
    with pytest.raises(ValueError, match=r"options has \['reset_mask'\]; allowed: 'env_info'"):
        env.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ValueError, match=r"seed is \[1, 2\]; it must be one whole number"):
        env.reset(seed=[1, 2])  # type: ignore[arg-type]


def test_a_pool_without_last_observations_is_refused_when_one_is_needed() -> None:
    spec = make_spec(Counter, limit=1, env_type="gymnasium", max_entities={"Total": 1})
    env = GymnasiumVectorEnv(ListEnv(lambda: Counter(limit=1), 1, final_observations="none"), spec)
    env.reset()
    with pytest.raises(ValueError, match="final_observations='all'"):
        env.step(np.array([0]))
    env.close()


def test_images_are_drawn_where_a_render_mode_is_given(vector: Made) -> None:
    env = vector("CartPole-v1", 2, render_mode="rgb_array")
    env.reset()
    images = env.render()
    assert images is not None
    assert [(image.shape, image.dtype.name) for image in images] == [((121, 241, 3), "uint8")] * 2
    assert vector("CartPole-v1", 2).render() is None


def test_closing_closes_the_pool(vector: Made) -> None:
    env = vector("Xor", 2)
    env.close()
    env.close()
    with pytest.raises(ValueError, match="the pool is closed"):
        env.reset()


# ---- one environment


@pytest.mark.parametrize("name", ["CartPole-v1", "MineSweeper", "RockPaperScissors", "Skirmish"])
def test_every_environment_passes_gymnasiums_checker(name: str) -> None:
    env = to_gymnasium(name, "nested", compile=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env)
    env.close()
    # Most features have no bounds, which Gymnasium remarks upon.
    said = [str(each.message) for each in caught if "infinity" not in str(each.message)]
    assert said == []


def test_one_environment_returns_its_last_observation_and_then_wants_a_reset() -> None:
    env = to_gymnasium(Hall, "nested", compile=False, max_episode_steps=1)
    with pytest.raises(ValueError, match="no episode is running; call reset first"):
        env.step({})
    env.reset()
    action = {"enter": np.array([1, 0]), "wave": np.array([1, 0]), "light": np.array([1])}
    obs, reward, terminated, truncated, info = env.step(action)
    assert (plain(obs["global"]), reward, terminated, truncated) == ([1], 111.0, False, True)
    assert (info["light"], info["elapsed_step"], info["env_id"]) == (1, 1, 0)
    with pytest.raises(ValueError, match="no episode is running; call reset first"):
        env.step(action)
    obs, info = env.reset(options={"env_info": {"doors": 3}})
    assert (plain(obs["counts"]["Door"]), info["elapsed_step"]) == (3, 0)


def test_one_environment_shows_its_players_without_the_others() -> None:
    env = to_gymnasium(Crowd, "nested", compile=False)
    obs, info = env.reset()
    assert plain(obs) == {"players": {"view": [[0, 0], [1, 0]]}, "clock": 0}
    assert obs in env.observation_space
    assert plain(info["players"]) == {"env_id": [0, 0], "strength": [7, 8]}
