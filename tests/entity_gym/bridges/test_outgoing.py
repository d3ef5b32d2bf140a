"""Observations and actions of worlds as environments of other libraries; rows and rewards are worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("gymnasium")
pytest.importorskip("dm_env")

from entity_gym import make_dm, make_gym  # noqa: E402
from entity_gym.bridges import to_dm_env, to_gymnasium  # noqa: E402
from tests.entity_gym.bridges.out_worlds import (  # noqa: E402
    CHOICES,
    PACK_ROOM,
    ROOM,
    Depot,
    Hall,
    Packers,
    Runners,
    Yard,
)
from tests.entity_gym.pools.kinds_of_pools import Counter  # noqa: E402
from tests.entity_gym.pools.player_worlds import Duel  # noqa: E402


@dataclass
class Frame:
    """One environment's observation, reward, end, and number of replaced choices; numbers are as in `tolist()`."""

    observation: dict[str, Any]
    reward: float
    terminated: bool
    truncated: bool
    replaced: int


class Face:
    """A world as an environment of another library; `num_envs` environments of it are all told the same."""

    def __init__(self, make: Callable[..., Any], num_envs: int | None, env: Any, **options: Any) -> None:
        if isinstance(env, str) or hasattr(env, "as_environment"):
            options.setdefault("compile", False)
        self.num_envs = num_envs
        self.env = make(env, **options) if num_envs is None else make(env, num_envs, **options)
        self.is_dm = make in (to_dm_env, make_dm)

    def reset(self) -> Frame:
        return self._frame(self.env.reset())

    def step(self, action: Any) -> Frame:
        if self.num_envs is not None:
            action = (
                {name: np.stack([values] * self.num_envs) for name, values in action.items()}
                if isinstance(action, dict)
                else np.stack([action] * self.num_envs)
            )
        return self._frame(self.env.step(action))

    def _frame(self, told: Any) -> Frame:
        if self.is_dm:
            step_type, reward, discount, shown = told
            last = step_type == 2
            cut = discount == 1 if self.num_envs is not None else discount in (1, None)
            ends = (last & ~np.bool_(cut), last & np.bool_(cut)) if self.num_envs else (last and not cut, last and cut)
        else:
            shown, info = told[0], told[-1]
            reward, *ends = told[1:4] if len(told) > 2 else (0.0, False, False)
            if isinstance(info, dict) and "final_obs" in info:
                shown = {name: [each[name] for each in info["final_obs"]] for name in info["final_obs"][0]}
                info = info["final_info"]
            shown = {**shown, **{name: value for name, value in info.items() if name in ("replaced_actions",)}}
        plain = {
            name: np.array(array).tolist() for name, array in shown.items() if name not in ("env_id", "elapsed_step")
        }
        if self.num_envs is not None:
            assert all(array[0] == array[-1] for array in plain.values())
            plain = {name: array[0] for name, array in plain.items()}
        replaced = plain.pop("replaced_actions", 0)
        terminated, truncated = (bool(np.ravel(end)[0]) for end in ends)
        return Frame(plain, float(np.ravel(0.0 if reward is None else reward)[0]), terminated, truncated, replaced)


FACES: dict[str, tuple[Callable[..., Any], int | None]] = {
    "to_gymnasium": (to_gymnasium, None),
    "make_gym": (make_gym, 2),
    "to_dm_env": (to_dm_env, None),
    "make_dm": (make_dm, 2),
}
Made = Callable[..., Face]


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Iterator[Made]:
    """Makes worlds as environments of another library, and closes them."""
    made: list[Face] = []

    def make_one(env: Any, **options: Any) -> Face:
        made.append(Face(*FACES[request.param], env, **options))
        return made[-1]

    yield make_one
    for each in made:
        each.env.close()


# ---- observations


