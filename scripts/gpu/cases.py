"""Test cases of several sections: networks, frames, and the two environments with their settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

import numpy as np
import torch
from policy_cases import Frames, Policy, ragged_frames

from enn_ppo.settings.config import EnvConfig, OptimConfig, PPOConfig, RolloutConfig, TrainConfig
from enn_ppo.training.callbacks import Callback
from enn_ppo.training.run import Run
from enn_ppo.training.start import start_run
from rogue_net import RogueNetConfig
from rogue_net.config import Precision, RelposConfig

HEADS = {32: 2, 64: 4, 128: 4, 256: 8}  # width -> attention heads, of 16, 16, 32 and 32 features


# --- Networks and frames ---


def backends(device: torch.device) -> list[str]:
    """The values of `net.backend` for a device, `fused` first. `auto` is one of them: which one depends on earlier checks."""
    return ["reference"] if device.type == "cpu" else ["fused", "reference"]  # the CPU's `fused` has its own benchmarks


def precisions() -> list[str]:
    """The values of `net.precision`."""
    return list(get_args(Precision))


def variants(device: torch.device) -> Iterator[tuple[str, str]]:
    """Every backend with every precision, including invalid combinations."""
    for backend in backends(device):
        for precision in precisions():
            yield backend, precision


def network(
    width: int, layers: int, backend: str, precision: str, relpos: RelposConfig | None = None
) -> RogueNetConfig:
    """Settings of a network.

    Raises:
        ValueError: the settings cannot be combined.
    """
    return RogueNetConfig(
        d_model=width,
        n_head=HEADS[width],
        n_layer=layers,
        backend=backend,  # type: ignore[arg-type]
        precision=precision,  # type: ignore[arg-type]
        relpos=relpos or RelposConfig(),
    )


def frames_of(mean: int, tokens: int, *, seed: int = 0) -> Frames:
    """Frames of 1 to 2 `mean` - 1 entities, uniformly distributed, with about `tokens` entities in all."""
    lengths = np.random.default_rng(seed).integers(1, 2 * mean, max(2, tokens // mean))
    return ragged_frames(f"mean {mean}", lengths.tolist(), seed=seed)


def lengths_of(frames: Frames) -> np.ndarray:
    """(B,) tokens of each frame."""
    return np.sum([buffer.size1() for buffer in frames.obs.features.values()], axis=0)


def make_policy(frames: Frames, config: RogueNetConfig, device: torch.device) -> Policy:
    """A policy that acts and learns on `frames`."""
    return Policy(frames, config, device)


# --- Worlds ---


@dataclass(frozen=True)
class World:
    """An environment, and its network."""

    name: str
    env: EnvConfig
    net: RogueNetConfig
    ent_coef: float
    score: float  # mean episodic reward that counts as solved
    asked: float  # required trained steps/s
    relpos: RelposConfig | None = None  # of a second network, which needs fewer steps


#: The benchmark setting of entity-gym-rs: one snake on 10 by 10 cells, one layer of width 32, batches of 16,384, 3 epochs; and
#: MineSweeper with the default network. Other settings are those of the presets.
WORLDS = {
    "MultiSnake": World(
        "MultiSnake",
        EnvConfig(id="MultiSnake", kwargs={"board_size": 10, "num_snakes": 1}),
        RogueNetConfig(n_layer=1),
        ent_coef=0.02,
        score=0.95,
        asked=1e6,
        relpos=RelposConfig(kind="grid", extent=[5, 5], position_features=["x", "y"]),
    ),
    "MineSweeper": World(
        "MineSweeper", EnvConfig(id="MineSweeper"), RogueNetConfig(), ent_coef=0.05, score=0.97, asked=5e5
    ),
}


@dataclass(frozen=True)
class Knobs:
    """Settings that affect speed, and learning little or not at all."""

    num_envs: int = 4096
    env_threads: int = 4
    batch_size: int = 16_384
    steps: int = 16
    epochs: int = 3
    backend: str = "fused"
    precision: str = "fp32"
    compile: str = "off"
    pipeline: int = 1


def start_knobs(device: torch.device, *, tiny: bool) -> Knobs:
    """The knobs at the start of the search for speed."""
    knobs = Knobs(backend="fused" if device.type == "cuda" else "reference")
    return replace(knobs, num_envs=8, env_threads=1, batch_size=16, steps=4, epochs=1) if tiny else knobs


def train_config(world: World, knobs: Knobs, device: torch.device, run_dir: str, **changes: Any) -> TrainConfig:
    """Settings for training in `world`, without a limit of steps and without intermediate checkpoints.

    Raises:
        ValueError: a setting is unknown, or settings cannot be combined.
    """
    optional = _if_known(TrainConfig, "compile", knobs.compile, "off")
    rollout = RolloutConfig(
        num_envs=knobs.num_envs,
        steps=knobs.steps,
        num_threads=knobs.env_threads,
        **_if_known(RolloutConfig, "pipeline", knobs.pipeline, 1),
    )
    settings = {
        "env": world.env,
        "rollout": rollout,
        "net": replace(world.net, backend=knobs.backend, precision=knobs.precision),  # type: ignore[arg-type]
        "optim": OptimConfig(batch_size=knobs.batch_size, epochs=knobs.epochs),
        "ppo": PPOConfig(ent_coef=world.ent_coef),
        "total_timesteps": 10**12,
        "checkpoint_interval": 10**9,
        "device": device.type,
        "run_dir": run_dir,
        **optional,
    }
    return TrainConfig(**(settings | changes))


def _if_known(config: type, name: str, value: Any, default: Any) -> dict[str, Any]:
    if name in {field.name for field in fields(config)}:
        return {name: value}
    if value != default:
        raise ValueError(f"{config.__name__} has no setting {name!r}")
    return {}


def begin(config: TrainConfig) -> Run:
    """Start a run, including its first rollout; the run is a context manager."""
    run: Run = start_run(config, None, Callback())
    return run
