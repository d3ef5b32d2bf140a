"""Toys: seven worlds that take seconds to learn, each for one thing that a policy must be able to do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from entity_gym.compiled import Categorical, CompiledEnvironment, Entity, GlobalCategorical, rand_float, rand_int
from entity_gym.envs.colours import BLUE, DARK, GREEN, GREY, ORANGE, RED

NUM_CHOICES = 10
HOTDOG, NOT_HOTDOG = 0, 1  # the choices of `classify`
NUM_STEPS = 32  # of MultiArmedBandit and MoveToOrigin
THROWS = ("rock", "paper", "scissors")
ROCK, PAPER, SCISSORS = range(3)  # each beats the one before it, and rock beats scissors
DIRECTIONS = ("n", "ne", "e", "se", "s", "sw", "w", "nw")
DX = (0, 1, 1, 1, 0, -1, -1, -1)
DY = (1, 1, 0, -1, -1, -1, 0, 1)
NUM_DIRECTIONS = len(DIRECTIONS)
EXTENT = 1000  # the player starts with |x|, |y| up to this
THRUST = (0.01, 0.001, 0.0, -0.001, -0.01)  # what each choice adds to a velocity


class Xor(CompiledEnvironment):
    """Tell whether two bits differ. Each entity shows one of them, so that neither is enough.

    **Observation.** Two `Input` [is_set], each 0 or 1, and the global feature `negate`, 0 or 1, all drawn independently
    and uniformly.

    **Actions.** `output`, by the frame: "0" or "1".

    **Reward.** 1 for the right output, otherwise 0. With negate 0 the right output is the exclusive or of the inputs: 1
    if they differ, 0 if they are equal. With negate 1 it is the other one.

    **End.** After one step.

    **Best score.** 1; without all three bits no policy scores more than 0.5.
    """

    entities = {"Input": Entity(["is_set"], max=2)}
    global_features = ["negate"]
    actions = {"output": GlobalCategorical(["0", "1"])}
    state = [("bits", np.int64, (2,)), ("negate", np.int64)]
    reward_threshold = 0.99
    draw = {"types": {"Input": {"shape": "square", "color": DARK, "label": "{is_set}"}}}

    def reset(s: Any) -> None:
        s.bits[0] = rand_int(s, 2)
        s.bits[1] = rand_int(s, 2)
        s.negate = rand_int(s, 2)

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        right = s.bits[0] ^ s.bits[1] ^ s.negate
        return (1.0 if act.output[0] == right else 0.0), True, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Input = 2
        obs.Input[0, 0] = s.bits[0]
        obs.Input[1, 0] = s.bits[1]
        obs.global_features[0] = s.negate


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
    """

    entities = {"Player": Entity([], max=1), "Bean": Entity([], max=NUM_CHOICES - 1)}
    actions = {"count": Categorical([str(number) for number in range(NUM_CHOICES)], actors="Player", masked=True)}
    parameters = {"masked_choices": NUM_CHOICES}
    ranges = {"masked_choices": (1, NUM_CHOICES)}
    state = [("num_beans", np.int64), ("is_open", np.bool_, (NUM_CHOICES,))]
    reward_threshold = 0.99
    draw = {
        "types": {
            "Bean": {"shape": "circle", "color": ORANGE},
            "Player": {"shape": "square", "color": BLUE},
        }
    }

    def reset(s: Any) -> None:
        s.num_beans = rand_int(s, s.masked_choices)
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
        return (1.0 if act.count[0] == s.num_beans else 0.0), True, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Player = 1
        obs.n.Bean = s.num_beans
        for number in range(NUM_CHOICES):
            obs.count.mask[0, number] = s.is_open[number]


class NotHotdog(CompiledEnvironment):
    """Tell a hotdog from other objects. It is shown in two ways: by a feature, or by the type of the entity.

    **Observation.** One `Player` [step], 0 and then 1, and either an `Object` [is_hotdog] or a `Hotdog`, without
    features. Half of the episodes have a hotdog, shown as a `Hotdog` or as an `Object` with is_hotdog 1, equally often;
    anything else is an `Object` with is_hotdog 0.

    **Actions.** `classify`: the player picks `hotdog` (0) or `not_hotdog` (1). `unused_action` is never offered to
    anybody, and a policy must cope with that.

    **Reward.** 1 for the right choice, `hotdog` for a hotdog and `not_hotdog` for anything else; otherwise 0.

    **End.** After one step.

    **Best score.** 1; always giving the same answer scores 0.5.
    """

    entities = {"Player": Entity(["step"], max=1), "Object": Entity(["is_hotdog"], max=1), "Hotdog": Entity([], max=1)}
    actions = {
        "classify": Categorical(["hotdog", "not_hotdog"], actors="Player"),
        "unused_action": Categorical(["0", "1"], actors="Player"),
    }
    state = [("is_hotdog", np.bool_), ("by_type", np.bool_)]  # by_type: a hotdog is shown as a Hotdog, not as an Object
    reward_threshold = 0.99
    draw = {
        "types": {
            "Player": {"shape": "square", "color": BLUE},
            "Object": {"shape": "circle", "color": GREY, "label": "hotdog: {is_hotdog}"},
            "Hotdog": {"shape": "diamond", "color": ORANGE},
        }
    }

    def reset(s: Any) -> None:
        s.is_hotdog = rand_int(s, 2) == 1
        s.by_type = rand_int(s, 2) == 1

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        right = HOTDOG if s.is_hotdog else NOT_HOTDOG
        return (1.0 if act.classify[0] == right else 0.0), True, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Player = 1
        obs.Player[0, 0] = s.steps
        if s.is_hotdog and s.by_type:
            obs.n.Object = 0
            obs.n.Hotdog = 1
        else:
            obs.n.Object = 1
            obs.n.Hotdog = 0
            obs.Object[0, 0] = 1.0 if s.is_hotdog else 0.0
        obs.n.unused_action = 0


