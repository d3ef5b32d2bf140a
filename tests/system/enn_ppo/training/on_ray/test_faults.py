"""Processes of a run are really killed, and environments raise."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from enn_ppo import Callback, EnvConfig, Interrupted, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.training.callbacks import Update
from enn_ppo.training.errors import ActorDied
from tests.enn_ppo.training.on_ray.runs import Doomed, Fuse, actors, on_ray, rows_of
from tests.enn_ppo.worlds import Slow, tiny_config
from tests.processes import start

pytestmark = pytest.mark.slow
GOES_ON_WITHIN = 10.0  # seconds


class KillARunner(Callback):
    """Kills the runner that asks for it, from outside; when it plays again, presses Ctrl-C."""

    def __init__(self, sign: Path) -> None:
        self.sign = sign
        self.killed_at = 0.0
        self.next_update_after: list[float] = []
        threading.Thread(target=self.kill, daemon=True).start()

    def kill(self) -> None:
        while not (self.sign.exists() and self.sign.read_text().endswith("\n")):
            time.sleep(0.01)
        self.killed_at = time.monotonic()
        os.kill(int(self.sign.read_text()), signal.SIGKILL)

    def on_update(self, update: Update) -> None:
        if self.killed_at and not self.next_update_after:
            self.next_update_after.append(time.monotonic() - self.killed_at)
        if update.row["distributed/runner_restarts"]:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("ray_here")
def test_when_a_runner_is_killed_training_goes_on_and_it_comes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killer = KillARunner(tmp_path / "sign")
    world = EnvConfig(kwargs={"sign": str(tmp_path / "sign")})
    config = on_ray(tmp_path / "a", changes={"env": world, "total_timesteps": 10**6})
    with pytest.raises(Interrupted) as ended:
        train(config, env=Doomed, callbacks=[killer])
    rows = rows_of(tmp_path / "a")
    runners = [row["distributed/runners"] for row in rows]
    assert killer.next_update_after[0] < GOES_ON_WITHIN
    assert runners == [2, 2, *[1] * (len(rows) - 3), 2] and len(rows) > 3
    assert [row["frames"] for row in rows] == [16 * number for number in runners]
    assert [row["distributed/rollouts_lost"] for row in rows] == [0, 0, 1, *[0] * (len(rows) - 3)]
    assert [row["distributed/runner_restarts"] for row in rows] == [*[0] * (len(rows) - 1), 1]
    assert [row["step"] for row in rows] == [sum(row["frames"] for row in rows[: n + 1]) for n in range(len(rows))]
    assert rows[-1]["elapsed_steps_min"] == 0  # its episodes are new ones
    said = capsys.readouterr().out
    (number,) = re.findall(r"runner (\d) is gone \(its process was killed or has crashed", said)
    assert f"runner {number} plays again, in new episodes" in said
    saved = load_checkpoint(tmp_path / "a")
    assert saved.step == rows[-1]["step"] and str(saved.path) in str(ended.value)
    assert None not in saved.trainer["collector"]["blocks"]


@pytest.mark.usefixtures("ray_here")
def test_an_environment_that_raises_ends_the_run_and_is_named_with_its_runner(tmp_path: Path) -> None:
    fuses = tmp_path / "fuses"
    fuses.mkdir()
    (fuses / "a").touch()
    world = EnvConfig(kwargs={"fuses": str(fuses)})
    changes = {"env": world, "total_timesteps": 320, "checkpoint_interval": 1}
    config = on_ray(tmp_path / "a", 1, changes)
    with pytest.raises(RuntimeError, match="the fuse is blown") as ended:
        train(config, env=Fuse)
    assert "(in runner 0)" in ended.value.__notes__
    assert any("raised by Fuse (environment" in note for note in ended.value.__notes__)
    saved = load_checkpoint(tmp_path / "a")
    assert saved.step == rows_of(tmp_path / "a")[-1]["step"]
    assert train(replace(config, resume=str(tmp_path / "a")), env=Fuse).step == 320


@pytest.mark.usefixtures("ray_here")
def test_a_runner_that_ray_ends_for_its_memory_has_died_too(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray.exceptions import OutOfMemoryError

    from enn_ppo.training.on_ray.cluster import fetch

    def out_of_memory(*_: Any, **__: Any) -> None:
        raise OutOfMemoryError("Task was killed due to the node running low on memory.\nMemory on the node was 63 GB.")

    monkeypatch.setattr(ray, "get", out_of_memory)
    with pytest.raises(
        ActorDied, match=r"killed due to the node running low on memory\. Memory on the node was 63 GB$"
    ):
        fetch(None)


@contextmanager
def command(run_dir: Path, rows: int, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A run that has far to go, when so many updates are done. With Ray in this process, it joins that one."""
    settings = [
        "env=custom env.id=tests.enn_ppo.worlds:Slow rollout.num_envs=4 rollout.steps=8 optim.batch_size=16",
        "net.d_model=16 net.n_layer=1 net.n_head=2 total_timesteps=100000 checkpoint_interval=2 device=cpu num_threads=1",
        "distributed=ray distributed.num_env_runners=1",
    ]
    arguments = (*" ".join(settings).split(), f"run_dir={run_dir}", *more)
    with start("-m", "enn_ppo.train", *arguments, stderr=subprocess.STDOUT) as process:
        try:
            while len(rows_of(run_dir)) < rows:
                assert process.poll() is None, process.communicate()[0]
                time.sleep(0.05)
            yield process
        finally:
            process.kill()


@pytest.fixture
def this_ray(ray_here: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """The setting with which a command joins the Ray of this process, should there be more on the machine."""
    import ray

    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    return "distributed.address=auto"


def test_when_the_learner_is_killed_the_command_says_where_to_go_on_from(tmp_path: Path, this_ray: str) -> None:
    with command(tmp_path / "a", 3, this_ray) as process:
        (learner,) = actors("LearnerActor")
        learner.kill()
        said, _ = process.communicate(timeout=60)
    saved = load_checkpoint(tmp_path / "a")
    assert process.returncode == 1, said
    assert saved.step >= 64
    assert re.search(r"^error: the learner is gone: .*", said, re.MULTILINE)
    assert f"saved {saved.path}; go on with resume={tmp_path / 'a'}" in said
    config = tiny_config(
        tmp_path / "a", env=EnvConfig(), total_timesteps=saved.step + 64, num_threads=1, resume=str(tmp_path / "a")
    )
    assert train(config, env=Slow).step == saved.step + 64


def test_ctrl_c_saves_and_the_run_goes_on_where_it_was(tmp_path: Path, this_ray: str) -> None:
    with command(tmp_path / "a", 2, this_ray, "checkpoint_interval=1000") as process:
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    saved = load_checkpoint(tmp_path / "a")
    assert process.returncode == 130, said
    assert f"interrupted after {saved.step} steps; saved {saved.path}; go on with resume={tmp_path / 'a'}" in said
    assert "Traceback" not in said
    assert rows_of(tmp_path / "a")[-1]["step"] == saved.step >= 64
    _, alive = psutil.wait_procs(actors("EnvRunner") + actors("LearnerActor"), timeout=GOES_ON_WITHIN)
    assert alive == []


def test_when_the_command_is_killed_nothing_that_it_has_started_plays_or_learns_on(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with command(tmp_path / "a", 1) as process:
        started = actors("EnvRunner", process.pid) + actors("LearnerActor", process.pid)
        assert len(started) == 2
    _, alive = psutil.wait_procs(started, timeout=GOES_ON_WITHIN)
    assert alive == []
