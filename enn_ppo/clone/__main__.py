"""The command `python -m enn_ppo.clone`."""

from enn_ppo.clone.clone import clone
from enn_ppo.settings.command_line.cli import run_clone

if __name__ == "__main__":
    raise SystemExit(run_clone(clone))
