"""Pictures are drawn by the hints of `draw()`, of compiled worlds, of Python worlds and of slots alike."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import ImageColor

from entity_gym import Entity, Environment, ListEnv, Observation, ObsSpace
from entity_gym.actions import ActionSpace

RED, BLUE, GREEN = "#d22828", "#266ec8", "#1e965a"


class Board(Environment):
    """A board of 4 x 2 cells with a stone, a hidden stone, and a hand of cards."""

    hints: Any = {
        "bounds": [0, 0, 3, 1],
        "grid": True,
        "y_up": True,
        "types": {
            "Stone": {"position": ["x", "y"], "shape": "square", "color": RED, "size": 1},
            "Ghost": {"position": ["x", "y"], "shape": "square", "color": BLUE, "size": 1},
            "Card": {"shape": "circle", "color": GREEN, "label": "{suit}"},
        },
    }
    cards = 3
    stone = (0.0, 0.0)

    def obs_space(self) -> ObsSpace:
        return ObsSpace({"Stone": Entity(["x", "y"]), "Ghost": Entity(["x", "y"]), "Card": Entity(["suit"])})

    def action_space(self) -> dict[str, ActionSpace]:
        return {}

    def reset(self) -> Observation:
        return Observation(
            features={"Stone": [self.stone], "Ghost": [(3, 1)], "Card": [[suit % 4] for suit in range(self.cards)]},
            visible={"Ghost": [False]},
        )

    def act(self, actions: Any) -> Observation:
        return self.reset()

    def draw(self) -> Any:
        return self.hints


def picture(**changes: Any) -> NDArray[np.uint8]:
    pool = ListEnv(type("Board", (Board,), changes), 1)
    pool.reset()
    return pool.render([0])[0]


def colour(image: NDArray[np.uint8], x: float, y: float) -> str:
    """The colour at a share of the width, and of the height from above."""
    rows, columns, _ = image.shape
    return "#{:02x}{:02x}{:02x}".format(*image[round(y * (rows - 1)), round(x * (columns - 1))])


def test_entities_lie_in_their_cells_and_those_without_a_place_in_a_row_below() -> None:
    image = picture()
    board, hand = image[:160], image[160:]
    assert image.shape == (160 + 64, 320, 3) and image.dtype == np.uint8
    assert colour(board, 1 / 8, 3 / 4) == RED and colour(board, 3 / 8, 3 / 4) != RED
    assert colour(board, 7 / 8, 1 / 4) not in (BLUE, RED), "what is hidden is an outline"
    assert (board == ImageColor.getrgb(BLUE)).all(-1).any()
    greens = (hand == ImageColor.getrgb(GREEN)).all(-1).any(axis=0)
    assert np.flatnonzero(np.diff(greens.astype(int)) == 1).size == 3, "three cards side by side"


@pytest.mark.parametrize("cards", [0, 1, 500])
def test_the_size_does_not_depend_on_the_number_of_entities(cards: int) -> None:
    assert picture(cards=cards).shape == (160 + 64, 320, 3)


def test_without_bounds_the_picture_is_a_square_around_all_places() -> None:
    image = picture(hints={"types": Board.hints["types"]}, stone=(-70.0, 1e4))
    assert image.shape == (320 + 64, 320, 3)
    assert (image == ImageColor.getrgb(RED)).all(-1).any()


def test_what_lies_outside_of_the_bounds_is_not_drawn() -> None:
    class Lost(Board):
        def reset(self) -> Observation:
            return Observation(features={"Stone": [(1e6, 1e6)], "Ghost": [], "Card": []})

    pool = ListEnv(Lost, 1)
    pool.reset()
    assert not (pool.render([0])[0] == ImageColor.getrgb(RED)).all(-1).any()


def test_a_hint_that_is_wrong_is_named_with_the_environment() -> None:
    with pytest.raises(ValueError, match=r"Board \(environment 0\): draw\(\).*'colour'"):
        picture(hints={"types": {"Stone": {"colour": RED}}})


def test_a_picture_of_its_own_comes_first_and_a_world_without_either_has_none() -> None:
    own = np.zeros((2, 3, 3), np.uint8)
    assert picture(render=lambda self: own).tolist() == own.tolist()
    with pytest.raises(NotImplementedError, match=r"neither render\(\) nor draw\(\)"):
        picture(hints=None)
