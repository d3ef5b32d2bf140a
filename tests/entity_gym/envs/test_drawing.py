"""The shapes that environments draw with, on images small enough to be written out."""

import numpy as np
import pytest

from entity_gym.envs import drawing

ON = (255, 255, 255)


def image(width: int, height: int) -> drawing.Image:
    return drawing.canvas(width, height, (0, 0, 0))


def picture(drawn: drawing.Image) -> list[str]:
    """Rows from the top, "#" where something was drawn."""
    return ["".join("#" if pixel else "." for pixel in row) for row in drawn[:, :, 0]]


def test_a_canvas_has_one_colour() -> None:
    drawn = drawing.canvas(3, 2, (1, 2, 3))
    assert (drawn.shape, drawn.dtype) == ((2, 3, 3), np.uint8)
    assert (drawn == [1, 2, 3]).all()


def test_a_rectangle_is_cut_at_the_border() -> None:
    drawn = image(4, 3)
    drawing.rectangle(drawn, 2, -1, 5, 3, ON)
    assert picture(drawn) == ["..##", "..##", "...."]


def test_a_disc_holds_what_is_at_most_its_radius_away() -> None:
    drawn = image(5, 5)
    drawing.disc(drawn, 2, 2, 2, ON)
    assert picture(drawn) == ["..#..", ".###.", "#####", ".###.", "..#.."]


def test_a_line_has_its_thickness_and_both_ends() -> None:
    drawn = image(5, 3)
    drawing.line(drawn, (1, 1), (3, 1), ON)
    assert picture(drawn) == [".....", ".###.", "....."]
    drawing.line(drawn, (1, 1), (1, 1), ON, thickness=2)
    assert picture(drawn) == [".#...", "####.", ".#..."]


@pytest.mark.parametrize("corners", [[(0, 0), (3, 0), (0, 3)], [(0, 3), (3, 0), (0, 0)]])
def test_a_polygon_is_filled_in_whichever_direction_its_corners_go(corners: list[drawing.Point]) -> None:
    drawn = image(4, 4)
    drawing.polygon(drawn, corners, ON)
    assert picture(drawn) == ["####", "###.", "##..", "#..."]


@pytest.mark.parametrize(("fraction", "filled"), [(-1.0, 0), (0.0, 0), (0.5, 2), (1.0, 4), (7.0, 4)])
def test_a_bar_fills_from_the_left(fraction: float, filled: int) -> None:
    drawn = image(6, 3)
    drawing.bar(drawn, 1, 1, 4, 1, fraction, ON, empty=(0, 9, 0))
    assert picture(drawn)[1] == "." + "#" * filled + "." * (5 - filled)
    assert (drawn[1, 1 + filled : 5] == [0, 9, 0]).all()


def test_stripes_share_a_square_and_more_of_them_than_pixels_do_no_harm() -> None:
    drawn = image(4, 4)
    drawing.stripes(drawn, 0, 0, 4, [(1, 0, 0), (2, 0, 0), (3, 0, 0)])
    assert drawn[:, :, 0].tolist() == [[1, 1, 2, 3]] * 4
    drawing.stripes(drawn, 0, 0, 4, [(i, 0, 0) for i in range(9)])
    assert drawn[0, :, 0].tolist() == [0, 1, 2, 3]


def test_the_cells_of_a_grid_lie_between_its_lines_with_y_upwards() -> None:
    board = drawing.grid(3, 2)
    assert board.shape == (2 * 32 + 1, 3 * 32 + 1, 3)
    for x in range(3):
        for y in range(2):
            inside = drawing.cell(board, x, y)
            assert inside.shape == (31, 31, 3)
            inside[:] = (x, y, 0)
    assert [board[16, 16 + 32 * x].tolist() for x in range(3)] == [[x, 1, 0] for x in range(3)]  # the upper row
    assert (board[::32] == drawing.LINE).all()
    assert (board[:, ::32] == drawing.LINE).all()


def test_a_plane_maps_its_corners_to_the_images_with_y_upwards() -> None:
    plane = drawing.Plane(-2.0, 2.0, 101)
    assert plane.pixel(-2.0, -2.0) == (0.0, 100.0)
    assert plane.pixel(2.0, 2.0) == (100.0, 0.0)
    assert plane.pixel(0.0, 1.0) == (50.0, 25.0)
    assert plane.pixels(1.0) == 25.0


def test_what_lies_outside_is_not_drawn() -> None:
    drawn = image(4, 4)
    drawing.disc(drawn, -9, 20, 3, ON)
    drawing.line(drawn, (10, 10), (20, 10), ON, thickness=4)
    drawing.rectangle(drawn, -9, -9, 5, 5, ON)
    drawing.polygon(drawn, [(10, 0), (20, 0), (10, 9)], ON)
    assert not drawn.any()


def test_the_colours_of_the_palette_differ() -> None:
    assert len(set(drawing.PALETTE)) == len(drawing.PALETTE)
