"""The command line with a stand-in for the trainer: settings, mistakes, exit codes, resuming."""

from __future__ import annotations

import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from enn_ppo.checkpoints import CheckpointError, Retention, load_checkpoint, save_checkpoint
from enn_ppo.settings.command_line import mistakes
from enn_ppo.settings.command_line.cli import run_eval, run_train
from enn_ppo.settings.config import EnvConfig, EvalConfig, OptimConfig, RolloutConfig, TrainConfig
from enn_ppo.settings.presets import preset
from enn_ppo.settings.schema import to_dict
from enn_ppo.training.errors import Interrupted
from entity_gym.pools.processes.handle import WorkerDied
from tests.enn_ppo.forged import sealed
from tests.entity_gym.envs.minesweeper_python import PythonMineSweeper


class Runs:
    """Remembers the configs it is run with, and does what it was told to do for each."""

    def __init__(self, *actions: Callable[[TrainConfig], object]) -> None:
        self.configs: list[TrainConfig] = []
        self._actions = list(actions)

    def __call__(self, config: TrainConfig) -> None:
        self.configs.append(config)
        if self._actions:
            self._actions.pop(0)(config)


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mistake(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the trainer's command line with a mistake, and return the paragraph."""

    def run(*arguments: str) -> str:
        runs = Runs()
        assert run_train(runs, list(arguments)) == 2
        assert runs.configs == []
        return paragraph(capsys)

    return run


def paragraph(capsys: pytest.CaptureFixture[str]) -> str:
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ") and output.err.count("\n") == 1, output.err
    return output.err


def composed(*arguments: str) -> TrainConfig:
    runs = Runs()
    assert run_train(runs, list(arguments)) == 0
    (config,) = runs.configs
    return config


def raises(error: BaseException) -> Callable[[TrainConfig], object]:
    def action(config: TrainConfig) -> object:
        raise error

    return action


# --- Settings ---


def test_without_arguments_a_command_has_the_defaults_of_the_classes() -> None:
    config = composed("run_dir=a")
    assert config == TrainConfig(env=config.env, run_dir="a")
    assert config.env.id == EnvConfig().id
    defaults = {name: p.default for name, p in inspect.signature(PythonMineSweeper).parameters.items()}
    assert config.env.kwargs == defaults


def test_an_evaluation_has_the_defaults_of_its_class() -> None:
    seen: list[EvalConfig] = []
    assert run_eval(seen.append, ["checkpoint=a"]) == 0
    assert seen == [EvalConfig(checkpoint="a")]


def test_values_groups_and_experiments_are_set_from_the_command_line() -> None:
    config = composed("env=MineSweeper", "env.kwargs.width=9", "optim.lr=3e-4", "seed=7", "experiment=quick")
    assert (config.env.kwargs["width"], config.optim.lr, config.seed) == (9, 3e-4, 7)
    assert (config.rollout.num_envs, config.rollout.steps, config.total_timesteps) == (32, 16, 8192)


def test_a_world_of_ones_own_takes_any_argument_without_a_plus_sign() -> None:
    config = composed("env=custom", "env.id=my_pkg.my_env:MyEnv", "env.kwargs.size=8", "env.kwargs.deep.x=[1,2]")
    assert config.env == EnvConfig(id="my_pkg.my_env:MyEnv", kwargs={"size": 8, "deep": {"x": [1, 2]}})


def test_a_round_number_of_steps_may_be_written_short() -> None:
    assert composed("total_timesteps=1e6").total_timesteps == 1_000_000


def test_a_run_directory_is_named_after_the_world_and_the_time() -> None:
    assert re.fullmatch(r"outputs/MineSweeper/\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", str(composed().run_dir))
    assert composed("run_dir=out/a").run_dir == "out/a"


def test_hydra_writes_nothing_and_stays_where_it_is(tmp_path: Path) -> None:
    places: list[str] = []
    assert run_train(lambda config: places.append(os.getcwd()), []) == 0
    assert places == [str(tmp_path)]
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_ones_own_adds_choices(tmp_path: Path) -> None:
    (tmp_path / "mine/env").mkdir(parents=True)
    (tmp_path / "mine/env/Maze.yaml").write_text("id: maze:Maze\nkwargs: {size: 3}\n")
    (tmp_path / "mine/net").mkdir()
    (tmp_path / "mine/net/large.yaml").write_text("d_model: 64\n")
    config = composed("--config-dir", "mine", "env=Maze", "env.kwargs.size=4", "+net=large", "~experiment", "seed=1e2")
    assert config.env == EnvConfig(id="maze:Maze", kwargs={"size": 4})
    assert (config.net.d_model, config.seed) == (64, 100)


@pytest.mark.parametrize(
    "name",
    ["with space", "lr=0.1,run", "新加卷", "50%", "a#b", "[x]", "it's", "~x", "{k}", "$HOME", "tab\tx", "🙂", 'say "hi"',
     "back\\slash", "end\\", "a\\'b", "1e3", "true", "a -> b"],
)  # fmt: skip
def test_folders_may_have_any_name(name: str) -> None:
    config = composed(f"run_dir={name}", "env=custom", "env.id=a:B", f"env.kwargs.path=out/{name}")
    assert config.run_dir == name and config.env.kwargs == {"path": f"out/{name}"}
    assert preset("Xor", run_dir=Path(name)).run_dir == name


@pytest.mark.parametrize("arguments", [["--cfg", "job", "seed=3"], ["--help"], ["--version"]])
def test_flags_that_show_something_train_nothing(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs()
    assert run_train(runs, arguments) == 0
    output = capsys.readouterr()
    assert runs.configs == [] and output.err == "" and output.out != ""
    if "--cfg" in arguments:
        assert yaml.safe_load(output.out)["seed"] == 3


def test_the_arguments_of_the_process_are_used_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train", "seed=5"])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    runs = Runs()
    assert run_train(runs) == 0
    assert runs.configs[0].seed == 5
    assert sys.argv == ["train", "seed=5"]
    assert "HYDRA_FULL_ERROR" not in os.environ


# --- Mistakes ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["env=Foo"], r"env=Foo .*'MineSweeper', .*'custom'.*env=custom env\.id="),
        (["experiment=qick"], r"experiment=qick .*did you mean 'quick'\?"),
        (["optim.lrr=1"], r"optim\.lrr is not a setting.*did you mean 'optim\.lr'\?"),
        (["+optim.lrr=1"], r"optim\.lrr is not a setting.*did you mean 'optim\.lr'\?"),
        (["lr=1"], r"lr is not a setting.*did you mean 'optim\.lr'\?"),
        (["experimnt=quick"], r"did you mean 'experiment'\?"),
        (["env.kwargs.widht=8"], r"env\.kwargs\.widht .*did you mean 'env\.kwargs\.width'\?.*\+env\.kwargs\.widht"),
        (["optim.lr"], r"'optim\.lr' cannot be read: missing EQUAL"),
        (["optim.lr=[1"], r"'optim\.lr=\[1' cannot be read"),
        (["optim.lr=${nothing}"], r"optim\.lr=\$\{nothing\}|Interpolation key 'nothing' not found"),
        (["env=MineSweeper,custom"], r"Ambiguous value .*env=MineSweeper,custom.*--multirun"),
        (["env=custom"], r"env\.id has no value.*env\.id=my_pkg\.my_env:MyEnv"),
        (["resume=nowhere"], r"nowhere"),
        (["--config-dir", "nowhere"], r"'.*nowhere' not found"),
        (["net=null"], r"net must be a mapping of settings, got None"),
        (["hydra/launcher=joblib"], r"hydra/launcher=joblib is a setting of Hydra .*: add --multirun"),
        (["--multirun", "hydra/launcher=jobli"], r"hydra/launcher=jobli is not a choice; allowed: 'basic'"),
        (["--hydra-help"], r"unrecognized arguments: --hydra-help; settings are written name=value"),
        (["num_threads=1000000000"], r"num_threads must be .*at most 1024 or null, got 1000000000"),
        (["seed=1e30"], r"seed must be an integer of at least 0 and at most 9\.22337e\+18, got 1000"),
        (["env=[]"], r"env=\[\]: env takes the name of one file, not a list"),
        (["env=[Count,Xor]"], r"env=\[Count,Xor\]: env takes the name of one file"),
    ],
)
def test_a_mistake_gives_one_paragraph_and_exit_code_2(
    arguments: list[str], message: str, mistake: Callable[..., str]
) -> None:
    assert re.search(message, mistake(*arguments))


