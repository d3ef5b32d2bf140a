"""The rules of ConnectFour on boards that are dropped column by column, its two views, and the scripts that play it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from entity_gym.actions import SelectEntityAction
from entity_gym.actions.choices import random_actions
from entity_gym.environment import Observation
from entity_gym.envs.connect_four import ConnectFour, drop
from entity_gym.envs.connect_four_scripts import ANY, ITSELF, MINIMAX, ONE_STEP, RANDOM, choose_column
from entity_gym.pools.players import Seating, players_of
from entity_gym.pools.pool import ThreadedVecEnv
from tests.entity_gym.compiled.view import CompiledView
from tests.entity_gym.envs.playing import rows, started


def begin(columns: Sequence[int] = (), mover: int = 0, **parameters: int) -> CompiledView:
    """A board on which both players have dropped discs into these columns in turn, `mover` the first."""
    env = started(ConnectFour(), mover=mover)
    for name, value in parameters.items():
        env.record[name] = value
    for x in columns:
        drop(env.record, x)
    env.observe()
    return env


def play(env: CompiledView, *columns: int) -> Observation:
    """Drop a disc of the player whose turn it is into each of these columns."""
    for x in columns:
        xs = [int(row[0]) for row in rows(env.show(), "Column")]
        end = env.act({"drop": SelectEntityAction([("Player", 0)], [("Column", xs.index(x))])})
    return end


def discs(seen: Observation) -> list[list[float]]:
    """[x, y, theirs] of all discs, by their place."""
    return sorted(rows(seen, "MoverDisc") + rows(seen, "OtherDisc"))


def rewards(end: Observation) -> list[float]:
    assert end.player_rewards is not None
    return [float(reward) for reward in end.player_rewards]


# --- What is seen


def test_discs_open_columns_and_the_turn_are_shown() -> None:
    seen = begin([3, 3, 0]).show()
    assert rows(seen, "Player") == [[1]], "three discs lie, so it is the turn of player 1"
    assert rows(seen, "Column") == [[x, {0: 1, 3: 2}.get(x, 0), 1] for x in range(7)]
    assert rows(seen, "MoverDisc") == [[3, 1, 1]]
    assert rows(seen, "OtherDisc") == [[0, 0, 0], [3, 0, 0]]


def test_a_full_column_is_not_there_to_be_selected() -> None:
    env = begin([2] * 6)
    assert [x for x, _, _ in rows(env.show(), "Column")] == [0, 1, 3, 4, 5, 6]
    play(env, 3)
    assert env.record.height[:7].tolist() == [0, 0, 6, 1, 0, 0, 0], (
        "the third of the columns that are there is number 3"
    )


def test_players_see_the_same_board_each_with_its_own_discs_as_mine_and_one_of_them_acts() -> None:
    source = ConnectFour()
    mapping = players_of(source)
    assert mapping is not None and mapping.num_players == 2
    pool, rng = ThreadedVecEnv(source, 8, compile=False), np.random.default_rng(0)
    obs = pool.reset(0)
    for _ in range(60):
        seating = Seating(obs, mapping)
        views = [seating.show(seating.part(player)) for player in (0, 1)]
        for name in ("MoverDisc", "OtherDisc"):
            first, second = (view.features[name].values for view in views)
            assert np.array_equal(first, obs.features[name].values)
            assert np.array_equal(first[:, :2], second[:, :2])
            assert np.array_equal(first[:, 2], 1 - second[:, 2])
        movers = obs.features["Player"].values[:, 0]
        for player, view in enumerate(views):
            turn = (movers != player).astype(float)
            assert np.array_equal(view.features["Player"].values[:, 0], turn)
            assert np.array_equal(
                view.features["Column"].values[:, 2], np.repeat(turn, view.features["Column"].size1())
            )
            for name, theirs in (("MoverDisc", turn), ("OtherDisc", 1 - turn)):
                buffer = view.features[name]
                assert np.array_equal(buffer.values[:, 2], np.repeat(theirs, buffer.size1()))
            assert np.array_equal(view.action_masks["drop"].actors.size1(), 1 - turn)
        obs = pool.act(random_actions(obs, rng, pool.action_space()))


def test_against_a_script_there_is_one_player_whose_turn_it_always_is() -> None:
    assert [ConnectFour.num_players(ConnectFour(opponent=opponent).values) for opponent in range(6)] == [
        2,
        1,
        1,
        1,
        1,
        1,
    ]
    seen = set()
    for seed in range(8):
        env = started(ConnectFour(opponent=RANDOM), seed)
        assert rows(env.show(), "Player") == [[0]]
        before = len(discs(env.show()))
        seen.add(before)
        assert len(discs(play(env, 3))) == before + 2
    assert seen == {0, 1}, "who begins is drawn"


def test_as_its_own_opponent_the_policy_sees_the_board_and_earns_as_the_player_whose_turn_it_is() -> None:
    for mover in (0, 1):
        env = begin([0, 6], mover, opponent=ITSELF)
        seen = []
        for x in (0, 6, 0, 6):
            seen.append([owner for column, _, owner in discs(env.show()) if column == 0])
            end = play(env, x)
            assert (rows(end, "Player"), end.reward, end.done) == ([[0]], 0, False)
        assert seen == [[0], [1, 1], [0, 0], [1, 1, 1]], "column 0 is of the player who began"
        end = play(env, 0)
        assert (end.reward, end.done) == (1, True)


def test_a_game_begins_after_an_opening_in_which_nobody_wins() -> None:
    sizes: dict[int, int] = {}
    for seed in range(40):
        env = started(ConnectFour(columns=4, rows=4, opening=12), seed)
        lie = [len(rows(env.show(), name)) for name in ("MoverDisc", "OtherDisc")]
        sizes[sum(lie)] = sizes.get(sum(lie), 0) + 1
        assert abs(lie[0] - lie[1]) <= 1
        assert env.record.winner == -1 and env.show().actions
    assert max(sizes) <= 12 and len(sizes) > 1, "discs for full columns are left out"
    assert len(discs(started(ConnectFour(opening=3)).show())) == 3


# --- Ends


@pytest.mark.parametrize(
    ("columns", "last"),
    [
        ([0, 0, 1, 1, 2, 2], 3),  # horizontal, completed at an end
        ([3, 3, 6, 6, 4, 4], 5),  # and in the middle
        ([5, 0, 5, 0, 5, 0], 5),  # vertical
        ([0, 1, 1, 2, 2, 3, 2, 3, 3, 6], 3),  # diagonal, to the upper right
        ([6, 5, 5, 4, 4, 3, 4, 3, 3, 0], 3),  # and to the upper left
    ],
)
@pytest.mark.parametrize("mover", [0, 1])
def test_four_in_a_row_win(columns: Sequence[int], last: int, mover: int) -> None:
    env = begin(columns[:-1], mover)
    assert not play(env, columns[-1]).done
    end = play(env, last)
    assert (end.done, end.truncated, end.reward) == (True, False, 0)
    assert rewards(end) == ([1, -1] if mover == 0 else [-1, 1])
    assert end.end_of_episode_info == {"won": 1 - mover, "lost": mover}
    assert not end.actions, "nobody acts when the game is over"


def test_four_do_not_go_on_in_the_next_column() -> None:
    assert not play(begin([0, 1, 0, 1, 0, 1, 6, 6, 1, 2, 1, 0, 1, 0]), 0).done


def test_a_full_board_without_four_is_a_draw() -> None:
    # columns 0, 1, 4 and 5 begin with a disc of player 0, and the others with one of player 1; in all of them owners alternate
    pairs = [x for first, other in ((0, 2), (1, 3), (4, 6)) for x in (first, other, other, first) * 3]
    env = begin(pairs)
    assert not play(env, 5, 5, 5, 5, 5).done
    end = play(env, 5)
    assert end.done and rewards(end) == [0, 0] and end.end_of_episode_info == {"won": 0, "lost": 0}


def four_in_a_row(board: NDArray[np.int64], player: int) -> bool:
    """Whether a player has four in a row on a (columns, rows) board, by looking from every cell in four directions."""
    columns, heights = board.shape
    for x in range(columns):
        for y in range(heights):
            for dx, dy in ((1, 0), (0, 1), (1, 1), (1, -1)):
                line = [(x + k * dx, y + k * dy) for k in range(4)]
                inside = [(i, j) for i, j in line if 0 <= i < columns and 0 <= j < heights]
                if len(inside) == 4 and all(board[cell] == player for cell in inside):
                    return True
    return False


@pytest.mark.parametrize(("columns", "heights"), [(7, 6), (4, 4), (9, 6), (7, 8), (5, 8)])
def test_random_games_are_those_of_a_board_of_cells(columns: int, heights: int) -> None:
    rng, ends = np.random.default_rng(0), set()
    for seed in range(12):
        env = started(ConnectFour(columns=columns, rows=heights), seed)
        board, done = np.full((columns, heights), -1), False
        while not done:
            mover = int(rows(env.show(), "Player")[0][0])
            seen = np.full((columns, heights), -1)
            for name, owner in (("MoverDisc", mover), ("OtherDisc", 1 - mover)):
                for x, y, theirs in np.array(rows(env.show(), name), int).reshape(-1, 3):
                    assert theirs == owner
                    seen[x, y] = owner
            assert np.array_equal(seen, board)
            open_columns = [x for x in range(columns) if (board[x] == -1).any()]
            assert [[x, y] for x, y, _ in rows(env.show(), "Column")] == [
                [x, (board[x] != -1).sum()] for x in open_columns
            ]
            x = int(rng.choice(open_columns))
            board[x, (board[x] != -1).sum()] = mover
            end = play(env, x)
            won = four_in_a_row(board, mover)
            done = won or bool((board != -1).all())
            assert end.done == done
            assert rewards(end) == ([0, 0] if not won else [1, -1] if mover == 0 else [-1, 1])
        ends.add(won)
    assert True in ends


# --- Scripts


def choices(columns: Sequence[int], script: int, draws: int = 100) -> list[int]:
    """The columns that a script takes, as the player whose turn it is after these discs."""
    env = begin(columns, script=script)
    with np.errstate(over="ignore"):  # of random numbers, whose state wraps around
        return sorted({int(choose_column(env.record)) for _ in range(draws)})


def test_a_random_player_takes_every_open_column() -> None:
    assert choices([0, 0, 1, 1, 2, 2], RANDOM) == [0, 1, 2, 3, 4, 5, 6]
    assert choices([2] * 6, RANDOM) == [0, 1, 3, 4, 5, 6]


@pytest.mark.parametrize("script", [ONE_STEP, MINIMAX])
def test_stronger_players_win_where_they_can_rather_than_block(script: int) -> None:
    assert choices([0, 6, 0, 6, 0, 6], script) == [0]


@pytest.mark.parametrize("script", [ONE_STEP, MINIMAX])
def test_stronger_players_block_where_they_cannot_win(script: int) -> None:
    assert choices([0, 6, 0, 6, 0], script) == [0]


def test_one_step_ahead_may_drop_the_disc_on_which_the_other_wins_and_minimax_does_not() -> None:
    # player 0 has three in the second row, and the cell below the fourth is empty
    columns = [1, 0, 0, 2, 2, 6, 1]
    assert 3 in choices(columns, ONE_STEP)
    assert 3 not in choices(columns, MINIMAX)


def test_minimax_sees_a_double_threat_that_is_three_discs_ahead() -> None:
    # two in the lowest row, and both sides are open: a third makes two threats
    assert choices([2, 2, 3, 3], MINIMAX) == [1, 4]
    assert choices([2, 2, 3, 3], ONE_STEP) == [0, 1, 2, 3, 4, 5, 6]


def brute_force(board: NDArray[np.int64], player: int, depth: int) -> int:
    """The value to `player`, who moves: the discs left at a win, plus 1, negative for a loss; without pruning."""
    columns = [x for x in range(len(board)) if (board[x] == -1).any()]
    if depth == 0 or not columns:
        return 0
    values = []
    for x in columns:
        after = board.copy()
        after[x, (board[x] != -1).sum()] = player
        won = four_in_a_row(after, player)
        values.append(depth if won else -brute_force(after, 1 - player, depth - 1))
    return max(values)


def test_minimax_takes_the_columns_of_a_search_without_pruning() -> None:
    rng, tried = np.random.default_rng(1), 0
    while tried < 4:
        columns = rng.integers(4, size=int(rng.integers(6, 13))).tolist()
        env = started(ConnectFour(columns=4, rows=5), mover=0)
        if max(np.bincount(columns)) > 5:
            continue
        board = np.full((4, 5), -1)
        for i, x in enumerate(columns):
            drop(env.record, x)
            board[x, (board[x] != -1).sum()] = i % 2
        if env.record.winner != -1:
            continue
        tried += 1
        mover, values = len(columns) % 2, {}
        for x in range(4):
            if (board[x] == -1).any():
                after = board.copy()
                after[x, (board[x] != -1).sum()] = mover
                values[x] = 4 if four_in_a_row(after, mover) else -brute_force(after, 1 - mover, 3)
        env.record["script"] = MINIMAX
        with np.errstate(over="ignore"):
            drawn = {int(choose_column(env.record)) for _ in range(40)}
        assert drawn == {x for x, value in values.items() if value == max(values.values())}


def test_win_rates_are_told_by_the_script_of_the_episode() -> None:
    names = {RANDOM: "win_rate_random", ONE_STEP: "win_rate_one_step", MINIMAX: "win_rate_minimax"}
    for script, name in names.items():
        env = begin([0, 6, 0, 6, 0, 6], opponent=script, script=script)
        assert play(env, 0).end_of_episode_info == {"won": 1, "lost": 0, name: 1.0}
    env = begin([0, 6, 0, 6, 1, 6], opponent=ONE_STEP, script=ONE_STEP)
    end = play(env, 3)
    assert end.end_of_episode_info == {"won": 0, "lost": 1, "win_rate_one_step": 0.0} and end.reward == -1


def test_one_of_the_scripts_is_drawn_for_every_episode() -> None:
    scripts = {int(started(ConnectFour(opponent=ANY), seed).record.script) for seed in range(20)}
    assert scripts == {RANDOM, ONE_STEP, MINIMAX}


def test_a_stronger_script_wins_more_often() -> None:
    """Win rates of uniformly random play."""
    rates: list[Any] = []
    for opponent in (RANDOM, ONE_STEP, MINIMAX):
        pool, rng, won = ThreadedVecEnv(ConnectFour(opponent=opponent), 64, num_threads=1), np.random.default_rng(0), []
        obs = pool.reset(0)
        for _ in range(60):
            obs = pool.act(random_actions(obs, rng, pool.action_space()))
            won += [info["won"] for info in obs.end_of_episode_info.values()]
        rates.append(np.mean(won))
    assert 0.4 < rates[0] < 0.6 and 0.01 < rates[1] < 0.1 and rates[2] < rates[1]
