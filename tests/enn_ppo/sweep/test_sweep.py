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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from enn_ppo import sweep as sweeping
from enn_ppo.settings.command_line.cli import run_sweep
from enn_ppo.settings.config import TrainEvalConfig
from enn_ppo.settings.sweeping import SweepCommand, SweepConfig, check_space
from enn_ppo.sweep import best_of, count_done, open_study, suggest, sweep
from enn_ppo.training.errors import Interrupted
from entity_gym.pools.processes.worker import WorkerDied

optuna = pytest.importorskip("optuna", minversion="4")

SPACE = {"optim.lr": {"scale": "log", "low": 1e-4, "high": 1e-2}}
Values = dict[str, str]
Work = Callable[[Values], Iterator[float]]


class Process:
    """A trainer that writes a row at each look; its ten rewards, or its error, are those of `work`."""

    pid, returncode = 2**22 + 1, None

    def __init__(self, work: Work, values: Values, run_dir: Path) -> None:
        self._rewards, self._rows, self._file = work(values), 0, run_dir / "metrics.jsonl"
        run_dir.mkdir(parents=True)
        self._log = run_dir.with_suffix(".log")

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                reward = next(self._rewards)
            except StopIteration:
                self.returncode = 0
            except WorkerDied:
                self.returncode = -9
            except ValueError as error:
                self.returncode = 2
                self._log.write_text(f"training\nerror: {error}\n\n")
            else:
                self._rows += 1
                with open(self._file, "a") as file:
                    file.write(json.dumps({"step": 100 * self._rows, "episodic_reward": reward}) + "\n")
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.returncode = 130 if self.returncode is None else self.returncode

    def kill(self) -> None:
        pass

    def wait(self, timeout: float = 0.0) -> None:
        self.returncode = self.returncode if self.returncode is not None else -9


started: list[Values] = []


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sweeping, "LOOK", 0.0)
    started.clear()
    monkeypatch.chdir(tmp_path)


def learning_rate(values: Values) -> Iterator[float]:
    """A run whose reward is its learning rate, and so every trial is told from the others."""
    return iter([float(values["optim.lr"])] * 10)


def fails(values: Values) -> Iterator[float]:
    raise ValueError("the wall is red")
    yield 0.0


def run(work: Work = learning_rate, **settings: Any) -> Any:
    """Sweep in the folder `s`, and return the study."""

    def start(command: Sequence[str], **options: Any) -> Process:
        started.append(dict(argument.split("=", 1) for argument in command[3:]))
        return Process(work, started[-1], Path(started[-1].pop("run_dir")))

    config = SweepConfig(**({"space": SPACE, "trials": 3, "pruner": "none"} | settings))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeping.subprocess, "Popen", start)
        return sweep(SweepCommand(sweep=config, seed=5, total_timesteps=1000, run_dir="s"), ["env=Xor"])


def states() -> list[str]:
    return [trial.state.name for trial in open_study(SweepConfig(space=SPACE), Path("s"), ["env=Xor"]).trials]


def test_every_trial_draws_its_values_and_the_best_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    study = run()
    rates = [float(values["optim.lr"]) for values in started]
    assert len(set(rates)) == 3 and all(1e-4 <= rate <= 1e-2 for rate in rates)
    assert all(values["env"] == "Xor" for values in started)
    best = best_of(study)
    assert best is not None and best.value == pytest.approx(max(rates)) and best.number == rates.index(max(rates))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 trials, 3 to go; none is pruned"
    assert [line.split(":")[0] for line in lines[1:4]] == ["trial 0", "trial 1", "trial 2"]
    assert lines[-1] == f"  python -m enn_ppo.train env=Xor optim.lr={max(rates):.6g}"

    run(trials=4)  # goes on, and draws nothing twice
    assert len({values["optim.lr"] for values in started}) == len(started) == 4


def test_a_sweep_can_minimize_with_trials_side_by_side() -> None:
    best = best_of(run(metric="-episodic_reward", trials=5, jobs=2))
    assert best is not None and best.value == pytest.approx(min(float(values["optim.lr"]) for values in started))
    assert len(started) == 5


def test_the_score_of_a_trial_is_the_mean_of_its_seeds_over_the_last_part_of_each() -> None:
    # seed 5 ends with 1, 3 and seed 6 with 5, 7: (2 + 6) / 2
    tails = {"5": [0.0] * 8 + [1.0, 3.0], "6": [9.0] * 8 + [5.0, 7.0]}
    best = best_of(run(lambda values: iter(tails[values["seed"]]), trials=1, seeds=2))
    assert best is not None and best.value == 4.0
    assert [values["seed"] for values in started] == ["5", "6"]
    # both runs were reported at their half (points 10 and 30 of 20 each): 0, and (2 + 9) / 2
    assert (best.intermediate_values[10], best.intermediate_values[30]) == (0.0, 5.5)


