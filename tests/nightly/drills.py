"""Drills: processes are killed, disks are full, clocks jump, commands and clients are bad. Nothing may be lost.

python -m tests.nightly.drills                                        # all drills, about half an hour
python -m tests.nightly.drills commands trainer --commands 50 --kills 5

trainer     kill -9 of the trainer at random moments, each followed by `resume=`
worker      kill -9 of an environment worker process; `resume=`
evaluator   kill -9 of the process that evaluates; training goes on
runner      kill -9 of a runner on Ray; training goes on (with the extra `ray`)
server      kill -9 of the policy server; it is started again on the same port
disk        a disk that is full during training, then has room again; `resume=` (as root, who may mount file systems)
read_only   commands that write into a read-only file system (as root)
clock       a clock that jumps back and forth while training is killed and resumed
commands    bad commands: one sentence, exit code 2 or 1, and no traceback
clients     bad clients of the policy server beside a good one

After kills the final checkpoint must be that of an undisturbed run, bit for bit: weights, optimizer, environments, random
numbers. Exit code 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.training.tracking.logger import read_metrics
from tests import processes
from tests.enn_ppo.rows import difference, end_of
from tests.nightly import drill_server

INTERVAL, STEPS = 2, 400 * 64  # updates between two checkpoints, environment steps of a run of 400 updates
#: A run of seconds, in a world that saves its state.
SETTINGS = (
    *("env=MineSweeper", "env.kwargs.width=4", "env.kwargs.height=4", "env.kwargs.num_mines=2"),
    *(
        "rollout.num_envs=8",
        "rollout.steps=8",
        "optim.batch_size=32",
        "net.d_model=16",
        "net.n_layer=1",
        "net.n_head=2",
    ),
    *(f"checkpoint_interval={INTERVAL}", "num_threads=1", "device=cpu", f"total_timesteps={STEPS}"),
)
PATIENCE = 180.0  # seconds after which a process that has to end hangs
#: `time.time` jumps by up to a day, back and forth. Python reads it, and files get other dates.
JUMPING_CLOCK = """
import os, random, time
true, rng = time.time, random.Random(os.getpid())
time.time = lambda: true() + rng.uniform(-86400, 86400)
time.time_ns = lambda: int(1e9 * time.time())
"""


class Lost(Exception):  # noqa: N818 - says what was lost
    """A drill's finding: something was lost, or a message does not help."""


