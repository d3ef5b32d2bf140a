"""The pure parts of scripts/learn_zoo.py: which worlds, when a score is reached, when a row is met, and the table."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from enn_ppo.settings.command_line.cli import config_directory, run_train
from enn_ppo.settings.config import TrainConfig
from enn_ppo.training.environment import BRIDGES

ROOT = Path(__file__).parents[1]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("learn_zoo", ROOT / "scripts/learn_zoo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["learn_zoo"] = module  # where its dataclasses look for their annotations
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        spec.loader.exec_module(module)
    return module


zoo = script()


def learned(score: float, *, seed: int = 1, seconds: float = 30.0, **changes: Any) -> Any:
    return zoo.Learned(
        **{
            "world": "Xor",
            "seed": seed,
            "score": score,
            "ci95": 0.01,
            "greedy": False,
            "steps": 65_536,
            "seconds": seconds,
            "steps_to_score": 40_960,
            "seconds_to_score": 4.4,
        }
        | changes
    )


def rows(*rewards: float | None) -> list[dict[str, Any]]:
    return [{"step": 100 * (i + 1), "seconds": i / 2, "episodic_reward": reward} for i, reward in enumerate(rewards)]


XOR = zoo.World("Xor", ("env=Xor",), 0.99, 1, ancestor="500,000: 1.0")


# --- Which worlds ---


def test_every_preset_of_the_zoo_but_the_shorter_cart_pole_is_in_the_table() -> None:
    presets = {f"env={path.stem}" for path in (config_directory() / "env").glob("*.yaml")}
    kinds = {"env=custom", *(f"env={api}" for api in BRIDGES)}  # of any world, which `env.id` names
    assert {world.overrides[0] for world in zoo.ZOO} == presets - kinds - {"env=CartPole-v0"}
    assert len({world.name for world in zoo.ZOO}) == len(zoo.ZOO)


def test_worlds_are_selected_by_the_names_of_their_rows() -> None:
    assert zoo.select(None) == list(zoo.ZOO)
    assert [world.name for world in zoo.select(["Xor", "CherryPick"])] == ["Xor", "CherryPick"]
    with pytest.raises(ValueError, match=r"--envs 'Xorr' is no row of the table; allowed: .*'Xor'"):
        zoo.select(["Xorr"])


@pytest.mark.parametrize("world", zoo.ZOO, ids=lambda world: world.name)
def test_the_command_of_every_row_has_only_settings_that_exist(world: Any) -> None:
    configs: list[TrainConfig] = []
    assert run_train(configs.append, [*world.overrides, "run_dir=a"]) == 0
    assert configs[0].seed < zoo.EVAL_SEED, "evaluation has seeds that training never uses"


# --- The learning curve ---


def test_a_score_is_reached_when_the_mean_of_five_rows_is() -> None:
    # 0, 0, 1, 1, 1, 1, 1: the windows are 0.6, 0.8 and 1.0, and end at rows 5, 6 and 7
    curve = rows(0, 0, 1, 1, 1, 1, 1)
    assert zoo.reached(curve, 0.6) == (500, 2.0)
    assert zoo.reached(curve, 0.99) == (700, 3.0)


def test_rows_in_which_no_episode_ended_tell_nothing() -> None:
    assert zoo.reached(rows(1, None, 1, 1, None, 1, 1), 1.0) == (700, 3.0)
    assert zoo.reached(rows(1, 1, None, 1, 1), 1.0) is None


def test_a_score_that_is_never_reached_is_none() -> None:
    assert zoo.reached(rows(*[0.5] * 20), 0.99) is None
    assert zoo.reached([], 0.99) is None


# --- Met or not ---


def test_a_row_is_met_by_the_mean_of_the_seeds() -> None:
    assert zoo.is_met(XOR, [learned(1.0), learned(0.98)])
    assert not zoo.is_met(XOR, [learned(1.0), learned(0.97)])


def test_a_row_is_missed_if_one_seed_takes_too_long() -> None:
    assert zoo.is_met(XOR, [learned(1.0, seconds=60), learned(1.0, seconds=1)])
    assert not zoo.is_met(XOR, [learned(1.0, seconds=61), learned(1.0, seconds=1)])


def test_a_score_that_is_too_good_is_no_success() -> None:
    hidden = zoo.World("RockPaperScissors", ("env=RockPaperScissors",), 0.9, 1, most=1.1)
    assert [zoo.is_met(hidden, [learned(score)]) for score in (0.85, 1.05, 2.0)] == [False, True, False]


# --- The table ---


def test_a_row_shows_every_seed_the_mean_and_the_deviation() -> None:
    seeds = [learned(0.99, seed=2, seconds=9.6), learned(1.0, seed=1, steps_to_score=None, seconds_to_score=None)]
    *_, row = zoo.table([XOR], seeds).splitlines()
    # the mean of 1.00 and 0.99 is 0.995, their deviation 0.01 / sqrt(2) = 0.00707
    assert row == (
        "| Xor | ≥ 0.99 | 1.000, 0.990 | 0.995 ± 0.007 | sampled | 65,536 | never, 40,960 | never, 4 | 30, 10 | 60 "
        "| 500,000: 1.0 |"
    )


def test_a_row_that_is_not_met_is_bold_and_one_without_results_left_out() -> None:
    cart_pole = zoo.World("CartPole-v1", ("env=CartPole-v1",), 475, 1)
    lines = zoo.table([cart_pole, XOR], [learned(470.25, world="CartPole-v1", greedy=True)]).splitlines()
    assert len(lines) == 3
    assert "| 470.2 | **470.2 ± 0.0** | greedy |" in lines[2]
    assert {line.count("|") for line in lines} == {lines[0].count("|")}


def test_the_table_goes_between_its_marks_and_the_rest_of_the_page_stays(tmp_path: Path) -> None:
    page, text = (
        tmp_path / "page.md",
        "before\n\n<!-- table: scripts/a.py -->\n\nold\n\n<!-- end of table -->\n\nafter\n",
    )
    page.write_text(text)
    zoo.replace_table(page, "a.py", "new")
    assert page.read_text() == text.replace("old", "new")
    with pytest.raises(ValueError, match=r"page\.md needs a line <!-- table: scripts/b\.py -->"):
        zoo.replace_table(page, "b.py", "new")