@pytest.mark.parametrize(
    "argument",
    [
        *(f"{name}={'x' * 50_000}" for name in ("env", "optim.lr")),
        f"{'x' * 50_000}=1",
        f"env.kwargs.{'x' * 50_000}=1",
        f"env.kwargs.a={'[' * 500}{']' * 500}",
        f"seed={'[' * 500}{']' * 500}",
        f"env.kwargs={'{a: ' * 300}1{'}' * 300}",
        f"env.kwargs.{'a.' * 500}a=1",
        f"env.kwargs.a={'9' * 5000}",
        f"--config-dir={'x' * 50_000}",
    ],
    ids=lambda argument: argument[:30],
)
def test_long_and_deep_arguments_are_refused_in_one_short_paragraph(argument: str, mistake: Callable[..., str]) -> None:
    named = argument.lstrip("+-").partition("=")[0][:20]
    message = mistake(argument)
    assert len(message) <= 1010 and named in message


def test_a_setting_that_a_file_of_ones_own_has_twice_is_refused(tmp_path: Path, mistake: Callable[..., str]) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env/mine.yaml").write_text("id: Xor\nkwargs: {a: 1, a: 2}\n")
    assert "found duplicate key a" in mistake("--config-dir", str(tmp_path), "env=mine")


def test_an_evaluation_without_a_checkpoint_says_what_to_add(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_eval(lambda config: None, []) == 2
    assert "checkpoint has no value, and no default: add checkpoint=<run directory" in paragraph(capsys)


def test_a_key_of_training_is_unknown_to_an_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_eval(lambda config: None, ["checkpoint=a", "episode=3"]) == 2
    assert "episode is not a setting" in (text := paragraph(capsys)) and "did you mean 'episodes'?" in text


def noted(error: BaseException, *notes: str) -> BaseException:
    for note in notes:
        error.add_note(note)
    return error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("the wall\n\n  is red"), 2, "error: the wall is red"),
        (CheckpointError("the wall\nis red"), 2, "error: the wall is red"),
        (
            noted(ValueError("the wall is red"), "raised by House (environment 3) in act()", "(job seed=1)"),
            2,
            "error: the wall is red; raised by House (environment 3) in act() (job seed=1)",
        ),
        (  # no bug of ours, and no mistake of the user
            WorkerDied("worker 1 was killed", 1, -9, range(2)),
            1,
            "error: worker 1 was killed; go on from the last checkpoint with resume=<run directory>",
        ),
        (Interrupted("saved to out/a"), 130, "saved to out/a"),
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
    assert run_train(Runs(raises(error)), []) == code
    assert capsys.readouterr() == ("", f"{said}\n")


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    for runs, arguments in ((Runs(raises(ValueError("red"))), ["debug=true"]), (Runs(), ["debug=true", "optim.lrr=1"])):
        assert run_train(runs, arguments) == 2
        errors = capsys.readouterr().err
        assert "Traceback" in errors and errors.splitlines()[-1].startswith("error: ")


