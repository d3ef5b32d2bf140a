"""The ragged form of entity environments as `gymnasium.Env`s; what `out_worlds` show and pay is worked out by hand."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium import spaces  # noqa: E402

from entity_gym.bridges import to_gymnasium  # noqa: E402
from entity_gym.bridges.gymnasium.envs import RaggedEnv  # noqa: E402
from tests.entity_gym.bridges.form_worlds import Crowd, Hall  # noqa: E402
from tests.entity_gym.bridges.out_worlds import Yard, plain, yard_actions  # noqa: E402

Made = Callable[..., RaggedEnv]


@pytest.fixture
def ragged() -> Iterator[Made]:
    """`to_gymnasium(..., "ragged")`, compiled environments as ordinary Python; closes what it made."""
    made: list[Any] = []

    def make_one(env: Any, **options: Any) -> Any:
        if isinstance(env, str) or hasattr(env, "as_environment"):
            options.setdefault("compile", False)
        made.append(to_gymnasium(env, "ragged", **options))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


def test_a_ragged_environment_shows_as_many_rows_as_there_are_entities(ragged: Made) -> None:
    env = ragged(Yard)
    obs, info = env.reset()
    assert obs in env.observation_space
    assert plain(obs) == {
        "entities": {"Dog": [[10]], "Cat": [[1, 2], [3, 4]]},
        "counts": {"Dog": 1, "Cat": 2},
        "visible": {"Dog": [1], "Cat": [1, 1]},
        "global": [0],
        "actors": {"chase": [0], "bark": [0], "run": [0]},
        "action_mask": {"chase": [[0, 1], [0, 2]], "bark": [[1, 1, 0]], "gate": [1, 1]},
    }
    assert plain(info) == {"env_id": 0, "elapsed_step": 0, "replaced_actions": 0}

    # Cat 1 is at place 2 of the frame: 1000 for the gate, 200 for the cat, 10 for the bark and 2 for running.
    obs, reward, terminated, truncated, info = env.step(yard_actions([2], [1], [[0.5, 1.5]], 1))
    assert (reward, terminated, truncated, plain(info)["elapsed_step"]) == (1212.0, False, False, 1)
    assert obs in env.observation_space
    assert plain(obs) == {
        "entities": {"Dog": [[10], [0]], "Cat": [[1, 2], [3, 4]]},  # the second dog is hidden
        "counts": {"Dog": 2, "Cat": 2},
        "visible": {"Dog": [1, 0], "Cat": [1, 1]},
        "global": [1],
        "actors": {"chase": [0, 1], "bark": [0, 1], "run": [0, 1]},
        "action_mask": {
            "chase": [[0, 2], [0, 3], [1, 2], [1, 3]],
            "bark": [[1, 1, 0], [1, 1, 1]],
            "gate": [1, 1],
        },
    }
    # There are 4 entities, so 4 is nobody.
    _, reward, *_, info = env.step(yard_actions([4, 2], [0, 2], [[-2, 1], [2, 5]], 0))
    assert (reward, plain(info)["replaced_actions"]) == (26.0, 0)

    obs, _, terminated, truncated, info = env.step(yard_actions([3] * 3, [0] * 3, [[0, 1]] * 3, 0))
    assert (terminated, truncated, info["steps"]) == (False, True, 3)
    assert plain(obs["actors"]) == {"chase": [], "bark": [], "run": []}  # nobody acts after the end
    assert plain(obs["counts"]) == {"Dog": 3, "Cat": 2}
    assert obs in env.observation_space


def test_its_spaces_are_dicts_of_sequences(ragged: Made) -> None:
    env = ragged(Yard)
    obs, action = env.observation_space, env.action_space
    assert obs["entities"]["Cat"] == spaces.Sequence(spaces.Box(-np.inf, np.inf, (2,), np.float32), stack=True)
    assert obs["action_mask"]["bark"] == spaces.Sequence(spaces.MultiBinary((3,)), stack=True)
    assert action["bark"] == spaces.Sequence(spaces.Discrete(3), stack=True)
    low, high = np.array([-2, 1], np.float32), np.array([2, 5], np.float32)
    assert action["run"] == spaces.Sequence(spaces.Box(low, high), stack=True)
    assert action["gate"] == spaces.Discrete(2)
    assert list(action) == ["bark", "chase", "gate", "run"]


def test_missing_and_closed_numbers_are_replaced_and_counted_and_those_of_nobody_ignored(ragged: Made) -> None:
    env = ragged(Yard)
    env.reset()
    env.step(yard_actions([2], [1], [[0.5, 1.5]], 1))
    # Two dogs. Chasing: a dog at place 0 is not open, so it is cat 0; the second has no number. Barking: not loudly, so
    # softly; the second has no number. Running: nobody has numbers, so all run (0, 1). 100 for cat 0, and 2 for running.
    _, reward, *_, info = env.step(yard_actions([0], [2], [], 0))
    assert (reward, info["replaced_actions"]) == (102.0, 6)
    # Three dogs, and numbers for five.
    _, reward, *_, info = env.step(yard_actions([3] * 5, [0, 0, 0, 2, 2], [[0, 1]] * 5, 0))
    assert (reward, info["replaced_actions"]) == (103.0, 0)
    _, info = env.reset()
    assert info["replaced_actions"] == 0


def test_a_place_beyond_the_last_entity_counts_on_from_the_first(ragged: Made) -> None:
    env = ragged(Yard, run=False)
    env.reset()
    # Places 0 dog, 1 and 2 cats, 3 nobody: 6 is 2, which is cat 1.
    _, reward, *_, info = env.step({"chase": [6], "bark": [0], "gate": 0})
    assert (reward, info["replaced_actions"]) == (200.0, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bark": [3]}, r"Yard \(environment 0\): action 'bark' of actor \d is 3; it must be from 0 to 2"),
        ({"bark": [-1]}, r"Yard \(environment 0\): action 'bark' of actor \d is -1; it must be from 0 to 2"),
        ({"chase": [-1]}, r"Yard \(environment 0\): action 'chase' of actor \d is -1; it must be from 0 to"),
        ({"bark": [0.5]}, "action 'bark' has shape .1,. and dtype float64; expected whole numbers"),
        ({"bark": 1}, r"action 'bark' has shape \(\)"),
        ({"bark": [[0, 0, 0]]}, r"action 'bark' has shape \(1, 3\)"),
        ({"gate": [0]}, r"action 'gate' has shape \(1,\)"),
        (
            {"run": [[0, 6]]},
            r"Yard \(environment 0\): action 'run' of actor 0: value 1 is 6.0; it must be a finite number from 1.0 to 5.0",
        ),
        ({"run": [[np.nan, 1]]}, "value 0 is nan"),
        ({"run": [[0, 1, 1]]}, r"action 'run' has shape \(1, 3\) .* expected numbers of shape \(1, 2\)"),
        ({"barks": [0]}, "unknown action 'barks'; .*did you mean 'bark'"),
    ],
)
def test_an_action_outside_the_ragged_space_is_named(ragged: Made, changes: dict[str, Any], message: str) -> None:
    env = ragged(Yard)
    env.reset()
    with pytest.raises(ValueError, match=message):
        env.step(yard_actions([1], [0], [[0, 1]], 0) | changes)
    with pytest.raises(ValueError, match="action 'chase' is missing"):
        env.step({})
    with pytest.raises(ValueError, match="expected a dictionary with"):
        env.step(3)
    assert env.step(yard_actions([1], [0], [[0, 1]], 0))[1] == 101.0  # and it goes on


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bark": [2]}, r"action 'bark' of actor 0 is 2, which is not open now; open are \[0, 1\]"),
        ({"chase": [0]}, r"action 'chase' of actor 0 is 0, which is not open now; open are \[1, 2, 3\]"),
        ({"chase": [4]}, r"action 'chase' of actor 0 is 4, which is not open now; open are \[1, 2, 3\]"),
        ({"bark": []}, r"action 'bark' has 0 rows, and 1 actors: give one for each, .* \['actors'\]\['bark'\]"),
        ({"run": [[0, 1], [0, 1]]}, "action 'run' has 2 rows, and 1 actors"),
    ],
)
def test_or_nothing_is_replaced_where_that_is_wanted(ragged: Made, changes: dict[str, Any], message: str) -> None:
    env = ragged(Yard, invalid_actions="raise")
    env.reset()
    with pytest.raises(ValueError, match=message):
        env.step(yard_actions([1], [0], [[0, 1]], 0) | changes)
    assert env.step(yard_actions([3], [1], [[0, 1]], 0))[1] == 11.0  # 3 is nobody


def test_a_ragged_environment_has_no_limit(ragged: Made) -> None:
    env = ragged(Yard, run=False, max_steps=60, most=50)
    env.reset()
    for _ in range(55):
        obs = env.step(env.action_space.sample())[0]
        assert obs in env.observation_space
    assert len(obs["entities"]["Dog"]) == 50
    with pytest.raises(ValueError, match="max_entities is for form='padded'; there is no limit with form='ragged'"):
        ragged(Yard, max_entities={"Dog": 3, "Cat": 2})


def test_a_world_with_fixed_arrays_has_its_entities_in_the_ragged_form(ragged: Made) -> None:
    obs, info = ragged(Crowd).reset()
    assert plain(obs["entities"]) == {"Player": [[0], [1]]}
    assert plain(info["weather"]) == {"wind": [0.5, 0]}
    assert plain(info["players"]) == {"strength": [7, 8]}
    assert plain(ragged("CartPole-v1").reset(seed=3)[0]["counts"]) == {"Cart": 1}


def test_entities_without_features_are_counted(ragged: Made) -> None:
    obs, _ = ragged(Hall).reset()
    assert obs["counts"]["Lamp"] == 1
    assert "Lamp" not in obs["entities"]
    # Two doors, one guest, the lamp: places 0, 1, 2 and 3. Doors and the lamp can be entered.
    assert plain(obs["actors"]["enter"]) == [2]
    assert plain(obs["action_mask"]["enter"]) == [[0, 0], [0, 1], [0, 3]]
