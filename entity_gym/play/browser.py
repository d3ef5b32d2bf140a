"""Serve a game to the browser: the page of replays, in which a person chooses for every actor."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from entity_gym.play.game import Game, NotAllowedError
from entity_gym.replay.opening import open_in_browser
from entity_gym.replay.page import page_html
from entity_gym.replay.server import PageServer

#: Seconds of a wait for a request. A signal that comes right before a wait does not end it, so no wait is endless.
PAUSE = 0.5

INTERRUPTED = 130  # exit code after Ctrl-C


def browse(game: Game, server: PageServer, is_opened: bool = True) -> int:
    """Serve the game until Ctrl-C. Returns the exit code.

    The server's threads hand each request to this thread, which alone touches the environment: some environments may only be
    used in the thread that made them.

    Args:
        game: to be played.
        server: gets the page of the game; to be closed afterwards.
        is_opened: whether the page is opened in the browser.

    Raises:
        Exception: of the environment or the policy; the page shows it, too.
    """
    requests: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()

    def ask(move: Callable[[Any], Any], given: Any = None) -> Any:
        answer: Future[Any] = Future()
        requests.put((partial(move, given), answer))
        return answer.result()

    def page(given: Any) -> str:
        return page_html(game.replay, "play", server.token)

    moves: dict[str, Callable[[Any], Any]]
    moves = {"/act": game.act, "/next": game.begin_episode, "/undo": game.undo, "/restart": game.restart}
    server.pages = {"/": partial(ask, page)}
    server.posts = {path: partial(ask, move) for path, move in moves.items()}
    try:
        print(f"{server.url} ; Ctrl-C ends it", flush=True)
        if is_opened:
            open_in_browser(server.url)
        while True:
            try:
                move, answer = requests.get(timeout=PAUSE)
            except Empty:
                continue
            try:
                answer.set_result(move())
            except Exception as error:
                answer.set_exception(error)
                if not isinstance(error, NotAllowedError):
                    raise
    except KeyboardInterrupt:
        print()
        return INTERRUPTED
    finally:
        while not requests.empty():
            requests.get()[1].cancel()
