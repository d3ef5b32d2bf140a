"""The command `python -m enn_ppo.sweep`."""

from enn_ppo.settings.command_line.cli import run_sweep
from enn_ppo.sweep.sweep import sweep

if __name__ == "__main__":
    raise SystemExit(run_sweep(sweep))
