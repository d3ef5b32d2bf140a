"""The output of the game: the image, a table of entities, choices, and the probabilities of a policy."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entity_gym.actions.kind import Choice
from entity_gym.play.session import Decision, Moment, Session, Turn, describe_features, entity_rows

BAR = 20  # columns of a probability of 1
_GREY, _BOLD, _RESET = "\x1b[90m", "\x1b[1m", "\x1b[0m"
_LEVELS = np.array([0, 95, 135, 175, 215, 255])  # of the 6 x 6 x 6 colours that every terminal has


@dataclass(frozen=True)
class Style:
    """The style of the output.

    Attributes:
        colour: use ANSI colours, and draw images with them.
        all_colours: use 24 bits of colour instead of 256 colours.
        columns: width of the terminal.
        lines: height of the terminal.
    """

    colour: bool = False
    all_colours: bool = False
    columns: int = 80
    lines: int = 24

    @staticmethod
    def of_terminal(colour: bool | None = None) -> Style:
        """Return the style for this terminal; `colour`, if given, overrides what the terminal supports."""
        if colour is None:
            colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        size = shutil.get_terminal_size()
        return Style(colour, os.environ.get("COLORTERM") in ("truecolor", "24bit"), size.columns, size.lines)

    def grey(self, text: str) -> str:
        """Make text less visible."""
        return f"{_GREY}{text}{_RESET}" if self.colour else text

    def bold(self, text: str) -> str:
        """Make text more visible."""
        return f"{_BOLD}{text}{_RESET}" if self.colour else text


def show_moment(
    session: Session, style: Style, value: float | None = None, decisions: Sequence[tuple[Turn, Decision]] = ()
) -> str:
    """Describe this step: rewards, the table of entities, the decisions of a policy, and the image, which is next to the prompt.

    The image gets at least half of the terminal's height. Decisions are shortened to a line each where that leaves no room for
    them in full.

    Args:
        session: the environment.
        style: of the output.
        value: expected return; None: the policy does not estimate it.
        decisions: of a policy, with their turns.
    """
    now = session.now
    head = f"{session.reader.environment}, episode {now.episode}, step {now.step}"
    if now.step:
        head += f": reward {_number(now.obs.reward)}, total {_number(now.total)}"
    if value is not None:
        head += f", expected from here on {_number(value)}"
    lines = ["", style.bold(head), *_table(session, style)]
    bars = [line for turn, decision in decisions for line in _probabilities(turn, decision, style)]
    image = session.image() if style.colour else None
    if image is None:
        return "\n".join([*lines, *bars])
    rows = max(style.lines // 2, 8)
    if len(lines) + len(bars) + rows + 1 > style.lines:
        bars = [_most_likely(turn, decision, style) for turn, decision in decisions]
    rows = max(rows, style.lines - len(lines) - len(bars) - 3)  # the prompt, and the choices of a person
    return "\n".join([*lines, *bars, draw(image, style, rows)])


def show_end(now: Moment) -> str:
    """Describe the end of an episode."""
    how = " (truncated)" if now.obs.truncated else ""
    info = now.obs.end_of_episode_info or {}
    details = "".join(f", {name} {value}" for name, value in info.items())
    steps = "1 step" if now.step == 1 else f"{now.step} steps"
    return f"The episode ended after {steps}{how}: total {_number(now.total)}{details}"


def _table(session: Session, style: Style) -> list[str]:
    rows = entity_rows(session.now.frame, session.reader.obs_space)
    width = max([len("world"), *(len(row.type_name) for row in rows)])
    lines = [style.grey(f"index  {'type':<{width}}  features")]
    for row in rows:
        line = f"{row.number:>5}  {row.type_name:<{width}}  {row.features}".rstrip()
        lines.append(line if row.is_visible else style.grey(line + "  (hidden from the policy)"))
    space = session.reader.obs_space
    if space.global_features:
        shown = describe_features(space.global_features, session.now.obs.global_features, space.global_kinds)
        lines.append(f"{'-':>5}  {'world':<{width}}  {shown}")
    return lines


def show_turn(turn: Turn, style: Style) -> str:
    """Describe a turn and its choices."""
    if turn.bounds is not None:
        low, high = turn.bounds
        return f"{style.bold(_head(turn))}\n  a number from {low:.9g} to {high:.9g}"
    items = [_choice(choice, turn, style) for choice in turn.choices]
    plain = "   ".join(_choice(choice, turn, Style()) for choice in turn.choices)
    separator = "   " if len(plain) + 2 <= style.columns else "\n  "
    return f"{style.bold(_head(turn))}\n  " + separator.join(items)


def _probabilities(turn: Turn, decision: Decision, style: Style) -> list[str]:
    """Describe a turn with a bar for each choice and ">" before the chosen one, or with the chosen number."""
    chosen, probabilities = decision
    if turn.bounds is not None:
        return [style.bold(_head(turn)), f"> {chosen:.4g}"]
    lines = [style.bold(_head(turn))]
    if not turn.is_open:
        return lines
    width = max(len(_choice(choice, turn, Style())) for choice in turn.choices)
    for choice, probability in zip(turn.choices, probabilities, strict=True):
        plain = _choice(choice, turn, Style())
        bar = "█" * round(probability * BAR)
        line = f"{'>' if choice.value == chosen else ' '} {plain:<{width}}  {bar:<{BAR}} {probability:6.1%}"
        lines.append(line if choice.is_open else style.grey(line))
    return lines


def _most_likely(turn: Turn, decision: Decision, style: Style) -> str:
    """Describe a turn in one line: the decision, and the likeliest other choices that there is room for."""
    line = f"{_head(turn)} > "
    if turn.bounds is not None:
        return f"{line}{decision.value:.4g}"
    pairs = (
        sorted(zip(decision.probabilities, turn.choices, strict=True), key=lambda pair: -pair[0])
        if turn.is_open
        else []
    )
    taken = [pair for pair in pairs if pair[1].value == decision.value]
    others = [pair for pair in pairs if pair[1].value != decision.value and pair[0] >= 0.005]
    for number, (probability, choice) in enumerate([*taken, *others]):
        text = f"{', ' if number else ''}{choice.name} {probability:.0%}"
        if number and len(line) + len(text) > style.columns:
            break
        line += text
    return line


def _head(turn: Turn) -> str:
    return f"{turn.action}: {turn.actor}" if turn.actor else turn.action


def _choice(choice: Choice, turn: Turn, style: Style) -> str:
    text = f"{choice.value} {choice.name}" if turn.is_numbered else choice.name
    if choice.is_open:
        return text
    return style.grey(text) if style.colour else f"{text} (closed)"


def _number(value: float) -> str:
    return format(float(value), ".4g")


def draw(image: NDArray[np.uint8], style: Style, rows: int) -> str:
    """Draw an image as lines of text, with two pixels in each character, one above the other.

    Args:
        image: (height, width, 3).
        style: the image is made to fit into the terminal's width.
        rows: number of lines that it may take.
    """
    height, width = image.shape[:2]
    scale = min(1.0, style.columns / width, 2 * rows / height)
    pixels = _resize(image, max(2, round(height * scale) // 2 * 2), max(1, round(width * scale)))
    return "\n".join(_pixel_line(*rows, style) for rows in zip(pixels[::2], pixels[1::2], strict=True))


def _pixel_line(upper: NDArray[np.uint8], lower: NDArray[np.uint8], style: Style) -> str:
    """Draw two rows of pixels, with colour codes where the colour changes."""
    parts, before = [], ""
    for above, below in zip(upper, lower, strict=True):
        code = f"\x1b[38;{_code(above, style)};48;{_code(below, style)}m"
        parts.append("▀" if code == before else code + "▀")
        before = code
    return "".join(parts) + _RESET


def _resize(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Resize an image; every new pixel is the mean of the old ones under it."""
    rows = np.linspace(0, image.shape[0], height + 1).astype(int)
    columns = np.linspace(0, image.shape[1], width + 1).astype(int)
    # Where the image is enlarged, an old pixel stands in several new ones.
    rows[1:], columns[1:] = np.maximum(rows[1:], rows[:-1]), np.maximum(columns[1:], columns[:-1])
    sums = np.add.reduceat(np.add.reduceat(image.astype(np.float64), rows[:-1], axis=0), columns[:-1], axis=1)
    counts = np.maximum(np.diff(rows), 1)[:, None, None] * np.maximum(np.diff(columns), 1)[None, :, None]
    result: NDArray[np.uint8] = (sums / counts).round().astype(np.uint8)
    return result


def _code(pixel: NDArray[Any], style: Style) -> str:
    if style.all_colours:
        red, green, blue = (int(part) for part in pixel)
        return f"2;{red};{green};{blue}"
    red, green, blue = (int(np.abs(_LEVELS - int(part)).argmin()) for part in pixel)
    return f"5;{16 + 36 * red + 6 * green + blue}"
