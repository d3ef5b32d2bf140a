"""Progress of a run: a dashboard in terminals of any size, and elsewhere few lines, always the first and the last."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console
from rich.live import Live

from enn_ppo.training.tracking.logger import Row
from enn_ppo.training.tracking.progress import Progress, clock_text, make_live


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def row(step: int, **others: float | None) -> Row:
    return {
        "step": step,
        "episodic_reward": 0.5,
        "episode_length": 12.25,
        "entropy": 1.5,
        "approx_kl": 0.00412,
    } | others


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_line_holds_everything_one_wants_to_know_and_values_that_were_known_stay(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(20_000, clock=clock)
    progress.update({"step": 0, "episodic_reward": None})
    clock.now += 10.0
    progress.update(row(5_000) | {"self_play/win_rate": 0.25})
    progress.say("finishing this update")
    progress.update({"step": 10_000, "episodic_reward": None, "entropy": 1.25, "approx_kl": float("nan")})
    progress.close()
    assert lines(capsys) == [
        "0/20,000 steps (0%)",
        "5,000/20,000 steps (25%)  500 steps/s  00:30 left  reward 0.500  length 12.2  entropy 1.500  kl 0.0041  won 0.25",
        "finishing this update",
        "10,000/20,000 steps (50%)  1,000 steps/s  00:10 left  reward 0.500  length 12.2  entropy 1.250  kl 0.0041  won 0.25",
    ]


def test_the_rate_of_a_resumed_run_counts_only_its_own_steps(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(20_000, 10_000, clock=clock)
    clock.now += 1.0
    progress.update(row(10_100))
    assert lines(capsys)[0].startswith("10,100/20,000 steps (50%)  100 steps/s  01:39 left")


def test_lines_are_the_first_one_every_interval_and_the_last(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(100, clock=clock)
    for step in range(1, 23):  # a row every second
        clock.now += 1.0
        progress.update(row(step))
    progress.close()
    progress.close()
    assert [line.split("/")[0] for line in lines(capsys)] == ["1", "11", "21", "22"]
    Progress(100, clock=clock).close()
    assert lines(capsys) == []


def test_the_time_left_is_that_of_the_wall_clock_where_it_is_nearer(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [Progress(20_000, max_seconds=10.0, clock=clock) for _ in range(2)]
    clock.now += 4.0
    both[0].update({"step": 1000, "seconds": 4.0})
    both[1].playing(1000, 4.0, 0.5)
    begin = "1,000/20,000 steps (40%)  250 steps/s  00:06 left"  # by steps alone, 5 % and 76 seconds
    assert lines(capsys) == [begin, f"{begin}  50% of the rollout"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.9, "00:00"), (61.0, "01:01"), (3_661.0, "1:01:01"), (90_061.0, "1d 01:01:01")],
)
def test_durations_are_read_like_clocks(seconds: float | None, text: str) -> None:
    assert clock_text(seconds) == text


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux")
@pytest.mark.parametrize("target", ["full", "pipe", "closed"])
def test_a_run_goes_on_where_standard_output_cannot_be_written(target: str) -> None:
    code = (
        "import sys; from enn_ppo.training.tracking.progress import Progress; p = Progress(9)\n"
        "for step in range(3): p.say(f'line {step}')\n"
        "sys.stderr.write('to the end\\n')"
    )
    how = {"full": "> /dev/full", "pipe": "| true", "closed": ">&-"}[target]
    script = f'"$0" -c "$1" {how}; exit ${{PIPESTATUS[0]}}' if target != "pipe" else f'sleep 1 | "$0" -c "$1" {how}'
    if target == "pipe":
        script = 'set -o pipefail; { sleep 0.3; "$0" -c "$1"; } | true'
    done = subprocess.run(["bash", "-c", script, sys.executable, code], capture_output=True, text=True)
    told = "" if target == "closed" else "standard output cannot be written ("
    assert done.returncode == 0 and done.stderr.startswith(told) and done.stderr.endswith("to the end\n"), done.stderr
    assert len(done.stderr.splitlines()) == (1 if target == "closed" else 2)


# --- In a terminal


class Terminal(io.StringIO):
    """A terminal as far as libraries can ask."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def in_terminal(monkeypatch: pytest.MonkeyPatch, encoding: str = "utf-8") -> Terminal:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    made = Terminal()
    monkeypatch.setattr(made, "encoding", encoding, raising=False)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, made)
    return made


