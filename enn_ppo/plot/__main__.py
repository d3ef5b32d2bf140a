"""The command `python -m enn_ppo.plot`."""

from enn_ppo.plot.plot import main

if __name__ == "__main__":
    raise SystemExit(main())
