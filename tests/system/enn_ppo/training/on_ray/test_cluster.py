"""What a user reads who has no Ray, no cluster, or too small a one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from enn_ppo import EnvConfig, train
from enn_ppo.settings.config import DistributedConfig
from tests.enn_ppo.training.on_ray.runs import Unmakeable, actors, on_ray


def test_who_has_not_installed_ray_is_told_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r'distributed=ray needs Ray: pip install "enn-ppo\[ray\]"'):
        train(on_ray(tmp_path / "a"))


def connect(device: str = "cpu", num_learners: int = 1, **settings: Any) -> int:
    from enn_ppo.training.on_ray.cluster import connection

    with connection(DistributedConfig(mode="ray", **settings), num_learners, device) as num_gpus:
        return num_gpus


def test_an_address_where_nobody_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")

    def nothing_runs(**settings: Any) -> None:
        assert settings["address"] == "auto"
        raise ConnectionError("Could not find any running Ray instance.\nMore of it.")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", nothing_runs)
    with pytest.raises(
        ValueError, match=r"distributed\.address=auto: .* \(Could not find .*\.\); start one with `ray start"
    ):
        connect(address="auto")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_a_cluster_that_is_too_small_is_measured() -> None:
    with pytest.raises(ValueError, match=r"distributed\.num_env_runners=1000 and learners: 1 .* need 1001 CPUs"):
        connect(num_env_runners=1000)


def test_each_learner_has_a_gpu_if_there_is_one_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0, "GPU": 2.0})
    assert [connect("auto", number) for number in (1, 2, 3)] == [1, 1, 0]
    assert [connect("cuda", 2), connect("cpu", 1)] == [1, 0]
    with pytest.raises(ValueError, match=r"learners: 3 with device=cuda need 3 GPUs, and the Ray cluster has 2$"):
        connect("cuda", 3)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_an_environment_that_cannot_be_made_is_told_of_as_in_a_local_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no lamp") as refused:
        train(on_ray(tmp_path / "a", 1, {"env": EnvConfig()}), env=Unmakeable)
    assert "(in runner 0)" in refused.value.__notes__
    assert not (tmp_path / "a").exists()
    _, alive = psutil.wait_procs(actors("EnvRunner") + actors("LearnerActor"), timeout=10)
    assert alive == []
