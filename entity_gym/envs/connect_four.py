"""ConnectFour: two players drop discs into columns until one has four in a row; each other, or against a script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from entity_gym import spaces
from entity_gym.compiled import CompiledEnvironment, Entity, SelectEntity, kernel, rand_int
from entity_gym.envs.colours import BLUE, DARK
from entity_gym.envs.connect_four_scripts import (
    ANY,
    ITSELF,
    MINIMAX,
    ONE_STEP,
    RANDOM,
    choose_column,
    connects,
    landing,
)

NAN = float("nan")
MOST_COLUMNS, MOST_ROWS = 9, 8
MOST_BITS = 63  # of a board, columns * (rows + 1)
MOST_DISCS = 28  # of a player
NOBODY = -1
THEIRS = spaces.Flag("theirs")
THEIR_TURN = spaces.Flag("their_turn")


class ConnectFour(CompiledEnvironment):
    """Two players in turn drop a disc into one of seven columns, until one has four in a row.

    **Observation.** `Player` [their_turn], always one; `Column` [x, y, their_turn] for each column that is not full, where y is
    the number of discs in it, and so the row in which a disc would land; `MoverDisc` [x, y, theirs] for every disc of the player
    whose turn it is, `OtherDisc` [x, y, theirs] for every other. x is a whole number from 0 to columns - 1, and y from 0, the
    lowest row, to rows - 1. `theirs` is 0 for one's own discs and 1 for those of the other player. `their_turn` is 0 if it is
    one's own turn, otherwise 1. Both players see the whole board all the time.

    **Actions.** `drop`: the `Player` whose turn it is selects a `Column`.

    **Reward.** 1 for four of one's own discs in a row, horizontally, vertically or diagonally, and -1 for four of the other
    player. 0 in every other step, and for a draw: a full board without four in a row.

    **End.** With four in a row, or a full board. Who begins is drawn for every episode. `end_of_episode_info` has `won` and
    `lost` (0 or 1, of player 0; in a draw both are 0).

    **Opponent.** With `opponent` 1, 2 or 3, a script is player 1, and drops its disc within the same step:

    | `opponent` | drops a disc | loses to random play |
    |---|---|---|
    | 1, random | into any column | 50 % |
    | 2, one step ahead | where it completes four, or else where the other player would, or else into any column | 4 % |
    | 3, minimax | by a search of four discs, its own one included: to win soon, or else to lose late | 1 % |

    Scripts draw from columns that are equally good. With `opponent` 4, one of the three is drawn for every episode.
    `end_of_episode_info` has `win_rate_random`, `win_rate_one_step` or `win_rate_minimax`, by the script of the episode: 1 for a
    victory, 0.5 for a draw and 0 for a defeat.

    With `opponent` 5 the policy is its own opponent: it plays both sides, sees each board as the player whose turn it is, and
    earns what that player earns with its disc. The next observation is the other player's, so its value counts with the
    opposite sign: train with a negative `ppo.gamma`.

    **Players.** With `opponent` 0 there are two players and one frame, in which the one whose turn it is acts. The environment's
    reward is the sum of both, 0; `seen_by` shows `theirs` and `their_turn` as a player sees them (see
    `entity_gym.pools.players`).

    **Best score.** Less than 1; a perfect player wins every game that it begins (with 7 columns and 6 rows; Allis 1988).

    Args:
        columns: 4 to 9.
        rows: 4 to 8. columns * (rows + 1) is at most 63.
        opponent: who is player 1: 0, another player; 1 to 3, a script; 4, one of the scripts; 5, the policy itself.
        opening: discs, 0 to 12, that are dropped at random before a game begins, in turn. One that would complete four, or fall
            into a full column, is left out.
        max_steps: steps after which an episode is truncated, at least 1; None (the default) for no limit besides the end above.
    """

    entities = {
        "Player": Entity([THEIR_TURN], max=1),
        "Column": Entity(["x", "y", THEIR_TURN], max=MOST_COLUMNS),
        "MoverDisc": Entity(["x", "y", THEIRS], max=MOST_DISCS),
        "OtherDisc": Entity(["x", "y", THEIRS], max=MOST_DISCS),
    }
    actions = {"drop": SelectEntity(actors="Player", actees="Column")}
    parameters = {"columns": 7, "rows": 6, "opponent": 0, "opening": 0}
    ranges = {"columns": (4, MOST_COLUMNS), "rows": (4, MOST_ROWS), "opponent": (0, ITSELF), "opening": (0, 12)}
    state = [
        ("discs", np.int64, (2,)),  # of each player: bit (rows + 1) * x + y; the highest bit of a column stays 0
        ("height", np.int64, (MOST_COLUMNS,)),
        ("mover", np.int64),  # whose turn it is
        ("winner", np.int64),  # or NOBODY
        ("script", np.int64),  # that plays this episode; 0: none
        ("searched", np.int64, (5, 5)),  # of a search, for each disc that it looks ahead
        *((name, np.float64) for name in ("reward_0", "reward_1")),
        *((name, np.int64) for name in ("won", "lost")),
        *((name, np.float64) for name in ("win_rate_random", "win_rate_one_step", "win_rate_minimax")),
    ]
    info = ["won", "lost", "win_rate_random", "win_rate_one_step", "win_rate_minimax"]
    player_rewards = ["reward_0", "reward_1"]
    player_parameters = ("opponent",)  # on which it depends who plays

    @staticmethod
    def check_parameters(p: Any) -> None:
        if p.columns * (p.rows + 1) > MOST_BITS:
            raise ValueError(
                f"ConnectFour: columns={p.columns} and rows={p.rows}; columns * (rows + 1) must be at most {MOST_BITS}, "
                f"so with these columns rows may be {MOST_BITS // p.columns - 1}"
            )

    def reset(s: Any) -> None:
        s.discs[0] = 0
        s.discs[1] = 0
        for x in range(s.columns):
            s.height[x] = 0
        s.mover = rand_int(s, 2)
        s.winner = NOBODY
        s.script = 0
        if s.opponent == ANY:
            s.script = 1 + rand_int(s, MINIMAX)
        elif s.opponent != ITSELF:
            s.script = s.opponent
        for _ in range(s.opening):
            x = rand_int(s, s.columns)
            disc = landing(s, s.discs[0] | s.discs[1], x)
            if disc > 0 and not connects(s, s.discs[s.mover] | disc):
                drop(s, x)
        if s.script > 0 and s.mover == 1:
            drop(s, choose_column(s))

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        player = s.mover
        drop(s, open_column(s, act.drop[0] - act.first.Column))
        if s.script > 0 and not is_over(s):
            drop(s, choose_column(s))
        s.won = 1 if s.winner == 0 else 0
        s.lost = 1 if s.winner == 1 else 0
        for_0 = s.won - s.lost
        s.reward_0 = for_0
        s.reward_1 = 0 - for_0 if s.opponent == 0 else NAN
        win_rate = 0.5 + 0.5 * for_0
        s.win_rate_random = win_rate if s.script == RANDOM else NAN
        s.win_rate_one_step = win_rate if s.script == ONE_STEP else NAN
        s.win_rate_minimax = win_rate if s.script == MINIMAX else NAN
        reward = 0 if s.opponent == 0 else for_0 if player == 0 else 0 - for_0
        return reward, is_over(s), False

    def observe(s: Any, obs: Any) -> None:
        viewer = s.mover if s.opponent == ITSELF else 0
        turn = s.mover ^ viewer
        obs.n.Player = 1
        obs.Player[0, 0] = turn
        columns = 0
        movers = 0
        others = 0
        for x in range(s.columns):
            if s.height[x] < s.rows:
                obs.Column[columns, 0] = x
                obs.Column[columns, 1] = s.height[x]
                obs.Column[columns, 2] = turn
                columns += 1
            for y in range(s.height[x]):
                owner = (s.discs[1] >> ((s.rows + 1) * x + y)) & 1
                if owner == s.mover:
                    obs.MoverDisc[movers, 0] = x
                    obs.MoverDisc[movers, 1] = y
                    obs.MoverDisc[movers, 2] = owner ^ viewer
                    movers += 1
                else:
                    obs.OtherDisc[others, 0] = x
                    obs.OtherDisc[others, 1] = y
                    obs.OtherDisc[others, 2] = owner ^ viewer
                    others += 1
        obs.n.Column = columns
        obs.n.MoverDisc = movers
        obs.n.OtherDisc = others
        if is_over(s):
            obs.n.drop = 0

    def draw(s: Any) -> dict[str, Any]:
        """Hints for replays: the board, with discs in the colours of the players and a bar where a disc would land."""
        position = {"position": ["x", "y"]}
        disc = {**position, "shape": "circle", "color_by": "theirs", "size": 0.9}
        return {
            "bounds": [0, 0, int(s.columns) - 1, int(s.rows) - 1],
            "grid": True,
            "y_up": True,
            "types": {
                "MoverDisc": disc,
                "OtherDisc": disc,
                "Column": {**position, "shape": "square", "color": DARK, "size": 0.3},
                "Player": {"shape": "square", "color": BLUE},
            },
        }

    @staticmethod
    def num_players(values: Mapping[str, Any]) -> int:
        """How many players policies play with these parameters (`values` of a description)."""
        return 2 if values["opponent"] == 0 else 1

    @staticmethod
    def players(values: Mapping[str, Any], entity_type: str, rows: ArrayLike) -> NDArray[np.int64]:
        """Return the player of each entity: a disc's owner, and of all else the player whose turn it is."""
        return np.asarray(rows)[:, -1].astype(np.int64)

    @staticmethod
    def seen_by(
        values: Mapping[str, Any], player: int | NDArray[np.int64], entity_type: str, rows: ArrayLike
    ) -> NDArray[np.float32]:
        """The features with `theirs` 0 for `player`'s own discs, and `their_turn` 0 in its turn."""
        seen = np.array(rows, np.float32)
        seen[:, -1] = seen[:, -1] != player
        return seen


@kernel
def open_column(s: Any, number: int) -> int:
    """The x of a column, by its number among those that are not full."""
    x = -1
    for _ in range(number + 1):
        x += 1
        while s.height[x] == s.rows:
            x += 1
    return x


@kernel
def drop(s: Any, x: int) -> None:
    """Drop a disc of the player whose turn it is, who may win with it, and pass the turn on."""
    s.discs[s.mover] |= landing(s, s.discs[0] | s.discs[1], x)
    s.height[x] += 1
    if connects(s, s.discs[s.mover]):
        s.winner = s.mover
    s.mover = 1 - s.mover


@kernel
def is_over(s: Any) -> bool:
    """Whether somebody has won, or the board is full."""
    if s.winner != NOBODY:
        return True
    for x in range(s.columns):
        if s.height[x] < s.rows:
            return False
    return True
