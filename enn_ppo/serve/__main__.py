"""The command `python -m enn_ppo.serve`."""

from enn_ppo.serve.server import serve
from enn_ppo.settings.command_line.cli import run_serve

if __name__ == "__main__":
    raise SystemExit(run_serve(serve))
