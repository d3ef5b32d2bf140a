"""Action masks, wherever an environment shows them: they close choices, and are named once."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium import spaces  # noqa: E402

from entity_gym.actions.choices import random_actions  # noqa: E402
from entity_gym.bridges import from_gymnasium, gymnasium_worlds, masks  # noqa: E402
from entity_gym.pools.pool import ListEnv  # noqa: E402
from entity_gym.pools.vec_env import VecEnv  # noqa: E402
from tests.entity_gym.bridges.gym_worlds import Shows  # noqa: E402

BOX, PLACE = spaces.Box(0, 9, (1,), np.float32), np.zeros(1, np.float32)
ONE, SEVERAL = spaces.Discrete(5), spaces.MultiDiscrete([2, 5])
STARTS = spaces.Discrete(5, start=3)
NESTED = spaces.Dict({"go": spaces.Discrete(3), "turn": spaces.Box(-1, 1, (1,)), "pick": spaces.MultiBinary(1)})
SIDES = {"go": [0, 1, 1], "turn": None, "pick": ([1, 0],)}


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "_said", set())


def told(mask: Any, actions: Any = ONE, key: str = "action_mask") -> Callable[[], Shows]:
    """Makes worlds with a mask in the info of every step."""
    return lambda: Shows(BOX, [PLACE] * 4, actions, infos=[{key: mask}] * 4)


def seen(mask: Any, actions: Any = ONE, space: Any = None, key: str = "action_mask") -> Callable[[], Shows]:
    """Makes worlds with a mask in the observation."""
    space = spaces.Box(0, 1, np.shape(mask), np.int8) if space is None else space
    return lambda: Shows(spaces.Dict({"place": BOX, key: space}), [{"place": PLACE, key: mask}] * 4, actions)


def asked(mask: Any, actions: Any = ONE) -> Callable[[], Shows]:
    """Makes worlds with a method that returns the mask."""

    class WithMethod(Shows):
        def action_masks(self) -> Any:
            return mask

    return lambda: WithMethod(BOX, [PLACE] * 4, actions)


def closed_by(pool: VecEnv) -> dict[str, list[int]]:
    """Play an episode; return action -> the choices that were open in every step, as numbers from 0."""
    rng, found = np.random.default_rng(0), {}
    with pool:
        obs = pool.reset()
        for _ in range(5):
            shown = {
                name: np.flatnonzero(mask.mask.values[0]).tolist()
                for name, mask in obs.action_masks.items()
                if mask.mask is not None
            }
            assert found in ({}, shown)
            found = shown
            obs = pool.act(random_actions(obs, rng, pool.action_space()))
    return found


FLAGS, BOTH = [0, 1, 0, 1, 0], [1, 0, 0, 1, 0, 1, 0]
FOUND = {"action": [1, 3]}
FOUND_BOTH = {"action.0": [0], "action.1": [1, 3]}


@pytest.mark.parametrize(
    ("make", "found", "closed"),
    [
        (told(np.array(FLAGS, np.int8)), 'info["action_mask"]', FOUND),
        (told(FLAGS), 'info["action_mask"]', FOUND),
        (told(FLAGS, key="action_masks"), 'info["action_masks"]', FOUND),
        (told([3, 1], key="valid_actions"), 'info["valid_actions"]', FOUND),
        (told(np.array(FLAGS, np.bool_), key="valid_actions"), 'info["valid_actions"]', FOUND),
        (told(np.array([4, 6]), STARTS, key="valid_actions"), 'info["valid_actions"]', FOUND),
        (asked(np.array(FLAGS, np.bool_)), "action_masks()", FOUND),
        (seen(np.array(FLAGS, np.int8)), 'observation["action_mask"]', FOUND),
        (told(np.array(BOTH), SEVERAL), 'info["action_mask"]', FOUND_BOTH),
        (told(([1, 0], FLAGS), SEVERAL), 'info["action_mask"]', FOUND_BOTH),
        (told((None, FLAGS), SEVERAL), 'info["action_mask"]', {"action.1": [1, 3]}),
        (told([[0], [1, 3]], SEVERAL, key="valid_actions"), 'info["valid_actions"]', FOUND_BOTH),
        (asked([np.array([1, 0]), np.array(FLAGS)], SEVERAL), "action_masks()", FOUND_BOTH),
        (seen(np.array(BOTH, np.int8), SEVERAL), 'observation["action_mask"]', FOUND_BOTH),
        (
            seen((np.array([1, 0]), np.array(FLAGS)), SEVERAL, spaces.Tuple([spaces.MultiBinary(2), spaces.MultiBinary(5)])),
            'observation["action_mask"]',
            FOUND_BOTH,
        ),
        (told(SIDES, NESTED), 'info["action_mask"]', {"go": [1, 2], "pick.0": [0]}),
    ],
)  # fmt: skip
def test_a_mask_closes_choices_wherever_it_is_and_is_named_once(
    make: Callable[[], Any], found: str, closed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool = from_gymnasium(make, 3)
        assert list(pool.obs_space().entities["Agent"].features) == (["place.0"] if "observation" in found else ["0"])
        alone: Any = gymnasium_worlds(make).as_environment()
        assert closed_by(pool) == closed_by(ListEnv(lambda: alone, 1)) == closed
    assert alone.slots.found_masks == found
    assert re.fullmatch(rf"\w+: {re.escape(found)} closes actions\n", capsys.readouterr().err)


def test_of_several_masks_the_order_of_the_page_decides() -> None:
    class Everywhere(Shows):
        closed = 5

        def action_masks(self) -> Any:
            return np.arange(5) == 1

    def made(kinds: str) -> Callable[[], Shows]:
        keys = ["action_mask", "action_masks", "valid_actions"]
        info = {key: [k] if key == "valid_actions" else np.arange(5) == k for k, key in enumerate(keys, 2)}
        cls = Everywhere if "method" in kinds else Shows
        space, shown = BOX, PLACE
        if "observation" in kinds:
            space = spaces.Dict({"place": BOX, "action_mask": spaces.MultiBinary(5)})
            shown = {"place": PLACE, "action_mask": np.arange(5) == 0}
        return lambda: cls(
            space, [shown] * 4, ONE, infos=[{key: info[key] for key in keys if key in kinds.split()}] * 4
        )

    every = ["observation", "method", "action_mask", "action_masks", "valid_actions"]
    for first, name in enumerate(every):
        assert closed_by(from_gymnasium(made(" ".join(every[first:])), 2)) == {"action": [first]}, name
    view = {"entities": {"Me": {"features": {"place": ["x"]}}}, "actor": "Me", "action_mask": "action_mask"}
    assert closed_by(from_gymnasium(made(" ".join(every)), view=view)) == {"action": [0]}
    with pytest.raises(ValueError, match=r"action_mask names 'place', which is Box.*; expected a key .* with 5 flags"):
        from_gymnasium(made(" ".join(every)), view=view | {"action_mask": "place"})
    read = {"entities": {"Me": {"features": {"place": ["x"]}}}, "actor": "Me"}
    for ignored in ({}, {"ignore": ["action_mask"]}, {"ignore": "rest"}):
        pool = from_gymnasium(made("observation"), view=read | ignored)
        assert not pool.obs_space().global_features
        assert closed_by(pool) == {"action": [0]}


LIMIT = "gymnasium.wrappers:TimeLimit(max_episode_steps=3)"


def test_the_method_is_found_inside_of_wrappers() -> None:
    assert closed_by(from_gymnasium(asked(FLAGS), wrappers=[LIMIT, LIMIT])) == FOUND


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (told([1, 0, 1, 1]), r'info\["action_mask"\]: the action mask is \[1, 0, 1, 1\]; expected 5 flags, 1 where'),
        (told([2, 8], STARTS, key="valid_actions"), "expected different whole numbers from 3 to 7"),
        (told([1, 1, 0], SEVERAL), r"expected 7 flags, .*: \{'action.0': 2, 'action.1': 5\}"),
        (told([[1, 1], [1, 1], [1, 1]], SEVERAL), r"expected one mask for each of \[0, 1\]"),
        (told({"go": [1, 1, 1]}, NESTED), r"the action mask is .*; expected one mask for each of \['go', 'pick', 'turn'\]"),
        (told(SIDES | {"turn": [1]}, NESTED), "action mask of 'turn' is .*; expected None, since real numbers have no mask"),
        (told(np.zeros(5)), "'action': everything is masked; leave something open"),
    ],
)  # fmt: skip
def test_a_mask_that_does_not_fit_is_refused_naming_its_place(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        from_gymnasium(make, 2).reset()
    assert "(environment 0)" in "".join([str(error.value), *getattr(error.value, "__notes__", ())])


def warned(pool: VecEnv) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        closed_by(pool)
    return [str(each.message) for each in caught if "mask" in str(each.message)]


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (told(FLAGS, key="legal_moves"), 'info["legal_moves"]'),
        (told([1, 3], key="available_actions"), 'info["available_actions"]'),
        (seen(np.array(FLAGS), key="valid"), 'observation["valid"]'),
        (seen(np.ones((2, 5)), SEVERAL), 'observation["action_mask"]'),  # a joint mask
    ],
)
def test_what_looks_like_a_mask_and_closes_nothing_draws_one_warning(make: Callable[[], Any], found: str) -> None:
    for pool in (from_gymnasium(make, 3, num_threads=2), ListEnv(gymnasium_worlds(make).as_environment, 3)):
        (message,) = warned(pool)
        assert re.match(
            rf"Shows: {re.escape(found)} looks like an action mask, and closes nothing: .*in a wrapper", message
        )


@pytest.mark.parametrize(
    "make",
    [
        told([1, 2], key="mask"),
        told(FLAGS, spaces.Box(-1, 1, (2,)), key="action_mask"),
        seen(np.zeros(4, np.int8), key="mask"),
        lambda: Shows(BOX, [PLACE] * 4, infos=[{"action_mask": [1, 1], "legal_moves": [1, 1]}] * 4),
    ],
)
def test_what_cannot_be_a_mask_and_masks_beside_one_that_is_used_draw_no_warning(make: Callable[[], Any]) -> None:
    assert warned(from_gymnasium(make, 2)) == []


def test_an_observation_without_its_mask_is_refused() -> None:
    make = seen(np.array(FLAGS, np.int8))
    world = make()
    world.shown = [{"place": PLACE}]
    with pytest.raises(ValueError, match=r"expected a dictionary with 'action_mask'"):
        from_gymnasium(lambda: world).reset()
