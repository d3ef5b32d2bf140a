"""Checkpoints of several policies that have trained together, each in a run directory of its own beside the others'."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from enn_ppo.checkpoints.finding import newest_complete
from enn_ppo.checkpoints.layout import CheckpointError, listing, step_folder, step_folders
from enn_ppo.checkpoints.reading import Checkpoint, read_checkpoint

CHECKPOINTS = "checkpoints"


def runs_in(directory: Path) -> list[Path]:
    """The run directories of policies in `directory`; none where that is a run directory itself, or is not there."""
    if not directory.is_dir() or (directory / CHECKPOINTS).exists():
        return []
    return sorted(entry for entry in directory.iterdir() if (entry / CHECKPOINTS).is_dir())


def load_common(run_dirs: Sequence[Path]) -> list[Checkpoint]:
    """The checkpoint of each run, of the newest step that all have whole.

    Policies save one after the other, so that after a crash in between some have a newer one, which the others lack.

    Raises:
        CheckpointError: a run is not there, or there is no such step.
    """
    for run_dir in run_dirs:
        if not (run_dir / CHECKPOINTS).is_dir():
            there = listing([run.name for run in runs_in(run_dir.parent)])
            raise CheckpointError(
                f"there is no run of policy {run_dir.name} in {run_dir.parent}, which holds runs of {there}; give the directory "
                "that has those of all policies"
            )
    steps = [{step for step, _ in step_folders(run_dir / CHECKPOINTS)} for run_dir in run_dirs]
    for step in sorted(set.intersection(*steps), reverse=True):
        try:
            return [read_checkpoint(step_folder(run_dir / CHECKPOINTS, step)) for run_dir in run_dirs]
        except CheckpointError:
            continue
    newest = [newest_complete(run_dir / CHECKPOINTS) or "nothing" for run_dir in run_dirs]
    raise CheckpointError(f"no step that all policies have saved: the newest are {', '.join(map(str, newest))}")
