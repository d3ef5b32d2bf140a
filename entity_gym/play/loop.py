"""The loop of the game: show the step, ask a person or a policy, act."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from entity_gym.batch.vec_obs import VecObs
from entity_gym.errors import nearest
from entity_gym.play.keyboard import Keyboard
from entity_gym.play.screen import Style, show_end, show_moment, show_turn
from entity_gym.play.session import NOBODY, CannotGoBackError, Decision, Session, Turn, read_choice, turns

INTERRUPTED = 130

HELP = """\
  a number or a name   choose it; the beginning of a name will do where no other name begins so; where a
                       range is shown, any number within it
  an arrow key         choose up, down, left or right, or the nearest entity in that direction
  u                    undo: the choice before this one, or the step before this step
  r                    restart the episode from its first observation
  q                    quit (as does Ctrl-D)
  ?                    this help
Entities are numbered as in the table. What is {closed} cannot be chosen now. A name that is a
command as well, such as "u", is chosen by its number."""
WATCH_HELP = """\
  Enter   the next step
  a       run on to the end of the episode
  p       play by itself, {speed:g} steps a second, until a key is pressed
  u       undo a step; what is sampled may come out differently then
  r       restart the episode from its first observation
  q       quit (as does Ctrl-D)
  ?       this help
Bars or percentages show how likely each choice is, and > the one that is taken."""
COMMANDS = ("u", "r", "q", "?")

#: Prompts for a line, as `input` does.
Ask = Callable[[str], str]

#: Waits for so many seconds, or until a key is pressed; returns whether one was.
Wait = Callable[[float], bool]

SPEED = 4.0  # steps a second of a policy that plays by itself
END_SECONDS = 2.0  # that the end of an episode is shown then
_BEGIN_SCREEN, _END_SCREEN = (
    "\x1b[?2026h\x1b[H\x1b[2J",
    "\x1b[?2026l",
)  # shows what is between at once, where that is known


class Advice(NamedTuple):
    """A policy's decisions in one frame.

    Attributes:
        decisions: action -> one for each actor, in the order of the frame; for a continuous action one for each of the n
            numbers of each actor.
        value: the expected return; None if the policy does not estimate it.
    """

    decisions: Mapping[str, Sequence[Decision]]
    value: float | None = None


#: Decides in a batch of one frame.
Policy = Callable[[VecObs], Advice]


class Quit(Exception):  # noqa: N818 - no error
    """Raised by the command `q`."""


def play(
    session: Session,
    style: Style,
    policy: Policy | None = None,
    ask: Ask | None = None,
    wait: Wait | None = None,
    auto: float | None = None,
) -> int:
    """Play until the player quits. Returns the exit code: 0, or 130 after Ctrl-C.

    Args:
        session: the environment.
        style: the style of the output.
        policy: the player. None: the person at the keyboard.
        ask: prompts for a line. None: the keyboard.
        wait: waits for a key. None: the keyboard.
        auto: steps a second with which the policy plays by itself from the beginning. None: it waits for Enter.
    """
    keyboard = Keyboard()
    game = _Game(session, style, ask or keyboard.ask, wait or keyboard.wait, auto)
    try:
        while True:
            game.take_turn() if policy is None else game.watch(policy)
    except Quit:
        return 0
    except EOFError:
        print()  # so that the shell's prompt begins a line
        return 0
    except KeyboardInterrupt:
        print()
        return INTERRUPTED
    finally:
        session.close()


class _Game:
    def __init__(self, session: Session, style: Style, ask: Ask, wait: Wait, auto: float | None) -> None:
        self.session = session
        self.style = style
        self._ask, self._wait = ask, wait
        self._runs_on = False
        self._plays_itself, self._speed = auto is not None, auto or SPEED

    def take_turn(self) -> None:
        """Let a person take a step, or give another command."""
        print(show_moment(self.session, self.style))
        if self.session.ended:
            self._after_the_end()
            return
        pending = turns(self.session)
        values: list[float] = []
        while len(values) < len(pending):
            turn = pending[len(values)]
            choice = self._decide(turn)
            if not isinstance(choice, str):
                values.append(choice)
                continue
            asked = [k for k in range(len(values)) if pending[k].is_open]
            if choice == "u" and asked:
                del values[asked[-1] :]
            elif self._command(choice):
                return
        if not pending and self._enter("Nobody acts. Enter: next step > ") is None:
            return
        self.session.act(_by_action(pending, values))

    def watch(self, policy: Policy) -> None:
        """Let the policy take a step."""
        if self.session.ended:
            self._runs_on = False
            moment = show_moment(self.session, self.style)
            if self._plays_itself:
                self._play_itself(f"{moment}\n{show_end(self.session.now)}", END_SECONDS)
                self.session.begin_episode()
            else:
                print(moment)
                self._after_the_end()
            return
        advice = policy(self.session.vec_obs())
        decisions = [decision for name in self.session.now.frame.actions for decision in advice.decisions[name]]
        pending = turns(self.session)
        moment = show_moment(self.session, self.style, advice.value, list(zip(pending, decisions, strict=True)))
        if self._plays_itself:
            self._play_itself(moment, 1 / self._speed)
        else:
            print(moment)
            if not self._runs_on:
                line = self._enter("Enter: next step > ", WATCH_HELP.format(speed=self._speed), also=("a", "p"))
                if line is None:
                    return
                self._runs_on, self._plays_itself = line == "a", line == "p"
        self.session.act(_by_action(pending, [decision.value for decision in decisions]))

    def _play_itself(self, moment: str, seconds: float) -> None:
        """Show a step for so long, in the place of the one before; a key ends playing by itself."""
        text = f"{moment}\n(any key: stop)"
        print(f"{_BEGIN_SCREEN}{text}{_END_SCREEN}" if self.style.colour else text, flush=True)
        self._plays_itself = not self._wait(seconds)

    def _decide(self, turn: Turn) -> float | str:
        """Ask for the choice of a turn, or a command."""
        if not turn.is_open:
            print(f"{turn.action}: {turn.actor} has nobody to select")
            return NOBODY.value
        print(show_turn(turn, self.style))
        while True:
            line = self._line("> ")
            if line in COMMANDS:
                return line
            if not line:
                choice_of = f"{'the number or ' if turn.is_numbered else ''}the name of a choice"
                print(f"type {choice_of if turn.bounds is None else 'a number'}, or ? for help")
                continue
            try:
                return read_choice(line, turn)
            except ValueError as error:
                print(error)

    def _after_the_end(self) -> None:
        print(show_end(self.session.now))
        if self._enter("Enter: next episode > ") is not None:
            self.session.begin_episode()

    def _enter(self, prompt: str, help_text: str | None = None, also: Sequence[str] = ()) -> str | None:
        """Wait for Enter, or a line of `also`. Return None after a command that changed the step."""
        while True:
            line = self._line(prompt, help_text)
            if not line or line in also:
                return line
            if self._command(line):
                return None

    def _line(self, prompt: str, help_text: str | None = None) -> str:
        """Ask for a line, and show the help for each "?"."""
        while True:
            line = self._ask(prompt).strip()
            if line != "?":
                return line
            closed = "grey" if self.style.colour else "(closed)"
            print(help_text or HELP.format(closed=closed))

    def _command(self, line: str) -> bool:
        """Execute a command. Returns true if the step has changed; otherwise prints the reason."""
        if line == "q":
            raise Quit
        try:
            if line == "u":
                if self.session.undo():
                    return True
                print("there is nothing to undo")
            elif line == "r":
                if self.session.restart():
                    return True
                print("the episode has only begun")
            else:
                print(f"{line!r} is no command; {nearest(line, COMMANDS)}, or Enter")
        except CannotGoBackError as error:
            print(error)
        return False


def _by_action(pending: Sequence[Turn], values: Sequence[float]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for turn, value in zip(pending, values, strict=True):
        found.setdefault(turn.action, []).append(value)
    return found
