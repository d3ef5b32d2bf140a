"""The command `enn-ppo`: `enn-ppo train env=MineSweeper` does what `python -m enn_ppo.train env=MineSweeper` does."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

import enn_ppo
from entity_gym.errors import nearest

#: Command -> its module, and what it does.
COMMANDS = {
    "train": ("enn_ppo.train", "train a policy"),
    "eval": ("enn_ppo.eval", "evaluate a checkpoint"),
    "play": ("enn_ppo.play", "play in the browser, with a policy's advice"),
    "watch": ("enn_ppo.watch", "show a policy in the browser"),
    "plot": ("enn_ppo.plot", "draw the learning curves of runs"),
    "serve": ("enn_ppo.serve", "let a policy choose actions for programs in any language"),
    "clone": ("enn_ppo.clone", "train a policy to imitate recorded actions"),
    "sweep": ("enn_ppo.sweep", "search for good settings"),
    "export": ("enn_ppo.export", "write a checkpoint's policy into one file"),
    "check": ("entity_gym.check", "find out what is wrong with an environment"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code: the command's, or 2 if there is no such command."""
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        print("usage: enn-ppo COMMAND ...\n\nReinforcement learning for worlds with a variable number of entities.\n")
        print("\n".join(f"  {command:<8}{what}" for command, (_, what) in COMMANDS.items()))
        print("\nenn-ppo COMMAND --help shows the arguments of a command, enn-ppo --version the version.")
        return 0
    if name == "--version":
        print(enn_ppo.__version__)
        return 0
    if name not in COMMANDS:
        print(f"error: enn-ppo has no command {name!r}; {nearest(name, COMMANDS)}", file=sys.stderr)
        return 2
    sys.argv[1:] = arguments
    runpy.run_module(COMMANDS[name][0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
