"""How fast training is: environment steps and entities per second, and where the time goes.

python scripts/bench_train.py --threads 1
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from benchmark import Measurement, parser, report

from enn_ppo import EnvConfig, RolloutConfig, TrainConfig, train  # before torch: it says how OpenMP threads wait
from enn_ppo.logger import read_metrics

import torch  # isort: skip

UNITS = {
    "steps_per_second": "steps/s",
    "entities_per_second": "entities/s",
    "share_env": "of the time",
    "share_act": "of the time",
    "share_update": "of the time",
}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--env", default="MineSweeper")
    arguments.add_argument("--num-envs", type=int, default=128)
    arguments.add_argument("--updates", type=int, default=20, help="updates to measure, after two that are not")
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments.add_argument("--device", default="auto")
    given = arguments.parse_args()
    rollout = RolloutConfig(num_envs=given.num_envs)
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            env=EnvConfig(id=given.env),
            rollout=rollout,
            total_timesteps=(given.updates + 2) * rollout.num_envs * rollout.steps,
            num_threads=given.threads,
            device=given.device,
            run_dir=f"{folder}/run",
            checkpoint_interval=10**9,
        )
        train(config)
        rows = read_metrics(Path(folder) / "run" / "metrics.jsonl")[2:]
    settings = {"env": given.env, "num_envs": given.num_envs, "threads": given.threads, "device": given.device}
    report(
        [
            Measurement(name, statistics.median(row[name] for row in rows), unit, settings)
            for name, unit in UNITS.items()
        ],
        given.json,
    )


if __name__ == "__main__":
    main()
