"""Training that waits for the process that evaluates."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from enn_ppo import Interrupted
from tests.enn_ppo.evaluation_worlds import Gated
from tests.enn_ppo.training.test_training_with_evaluation import TOTAL, evaluation, evaluations, run


def test_a_run_terminated_while_it_waits_for_its_last_evaluation_says_so_and_evaluates_when_it_is_resumed(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    settings = evaluation(process=True, interval=10**6, env_kwargs={"gate": str(gate)})

    def terminate() -> None:  # the last policy alone is evaluated, so that whoever waits at the gate evaluates that
        while not Path(f"{gate}.pid").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate, daemon=True)
    thread.start()
    saved = tmp_path / f"run/checkpoints/step_{TOTAL:012d}.safetensors"
    with pytest.raises(Interrupted, match=f"terminated after {TOTAL} steps; saved {saved}; go on with") as caught:
        run(tmp_path / "run", Gated, eval=settings)
    thread.join()
    assert caught.value.exit_code == 143
    assert not evaluations(tmp_path / "run")
    gate.write_text("")
    run(tmp_path / "run", Gated, eval=settings, resume=str(tmp_path / "run"))
    assert sorted(evaluations(tmp_path / "run")) == [TOTAL]