def test_evaluations_count_at_the_step_of_what_they_evaluate_and_time_is_progress_too(tmp_path: Path) -> None:
    config = SweepConfig(space=SPACE, metric="eval/episodic_reward")
    command = SweepCommand(sweep=config, total_timesteps=1000, eval=TrainEvalConfig(interval=100))
    rows = [{"step": 300, "seconds": 9.0, "eval/step": 200, "eval/episodic_reward": 0.5}, {"step": 400, "loss": 1.0}]
    (tmp_path / "rows").write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert sweeping.learning_curve(tmp_path / "rows", command) == [(0.2, 0.5)]


def test_a_trial_whose_curve_stays_behind_is_given_up_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    run(lambda values: iter([9.0 - len(started)] * 10), pruner="median", trials=6)  # each is worse than those before
    assert states() == ["COMPLETE"] * 5 + ["PRUNED"]
    said = capsys.readouterr().out
    assert said.startswith("6 trials, 6 to go; pruning begins once 5 are complete\n")
    assert "trial 5: pruned: behind the others after 25% of seed_5 (best 8, trial 0)  optim.lr=" in said


# --- Faults ---


def test_a_trial_that_fails_is_told_with_its_reason_and_the_sweep_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def work(values: Values) -> Iterator[float]:
        if len(started) == 2:
            raise WorkerDied
        yield from fails(values) if len(started) == 1 else learning_rate(values)

    study = run(work)
    assert states() == ["FAIL", "FAIL", "COMPLETE"] and count_done(study) == 1
    output = capsys.readouterr().out
    assert "trial 0: failed: the wall is red  optim.lr=" in output
    assert "trial 1: failed: was killed by SIGKILL (signal 9)" in output


def test_a_sweep_in_which_everything_fails_says_where_to_look() -> None:
    with pytest.raises(ValueError, match=r"no trial was complete; what they printed is in s/trials"):
        run(fails, trials=2)
    assert len(started) == 2


def test_a_metric_without_values_is_named_with_what_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no trial was complete"):
        run(metric="episodic_rewrad", trials=1)
    said = capsys.readouterr().out
    assert re.search(r"episodic_rewrad has no value in.*did you mean 'episodic_reward'\?", said)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_sweep_goes_on_with_a_trial_in_place_of_that_which_ran(number: int, code: int) -> None:
    def work(values: Values) -> Iterator[float]:
        for row in range(10):
            if len(started) == 2 and row == 3:
                signal.raise_signal(number)
            yield float(values["optim.lr"])

    with pytest.raises(Interrupted, match="the same command goes on with s") as error:
        run(work)
    assert error.value.exit_code == code and len(started) == 2
    study = run()
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert count_done(study) == 3


def test_an_interruption_is_told_while_the_last_trials_run_and_whatever_has_failed_before() -> None:
    def work(values: Values) -> Iterator[float]:
        if len(started) <= 2:
            yield from fails(values)
        if values is started[2]:
            os.kill(os.getpid(), signal.SIGINT)
        for _ in range(200):  # until the main thread has seen it
            time.sleep(0.01)
            yield 1.0

    with pytest.raises(Interrupted, match="the same command goes on with s"):
        run(work, trials=4, jobs=2)
    assert states() == ["FAIL"] * 4


def test_a_trial_of_a_sweep_that_was_killed_is_not_waited_for() -> None:
    run(trials=1).ask()
    assert [trial.state.name for trial in run(trials=2).trials] == ["COMPLETE", "FAIL", "COMPLETE"]


# --- The folder ---


def test_another_sweep_in_the_folder_is_not_mixed_with_this_one() -> None:
    run(trials=1)
    with pytest.raises(ValueError, match=r"s holds a sweep with other settings: sweep\.seeds 1, now 2; give another"):
        run(seeds=2)


def test_a_missing_optuna_is_told_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match=r'needs optuna: pip install "enn-ppo\[sweep\]"'):
        run()


# --- The command line ---


def command(*arguments: str) -> tuple[int, list[tuple[SweepCommand, list[str]]]]:
    """The exit code, and what the sweep was called with."""
    calls: list[tuple[SweepCommand, list[str]]] = []
    return run_sweep(lambda *given: calls.append(given), list(arguments)), calls


def test_the_command_passes_on_the_arguments_of_training() -> None:
    given = ("env=Xor", "sweep.trials=7", "optim.weight_decay=0.1", "sweep=net", "run_dir=out/mine")
    code, ((config, arguments),) = command(*given)
    assert (code, config.sweep.trials, config.run_dir, config.optim.weight_decay) == (0, 7, "out/mine", 0.1)
    assert "net.d_model" in config.sweep.space and arguments == ["env=Xor", "optim.weight_decay=0.1"]
    assert command("env=Xor")[1][0][0].run_dir == "outputs/sweep_Xor"


