"""Jobs in processes of their own: what they are given, how they end, and what is known about it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from enn_ppo.settings.command_line.job_process import JobProcess, StopSignals, last_line, shared_cores
from enn_ppo.training.errors import Interrupted

REPOSITORY = Path(__file__).parents[4]


def wait(process: JobProcess, seconds: float = 60) -> int:
    deadline = time.monotonic() + seconds
    while (code := process.poll()) is None:
        assert time.monotonic() < deadline, "the job does not end"
        time.sleep(0.02)
    return code


def wait_for(path: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(0.02)


def ends_by(name: str) -> Callable[[Path], object]:
    """Functions inside a function: a worker cannot import them."""

    def action(folder: Path) -> object:
        print("working")
        match name:
            case "nothing":
                (folder / "seen").write_text(os.environ["COLOUR"])
            case "a mistake":
                raise ValueError("the wall\nis red")
            case "a bug":
                raise TypeError("no wall")
            case "interruption":
                raise Interrupted("saved to out/a", exit_code=143)
            case "a kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "Ctrl-C":
                (folder / "ready").touch()
                time.sleep(60)
        return None

    return action


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("nothing", 0, "working"),
        ("a mistake", 2, "the wall is red"),
        ("a bug", 1, "TypeError: no wall"),
        ("interruption", 143, "saved to out/a"),
        ("a kill", -9, "was killed by SIGKILL (signal 9)"),
    ],
)
def test_a_job_ends_with_an_exit_code_and_a_reason(name: str, code: int, reason: str, tmp_path: Path) -> None:
    log = tmp_path / "logs/job.log"
    process = JobProcess(ends_by(name), tmp_path, log, environment={"COLOUR": "red"})
    assert wait(process) == code
    assert process.reason() == reason
    assert log.read_text().startswith("working\n") or code == -9
    assert not (name == "nothing") or (tmp_path / "seen").read_text() == "red"


def test_a_job_that_is_interrupted_ends_as_after_ctrl_c(tmp_path: Path) -> None:
    process = JobProcess(ends_by("Ctrl-C"), tmp_path, tmp_path / "log")
    wait_for(tmp_path / "ready")
    process.interrupt()
    assert (wait(process), process.reason()) == (130, "interrupted")
    process.interrupt()  # it is gone: nothing happens
    process.kill()


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file/log cannot be written"):
        JobProcess(print, tmp_path, tmp_path / "file" / "log")


def test_a_job_ends_in_order_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom enn_ppo.settings.command_line.job_process import JobProcess\n"
        "def work(folder):\n"
        "    try:\n        (folder / 'ready').touch(); time.sleep(60)\n"
        "    except KeyboardInterrupt:\n        (folder / 'ended').touch()\n"
        "process = JobProcess(work, Path(sys.argv[1]), Path(sys.argv[1]) / 'log')\ntime.sleep(60)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], env=environment)
    wait_for(tmp_path / "ready")
    parent.kill()
    parent.wait()
    wait_for(tmp_path / "ended")


def test_the_last_line_of_a_log_is_the_last_that_says_anything(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_line(log) == ""
    log.write_bytes(b"x" * 10_000 + b"\n first\nerror: second \n\n")
    assert last_line(log) == "second"


def test_processes_share_the_cores_unless_the_user_shared_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert shared_cores(1) == {}
    assert shared_cores(3) == {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "2"}
    assert shared_cores(20)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert shared_cores(2) == {"OMP_WAIT_POLICY": "PASSIVE"}


def test_signals_are_counted_and_the_third_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), StopSignals() as signals:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert (signals.count, signals.exit_code) == (2, 143)
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