class MultiArmedBandit(CompiledEnvironment):
    """The smallest world that can be learned: always pull the same lever. It has no entities.

    **Observation.** One global feature, `step`, from 0 to 32.

    **Actions.** `pull`, by the frame: one of the levers A to E.

    **Reward.** 1/32 for pulling A, otherwise 0.

    **End.** Terminates after the 32nd step. Nothing in this world is random.

    **Best score.** 1, by pulling A in every step; uniformly drawn levers give 0.2.
    """

    global_features = ["step"]
    actions = {"pull": GlobalCategorical(["A", "B", "C", "D", "E"])}
    reward_threshold = 0.95
    draw = {"types": {"__global__": {"shape": "circle", "color": GREY, "label": "{step}"}}}

    def reset(s: Any) -> None:
        pass

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        reward = 1.0 / NUM_STEPS if act.pull[0] == 0 else 0.0
        return reward, s.steps >= NUM_STEPS, False

    def observe(s: Any, obs: Any) -> None:
        obs.global_features[0] = s.steps


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
    state = [("opponent", np.int64)]  # what it threw
    draw = {
        "types": {
            "Player": {"shape": "square", "color": BLUE},
            "Opponent": {"shape": "diamond", "color": RED, "label": "{rock}{paper}{scissors}"},
        }
    }

    def reset(s: Any) -> None:
        tenth = rand_int(s, 10)
        if tenth < 5:
            s.opponent = ROCK
        elif tenth < 8:
            s.opponent = PAPER
        else:
            s.opponent = SCISSORS

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        won = act.throw[0] == (s.opponent + 1) % 3
        return (2.0 if won else 0.0), True, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Player = 1
        obs.n.Opponent = 1
        for throw in range(3):
            obs.Opponent[0, throw] = 1.0 if throw == s.opponent else 0.0
        obs.visible.Opponent[0] = s.cheat


class FloorIsLava(CompiledEnvironment):
    """A player steps on the one tile that is not lava. Where the tiles are matters only relative to the player.

    **Observation.** `Lava` [x, y], `HighGround` [x, y] and `Player` [x, y], whole numbers; x grows to the east and y to
    the north. The player starts anywhere in -1000 <= x, y <= 1000. One to eight of the eight tiles around it are
    observed, a number drawn uniformly: one of them, drawn uniformly, is high ground, the others (none to seven) are
    lava. The player, the actor, is the last entity of a frame, at index (number of lava) + 1.

    **Actions.** `move`: one of eight directions, by one tile. Tiles that are not shown can be stepped on as well.

    **Reward.** 1 for stepping on the high ground, otherwise 0.

    **End.** After one step.

    **Best score.** 1. A uniformly drawn direction scores 0.125, and so does every policy that cannot relate the tiles
    to the player.
    """

    entities = {
        "Lava": Entity(["x", "y"], max=NUM_DIRECTIONS - 1),
        "HighGround": Entity(["x", "y"], max=1),
        "Player": Entity(["x", "y"], max=1),
    }
    actions = {"move": Categorical(DIRECTIONS, actors="Player")}
    state = [
        ("x", np.int64),  # of the player
        ("y", np.int64),
        ("high_ground", np.int64, (2,)),
        ("num_lava", np.int64),
        ("lava", np.int64, (NUM_DIRECTIONS - 1, 2)),
    ]
    reward_threshold = 0.99

    def reset(s: Any) -> None:
        s.x = rand_int(s, 2 * EXTENT + 1) - EXTENT
        s.y = rand_int(s, 2 * EXTENT + 1) - EXTENT
        num_tiles = 1 + rand_int(s, NUM_DIRECTIONS)
        high_ground = rand_int(s, num_tiles)  # which of the tiles
        # Go through the directions and show each with the chance that makes all sets of `num_tiles` equally likely.
        shown = 0
        s.num_lava = 0
        for i in range(NUM_DIRECTIONS):
            if rand_int(s, NUM_DIRECTIONS - i) < num_tiles - shown:
                if shown == high_ground:
                    s.high_ground[0] = s.x + DX[i]
                    s.high_ground[1] = s.y + DY[i]
                else:
                    s.lava[s.num_lava, 0] = s.x + DX[i]
                    s.lava[s.num_lava, 1] = s.y + DY[i]
                    s.num_lava += 1
                shown += 1

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.x += DX[act.move[0]]
        s.y += DY[act.move[0]]
        safe = s.x == s.high_ground[0] and s.y == s.high_ground[1]
        return (1.0 if safe else 0.0), True, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Lava = s.num_lava
        for i in range(s.num_lava):
            obs.Lava[i, 0] = s.lava[i, 0]
            obs.Lava[i, 1] = s.lava[i, 1]
        obs.n.HighGround = 1
        obs.HighGround[0, 0] = s.high_ground[0]
        obs.HighGround[0, 1] = s.high_ground[1]
        obs.n.Player = 1
        obs.Player[0, 0] = s.x
        obs.Player[0, 1] = s.y

    def draw(s: Any) -> dict[str, Any]:
        """Hints for replays: the 5 x 5 tiles around the player's first one."""
        place, x, y = ["x", "y"], int(s.x), int(s.y)
        return {
            "bounds": [x - 2, y - 2, x + 2, y + 2],
            "grid": True,
            "y_up": True,
            "types": {
                "Lava": {"position": place, "shape": "square", "color": RED, "size": 1},
                "HighGround": {"position": place, "shape": "square", "color": GREEN, "size": 1},
                "Player": {"position": place, "shape": "circle", "color": BLUE, "size": 0.6, "layer": 1},
            },
        }


