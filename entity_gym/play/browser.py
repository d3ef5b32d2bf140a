"""Play an environment in the browser: the page of replays, in which a person chooses for every actor.

The server's threads hand each request to the thread that called `browse`, which alone touches the environment: some
environments may only be used in the thread that made them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions import ActionSpace
from entity_gym.actions.reading import EntityID, Offer
from entity_gym.actions.select_entity import NOBODY
from entity_gym.batch.decimals import to_decimals
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.play.session import CannotGoBackError, Session, Values
from entity_gym.replay.build import build_replay, build_view, number, plain
from entity_gym.replay.hints import check_hints
from entity_gym.replay.opening import open_in_browser
from entity_gym.replay.page import page_html
from entity_gym.replay.server import PageServer
from entity_gym.spaces import ObsSpace

#: Seconds of a wait for a request. A signal that comes right before a wait does not end it, so no wait is endless.
PAUSE = 0.5

INTERRUPTED = 130  # exit code after Ctrl-C


class Advice(NamedTuple):
    """A policy's decisions in a batch of one frame."""

    actions: Mapping[str, VecAction]  # as `VecEnv.act` takes them
    logits: Mapping[str, NDArray[np.float32]]  # discrete action -> log-probs of the choices, as in `ActResult`
    value: float | None = None  # the expected return; None if the policy does not estimate it


#: Decides in a batch of one frame.
Policy = Callable[[VecObs], Advice]


def browse(
    session: Session,
    settings: Mapping[str, Any],
    server: PageServer,
    policy: Policy | None = None,
    is_opened: bool = True,
) -> int:
    """Serve the game until Ctrl-C, and close the session and the server. Returns the exit code.

    Args:
        session: the environment.
        settings: its arguments, to be shown.
        server: gets the page of the game.
        policy: its probabilities are shown as advice. None: there are none.
        is_opened: whether the page is opened in the browser.

    Raises:
        Exception: of the environment or the policy; the page shows it, too.
    """
    game = _Game(session, settings, policy)
    requests: SimpleQueue[_Request] = SimpleQueue()

    def ask(function: Callable[[Any], Any], given: Any = None) -> Any:
        request = _Request(function, given, Future())
        requests.put(request)
        return request.answer.result()

    moves = {"/act": game.act, "/next": game.begin_episode, "/undo": game.undo, "/restart": game.restart}
    server.pages = {"/": lambda: str(ask(lambda _: page_html(game.replay, "play", server.token)))}
    server.posts = {path: partial(ask, move) for path, move in moves.items()}
    try:
        with server:
            print(f"{server.url} ; Ctrl-C ends it", flush=True)
            if is_opened:
                open_in_browser(server.url)
            while True:
                try:
                    request = requests.get(timeout=PAUSE)
                except Empty:
                    continue
                try:
                    request.answer.set_result(request.function(request.given))
                except _NotAllowed as error:
                    request.answer.set_exception(error)
                except Exception as error:
                    request.answer.set_exception(error)
                    raise
    except KeyboardInterrupt:
        print()
        return INTERRUPTED
    finally:
        while not requests.empty():
            requests.get().answer.cancel()
        session.close()


class _Request(NamedTuple):
    function: Callable[[Any], Any]
    given: Any
    answer: Future[Any]


class _NotAllowed(ValueError):
    """A request of the page that the game refuses; the game goes on."""