def test_an_unexpected_error_keeps_its_traceback_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_train(Runs(raises(TypeError("a bug"))), []) == 1
    errors = capsys.readouterr().err
    assert errors.splitlines()[-1] == "TypeError: a bug"
    assert "hydra" not in errors


# --- Resuming ---


def saved_run(tmp_path: Path, **changes: Any) -> TrainConfig:
    """A checkpoint in out/a, of a run with settings that are not the defaults."""
    settings: dict[str, Any] = {
        "env": EnvConfig(kwargs={"width": 8, "height": 4}),
        "rollout": RolloutConfig(num_envs=64, steps=8),
        "optim": OptimConfig(lr=5e-5, batch_size=128),
        "seed": 9,
        "run_dir": "elsewhere",
        "overwrite": True,
    }
    config = TrainConfig(**(settings | changes))
    directory = tmp_path / "out/a/checkpoints"
    retention = Retention(keep_last=1)
    save_checkpoint(directory, 64, policy={}, config=to_dict(config), spaces={}, trainer={}, retention=retention)
    return config


def test_resuming_takes_the_saved_settings_and_the_directory_of_the_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = to_dict(saved_run(tmp_path))
    for path in ("out/a", "out/a/checkpoints/latest", "out/a/checkpoints/step_000000000064"):
        expected = saved | {"run_dir": "out/a", "resume": path, "overwrite": False}
        assert to_dict(composed(f"resume={path}")) == expected
    assert capsys.readouterr().err == ""


