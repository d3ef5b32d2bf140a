"""Categories, angles and flags in compiled environments: declared, checked while running, and free where there are none."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from entity_gym import Angle, Category, Flag
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.compiled import Categorical, CompiledEnvironment, Entity
from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.pools.vec_env import VecEnv


class Table(CompiledEnvironment):
    """Shows what its parameters say: of two cards the second, and the world."""

    entities = {
        "Playing Card": Entity(["x", Flag("held"), Flag("seen"), Angle("turned"), Category("suit", 4)], max=3),
        "Wall": Entity(["x"], max=1),
    }
    global_features = ["time", Category("season", 4), Flag("night")]
    actions = {"turn": Categorical(["no", "yes"], actors="Playing Card")}
    parameters = {
        "x": 0.5, "held": 1.0, "seen": 0.0, "turned": -7.25, "suit": 3.0, "time": 2.5, "season": 0.0, "night": 1.0,
    }  # fmt: skip
    max_steps = 2

    def reset(s: Any) -> None:
        pass

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        return 0.0, False, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Playing_Card = 2
        for f in range(5):
            obs.Playing_Card[0, f] = 0.0
        obs.Playing_Card[1, 0] = s.x
        obs.Playing_Card[1, 1] = s.held
        obs.Playing_Card[1, 2] = s.seen
        obs.Playing_Card[1, 3] = s.turned
        obs.Playing_Card[1, 4] = s.suit
        obs.n.Wall = 1
        obs.Wall[0, 0] = 0.25
        obs.global_features[0] = s.time
        obs.global_features[1] = s.season
        obs.global_features[2] = s.night


def test_what_is_allowed_arrives_as_it_is() -> None:
    with ThreadedVecEnv(Table, 3, compile=False) as pool:
        obs = pool.reset(env_info=[{}, {"suit": 2.0, "held": 0.0}, {"night": 0.0}])
    cards = obs.features["Playing Card"].values.reshape(3, 2, 5)[:, 1].tolist()
    assert cards == [[0.5, 1, 0, -7.25, 3], [0.5, 0, 0, -7.25, 2], [0.5, 1, 0, -7.25, 3]]
    assert obs.features["__global__"].values.tolist() == [[2.5, 0, 1], [2.5, 0, 1], [2.5, 0, 0]]


def of_card(feature: str, wrong: str) -> str:
    return f"feature {feature!r} of entity 1 of type 'Playing Card' is {wrong}"


REFUSED = [
    ("suit", 4.0, of_card("suit", "4; a category of 4 must be a whole number from 0 to 3")),
    ("suit", 1.5, of_card("suit", "1.5; a category of 4 must be a whole number from 0 to 3")),
    ("held", 2.0, of_card("held", "2; a flag must be 0 or 1")),
    ("turned", -1e300, of_card("turned", "-inf; an angle must be a finite number that float32 can hold")),
    ("season", 7.0, "global feature 'season' is 7; a category of 4 must be a whole number from 0 to 3"),
    ("night", 0.5, "global feature 'night' is 0.5; a flag must be 0 or 1"),
    ("time", 1e300, "global feature 'time' is inf; features must be finite numbers that float32 can hold"),
]  # 1e300 is infinite as float32


def show_wrongly(pool: VecEnv, given: Mapping[str, float]) -> None:
    with np.errstate(over="ignore"):
        pool.reset(env_info=[given if i == 3 else {} for i in range(5)])


@pytest.mark.parametrize(("parameter", "value", "wrong"), REFUSED)
def test_a_refusal_names_environment_type_entity_feature_value_and_what_is_allowed(
    parameter: str, value: float, wrong: str
) -> None:
    check_refusal(parameter, value, wrong, compile=False)


def check_refusal(parameter: str, value: float, wrong: str, *, compile: bool) -> None:
    with ThreadedVecEnv(Table, 5, compile=compile) as pool:
        pool.slots.play_first = None  # which would find it before compiled code does
        with pytest.raises(ValueError) as caught:
            show_wrongly(pool, {parameter: value})
        assert str(caught.value) == f"Table (environment 3): {wrong}"
        pool.reset(env_info=[Table.parameters] * 5)  # and it goes on


def test_the_last_observation_of_an_episode_is_checked_as_well() -> None:
    stay = {"turn": RaggedBuffer.from_array(np.zeros((2, 2, 1), np.int64))}
    with ThreadedVecEnv(Table, 2, compile=False) as pool:
        pool.reset()
        pool.act(stay)
        pool.slots.slots["record"]["suit"][1] = 9.0
        with pytest.raises(ValueError, match=r"Table \(environment 1\): feature 'suit' .* is 9; a category of 4"):
            pool.act(stay)
