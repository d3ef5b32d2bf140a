"""Ctrl-C inside a process: the first finishes what it can, the second aborts."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from enn_ppo import Interrupted, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.training.interrupt import finish_on_interrupt
from tests.enn_ppo.worlds import CtrlC, tiny_config


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def handler_is_put_back() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    CtrlC.acts, CtrlC.presses = 0, 1
    yield
    assert signal.getsignal(signal.SIGINT) is before
    CtrlC.at = 0


def test_sigterm_of_a_scheduler_is_an_orderly_end_too() -> None:
    said: list[str] = []
    with finish_on_interrupt(said.append) as interrupted:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupted() == "terminated"
    assert said == ["SIGTERM: finishing this update and writing a checkpoint; send it again to abort at once"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_second_press_interrupts_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), finish_on_interrupt(lambda text: None):
        press()
        press()
        pytest.fail("goes on after the second press")


def test_in_a_thread_that_gets_no_signals_everything_else_works() -> None:
    seen: list[str | None] = []

    def work() -> None:
        with finish_on_interrupt(lambda text: None) as interrupted:
            seen.append(interrupted())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None]


@pytest.mark.usefixtures("curves")
def test_an_interrupted_run_finishes_its_update_saves_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "a"
    CtrlC.at = 32 + 32 + 5  # after the rollout for the normalization and one update
    with pytest.raises(Interrupted) as raised:
        train(tiny_config(run_dir), env=CtrlC)
    saved = run_dir / "checkpoints/step_000000000064.safetensors"
    assert str(raised.value) == f"interrupted after 64 steps; saved {saved}; go on with resume={run_dir}"
    assert load_checkpoint(run_dir).path == saved
    assert len((run_dir / "metrics.jsonl").read_text().splitlines()) == 2
    assert (run_dir / "learning_curve.png").is_file()
    output = capsys.readouterr().out
    assert "Ctrl-C: finishing this update" in output
    assert "done" not in output


def test_in_an_interactive_session_an_interrupted_run_returns_its_result_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    CtrlC.at = 32 + 32 + 5
    result = train(tiny_config(tmp_path / "a"), env=CtrlC)
    assert result.step == 64 and result.metrics is not None
    assert f"or train(resume={str(tmp_path / 'a')!r}, total_timesteps=160)" in capsys.readouterr().out


def test_a_press_during_the_last_update_comes_too_late(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CtrlC.at = 32 + 4 * 32 + 5  # in the fifth and last rollout
    assert train(tiny_config(tmp_path / "a"), env=CtrlC).step == 160
    output = capsys.readouterr().out
    assert "Ctrl-C: finishing this update" in output and output.splitlines()[-1].startswith("done")


def test_a_second_press_aborts_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "a", checkpoint_interval=2)
    CtrlC.at, CtrlC.presses = 32 + 3 * 32 + 5, 2
    with pytest.raises(KeyboardInterrupt):
        train(config, env=CtrlC)
    assert load_checkpoint(tmp_path / "a").step == 64
    assert len((tmp_path / "a/metrics.jsonl").read_text().splitlines()) == 3
    CtrlC.at = 0
    assert train(replace(config, resume=str(tmp_path / "a"), run_dir=None), env=CtrlC).step == 160