@dataclass
class Tally:
    """The outcome of a drill."""

    tried: int = 0
    lost: list[str] = field(default_factory=list)  # one text for each loss
    note: str = ""
    skipped: str = ""  # why the drill could not be held
    seconds: float = 0.0

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Count an attempt, and note what it lost."""
        self.tried += 1
        try:
            yield
        except Lost as lost:
            self.lost.append(str(lost))
            print(f"    LOST: {lost}", flush=True)


@dataclass
class Drills:
    """The drills' common parts: a folder, random numbers, and undisturbed runs.

    Args:
        folder: for runs.
        sizes: how much is tried: the options of the command.
    """

    folder: Path
    sizes: argparse.Namespace
    undisturbed: dict[tuple[str, ...], Path] = field(default_factory=dict)

    def whole_run(self, *settings: str) -> Path:
        """The run directory of an undisturbed run with these settings."""
        if settings not in self.undisturbed:
            run = Run(self.folder / f"undisturbed_{len(self.undisturbed)}", *settings)
            run.finish()
            self.undisturbed[settings] = run.directory
        return self.undisturbed[settings]


class Run:
    """A run that is killed and resumed.

    Args:
        directory: the run directory.
        more: settings of its first start besides `SETTINGS`; resumed runs take them from their checkpoint.
        environment: further environment variables.
    """

    def __init__(self, directory: Path, *more: str, **environment: str) -> None:
        self.directory, self.settings, self.environment = directory, (*SETTINGS, *more), environment
        self.output = directory.with_name(f"{directory.name}_output")

    def arguments(self) -> list[str]:
        """Arguments that start the run, or resume it as soon as there is a checkpoint."""
        if (self.directory / "checkpoints").exists():
            return [f"resume={self.directory}"]
        return [f"run_dir={self.directory}", "overwrite=true", *self.settings]

    def start(self) -> subprocess.Popen[str]:
        """Start or resume the run."""
        with self.output.open("wb") as output:
            stream: Any = {"stdout": output, "stderr": subprocess.STDOUT}
            return processes.start("-m", "enn_ppo.train", *self.arguments(), **stream, **self.environment)

    def finish(self) -> None:
        """Start or resume the run, and wait for its end.

        Raises:
            Lost: it does not end well.
        """
        self.await_end(self.start(), (0,))

    def await_end(self, process: subprocess.Popen[str], codes: Sequence[int]) -> str:
        """Wait for the end of the process, and return what it wrote.

        Raises:
            Lost: it hangs, ends with another exit code, or with a traceback.
        """
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Lost(f"training hangs: {_last_lines(self.output.read_text())}") from None
        said = self.output.read_text(errors="replace")
        if code not in codes or "Traceback" in said:
            raise Lost(f"training ended with exit code {code}: {_last_lines(said)}")
        return said

    def wait_for_update(self, process: subprocess.Popen[str]) -> bool:
        """Wait until the process has trained for an update. Returns whether it still runs."""
        metrics = self.directory / "metrics.jsonl"
        before = _lines(metrics)
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < deadline:
            now = _lines(metrics)
            if now < before:  # cut back to the checkpoint
                before = now
            if now > before:
                return True
            time.sleep(0.005)
        return process.poll() is None

    def lost_updates(self) -> int:
        """The number of finished updates that the newest checkpoint does not have.

        Raises:
            Lost: they are more than come between two checkpoints.
        """
        rows = rows_of(self.directory)
        saved = load_checkpoint(self.directory).step if rows and (self.directory / "checkpoints").exists() else 0
        lost = sum(row["step"] > saved for row in rows)
        if lost > INTERVAL:
            raise Lost(f"{lost} updates, more than a checkpoint interval of {INTERVAL}, came after the checkpoint")
        return lost


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    """The updates' rows of metrics.jsonl, without times. The last one may be half written, and then is left out."""
    metrics = run_dir / "metrics.jsonl"
    rows = [row for row in read_metrics(metrics) if "seconds" in row] if metrics.exists() else []
    timed = re.compile(r"seconds|share_|eval/|.*_per_second$")
    return [{name: value for name, value in row.items() if not timed.match(name)} for row in rows]


def check_same(run_dir: Path, undisturbed: Path) -> None:
    """Compare the last checkpoints and the metrics of two runs.

    Raises:
        Lost: they differ.
    """
    # not how long it took, and which evaluations still ran
    ends = [end_of(run, without=("seconds", "evaluations")) for run in (run_dir, undisturbed)]
    if (found := difference(*ends)) is not None:
        raise Lost(f"the last checkpoint of {run_dir} is not that of the undisturbed run: {found}")
    if rows_of(run_dir) != rows_of(undisturbed):
        raise Lost(f"the metrics of {run_dir} differ from those of the undisturbed run")


# --- Kills


def trainer(drills: Drills, tally: Tally) -> None:
    """Kill the trainer at random moments: a quarter of them while it starts, the others while it trains and saves."""
    _kill_trainer(drills, tally, "trainer", drills.sizes.kills)


def _kill_trainer(
    drills: Drills,
    tally: Tally,
    name: str,
    kills: int,
    after_kill: Callable[[Run, random.Random], None] = lambda run, rng: None,
    **environment: str,
) -> None:
    rng = random.Random(name)
    whole = drills.whole_run()
    number, most, left = 0, 0, kills
    while left > 0:
        run = Run(drills.folder / f"{name}_{number}", **environment)
        number += 1
        with tally.attempt():
            tally.tried -= 1
            while left > 0:
                process = run.start()
                if rng.random() < 0.25:
                    time.sleep(rng.uniform(0.0, 5.0))
                elif run.wait_for_update(process):
                    time.sleep(rng.uniform(0.0, 0.4))
                children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
                process.kill()
                if process.wait() == 0:
                    break  # the run had ended before
                left -= 1
                tally.tried += 1
                _check_gone(children)
                most = max(most, run.lost_updates())
                after_kill(run, rng)
            else:
                run.finish()
            run.await_end(process, (0, -signal.SIGKILL))
            check_same(run.directory, whole)
        shutil.rmtree(run.directory, ignore_errors=True)
    tally.note = f"{number} runs; at most {most} updates after the last checkpoint were repeated"


