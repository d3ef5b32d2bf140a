"""Output of a run: a dashboard in a terminal, elsewhere few lines. And how it ends where its metrics cannot be written."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from enn_ppo import EnvConfig, OptimConfig, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.training.callbacks import Callback, Update
from enn_ppo.training.tracking import run_output
from enn_ppo.training.tracking.logger import MetricsLogger, Row, read_metrics
from enn_ppo.training.tracking.run_output import RunOutput, make_live
from enn_ppo.training.tracking.symptoms import PAGE
from tests.enn_ppo.worlds import Copycat, tiny_config

Make = Callable[..., RunOutput]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(run_output, "monotonic", made)
    return made


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes the output of a run of 20,000 steps into `tmp_path`."""

    def made(step: int | None = None, name: str = "", live: Live | None = None, **changes: Any) -> RunOutput:
        config = tiny_config(tmp_path, env=EnvConfig(id="Walk"), **({"total_timesteps": 20_000} | changes))
        return RunOutput(tmp_path, config, step, name, live)

    return made


def row(step: int, **others: float | None) -> Row:
    metrics = {"episodic_reward": 0.5, "episode_length": 12.25, "entropy": 1.5, "approx_kl": 0.00412}
    return {"step": step, "seconds": 1.0, **metrics} | others


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_line_has_the_last_known_values_and_every_row_is_stored(
    make: Make, clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with make() as output:
        output.log({"step": 0, "seconds": 0.0, "episodic_reward": None})
        clock.now += 10.0
        output.log(row(5_000) | {"steps_per_second": 12345.6})
        output.say("finishing this update")
        output.log(
            {"step": 10_000, "seconds": 1.0, "episodic_reward": None, "entropy": 1.25, "approx_kl": float("nan")}
        )
    known = "episodic_reward 0.5  episode_length 12.25"
    assert lines(capsys) == [
        "0/20,000 steps (0%)",
        f"5,000/20,000 steps (25%)  0:00:30 left  steps_per_second 12,346  {known}  entropy 1.5  approx_kl 0.00412",
        "finishing this update",
        f"10,000/20,000 steps (50%)  0:00:10 left  steps_per_second 12,346  {known}  entropy 1.25  approx_kl 0.00412",
        f"done: {tmp_path}",
    ]
    assert [each["step"] for each in read_metrics(tmp_path / "metrics.jsonl")] == [0, 5_000, 10_000]


def test_the_time_left_of_a_resumed_run_counts_only_its_own_steps(
    make: Make, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    output = make(10_000, "red")
    output.log(row(10_000))
    clock.now += 10.0
    output.log(row(11_000))
    assert lines(capsys)[1].startswith("red: 11,000/20,000 steps (55%)  0:01:30 left  episodic_reward")


def test_lines_are_the_first_one_every_ten_seconds_and_the_last(
    make: Make, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with make() as output:
        for step in range(1, 23):  # a row every second
            clock.now += 1.0
            output.log(row(step))
    assert [line.split("/")[0] for line in lines(capsys)[:-1]] == ["1", "11", "21", "22"]


def test_the_time_left_is_that_of_the_wall_clock_where_it_is_nearer(
    make: Make, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    output = make(max_train_seconds=20.0)
    output.show(0, 0.0)
    clock.now += 10.0
    output.show(1000, 10.0)
    # by steps alone, 5 % and 190 seconds
    assert lines(capsys)[1:] == ["1,000/20,000 steps (50%)  0:00:10 left"]


def test_an_evaluation_that_ended_after_the_last_update_is_a_row_of_its_own(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late: Row = {"step": 160, "eval/step": 96.0, "eval/episodic_reward": 0.25, "eval/episodic_reward_ci95": 0.125}
    output = make()
    output.log({"step": 160, "seconds": 1.0})
    output.log(late)
    assert read_metrics(tmp_path / "metrics.jsonl")[1] == late
    assert lines(capsys)[1:] == ["evaluation of step 96:  eval/episodic_reward 0.25  eval/episodic_reward_ci95 0.125"]


@pytest.mark.parametrize(
    ("largest", "step", "epochs", "is_told"),
    [
        (9e-6, None, 2, True),
        (2e-5, None, 2, False),
        (0.0, None, 2, False),  # nothing was rewarded yet
        (9e-6, 0, 2, False),  # a resumed run may have learned before
        (9e-6, None, 1, False),  # measured before the update
    ],
)
def test_a_policy_that_hardly_moves_in_a_fifth_of_the_run_is_told_once(
    largest: float, step: int | None, epochs: int, is_told: bool, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    output = make(step, optim=OptimConfig(epochs=epochs, batch_size=8))
    said = []
    for at, approx_kl in ((1_000, 0.0), (2_000, largest), (3_900, 0.0), (4_000, 0.0), (5_000, 0.0)):
        output.log(row(at, approx_kl=approx_kl))
        said += [(at, line) for line in lines(capsys) if "hardly moves" in line]
    advice = "take a larger optim.lr, more optim.epochs or a smaller optim.batch_size"
    told = f"approx_kl was at most 9e-06 so far: the policy hardly moves; {advice}: {PAGE}"
    assert said == [(4_000, told)] * is_told


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux")
@pytest.mark.parametrize("target", ["full", "pipe", "both", "closed"])
def test_a_run_goes_on_where_standard_output_cannot_be_written(target: str, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from enn_ppo import TrainConfig; from enn_ppo.training.tracking.run_output import *\n"
        f"live, folder = make_live(), Path({str(tmp_path)!r})\n"
        "from entity_gym.compiled.compiler import announce\n"
        f"if {target!r} == 'both': announce('a world')()\n"
        "with RunOutput(folder, TrainConfig(), None, live=live) as output:\n"
        "    for step in range(3): output.say(f'line {step}'); output.log({'step': step, 'seconds': step})\n"
        "(folder / 'metrics.jsonl').rename(folder / 'the end')\n"
    )
    script = {
        "full": '"$0" -c "$1" > /dev/full',
        "pipe": 'set -o pipefail; { sleep 0.3; "$0" -c "$1"; } | true',
        "both": 'set -o pipefail; { sleep 0.3; "$0" -c "$1"; } 2>&1 | true',
        "closed": '"$0" -c "$1" >&-',
    }[target]
    done = subprocess.run(["bash", "-c", script, sys.executable, code], capture_output=True, text=True)
    told = {"full": "No space left on device", "pipe": "Broken pipe"}.get(target)
    assert done.returncode == 0, done.stderr
    assert done.stderr == (f"standard output cannot be written ({told}): training goes on\n" if told else "")
    assert len(read_metrics(tmp_path / "the end")) == 3


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


def drawn(made: RunOutput, columns: int = 80) -> list[str]:
    console = Console(file=Terminal(), width=columns)
    with console.capture() as capture:
        console.print(made)
    return [re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in capture.get().splitlines()]


def test_the_dashboard_is_read_like_this(
    make: Make, monkeypatch: pytest.MonkeyPatch, clock: Clock, tmp_path: Path
) -> None:
    in_terminal(monkeypatch)
    with make(live=make_live(), total_timesteps=100_000) as output:
        output.show(0, 0.0)
        assert drawn(output, 200)[1:] == ["  0% " + "━" * 185 + " 0/100,000", "0:00:00 of training"]
        clock.now += 10.0
        output.log(row(25_000, share_env=0.25, value_loss=0.25))
        output.log({"step": 25_000, "seconds": 9.0, "episodic_reward": None})
        clock.now += 5.0
        output.show(30_000, 15.0)
    assert drawn(output, 200)[0] == f"Walk  {tmp_path}"
    assert drawn(output)[-4:] == [
        " 30% " + "━" * 18 + "╺" + "━" * 41 + " 30,000/100,000",
        "0:00:35 left  0:00:15 of training",
        "episodic_reward        0.5 entropy                1.5 value_loss            0.25",
        "episode_length       12.25 approx_kl          0.00412 share_env             0.25",
    ]


@pytest.mark.parametrize("columns", [1, 40, 75, 200])
def test_it_fits_into_any_width_and_no_name_reaches_the_terminal_as_a_sequence(
    columns: int, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_terminal(monkeypatch)
    with make(name="\x1b[2J" + "long/" * 60 + "end", live=make_live()) as output:
        output.log(row(5))
    assert not any("\x1b" in line for line in drawn(output, columns))
    assert max(map(len, drawn(output, columns))) <= columns


@pytest.mark.parametrize("no_color", ["", "1"])
def test_the_dashboard_has_no_color_where_the_terminal_asks_for_none(
    no_color: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = in_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", no_color)
    with make(live=make_live()) as output:
        output.log(row(5))
    assert ("\x1b[3" in terminal.getvalue()) == (no_color == "")


@pytest.mark.parametrize(
    ("stdout", "stderr", "term", "encoding", "is_live"),
    [
        (True, True, "xterm", "utf-8", True),
        (False, True, "xterm", "utf-8", False),
        (True, False, "xterm", "utf-8", False),
        (True, True, "dumb", "utf-8", False),
        (True, True, "xterm", "ascii", False),
        (True, True, "xterm", "cp1252", False),
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


def test_messages_and_prints_stand_above_the_dashboards_of_all_policies(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = in_terminal(monkeypatch)
    live = make_live()
    red, blue = (make(None, name, live) for name in ("red", "blue"))
    with red, blue:
        red.say("before")
        assert terminal.getvalue() == "red: before\n"
        for output in (red, blue):
            output.log(row(50))
        assert (
            re.findall(r"\x1b\[\?25[lh]", terminal.getvalue())[-1] == "\x1b[?25h"
        )  # also if the process is killed now
        begun = len(terminal.getvalue())
        red.say("[bold]a message[/bold]")
        print("of a world", file=sys.stderr)
        print("unfinished", end="")
    assert sys.stdout is sys.stderr is terminal
    shown = re.sub(r"\x1b\[\??[\d;]*[a-zA-Z]", "", terminal.getvalue()[begun:]).replace("\r", "").splitlines()
    said = [shown.index(text) for text in ("red: [bold]a message[/bold]", "of a world", "unfinished")]
    assert said == sorted(said)
    last = [line.split()[:2] for line in shown[said[-1] + 1 :]]
    assert [line[0] for line in last if line[1:] == ["Walk"]] == ["red:", "blue:"]


# --- Metrics that cannot be written


def test_metrics_on_a_full_disk_end_the_run_and_name_what_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = MetricsLogger.log

    def full_after_two_updates(logger: MetricsLogger, row: Row) -> None:
        if int(row["step"] or 0) > 64:
            raise OSError(28, "No space left on device", "metrics.jsonl")
        write(logger, row)

    monkeypatch.setattr(MetricsLogger, "log", full_after_two_updates)
    run_dir = tmp_path / "a"
    with pytest.raises(ValueError) as raised:
        train(tiny_config(run_dir, env=EnvConfig(), checkpoint_interval=2), env=Copycat)
    assert re.fullmatch(
        rf"{run_dir}/metrics.jsonl cannot be written: .*No space left on device.*; training ends after 96 steps",
        str(raised.value),
    )
    last = run_dir / "checkpoints/step_000000000064.safetensors"
    assert raised.value.__notes__ == [f"saved {last}; go on with resume={run_dir}"]
    assert load_checkpoint(run_dir).step == 64
    monkeypatch.setattr(MetricsLogger, "log", write)
    train(tiny_config(run_dir, env=EnvConfig(), resume=str(run_dir)), env=Copycat)
    assert [row["step"] for row in read_metrics(run_dir / "metrics.jsonl")] == [32, 64, 96, 128, 160]


def test_a_run_directory_that_vanishes_ends_the_run_and_what_was_learned_is_saved(tmp_path: Path) -> None:
    run_dir = tmp_path / "a"

    class Remove(Callback):
        def on_update(self, update: Update) -> None:
            if update.step == 64:
                shutil.rmtree(run_dir)

    with pytest.raises(ValueError, match=r"metrics.jsonl cannot be written: .*No such file"):
        train(tiny_config(run_dir, env=EnvConfig()), env=Copycat, callbacks=[Remove()])
    assert load_checkpoint(run_dir).step == 96
