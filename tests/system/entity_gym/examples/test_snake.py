"""The example game in a window."""

from __future__ import annotations

import pytest

from entity_gym.agents import random_agent
from examples import snake
from examples.snake import Settings, play
from tests.examples.test_snake import game


def test_it_is_played_in_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    window = snake.Window(10, ticks_per_second=10_000)
    new = game()
    assert window.show(new)
    surface = pygame.display.get_surface()
    assert surface.get_at((0 * 32 + 16, 0 * 32 + 16))[:3] == (222, 84, 76)  # the food
    assert surface.get_at((5 * 32 + 16, 5 * 32 + 16))[:3] == (176, 224, 128)  # the head
    assert surface.get_at((5 * 32 + 16, 6 * 32 + 16))[:3] == (96, 168, 96)
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    assert play(random_agent(0), None, Settings(screen=window), 0) == []  # closed in the first game
    window.close()
