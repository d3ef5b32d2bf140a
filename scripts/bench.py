"""Benchmarks. Each prints a table; `--json FILE` also writes its numbers, and `--help` describes it.

python scripts/bench.py train --threads 1        # steps per second of training, and where the time goes
python scripts/bench.py env                      # steps per second of the environments
python scripts/bench.py policy                   # acting and learning by size, width and backend
python scripts/bench.py distributed              # one process, Ray and torchrun
python scripts/bench.py ship                     # a policy that acts: in torch, NumPy, ONNX, JavaScript, C
python scripts/bench.py worlds                   # worlds of others, beside Stable-Baselines3 and scripts
"""

from __future__ import annotations

import importlib
import sys

BENCHMARKS = ("train", "env", "policy", "distributed", "ship", "worlds")


def main() -> int | None:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print(__doc__)
        return 0
    if name not in BENCHMARKS:
        print(f"error: there is no benchmark {name!r}; allowed: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    sys.argv[:2] = [f"{sys.argv[0]} {name}"]  # the rest of the command line belongs to the benchmark
    status: int | None = importlib.import_module(f"benchmarks.{name}").main()
    return status


if __name__ == "__main__":
    raise SystemExit(main())
