"""Processes of their own: forked after threads were used, and without a compiler."""

from __future__ import annotations

import os

import pytest

from tests.processes import output_of

PROGRAM = """
import os, signal, torch
from rogue_net import FrameKeys, keyed
from rogue_net.kernels.cpu import program
from tests.rogue_net.backends import even_scene, make_config, make_net

torch.set_num_threads(2)
batch = even_scene(70, 20).batch  # enough for two threads
net = make_net(make_config(), batch)
keys = FrameKeys(keyed(3, torch.arange(70)))
parts, run_parts = [], program.run_parts
program.run_parts = lambda work, count: (parts.append(count), run_parts(work, count))

def is_the_same():
    acted = net.act(batch, generator=keys)
    same = [torch.equal(acted.values, first.values)]
    same += [torch.equal(acted.actions[name].values, each.values) for name, each in first.actions.items()]
    return all(same)

first = net.act(batch, generator=keys)
child = os.fork()
if child == 0:
    signal.alarm(20)  # ends it if it waits forever
    os._exit(0 if is_the_same() and parts == [2, 2] else 3)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), is_the_same(), parts)  # the parent's threads are still there
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_program_acts_by_threads_in_a_process_that_was_forked_after_threads_were_used() -> None:
    assert output_of(PROGRAM) == "0 True [2, 2]\n"


def test_without_a_compiler_fused_refuses_and_auto_works() -> None:
    program = """
import torch
from rogue_net.kernels.select import uses_program
from tests.rogue_net.backends import even_scene, make_config, make_net
batch = even_scene(2, 3).batch
net = make_net(make_config(backend="auto"))
net.evaluate(batch, net.act(batch, greedy=True).actions).values.sum().backward()
try:
    uses_program(make_config(), torch.empty(0))
except ValueError as error:
    print(error)
"""
    said = output_of(program, NUMBA_DISABLE_JIT="1")
    assert "net.backend=fused cannot be: Numba is switched off by NUMBA_DISABLE_JIT" in said