def worker(drills: Drills, tally: Tally) -> None:
    """Kill an environment worker process: the run ends with a sentence, or goes on, and is resumed."""
    settings = ("rollout.num_processes=2", f"total_timesteps={STEPS // 4}")
    whole = drills.whole_run(*settings)
    for number in range(drills.sizes.other_kills):
        with tally.attempt():
            run = _child_killed(Run(drills.folder / f"worker_{number}", *settings), 1)
            run.lost_updates()
            run.finish()
            check_same(run.directory, whole)


def evaluator(drills: Drills, tally: Tally) -> None:
    """Kill the process that evaluates checkpoints: training goes on, and all evaluations but the one under way are done."""
    settings = (f"eval.interval={STEPS // 4}", "eval.episodes=2000")
    whole = drills.whole_run(*settings)
    for number in range(drills.sizes.other_kills):
        with tally.attempt():
            run = _child_killed(Run(drills.folder / f"evaluator_{number}", *settings), 0)
            check_same(run.directory, whole)
            said, mine, expected = run.output.read_text(), evaluated(run.directory), evaluated(whole)
            for step in expected.keys() - mine.keys():
                if f"the evaluation of step {step:,} failed: its process was killed" in said:
                    del expected[step]
            if mine != expected:
                raise Lost(f"evaluated were {sorted(mine)}, and undisturbed {sorted(expected)}, or with other scores")


def evaluated(run_dir: Path) -> dict[int, float]:
    """Step -> reward of the evaluation."""
    rows = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return {int(row["eval/step"]): row["eval/episodic_reward"] for row in rows if "eval/step" in row}


def runner(drills: Drills, tally: Tally) -> None:
    """Kill a runner on Ray: training goes on and ends at its last step."""
    if importlib.util.find_spec("ray") is None:
        tally.skipped = "ray is not installed"
        return
    steps = STEPS // 4
    for number in range(min(drills.sizes.other_kills, 2)):  # a cluster takes long to start
        with tally.attempt():
            run = Run(drills.folder / f"runner_{number}", "distributed=ray", f"total_timesteps={steps}")
            _child_killed(run, 0, "ray::EnvRunner")
            if (step := load_checkpoint(run.directory).step) < steps:
                raise Lost(f"training ended at step {step:,} of {steps:,}")


def server(drills: Drills, tally: Tally) -> None:
    """Kill the policy server while a client asks: the next server on the same port gives the same answers."""
    rng, checkpoint, port = random.Random("server"), str(drills.whole_run()), 0
    first: dict[str, Any] | None = None
    for _ in range(drills.sizes.other_kills):
        with tally.attempt(), drill_server.serving(checkpoint, drills.folder, port) as (process, port):
            client = drill_server.GoodClient(port)
            for _ in range(rng.randrange(1, 200)):
                client.ask()
            if not client.lives or client.wrong:
                raise Lost("the good client got no answer, or another one")
            first = first or client.first
            if {**(client.first or {}), "id": 1} != {**(first or {}), "id": 1}:
                raise Lost("the server answers otherwise than before it was killed")
            process.kill()
            process.wait()
    tally.note = "same port, same answers"


def _child_killed(run: Run, code: int, title: str = "") -> Run:
    """Start the run, kill one of its child processes at a random moment after the first update, and await its exit code.

    Raises:
        Lost: the run ended before, or otherwise.
    """
    rng, process = random.Random(run.directory.name), run.start()
    run.wait_for_update(process)
    time.sleep(rng.uniform(0.0, 0.5))
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children(recursive=True)
            if found := [child for child in children if not title or title in " ".join(child.cmdline())]:
                rng.choice(found).kill()
                run.await_end(process, (code,))
                return run
        time.sleep(0.01)
    raise Lost(f"the run ended before a process of it could be killed: {_last_lines(run.output.read_text())}")


