"""Count: how many beans?"""

from __future__ import annotations

from typing import Any

import numpy as np

from entity_gym.compiled import Categorical, CompiledEnvironment, Entity, rand_int
from entity_gym.envs.checks import check_range
from entity_gym.envs.drawing import BLUE, GREEN, ORANGE, RED, WHITE, Image, cell, disc, grid, name_of, rectangle

NUM_CHOICES = 10
NOTHING = -1


class Count(CompiledEnvironment):
    """Count beans that are all alike. Some wrong answers are masked.

    **Observation.** One `Player`, and 0 to `masked_choices` - 1 `Bean`s, a number drawn uniformly. Neither has
    features.

    **Actions.** `count`: the player picks a number from 0 to 9. Open are the right number and a random set of others
    below `masked_choices`, of uniformly drawn size from none to all. The last observation of an episode offers no
    action.

    **Reward.** 1 for the right number, otherwise 0.

    **End.** After one step.

    **Best score.** 1. Uniform choices among the open numbers score about 0.29 with the default.

    Args:
        masked_choices: how many numbers of beans there can be, and how many choices can be open; from 1 to 10.

    Raises:
        ValueError: if `masked_choices` is outside its range.
    """

    entities = {"Player": Entity([], max=1), "Bean": Entity([], max=NUM_CHOICES - 1)}
    actions = {"count": Categorical([str(number) for number in range(NUM_CHOICES)], actors="Player", masked=True)}
    parameters = {"masked_choices": NUM_CHOICES}
    state = [
        ("num_beans", np.int64),
        ("is_open", np.bool_, (NUM_CHOICES,)),
        ("answer", np.int64),  # for render
    ]
    reward_threshold = 0.99

    @staticmethod
    def check_parameters(p: Any) -> None:
        check_range("Count", p, "masked_choices", 1, NUM_CHOICES)

    def reset(s: Any) -> None:
        s.num_beans = rand_int(s, s.masked_choices)
        s.answer = NOTHING
        # Go through the numbers and open each with the chance that makes all sets of `missing` of them equally likely.
        missing = rand_int(s, s.masked_choices + 1)
        for number in range(NUM_CHOICES):
            s.is_open[number] = False
            left = s.masked_choices - number
            if left > 0 and rand_int(s, left) < missing:
                s.is_open[number] = True
                missing -= 1
        s.is_open[s.num_beans] = True

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.answer = act.count[0]
        return (1.0 if s.answer == s.num_beans else 0.0), True, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Player = 1
        obs.n.Bean = s.num_beans
        for number in range(NUM_CHOICES):
            obs.count.mask[0, number] = s.is_open[number]

    def draw(s: Any) -> dict[str, Any]:
        """Hints for replays."""
        return {
            "types": {
                "Bean": {"shape": "circle", "color": name_of(ORANGE)},
                "Player": {"shape": "square", "color": name_of(BLUE)},
            }
        }

    def render(s: Any) -> Image:
        """A (65, 321, 3) image: a row of beans above the choices 0 to 9, white where open, green or red once given."""
        image = grid(NUM_CHOICES, 2)
        for bean in range(s.num_beans):
            disc(cell(image, bean, 1), 15, 15, 9, ORANGE)
        for number in np.flatnonzero(s.is_open).tolist():
            colour = WHITE if number != s.answer else GREEN if number == s.num_beans else RED
            rectangle(cell(image, number, 0), 5, 5, 21, 21, colour)
        return image