def test_a_space_of_ones_own_is_a_file_in_a_folder_of_ones_own() -> None:
    Path("mine/sweep").mkdir(parents=True)
    Path("mine/sweep/rates.yaml").write_text("space:\n  optim.lr: [0.1, 0.2]\ntrials: 4\n")
    code, ((config, arguments),) = command("--config-dir", "mine", "sweep=rates", "sweep.seeds=2")
    assert (code, config.sweep) == (0, SweepConfig(space={"optim.lr": [0.1, 0.2]}, trials=4, seeds=2))
    assert arguments == ["--config-dir", "mine"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep=pop"], r"sweep=pop is not a choice;.*did you mean 'ppo'\?"),
        (["sweep.jobs=2000"], r"sweep\.jobs must be an integer, in \[1, 1024\], got 2000"),
        (["sweep.trails=3"], r"sweep\.trails is not a setting.*did you mean 'sweep\.trials'\?"),
        (
            ["sweep=ppo", "sweep.space={optim.lrr: [1, 2]}"],
            r"Could not override 'sweep\.space'.* \+sweep\.space={optim\.lrr",
        ),
        (["sweep.space=7"], r"sweep\.space must be a mapping, got 7"),
        (["sweep.pruner=medain"], r"sweep\.pruner is 'medain'.*did you mean 'median'\?"),
        (["optim.lrr=3"], r"optim\.lrr is not a setting.*did you mean 'optim\.lr'\?"),
        (["sweep.metric=-eval/episodic_reward"], r"needs evaluations while training: eval\.interval"),
        (["--multirun"], r"--multirun is for commands that train or evaluate"),
        (["resume=out/a"], r"resume and overwrite do not go with a sweep: the same command goes on"),
    ],
)
def test_a_mistake_is_found_before_the_first_trial(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*arguments) == (2, [])
    output = capsys.readouterr()
    assert output.err.startswith("error: ") and output.err.count("\n") == 1
    assert re.search(message, output.err)
    assert list(Path().iterdir()) == []


def test_a_setting_that_is_varied_is_not_given_for_all_trials(tmp_path: Path) -> None:
    varied = SweepCommand(run_dir=str(tmp_path / "sweep"), sweep=SweepConfig(space={"optim.lr": [0.1, 0.2]}))
    with pytest.raises(ValueError, match=r"optim\.lr=0\.1 is given for all trials, and sweep\.space varies it"):
        sweep(varied, ["env=Xor", "optim.lr=0.1"])
    assert not (tmp_path / "sweep").exists()


# --- The search space ---


Float, Int, Choice = (getattr(optuna.distributions, f"{kind}Distribution") for kind in ("Float", "Int", "Categorical"))


@pytest.mark.parametrize(
    ("given", "value", "text", "distribution"),
    [
        ({"low": 0.25, "high": 1}, 0.25, "0.25", Float(0.25, 1.0)),
        ({"scale": "log", "low": "1e-4", "high": 0.01}, 1e-4, "0.0001", Float(1e-4, 0.01, log=True)),
        ({"scale": "integer", "low": 1, "high": 6}, 6, "6", Int(1, 6)),
        ([None, True, 3, 0.5, "default"], "null", "null", Choice(("null", "true", "3", "0.5", "default"))),
        ([[5, 5], {"a": 7}], "{a:7}", "{a:7}", Choice(("[5,5]", "{a:7}"))),
        (["0.1@0 -> 0@1", "it's"], r"'it\'s'", r"'it\'s'", Choice(("'0.1@0 -> 0@1'", r"'it\'s'"))),
    ],
)
def test_each_scale_draws_what_it_says(given: Any, value: Any, text: str, distribution: object) -> None:
    check_space({name: given for name in ("optim.lr", "value_net", "env.kwargs.size", "experiment")})
    trial = optuna.trial.FixedTrial({"optim.lr": value})
    assert suggest(trial, "optim.lr", given) == f"optim.lr={text}"
    assert trial.distributions == {"optim.lr": distribution}


@pytest.mark.parametrize(
    "given",
    [
        3,
        {"low": 1},
        {"low": 1, "high": 2, "sclae": "log"},
        {"low": 1, "high": 2, "scale": "lgo"},
        {"low": 2, "high": 1},
        {"low": 0, "high": 1, "scale": "log"},
        {"low": 0.5, "high": 2, "scale": "integer"},
        {"low": "much", "high": 8},
        [1],
        [1, 1],
    ],
)
def test_a_mistake_in_a_space_names_the_parameter_and_what_is_allowed(given: object) -> None:
    with pytest.raises(ValueError, match=r"optim\.lr must be \{scale: log.*or a list.*, got .* Scales: linear, log"):
        check_space({"optim.lr": given})


def test_what_cannot_be_varied_is_named() -> None:
    with pytest.raises(ValueError, match=r"seed cannot stand in sweep\.space.*sweep\.seeds"):
        check_space({"seed": [1, 2]})
