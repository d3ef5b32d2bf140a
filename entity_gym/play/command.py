"""Play an environment yourself, in the browser.

    python -m entity_gym.play MineSweeper --set width=8 --seed 1
    python -m entity_gym.play my_pkg.my_env:MyEnv
    python -m entity_gym.play MineSweeper --port 8000 --no-open

To play beside a trained policy: python -m enn_ppo.play RUN.

Exit codes: 1 the environment raised an exception, 2 there is no such environment or option, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

from entity_gym.check.loading import describe_error, parse_settings
from entity_gym.errors import shortened
from entity_gym.output import accept_all_characters
from entity_gym.play.game import Game, NotAllowedError, Policy
from entity_gym.pools.source import EnvSource
from entity_gym.registry import bind
from entity_gym.replay.page import page_html
from entity_gym.replay.server import PageServer, open_in_browser

#: Seconds of a wait for a request. A signal that comes right before a wait does not end it, so no wait is endless.
PAUSE = 0.5

INTERRUPTED = 130  # exit code after Ctrl-C
LARGEST_SEED = 1_000_000  # of random seeds: short enough to be typed again


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit code."""
    accept_all_characters()
    options = _parser().parse_args(argv)
    try:
        source = bind(options.env, parse_settings(options.set))
    except ValueError as error:
        return usage_error(error)
    except Exception as error:
        return broken(error)
    return run(source, options)


def run(source: EnvSource, options: argparse.Namespace, policy: Policy | None = None) -> int:
    """Serve the game with the options of `add_options`, and return the exit code."""
    seed = random.SystemRandom().randrange(LARGEST_SEED) if options.seed is None else options.seed
    try:
        server = PageServer({}, port=options.port)
    except ValueError as error:
        return usage_error(error)
    try:
        with server, closing(Game(source, seed, policy)) as game:
            print(f"seed {seed}")
            serve(game, server, options.open)
    except KeyboardInterrupt:
        print()
        return INTERRUPTED
    except Exception as error:
        return broken(error)


def serve(game: Game, server: PageServer, is_opened: bool) -> NoReturn:
    """Answer the page's requests until Ctrl-C, or an exception of the environment or the policy, which the page shows, too.

    The server's threads hand each request to this thread, which alone touches the environment: some environments may only be
    used in the thread that made them.
    """
    requests: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()

    def ask(move: Callable[[Any], Any], given: Any = None) -> Any:
        answer: Future[Any] = Future()
        requests.put((partial(move, given), answer))
        return answer.result()

    def page(_: Any) -> str:
        return page_html(game.replay, server.token)

    moves: dict[str, Callable[[Any], Any]]
    moves = {"/act": game.act, "/next": game.begin_episode, "/undo": game.undo, "/restart": game.restart}
    server.pages = {"/": partial(ask, page)}
    server.posts = {path: partial(ask, move) for path, move in moves.items()}
    print(f"{server.url} ; Ctrl-C ends it", flush=True)
    if is_opened:
        open_in_browser(server.url)
    try:
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
    finally:
        while not requests.empty():
            requests.get()[1].cancel()


def broken(error: Exception) -> int:
    """Print an exception of the environment's code with its place, and return the exit code."""
    print(f"error: {shortened(describe_error(error))}", file=sys.stderr)
    return 1


def usage_error(message: object) -> int:
    """Print a mistake in the command, and return the exit code."""
    print(f"error: {shortened(str(message))}", file=sys.stderr)
    return 2


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of playing with and without a policy."""
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter; may be repeated")
    parser.add_argument("--seed", type=_seed, help="seed of the environment; random if it is left out")
    parser.add_argument("--port", type=int, default=0, help="port of the page on 127.0.0.1 (0: any free one)")
    parser.add_argument("--no-open", dest="open", action="store_false", help="print the page's address, open nothing")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m entity_gym.play", description="Play an environment yourself, in the browser."
    )
    parser.add_argument("env", nargs="?", default="MineSweeper", help="a name, or my_pkg.my_env:MyEnv (MineSweeper)")
    add_options(parser)
    return parser


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 0")
    return int(text)
