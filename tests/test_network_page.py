"""docs/network.md and docs/migrating.md: programs and commands run as written, and numbers are what the code computes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from entity_gym import Angle, CategoricalActionSpace, Entity, Observation, ObsSpace
from entity_gym.batch.batching import batch_observations
from rogue_net import ObsBatch, RelposConfig, RogueNet, RogueNetConfig, TranslationConfig

REPOSITORY = Path(__file__).parent.parent
PAGE = (REPOSITORY / "docs" / "network.md").read_text()
MIGRATING = (REPOSITORY / "docs" / "migrating.md").read_text()
FIXTURE = REPOSITORY / "tests" / "rogue_net" / "fixtures" / "grid.npz"


def blocks(language: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


def run(arguments: list[str], folder: Path) -> str:
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def commands(program: str, page: str = PAGE) -> list[list[str]]:
    """The arguments of every command of a page's bash blocks that runs `program`."""
    lines = [shlex.split(line) for block in blocks("bash", page) for line in block.replace("\\\n", "").splitlines()]
    assert all(line[0] == "python" for line in lines)
    return [line[1:] for line in lines if program in line]


def test_the_pages_have_the_commands_that_the_tests_below_run() -> None:
    assert len(commands("enn_ppo.train")) == len(blocks("bash")) > 0


def test_the_program_of_the_page_runs_and_finds_what_it_asserts(tmp_path: Path) -> None:
    run(["-c", "\n".join(blocks("python"))], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("command", commands("enn_ppo.train"), ids=lambda command: command[2])
def test_the_settings_of_a_training_command_are_trained_with(command: list[str], tmp_path: Path) -> None:
    short = ["total_timesteps=128", "rollout.num_envs=8", "rollout.steps=8", "optim.batch_size=64", "optim.epochs=1"]
    run([*command, *short, "run_dir=run", "device=cpu"], tmp_path)
    given = {setting.split("=")[0] for setting in command if setting.startswith("net.")}
    net = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["net"]
    section = next(iter(given)).split(".")[1]
    default = vars(getattr(RogueNetConfig(), section))
    changed = {name for name, value in net[section].items() if value != json.loads(json.dumps(default[name]))}
    assert {f"net.{section}.{name}" for name in changed} == given


def test_a_checkpoint_of_enn_trainer_is_converted_evaluated_and_trained_by_the_commands_of_the_page(
    tmp_path: Path,
) -> None:
    fixture = REPOSITORY / "tests" / "enn_ppo" / "fixtures" / "minefield"
    (tmp_path / "checkpoints").symlink_to(fixture)
    (block,) = blocks("sh", MIGRATING)
    for line in block.splitlines():
        run(shlex.split(line)[1:], tmp_path)
    rows = (tmp_path / "out" / "converted" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["step"] == 4096


def test_the_conversion_of_the_page_makes_a_network_with_the_recorded_weights(tmp_path: Path) -> None:
    """The fixture is a network of rogue-net that was made as the page's description says."""
    (description,) = blocks("yaml", MIGRATING)
    with np.load(FIXTURE, allow_pickle=False) as file:
        recorded = json.loads(str(file["description"]))
        shapes = recorded.pop("weights")
        flat = torch.split(torch.from_numpy(file["weights"]), [int(np.prod(shape)) for shape in shapes.values()])
    assert yaml.safe_load(description) == recorded
    weights = {key: each.view(shape) for (key, shape), each in zip(shapes.items(), flat, strict=True)}
    torch.save(weights, tmp_path / "weights.pt")
    (tmp_path / "description.yaml").write_text(description)
    (program,) = blocks("python", MIGRATING)
    run(["-c", f"{program}\nassert tuple(net.config.relpos.extent) == (2, 3)"], tmp_path)


@pytest.mark.parametrize("config", [RogueNetConfig, RelposConfig, TranslationConfig])
def test_every_setting_is_explained_or_shown_in_use(config: type[RogueNetConfig]) -> None:
    names = {field.name for field in dataclasses.fields(config)}
    mentioned = set(re.findall(r"`(?:net\.)?(?:relpos\.|translation\.)?(\w+)(?:=[^`]*)?`", PAGE))
    sections = {"relpos", "translation"} if config is RogueNetConfig else set[str]()
    assert names - mentioned - sections == set()


def coefficients(settings: str, *, interpolate: bool) -> dict[int, float]:
    """Row -> coefficient of what the entity of the example, at (0, 0) and looking up, sees at (1, -0.6)."""
    given = {name: yaml.safe_load(value) for name, value in (each.split("=") for each in settings.split())}
    relpos = RelposConfig(position_features=["x", "y"], interpolate=interpolate, **given)
    obs_space = ObsSpace({"I": Entity(["x", "y", Angle("heading")]), "J": Entity(["x", "y"])})
    actions = {"wait": CategoricalActionSpace(["yes"])}
    net = RogueNet(RogueNetConfig(d_model=24, n_head=1, relpos=relpos), obs_space, actions)
    positions = net.transformer.relative_positions
    assert positions is not None
    frame = Observation(features={"I": [[0, 0, np.pi / 2]], "J": [[1, -0.6]]})
    batch = ObsBatch.from_vec_obs(batch_observations([frame], obs_space, actions))
    with torch.no_grad():
        positions.keys.copy_(torch.eye(*positions.keys.shape))  # so that a relative key lists its coefficients
        keys = positions(batch, index=torch.tensor([[0, 1]])).packed_keys
    assert keys is not None
    return {row: share for row, share in enumerate(keys[0, 0, 1].tolist()) if share != 0}


EXAMPLES = re.findall(r"^\| `(kind=[^`]*)` \| [^|]* \| (\d+) \| ([^|]*) \|$", PAGE, flags=re.MULTILINE)


def test_the_example_of_buckets_has_every_kind() -> None:
    assert {settings.split()[0] for settings, _, _ in EXAMPLES} == {
        "kind=grid",
        "kind=distance",
        "kind=radial",
        "kind=polar",
    }


@pytest.mark.parametrize(("settings", "row", "shares"), EXAMPLES)
def test_the_example_of_buckets_says_what_the_code_computes(settings: str, row: str, shares: str) -> None:
    assert coefficients(settings, interpolate=False) == {int(row): 1.0}
    stated = {int(number): float(share) for share, number in re.findall(r"([\d.]+) of row (\d+)", shares)}
    computed = coefficients(settings, interpolate=True)
    assert stated == {number: pytest.approx(share, abs=0.006) for number, share in computed.items() if share > 1e-6}
