"""The example game: its rules, and playing without a window."""

from __future__ import annotations

import random

import pytest

from entity_gym.agents import random_agent
from examples.snake import Food, Game, Head, Segment, Settings, Turn, play, run


def game(size: int = 10) -> Game:
    """A snake in the middle that looks up, with food far away."""
    new = Game(random.Random(0), size)
    new.food = (0, 0)
    return new


def test_everything_is_seen_from_the_head() -> None:
    new = game()
    new.food = (7, 3)  # the head is at (5, 5)
    seen = new.obs()
    assert seen.actors == [Head(left=5, ahead=5, right=4, length=2, hunger=0.0)]
    assert seen.entities == [Segment(ahead=-1, right=0, age=1), Food(ahead=2, right=2)]
    new.tick(Turn.RIGHT)  # to (6, 5), looking right: the food is one ahead, and two to the left
    seen = new.obs()
    assert seen.actors == [Head(left=5, ahead=3, right=4, length=2, hunger=0.01)]
    assert seen.entities == [Segment(ahead=-1, right=0, age=1), Food(ahead=1, right=-2)]


def test_food_is_worth_1_and_makes_the_snake_longer() -> None:
    new = game()
    new.food = (5, 4)
    new.tick(Turn.AHEAD)
    assert (new.score, new.body, new.is_over) == (1, [(5, 4), (5, 5), (5, 6)], False)
    assert new.food not in new.body


def test_a_wall_ends_the_game() -> None:
    new = game(4)  # the head is at (2, 2)
    for _ in range(2):
        new.tick(Turn.AHEAD)
    assert not new.is_over
    new.tick(Turn.AHEAD)
    assert new.is_over


def test_the_snake_may_follow_its_own_tail_and_not_bite_itself() -> None:
    for length, bites in ((4, False), (5, True)):
        new = game()
        new.body = [(5, 5), (5, 6), (4, 6), (4, 5), (4, 4)][:length]
        new.tick(Turn.LEFT)
        assert new.is_over is bites


def test_hunger_ends_the_game() -> None:
    new = game(4)
    turns = 0
    while not new.is_over:
        new.food = (0, 0)
        new.tick(Turn.RIGHT)  # round and round
        turns += 1
    assert turns == new.patience == 16


def test_it_is_played_without_a_window(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["random", "--headless", "--games", "3", "--size", "5"]) == 0
    assert "eaten on average in 3 games" in capsys.readouterr().out
    assert play(random_agent(1), 5, Settings(), 1) == play(random_agent(1), 5, Settings(), 1)
