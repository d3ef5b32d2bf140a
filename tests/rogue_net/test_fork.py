"""A process forked after threads were used computes on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, torch
from rogue_net.kernels.cpu.threads import run_parts

torch.set_num_threads(2)
done = []
run_parts(done.append, [1, 2])
child = os.fork()
if child == 0:
    signal.alarm(20)  # ends it if it waits forever
    run_parts(done.append, [3, 4])
    os._exit(0 if sorted(done) == [1, 2, 3, 4] else 3)
_, status = os.waitpid(child, 0)
run_parts(done.append, [5, 6])  # the parent's threads are still there
print(os.waitstatus_to_exitcode(status), sorted(done))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_parts_run_in_a_process_that_was_forked_after_threads_were_used() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.stdout == "0 [1, 2, 5, 6]\n", done.stderr