def test_entities_are_padded_hidden_ones_are_0_and_masks_say_what_is_open(face: Made) -> None:
    env = face(Yard, **CHOICES)
    chase, nobody = [0, 0, 0, 1, 1, 1], [0] * 6  # rows: three dogs, two cats; the last number is nobody
    assert env.reset().observation == {
        "entities/Dog": [[10], [0], [0]],
        "entities/Cat": [[1, 2], [3, 4]],
        "mask/Dog": [1, 0, 0],
        "mask/Cat": [1, 1],
        "global": [0],
        "actors/chase": [0, -1, -1],
        "actors/bark": [0, -1, -1],
        "action_mask/chase": [chase, nobody, nobody],
        "action_mask/bark": [[1, 1, 0], [0, 0, 0], [0, 0, 0]],
        "action_mask/gate": [[1, 1]],
    }
    shown = env.step(np.array([5, 0, 0, 0, 0, 0, 0])).observation
    assert shown["entities/Dog"] == [[10], [0], [0]] and shown["mask/Dog"] == [1, 0, 0]  # the second is hidden
    assert shown["actors/chase"] == [0, 1, -1] and shown["global"] == [1]


def test_a_compiled_world_declares_its_room_and_a_type_without_features_is_a_mask(face: Made) -> None:
    shown = face(Hall).reset().observation
    assert shown["entities/Door"] == [[10], [11], [0]] and shown["mask/Lamp"] == [1]
    assert "entities/Lamp" not in shown
    assert shown["actors/enter"] == [3, -1]  # behind three doors
    assert shown["action_mask/enter"] == [[1, 1, 0, 0, 0, 1], [0] * 6]  # the lamp is behind two guests


def test_the_room_for_entities_and_actors_can_be_chosen_and_is_kept_to(face: Made) -> None:
    with pytest.raises(ValueError, match=r"say it, for example max_entities=\{'Dog': 10, 'Cat': 10\}"):
        face(Yard)
    small = face(Yard, run=False, max_entities={"Dog": 1, "Cat": 2}, max_actors={"chase": 3, "bark": 3})
    small.reset()
    with pytest.raises(
        ValueError, match="Yard shows 2 entities or actors of 'Dog' at once; there is room for 1: see max_entities"
    ):
        small.step(np.zeros(7, int))
    few = face(Yard, **{**CHOICES, "max_actors": {"chase": 3, "bark": 1}})
    few.reset()
    with pytest.raises(ValueError, match="Yard shows 2 entities or actors of 'bark' at once; there is room for 1"):
        few.step(np.zeros(5, int))
    assert len(face(Hall, max_entities={"Door": 2, "Guest": 1}).reset().observation["mask/Door"]) == 2


# ---- actions


def test_an_action_is_one_array_and_entities_are_selected_by_their_rows(face: Made) -> None:
    env = face(Yard, **CHOICES)
    env.reset()
    # The first dog chases cat 1, which is in row 4, and barks normally; the gate is opened. The rest is ignored.
    assert env.step(np.array([4, 9, -5, 1, 7, 7, 1])).reward == 1210
    assert env.step(np.array([5, 3, 0, 0, 2, 0, 0])).reward == 20  # 5 is nobody; the second dog barks loudly
    last = env.step(np.zeros(7, int))
    assert (last.terminated, last.truncated) == (False, True)
    assert last.observation["mask/Dog"] == [1, 1, 0] and last.observation["actors/bark"] == [-1] * 3


def test_the_only_choice_of_the_only_actor_is_an_integer(face: Made) -> None:
    env = face(Counter, max_entities={"Total": 4}, max_actors={"add": 1})
    env.reset()
    frame = env.step(2)
    assert (frame.observation["entities/Total"], frame.reward) == ([[2], [0], [0], [0]], 2)


def test_continuous_actions_are_one_array_of_numbers_within_bounds(face: Made) -> None:
    env = face(Runners, max_entities={"Runner": 3}, max_actors={"run": 3})
    assert "action_mask/run" not in env.reset().observation
    assert env.step(np.array([0, 1, 2, 5, np.nan, -7])).reward == 8  # the third runner is not there
    for wrong, message in (
        ([0, 0, 2, 5, 0, 1], "'run' of actor 0: number '1' is 0.0; it must be a finite number from 1.0 to 5.0"),
        ([0, 1, np.nan, 5, 0, 1], "'run' of actor 1: number '0' is nan"),
        ([0, 1, 1e300, 5, 0, 1], "'run' of actor 1: number '0' is inf"),
    ):
        with pytest.raises(ValueError, match=message):
            env.step(np.array(wrong))
    alone = face(Runners, num=1, max_entities={"Runner": 1})
    alone.reset()
    assert alone.step(np.array([2.1, 1], np.float32)).reward == np.float32(3.1)  # 2.1, the bound, as float32 holds it


