"""A sweep with stand-ins for its trials' processes: what is drawn, told, pruned, failed and interrupted.

With real processes and real training: test_sweep_processes.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from enn_ppo.settings.config import TrainConfig
from enn_ppo.sweep import sweep as sweeping
from enn_ppo.sweep.command import run_sweep, split
from enn_ppo.sweep.config import SweepConfig
from enn_ppo.sweep.sweep import SweepResult, best_of, import_optuna, open_study, sweep, trials_in
from enn_ppo.training.errors import Interrupted

optuna = pytest.importorskip("optuna", minversion="4")

SPACE = {"optim.lr": {"scale": "log", "low": 1e-4, "high": 1e-2}}
Run = Callable[[TrainConfig], Iterator[float]]


class Process:
    """Runs its trial where it stands, before it returns."""

    def __init__(
        self, run: Callable[[Any], object], configs: Any, log: Path, *, environment: Mapping[str, str]
    ) -> None:
        self.log, self.pid, self._code, self._reason = log, os.getpid(), 0, ""
        try:
            run(configs)
        except Crash as crash:
            self._code, self._reason = -int(str(crash)), f"killed by signal {crash}"
        except Interrupted as interrupted:
            self._code = interrupted.exit_code
        except Exception as error:
            self._code, self._reason = 2, str(error)

    def poll(self) -> int | None:
        return self._code

    def interrupt(self) -> None:
        pass

    kill = interrupt

    def reason(self) -> str:
        return self._reason


class Crash(BaseException):
    """Ends a process without a word to its study."""


class Training:
    """Stands for `train`: its rewards are those that `work` yields, ten in all."""

    def __init__(self, work: Run) -> None:
        self.work = work

    def __call__(self, config: TrainConfig) -> None:
        started.append(config)
        folder = Path(str(config.run_dir))
        for k, value in enumerate(self.work(config), 1):
            row = {"step": k * config.total_timesteps / 10, "episodic_reward": value}
            (folder / "checkpoints/latest").mkdir(parents=True, exist_ok=True)
            with open(folder / "metrics.jsonl", "a") as file:
                file.write(json.dumps(row) + "\n")


started: list[TrainConfig] = []


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sweeping, "JobProcess", Process)
    monkeypatch.setattr(sweeping, "_POLL_INTERVAL", 0.0)
    started.clear()
    monkeypatch.chdir(tmp_path)


def compose(arguments: Sequence[str]) -> TrainConfig:
    config = TrainConfig(seed=5)
    for argument in arguments:
        name, _, value = argument.partition("=")
        section, field = name.split(".")
        config = replace(config, **{section: replace(getattr(config, section), **{field: json.loads(value)})})
    return config


def learning_rate(config: TrainConfig) -> Iterator[float]:
    """A run whose reward is its learning rate, and so every trial is told from the others."""
    return iter([float(config.optim.lr)] * 10)


def fails(config: TrainConfig) -> Iterator[float]:
    raise ValueError("the wall is red")


def run(tmp_path: Path, work: Run = learning_rate, **settings: Any) -> SweepResult:
    config = SweepConfig(**({"space": SPACE, "trials": 3, "sampler": "random", "pruner": "none"} | settings))
    return sweep(config, tmp_path / "s", compose, run=Training(work))


def study_of(tmp_path: Path) -> Any:
    return open_study(SweepConfig(space=SPACE), tmp_path / "s")


def trials(tmp_path: Path) -> list[Any]:
    return study_of(tmp_path).get_trials()


# --- Trials ---


def test_every_trial_draws_its_values_and_the_best_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(tmp_path)
    rates = [float(config.optim.lr) for config in started]
    assert len(set(rates)) == 3 and all(1e-4 <= rate <= 1e-2 for rate in rates)
    assert result.value == pytest.approx(max(rates)) and result.best == rates.index(max(rates))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(";")[0] for line in lines[:3]] == ["1 of 3 done", "2 of 3 done", "3 of 3 done"]
    assert lines[-1].strip() == result.command


def test_a_sweep_can_minimize(tmp_path: Path) -> None:
    result = run(tmp_path, direction="minimize")
    assert result.value == pytest.approx(min(float(config.optim.lr) for config in started))


def test_the_score_of_a_trial_is_the_mean_of_its_seeds_over_the_last_part_of_each(tmp_path: Path) -> None:
    # seed 5 ends with 1, 3 and seed 6 with 5, 7: (2 + 6) / 2
    tails = {5: [0.0] * 8 + [1.0, 3.0], 6: [9.0] * 8 + [5.0, 7.0]}
    assert run(tmp_path, lambda config: iter(tails[config.seed]), trials=1, seeds=2).value == 4.0
    assert [config.seed for config in started] == [5, 6]


def test_as_many_trials_as_asked_for_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = set[Path](), 0

    class Patient(Process):
        """Ends at the third look."""

        looks = 0

        def poll(self) -> int | None:
            nonlocal most
            running.add(self.log)
            most, self.looks = max(most, len(running)), self.looks + 1
            if self.looks < 3:
                return None
            running.remove(self.log)
            return 0

    monkeypatch.setattr(sweeping, "JobProcess", Patient)
    run(tmp_path, trials=5, jobs=2)
    assert most == 2 and len(started) == 5


def test_a_trial_whose_curve_stays_behind_is_given_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def work(config: TrainConfig) -> Iterator[float]:
        return iter([3.0 - len(started)] * 10)  # each trial is worse than those before

    run(tmp_path, work, pruner="median", startup_trials=2, prune_after=0.5)
    assert [made.state.name for made in trials(tmp_path)] == ["COMPLETE", "COMPLETE", "PRUNED"]
    assert max(trials(tmp_path)[2].intermediate_values) == 10  # of 20 points: half the run
    assert "trial 2: pruned: behind the others after 50% of run 1 (best 2, trial 0)" in capsys.readouterr().out


# --- Faults ---


def test_a_trial_that_fails_is_recorded_with_its_reason_and_the_sweep_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(config: TrainConfig) -> Iterator[float]:
        return fails(config) if len(started) == 1 else learning_rate(config)

    result = run(tmp_path, work)
    assert [made.state.name for made in trials(tmp_path)] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert trials(tmp_path)[0].user_attrs["reason"] == "the wall is red"
    assert result.best in (1, 2)
    assert "1 of 3 done; trial 0: failed: the wall is red  optim.lr=" in capsys.readouterr().out


def test_settings_that_are_not_allowed_fail_their_trial_before_it_starts(tmp_path: Path) -> None:
    run(tmp_path, space={"optim.batch_size": [512, 4096]}, trials=6)
    reasons = {made.params["optim.batch_size"]: made.user_attrs.get("reason") for made in trials(tmp_path)}
    assert reasons["512"] is None
    assert reasons["4096"].startswith("optim.batch_size must be at most the 2048 frames")
    assert {config.optim.batch_size for config in started} == {512}


@pytest.mark.parametrize(("asked", "given"), [(2, "all 2 trials failed"), (50, "the first 10 trials failed")])
def test_a_sweep_in_which_everything_fails_says_why(asked: int, given: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{given}; trial 0: the wall is red"):
        run(tmp_path, fails, trials=asked)


def test_a_trial_whose_process_dies_has_failed_and_the_sweep_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(config: TrainConfig) -> Iterator[float]:
        if len(started) == 2:
            raise Crash(11)
        return learning_rate(config)

    run(tmp_path, work)
    assert [made.state.name for made in trials(tmp_path)] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert "2 of 3 done; trial 1: failed: killed by signal 11" in capsys.readouterr().out


def test_a_metric_that_is_not_there_is_named_with_what_is_near(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no column episodic_rewrad; .*did you mean 'episodic_reward'\?"):
        run(tmp_path, metric="episodic_rewrad", trials=1)


def test_a_run_without_a_finished_episode_has_no_score(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="episodic_reward has no value: no episode ended"):
        run(tmp_path, lambda config: iter([float("nan")] * 10), trials=1)


# --- Interruptions ---


def interrupts(number: signal.Signals, *, after: int) -> Run:
    """Runs of which the second is interrupted after some rows; where it goes on, the rest is there."""

    def work(config: TrainConfig) -> Iterator[float]:
        for row in range(10):
            if len(started) == 2 and row == after:
                signal.raise_signal(number)  # reaches the sweep, which asks its trials to end
                raise Interrupted("asked to end", 130)
            yield float(config.optim.lr)

    return work


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_sweep_goes_on_with_the_trial_that_ran(
    number: signal.Signals, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Interrupted, match="the same command goes on with") as error:
        run(tmp_path, interrupts(number, after=3))
    assert error.value.exit_code == code
    assert [made.state.name for made in trials(tmp_path)] == ["COMPLETE", "FAIL", "WAITING"]

    run(tmp_path)
    output = capsys.readouterr().out
    assert "going on: 1 trials are done, 1 were left unfinished" in output and "2 of 3 done; trial 1: 0." in output
    _, stopped, continued, third = started
    assert continued.resume == stopped.run_dir == continued.run_dir and continued.optim == stopped.optim
    assert third.resume is None and third.optim not in (started[0].optim, stopped.optim)
    assert [made.state.name for made in trials_in(study_of(tmp_path), "complete", "fail")] == ["COMPLETE"] * 3


def test_a_trial_of_a_sweep_that_was_killed_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, trials=1)
    made = study_of(tmp_path).ask()
    made.suggest_float("optim.lr", 1e-4, 1e-2, log=True)
    made.set_user_attr("process", 2**22 + 1)  # more than Linux ever gives
    run(tmp_path, trials=2)
    assert "going on: 1 trials are done, 1 were left unfinished" in capsys.readouterr().out
    assert started[1].optim.lr == pytest.approx(made.params["optim.lr"], rel=1e-5)
    assert str(started[1].run_dir).endswith("0001/seed_5")


def test_a_sweep_does_not_work_beside_another_in_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, trials=1)
    study_of(tmp_path).ask().set_user_attr("process", os.getpid())
    monkeypatch.setattr(sweeping, "GRACE", 0.0)
    with pytest.raises(ValueError, match=rf"process {os.getpid()} runs trial 1 of this sweep: wait until"):
        run(tmp_path, trials=2)


def test_seeds_that_are_done_are_not_run_again(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(tmp_path, interrupts(signal.SIGINT, after=0), trials=1, seeds=3)
    run(tmp_path, trials=1, seeds=3)
    assert [config.seed for config in started] == [5, 6, 6, 7]


def test_when_the_minutes_are_up_what_runs_is_stopped_and_goes_on_with_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def work(config: TrainConfig) -> Iterator[float]:
        nonlocal now
        for _ in range(10):
            now += 6.0  # a trial takes a minute
            if now > end:
                raise Interrupted("asked to end", 130)
            yield float(config.optim.lr)

    monkeypatch.setattr(sweeping.time, "monotonic", lambda: now)
    end = 90.0
    run(tmp_path, work, trials=None, minutes=1.5)
    assert [made.state.name for made in trials(tmp_path)] == ["COMPLETE", "FAIL", "WAITING"]
    end = 160.0
    run(tmp_path, work, trials=None, minutes=2.3)
    assert len(trials_in(study_of(tmp_path), "complete")) == 2
    assert {str(config.run_dir)[-11:] for config in started[1:3]} == {"0001/seed_5"}


def test_without_a_complete_trial_in_time_the_error_says_how_to_go_on(tmp_path: Path) -> None:
    def work(config: TrainConfig) -> Iterator[float]:
        yield 1.0
        time.sleep(0.2)
        raise Interrupted("asked to end", 130)

    with pytest.raises(ValueError, match=r"no trial was complete when the budget was used up.*more sweep\.minutes"):
        run(tmp_path, work, trials=None, minutes=0.002)


def test_a_finished_sweep_does_nothing_more_but_takes_more_trials(tmp_path: Path) -> None:
    first = run(tmp_path)
    assert run(tmp_path) == first and len(started) == 3
    run(tmp_path, trials=4, jobs=2)
    assert len({config.optim.lr for config in started}) == 4  # and draws nothing twice


# --- The folder ---


def test_another_sweep_in_the_folder_is_not_mixed_with_this_one(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(ValueError, match=r"holds a sweep with other settings: sweep\.seeds 1, now 2; give another"):
        run(tmp_path, seeds=2)
    config = SweepConfig(space=SPACE, trials=2, seeds=2, sampler="random")
    sweep(config, tmp_path / "s", compose, run=Training(learning_rate), overwrite=True)
    assert len(trials(tmp_path)) == 2


def test_a_study_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    run(tmp_path, trials=1)
    (tmp_path / "s/study.db").write_bytes(b"no database")
    with pytest.raises(ValueError, match=r"s/study\.db cannot be written: file is not a database"):
        run(tmp_path, trials=2)


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s/thesis.tex").touch()
    with pytest.raises(ValueError, match=r"s holds something that is no sweep: give another run_dir"):
        sweep(SweepConfig(space=SPACE), tmp_path / "s", compose, overwrite=True)


def test_an_optuna_that_is_too_old_or_missing_is_told_with_the_command_that_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optuna, "__version__", "2.10.1")
    with pytest.raises(ValueError, match=r'needs optuna 4 or newer.*has 2\.10\.1.*pip install "enn-ppo\[sweep\]"'):
        import_optuna()
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match=r'needs optuna: pip install "enn-ppo\[sweep\]"'):
        import_optuna()


def test_the_best_trial_has_a_file_with_all_its_settings(tmp_path: Path) -> None:
    result = run(tmp_path)
    text = (tmp_path / "s/experiment/best.yaml").read_text()
    values = yaml.safe_load(text)
    best = best_of(study_of(tmp_path))
    assert best is not None and best.number == result.best
    assert f"optim.lr={values['optim']['lr']}" == best.user_attrs["arguments"][0]
    assert text.startswith("# @package _global_\n") and "run_dir" not in values and values["seed"] == 5


# --- The command line ---


def command(*arguments: str) -> tuple[int, list[tuple[Any, ...]]]:
    """The exit code, and what the sweep was called with."""
    calls: list[tuple[Any, ...]] = []
    code = run_sweep(lambda *given, **named: calls.append((*given, named)), list(arguments))
    return code, calls


def test_the_command_tells_its_own_arguments_from_those_of_training(tmp_path: Path) -> None:
    code, ((config, folder, compose_training, named),) = command(
        "env=Xor", "sweep.trials=7", "optim.weight_decay=0.1", "sweep.jobs=2", "run_dir=out/mine", "overwrite=true"
    )
    assert code == 0
    assert (config.trials, config.jobs, folder) == (7, 2, Path("out/mine"))
    assert named == {"arguments": ["env=Xor", "optim.weight_decay=0.1"], "overwrite": True}
    training = compose_training(["optim.lr=0.005", "env.kwargs.max_steps=3"])
    assert (training.optim.lr, training.optim.weight_decay, training.env.kwargs) == (0.005, 0.1, {"max_steps": 3})


def test_a_file_of_ones_own_gives_the_space_and_arguments_and_the_folder_its_name(tmp_path: Path) -> None:
    (tmp_path / "ppo.yaml").write_text("train: [env=Xor, seed=3]\nspace:\n  optim.lr: [0.1, 0.2]\ntrials: 4\n")
    code, ((config, folder, compose_training, named),) = command("sweep=ppo.yaml", "seed=4", "sweep.seeds=2")
    assert (code, folder) == (0, Path("outputs/Xor/sweep_ppo"))
    assert (config.trials, config.seeds, [p.name for p in config.parameters]) == (4, 2, ["optim.lr"])
    assert compose_training([]).seed == 4 and named["arguments"] == ["env=Xor", "seed=4"]


@pytest.mark.parametrize("name", ["ppo", "net"])
def test_every_space_that_comes_with_the_project_composes_at_both_ends(name: str) -> None:
    code, ((config, _, compose_training, _),) = command(f"sweep={name}")
    assert code == 0

    class Ends:
        def __init__(self, end: int) -> None:
            self.end = end

        def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
            return (low, high)[self.end]

        def suggest_int(self, name: str, low: int, high: int) -> int:
            return (low, high)[self.end]

        def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
            return choices[-self.end]

    for end in (0, 1):
        assert compose_training([parameter.suggest(Ends(end)) for parameter in config.parameters])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["sweep=pop"],
            r"sweep=pop is not a choice;.*did you mean 'ppo'\?; for a file of your own: sweep=my_sweep\.yaml",
        ),
        (["sweep=nowhere.yaml"], r"there is no file nowhere\.yaml"),
        (["sweep.jobs=2000"], r"sweep\.jobs must be an integer of at least 1 and at most 1024, got 2000"),
        (["sweep=[]"], r"sweep=\[\]: sweep takes the name of one file"),
        (["sweep.trails=3"], r"sweep\.trails is not a setting.*did you mean 'sweep\.trials'\?"),
        (["optim.lrr=3"], r"optim\.lrr is not a setting.*did you mean 'optim\.lr'\?"),
        (["optim.lr=0.1"], r"optim\.lr is given for all trials, and sweep\.space varies it"),
        (["sweep.metric=eval/episodic_reward"], r"needs evaluations during training: add eval\.interval"),
        (["sweep=default"], r"sweep\.space must say which settings are varied"),
        (["--multirun"], r"--multirun does not go with a sweep"),
        (["resume=out/a"], r"resume=out/a does not go with a sweep: a sweep goes on with the same command"),
        (["jobs=2"], r"jobs=2 does not go with a sweep: trials at a time are sweep\.jobs"),
    ],
)
def test_a_mistake_is_found_before_the_first_trial(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*arguments) == (2, [])
    output = capsys.readouterr()
    assert output.err.startswith("error: ") and output.err.count("\n") == 1
    assert re.search(message, output.err)
    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_parameter_in_a_file_is_found_before_the_first_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("space:\n  optim.lrr: [0.1, 0.2]\n")
    assert command("sweep=mine.yaml")[0] == 2
    assert "optim.lrr is not a setting" in capsys.readouterr().err


def test_a_setting_that_a_file_has_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("trials: 2\nspace:\n  optim.lr: [0.1, 0.2]\n  optim.lr: [0.3, 0.4]\n")
    assert command("sweep=mine.yaml")[0] == 2
    assert "mine.yaml cannot be read" in (said := capsys.readouterr().err) and "duplicate key optim.lr" in said


@pytest.mark.parametrize("flag", [["--help"], ["--cfg", "job"]])
def test_help_and_settings_are_shown_without_a_sweep(flag: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(*flag) == (0, [])
    assert "startup_trials" in capsys.readouterr().out


def test_what_begins_with_a_dash_goes_to_both(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    own, training = split(["--config-dir", "mine", "sweep=a", "env=Maze", "+env.kwargs.x=1", "debug=true"])
    assert own.config_dir == training.config_dir == Path("mine")
    assert own.overrides == ["sweep=a", "debug=true"]
    assert training.overrides == ["env=Maze", "+env.kwargs.x=1"]


def test_trials_are_counted_by_their_state(tmp_path: Path) -> None:
    run(tmp_path, lambda config: fails(config) if len(started) == 1 else learning_rate(config))
    made = study_of(tmp_path)
    assert [len(trials_in(made, state)) for state in ("complete", "fail", "pruned", "running")] == [2, 1, 0, 0]
