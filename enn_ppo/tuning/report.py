"""What came of a sweep: the best settings as a file to train with, and a page of pictures."""

from __future__ import annotations

import html
import shlex
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from enn_ppo.config import TrainConfig
from enn_ppo.files import replace_file
from enn_ppo.settings.schema import to_dict
from enn_ppo.tuning.config import SweepConfig
from enn_ppo.tuning.study import ARGUMENTS, BEST, REASON, REPORT, TRIALS, best_of, import_optuna, trials_in

if TYPE_CHECKING:
    import optuna

_NOT_SETTINGS = ("run_dir", "resume", "overwrite", "debug")  # of one run, and not of the next with the same settings
_STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; } td, th { padding: .2em .8em; text-align: left; border-bottom: 1px solid #ddd; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } pre { background: #f4f4f4; padding: .8em; }
pre { overflow-x: auto; } tr.best { font-weight: 600; background: #eef6ea; }
"""


def write_best(folder: Path, trial: optuna.trial.FrozenTrial, training: TrainConfig) -> None:
    """Write all settings of a trial as `experiment/best.yaml`, which `best_command` trains with."""
    values = {name: value for name, value in to_dict(training).items() if name not in _NOT_SETTINGS}
    header = (
        "# @package _global_\n"
        f"# Trial {trial.number} of the sweep, score {trial.value:.6g}: {' '.join(trial.user_attrs[ARGUMENTS])}\n"
    )
    # `custom` holds no arguments of a world, and so those below are all there are
    text = header + yaml.safe_dump({"defaults": [{"override /env": "custom"}], **values}, sort_keys=False)
    _write(folder / BEST, text)


def best_command(folder: Path) -> str:
    """The command that trains with the best settings."""
    return f"python -m enn_ppo.train --config-dir {shlex.quote(str(folder))} experiment={BEST.stem}"


def write_report(folder: Path, study: optuna.Study, config: SweepConfig) -> Path:
    """Write `sweep.html`: one file that needs no network.

    Args:
        folder: of the sweep.
        study: with its trials.
        config: of the sweep.

    Returns:
        The file.
    """
    best = best_of(study)
    parts = [f"<h1>Sweep: {html.escape(folder.name)}</h1>", _summary(study, config, folder)]
    if best is not None:
        rows = "".join(f"<li>{html.escape(argument)}</li>" for argument in best.user_attrs[ARGUMENTS])
        parts.append(f"<h2>Best: trial {best.number}, {config.metric} {best.value:.6g}</h2><ul>{rows}</ul>")
        parts.append(f"<pre>{html.escape(best_command(folder))}</pre>")
    parts += _figures(study, config)
    parts.append("<h2>Trials</h2>" + _table(study, config))
    page = f"<!doctype html><meta charset='utf-8'><title>{html.escape(folder.name)}</title><style>{_STYLE}</style>"
    _write(folder / REPORT, page + "\n".join(parts))
    return folder / REPORT


def _summary(study: optuna.Study, config: SweepConfig, folder: Path) -> str:
    counts = [
        f"{len(trials_in(study, state))} {name}"
        for state, name in (
            ("complete", "complete"),
            ("pruned", "pruned"),
            ("fail", "failed"),
            ("running", "unfinished"),
        )
        if trials_in(study, state)
    ]
    runs = f"the mean of {config.seeds} seeds" if config.seeds > 1 else "one seed"
    return (
        f"<p>{', '.join(counts) or 'no'} trials. Score: {html.escape(config.metric)} ({config.direction}), mean over the "
        f"last {config.last_fraction:.0%} of a run, {runs}. Runs: {html.escape(str(folder / TRIALS))}</p>"
    )


def _figures(study: optuna.Study, config: SweepConfig) -> list[str]:
    """Every picture that the trials suffice for, one after another, each under its heading."""
    import plotly.io

    optuna = import_optuna()
    views, sections = optuna.visualization, list[str]()
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()  # needs no other library
    name = config.metric
    pictures: list[tuple[str, Callable[[], Any]]] = [
        ("History", lambda: views.plot_optimization_history(study, target_name=name)),
        ("Learning curves", lambda: views.plot_intermediate_values(study)),
        ("Importance", lambda: views.plot_param_importances(study, evaluator=evaluator, target_name=name)),
        ("Slices", lambda: views.plot_slice(study, target_name=name)),
        ("Together", lambda: views.plot_parallel_coordinate(study, target_name=name)),
    ]
    library: bool = True  # goes with the first picture
    for title, draw in pictures:
        try:
            if len(trials_in(study, "complete")) < 2:
                raise ValueError("needs two complete trials")
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # of few trials: the pictures show it
                figure = plotly.io.to_html(draw(), include_plotlyjs=library, full_html=False, default_height=480)
            library = False
        except (ValueError, RuntimeError, ZeroDivisionError) as error:  # too few trials, or all of one value
            figure = f"<p>Not drawn: {html.escape(str(error))}.</p>"
        sections.append(f"<h2>{title}</h2>{figure}")
    return sections


def _table(study: optuna.Study, config: SweepConfig) -> str:
    best = best_of(study)
    labels = [parameter.name for parameter in config.parameters]
    lines = [_row(["trial", "state", config.metric, "seconds", *labels, "reason"], tag="th")]
    for trial in study.get_trials(deepcopy=False):
        values = dict(argument.split("=", 1) for argument in trial.user_attrs.get(ARGUMENTS, []))
        cells = [
            str(trial.number),
            {"fail": "failed", "running": "unfinished"}.get(trial.state.name.lower(), trial.state.name.lower()),
            "" if trial.value is None else f"{trial.value:.6g}",
            "" if trial.duration is None else f"{trial.duration.total_seconds():.1f}",
            *(values.get(label, "") for label in labels),
            trial.user_attrs.get(REASON, ""),
        ]
        lines.append(_row(cells, mark="best" if best is not None and trial.number == best.number else ""))
    return f"<table>{''.join(lines)}</table>"


def _row(cells: Sequence[str], *, tag: str = "td", mark: str = "") -> str:
    return f"<tr class='{mark}'>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, text.encode())
    except OSError as error:
        raise ValueError(
            f"{file} cannot be written: {error}; the study is kept, and the same command goes on"
        ) from error
