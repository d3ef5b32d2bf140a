"""Output of a run other than checkpoints: progress in the terminal, metrics, config and the learning curve."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import yaml

from enn_ppo.settings.config import TrainConfig
from enn_ppo.settings.schema import to_dict
from enn_ppo.training.files import replace_file
from enn_ppo.training.tracking.curves import plot_learning_curve
from enn_ppo.training.tracking.logger import Row, make_logger
from enn_ppo.training.tracking.run_dir import CONFIG, LEARNING_CURVE, METRICS
from enn_ppo.training.tracking.symptoms import Symptoms
from entity_gym.output import tell

if TYPE_CHECKING:
    from rich.live import Live

#: Seconds between two plain lines.
PLAIN_SECONDS = 10.0

# metrics on the screen, by their names on docs/metrics.md; the first ones are on a plain line, too
_ON_A_LINE = ("steps_per_second", "episodic_reward", "episode_length", "entropy", "approx_kl")
_MORE = ("eval/episodic_reward", "self_play/win_rate", "self_play/rating", "teacher_kl", "value_loss", "policy_loss")
_SHARES = ("explained_variance", "share_env", "share_act", "share_update")
_OF_EVALUATION = ("eval/episodic_reward", "eval/episodic_reward_ci95", "eval/episode_length", "eval/win_rate")


def announce(text: str) -> None:
    """Print a line about the run, on rank 0 only. Where standard output can no longer be written, training goes on without it."""
    if os.environ.get("RANK", "0") != "0":
        return
    try:
        print(text, flush=True)
    except OSError as error:  # the reader of a pipe has ended, or the disk of a log is full
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        tell(f"standard output cannot be written ({error.strerror}): training goes on")


def make_live() -> Live | None:
    """Return what redraws dashboards in this terminal; None where the standard streams go elsewhere, or cannot be redrawn."""
    if not all(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr)):
        return None
    # imported here: `--help` imports this module, and rich takes longer than the rest of it
    from rich.console import Console, Group
    from rich.live import Live

    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_dumb_terminal or console.options.ascii_only:
        return None
    return Live(Group(), console=console, refresh_per_second=2)


class RunOutput:
    """Shows the training of a policy, and writes its metrics and config. A context manager, which draws the learning curve.

    A terminal shows a dashboard. Elsewhere a line is printed, at most every `PLAIN_SECONDS`.

    Args:
        run_dir: an existing directory.
        config: written to `config.yaml`.
        step: step that a resumed run continues from; later rows of metrics are removed. None: a new run.
        name: the policy's name, with which lines begin; empty if there is only one policy.
        live: redraws the dashboards of all policies in the terminal; None: plain lines.

    Raises:
        ValueError: the directory cannot be written, or a tracker cannot start.
    """

    def __init__(
        self, run_dir: Path, config: TrainConfig, step: int | None, name: str = "", live: Live | None = None
    ) -> None:
        self.run_dir, self._live = run_dir, live
        self._prefix = f"{name}: " if name else ""
        self._title = f"{config.env.id}  {run_dir}"
        self._config, self._step, self._trained, self._done = config, step or 0, 0.0, 0.0
        self._begun: tuple[float, float] | None = None  # when the progress was shown first, and how much it was
        self._known: Row = {}  # the last value of each metric
        self._symptoms = Symptoms(is_new=step is None, epochs=config.optim.epochs)
        self._due = -math.inf  # when the next plain line may be printed
        self._is_held_back = False  # whether the newest row has not been printed yet
        try:
            self._logger = make_logger(run_dir, config, step, self.say)
            replace_file(run_dir / CONFIG, yaml.safe_dump(to_dict(config), sort_keys=False).encode())
        except OSError as error:
            raise ValueError(f"run_dir {run_dir} cannot be written: {error}") from error
        if live is not None:
            from rich.console import Group

            live.update(Group(live.get_renderable(), self))

    def log(self, row: Row) -> None:
        """Show and log the metrics of an update, or of an evaluation (`step` and `eval/...` only).

        Metrics without a value keep their last one on the screen.

        Raises:
            ValueError: `metrics.jsonl` cannot be written.
        """
        try:
            self._logger.log(row)
        except OSError as error:
            raise ValueError(
                f"{self.run_dir / METRICS} cannot be written: {error}; training ends after {row['step']:,} steps"
            ) from error
        if "seconds" in row:
            self._known |= {name: value for name, value in row.items() if value is not None and math.isfinite(value)}
            self.show(int(row["step"] or 0), float(row["seconds"] or 0.0))
            if advice := self._symptoms.advice(row.get("approx_kl") or 0.0, self._done):
                self.say(advice)
        if row.get("eval/episodic_reward") is not None:
            self.say("  ".join([f"evaluation of step {row['eval/step']:,.0f}:", *_values(row, _OF_EVALUATION)]))

    def show(self, step: int, seconds: float) -> None:
        """Show the steps and seconds of training so far, with those of a rollout that is being played."""
        self._step, self._trained, self._is_held_back = step, seconds, True
        self._done = self._config.progress(step, seconds)
        self._begun = self._begun or (monotonic(), self._done)
        if self._live is None:
            if monotonic() >= self._due:
                self._due = monotonic() + PLAIN_SECONDS
                self._print_held_back()
        elif not self._live.is_started:
            self._live.start()
            self._live.console.show_cursor()  # a process that is killed could not do it

    def say(self, text: str) -> None:
        """Print a line, which appears above the dashboard as all that is printed."""
        announce(self._prefix + text)

    def __enter__(self) -> RunOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._live is None:
            self._print_held_back()
        elif self._live.is_started:
            with suppress(OSError):
                sys.stdout.flush()  # a line without its end, which rich holds back
                sys.stderr.flush()
                self._live.stop()
        self._logger.close()
        try:
            plot_learning_curve(self.run_dir / METRICS, self.run_dir / LEARNING_CURVE)
        except (OSError, ValueError) as problem:  # must not hide the error that has ended the run
            tell(f"learning_curve.png was not drawn: {problem}")
        if kind is None:
            announce(f"done: {self.run_dir}")

    def _print_held_back(self) -> None:
        if self._is_held_back:
            self._is_held_back = False
            steps = f"{self._step:,}/{self._config.total_timesteps:,} steps ({self._done:.0%})"
            self.say("  ".join([steps, *self._left(), *_values(self._known, _ON_A_LINE)]))

    def _left(self) -> list[str]:
        """The time that is left, once something was done since the start."""
        begun, done = self._begun or (0.0, 1.0)
        if self._done <= done:
            return []
        seconds = (monotonic() - begun) * (1 - self._done) / (self._done - done)
        return [f"{timedelta(seconds=round(seconds))} left"]

    def __rich__(self) -> Any:
        """Draw the dashboard."""
        from rich.columns import Columns
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        title = "".join(each if each.isprintable() else "?" for each in self._prefix + self._title)
        bar = Table.grid(expand=True, padding=(0, 1))
        steps = f"{self._step:,}/{self._config.total_timesteps:,}"
        bar.add_row(f"{self._done:4.0%}", ProgressBar(total=1.0, completed=self._done), steps)
        times = "  ".join([*self._left(), f"{timedelta(seconds=int(self._trained))} of training"])
        cells = [
            Text.assemble((name, "dim"), (f" {value:>{25 - len(name)}}", "bold"), no_wrap=True, overflow="crop")
            for name, value in map(str.split, _values(self._known, (*_ON_A_LINE, *_MORE, *_SHARES)))
        ]
        return Group(Text(title, "bold", overflow="fold"), bar, Text(times), Columns(cells, column_first=True))


def _values(row: Row, names: Iterable[str]) -> list[str]:
    """The names and values of metrics that have a value."""
    known = {name: value for name in names if (value := row.get(name)) is not None}
    return [f"{name} {value:{',.0f' if abs(value) >= 1000 else '.4g'}}" for name, value in known.items()]
