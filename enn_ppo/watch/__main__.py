"""The command `python -m enn_ppo.watch`."""

from enn_ppo.settings.command_line.cli import run_watch
from enn_ppo.watch.watch import watch

if __name__ == "__main__":
    raise SystemExit(run_watch(watch))
