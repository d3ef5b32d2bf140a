"""Commands with one mistake each, for `drills.py`: wrong names, types, numbers, files and combinations.

Most of them are made from the settings of `train`, `eval`, `serve`, `clone` and `sweep`, so that new settings are tried without
a change here; the others are written down in `written_commands`.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from enn_ppo import export, play
from enn_ppo.clone import clone
from enn_ppo.eval.evaluate import evaluate
from enn_ppo.plot import main as plot
from enn_ppo.serve.server import serve
from enn_ppo.settings.cloning import CloneConfig
from enn_ppo.settings.command_line.cli import run_clone, run_eval, run_serve, run_sweep, run_train, run_watch
from enn_ppo.settings.config import EvalConfig, TrainConfig
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.settings.options import Option, options_of
from enn_ppo.settings.serving import ServeConfig
from enn_ppo.settings.sweeping import SweepCommand
from enn_ppo.sweep import sweep
from enn_ppo.train import train
from enn_ppo.watch import watch
from entity_gym.check.command import main as check
from entity_gym.play.command import main as play_yourself

Main = Callable[[Sequence[str]], int]
MAINS: dict[str, Main] = {
    "train": lambda argv: run_train(train, argv),
    "eval": lambda argv: run_eval(evaluate, argv),
    "watch": lambda argv: run_watch(watch, argv),
    "serve": lambda argv: run_serve(serve, argv),
    "clone": lambda argv: run_clone(clone, argv),
    "sweep": lambda argv: run_sweep(sweep, argv),
    "play": play.main,
    "export": export.main,
    "plot": plot,
    "entity_gym.check": check,
    "entity_gym.play": play_yourself,
}
SCHEMAS = {
    "train": TrainConfig,
    "eval": EvalConfig,
    "watch": WatchConfig,
    "serve": ServeConfig,
    "clone": CloneConfig,
    "sweep": SweepCommand,
}
TINY = ("rollout.num_envs=4", "rollout.steps=4", "optim.batch_size=8", "net.d_model=16", "net.n_head=2", "device=cpu")
SECONDS = 60.0  # after which a command has accepted its mistake, and runs
MAX_LINES, MAX_CHARACTERS = 2, 1000  # of a message


class Command(NamedTuple):
    """A command with a mistake."""

    name: str  # train, eval and so on
    arguments: tuple[str, ...]
    mentioned: tuple[str, ...]  # the message must have one of these

    def __str__(self) -> str:
        return f"{self.name} {' '.join(self.arguments)}"


def bad_commands(number: int, rng: random.Random, folder: Path, run_dir: Path) -> list[Command]:
    """Return this many different commands: those that are written down, at most half of all, and others made from settings.

    Args:
        number: of commands.
        rng: chooses the commands.
        folder: where commands would write.
        run_dir: a run that is there.
    """
    good: dict[str, tuple[str, ...]] = {
        "train": ("env=Count", f"run_dir={folder / 'new'}", "total_timesteps=32", *TINY),
        "eval": (f"checkpoint={run_dir}", "episodes=2"),
        "watch": (str(run_dir), "episodes=2", "open=false"),
        "serve": (f"checkpoint={run_dir}", "port=0"),
        "clone": (f"data={folder / 'missing.rec'}", "env=Count", f"run_dir={folder / 'new'}", *TINY),
        "sweep": ("sweep=ppo", "env=Count", f"run_dir={folder / 'new'}", "total_timesteps=1e6", "sweep.trials=1"),
    }
    written = [
        Command(name, (*(() if "resume=" in str(arguments[:1]) else good.get(name, ())), *arguments), mentioned)
        for name, arguments, mentioned in written_commands(folder, run_dir)
    ]
    made = [
        Command(name, (*good[name], argument), (option.name.rpartition(".")[2], option.name.partition(".")[0]))
        for name, schema in SCHEMAS.items()
        for option, argument in _spoiled(schema, rng)
    ]
    chosen = rng.sample(written, min(len(written), number // 2))
    return chosen + rng.sample(made, number - len(chosen))


def judge(command: Command, folder: Path) -> str:
    """Run a command in a child of this process, and return what is wrong with its end; "" if it ended as it must."""
    code, said = _run(command, folder)
    shutil.rmtree(folder / "new", ignore_errors=True)  # of a command that was accepted
    lines = [line for line in said.splitlines() if line.strip()]
    messages = [k for k, line in enumerate(lines) if re.match(r"([\w. -]+: )?error: ", line)]
    shown = " / ".join(lines[-3:])[-400:]
    if code is None:
        return f"it still ran after {SECONDS:.0f} s: {shown}"
    if code == 0:
        return f"the mistake was accepted: {shown}"
    if "Traceback" in said:
        return f"a traceback: {shown}"
    if code not in (1, 2) or not messages:
        return f"exit code {code}, without a message: {shown}"
    if "Warning" in said:
        return f"a library's warning: {shown}"
    place = messages[-1 if "--multirun" in command.arguments else 0]  # Hydra tells of each job, and again of the first
    told, number = lines[place], len(lines) - place
    if number > MAX_LINES or len(told) > MAX_CHARACTERS:
        return f"a message of {len(told)} characters, and {number} lines: {shown}"
    if not any(word in told for word in command.mentioned):
        return f"the message names none of {', '.join(command.mentioned)}: {shown}"
    return ""


def _run(command: Command, folder: Path) -> tuple[int | None, str]:
    """Run a command in a forked process, which has all modules already; return its exit code and what it wrote to stderr.

    The code is None if the command was killed because it ran for too long.
    """
    output = folder / "stderr"
    child = multiprocessing.get_context("fork").Process(target=_become, args=(command, output, folder))
    child.start()
    child.join(SECONDS)
    if child.is_alive() and child.pid:
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
        return None, output.read_text(errors="replace")
    return child.exitcode, output.read_text(errors="replace")


def _become(command: Command, output: Path, folder: Path) -> None:
    """Run a command in this process, and end with its exit code."""
    os.setsid()
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    sys.exit(MAINS[command.name](list(command.arguments)))


# --- Mistakes in settings


def _spoiled(schema: type[Any], rng: random.Random) -> Iterator[tuple[Option, str]]:
    """Every setting with a misspelled name, and with each kind of bad value."""
    options = [option for option in options_of(schema) if not option.type.startswith("section")]
    names = {option.name for option in options}
    for option in options:
        if misspelled := _misspelled(option.name, names, rng):
            yield option, f"{misspelled}=1"
        for value in bad_values(option):
            yield option, f"{option.name}={value}"


def _misspelled(name: str, names: set[str], rng: random.Random) -> str | None:
    """The name with two letters of its last part exchanged; None if that changes nothing, or is another setting."""
    section, dot, last = name.rpartition(".")
    place = rng.randrange(max(1, len(last) - 1))
    result = section + dot + last[:place] + last[place : place + 2][::-1] + last[place + 2 :]
    return None if result in names else result


def bad_values(option: Option) -> list[str]:
    """Return values, in the syntax of the command line, that a setting must refuse: of other types, and out of its range."""
    kinds = set(option.type.split(" or "))
    values = ["[[1]]", "{a: {b: 1}}"] if kinds != {"mapping"} else ["[[1]]", "7", "some"]
    if "null" not in kinds:
        values.append("null")
    if kinds & {"integer", "number", "list of integers"} and "text" not in kinds:
        values += ["many", "true", "nan", "1e400"]
    if "integer" in kinds:
        values.append("1.5")
    if "schedule" in kinds:
        values += ["fast", "1@0 -> x@1", "1@0.5 -> 2@0.2", "1@", "1@0 -> 2@7"]
    if "true or false" in option.type:
        values += ["maybe", "3", "0.5"]
    if "choice" in kinds:
        values += ["nothing", "7"]
    return values + _out_of_range(option.range)


def _out_of_range(text: str) -> list[str]:
    """`at least 1` -> 0 and a number far below."""
    if found := re.fullmatch(r"(at least|greater than) ([\d.,]+)", text):
        low = float(found[2].replace(",", ""))
        return [f"{low if found[1] == 'greater than' else low - 1:g}", "-1000000"]
    if found := re.fullmatch(r"in ([\[(])([\d.e+-]+), ([\d.e+-]+)([\])])", text):
        low, high = float(found[2]), float(found[3])
        return [f"{low - (found[1] == '['):g}", f"{high + (found[4] == ']'):g}"]
    return []


# --- Other mistakes


def written_commands(folder: Path, run_dir: Path) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Return commands that settings alone do not make: name, further arguments, and words of which the message must have one."""
    text = folder / "text.txt"
    text.write_text("This is a text.\n")
    (folder / "empty").mkdir(exist_ok=True)
    missing, empty, run = str(folder / "missing"), str(folder / "empty"), str(run_dir)
    long = "x" * 50_000
    return [
        ("train", (f"resume={missing}",), (missing,)),
        ("train", (f"resume={empty}",), (empty,)),
        ("train", (f"resume={text}",), (str(text),)),
        ("train", (f"resume={run}", "net.d_model=32"), ("d_model",)),
        ("train", (f"resume={run}", "env=Xor"), ("Xor", "environment")),
        ("train", (f"run_dir={run}",), (run,)),
        ("train", (f"run_dir={text}/run",), (str(text),)),
        ("train", (f"run_dir={text}",), (str(text),)),
        ("train", ("env=program", f"env.kwargs.command=[{missing}]"), (missing,)),
        ("train", ("env=program", "env.kwargs.command=[/bin/false]"), ("/bin/false",)),
        ("train", ("env=program",), ("command",)),
        ("train", ("env.info.nothing=[1,2]",), ("nothing",)),
        ("train", (f"ppo.teacher={missing}",), (missing,)),
        ("train", ("eval.interval=16", f"eval.opponent={missing}"), ("opponent",)),
        ("train", ("--multirun", "jobs=2"), ("jobs",)),
        ("train", ("--multirun", "seed=1,2", "optim.lr=x"), ("lr",)),
        ("eval", (f"checkpoint={missing}",), (missing,)),
        ("eval", (f"checkpoint={text}",), (str(text),)),
        ("eval", (f"checkpoint={empty}",), (empty,)),
        ("eval", ("env_kwargs.widht=3",), ("widht",)),
        ("eval", (f"opponent={missing}",), ("opponent", missing)),
        ("eval", (f"output={empty}",), (empty,)),
        ("eval", (f"output={text}/result.json",), (str(text),)),
        ("eval", (f"record={folder}",), (str(folder),)),
        ("eval", ("jobs=2",), ("jobs",)),
        ("serve", (f"checkpoint={missing}",), (missing,)),
        ("serve", ("host=0.0.0.0",), ("token",)),
        ("serve", ("host=999.1.1.1",), ("host", "999.1.1.1")),
        ("serve", ("token=short",), ("token",)),
        ("serve", ("--multirun", "port=1,2"), ("--multirun",)),
        ("clone", (), ("missing.rec",)),
        ("clone", (f"data={text}",), (str(text),)),
        ("clone", (f"data={empty}",), (empty,)),
        ("clone", ("data=[]",), ("data",)),
        ("sweep", ("sweep=nothing",), ("nothing",)),
        ("sweep", ("jobs=2",), ("jobs",)),
        ("sweep", (f"resume={run}",), ("resume",)),
        ("sweep", ("--multirun",), ("--multirun",)),
        ("sweep", ("sweep.space={optim.lrr: [1, 2]}",), ("lrr",)),
        ("sweep", ("sweep.metric=eval/episodic_reward",), ("eval.interval",)),
        ("sweep", ("optim.lr=0.1",), ("optim.lr",)),
        ("play", (missing,), (missing,)),
        ("play", (str(text),), (str(text),)),
        ("play", (run, "--set", "widht=3"), ("widht",)),
        ("play", (run, "--set", "widht"), ("widht",)),
        ("play", (run, "--temperature", "-1"), ("temperature",)),
        ("play", (run, "--seed", "x"), ("seed",)),
        ("play", (run, "--gredy"), ("--gredy",)),
        ("play", (), ("checkpoint",)),
        ("export", (missing, str(folder / "a.safetensors")), (missing,)),
        ("export", (run, str(text)), (str(text),)),
        ("export", (run, empty), (empty,)),
        ("export", (run,), ("file",)),
        ("export", (run, str(folder / "a.pt")), ("a.pt", ".safetensors", ".onnx")),
        ("export", (run, str(folder / "a.onnx"), "--verify", "0"), ("--verify is 0",)),
        ("export", (run, f"{text}/a.safetensors"), (str(text),)),
        ("plot", (missing,), (missing,)),
        ("plot", (empty,), (empty,)),
        ("plot", (str(text),), (str(text),)),
        ("plot", (), ("run",)),
        ("plot", (run, "y=nothing"), ("nothing",)),
        ("plot", (run, f"output={text}/plot.png"), (str(text),)),
        ("plot", (run, "--speed"), ("--speed",)),
        ("plot", (run, "smoth=0"), ("smoth",)),
        ("entity_gym.check", ("Cuont",), ("Cuont",)),
        ("entity_gym.check", ("no_such_module:World",), ("no_such_module",)),
        ("entity_gym.check", ("json:Nothing",), ("Nothing",)),
        ("entity_gym.check", ("Count", "--steps", "0"), ("steps",)),
        ("entity_gym.check", ("Count", "--set", "widht=3"), ("widht",)),
        ("entity_gym.check", ("Count", "--stpes"), ("--stpes",)),
        ("entity_gym.play", ("Cuont",), ("Cuont",)),
        ("entity_gym.play", ("Count", "--set", "widht=3"), ("widht",)),
        ("entity_gym.play", ("Count", "--seed", "-1"), ("seed",)),
        ("entity_gym.play", ("MineSweeper", "--set", "width=0"), ("width",)),
        ("train", ("rollout.num_threads=1000000000",), ("num_threads",)),
        ("train", (f"run_dir={long}",), ("run_dir",)),
        ("eval", (f"checkpoint={long}",), ("too long",)),
        ("eval", (f"env_kwargs={{a: {'[' * 500}{']' * 500}}}",), ("env_kwargs",)),
        ("eval", (f"device={long}",), ("device",)),
        ("serve", (f"host={long}",), ("host",)),
        ("clone", (f"data={long}",), ("too long", "data", "recording")),
        ("sweep", ("sweep.jobs=1000000000",), ("sweep.jobs",)),
        ("play", (long,), ("too long",)),
        ("export", (long, str(folder / "a.safetensors")), ("too long",)),
        ("export", (run, str(folder / f"{long}.safetensors")), ("too long",)),
        ("plot", (long,), ("too long",)),
        ("entity_gym.check", (long,), (long[:40],)),
        ("entity_gym.play", (long,), (long[:40],)),
    ]
