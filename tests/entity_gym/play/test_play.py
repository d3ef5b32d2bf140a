"""Playing by hand in the terminal: what is shown, what can be typed, and the way back."""

import io
import os
import pty
import re
import subprocess
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from entity_gym import (
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.actions.kind import Choice
from entity_gym.check.loading import load_environment, make_python
from entity_gym.play.arrows import arrows_of_names, arrows_of_positions
from entity_gym.play.command import main
from entity_gym.play.keyboard import Keyboard
from entity_gym.play.loop import Advice, play
from entity_gym.play.screen import Style, draw, show_turn
from entity_gym.play.session import CannotGoBackError, Decision, Session, Turn, read_choice, turns
from entity_gym.pools.pool import ListEnv
from tests.entity_gym.check import broken
from tests.worlds import Script

ROOT = Path(__file__).resolve().parents[3]
PLAIN, COLOURED = Style(), Style(colour=True, all_colours=True)


def played(session: Session, *lines: str, capsys: pytest.CaptureFixture[str], style: Style = PLAIN, policy=None) -> str:
    """What is printed when somebody types these lines and then Ctrl-D. Prompts are shown, too."""
    typed = iter(lines)

    def ask(prompt: str) -> str:
        line = next(typed, None)
        print(prompt if line is None else prompt + line)
        if line is None:
            raise EOFError
        return line

    assert play(session, style, policy, ask) == 0
    assert next(typed, None) is None, "it stopped before everything was typed"
    return capsys.readouterr().out


class Unsaved(broken.Walk):
    """The same, and cannot be saved."""

    state, load_state = Environment.state, Environment.load_state


def walk(size: int = 6, *, saved: bool = True, seed: int = 0, **options: int) -> Session:
    kind = broken.Walk if saved else Unsaved
    return Session(lambda: kind(size, **options), seed, "Walk")


def world(*observations: Observation, **spaces) -> Session:
    """Shows these observations, one after the other."""
    entities = {"Cat": Entity(["x", "y"]), "Dog": Entity([])}
    obs_space = ObsSpace(entities, spaces.pop("global_features", ()))
    return Session(lambda: Script(observations, obs_space, spaces), 0, "World")


# --- What is shown


def test_a_step_is_shown_as_a_table_and_the_choices_of_the_first_actor(capsys) -> None:
    out = played(walk(), capsys=capsys)
    assert out.splitlines() == [
        "",
        "Walk, episode 1, step 0",
        "index  type    features",
        "    0  Walker  x=4",
        "    1  Wall    x=0",
        "    2  Wall    x=6",
        "step: 0 Walker (x=4)",
        "  0 left   1 right   2 stay",
        "> ",
        "",
    ]


def test_closed_choices_are_marked_and_grey_where_there_is_colour(capsys) -> None:
    session = walk(seed=11)
    assert session.now.frame.features["Walker"].tolist() == [[1.0]]
    out = played(session, "stay", capsys=capsys)
    assert "  0 left (closed)   1 right   2 stay\n" in out
    assert "look at: 0 Walker (x=1)\n  1 Wall (x=0)   2 Wall (x=6) (closed)\n" in out
    out = played(walk(seed=11), capsys=capsys, style=COLOURED)
    assert "  \x1b[90m0 left\x1b[0m   1 right   2 stay\n" in out
    assert "closed" not in out


def test_rewards_totals_and_the_end_of_an_episode_are_shown(capsys) -> None:
    out = played(walk(), "right", "1", "", "q", capsys=capsys)
    assert "Walk, episode 1, step 1: reward 1, total 1\n" in out
    assert "The episode ended after 1 step: total 1, x 5\nEnter: next episode > \n" in out
    assert "Walk, episode 2, step 0\n" in out


def test_a_truncated_episode_says_so(capsys) -> None:
    assert "ended after 1 step (truncated): total 0" in played(walk(max_steps=1), "stay", "1", capsys=capsys)


def test_global_features_hidden_entities_and_a_global_action_are_shown(capsys) -> None:
    first = Observation(
        features={"Cat": [[1.5, 2]], "Dog": np.zeros((1, 0))},
        ids={"Cat": ["cat"]},
        visible={"Dog": [False]},
        global_features=[0.25],
        actions={"rain": GlobalCategoricalActionMask()},
    )
    session = world(first, global_features=["light"], rain=GlobalCategoricalActionSpace(["no", "yes"]))
    out = played(session, capsys=capsys)
    assert out.splitlines()[2:] == [
        "index  type   features",
        "    0  Cat    x=1.5 y=2",
        "    1  Dog  (hidden from the policy)",
        "    -  world  light=0.25",
        "rain",
        "  0 no   1 yes",
        "> ",
        "",
    ]


def test_the_board_is_drawn_only_in_colour(capsys) -> None:
    assert "▀" not in played(walk(), capsys=capsys)
    out = played(walk(), capsys=capsys, style=COLOURED)
    # 4 x 24 pixels, two above each other in each character: a white square in columns 16 to 19
    row = f"\x1b[38;2;0;0;0;48;2;0;0;0m{'▀' * 16}\x1b[38;2;255;255;255;48;2;255;255;255m{'▀' * 4}"
    assert out.count(f"{row}\x1b[38;2;0;0;0;48;2;0;0;0m{'▀' * 4}\x1b[0m\n") == 2


def test_a_picture_is_made_small_enough_by_taking_means() -> None:
    image = np.zeros((64, 64, 3), np.uint8)
    image[:, 32:] = (200, 100, 0)
    lines = draw(image, Style(colour=True, all_colours=True, columns=2), rows=25).split("\n")
    assert lines == ["\x1b[38;2;0;0;0;48;2;0;0;0m▀\x1b[38;2;200;100;0;48;2;200;100;0m▀\x1b[0m"]
    high = draw(np.zeros((640, 10, 3), np.uint8), Style(colour=True, columns=80), rows=20).split("\n")
    assert len(high) == 20


def test_terminals_with_few_colours_get_the_nearest_of_256() -> None:
    (line,) = draw(np.full((2, 1, 3), (250, 110, 0), np.uint8), Style(colour=True), rows=12).split("\n")
    # (255, 95, 0) in the cube of 6 x 6 x 6 colours: 16 + 36 * 5 + 6 * 1 + 0
    assert line == "\x1b[38;5;202;48;5;202m▀\x1b[0m"


def test_choices_that_do_not_fit_into_a_line_get_one_each() -> None:
    turn = Turn("go", "", [Choice(0, "north", True), Choice(1, "south", False)])
    assert show_turn(turn, PLAIN) == "go\n  0 north   1 south (closed)"
    assert show_turn(turn, Style(columns=20)) == "go\n  0 north\n  1 south (closed)"


# --- What can be typed

TURN = Turn(
    "go",
    "",
    [Choice(0, "North", True), Choice(1, "north-east", True), Choice(2, "South", False), Choice(3, "stay", True)],
)


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("3", 3), ("north-e", 1), ("NORTH", 0), ("st", 3)])
def test_a_choice_is_typed_as_its_number_its_name_or_the_beginning_of_it(text: str, value: int) -> None:
    assert read_choice(text, TURN) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("4", "there is no 4 here; allowed: 0, 1, 2, 3"),
        ("-1", "there is no -1 here; allowed: 0, 1, 2, 3"),
        ("nor", "'nor' can mean 0 North, 1 north-east"),
        ("2", "South is closed now"),
        ("south", "South is closed now"),
        ("sty", "nothing begins with 'sty'; allowed: 'North', 'north-east', 'South', 'stay'; did you mean 'stay'?"),
    ],
)
def test_what_is_no_choice_is_explained(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        read_choice(text, TURN)


def test_where_names_are_numbers_a_number_is_a_name() -> None:
    first = Observation(features={"Cat": [[0, 0]]}, ids={"Cat": ["cat"]}, actions={"count": CategoricalActionMask()})
    session = world(first, first, count=CategoricalActionSpace(["1", "2", "10"]))
    (turn,) = turns(session)
    assert read_choice("2", turn) == 1
    with pytest.raises(ValueError, match="nothing begins with '0'; allowed: '1', '2', '10'; did you mean '10'?"):
        read_choice("0", turn)
    assert show_turn(turn, PLAIN).endswith("\n  1   2   10")


def test_wrong_input_explains_itself_and_asks_again(capsys) -> None:
    out = played(walk(), "fly", "", "7", "right", "0", "2", capsys=capsys)
    assert "> fly\nnothing begins with 'fly'; allowed: 'left', 'right', 'stay'\n> \ntype the number or the name" in out
    assert "> 7\nthere is no 7 here; allowed: 0, 1, 2\n> right\n" in out
    assert "> 0\nthere is no 0 here; allowed: 1, 2\n> 2\n\nWalk, episode 1, step 1: reward 1" in out


def test_entities_are_selected_by_their_index_in_the_table() -> None:
    cats = {"Cat": [[0, 0], [1, 0]], "Dog": np.zeros((1, 0))}
    mask = SelectEntityActionMask(actor_ids=["dog"], actee_ids=["tom", "felix"])
    first = Observation(features=cats, ids={"Cat": ["felix", "tom"], "Dog": ["dog"]}, actions={"chase": mask})
    session = world(first, first, chase=SelectEntityActionSpace())
    typed = iter(["1"])
    play(session, PLAIN, None, lambda prompt: next(typed, "q"))
    (received,) = session.env.received
    assert (received["chase"].actors, received["chase"].actees) == (["dog"], ["tom"])


def test_an_actor_that_is_offered_nobody_is_not_asked(capsys) -> None:
    mask = SelectEntityActionMask(actor_types=["Cat"], actee_types=["Dog"])
    first = Observation(features={"Cat": [[0, 0]]}, ids={"Cat": ["cat"]}, actions={"chase": mask})
    session = world(first, Observation(done=True), chase=SelectEntityActionSpace())
    out = played(session, capsys=capsys)
    assert "chase: 0 Cat (x=0 y=0) has nobody to select\n\nWorld, episode 1, step 1" in out
    assert session.now.values == {"chase": [-1]}


def test_undo_goes_back_a_step_where_the_first_actor_has_nobody_to_select(capsys) -> None:
    chase = SelectEntityActionMask(actor_types=["Cat"], actee_types=["Dog"])
    cats = {"features": {"Cat": [[0, 0]]}, "ids": {"Cat": ["cat"]}}
    first = Observation(**cats, actions={"chase": chase, "go": CategoricalActionMask()})
    session = world(first, first, first, chase=SelectEntityActionSpace(), go=CategoricalActionSpace(["on", "off"]))
    out = played(session, "on", "u", "u", capsys=capsys)
    assert session.now.step == 0
    assert "there is nothing to undo" in out


def test_a_step_in_which_nobody_acts_waits_for_enter(capsys) -> None:
    session = world(Observation(), Observation(done=True), rain=GlobalCategoricalActionSpace(["no", "yes"]))
    out = played(session, "what", "", capsys=capsys)
    assert "Nobody acts. Enter: next step > what\n'what' is no command; allowed: 'u', 'r', 'q', '?', or Enter\n" in out
    assert "World, episode 1, step 1" in out


def test_help_says_what_can_be_typed(capsys) -> None:
    out = played(walk(), "?", capsys=capsys)
    assert all(f"\n  {command} " in out for command in ("u", "r", "q", "?"))
    assert "What is (closed) cannot be chosen now" in out


# --- The way back


def moments(session: Session) -> tuple[int, int, float, float]:
    now = session.now
    return now.episode, now.step, now.total, float(now.frame.features["Walker"][0, 0])


@pytest.mark.parametrize("saved", [True, False], ids=["with state()", "by playing it again"])
def test_undo_goes_back_step_by_step_over_the_ends_of_episodes(saved: bool) -> None:
    session = walk(saved=saved, max_steps=2)
    seen = []
    for _ in range(3):
        while not session.ended:
            seen.append(moments(session))
            session.act({"step": [2], "look at": [1]})
        seen.append(moments(session))
        session.begin_episode()
    seen.append(moments(session))
    for expected in reversed(seen[:-1]):
        assert session.undo()
        assert moments(session) == expected
    assert not session.undo()
    assert moments(session) == seen[0]


@pytest.mark.parametrize("saved", [True, False], ids=["with state()", "by playing it again"])
def test_what_comes_after_undo_is_what_would_have_come(saved: bool) -> None:
    session = walk(saved=saved, max_steps=1)
    session.act({"step": [2], "look at": [1]})
    session.begin_episode()
    expected = moments(session)
    session.undo()
    session.undo()
    session.act({"step": [2], "look at": [1]})
    session.begin_episode()
    assert moments(session) == expected


@pytest.mark.parametrize("saved", [True, False], ids=["with state()", "by playing it again"])
def test_restart_goes_back_to_the_beginning_of_this_episode(saved: bool, capsys) -> None:
    session = walk(saved=saved, max_steps=3)
    for _ in range(3):
        session.act({"step": [2], "look at": [1]})
    session.begin_episode()
    first = moments(session)
    assert first[:3] == (2, 0, 0.0)
    out = played(session, "r", "stay", "1", "stay", "1", "r", capsys=capsys)
    assert moments(session) == first
    assert out.count("the episode has only begun") == 1


def test_undo_within_a_step_goes_back_to_the_choice_before(capsys) -> None:
    session = walk()
    out = played(session, "left", "u", "stay", "1", "u", "u", capsys=capsys)
    assert (
        out.count("step: 0 Walker (x=4)") == 5
    )  # at first, after u, after the step, after its undo, and after the refusal
    assert out.count("there is nothing to undo") == 1
    assert moments(session) == (1, 0, 0.0, 4.0)


def test_an_environment_that_neither_saves_nor_repeats_itself_has_no_way_back(capsys) -> None:
    class Moody(Unsaved):
        moods = iter(range(10))

        def reset(self) -> Observation:
            super().reset()
            self.x = next(self.moods)
            return self.observe()

    session = Session(Moody, 0, "Moody")
    session.act({"step": [2], "look at": [1]})
    with pytest.raises(CannotGoBackError, match="Moody cannot be saved, and does not repeat itself"):
        session.undo()
    assert moments(session)[:2] == (1, 1)
    assert "Moody cannot be saved" in played(session, "u", "stay", "1", capsys=capsys)
    assert moments(session)[:2] == (1, 2)


def test_the_same_seed_is_environment_0_of_a_pool_with_that_seed() -> None:
    for seed in range(4):
        obs = ListEnv(broken.Walk, 2, seed).reset()
        assert walk(seed=seed).vec_obs().features["Walker"].values[0, 0] == obs.features["Walker"].values[0, 0]


def test_actions_that_are_not_offered_are_refused() -> None:
    session = walk(seed=11)
    with pytest.raises(
        ValueError, match="action 'step' of entity 0 is 0; expected a choice below 3 that is not masked"
    ):
        session.act({"step": [0], "look at": [1]})


def test_an_observation_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Walk \(environment 0\): feature 'x' of entity 0 of type 'Walker' is nan"):
        Session(broken.ShowsNaN, 0, "Walk").act({"step": [2], "look at": [1]})
    with pytest.raises(ValueError, match=r"reset\(\) returned .*; expected an Observation that is not done"):
        Session(broken.DoneAtReset, 0, "Walk")


# --- Policies


def careful(obs) -> Advice:
    """Stays, nearly always, and looks at the left wall."""
    return Advice({"step": [Decision(2, [0.05, 0.2, 0.75])], "look at": [Decision(1, [1.0, 0.0])]}, value=0.5)


def test_a_policy_is_watched_with_its_probabilities(capsys) -> None:
    out = played(walk(), "", capsys=capsys, policy=careful)
    assert "Walk, episode 1, step 0, expected from here on 0.5\n" in out
    assert (
        "step: 0 Walker (x=4)\n"
        "  0 left   █                      5.0%\n"
        "  1 right  ████                  20.0%\n"
        "> 2 stay   ███████████████       75.0%\n"
        "look at: 0 Walker (x=4)\n"
        "> 1 Wall (x=0)  ████████████████████ 100.0%\n"
        "  2 Wall (x=6)                         0.0%\n"
        "Enter: next step > \n"
    ) in out
    assert "Walk, episode 1, step 1: reward 0, total 0, expected" in out


def test_a_policy_runs_on_to_the_end_of_the_episode(capsys) -> None:
    session = walk()
    out = played(session, "", "a", "", capsys=capsys, policy=careful)
    assert out.count("Enter: next step > ") == 3  # Enter, a, and in the second episode
    assert "The episode ended after 10 steps (truncated)" in out
    assert moments(session)[:2] == (2, 0)


def test_commands_work_while_watching(capsys) -> None:
    session = walk()
    out = played(session, "?", "", "", "u", "r", "next", "q", capsys=capsys, policy=careful)
    assert "run on to the end of the episode" in out
    assert "'next' is no command" in out
    assert moments(session)[:2] == (1, 0)


class Board(Script):
    """A tall picture, and more choices than fit under it."""

    def __init__(self, num_actors: int = 3) -> None:
        choices = ["stay", "go", "jump", "wait"]
        actors = [f"a{i}" for i in range(num_actors)]
        obs = Observation(
            features={"Piece": [[float(i)] for i in range(num_actors)]},
            ids={"Piece": actors},
            actions={"move": CategoricalActionMask(actor_ids=actors)},
            reward=0.0,
            done=False,
        )
        super().__init__([obs] * 100, ObsSpace({"Piece": Entity(["x"])}), {"move": CategoricalActionSpace(choices)})

    def render(self):
        return np.zeros((200, 40, 3), np.uint8)


def bold(obs) -> Advice:
    return Advice({"move": [Decision(1, [0.25, 0.7, 0.05, 0.0])] * 3})


@pytest.mark.parametrize("lines", [24, 60])
def test_the_board_is_whole_above_the_prompt_and_bars_are_short_where_there_is_no_room(lines: int, capsys) -> None:
    style = Style(colour=True, all_colours=True, lines=lines)
    session = Session(lambda: Board(), 0, "Board")
    shown = played(session, capsys=capsys, style=style, policy=bold).rstrip().split("\n")
    assert shown.pop().startswith("Enter: next step")
    num_rows = next(i for i, line in enumerate(reversed(shown)) if "▀" not in line)
    assert num_rows >= lines // 2
    assert len(shown) <= lines - 1
    above = "\n".join(shown[: len(shown) - num_rows])
    if lines == 24:
        assert above.endswith("move: 2 Piece (x=2) > go 70%, stay 25%, jump 5%")
    else:
        assert above.count("> 1 go ") == 3


def test_a_short_line_of_probabilities_fits_into_the_terminal(capsys) -> None:
    style = Style(colour=True, all_colours=True, lines=24, columns=30)
    out = played(Session(lambda: Board(), 0, "Board"), capsys=capsys, style=style, policy=bold)
    assert "move: 0 Piece (x=0) > go 70%\n" in out


# --- Playing by itself


class Waits:
    """Waits for no time, and for a key only until it is pressed in the given call."""

    def __init__(self, pressed_at: int) -> None:
        self.pressed_at, self.seconds = pressed_at, []

    def __call__(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return len(self.seconds) == self.pressed_at


def quit_at_once(prompt: str) -> str:
    print(prompt)
    raise EOFError


def test_a_policy_plays_by_itself_over_the_ends_of_episodes_until_a_key_is_pressed(capsys) -> None:
    session, waits = walk(), Waits(pressed_at=13)
    assert play(session, PLAIN, careful, quit_at_once, waits, auto=5.0) == 0
    # ten steps, the end of the episode, and two steps of the next
    assert waits.seconds == [0.2] * 10 + [2.0] + [0.2] * 2
    assert moments(session)[:2] == (2, 2)
    out = capsys.readouterr().out
    assert out.count("Enter: next step > ") == 1
    assert "The episode ended after 10 steps (truncated)" in out
    assert "\x1b" not in out


def test_the_key_p_begins_it_with_four_steps_a_second(capsys) -> None:
    session, waits = walk(), Waits(pressed_at=3)
    lines = iter(["", "p"])

    def ask(prompt: str) -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    play(session, COLOURED, careful, ask, waits)
    assert waits.seconds == [0.25] * 3
    assert moments(session)[:2] == (1, 5)
    assert capsys.readouterr().out.count("\x1b[H\x1b[2J") == 3  # each step in the place of the one before


# --- Arrow keys


def choices(*names: str) -> list[Choice]:
    return [Choice(i, name, True) for i, name in enumerate(names)]


@pytest.mark.parametrize(
    ("names", "arrows"),
    [
        (["up", "down", "left", "right"], {"↑": 0, "↓": 1, "←": 2, "→": 3}),
        (["x+1", "x-1", "y+1", "y-1", "Defuse"], {"→": 0, "←": 1, "↑": 2, "↓": 3}),
        (["North", "go_east", "wait"], {"↑": 0, "→": 1}),
        (["turn left", "move forward", "turn right"], {"←": 0, "↑": 1, "→": 2}),
        (["look up", "go up", "upper", "bright"], {}),
    ],
)
def test_arrows_choose_the_only_choice_of_their_direction(names: list[str], arrows: dict[str, int]) -> None:
    assert arrows_of_names(choices(*names)) == arrows


def test_arrows_select_the_nearest_open_entity_in_their_direction() -> None:
    positions = {0: (0.0, 0.0), 1: (3.0, 1.0), 2: (2.0, -1.0), 3: (-1.0, -4.0), 4: (0.0, 2.0), 6: (1.0, 0.0)}
    candidates = [Choice(i, "", i != 6) for i in (0, 1, 2, 3, 4, 5, 6)]
    assert arrows_of_positions(candidates, 0, positions) == {"→": 2, "↓": 3, "↑": 4}
    assert arrows_of_positions(candidates, 5, positions) == {}  # has no position


def test_arrows_play_the_snakes(capsys) -> None:
    create = load("MultiSnake")
    session = Session(create, 1, "MultiSnake")
    before = session.now.frame.features["SnakeHead"][0].tolist()
    played(session, "↑", "→", capsys=capsys)
    after = session.now.frame.features["SnakeHead"][0].tolist()
    assert (after[0] - before[0], after[1] - before[1]) == (0.0, 1.0)


def test_an_arrow_that_means_nothing_here_is_explained(capsys) -> None:
    assert "nothing begins with '↑'" in played(walk(), "↑", capsys=capsys)


def load(name: str):
    found = load_environment(name, {"num_snakes": 2})
    return lambda: make_python(found.source, found.parameters)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("stay\n", "stay"),
        ("stx\x7fay\r", "stay"),
        ("\x7fwrong\x15u\n", "u"),
        ("\x1b[A", "↑"),
        ("\x1bOD", "←"),
        ("a\x1b[Ab\n", "ab"),
        ("\x1b[3~\x1b[B", "↓"),
        ("größe\n", "größe"),
    ],
)
def test_keys_become_lines_and_the_terminal_is_as_before(keys: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as main_side:
        settings = termios.tcgetattr(main_side)
        os.write(main_side, keys.encode())
        assert Keyboard().ask("> ") == line
        assert termios.tcgetattr(main_side) == settings


def test_ctrl_d_ends_the_input_and_a_key_ends_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as main_side:
        keyboard = Keyboard()
        assert keyboard.wait(0.01) is False
        os.write(main_side, b"xy")
        assert keyboard.wait(60.0) is True
        os.write(main_side, b"\x04")
        with pytest.raises(EOFError):
            keyboard.ask("> ")


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other side of a terminal that is standard input and output. It sends Ctrl-D on, as one that is asked for keys does."""
    main_side, side = pty.openpty()
    tty.setcbreak(side)
    with os.fdopen(side, "r+b", buffering=0) as raw, io.TextIOWrapper(raw, "utf-8", write_through=True) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        monkeypatch.setattr(sys, "stdout", stream)
        yield main_side
        monkeypatch.undo()
    os.close(main_side)


# --- On the command line


def run(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "entity_gym.play", *arguments]
    return subprocess.run(command, cwd=ROOT, input=typed, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["Minesweeper"], 2, "error: .*did you mean 'MineSweeper'"),
        (["Xor", "--set", "a=1"], 2, "error: Xor has no parameter 'a'"),
        (["Xor", "--set", "a"], 2, "error: --set takes name=value"),
        (["Xor", "--checkpoint", "out/a"], 2, "error: to watch a checkpoint play, run: python -m enn_ppo.play out/a\n"),
        (
            ["tests.entity_gym.check.broken:RaisesInReset"],
            1,
            r"error: AttributeError: .*broken\.py, line \d+, in reset",
        ),
        (["tests.entity_gym.check.broken:RaisesInConstructor"], 1, "error: RuntimeError: no disk left"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(arguments: Sequence[str], code: int, message: str, capsys) -> None:
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert re.match(message, captured.err)
    assert captured.err.count("\n") == 1


def test_what_the_environment_raises_in_a_step_is_one_line(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["2", "1"] * 4)
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    assert main(["tests.entity_gym.check.broken:RaisesInAct", "--seed", "0"]) == 1
    assert re.fullmatch(
        r"error: ZeroDivisionError: .* \(tests/entity_gym/check/broken\.py, line \d+, in act: `self.x //= 0`\)\n",
        capsys.readouterr().err,
    )
