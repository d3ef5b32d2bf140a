"""Connect four for `bench.py worlds`: players written by hand, games between them, and a policy's games against them.

A board is two whole numbers, one of the player's own stones and one of all stones: bit `7 * column + row`, row 0 at the bottom;
the seventh bit of a column stays empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import saved_config
from enn_ppo.eval.episodes import play_episodes, summarize
from enn_ppo.eval.evaluate import bind_evaluation
from enn_ppo.eval.policy import fit
from enn_ppo.settings.config import EvalConfig
from entity_gym.actions.choices import random_actions
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.batch.vec_obs import VecAction, VecObs
from entity_gym.pools.players import players_of
from entity_gym.pools.pool import ThreadedVecEnv
from entity_gym.pools.seats import SeatedVecEnv

#: Plies that a player looks ahead; 0: random moves; 1: wins if it can, else random.
DEPTHS = {"random": 0, "one step": 1, "minimax 4": 4}
ROWS, COLUMNS = 6, 7


@numba.njit
def _wins(stones: int) -> bool:
    for shift in (1, 7, 6, 8):
        pairs = stones & (stones >> shift)
        if pairs & (pairs >> (2 * shift)):
            return True
    return False


@numba.njit
def _drop(every: int, column: int) -> int:
    """The bit of the next stone in a column; 0 if it is full."""
    bit = ((every >> (7 * column)) & 127) + 1
    return 0 if bit > 63 else bit << (7 * column)


@numba.njit
def _value(own: int, every: int, depth: int, low: int, high: int) -> int:
    """The value for the player to move: positive for a win within `depth` plies, higher if it is sooner."""
    if depth == 0:
        return 0
    best = -100
    for column in (3, 2, 4, 1, 5, 0, 6):
        stone = _drop(every, column)
        if stone == 0:
            continue
        if _wins(own | stone):
            return depth
        value = -_value(every & ~own, every | stone, depth - 1, -high, -low)
        best = max(best, value)
        low = max(low, value)
        if low >= high:
            break
    return 0 if best == -100 else best  # a full board


@numba.njit
def _values(own: int, every: int, depth: int) -> NDArray[np.int64]:
    """(7,) values of the moves; -1000 for a full column."""
    values = np.full(7, -1000)
    for column in range(7):
        stone = _drop(every, column)
        if stone:
            wins = _wins(own | stone)
            values[column] = depth if wins else -_value(every & ~own, every | stone, depth - 1, -100, 100)
    return values


def choose(own: int, every: int, depth: int, rng: np.random.Generator) -> int:
    """Return the column that a player with `depth` takes, drawn from its best ones."""
    if depth == 0:
        return int(rng.choice([column for column in range(COLUMNS) if _drop(every, column)]))
    values = _values(own, every, depth)
    return int(rng.choice(np.flatnonzero(values == values.max())))


def win_rate(depth: int, opponent: int, games: int, seed: int) -> float:
    """Return the share of games that a player wins, a tie as a half; it begins every second one."""
    rng, won = np.random.default_rng(seed), 0.0
    for game in range(games):
        own, every, turn = 0, 0, game % 2
        while True:
            stone = _drop(every, choose(own, every, (depth, opponent)[turn], rng))
            own, every = own | stone, every | stone
            if _wins(own):
                won += turn == 0
                break
            if every.bit_count() == ROWS * COLUMNS:
                won += 0.5
                break
            own, turn = every & ~own, 1 - turn
    return won / games


class Script:
    """Plays the other side of connect four in this package's environments (`entity_gym.pools.players.Opponents`)."""

    def __init__(self, name: str, action_space: Mapping[str, Any], seed: int) -> None:
        self._name, self._action_space = name, action_space
        self._rng = np.random.default_rng(seed)

    def act(self, obs: VecObs, env_id: NDArray[np.int64]) -> dict[str, VecAction]:
        """Choose a column in each frame in which it is this player's turn."""
        (name,) = obs.action_masks
        actions = random_actions(obs, self._rng, self._action_space)
        offsets = actions[name].offsets
        values = actions[name].values.copy()
        for frame in np.flatnonzero(np.diff(offsets)):
            own, every = board_of(_pieces(obs, frame, int(obs.action_masks[name].actors.values[offsets[frame], 0])))
            values[offsets[frame], 0] = choose(own, every, DEPTHS[self._name], self._rng)
        return {name: RaggedBuffer(values, offsets)}

    def faced(self, env_id: NDArray[np.int64]) -> Sequence[str]:
        """Name of the opponent in each environment."""
        return [self._name] * len(env_id)

    def state(self) -> dict[str, Any]:
        """State for `load_state`."""
        return {"random": self._rng.bit_generator.state}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._rng.bit_generator.state = state["random"]


def _pieces(obs: VecObs, frame: int, actor: int) -> NDArray[np.float32]:
    """Return (n, 4) pieces as `board_of` takes them, from the view, or from the whole board in the features of the actor."""
    name = "Piece" if "Piece" in obs.features else "player"
    start, end = obs.features[name].offsets[frame : frame + 2]
    rows = obs.features[name].values[start:end]
    if name == "Piece":
        return rows
    cells = rows[actor, : ROWS * COLUMNS * 2].reshape(ROWS, COLUMNS, 2)
    places = np.argwhere(cells.any(axis=2))
    return np.concatenate([places, cells[tuple(places.T)]], axis=1).astype(np.float32)


def board_of(pieces: NDArray[np.float32]) -> tuple[int, int]:
    """Return the board of (n, 4) pieces: row from the top, column, whether it is one's own, and the opponent's."""
    own = every = 0
    for row, column, mine, _ in pieces.astype(int).tolist():
        stone = 1 << (7 * column + ROWS - 1 - row)
        own, every = own | (stone if mine else 0), every | stone
    return own, every


def policy_win_rate(run_dir: Path, opponent: str, config: EvalConfig) -> float:
    """Return the share of games that a trained policy wins, a tie as a half, in `config.episodes` games, half of them begun."""
    checkpoint = load_checkpoint(run_dir)
    bound = bind_evaluation(saved_config(checkpoint).env, config, None)
    mapping = players_of(bound.source)
    assert mapping is not None
    with torch.random.fork_rng():
        pool = ThreadedVecEnv(bound.source, config.num_envs, seed=config.seed, autoreset=False)
        script: Callable[..., Any] = Script
        seated = SeatedVecEnv(pool, mapping, script(opponent, pool.action_space(), config.seed))
        spaces, generator = (seated.obs_space(), seated.action_space()), torch.Generator().manual_seed(config.seed)
        policy = fit(checkpoint, *spaces, bound.config.id, generator, greedy=bool(config.greedy))
        (episodes,) = play_episodes({"": policy}, seated, config).values()
        seated.close()
    return summarize(episodes)["win_rate"].mean