def drawn(made: Progress, columns: int = 80) -> str:
    console = Console(file=Terminal(), width=columns)
    with console.capture() as capture:
        console.print(made)
    return capture.get()


def seen(made: Progress, columns: int = 80) -> list[str]:
    return [re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in drawn(made, columns).splitlines()]


def test_the_dashboard_is_read_like_this(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    in_terminal(monkeypatch)
    made = Progress(100_000, clock=clock, live=make_live(), title="MineSweeper  outputs/run")
    assert seen(made)[1:] == ["  0% " + "━" * 65 + " 0/100,000", "00:00 so far"]
    clock.now += 10.0
    for reward in (0.0, 0.25, 1.0, 0.5):
        made.update(row(25_000, episodic_reward=reward, share_env=0.25, value_loss=0.25))
    made.saved(20_480)
    clock.now += 5.0
    made.playing(30_000, 15.0, 0.375)
    made.close()
    assert seen(made) == [
        "MineSweeper  outputs/run",
        " 30% " + "━" * 18 + "╺" + "━" * 41 + " 30,000/100,000",
        "2,000 steps/s  00:35 left  38% of the rollout  00:15 so far  20,480 saved 00:05",
        "ago",
        "reward               0.500 ▁▃█▅         kl                  0.0041 ▁▁▁▁",
        "length                12.2 ▁▁▁▁         value loss          0.2500 ▁▁▁▁",
        "entropy              1.500 ▁▁▁▁         time in env            25% ▁▁▁▁",
    ]


@pytest.mark.parametrize("columns", [1, 40, 75, 80, 200])
def test_it_fits_into_any_width_and_no_name_reaches_the_terminal_as_a_sequence(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_terminal(monkeypatch)
    made = Progress(100, live=make_live(), title="outputs/\x1b[2J" + "long/" * 60 + "end")
    for _ in range(300):
        made.update(row(5))
    made.close()
    assert "\x1b[2J" not in drawn(made, columns)
    assert max(map(len, seen(made, columns))) <= columns


@pytest.mark.parametrize(
    ("stdout", "stderr", "term", "encoding", "is_live"),
    [
        (True, True, "xterm", "utf-8", True),
        (False, True, "xterm", "utf-8", False),
        (True, False, "xterm", "utf-8", False),
        (True, True, "dumb", "utf-8", False),
        (True, True, "xterm", "ascii", False),
    ],
)
def test_a_terminal_that_can_show_it_has_a_dashboard(
    stdout: bool, stderr: bool, term: str, encoding: str, is_live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_terminal(monkeypatch, encoding)
    for name, is_terminal in (("stdout", stdout), ("stderr", stderr)):
        if not is_terminal:
            monkeypatch.setattr(sys, name, io.StringIO())
    monkeypatch.setenv("TERM", term)
    assert isinstance(make_live(), Live) == is_live


def test_messages_and_prints_stand_above_the_dashboards_of_all_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = in_terminal(monkeypatch)
    live = make_live()
    both = [Progress(100, live=live, prefix=f"{name}: ", title="Walk") for name in ("red", "blue")]
    both[0].say("before")
    assert terminal.getvalue() == "red: before\n"
    for progress in both:
        progress.update(row(50))
    assert re.findall(r"\x1b\[\?25[lh]", terminal.getvalue())[-1] == "\x1b[?25h"  # also if the process is killed now
    begun = len(terminal.getvalue())
    both[0].say("[bold]a message[/bold]")
    print("of a world", file=sys.stderr)
    print("unfinished", end="")
    both[1].saved(48)
    for progress in both:
        progress.close()
    assert sys.stdout is sys.stderr is terminal
    shown = re.sub(r"\x1b\[\??[\d;]*[a-zA-Z]", "", terminal.getvalue()[begun:]).replace("\r", "").splitlines()
    said = [shown.index(text) for text in ("red: [bold]a message[/bold]", "of a world", "unfinished")]
    assert said == sorted(said)
    last = [line.split()[:2] for line in shown[said[-1] + 1 :]]
    assert [line[0] for line in last if line[1:] == ["Walk"]] == ["red:", "blue:"]
    assert any("48 saved 00:00 ago" in line for line in shown)
    assert terminal.getvalue().endswith("\x1b[?25h")
