"""Checkpoints of older formats load, are evaluated and go on; those of newer ones say that they are."""

from __future__ import annotations

import copy
import shutil
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
import yaml

from enn_ppo import EvalConfig, TrainConfig, evaluate, train
from enn_ppo.checkpoints import CheckpointError, load_checkpoint
from enn_ppo.checkpoints.policy import load_policy, saved_config
from enn_ppo.checkpoints.upgrades import FORMAT, UPGRADES, Added, Contents, Removed, Renamed, upgrade
from enn_ppo.command_line.cli import run_train

FORMAT_1 = Path(__file__).parent / "fixtures" / "format_1"
CPU = torch.device("cpu")


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """A run of format 1 that was trained to its end, 16 steps of Count."""
    shutil.copytree(FORMAT_1, tmp_path / "old")
    (tmp_path / "old/checkpoints/latest").symlink_to("step_000000000016")
    return tmp_path / "old"


# --- Rules ---


@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [
        (Renamed("a", "b"), {"a": 1, "c": 2}, {"c": 2, "b": 1}),
        (Renamed("a.x", "b.y"), {"a": {"x": 1}}, {"a": {}, "b": {"y": 1}}),
        (Renamed("a", "b"), {"c": 2}, {"c": 2}),
        (Removed("a.x"), {"a": {"x": 1, "y": 2}}, {"a": {"y": 2}}),
        (Removed("a.x"), {"b": 1}, {"b": 1}),
        (Added("a.x", [1]), {"a": {"y": 2}}, {"a": {"y": 2, "x": [1]}}),
        (Added("a", 1), {"a": 2}, {"a": 2}),
    ],
)
def test_a_rule_renames_removes_or_adds(rule: Renamed | Removed | Added, before: dict, after: dict) -> None:
    rule(before)
    assert before == after


def test_what_is_upgraded_stays_as_it_is() -> None:
    contents = Contents({}, {"keep_checkpoints": 2, "net": {"d_model": 8}}, {"collector": {"episodes": [1]}})
    before = copy.deepcopy(contents)
    upgraded = upgrade(1, contents)
    assert contents == before
    assert upgraded.config["keep_last"] == 2
    assert upgrade(FORMAT, contents) is contents


def test_there_is_a_row_for_every_older_format() -> None:
    assert sorted(UPGRADES) == list(range(1, FORMAT))


# --- Format 1 ---


def test_format_1_has_the_present_settings_and_what_is_new_changes_nothing(old_run: Path) -> None:
    config = saved_config(load_checkpoint(old_run))
    assert (config.keep_last, config.keep_best, config.keep_every_minutes) == (1, 0, None)
    default = TrainConfig()
    for name in ("value_net", "value_optim", "eval", "self_play", "max_train_seconds", "record"):
        assert getattr(config, name) == getattr(default, name)
    assert config.env.id == "Count" and config.env.kwargs == {"masked_choices": 10, "max_steps": None}
    assert {field.name for field in fields(config)} >= {"keep_last"}


def test_format_1_has_the_same_policy(old_run: Path) -> None:
    checkpoint = load_checkpoint(old_run)
    net = load_policy(checkpoint, CPU)
    assert torch.equal(net.heads[0].project.weight, checkpoint.policy["heads.0.project.weight"])
    assert (float(net.value_head.mean), float(net.value_head.deviation)) == (0.0, 1.0)


def test_format_1_is_evaluated(old_run: Path) -> None:
    result = evaluate(EvalConfig(checkpoint=str(old_run), episodes=8, num_envs=4))
    assert len(result.episodes) == 8


def test_format_1_goes_on_to_more_timesteps(
    old_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enn_ppo.tracking.run_output.plot_learning_curve", lambda *paths: None)
    before = load_checkpoint(old_run)
    assert run_train(train, [f"resume={old_run}", "total_timesteps=48"]) == 0, capsys.readouterr().err
    after = load_checkpoint(old_run)
    assert (after.step, after.trainer["num_updates"]) == (48, 6)
    averages = after.trainer["optimizer"]["state"][0]
    assert averages["step"] == before.trainer["optimizer"]["state"][0]["step"] * 3  # it went on counting
    assert "start new episodes" in capsys.readouterr().out  # states of compiled environments have another form now


def test_format_1_goes_on_in_the_present_format_elsewhere(
    old_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enn_ppo.tracking.run_output.plot_learning_curve", lambda *paths: None)
    config = replace(
        saved_config(load_checkpoint(old_run)), resume=str(old_run), run_dir=str(tmp_path / "new"), total_timesteps=24
    )
    train(config)
    saved = torch.load(tmp_path / "new/checkpoints/latest/trainer.pt", weights_only=True)
    assert (saved["format"], saved["step"]) == (FORMAT, 24)
    assert load_checkpoint(old_run).step == 16


# --- Newer formats ---


def test_a_newer_format_is_told(old_run: Path) -> None:
    file = old_run / "checkpoints/step_000000000016/trainer.pt"
    torch.save(torch.load(file, weights_only=True) | {"format": FORMAT + 1}, file)
    message = rf"step_0*16 has format {FORMAT + 1}, .* reads formats 1 to {FORMAT}: it was written by a newer version; upgrade"
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(old_run)


def test_a_setting_that_is_not_known_is_told_with_the_checkpoint(
    old_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = old_run / "checkpoints/step_000000000016/config.yaml"
    config = yaml.safe_load(file.read_text())
    config["optim"]["momentun"] = 0.9
    file.write_text(yaml.safe_dump(config))
    with pytest.raises(
        ValueError, match=r"step_0*16 has settings .* another: config.yaml: optim.momentun is not a setting"
    ):
        evaluate(EvalConfig(checkpoint=str(old_run), episodes=1))
    assert run_train(train, [f"resume={old_run}"]) == 2
    told = capsys.readouterr().err
    assert "optim.momentun is not a setting" in told and "step_000000000016" in told


def test_the_fixture_is_whole() -> None:
    """What .gitignore hides would be missing in a fresh copy of the repository."""
    files = {str(path.relative_to(FORMAT_1)) for path in FORMAT_1.rglob("*") if path.is_file()}
    step = "checkpoints/step_000000000016"
    assert files == {"config.yaml", "metrics.jsonl"} | {
        f"{step}/{name}" for name in ("config.yaml", "policy.safetensors", "spaces.json", "trainer.pt")
    }
    assert torch.load(FORMAT_1 / step / "trainer.pt", weights_only=True)["format"] == 1
