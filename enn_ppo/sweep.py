"""A sweep over settings with Optuna: trials as processes, given up where their curve stays behind, and a report.

python -m enn_ppo.sweep sweep=ppo env=Xor total_timesteps=100000 sweep.trials=30 sweep.jobs=2
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from enn_ppo.config import TrainConfig
from enn_ppo.errors import Interrupted
from enn_ppo.train import train
from enn_ppo.tuning.config import SweepConfig
from enn_ppo.tuning.report import best_command, write_best, write_report
from enn_ppo.tuning.scheduler import HOPELESS, Scheduler
from enn_ppo.tuning.study import (
    ARGUMENTS,
    REASON,
    best_of,
    import_optuna,
    locked,
    open_study,
    prepare_folder,
    trials_in,
)


class SweepResult(NamedTuple):
    """A finished sweep."""

    folder: Path
    best: int  # number of the best trial
    value: float  # its score
    command: str  # trains with its settings


def sweep(
    config: SweepConfig,
    folder: Path,
    compose: Callable[[Sequence[str]], TrainConfig],
    *,
    arguments: Sequence[str] = (),
    overwrite: bool = False,
    run: Callable[[TrainConfig], object] = train,
) -> SweepResult:
    """Run the trials that are left of a sweep; print one line for each, and write the report.

    Args:
        config: of the sweep.
        folder: takes everything. One that holds the same sweep goes on.
        compose: makes the settings of training, with these arguments over those that all trials share.
        arguments: those that all trials share; a sweep goes on only with the same.
        overwrite: whether a sweep in the folder is removed first.
        run: trains.

    Raises:
        ValueError: a setting or the folder is not as it must be, or no trial succeeded.
        Interrupted: after Ctrl-C or SIGTERM; what ran goes on with the same command.
    """
    optuna = import_optuna()

    def save(trial: Any) -> None:
        write_best(folder, trial, compose(trial.user_attrs[ARGUMENTS]))

    with locked(folder) as lock:
        prepare_folder(folder, config, list(arguments), overwrite=overwrite)
        study = open_study(folder, config)
        done, left = len(trials_in(study, "complete", "pruned", "fail")), len(trials_in(study, "running"))
        if done or left:
            print(f"going on: {done} trials are done, {left} were left unfinished", flush=True)
        scheduler = Scheduler(
            study,
            config,
            folder,
            compose=compose,
            run=run,
            lock=lock,
            on_best=save,
        )
        try:
            code = scheduler.run()
        except optuna.exceptions.StorageInternalError as error:
            raise ValueError(f"{folder}: the study cannot be written: {error.__cause__ or error}") from error
        best = best_of(study)
        if best is not None:
            save(best)  # once more: a kill may have come between a trial and its file
        print(f"report: {write_report(folder, study, config)}", flush=True)
        if best is not None and best.value is not None:
            print(
                f"best: trial {best.number}, {config.metric} {best.value:.4g}; train with it:\n  {best_command(folder)}"
            )
        if code:
            raise Interrupted(f"interrupted; the same command goes on with {folder}", exit_code=code)
        if best is None or best.value is None:
            raise ValueError(_nothing_found(study, folder))
        return SweepResult(folder, best.number, best.value, best_command(folder))


def _nothing_found(study: object, folder: Path) -> str:
    failed = trials_in(study, "fail")  # type: ignore[arg-type]
    if not failed:
        return f"no trial was complete when the budget was used up: {folder} goes on with more sweep.minutes or sweep.trials"
    first = f"trial {failed[0].number}: {failed[0].user_attrs.get(REASON, 'no reason is known')}"
    early = f"the first {len(failed)} trials" if len(failed) >= HOPELESS else f"all {len(failed)} trials"
    return f"{early} failed; {first} (the others: {folder / 'sweep.html'})"


if __name__ == "__main__":
    from enn_ppo.tuning.command import run_sweep

    raise SystemExit(run_sweep(sweep))
