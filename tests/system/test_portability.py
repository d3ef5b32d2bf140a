"""The packages work without what Windows lacks, or macOS: modules, system calls, signals, symbolic links, characters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Takes away what the packages must not need. Libraries are imported first: on Windows they have code of their own.
TAKE_AWAY = """
import asyncio, multiprocessing.connection, os, pathlib, select, shutil, signal, subprocess, sys, tempfile, warnings
import filelock, hydra, matplotlib.pyplot, numba, numpy, omegaconf, PIL.Image, rich, safetensors.torch, torch
import torch.distributed, torch._dynamo

filelock.FileLock = filelock.SoftFileLock  # in the place of Windows' own

try:
    import ray
except ImportError:
    pass

def refuse(*args, **kwargs):
    raise OSError(22, "[WinError 1314] A required privilege is not held by the client")

def open_no_folder(path, *args, **kwargs):
    if not isinstance(path, int) and os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return really_open(path, *args, **kwargs)

MODULES = "fcntl grp pty pwd resource syslog termios tty"
ATTRIBUTES = {
    os: "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK fchmod fork forkpty getegid geteuid getgid getpgid getuid killpg"
        " memfd_create mkfifo nice posix_fallocate pread pwrite register_at_fork sched_getaffinity sched_setaffinity"
        " set_blocking setpriority setsid statvfs sysconf uname",
    select: "POLLIN POLLOUT epoll poll",
    signal: "ITIMER_REAL SIGALRM SIGHUP SIGKILL SIGPIPE SIGUSR1 SIGWINCH alarm pause pthread_kill pthread_sigmask setitimer"
        " siginterrupt",
}
for name in MODULES.split():
    sys.modules[name] = None
for module, names in ATTRIBUTES.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
really_open, os.open, os.symlink, pathlib.Path.symlink_to = os.open, open_no_folder, refuse, refuse
subprocess.Popen.kill = lambda self: self.send_signal(9)
shutil._use_fd_functions = False
warnings.filterwarnings("error", category=EncodingWarning, module="(entity_gym|rogue_net|enn_ppo)")
"""

IMPORT_ALL = """
import importlib, pkgutil
import enn_ppo, entity_gym, rogue_net

num_imported = 0
for package in (entity_gym, rogue_net, enn_ppo):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if found.name.endswith(".__main__"):
            continue
        try:
            importlib.import_module(found.name)
            num_imported += 1
        except ImportError as error:  # an extra is not installed
            assert error.name.partition(".")[0] not in {*MODULES.split(), "entity_gym", "rogue_net", "enn_ppo"}, error
assert num_imported > 250, num_imported
"""

TRAIN = """
from enn_ppo.eval.evaluate import evaluate
from enn_ppo.settings.command_line.cli import run_eval, run_train
from enn_ppo.train import train

small = ["env=Xor", "rollout.num_envs=16", "rollout.steps=16", "optim.batch_size=64", "rollout.num_threads=2"]
assert run_train(train, [*small, "run_dir=a", "total_timesteps=2048", "eval.interval=1024", "eval.episodes=4"]) == 0
latest = pathlib.Path("a/checkpoints/latest")
assert pathlib.Path("a/checkpoints/step_000000002048.safetensors").is_file()
assert run_train(train, [f"resume={latest}", "total_timesteps=2560", "rollout.num_threads=1", "rollout.num_processes=2"]) == 0
assert pathlib.Path("a/checkpoints/step_000000002560.safetensors").is_file()
assert run_eval(evaluate, ["checkpoint=a/checkpoints/best", "episodes=4"]) == 0
"""

WORLD = """
from entity_gym import *

class World(Environment):
    def obs_space(self): return ObsSpace({"単位": Entity(["x→"])})
    def action_space(self): return {"移動": CategoricalActionSpace(["←", "→"])}
    def reset(self): return self.seen(0)
    def act(self, actions): return self.seen(1)
    def seen(self, t):
        mask = CategoricalActionMask(actor_ids=["ρ"])
        return Observation(features={"単位": [[t]]}, ids={"単位": ["ρ"]}, actions={"移動": mask}, done=t == 1)
"""


def run_python(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    everything = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=everything | environment, capture_output=True, timeout=300
    )


@pytest.mark.slow
@pytest.mark.parametrize("program", [IMPORT_ALL, TRAIN], ids=["imports", "training"])
def test_nothing_needs_what_other_systems_lack(program: str, tmp_path: Path) -> None:
    done = run_python("-X", "warn_default_encoding", "-c", TAKE_AWAY + program, folder=tmp_path)
    assert done.returncode == 0, done.stderr.decode()[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "enn_ppo.train --help",
        "enn_ppo.train env=custom env.id=odd_world:World rollout.num_envs=4 rollout.steps=8 optim.batch_size=32 run_dir=a"
        " total_timesteps=64",
        "entity_gym.check odd_world:World --steps 50",
    ],
)
def test_a_console_without_these_characters_shows_others_instead(command: str, tmp_path: Path) -> None:
    (tmp_path / "odd_world.py").write_text(WORLD, "utf-8")
    done = run_python("-m", *command.split(), folder=tmp_path, PYTHONIOENCODING="cp1252", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr.decode("cp1252")
