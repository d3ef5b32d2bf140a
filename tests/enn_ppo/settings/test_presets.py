"""The presets in configs/env: a world chosen by name brings its settings of everything, and whatever else is said wins."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from enn_ppo.settings.command_line.composition import CONFIGS
from enn_ppo.settings.config import EnvConfig, TrainConfig
from enn_ppo.settings.schema import flatten, to_dict
from entity_gym.registry import LIBRARIES, list_envs
from tests.enn_ppo.settings.command_line.test_command_line import composed

#: Presets that are for any world of a kind, which `env.id` names.
KINDS = ("custom", *LIBRARIES)
#: Further presets, and the worlds that they are for.
FURTHER = {"MultiSnake2": "MultiSnake", "CartPoleHidden": "CartPole-v1"}
FILES = sorted(path for path in (CONFIGS / "env").glob("*.yaml") if path.stem not in KINDS)


def test_every_world_of_the_zoo_has_a_preset() -> None:
    assert {path.stem for path in FILES} == {*list_envs(), *FURTHER}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_name_of_a_world_chooses_all_that_its_preset_says_which_only_differs_from_the_defaults(path: Path) -> None:
    said = flatten(yaml.safe_load(path.read_text()))
    assert said["env.id"] == FURTHER.get(path.stem, path.stem)
    chosen = flatten(to_dict(composed(f"env={path.stem}", "run_dir=a")))
    assert said == {name: chosen[name] for name in said}
    defaults = flatten(to_dict(TrainConfig()))
    assert [name for name in said if not name.startswith("env.") and defaults.get(name, "unset") == said[name]] == []


def test_an_experiment_wins_over_a_preset_and_keeps_the_rest_of_it() -> None:
    config = composed("env=FloorIsLava", "experiment=quick", "run_dir=a")
    assert (config.total_timesteps, config.rollout.num_envs, config.optim.epochs) == (8192, 32, 1)
    assert (config.optim.lr, config.net.relpos.extent) == ("0.003@0 -> 0@1", (1, 1))


def test_files_of_ones_own_add_choices_of_worlds_alone_and_of_all_settings(tmp_path: Path) -> None:
    for name, text in {
        "env/Maze.yaml": "id: maze:Maze\nkwargs: {size: 3}\n",
        "env/Wide.yaml": "# @package _global_\nenv: {id: 'maze:Maze', kwargs: {size: 3}}\nnet: {d_model: 64}\n",
        "net/large.yaml": "d_model: 48\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    mine = ("--config-dir", str(tmp_path), "run_dir=a")
    config = composed(*mine, "env=Maze", "env.kwargs.size=4", "~experiment")
    assert config == TrainConfig(env=EnvConfig(id="maze:Maze", kwargs={"size": 4}), run_dir="a")
    wide = composed(*mine, "env=Wide")
    assert (wide.env.kwargs, wide.net.d_model) == ({"size": 3}, 64)
    assert composed(*mine, "env=Maze", "+net=large").net.d_model == 48