class _Game:
    """A session as a growing replay.

    Every move returns the last steps of the replay, as `{"episodes": how many there are, "steps": of the last one, "episode":
    the last one without its steps, "tail": its last steps}`.
    """

    def __init__(self, session: Session, settings: Mapping[str, Any], policy: Policy | None) -> None:
        self._session = session
        self._policy = policy
        reader = session.reader
        self._episodes: list[dict[str, Any]] = []
        self.replay = build_replay(
            title=f"{reader.environment}: your game",
            world=reader.environment,
            settings=settings,
            obs_space=reader.obs_space,
            action_space=reader.action_space,
            players=[""],
            network=None,
            episodes=[],
        )
        self.replay["episodes"] = self._episodes
        self._add_episode()

    def act(self, given: Any) -> dict[str, Any]:
        """Take a step with `{"actions": {action: [column, or list of numbers, of each actor]}}`."""
        if self._session.ended:
            raise _NotAllowed("the episode has ended")
        before = self._step
        values = self._read(given)
        self._session.act(values)
        for name, actions in before["views"][0]["actions"].items():
            actions["chosen"] = given["actions"][name]
        self._steps.append(self._observe())
        return self._answer(2)

    def begin_episode(self, _: Any) -> dict[str, Any]:
        if not self._session.ended:
            raise _NotAllowed("the episode has not ended")
        self._session.begin_episode()
        self._add_episode()
        return self._answer(1)

    def undo(self, _: Any) -> dict[str, Any]:
        return self._go_back(self._session.undo)

    def restart(self, _: Any) -> dict[str, Any]:
        return self._go_back(self._session.restart)

    @property
    def _steps(self) -> list[dict[str, Any]]:
        steps: list[dict[str, Any]] = self._episodes[-1]["steps"]
        return steps

    @property
    def _step(self) -> dict[str, Any]:
        return self._steps[-1]

    def _go_back(self, move: Callable[[], bool]) -> dict[str, Any]:
        try:
            move()
        except CannotGoBackError as error:
            raise _NotAllowed(str(error)) from None
        now = self._session.now
        del self._episodes[now.episode :]
        del self._steps[now.step :]
        self._steps.append(self._observe())
        return self._answer(1)

    def _add_episode(self) -> None:
        reader = self._session.reader
        drawing = check_hints(self._session.env.draw(), reader.obs_space, reader.environment)
        episode = {"seed": self._session.seed, "number": 0, "drawing": drawing}
        self._episodes.append({**episode, "reward": 0, "length": 0, "info": {}, "steps": [self._observe()]})

    def _answer(self, num_steps: int) -> dict[str, Any]:
        now, episode = self._session.now, self._episodes[-1]
        info = plain(now.obs.end_of_episode_info or {}) if now.obs.done else {}
        episode.update(reward=number(now.total), length=now.step, info=info)
        return {
            "episodes": len(self._episodes),
            "steps": len(self._steps),
            "episode": {name: value for name, value in episode.items() if name != "steps"},
            "tail": self._steps[-num_steps:],
        }

    def _observe(self) -> dict[str, Any]:
        """Return the present step; nobody has chosen yet."""
        now, reader = self._session.now, self._session.reader
        obs = self._session.vec_obs()
        view = build_view(obs, 0, reader.obs_space, [_own_id(each, reader.obs_space) for each in now.frame.ids])
        advice = None if self._policy is None or now.obs.done else self._policy(obs)
        if advice is not None and advice.value is not None:
            view["value"] = number(advice.value)
        view["actions"] = {
            name: _decisions(name, reader.action_space[name], offer, advice)
            for name, offer in now.frame.actions.items()
            if len(offer.actors)
        }
        reward = number(now.obs.reward)
        return {
            "reward": reward,
            "rewards": [reward],
            "done": now.obs.done,
            "truncated": now.obs.truncated,
            "views": [view],
        }

    def _read(self, given: Any) -> Values:
        """Return the choices of a request as values of the session.

        Raises:
            _NotAllowed: something is missing, of the wrong type, closed, or out of bounds.
        """
        actions = given.get("actions") if isinstance(given, dict) else None
        offers = {name: offer for name, offer in self._session.now.frame.actions.items() if len(offer.actors)}
        if not isinstance(actions, dict) or set(actions) != set(offers):
            raise _NotAllowed(f"actions must be an object with {', '.join(map(repr, offers)) or 'nothing'}")
        found: dict[str, list[float]] = {name: [] for name in self._session.now.frame.actions}
        for name, offer in offers.items():
            if not isinstance(actions[name], list) or len(actions[name]) != len(offer.actors):
                raise _NotAllowed(f"{name} must be a list with a choice of each of {len(offer.actors)} actors")
            space = self._session.reader.action_space[name]
            for row, chosen in enumerate(actions[name]):
                where = f"{name} of entity {offer.actors[row]}"
                if space.numbers:
                    found[name] += _read_numbers(chosen, list(space.numbers.values()), where)
                else:
                    found[name].append(self._read_choice(chosen, space, offer, row, where))
        return found

    def _read_choice(self, column: Any, space: ActionSpace, offer: Offer, row: int, where: str) -> float:
        choices = space.list_choices(offer, row)
        if column == NOBODY and not any(choice.is_open for choice in choices):
            return NOBODY
        if type(column) is not int or not 0 <= column < len(choices) or not choices[column].is_open:
            raise _NotAllowed(f"{where} is {column!r:.100}, which is no open choice")
        return choices[column].value


def _own_id(given: EntityID | None, obs_space: ObsSpace) -> EntityID | None:
    """Return an id, but for those of compiled environments: they are types and numbers, which the page shows anyway."""
    is_compiled = isinstance(given, tuple) and len(given) == 2 and given[0] in obs_space.entities
    return None if is_compiled else given


def _read_numbers(given: Any, bounds: Sequence[tuple[float, float]], where: str) -> list[float]:
    if not isinstance(given, list) or len(given) != len(bounds):
        raise _NotAllowed(f"{where} must be a list of {len(bounds)} numbers")
    for value, (low, high) in zip(given, bounds, strict=True):
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e38
        if not is_number or not np.float32(low) <= np.float32(value) <= np.float32(high):
            raise _NotAllowed(f"{where} is {value!r:.100}; it must be a number from {low:.9g} to {high:.9g}")
    return [float(value) for value in given]


def _decisions(name: str, space: ActionSpace, offer: Offer, advice: Advice | None) -> dict[str, Any]:
    """Return the decisions of an action's actors, who have not chosen yet, with the policy's choices as `advised`."""
    num_actors = len(offer.actors)
    if advice is None:
        decisions = space.decisions_for_replay(offer, np.zeros((num_actors, space.width), space.dtype), None)
    else:
        logits = advice.logits[name] if space.discrete else None
        decisions = space.decisions_for_replay(offer, advice.actions[name].values, logits)
        decisions["advised"] = decisions["chosen"]
        if space.discrete:
            probs = np.array(decisions["probs"])
            decisions["entropy"] = to_decimals(-(probs * np.log(np.where(probs > 0, probs, 1))).sum(axis=1))
    decisions["chosen"] = [[None] * space.width if space.numbers else NOBODY] * num_actors
    return decisions