def test_a_world_with_choices_and_continuous_actions_takes_a_dictionary(face: Made) -> None:
    env = face(Yard, **ROOM)
    env.reset()
    action = {"chase": [4, 0, 0], "bark": [1, 0, 0], "run": [[0.5, 1.5], [0, 1], [0, 1]], "gate": [1]}
    assert env.step({name: np.array(values) for name, values in action.items()}).reward == 1212
    for changes, message in (
        (
            {"barks": [0]},
            r"the action has \[.*'barks'\]; expected numbers of these shapes: \{'chase': \(3,\), ",
        ),
        ({"run": [[0, 1, 1]]}, r"'run' has shape \(1, 3\) .*; expected numbers of shape \(3, 2\)"),
        ({"gate": [0.5]}, "'gate' has .* dtype float64; expected whole numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            env.step({name: np.array(values) for name, values in {**action, **changes}.items()})
    with pytest.raises(ValueError, match=r"the action has .*99.*; expected numbers of these shapes"):
        env.step(99)


def test_an_action_outside_the_space_is_named_and_nothing_has_happened(face: Made) -> None:
    env = face(Yard, **CHOICES)
    env.reset()
    for wrong, message in (
        ([0] * 2, r"numbers of \['chase', 'bark', 'gate'\], has shape \(2,\) .*expected whole numbers of shape \(7,\)"),
        ([0.0] * 7, "dtype float64; expected whole numbers"),
        ([3, 0, 0, 3, 0, 0, 0], r"Yard \(environment \d\): action 'bark' of actor 0 is 3; it must be from 0 to 2"),
        ([-1, 0, 0, 0, 0, 0, 0], "action 'chase' of actor 0 is -1; it must be from 0 to 5"),
    ):
        with pytest.raises(ValueError, match=message):
            env.step(np.array(wrong))
    assert env.step(np.array([5, 0, 0, 1, 0, 0, 0])).observation["global"] == [1]


def test_a_choice_that_is_not_open_becomes_the_next_open_one_and_is_counted(face: Made) -> None:
    env = face(Yard, **CHOICES, max_steps=2)
    env.reset()
    # The dog in row 0 cannot be chased: cat 0 is next. Not loudly, so softly.
    frame = env.step(np.array([0, 0, 0, 2, 0, 0, 0]))
    assert (frame.reward, frame.replaced) == (100, 2)
    # In the last step of an episode the count belongs to that episode; the second dog chases nobody.
    frame = env.step(np.array([5, 5, 0, 2, 0, 0, 0]))
    assert (frame.truncated, frame.reward, frame.replaced) == (True, 0, 1)
    assert env.reset().replaced == 0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), most=st.integers(1, 6))
def test_whatever_is_sampled_from_the_spaces_can_be_played(seed: int, most: int) -> None:
    for run in (False, True):
        env = to_gymnasium(Yard, run=run, most=most, max_entities={"Dog": most, "Cat": 2})
        env.action_space.seed(seed)
        env.reset()
        for _ in range(3):
            obs, *_, info = env.step(env.action_space.sample())
            assert obs in env.observation_space
            assert info["replaced_actions"] <= 2 * min(most, 3)


def test_several_players_act_in_one_frame(face: Made) -> None:
    env = face(Duel, max_entities={"Stone": 2, "Pawn": 2}, max_actors={"bid": 2})
    assert env.reset().observation["actors/bid"] == [2, 3]  # a pawn of each player
    assert env.step(np.array([2, 1])).reward == 2 + 1


# ---- sets


