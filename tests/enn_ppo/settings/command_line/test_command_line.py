"""The command line in this process, with a stand-in for the trainer: settings, mistakes, exit codes, resuming, help."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from enn_ppo import train
from enn_ppo.settings.command_line import mistakes
from enn_ppo.settings.command_line.cli import run_eval, run_train
from enn_ppo.settings.command_line.composition import prepare
from enn_ppo.settings.config import EnvConfig, EvalConfig, OptimConfig, RolloutConfig, TrainConfig
from enn_ppo.settings.presets import preset
from enn_ppo.settings.schema import quoted, to_dict
from enn_ppo.training.errors import Interrupted
from entity_gym.pools.processes.worker import WorkerDied
from entity_gym.registry import make_spec
from rogue_net.config import RogueNetConfig
from tests.enn_ppo.forged import save

WORLDS = "tests.enn_ppo.worlds"
TINY = (
    "rollout.num_envs=4",
    "rollout.steps=8",
    "net.d_model=16",
    "net.n_layer=1",
    "optim.batch_size=16",
    "optim.epochs=1",
    "device=cpu",
    "num_threads=1",
    "total_timesteps=64",
)
MINES = (
    "env=MineSweeper",
    "env.kwargs.width=4",
    "env.kwargs.height=4",
    "env.kwargs.num_mines=2",
    "env.kwargs.max_steps=10",
)

Mistake = Callable[..., str]


def nothing_runs(config: object) -> None:
    pytest.fail("it ran")


def raises(error: BaseException) -> Callable[[TrainConfig], object]:
    def action(config: TrainConfig) -> object:
        raise error

    return action


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mistake(capsys: pytest.CaptureFixture[str]) -> Mistake:
    """Run a command with a mistake, and return the one paragraph that it says."""

    def run(*arguments: str, program: str = "train", work: Callable[..., object] = nothing_runs) -> str:
        assert {"train": run_train, "eval": run_eval}[program](work, list(arguments)) == 2
        output = capsys.readouterr()
        assert work is train or output.out == ""
        said = [line for line in output.err.splitlines(True) if work is not train or not line.startswith("compil")]
        assert len(said) == 1 and said[0].startswith("error: ") and said[0].endswith("\n"), output.err
        return said[0]

    return run


def composed(*arguments: str) -> TrainConfig:
    configs: list[TrainConfig] = []
    assert run_train(configs.append, list(arguments)) == 0
    (config,) = configs
    return config


def settings_in(config: TrainConfig, names: dict[str, Any]) -> dict[str, Any]:
    """The settings, or sections, with these dotted names."""
    plain = to_dict(config)
    return {name: reduce(lambda section, part: section[part], name.split("."), plain) for name in names}


# --- Settings ---


def test_without_arguments_a_command_has_minesweepers_preset_over_the_defaults_of_the_classes() -> None:
    config = composed("run_dir=a")
    assert config == preset("MineSweeper", run_dir="a")
    of_preset = {"env": config.env, "net": config.net, "total_timesteps": config.total_timesteps}
    assert config == TrainConfig(**of_preset, run_dir="a")
    assert config.net == RogueNetConfig(relpos=config.net.relpos)
    assert config.env.id == EnvConfig().id
    assert config.env.kwargs == make_spec("MineSweeper").config.parameters | {"max_steps": 100}
    seen: list[EvalConfig] = []
    assert run_eval(seen.append, ["checkpoint=a"]) == 0
    assert run_eval(seen.append, ["checkpoint=a", "env_kwargs.width=9", "env_kwargs.deep.x=[1]"]) == 0
    assert seen == [
        EvalConfig(checkpoint="a"),
        EvalConfig(checkpoint="a", env_kwargs={"width": 9, "deep": {"x": [1]}}),
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["env=MineSweeper", "env.kwargs.width=9", "optim.lr=3e-4", "seed=7", "experiment=quick"],
            {"env.kwargs.width": 9, "optim.lr": 3e-4, "seed": 7, "rollout.num_envs": 32, "total_timesteps": 8192},
        ),
        (  # a world of one's own takes any name
            ["env=custom", "env.id=my_pkg.my_env:MyEnv", "env.kwargs.size=8", "env.kwargs.deep.x=[1,2]"],
            {"env.id": "my_pkg.my_env:MyEnv", "env.kwargs": {"size": 8, "deep": {"x": [1, 2]}}},
        ),
        (  # mappings that take any name, as a whole
            ["env.info={num_mines: [3, 4]}", "env.kwargs={width: 7}"],
            {"env.info": {"num_mines": [3, 4]}, "env.kwargs.width": 7, "env.kwargs.height": 6},
        ),
        *(  # a plus sign is not needed, and does no harm
            (
                [f"{plus}env.info.m=[3,4,5]", f"{plus}env.info.w={{low:4,high:6}}", f"{plus}env.info.s=1@0 -> 2@1"],
                {"env.info": {"m": [3, 4, 5], "w": {"low": 4, "high": 6}, "s": "1@0 -> 2@1"}},
            )
            for plus in ("", "+")
        ),
        (
            ["env.info.x={low: 1@0 -> 2@1, high: 5}", "env.info.y={low:0,high:1@0->9@0.5 step 3@1}"],
            {"env.info": {"x": {"low": "1@0 -> 2@1", "high": 5}, "y": {"low": 0, "high": "1@0->9@0.5 step 3@1"}}},
        ),
        # schedules need no quotes but the shell's
        *(
            ([f"optim.lr={quotes}{text}{quotes}"], {"optim.lr": text})
            for text in ("0.001@0->0@1", "1e-3@0 -> 1@.5 cos 0@1")
            for quotes in ("", "'", '"')
        ),
        (["value_net=none"], {"value_net": None}),
        (
            ["env=gymnasium", "env.id=CartPole-v1", "env.kwargs.max_episode_steps=7"],
            {"env": to_dict(EnvConfig(id="CartPole-v1", api="gymnasium", kwargs={"max_episode_steps": 7}))},
        ),
        (
            ["net.d_model=16", "value_net=default", "value_net.d_model=64", "value_net.relpos.scale=2"],
            {"net.d_model": 16, "value_net.d_model": 64, "value_net.relpos.scale": 2.0},
        ),
    ],
)  # fmt: skip
def test_arguments_set_what_they_say(arguments: list[str], expected: dict[str, Any]) -> None:
    assert settings_in(composed(*arguments), expected) == expected


def test_hydra_writes_nothing_and_stays_where_it_is_and_arguments_are_those_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", "seed=5"])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    runs: list[tuple[int, str, str]] = []
    assert run_train(lambda config: runs.append((config.seed, str(config.run_dir), os.getcwd()))) == 0
    ((seed, run_dir, place),) = runs
    assert (seed, place) == (5, str(tmp_path))
    assert run_dir == "None"  # the trainer finds one that is free
    assert list(tmp_path.iterdir()) == []
    assert sys.argv == ["train", "seed=5"]
    assert "HYDRA_FULL_ERROR" not in os.environ


def test_folders_may_have_any_name() -> None:
    names = ["with space", "lr=0.1,run", "新加卷", "50%", "a#b", "[x]", "it's", "~x", "{k}", "$HOME", "tab\tx", "🙂", 'say "hi"',
             "back\\slash", "end\\", "a\\'b", "1e3", "true", "a -> b"]  # fmt: skip
    inside = {f"p{number}": f"out/{name}" for number, name in enumerate(names)}
    alone = {f"q{number}": name for number, name in enumerate(names)}
    arguments = [f"env.kwargs.{key}={name}" for key, name in inside.items()]
    arguments += [f"env.kwargs.{key}={quoted(Path(name))}" for key, name in alone.items()]
    assert composed("env=custom", "env.id=a:B", *arguments).env.kwargs == inside | alone
    for name in names:  # which settings that are texts need not be told
        assert prepare(f"run_dir={name}", TrainConfig) == f"run_dir={quoted(Path(name))}"
    for name in ("lr=0.1,[$HOME] it's\\", "1e3"):
        assert composed(f"run_dir={name}").run_dir == preset("Xor", run_dir=Path(name)).run_dir == name


# --- Mistakes ---

LONG, DEEP = "x" * 50_000, "[" * 500 + "]" * 500


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        # names
        (["optim.lrr=1"], r"optim\.lrr is not a setting.*did you mean 'optim\.lr'\?"),
        (["--help", "optim.lrr=1"], r"did you mean 'optim\.lr'\?"),
        *(([f"{name}=1"], rf"^error: {re.escape(name)} is not a setting.*did you mean 'optim\.lr'\?")
          for name in ("lr", "optm.lr")),
        (["ppo.epochs=1"], r"did you mean 'optim\.epochs'\?"),
        (["experimnt=quick"], r"did you mean 'experiment'\?"),
        (["eval", "checkpoint=a", "episode=3"], r"episode is not a setting.*did you mean 'episodes'\?"),
        (["eval"], r"checkpoint has no value, and no default: add checkpoint="),
        # choices
        (["env=Foo"], r"env=Foo .*'MineSweeper', .*'custom'.*env=custom env\.id="),
        (["env=custom"], r"env\.id has no value.*add env\.id="),
        (["env=MineSweeper,custom"], r"Ambiguous value .*env=MineSweeper,custom.*--multirun"),
        (["experiment=qick"], r"experiment=qick .*did you mean 'quick'\?"),
        (["--multirun", "hydra/launcher=jobli"], r"hydra/launcher=jobli is not a choice; allowed: 'basic'"),
        # what cannot be read
        (["optim.lr"], r"'optim\.lr' cannot be read: missing EQUAL"),
        (["optim.lr=[1"], r"'optim\.lr=\[1' cannot be read"),
        (["optim.lr=${nothing}"], r"Interpolation key 'nothing' not found"),
        (["=3"], r"^error: the settings =3 cannot be composed: "),
        (["seed=1,2"], r"seed=1,2"),
        (["optim.lr=0.001@0-"], r"^error: optim\.lr must be .*`0\.001@0 -> 0@1`.*'0\.001@0-' is no point$"),
        # flags and Hydra
        (["--config-dir", "nowhere"], r"'.*nowhere' not found"),
        # values
        (["net=null"], r"net must be a mapping of settings, got None"),
        (["num_threads=1000000000"], r"num_threads must be an integer, in \[1, 1024\], or null, got 1000000000"),
        (["seed=1e30"], r"seed must be an integer, at least 0 and at most 9\.22337e\+18, got 1000"),
        (["resume="], r"resume must be a text or null, got ''"),
        (["value_net.d_model=64"],
         r"^error: value_net\.d_model needs a separate value network.*: value_net=default$"),
        (["value_net=default", "value_net.d_model=33"], r"^error: net\.d_model must be divisible.* \(in value_net\)$"),
        # too much
        ([f"optim.lr={LONG}"], r"got 'x{500}.* \.\.\. "),
        *((each, r"the name \S{50,}\.\.\. is too long") for each in
          ([f"env={LONG}"], [f"{LONG}=1"], ["--config-dir", LONG], [f"env.kwargs.{'a.' * 500}a=1"])),
        *(([each], r"nested too deeply") for each in
          (f"env.kwargs.a={DEEP}", f"seed={DEEP}", f"env.kwargs={'{a: ' * 300}1{'}' * 300}")),
        ([f"env.kwargs.a={'9' * 5000}"], r"limit .* for integer string conversion"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_a_mistake_gives_one_paragraph_and_exit_code_2(arguments: list[str], message: str, mistake: Mistake) -> None:
    program = "eval" if arguments[0] == "eval" else "train"
    said = mistake(*(argument for argument in arguments if argument != "eval"), program=program)
    assert re.search(message, said) and len(said) <= 1010, said


@pytest.mark.parametrize(
    ("text", "message"),
    [("id: Xor\nkwargs: {a: 1, a: 2}\n", "found duplicate key a"), ("id: [\n", "mine")],
)
def test_a_mistake_in_a_file_of_ones_own_is_told(text: str, message: str, tmp_path: Path, mistake: Mistake) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env/mine.yaml").write_text(text)
    assert message in mistake("--config-dir", str(tmp_path), "env=mine")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*MINES, "env.kwargs.width=-6"], r"MineSweeper: width=-6; it must be a whole number from 1 to 256"),
        (["env=custom", f"env.id={WORLDS}:Copycatt"], r"no class or function 'Copycatt'.*did you mean 'Copycat'\?"),
        (["env=custom", "env.id=no_such_module:World"], r"env\.id is 'no_such_module:World', but there is no module"),
        (["env.kwargs.widht=8"], r"MineSweeper has no parameter 'widht'.*did you mean 'width'"),
        (["eval.interval=9", "eval.env_kwargs.widht=9"], r"no parameter 'widht'.*did you mean 'width'.*eval\.env_kwargs"),
        pytest.param([*MINES, "device=cuda"], r"device is 'cuda', but .*; allowed here: 'auto', 'cpu'",
                     marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")),
    ],
)  # fmt: skip
def test_a_mistake_that_the_trainer_finds_is_one_paragraph_and_leaves_nothing_behind(
    arguments: list[str], message: str, mistake: Mistake, tmp_path: Path
) -> None:
    assert re.search(message, mistake(*TINY, "run_dir=out", *arguments, work=train))
    assert list(tmp_path.iterdir()) == []


def noted(error: BaseException, *notes: str) -> BaseException:
    for note in notes:
        error.add_note(note)
    return error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("the wall\n\n  is red"), 2, "error: the wall is red"),
        (
            noted(ValueError("the wall is red"), "raised by House (environment 3) in act()", "(job seed=1)"),
            2,
            "error: the wall is red; raised by House (environment 3) in act() (job seed=1)",
        ),
        (  # no bug of ours, and no mistake of the user
            WorkerDied("worker 1 was killed"),
            1,
            "error: worker 1 was killed",
        ),
        (Interrupted("saved to out/a", 143), 143, "saved to out/a"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (  # an environment that leaves the program does not end it as if all were done
            noted(SystemExit(0), "raised by Leaver (environment 0) in act()"),
            1,
            "error: sys.exit(0), raised by Leaver (environment 0) in act()",
        ),
    ],
)
def test_what_ends_a_run_is_told_in_a_line_and_has_its_exit_code(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_train(raises(error), []) == code
    assert capsys.readouterr() == ("", f"{said}\n")


def test_tracebacks_are_for_bugs_and_for_who_asks_hydra_for_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for work, arguments, code, last in (
        (raises(TypeError("a bug")), [], 1, "TypeError: a bug"),
        (raises(ValueError("red")), [], 2, "error: red"),
        (nothing_runs, ["optim.lrr=1"], 2, "error: optim.lrr is not"),
    ):
        assert run_train(work, arguments) == code
        errors = capsys.readouterr().err
        assert "Traceback" in errors and errors.splitlines()[-1].startswith(last)
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")


def test_our_warnings_are_one_line_while_a_command_runs_and_each_is_shown_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def warn(config: TrainConfig) -> None:
        for step in range(3):
            warnings.warn_explicit("the file is short", UserWarning, mistakes.__file__, 1)
            warnings.warn_explicit(f"mind gap {step}", UserWarning, "somebody/elses.py", 7)

    shown_by = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run_train(warn, []) == 0
    assert warnings.showwarning is shown_by
    told = [line for line in capsys.readouterr().err.splitlines() if "file" in line or "gap" in line]
    assert told == ["warning: the file is short", "somebody/elses.py:7: UserWarning: mind gap 0"]


# --- Resuming ---


def saved_run(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """Write a checkpoint into out/a, of a run with settings that are not the defaults; returns its settings."""
    settings: dict[str, Any] = {
        "env": EnvConfig(kwargs={"width": 8, "height": 4}),
        "rollout": RolloutConfig(num_envs=64, steps=8),
        "optim": OptimConfig(lr=5e-5, batch_size=128),
        "seed": 9,
        "run_dir": "elsewhere",
        "overwrite": True,
    }
    config = to_dict(TrainConfig(**(settings | changes)))
    directory = tmp_path / "out/a/checkpoints"
    save(directory, 64, config=config)
    return config


def test_resuming_takes_the_saved_settings_but_for_what_is_typed_and_goes_on_where_the_run_was(
    tmp_path: Path,
) -> None:
    saved = saved_run(tmp_path)
    for path in ("out/a", "out/a/checkpoints/latest", "out/a/checkpoints/step_000000000064"):
        expected = saved | {"run_dir": None, "resume": path, "overwrite": False}
        assert to_dict(composed(f"resume={path}")) == expected
    config = to_dict(composed("resume=out/a", "total_timesteps=900000", "optim.lr=1e-3", "seed=9", "run_dir=out/b"))
    saved["optim"]["lr"] = 1e-3
    assert config == saved | {"run_dir": "out/b", "resume": "out/a", "overwrite": False, "total_timesteps": 900_000}


OWN = EnvConfig(id="maze:Maze", kwargs={"size": 3, "deep": {"x": 1, "y": 2}})
CARTPOLE = EnvConfig(id="CartPole-v1", kwargs={"max_steps": 9})
GYMNASIUM = EnvConfig(id="CartPole-v1", api="gymnasium")


@pytest.mark.parametrize(
    ("saved", "arguments", "expected"),
    [
        (  # a group sets all that its file holds, even defaults
            {},
            ["experiment=quick", "optim.epochs=7"],
            {"rollout.num_envs": 32, "rollout.steps": 16, "total_timesteps": 8192, "optim.epochs": 7, "optim.lr": 5e-5}
            | {"optim.batch_size": 256},
        ),
        ({}, ["env=MineSweeper"], {"env.kwargs.width": 6}),
        (  # another world does not inherit the arguments of the first
            {},
            ["env=custom", "env.id=maze:Maze", "env.kwargs.size=3"],
            {"env": to_dict(EnvConfig(id="maze:Maze", kwargs={"size": 3}))},
        ),
        (  # nor does one of the same name and another interface
            {"env": CARTPOLE},
            ["env=gymnasium", "env.id=CartPole-v1"],
            {"env": to_dict(GYMNASIUM)},
        ),
        ({"env": GYMNASIUM}, ["env=CartPole-v1"], {"env.api": "entity"}),
        (  # without a choice the same world keeps its own
            {"env": OWN},
            ["env.kwargs.size=4", "env.kwargs.deep.x=5"],
            {"env": to_dict(EnvConfig(id="maze:Maze", kwargs={"size": 4, "deep": {"x": 5, "y": 2}}))},
        ),
        (  # of a preset only the world counts
            {"env": EnvConfig(id="FloorIsLava"), "net": RogueNetConfig(d_model=16), "total_timesteps": 640},
            ["env=FloorIsLava"],
            {"net": to_dict(RogueNetConfig(d_model=16)), "optim": to_dict(OptimConfig(lr=5e-5, batch_size=128))}
            | {"total_timesteps": 640, "env.kwargs": {"max_steps": None}},
        ),
        ({}, ["value_net=default", "value_net.d_model=64"], {"value_net": to_dict(RogueNetConfig(d_model=64))}),
    ],
)
def test_what_is_chosen_while_resuming_counts(
    saved: dict[str, Any], arguments: list[str], expected: dict[str, Any], tmp_path: Path
) -> None:
    saved_run(tmp_path, **saved)
    assert settings_in(composed("resume=out/a", *arguments), expected) == expected


# --- Help ---


@pytest.mark.parametrize(
    ("program", "arguments", "first", "shown"),
    [
        (
            run_train,
            ["--help", "env=Xor", "optim.lr=0.001@0 -> 0@1", "value_net=default"],
            "python -m enn_ppo.train [name=value ...]",
            {"env.id=Xor", "env.kwargs.max_steps=null", "optim.lr=0.001@0", "value_net.d_model=32"},
        ),
        (run_eval, ["-h"], "python -m enn_ppo.eval [name=value ...]", {"checkpoint=???"}),
    ],
)
def test_help_shows_how_to_call_and_every_setting_with_the_value_that_the_line_gives_it(
    program: Callable[..., int], arguments: list[str], first: str, shown: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert program(nothing_runs, arguments) == 0
    output = capsys.readouterr()
    assert output.err == ""
    lines = output.out.splitlines()
    assert lines[0].startswith(first)
    assert shown <= {line.split()[0] for line in lines if line.startswith("  ")}
    assert f"\n{lines[0].partition(' [')[0]} " in output.out  # an example
    assert "/options;" in lines[-2]
    assert max(map(len, lines)) <= 120
    groups = [line for line in lines if line.startswith("  env ")]
    assert program is run_eval or "CartPole-v0, CartPole-v1" in groups[0]


def test_other_flags_that_show_something_train_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_train(nothing_runs, ["--version"]) == 0
    assert capsys.readouterr().out.strip()
    assert run_train(nothing_runs, ["--cfg", "job", "seed=3"]) == 0
    output = capsys.readouterr()
    assert output.err == "" and yaml.safe_load(output.out)["seed"] == 3
    for arguments, shown in (
        (["--cfg", "hydra", "hydra.sweep.subdir=x"], "subdir: x"),
        (["--cfg", "job", "--package", "env", "~env"], "api: entity"),
        (["--info", "searchpath", "--config-dir", "."], str(Path.cwd())),
        (["--hydra-help"], "launcher"),
    ):
        assert run_train(nothing_runs, arguments) == 0
        assert shown in capsys.readouterr().out
