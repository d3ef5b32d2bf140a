"""The batch of ARCHITECTURE.md's walk: three boards, a small network, and formatting of their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from enn_ppo.settings.config import PPOConfig
from entity_gym import Observation
from entity_gym.pools.pool import ListEnv
from rogue_net import ActResult, FrameKeys, ObsBatch, RaggedTensor, RogueNet, RogueNetConfig
from tests.entity_gym.envs.minesweeper_python import ACTION_SPACE, OBS_SPACE, PythonMineSweeper

BOARDS: list[dict[str, Any]] = [
    {"mines": [[0, 2], [0, 1], [2, 2], [0, 0], [1, 0]], "robots": [[1, 1]]},
    {"mines": [[2, 1]], "robots": [[2, 0]], "orbital_cannon": True, "orbital_cannon_cooldown": 0},
    {"mines": [[1, 0], [0, 1], [2, 2]], "robots": [[0, 0], [2, 0]]},
]
STEPS = 2
MINIBATCH = [5, 1, 0]
WEIGHTS_SEED = 8732  # chosen so that the most probable first actions are instructive
PPO = PPOConfig(gamma=0.99, gae_lambda=0.95, clip=0.2, clip_value=True, ent_coef=0.05, vf_coef=0.5)


class StagedMineSweeper(PythonMineSweeper):
    """MineSweeper whose first episode starts on a given board, later ones on random boards."""

    def __init__(self, board: Mapping[str, Any]) -> None:
        super().__init__(width=3, height=3, num_mines=2, num_robots=1, max_steps=STEPS)
        self._first: Mapping[str, Any] | None = board

    def reset(self) -> Observation:
        if self._first is None:
            return super().reset()
        self.load_state(self._first)
        self._first = None
        return self.observe()


class GreedyNet(RogueNet):
    """A network that takes the most probable action, since sampling noise differs between processors."""

    def act(
        self,
        batch: ObsBatch,
        state: object = None,
        *,
        greedy: bool = True,
        temperature: float = 1.0,
        generator: torch.Generator | FrameKeys | None = None,
        logits: bool = False,
    ) -> ActResult:
        return super().act(batch, state, greedy=True, logits=logits)


def make_net(seed: int) -> GreedyNet:
    """A small network with weights from NumPy, whose random numbers are the same everywhere."""
    net = GreedyNet(RogueNetConfig(d_model=4, n_layer=1, n_head=2, d_qk=4), OBS_SPACE, ACTION_SPACE)
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            scale = (
                0.15 if name.startswith("heads.1") else 0.5 if "head" in name else 0.8
            )  # probabilities away from 0 and 1
            parameter.copy_(torch.from_numpy(scale * rng.standard_normal(tuple(parameter.shape))))
    return net


def make_envs() -> ListEnv:
    boards = iter(BOARDS)
    return ListEnv(lambda: StagedMineSweeper(next(boards)), num_envs=len(BOARDS), seed=1)


# --- Formatting


def number(value: float, digits: int = 2) -> str:
    """Format a rounded number, never as "-0.00"."""
    return f"{round(float(value), digits) + 0.0:.{digits}f}"


def numbers(values: Iterable[float], digits: int = 2) -> str:
    return "[" + ", ".join(number(value, digits) for value in values) + "]"


def whole(value: Any) -> Any:
    """Convert nested lists of whole floats to integers."""
    if isinstance(value, list | tuple):
        return type(value)(whole(item) for item in value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A text table with columns of minimal width, aligned to the right."""
    lines = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def boards_text(envs: Sequence[PythonMineSweeper]) -> str:
    """Draw boards side by side, y = 0 at the bottom: M is a mine, 0 and 1 are robots."""
    columns = []
    for i, env in enumerate(envs):
        state = env.state()
        cells = {(x, y): "M" for x, y in state["mines"]} | {(x, y): str(r) for r, (x, y) in enumerate(state["robots"])}
        cannon = f"cannon, cooldown {state['orbital_cannon_cooldown']}" if state["orbital_cannon"] else "no cannon"
        board = ["   ".join(cells.get((x, y), ".") for x in range(3)) for y in (2, 1, 0)]
        columns.append([f"environment {i}", *board, cannon])
    names = ["", "y=2", "y=1", "y=0", ""]
    return "\n".join(f"{n:5}" + "".join(f"{c[i]:24}" for c in columns).rstrip() for i, n in enumerate(names))


def ragged_lists(tensor: RaggedTensor) -> list[Any]:
    bounds = tensor.offsets.tolist()
    return [whole(tensor.values[a:b].tolist()) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]


def statistics_text(net: RogueNet) -> str:
    rows = []
    for name, entity in zip(OBS_SPACE.entities, net.embedding.entities, strict=True):
        norm = entity.norm
        std = (norm.squares / norm.count.clamp(min=1)).sqrt()
        rows.append([name, int(norm.count), numbers(norm.mean), numbers(std)])
    return table(["type", "count", "mean", "standard deviation"], rows)
