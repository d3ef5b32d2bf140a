"""MultiSnake: snakes that grow on food of their own colour, alone, together or against each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from entity_gym.compiled import Categorical, CompiledEnvironment, Entity, kernel, rand_int
from entity_gym.spaces import GLOBAL_ENTITY

MAX_SNAKES, MAX_PLAYERS, MAX_BODY, MAX_SIDE = 9, 4, 256, 64
REWARDS = [f"reward_{player}" for player in range(MAX_PLAYERS)]
SCORES = [f"score_{player}" for player in range(MAX_PLAYERS)]
NAN = float("nan")
MOVES = np.array([[0, 1], [0, -1], [-1, 0], [1, 0]], np.int16)  # [dx, dy] of up, down, left, right
MOVED, GREW, DIED = range(3)


class MultiSnake(CompiledEnvironment):
    """Snakes on a square board eat food of their own colour and grow, each segment in a cell of its own.

    **Observation.** `SnakeHead`, `SnakeBody` and `Food`, each [x, y, color], and the global feature `step`, the steps
    of this episode. Positions are whole numbers from 0 to board_size - 1; x grows to the right and y upwards. A colour
    is the number of a snake, from 0 to num_snakes - 1. Heads and food come in the order of colours, one each per snake;
    bodies (all segments but the heads) snake by snake, each from the tail to the neck.

    **Actions.** `move`: every head picks up (y+1), down (y-1), left (x-1) or right (x+1). Nothing is masked.

    **A step.** The snakes move one after the other, in the order of colours; each sees the board as the ones before it
    have left it. A snake looks at the cell in front of its head and

    - dies if that cell is off the board;
    - dies if a segment of any snake is in it: its own too, *and its own tail too*, which would only leave the cell by this
      very move. A head that turns back on its neck dies. Tails of snakes that moved earlier in this step are where they
      are now, those of snakes that move later still where they were;
    - dies if food of another colour is in it;
    - otherwise moves its head there. If food of its colour was in the cell, that is eaten; and if the snake was shorter
      than `max_snake_length`, its tail stays and it is one segment longer. In every other case the tail follows.

    A dead snake stays where it was. The snakes after it still move in this step. When all have moved, what was eaten is
    replaced by food of the same colour in a free cell, drawn uniformly from those without a segment and without food.

    **Reward.** 1 / (max_snake_length - 1) / num_snakes for every segment that a snake grows. Dying costs nothing but
    the food not eaten. (A snake of full length that eats gets nothing.)

    **End.** Terminates when a snake dies, or when all snakes of a player have reached `max_snake_length`. Truncated
    after `max_steps` steps. Snakes start with one segment and one food each, in different cells, drawn uniformly.

    **Players.** Snake i belongs to player i // (num_snakes / num_players): with 4 snakes and 2 players, colours 0 and 1
    are player 0's, 2 and 3 player 1's. There is one frame, in which the heads of all players act. What a player earned is
    the metric `reward_<player>` of every step, and `score_<player>`, their sum over the episode, is in
    `end_of_episode_info`; for players that there are not, both are NaN. The environment's reward is their sum. To let
    one policy play every side, against itself or others (see `entity_gym.pools.players`):

    - every player's own reward comes with every step (`player_rewards`), so that each can learn from what it earned itself;
    - `num_players(values)` and `players(values, entity_type, rows)` say who owns what, from the parameters and the features
      of entities, such as those of the actors of `move`;
    - `seen_by(values, player, entity_type, rows)` renumbers the colours for one player's eyes, the own ones from 0 on
      and those of the next player after them. The game looks the same to every player then, but for the order of moves.

    **Best score.** 1.0: all snakes at full length. Several players share that 1.0, and one that reaches full length
    first ends the episode: a player alone earns at most 1 / num_players.

    Args:
        board_size: cells along x and along y, 2 to 64.
        num_snakes: 1 to 9.
        num_players: 1 to 4; all have the same number of snakes.
        max_snake_length: segments of a full-grown snake, at least 2. Full-grown snakes and their food must fit on the
            board, and all bodies together may have 256 segments, heads not counted.
        max_steps: steps after which an episode is truncated, at least 1; None for no limit.
    """

    entities = {
        "SnakeHead": Entity(["x", "y", "color"], max=MAX_SNAKES),
        "SnakeBody": Entity(["x", "y", "color"], max=MAX_BODY),
        "Food": Entity(["x", "y", "color"], max=MAX_SNAKES),
    }
    global_features = ["step"]
    actions = {"move": Categorical(["up", "down", "left", "right"], actors="SnakeHead")}
    parameters = {"board_size": 10, "num_snakes": 2, "num_players": 1, "max_snake_length": 11}
    ranges = {
        "board_size": (2, MAX_SIDE),
        "num_snakes": (1, MAX_SNAKES),
        "num_players": (1, MAX_PLAYERS),
        "max_snake_length": (2, None),
    }
    max_steps = 180
    state = [
        # Snake i has segments first, ..., first + length[i] - 1, from tail to head, where first = i * max_snake_length.
        ("length", np.int64, (MAX_SNAKES,)),
        ("segment", np.int16, (MAX_BODY + MAX_SNAKES, 2)),  # [x, y]
        ("food", np.int16, (MAX_SNAKES, 2)),  # [x, y] of colour i
        ("eaten", np.int8, (MAX_SNAKES,)),  # 1: food i is gone until it is replaced
        ("earned", np.float64, (MAX_PLAYERS,)),  # in this step
        *((name, np.float64) for name in (*REWARDS, *SCORES)),
    ]
    metrics = REWARDS
    info = SCORES
    player_rewards = REWARDS
    player_parameters = ("num_snakes", "num_players")  # on which it depends whose a snake is
    reward_threshold = 0.95

    @staticmethod
    def check_parameters(p: Any) -> None:
        if p.num_snakes % p.num_players:
            raise ValueError(
                f"MultiSnake: num_snakes={p.num_snakes} cannot be shared equally by num_players={p.num_players}; "
                "num_snakes must be a multiple of num_players"
            )
        body = p.num_snakes * (p.max_snake_length - 1)
        if body > MAX_BODY:
            raise ValueError(
                f"MultiSnake: num_snakes={p.num_snakes} of max_snake_length={p.max_snake_length} have {body} body "
                f"segments; there is room for {MAX_BODY}, so max_snake_length may be {MAX_BODY // p.num_snakes + 1}"
            )
        cells = p.num_snakes * (p.max_snake_length + 1)
        if cells > p.board_size**2:
            raise ValueError(
                f"MultiSnake: num_snakes={p.num_snakes} of max_snake_length={p.max_snake_length}, each with its food, need "
                f"{cells} cells; the board of board_size={p.board_size} has {p.board_size**2}"
            )

    def reset(s: Any) -> None:
        for i in range(s.num_snakes):
            s.length[i] = 0
            s.eaten[i] = 1
        for i in range(s.num_snakes):
            cell = draw_free_cell(s)
            s.segment[i * s.max_snake_length, 0] = cell % s.board_size
            s.segment[i * s.max_snake_length, 1] = cell // s.board_size
            s.length[i] = 1
            place_food(s, i)
        start_scores(s)

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        snakes_per_player = s.num_snakes // s.num_players
        for player in range(s.num_players):
            s.earned[player] = 0.0
        died = False
        reward = 0.0
        for i in range(s.num_snakes):
            fate = move_snake(s, i, act.move[i])
            if fate == DIED:
                died = True
            elif fate == GREW:
                gain = 1.0 / (s.max_snake_length - 1) / s.num_snakes
                reward += gain
                s.earned[i // snakes_per_player] += gain
        for i in range(s.num_snakes):
            if s.eaten[i] == 1:
                place_food(s, i)
        report_rewards(s)
        return reward, died or a_player_is_full(s, snakes_per_player), False

    def observe(s: Any, obs: Any) -> None:
        obs.global_features[0] = s.steps
        obs.n.SnakeHead = s.num_snakes
        obs.n.Food = s.num_snakes
        body = 0
        for i in range(s.num_snakes):
            first = i * s.max_snake_length
            head = first + s.length[i] - 1
            for k in range(first, head):
                obs.SnakeBody[body, 0] = s.segment[k, 0]
                obs.SnakeBody[body, 1] = s.segment[k, 1]
                obs.SnakeBody[body, 2] = i
                body += 1
            obs.SnakeHead[i, 0] = s.segment[head, 0]
            obs.SnakeHead[i, 1] = s.segment[head, 1]
            obs.SnakeHead[i, 2] = i
            obs.Food[i, 0] = s.food[i, 0]
            obs.Food[i, 1] = s.food[i, 1]
            obs.Food[i, 2] = i
        obs.n.SnakeBody = body

    def draw(s: Any) -> dict[str, Any]:
        """Hints for replays: the board, y = 0 at the bottom, in the colours of the snakes."""
        last = int(s.board_size) - 1
        common = {"position": ["x", "y"], "color_by": "color"}
        return {
            "bounds": [0, 0, last, last],
            "grid": True,
            "y_up": True,
            "types": {
                "SnakeHead": {**common, "shape": "square", "size": 0.95, "label": "{color}", "layer": 2},
                "SnakeBody": {**common, "shape": "square", "size": 0.7, "layer": 1},
                "Food": {**common, "shape": "diamond", "size": 0.6},
            },
        }

    @staticmethod
    def num_players(values: Mapping[str, Any]) -> int:
        """How many players there are with these parameters (`values` of a description)."""
        return int(values["num_players"])

    @staticmethod
    def players(values: Mapping[str, Any], entity_type: str, rows: ArrayLike) -> NDArray[np.int64]:
        """Return the player of each entity."""
        colours = np.asarray(rows)[:, 2].astype(np.int64)
        owners: NDArray[np.int64] = colours // (values["num_snakes"] // values["num_players"])
        return owners

    @staticmethod
    def seen_by(
        values: Mapping[str, Any], player: int | NDArray[np.int64], entity_type: str, rows: ArrayLike
    ) -> NDArray[np.float32]:
        """The features with colours renumbered so that `player`'s own come first, and then those of the players after it."""
        seen = np.array(rows, np.float32)
        if entity_type == GLOBAL_ENTITY:
            return seen
        own = player * (values["num_snakes"] // values["num_players"])
        seen[:, 2] = (seen[:, 2] - own) % values["num_snakes"]
        return seen


@kernel
def move_snake(s: Any, i: int, choice: int) -> int:
    """Move snake i, or not if it dies of that. Returns what became of it: MOVED, GREW or DIED."""
    first = i * s.max_snake_length
    head = first + s.length[i] - 1
    x = s.segment[head, 0] + MOVES[choice, 0]
    y = s.segment[head, 1] + MOVES[choice, 1]
    if x < 0 or x >= s.board_size or y < 0 or y >= s.board_size or is_deadly(s, i, x, y):
        return DIED

    s.eaten[i] = 1 if s.food[i, 0] == x and s.food[i, 1] == y else 0
    grows = s.eaten[i] == 1 and s.length[i] < s.max_snake_length
    if grows:
        head += 1
        s.length[i] += 1
    else:
        for k in range(first, head):
            s.segment[k, 0] = s.segment[k + 1, 0]
            s.segment[k, 1] = s.segment[k + 1, 1]
    s.segment[head, 0] = x
    s.segment[head, 1] = y
    return GREW if grows else MOVED


@kernel
def is_deadly(s: Any, snake: int, x: int, y: int) -> bool:
    """Whether a segment, or food of another colour, is in the cell."""
    for i in range(s.num_snakes):
        if i != snake and s.food[i, 0] == x and s.food[i, 1] == y:
            return True
        first = i * s.max_snake_length
        for k in range(first, first + s.length[i]):
            if s.segment[k, 0] == x and s.segment[k, 1] == y:
                return True
    return False


@kernel
def a_player_is_full(s: Any, snakes_per_player: int) -> bool:
    """Whether all snakes of a player have their full length."""
    for first in range(0, s.num_snakes, snakes_per_player):
        full = True
        for i in range(first, first + snakes_per_player):
            if s.length[i] < s.max_snake_length:
                full = False
        if full:
            return True
    return False


@kernel
def place_food(s: Any, i: int) -> None:
    """Put food of colour i, of which there is none now, in a free cell."""
    cell = draw_free_cell(s)
    s.food[i, 0] = cell % s.board_size
    s.food[i, 1] = cell // s.board_size
    s.eaten[i] = 0


@kernel
def draw_free_cell(s: Any) -> int:
    """Draw one of the cells without segment and food, uniformly: y * board_size + x.

    One random number does, however full the board: it is the rank r among the free cells, and the cell of that rank is
    the first with cell = r + (taken cells up to it), to which the iteration climbs from below.
    """
    taken = 0
    for i in range(s.num_snakes):
        taken += s.length[i] + 1 - s.eaten[i]
    rank = rand_int(s, s.board_size * s.board_size - taken)
    cell = rank
    following = rank + count_taken(s, cell)
    while following != cell:
        cell = following
        following = rank + count_taken(s, cell)
    return cell


@kernel
def count_taken(s: Any, cell: int) -> int:
    """How many of the cells 0, ..., `cell` hold a segment or food."""
    count = 0
    for i in range(s.num_snakes):
        if s.eaten[i] == 0 and s.food[i, 1] * s.board_size + s.food[i, 0] <= cell:
            count += 1
        first = i * s.max_snake_length
        for k in range(first, first + s.length[i]):
            if s.segment[k, 1] * s.board_size + s.segment[k, 0] <= cell:
                count += 1
    return count


@kernel
def start_scores(s: Any) -> None:
    """Nobody has earned anything yet."""
    s.score_0 = 0.0
    s.score_1 = 0.0 if s.num_players > 1 else NAN
    s.score_2 = 0.0 if s.num_players > 2 else NAN
    s.score_3 = 0.0 if s.num_players > 3 else NAN


@kernel
def report_rewards(s: Any) -> None:
    """Write `earned` where the metrics are read, and add it to the scores."""
    s.reward_0 = s.earned[0]
    s.reward_1 = s.earned[1] if s.num_players > 1 else NAN
    s.reward_2 = s.earned[2] if s.num_players > 2 else NAN
    s.reward_3 = s.earned[3] if s.num_players > 3 else NAN
    s.score_0 += s.reward_0
    s.score_1 += s.reward_1
    s.score_2 += s.reward_2
    s.score_3 += s.reward_3