def test_a_set_has_a_number_for_each_row_and_its_mask_says_which_may_be_selected(face: Made) -> None:
    env = face(Packers, **PACK_ROOM)
    shown = env.reset().observation
    assert shown["actors/pack"] == [3, -1]
    assert shown["action_mask/pack"] == [[0, 1, 0, 0, 0, 1], [0] * 6]  # thing 0 is closed to porter 0
    first = env.step(np.array([0, 1, 0, 0, 0, 1] + [1] * 6))  # there is no second porter
    assert (first.reward, first.replaced) == (32, 0)  # as the world offered them
    assert first.observation["actors/pack"] == [3, 4]
    assert first.observation["action_mask/pack"] == [[0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]  # without the crate
    second = env.step(np.array([0, 1, 0, 0, 0, 0] + [1, 0, 0, 0, 0, 0]))
    assert (second.reward, second.replaced) == (1002, 0)
    last = env.step(np.array([0, 0, 0, 0, 0, 0] + [1, 0, 0, 0, 0, 1]))
    assert (last.reward, last.replaced, last.terminated) == (31000, 0, True)


def test_an_ordered_set_has_the_order_of_its_numbers_and_then_of_rows(face: Made) -> None:
    env = face(Packers, ordered=True, **PACK_ROOM)
    env.reset()
    for places, reward in (([0, 2, 0, 0, 0, 1], 32), ([0, 6, 0, 0, 0, 0], 2), ([0, 5, 0, 0, 0, 5], 23)):
        frame = env.step(np.array(places + [0] * 6))
        assert (frame.reward, frame.replaced) == (reward, 0)
        env.step(np.zeros(12, int))
        env.step(np.zeros(12, int))
        env.reset()


@pytest.mark.parametrize(
    ("options", "places", "reward", "replaced"),
    [
        ({}, [1, 1, 0, 1, 0, 0], 2, 2),  # thing 0 is closed, and row 3 is a porter
        ({"max": 1}, [0, 1, 0, 0, 0, 1], 2, 1),
        ({"min": 1}, [0] * 6, 2, 1),
        ({"min": 3}, [1, 0, 0, 0, 0, 0], 32, 3),  # all that are open, in place of one that is closed
        ({"ordered": True}, [1, 3, 0, 2, 0, 2], 32, 2),
        ({"ordered": True, "max": 2, "masked": False}, [2, 2, 0, 0, 0, 1], 31, 1),
        ({"ordered": True, "min": 2}, [0, 0, 0, 0, 0, 6], 32, 1),
        ({"ordered": True, "min": 3, "masked": False}, [0] * 6, 123, 3),
    ],
)
def test_a_set_that_is_not_open_becomes_one_that_is_and_the_rows_that_changed_are_counted(
    options: dict[str, Any], places: list[int], reward: float, replaced: int, face: Made
) -> None:
    env = face(Packers, **options, **PACK_ROOM)
    env.reset()
    frame = env.step(np.array(places + [0] * 6))
    assert (frame.reward, frame.replaced) == (reward, replaced)


def test_numbers_of_sets_out_of_bounds_are_refused(face: Made) -> None:
    for options, number, most in (({}, 2, 1), ({"ordered": True}, 7, 6), ({"ordered": True, "max": 2}, 3, 2)):
        env = face(Packers, **options, **PACK_ROOM)
        env.reset()
        with pytest.raises(
            ValueError, match=rf"'pack' of actor 0 is \[0 {number} 0 0 0 0\]; it must be from 0 to {most}"
        ):
            env.step(np.array([0, number, 0, 0, 0, 0] + [0] * 6))
        with pytest.raises(ValueError, match=r"shape \(11,\) .*expected whole numbers of shape \(12,\)"):
            env.step(np.zeros(11, int))


def test_sets_beside_continuous_actions_are_arrays_of_actors_and_rows(face: Made) -> None:
    env = face(Packers, others=True, max_entities=PACK_ROOM["max_entities"])
    env.reset()
    action = {"pack": [[0, 1, 0, 0, 0, 1]] + [[0] * 6] * 5, "call": [0] * 6, "walk": [[0.5]] * 6, "walk_to": [0] * 6}
    frame = env.step({name: np.array(values) for name, values in action.items()})
    assert (frame.reward, frame.replaced) == (32, 1)  # who walks to the left calls "high"


def test_sets_of_a_compiled_world(face: Made) -> None:
    env = face(Depot)
    shown = env.reset().observation
    assert shown["action_mask/load"] == [[0, 0, 1, 1, 0], [0, 0, 0, 1, 0]]
    frame = env.step(np.array([[0, 0, 2, 1, 0], [0, 0, 0, 4, 0]]).ravel())
    assert (frame.reward, frame.replaced) == (10012, 0)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    ordered=st.booleans(),
    least=st.integers(0, 3),
    more=st.none() | st.integers(1, 2),
    others=st.booleans(),
)
def test_whatever_sets_are_sampled_can_be_played_by_environments_in_different_steps(
    seed: int, ordered: bool, least: int, more: int | None, others: bool
) -> None:
    """Pools refuse sets that are not open."""
    options: dict[str, Any] = {"ordered": ordered, "min": least, "max": more and least + more, "others": others}
    with closing(make_gym(Packers, 3, **options, max_entities=PACK_ROOM["max_entities"])) as env:
        env.action_space.seed(seed)
        env.reset()
        for k in range(6):
            some = np.flatnonzero([True, k % 2 == 0, k % 3 == 0])
            sampled = env.action_space.sample()
            chosen = {name: each[some] for name, each in sampled.items()} if others else sampled[some]
            obs, *_ = env.step(chosen, some)
            assert all(
                {name: array[i] for name, array in obs.items()} in env.single_observation_space
                for i in range(len(some))
            )