def test_resuming_applies_only_what_is_typed_now_and_says_what_that_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = to_dict(saved_run(tmp_path))
    config = to_dict(composed("resume=out/a", "total_timesteps=900000", "optim.lr=1e-3", "seed=9", "run_dir=out/b"))
    saved["optim"]["lr"] = 1e-3
    assert config == saved | {"run_dir": "out/b", "resume": "out/a", "overwrite": False, "total_timesteps": 900_000}
    note = capsys.readouterr().err
    assert "optim.lr 5e-05 -> 0.001" in note and "total_timesteps 500000 -> 900000" in note
    assert "seed" not in note and "run_dir" not in note and note.count("\n") == 1


def test_a_group_choice_typed_while_resuming_sets_what_its_file_holds_even_defaults(tmp_path: Path) -> None:
    saved_run(tmp_path)
    config = composed("resume=out/a", "experiment=quick", "optim.epochs=7")
    assert (config.rollout, config.total_timesteps) == (RolloutConfig(num_envs=32, steps=16), 8192)
    assert config.optim == OptimConfig(lr=5e-5, batch_size=256, epochs=7)
    assert composed("resume=out/a", "env=MineSweeper").env.kwargs["width"] == 6


def test_another_world_typed_while_resuming_does_not_inherit_the_arguments_of_the_first(tmp_path: Path) -> None:
    saved_run(tmp_path)
    config = composed("resume=out/a", "env=custom", "env.id=maze:Maze", "env.kwargs.size=3")
    assert config.env == EnvConfig(id="maze:Maze", kwargs={"size": 3})


def test_a_world_of_the_same_name_and_another_interface_is_another_world_while_resuming(tmp_path: Path) -> None:
    saved_run(tmp_path, env=EnvConfig(id="CartPole-v1", kwargs={"max_steps": 9}))
    config = composed("resume=out/a", "env=gymnasium", "env.id=CartPole-v1")
    assert config.env == EnvConfig(id="CartPole-v1", api="gymnasium")
    saved_run(tmp_path, env=EnvConfig(id="CartPole-v1", api="gymnasium"))
    assert composed("resume=out/a", "env=CartPole-v1").env.api == "entity"


def test_arguments_of_ones_own_world_are_kept_and_changed_while_resuming(tmp_path: Path) -> None:
    saved_run(tmp_path, env=EnvConfig(id="maze:Maze", kwargs={"size": 3, "deep": {"x": 1, "y": 2}}))
    config = composed("resume=out/a", "env=custom", "env.kwargs.size=4", "env.kwargs.deep.x=5")
    assert config.env == EnvConfig(id="maze:Maze", kwargs={"size": 4, "deep": {"x": 5, "y": 2}})


def test_a_checkpoint_with_an_unknown_setting_is_named(tmp_path: Path, mistake: Callable[..., str]) -> None:
    saved_run(tmp_path)
    checkpoint = load_checkpoint(tmp_path / "out/a")
    sealed(checkpoint.path, config={**checkpoint.config, "sed": 1})
    assert re.search(r"sed is not a setting.*in the settings of checkpoint .*step_0+64", mistake("resume=out/a"))


def test_a_half_written_checkpoint_is_named(tmp_path: Path, mistake: Callable[..., str]) -> None:
    saved_run(tmp_path)
    (file,) = (tmp_path / "out/a/checkpoints").glob("step_*/trainer.pt")
    file.unlink()
    assert re.search(r"step_0+64 is half-written: trainer\.pt is missing", mistake("resume=out/a"))


def test_a_mapping_that_takes_any_name_may_be_written_as_a_whole() -> None:
    config = composed("env.info={num_mines: [3, 4]}", "env.kwargs={width: 7}")
    assert config.env.info == {"num_mines": [3, 4]}
    assert (config.env.kwargs["width"], config.env.kwargs["height"]) == (7, 6)


def test_an_empty_resume_is_no_directory(mistake: Callable[..., str]) -> None:
    assert "resume must be a text or null, got ''" in mistake("resume=")


def test_our_warnings_are_one_line_while_a_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    def warn(config: TrainConfig) -> None:
        warnings.warn_explicit("the file is short", UserWarning, mistakes.__file__, 1)
        warnings.warn_explicit("mind the gap", UserWarning, "somebody/elses.py", 7)

    shown_by = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run_train(Runs(warn), []) == 0
    assert warnings.showwarning is shown_by
    first, second = capsys.readouterr().err.splitlines()[:2]
    assert first == "warning: the file is short"
    assert second == "somebody/elses.py:7: UserWarning: mind the gap"