class MoveToOrigin(CompiledEnvironment):
    """Fly a spaceship so that it is as near to the origin as possible when the episode ends.

    **Observation.** One `Spaceship` [x_pos, y_pos, x_velocity, y_velocity, step], at rest at first, at a uniformly
    drawn angle of the unit circle; x grows to the right and y upwards. `step` counts from 0 to 32.

    **Actions.** `horizontal_thruster` and `vertical_thruster`: one of five choices each, which add 0.01, 0.001, 0,
    -0.001 or -0.01 to the velocity along x and y. Right and up are positive.

    **A step.** First the velocities change, then the position moves by the new velocities.

    **Reward.** The distance to the origin before the step, less the distance after it. An episode's rewards sum to 1 -
    (final distance).

    **End.** Terminates after the 32nd step. `end_of_episode_info` then has the final `distance`.

    **Best score.** 0.9996 on average: every start allows each coordinate to be within 0.0005 of 0 at the 32nd step, a
    distance of at most 0.00071, and of 0.0004 on average.
    """

    entities = {"Spaceship": Entity(["x_pos", "y_pos", "x_velocity", "y_velocity", "step"], max=1)}
    actions = {
        "horizontal_thruster": Categorical(
            ["100% right", "10% right", "hold", "10% left", "100% left"], actors="Spaceship"
        ),
        "vertical_thruster": Categorical(["100% up", "10% up", "hold", "10% down", "100% down"], actors="Spaceship"),
    }
    state = [
        ("x", np.float64),
        ("y", np.float64),
        ("x_velocity", np.float64),
        ("y_velocity", np.float64),
        ("distance", np.float64),  # of (x, y) to the origin
    ]
    info = ["distance"]
    reward_threshold = 0.99
    draw = {
        "bounds": [-1.5, -1.5, 1.5, 1.5],
        "y_up": True,
        "types": {
            "Spaceship": {
                "position": ["x_pos", "y_pos"],
                "shape": "circle",
                "color": BLUE,
                "size": 0.1,
                "trail": NUM_STEPS,
            }
        },
    }

    def reset(s: Any) -> None:
        angle = 2 * math.pi * rand_float(s)
        s.x = math.cos(angle)
        s.y = math.sin(angle)
        s.x_velocity = 0.0
        s.y_velocity = 0.0
        s.distance = 1.0

    def step(s: Any, act: Any) -> tuple[float, bool, bool]:
        s.x_velocity += THRUST[act.horizontal_thruster[0]]
        s.y_velocity += THRUST[act.vertical_thruster[0]]
        s.x += s.x_velocity
        s.y += s.y_velocity
        before = s.distance
        s.distance = math.sqrt(s.x * s.x + s.y * s.y)
        return before - s.distance, s.steps >= NUM_STEPS, False

    def observe(s: Any, obs: Any) -> None:
        obs.n.Spaceship = 1
        obs.Spaceship[0, 0] = s.x
        obs.Spaceship[0, 1] = s.y
        obs.Spaceship[0, 2] = s.x_velocity
        obs.Spaceship[0, 3] = s.y_velocity
        obs.Spaceship[0, 4] = s.steps
