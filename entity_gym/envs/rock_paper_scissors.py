"""RockPaperScissors: the value function sees what the policy does not."""

from __future__ import annotations

from typing import Any

import numpy as np

from entity_gym.compiled import Categorical, CompiledEnvironment, Entity, rand_int
from entity_gym.envs.drawing import BLUE, GREY, RED, WHITE, Image, cell, disc, grid, line, name_of, rectangle

THROWS = ("rock", "paper", "scissors")
ROCK, PAPER, SCISSORS = range(3)  # each beats the one before it, and rock beats scissors
NOTHING = -1


class RockPaperScissors(CompiledEnvironment):
    """An opponent has already thrown; only the value function is told what.

    **Observation.** One `Player` without features and one `Opponent` [rock, paper, scissors], 1 for its throw and 0 for
    the others: rock in 50 %, paper in 30 % and scissors in 20 % of the episodes. Without `cheat` the opponent is hidden
    (`visible` is false): the value function sees it and can predict the reward exactly; the policy does not.

    **Actions.** `throw`: the player picks rock, paper or scissors.

    **Reward.** 2 for a win: paper beats rock, scissors beat paper, rock beats scissors. 0 for a draw or a defeat.

    **End.** After one step.

    **Best score.** 1 on average, by always throwing paper (0.5 x 2); always rock gives 0.4, always scissors 0.6, a
    uniform throw 2/3. With `cheat`, 2. Well above 1 without it, a policy has seen what is hidden.

    Args:
        cheat: show the opponent to the policy, too.
    """

    entities = {"Player": Entity([], max=1), "Opponent": Entity(THROWS, max=1, hideable=True)}
    actions = {"throw": Categorical(THROWS, actors="Player")}
    parameters = {"cheat": False}
    state = [("opponent", np.int64), ("player", np.int64)]  # what they threw; player: for render

    def reset(s: Any) -> None:
        s.player = NOTHING
        tenth = rand_int(s, 10)
        if tenth < 5:
            s.opponent = ROCK
        elif tenth < 8:
            s.opponent = PAPER
        else:
            s.opponent = SCISSORS

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.player = act.throw[0]
        won = s.player == (s.opponent + 1) % 3
        return (2.0 if won else 0.0), True, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Player = 1
        obs.n.Opponent = 1
        for throw in range(3):
            obs.Opponent[0, throw] = 1.0 if throw == s.opponent else 0.0
        obs.visible.Opponent[0] = s.cheat

    def draw(s: Any) -> dict[str, Any]:
        """Hints for replays."""
        return {
            "types": {
                "Player": {"shape": "square", "color": name_of(BLUE)},
                "Opponent": {"shape": "diamond", "color": name_of(RED)},
            }
        }

    def render(s: Any) -> Image:
        """A (33, 65, 3) image: the opponent's throw, then the player's. A disc, a sheet, or crossed blades."""
        image = grid(2, 1)
        for x, throw in enumerate((s.opponent, s.player)):
            tile = cell(image, x, 0)
            if throw == ROCK:
                disc(tile, 15, 15, 10, GREY)
            elif throw == PAPER:
                rectangle(tile, 6, 4, 19, 23, WHITE)
            elif throw == SCISSORS:
                line(tile, (6, 6), (24, 24), RED, 4)
                line(tile, (6, 24), (24, 6), RED, 4)
        return image
