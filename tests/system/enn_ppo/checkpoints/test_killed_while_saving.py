"""A process that is killed while it saves leaves a latest checkpoint that loads."""

import subprocess
import sys
from pathlib import Path

from tests.enn_ppo.checkpoints.test_checkpoint import names, save

KILL_WHILE_SAVING = """
import os, signal, sys, time, torch
from pathlib import Path
from enn_ppo.checkpoints import Retention, load_checkpoint, save_checkpoint

directory, kills = Path(sys.argv[1]), 20
torch.set_num_threads(1)

def save(count):
    policy = {"w": torch.full((1000,), float(count))}
    trainer, retention = {"count": count}, Retention(keep_last=2)
    save_checkpoint(directory, 7, policy=policy, config={}, spaces={}, trainer=trainer, retention=retention)

def save_forever(count, announce):
    while True:
        count += 1
        os.write(announce, b".")
        save(count)

save(0)
counts = [0]
for kill in range(kills):
    heard, announce = os.pipe()
    child = os.fork()
    if child == 0:
        save_forever(counts[-1], announce)
    os.close(announce)  # so that reading ends where the child fails
    os.read(heard, 1)
    began = time.monotonic()
    os.read(heard, 1)  # one save is done and the next begins: die in it, each time a little later
    time.sleep((time.monotonic() - began) * kill / kills)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(heard)
    loaded = load_checkpoint(directory / "latest")
    assert loaded.policy["w"].unique().tolist() == [loaded.trainer["count"]], "never a mixture"
    counts.append(loaded.trainer["count"])
assert counts == sorted(set(counts)), counts
"""


def test_kill_9_at_any_moment_leaves_a_latest_that_loads(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILL_WHILE_SAVING, str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    save(tmp_path, 10**6, keep=1)
    assert names(tmp_path) == ["step_000001000000.safetensors"]
