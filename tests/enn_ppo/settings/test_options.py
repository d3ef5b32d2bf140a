"""Options: their types, ranges and docstrings, what is refused, and what --help prints."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from enn_ppo.plot import PlotConfig
from enn_ppo.settings.cloning import CloneConfig
from enn_ppo.settings.command_line.help import help_lines
from enn_ppo.settings.config import EvalConfig, TrainConfig
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.settings.options import Option, options_of
from enn_ppo.settings.schedule import Scheduled, ScheduleRange
from enn_ppo.settings.schema import to_dict
from enn_ppo.settings.serving import ServeConfig
from enn_ppo.settings.sweeping import SweepCommand, SweepConfig
from rogue_net.checks import Range

COMMANDS: dict[str, Any] = {
    "train": TrainConfig(),
    "eval": EvalConfig(checkpoint="a"),
    "clone": CloneConfig(data="a"),
    "sweep": SweepCommand(sweep=SweepConfig(space={"optim.lr": [1, 2]})),
    "plot": PlotConfig(runs=("a",)),
    "serve": ServeConfig(checkpoint="a"),
    "watch": WatchConfig(run="a"),
}


def settings_of(cls: type[Any]) -> dict[str, Option]:
    """Without those of a section that may be null: they are those of another."""
    options = options_of(cls)
    others = tuple(f"{option.name}." for option in options if option.type == "section or null")
    own = (option for option in options if not option.type.startswith("section"))
    return {option.name: option for option in own if not option.name.startswith(others)}


def section_of(config: Any, path: str) -> Any:
    """The settings at a dotted path."""
    return functools.reduce(getattr, path.split(".") if path else [], config)


TRAIN = settings_of(TrainConfig)
#: Start of a type -> values of other types.
WRONG: dict[str, list[Any]] = {
    "integer": [True, "32", 1.5, math.nan],
    "number": [True, "x", math.nan, math.inf],
    "true or false": [1, "yes"],
    "text": ["", " ", 3],
    "choice": ["nothing", 7],
    "mapping": [[1]],
}


# --- What is refused ---


@pytest.mark.parametrize("command", COMMANDS)
def test_every_setting_refuses_other_types_and_what_is_out_of_its_range_and_allows_the_ends(command: str) -> None:
    config = COMMANDS[command]
    for name, option in settings_of(type(config)).items():
        section, field = section_of(config, name.rpartition(".")[0]), name.rpartition(".")[2]
        wrong = next((values for start, values in WRONG.items() if option.type.startswith(start)), [])
        allowed, refused = ends(option)
        assert refused or not re.match("integer|number", option.type), f"{name} says no range: {option}"
        for value in wrong + refused:
            given = rf"{re.escape(name)} (must|is) .*{re.escape(repr(value))}"
            with pytest.raises(ValueError, match=f"^{given}"):
                dataclasses.replace(section, **{field: value})
        for value in allowed:
            assert accepted(section, field, value), f"{name}={value}"
        if option.type == "choice":
            for choice in re.findall("`(.+?)`", option.range):
                typo = re.escape(f"{choice}{choice[-1]}")
                near = rf"^{re.escape(name)} is '{typo}'; allowed: .*; did you mean '{re.escape(choice)}'\?$"
                with pytest.raises(ValueError, match=near):
                    dataclasses.replace(section, **{field: choice + choice[-1]})


def ends(option: Option) -> tuple[list[float], list[float]]:
    """The last values inside of the range that an option names, and the first outside; none if it has no range."""
    whole = option.type.startswith("integer")
    step = 1 if whole else 1e-6
    low, high = math.nan, math.nan
    text = re.sub(r"(?<=\d),(?=\d{3})", "", option.range)
    open_low, open_high = text.startswith(("greater", "in (")), text.endswith(")")
    if found := re.match(r"(?:at least|greater than) ([\d.]+)", text):
        low = float(found[1])
    if found := re.match(r"in [\[(](-?\d+), (\d+)[\])]", text):
        low, high = float(found[1]), float(found[2])
    allowed = [low + step * open_low, high - step * open_high]
    refused = [low - step * (not open_low), high + step * (not open_high)]
    if whole:
        return [int(v) for v in allowed if v == v], [int(v) for v in refused if v == v]
    return [v for v in allowed if v == v], [v for v in refused if v == v]


def accepted(config: Any, field: str, value: float) -> bool:
    """Whether the value itself is; another setting may still be against it (`net.d_model=1` with two heads)."""
    try:
        dataclasses.replace(config, **{field: value})
    except ValueError as error:
        return not re.search(rf"{field} must be an? (integer|number)", str(error))
    return True


# --- Help ---


@dataclass(frozen=True, kw_only=True)
class Wheels:
    """Wheels to roll on. Nothing else."""

    count: Annotated[int, Range(2)] = 4
    """How many. More is
    dearer."""
    kind: Literal["steel", "wood"] = "wood"
    """What they are made of: `steel` | `wood`. The first rusts."""


@dataclass(frozen=True, kw_only=True)
class Cart:
    """A cart."""

    wheels: Wheels = dataclasses.field(default_factory=Wheels)
    """Its wheels."""
    spare: Wheels | None = None
    """Wheels to change to; null: none."""
    speed: Annotated[Scheduled, ScheduleRange(0, 30, open_high=True)] = 1e-3
    """Speed, in metres per second; 0: it stands."""
    load: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What it carries."""
    owner: str
    """Whose it is."""


def test_help_lists_settings_with_their_values_and_what_they_mean() -> None:
    values = {
        "wheels": {"count": 6, "kind": "steel"},
        "spare": None,
        "speed": "1@0 -> 2@1",
        "load": {"hay": 2},
        "owner": "?",
    }
    assert help_lines(Cart, values) == [
        "wheels: Wheels to roll on.",
        "  wheels.count=6                            How many (at least 2)",
        "  wheels.kind=steel                         What they are made of: steel | wood",
        "",
        "spare: Wheels to change to; null: none.",
        "",
        "top level: A cart.",
        "  speed=1@0 -> 2@1                          Speed, in metres per second; 0: it stands (in [0, 30))",
        "  load.hay=2                                What it carries",
        "  owner=?                                   Whose it is",
    ]


def test_help_fits_into_120_columns_and_lists_every_setting_of_training() -> None:
    lines = "\n".join(help_lines(TrainConfig, to_dict(TrainConfig()))).splitlines()
    assert max(map(len, lines)) <= 120
    named = [line.split("=")[0].strip() for line in lines if re.match(r"  [\w.]+=", line)]
    assert [name for name in named if name in TRAIN] == list(TRAIN) and set(named) == set(TRAIN)
