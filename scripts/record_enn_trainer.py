"""Records small checkpoints of enn-trainer 0.1.16, this project's ancestor, and what their networks answer.

For tests/enn_ppo/test_convert.py. Needs an interpreter with enn-trainer, and imports nothing of this project:

    PEER/bin/python scripts/record_enn_trainer.py tests/enn_ppo/fixtures

Every folder is a checkpoint as `python -m enn_trainer.train` writes it after a few updates, and `answers.npz`: frames of the
training's environments and the outputs in them, as `scripts/record_rogue_net.py` stores them. With a network for the value
function `value_net/value` is its output.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from enn_trainer.load_checkpoint import load_checkpoint
from entity_gym.env.env_list import EnvList
from entity_gym.env.environment import GlobalCategoricalActionSpace, SelectEntityActionSpace
from entity_gym.examples import ENV_REGISTRY
from entity_gym.simple_trace import Tracer
from ragged_buffer import RaggedBufferBool, RaggedBufferF32, RaggedBufferI64
from record_rogue_net import Case, answers, ask

FRAMES, EVERY = 8, 5  # environments of the recorded frames, and steps that are played before
SMALL = "d_model: 16, n_layer: 1, d_qk: 8"
SMALLEST = "d_model: 8, n_head: 1, n_layer: 1, d_qk: 8"
POLAR = (
    'relpos_encoding: (extent: [8, 4], position_features: ["x_pos", "y_pos"], scale: 20.0, per_entity_values: true, '
    'radial: true, distance: true, rotation_angle_feature: "direction", interpolate: true)'
)
TRANSLATION = (
    'translation: (reference_entity: "Vehicle", position_features: ["x_pos", "y_pos"], '
    'rotation_angle_feature: "direction", add_dist_feature: true)'
)
GRID = 'relpos_encoding: (extent: [4, 4], position_features: ["x", "y"])'

# name -> the environment, its arguments, settings of the network, and other settings
CASES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "minesweeper": ("MineSweeper", {"orbital_cannon": True, "cooldown_period": 0, "nmines": 4}, SMALL, ""),
    "minefield": ("Minefield", {"max_mines": 4}, f"{SMALL}, {POLAR}, {TRANSLATION}", ""),
    "multisnake": (
        "MultiSnake",
        {"num_snakes": 1, "board_size": 5},
        f"{SMALLEST}, {GRID}",
        f"vf_net: ({SMALLEST}, {GRID}),",
    ),
}


def train(name: str, folder: Path) -> Path:
    """Train a few updates; returns the checkpoint."""
    env, kwargs, net, others = CASES[name]
    config = folder / "config.ron"
    config.write_text(
        f"TrainConfig(version: 4, env: (id: {json.dumps(env)}, kwargs: {json.dumps(json.dumps(kwargs))}), net: ({net}), "
        f"{others} rollout: (num_envs: 16, steps: 16, processes: 1), optim: (bs: 128, lr: 0.01), total_timesteps: 2048)"
    )
    command = [
        sys.executable,
        "-m",
        "enn_trainer.train",
        "--config",
        str(config),
        "--checkpoint-dir",
        str(folder / "run"),
    ]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (checkpoint,) = (folder / "run").iterdir()
    return checkpoint


def to_case(net: Any) -> Case:
    """The network's spaces, as record_rogue_net.py has them."""

    def action(space: Any) -> dict[str, Any]:
        if isinstance(space, SelectEntityActionSpace):
            return {"kind": "select_entity"}
        kind = "global_categorical" if isinstance(space, GlobalCategoricalActionSpace) else "categorical"
        return {"kind": kind, "choices": list(space.index_to_label)}

    return Case(
        {
            "entities": {name: list(entity.features) for name, entity in net.obs_space.entities.items()},
            "global_features": list(net.obs_space.global_features),
            "actions": {name: action(space) for name, space in net.action_space.items()},
        }
    )


def play(net: Any, env: str, kwargs: dict[str, Any]) -> Any:
    """Frames in the middle of episodes."""
    envs = EnvList(lambda: ENV_REGISTRY[env](**kwargs), FRAMES)
    obs = envs.reset(envs.obs_space())
    for _ in range(EVERY):
        with torch.no_grad():
            chosen = net.get_action_and_auxiliary(obs.features, obs.visible, obs.action_masks, Tracer(False))[0]
        obs = envs.act(chosen, envs.obs_space())
    return obs


def to_batch(obs: Any) -> dict[str, np.ndarray]:
    """Frames, under the names of the file."""
    batch = {}

    def add(key: str, ragged: RaggedBufferF32 | RaggedBufferI64 | RaggedBufferBool) -> None:
        batch[f"{key}/values"], batch[f"{key}/lengths"] = ragged.as_array(), ragged.size1()

    for name, features in obs.features.items():
        add(f"features/{name}", features)
    for name, visible in obs.visible.items():
        add(f"visible/{name}", visible)
    for name, mask in obs.action_masks.items():
        add(f"actors/{name}", mask.actors)
        if hasattr(mask, "actees"):
            add(f"actees/{name}", mask.actees)
        elif mask.mask is not None:
            batch[f"mask/{name}"] = mask.mask.as_array()
    return batch


def record(checkpoint: Path, env: str, kwargs: dict[str, Any]) -> dict[str, np.ndarray]:
    """The contents of `answers.npz`."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    state = load_checkpoint(str(checkpoint)).state
    net = state.agent.eval()
    case, obs = to_case(net), play(net, env, kwargs)
    batch = to_batch(obs)
    sampled = ask(net, case, batch, None)[0]
    actions = {action: buffer.as_array().reshape(-1) for action, buffer in sampled.items()}
    said = answers(case, batch, ask(net, case, batch, actions))
    if state.value_function is not None:
        with torch.no_grad():
            value = state.value_function.eval().get_auxiliary_head(obs.features, obs.visible, "value", Tracer(False))
        said["value_net/value"] = value.numpy()
    description = {"action_space": case.world["actions"]}
    return {
        "description": np.array(json.dumps(description)),
        **batch,
        **{f"actions/{action}": values for action, values in actions.items()},
        **said,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path, help="where the checkpoints go")
    arguments.add_argument("--only", nargs="*", choices=CASES, metavar="CASE", help="record these and leave the others")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    for name in given.only or CASES:
        with tempfile.TemporaryDirectory() as temporary:
            checkpoint = train(name, Path(temporary))
            target = given.folder / name / checkpoint.name
            shutil.rmtree(target.parent, ignore_errors=True)
            shutil.copytree(checkpoint, target)
        np.savez_compressed(target.parent / "answers.npz", **record(target, *CASES[name][:2]))
        files = [file for file in target.parent.rglob("*") if file.is_file()]
        print(f"{sum(file.stat().st_size for file in files):>8} {target}")


if __name__ == "__main__":
    main()
