"""The command `python -m enn_ppo.eval`."""

from enn_ppo.eval.evaluate import evaluate
from enn_ppo.settings.command_line.cli import run_eval

if __name__ == "__main__":
    raise SystemExit(run_eval(evaluate))
