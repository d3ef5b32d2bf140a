"""What the command line makes of schedules, of names that no file lists, of a value network, and of --help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from enn_ppo.checkpoints import Retention, save_checkpoint
from enn_ppo.settings.command_line.cli import run_eval, run_train
from enn_ppo.settings.config import EvalConfig, TrainConfig
from enn_ppo.settings.schema import to_dict
from rogue_net.config import RogueNetConfig


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def composed(*arguments: str) -> TrainConfig:
    configs: list[TrainConfig] = []
    assert run_train(configs.append, list(arguments)) == 0
    (config,) = configs
    return config


@pytest.fixture
def mistake(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the trainer's command line with a mistake, and return the paragraph."""

    def run(*arguments: str) -> str:
        assert run_train(lambda config: pytest.fail("it ran"), list(arguments)) == 2
        return capsys.readouterr().err

    return run


# --- Schedules ---


@pytest.mark.parametrize(
    ("argument", "written"),
    [
        ("optim.lr=0.001@0 -> 0@1", "0.001@0 -> 0@1"),  # in a shell: 'optim.lr=0.001@0 -> 0@1'
        ("optim.lr=0.001@0->0@1", "0.001@0->0@1"),
        ("optim.lr='0.001@0 -> 0@1'", "0.001@0 -> 0@1"),  # in a shell: "optim.lr='0.001@0 -> 0@1'"
        ('optim.lr="0.001@0 -> 0@1"', "0.001@0 -> 0@1"),
        ("optim.lr=1e-3@0 -> 1@.5 cos 0@1", "1e-3@0 -> 1@.5 cos 0@1"),
        ("optim.lr=0.001@0 cos 0@1", "0.001@0 cos 0@1"),
        ("optim.lr=0.001@0 step 0@1", "0.001@0 step 0@1"),
    ],
)
def test_a_schedule_needs_no_quotes_but_the_shells(argument: str, written: str) -> None:
    assert composed(argument).optim.lr == written


@pytest.mark.parametrize("eaten", ["optim.lr=0.001@0-", "optim.lr=0.001@0 -"])
def test_an_arrow_that_a_shell_took_for_a_redirection_is_told(eaten: str, mistake: Callable[..., str]) -> None:
    assert mistake(eaten) == (
        f"error: {eaten} breaks off at '->', where a shell writes into a file: quote it, 'optim.lr=... -> ...'\n"
    )


def test_a_bad_schedule_is_one_paragraph(mistake: Callable[..., str]) -> None:
    message = mistake("ppo.gamma=0.9@0 -> 1.1@1")
    assert message.startswith("error: ppo.gamma must be") and "(in '0.9@0 -> 1.1@1')" in message
    assert "'0' is no point" in mistake("optim.lr=0.1@0 -> 0")


# --- Names that no file lists ---


def test_any_name_goes_below_env_info_without_a_plus_sign() -> None:
    config = composed("env.info.num_mines=[3,4,5]", "env.info.width={low:4,high:6}", "env.info.speed=1@0 -> 2@1")
    expected = {"num_mines": [3, 4, 5], "width": {"low": 4, "high": 6}, "speed": "1@0 -> 2@1"}
    assert config.env.info == expected
    plus = composed("+env.info.num_mines=[3,4,5]", "+env.info.width={low:4,high:6}", "+env.info.speed=1@0 -> 2@1")
    assert plus.env.info == expected


def test_a_schedule_as_an_end_of_a_range() -> None:
    config = composed("env.info.x={low: 1@0 -> 2@1, high: 5}", "env.info.y={low:0,high:1@0->9@0.5 step 3@1}")
    assert config.env.info == {"x": {"low": "1@0 -> 2@1", "high": 5}, "y": {"low": 0, "high": "1@0->9@0.5 step 3@1"}}


def test_the_world_of_evaluation_takes_arguments_in_training_and_alone() -> None:
    assert composed("eval.interval=9", "eval.env_kwargs.width=9").eval.env_kwargs == {"width": 9}
    seen: list[EvalConfig] = []
    assert run_eval(seen.append, ["checkpoint=a", "env_kwargs.width=9", "env_kwargs.deep.x=[1]"]) == 0
    assert seen[0].env_kwargs == {"width": 9, "deep": {"x": [1]}}


def test_an_argument_that_the_world_of_evaluation_does_not_have_is_told(mistake: Callable[..., str]) -> None:
    message = mistake("eval.interval=9", "eval.env_kwargs.widht=9")
    assert "eval.env_kwargs.widht is not a setting" in message
    assert "did you mean 'eval.env_kwargs.width'?" in message and "+eval.env_kwargs.widht=..." in message


# --- The value network ---


def test_a_value_network_is_chosen_and_then_set() -> None:
    assert composed().value_net is None
    assert composed("value_net=default").value_net == RogueNetConfig()
    config = composed("net.d_model=16", "value_net=default", "value_net.d_model=64", "value_net.relpos.scale=2")
    assert config.value_net is not None and config.net.d_model == 16
    assert (config.value_net.d_model, config.value_net.relpos.scale) == (64, 2.0)
    assert composed("value_net=none").value_net is None


def test_a_setting_of_a_value_network_that_is_not_there_says_how_to_have_one(mistake: Callable[..., str]) -> None:
    assert mistake("value_net.d_model=64") == (
        "error: value_net.d_model needs a network for the value: add value_net=default to the command\n"
    )
    assert "did you mean 'value_net.d_model'?" in mistake("value_net=default", "value_net.d_modl=64")
    message = mistake("value_net=default", "value_net.d_model=33")
    assert message.startswith("error: net.d_model must be divisible") and message.endswith(" (in value_net)\n")


def test_choosing_a_value_network_counts_when_a_run_is_resumed(tmp_path: Path) -> None:
    saved = to_dict(TrainConfig())
    directory = tmp_path / "a/checkpoints"
    retention = Retention(keep_last=1)
    save_checkpoint(directory, 64, policy={}, config=saved, spaces={}, trainer={}, retention=retention)
    assert composed("resume=a").value_net is None
    changed = composed("resume=a", "value_net=default", "value_net.d_model=64")
    assert changed.value_net == RogueNetConfig(d_model=64)


# --- Help ---


def test_help_shows_how_to_call_and_every_setting_with_the_value_that_the_line_gives_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--help", "env=Xor", "optim.lr=0.001@0 -> 0@1", "value_net=default"]
    assert run_train(lambda config: pytest.fail("it ran"), arguments) == 0
    output = capsys.readouterr()
    assert output.err == ""
    lines = output.out.splitlines()
    assert lines[0].startswith("python -m enn_ppo.train [name=value ...]")
    assert any(line.startswith("  env ") and "CartPole-v0, CartPole-v1" in line for line in lines)
    named = {line.split()[0] for line in lines if line.startswith("  ")}
    assert {"env.id=Xor", "env.kwargs.max_steps=null", "optim.lr=0.001@0", "value_net.d_model=32"} <= named
    assert "/options;" in lines[-2]
    assert max(map(len, lines)) <= 120


def test_help_for_an_evaluation_needs_no_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_eval(lambda config: pytest.fail("it ran"), ["-h"]) == 0
    output = capsys.readouterr()
    assert output.err == "" and output.out.startswith("python -m enn_ppo.eval [name=value ...]")
    assert "\n  checkpoint=??? " in output.out


def test_a_mistake_beside_help_is_told(mistake: Callable[..., str]) -> None:
    assert "did you mean 'optim.lr'?" in mistake("--help", "optim.lrr=1")