def _check_gone(children: Sequence[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(children, timeout=15)
    if alive:
        raise Lost(f"{len(alive)} child processes outlive the killed trainer")


# --- Folders


def disk(drills: Drills, tally: Tally) -> None:
    """Train on a disk that becomes full, at random sizes; then it has room, and the run is resumed."""
    rng, whole = random.Random("disk"), drills.whole_run()
    for number in range(min(drills.sizes.other_kills, 5)):
        with processes.mounted(drills.folder / "disk", f"size={rng.randrange(100, 1500)}k") as mount:
            if mount is None:
                tally.skipped = "file systems cannot be mounted"
                return
            with tally.attempt():
                run = Run(mount / "run", "keep_last=1000")
                run.output = drills.folder / f"disk_{number}_output"
                said = run.await_end(run.start(), (2,))
                if "No space left on device" not in said:
                    raise Lost(f"the message does not name the full disk: {_last_lines(said)}")
                subprocess.run(["mount", "-o", "remount,size=200m", str(mount)], check=True)
                run.lost_updates()
                run.finish()
                check_same(run.directory, whole)


def read_only(drills: Drills, tally: Tally) -> None:
    """Commands that write into a read-only file system end with a sentence; those that only read one, work."""
    from tests.nightly import bad_commands

    run_dir = drills.whole_run()
    with processes.mounted(drills.folder / "read_only") as mount:
        if mount is None:
            tally.skipped = "file systems cannot be mounted"
            return
        shutil.copytree(run_dir, mount / "run", symlinks=True)
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
        target, scratch = str(mount / "new"), drills.folder / "read_only_commands"
        scratch.mkdir()
        train, tiny = ("env=Count", "total_timesteps=32"), bad_commands.TINY
        commands = [
            ("train", (*train, *tiny, f"run_dir={target}")),
            ("train", (f"resume={mount / 'run'}", f"total_timesteps={2 * STEPS}")),
            ("train", (*train, *tiny, f"run_dir={mount / 'run'}", "overwrite=true")),
            ("eval", (f"checkpoint={mount / 'run'}", "episodes=2", f"output={target}")),
            ("eval", (f"checkpoint={mount / 'run'}", "episodes=2", f"record={target}")),
            ("eval", (f"checkpoint={mount / 'run'}", "episodes=2", f"render={target}.gif")),
            ("sweep", ("sweep=ppo", "env=Count", f"run_dir={target}", "sweep.trials=1")),
            ("export", (str(mount / "run"), f"{target}.safetensors")),
            ("plot", (str(mount / "run"), f"output={target}.png")),
        ]
        for name, arguments in commands:
            with tally.attempt():
                command = bad_commands.Command(name, arguments, ("Read-only file system",))
                if problem := bad_commands.judge(command, scratch):
                    raise Lost(f"{command}: {problem}")
        with tally.attempt():
            command = bad_commands.Command("eval", (f"checkpoint={mount / 'run'}", "episodes=2"), ())
            if not (problem := bad_commands.judge(command, scratch)).startswith("the mistake was accepted"):
                raise Lost(f"a run in a read-only folder cannot be evaluated: {problem}")


# --- The clock


def clock(drills: Drills, tally: Tally) -> None:
    """Train with a clock that jumps by up to a day, kill the trainer, and date its files into the future or the past."""
    patch = drills.folder / "jumping_clock"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(JUMPING_CLOCK)

    def redate(run: Run, rng: random.Random) -> None:
        for file in run.directory.rglob("*"):
            when = time.time() + rng.uniform(-1e7, 1e7)
            os.utime(file, (when, when), follow_symlinks=False)

    _kill_trainer(drills, tally, "clock", drills.sizes.other_kills, redate, PYTHONPATH=str(patch))


# --- Commands and clients


def commands(drills: Drills, tally: Tally) -> None:
    """Run bad commands in children of this process, which has imported all modules already."""
    from tests.nightly import bad_commands

    folder = drills.folder / "commands"
    folder.mkdir()
    rng = random.Random("commands")
    for command in bad_commands.bad_commands(drills.sizes.commands, rng, folder, drills.whole_run()):
        with tally.attempt():
            if problem := bad_commands.judge(command, folder):
                raise Lost(f"{command}: {problem}")


def clients(drills: Drills, tally: Tally) -> None:
    """Let clients misbehave towards a server beside a good client."""
    sizes = drills.sizes
    survived, tally.note = drill_server.drill(str(drills.whole_run()), drills.folder, sizes.clients, sizes.seconds)
    tally.tried = sizes.clients
    if not survived:
        tally.lost.append(tally.note)


DRILLS: dict[str, tuple[str, Callable[[Drills, Tally], None]]] = {
    # Commands run in forks of this process, so they come before drills that start threads.
    "commands": ("bad commands", commands),
    "read_only": ("commands on a read-only file system", read_only),
    "trainer": ("`kill -9` of the trainer", trainer),
    "worker": ("`kill -9` of an environment worker", worker),
    "evaluator": ("`kill -9` of the evaluator", evaluator),
    "runner": ("`kill -9` of a Ray runner", runner),
    "server": ("`kill -9` of the policy server", server),
    "disk": ("full disk", disk),
    "clock": ("clock that jumps, with `kill -9`", clock),
    "clients": ("bad clients beside a good one", clients),
}


def table(tallies: Mapping[str, Tally]) -> str:
    """A table in Markdown."""
    lines = ["| Drill | Tried | Survived | Lost | Seconds | |", "|---|---:|---:|---:|---:|---|"]
    for name, tally in tallies.items():
        what = DRILLS[name][0]
        if tally.skipped:
            lines.append(f"| {what} | 0 | | | | skipped: {tally.skipped} |")
            continue
        lost = len(tally.lost)
        lines.append(
            f"| {what} | {tally.tried} | {max(0, tally.tried - lost)} | {lost} | {tally.seconds:.0f} | {tally.note} |"
        )
    return "\n".join(lines)


def _lines(file: Path) -> int:
    with suppress(OSError):
        return file.read_bytes().count(b"\n")
    return 0


def _last_lines(text: str) -> str:
    return " / ".join(text.strip().splitlines()[-3:])[-500:]


def main(argv: Sequence[str] | None = None) -> int:
    """Hold the drills, print their table, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("drills", nargs="*", metavar="DRILL", help=f"{', '.join(DRILLS)}; without any, all")
    parser.add_argument("--kills", type=int, default=50, help="of the trainer (50)")
    parser.add_argument("--other-kills", type=int, default=5, help="of each other process; Ray runners: at most 2 (5)")
    parser.add_argument("--commands", type=int, default=250, help="bad commands (250)")
    parser.add_argument("--clients", type=int, default=240, help="bad clients (240)")
    parser.add_argument("--seconds", type=float, default=60.0, help="for which clients misbehave (60)")
    options = parser.parse_args(argv)
    if unknown := set(options.drills) - DRILLS.keys():
        parser.error(f"there is no drill {', '.join(unknown)}; there are {', '.join(DRILLS)}")
    tallies = {}
    with tempfile.TemporaryDirectory(prefix="drills_") as folder:
        drills = Drills(Path(folder), options)
        for name in [name for name in DRILLS if name in (options.drills or DRILLS)]:
            print(f"{name} ...", flush=True)
            began, tally = time.monotonic(), Tally()
            try:
                DRILLS[name][1](drills, tally)
            except Lost as lost:  # outside of an attempt: no undisturbed run
                tally.lost.append(str(lost))
            tally.seconds = time.monotonic() - began
            tallies[name] = tally
    print(table(tallies))
    for name, tally in tallies.items():
        for text in tally.lost:
            print(f"{name}: {text}")
    return 1 if any(tally.lost for tally in tallies.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