# ---- many environments


def test_all_play_the_same_episodes() -> None:
    options: dict[str, Any] = {"max_episode_steps": 5, "orbital_cannon": True, "cooldown_period": 1, "seed": 3}
    space = to_gymnasium("MineSweeper", compile=False, **options).action_space
    space.seed(0)
    actions = [space.sample() for _ in range(40)]
    plays = []
    for make, num_envs in FACES.values():
        env = Face(make, num_envs and 1, "MineSweeper", **options)
        frames = [env.reset()]
        for action in actions:
            frames.append(env.step(action))
            if frames[-1].terminated or frames[-1].truncated:
                if make is to_gymnasium:
                    env.reset()
                elif env.is_dm:
                    env.step(action)  # is ignored after a last step
        env.env.close()
        plays.append(frames)
    assert sum(frame.terminated or frame.truncated for frame in plays[0]) > 7
    assert plays[0] == plays[1] == plays[2] == plays[3]


@pytest.mark.parametrize("make", [make_gym, make_dm])
def test_asynchronously_every_environment_has_the_same_trajectory(make: Callable[..., Any]) -> None:
    def rows(told: Any) -> Iterator[tuple[int, list[Any]]]:
        if make is make_dm:
            shown, others = (
                told.observation,
                (told.step_type, told.reward, told.discount, told.observation["elapsed_step"]),
            )
            ids = told.observation["env_id"]
        else:
            shown, ids = told[0], told[-1]["env_id"]
            others = (*told[1:4], told[-1]["elapsed_step"])
        for k, i in enumerate(ids.tolist()):
            final = [] if make is make_dm or "final_obs" not in told[-1] else [told[-1]["final_obs"][k]]
            ended = [None if each is None else each["entities/Cart"].tolist() for each in final]
            yield i, [shown["entities/Cart"][k].tolist(), *(each[k].item() for each in others), ended]

    options: dict[str, Any] = {"seed": 9, "max_episode_steps": 11, "compile": False}
    seen: list[list[Any]] = [[] for _ in range(4)]
    with closing(make("CartPole-v1", 4, batch_size=2, num_threads=2, **options)) as env:
        env.async_reset()
        while min(map(len, seen)) < 30:
            told = env.recv()
            ids = [i for i, _ in rows(told)]
            assert len(ids) == 2 or (make is make_dm and 0 < len(ids) < 4)  # episodes of dm_env begin by themselves
            for i, frame in rows(told):
                seen[i].append(frame)
            env.send(np.array(ids) % 2, ids)
    with closing(make("CartPole-v1", 4, **options)) as env:
        env.reset()
        for t in range(1, 30):
            for i, frame in rows(env.step(np.arange(4) % 2)):
                assert [each for each in seen[i][t] if each != []][:5] == frame[:5]
                ended = seen[i][t][5] if seen[i][t][5] != [None] else []
                assert ended == [each for each in frame[5] if each is not None]
