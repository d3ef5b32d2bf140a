"""Files of a stranger whose checksums are right: they read nothing of this machine, block nothing, and fail with their name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from enn_ppo import EnvConfig, TrainConfig, train
from enn_ppo.checkpoints import CheckpointError, load_checkpoint
from enn_ppo.settings.command_line.cli import run_train
from enn_ppo.training.recording import read_all
from enn_ppo.training.tracking.curves import read_run
from enn_ppo.training.tracking.logger import read_metrics
from entity_gym.bridges.views.view import view_mapping
from entity_gym.untrusted import MAX_DEPTH, parse_json, parse_yaml, read_regular
from tests.enn_ppo.forged import with_settings, with_trainer
from tests.enn_ppo.worlds import Copycat, tiny_config

SECRETS = ["${oc.env:SECRET}", "${oc.env:SECRET", r"\${oc.env:SECRET}", r"a\\${seed}b", "${${seed}}", "$${x}"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of Copycat."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    train(tiny_config(run_dir, env=EnvConfig()), env=Copycat)
    return load_checkpoint(run_dir).path


@pytest.fixture
def file(trained: Path, tmp_path: Path) -> Path:
    """Its last checkpoint, copied into a run of its own."""
    copied = tmp_path / "run" / "checkpoints" / trained.name
    copied.parent.mkdir(parents=True)
    copied.write_bytes(trained.read_bytes())
    return copied


# --- Environment variables ---


@pytest.mark.parametrize("text", SECRETS)
def test_a_checkpoints_settings_are_text_and_read_no_environment_variable(
    file: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    with_settings(file, "eval", interval=100, opponent=text)
    with_settings(file, "env", id="Xor", kwargs={"text": [text]})
    configs: list[TrainConfig] = []
    assert run_train(configs.append, [f"resume={file}", "seed=7"]) == 0
    assert (configs[0].eval.opponent, configs[0].env.kwargs["text"], configs[0].seed) == (text, [text], 7)
    assert "hunter2" not in "".join(capsys.readouterr())


# --- Files that block, or that are huge in memory ---

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))
DEEP = 100_000


def test_a_pipe_or_a_device_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="it is no regular file"):
            read_regular(path, 100)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(101))
    with pytest.raises(OSError, match="it has 101 bytes, and at most 100 are read"):
        read_regular(tmp_path / "large", 100)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("metrics.jsonl", read_metrics),
        ("view.yaml", view_mapping),
        ("000000_00000000.safetensors", lambda path: read_all(path.parent)),
    ],
)
def test_a_pipe_in_place_of_another_file_is_refused(tmp_path: Path, name: str, read: Callable[[Path], Any]) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} .*it is no regular file"):
        read(tmp_path / name)


def test_a_pipe_as_the_config_of_a_run_that_is_plotted_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(ValueError, match=r"config.yaml cannot be read: .*it is no regular file"):
        read_run(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize(
    ("text", "message"), [(LAUGHS, "it has an alias"), ("[" * DEEP, "nested more than 100 deep"), ("{" * DEEP, "deep")]
)
def test_aliases_and_deep_nesting_of_yaml_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_yaml(text)


def test_json_that_is_as_deep_as_allowed_is_read() -> None:
    text = "[" * (MAX_DEPTH - 1) + "1" + "]" * (MAX_DEPTH - 1)
    assert yaml.safe_load(text) == parse_json(text) == parse_yaml(text)


# --- The trainer's state ---


def test_moments_of_another_shape_than_their_parameter_are_refused(file: Path) -> None:
    optimizer = load_checkpoint(file).trainer["optimizer"]
    optimizer["state"][0]["exp_avg"] = torch.zeros(3)
    with_trainer(file, optimizer=optimizer)
    config = tiny_config(file.parents[1], env=EnvConfig(), resume=str(file), total_timesteps=192, trust=True)
    with pytest.raises(CheckpointError, match=r"damaged: trainer\['optimizer'\]: exp_avg of .* has the shape \[3\]"):
        train(config, env=Copycat)


def test_the_scale_of_no_normalization_is_refused(file: Path) -> None:
    with_trainer(with_settings(file, "ppo", normalize="returns"), scale={"running": 0.5, "count": 3})
    config = tiny_config(file.parents[1], env=EnvConfig(), resume=str(file), total_timesteps=192, trust=True)
    config = replace(config, ppo=replace(config.ppo, normalize="returns"))
    with pytest.raises(CheckpointError, match=r"trainer\['scale'\] is not that of ppo.normalize=returns"):
        train(config, env=Copycat)
