"""Train PPO of Stable-Baselines3, with its default settings, on Harvest, and write a run directory that enn_ppo.plot reads.

python -m examples.harvest_sb3 RUN_DIR STEPS SEED
"""

import json
import sys
import time
from pathlib import Path

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from examples.harvest import Harvest


class Curve(BaseCallback):
    """Writes a row of metrics after every rollout: the mean reward of the last 100 episodes."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        self.file = (run_dir / "metrics.jsonl").open("w", buffering=1)
        self.start = time.monotonic()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        rewards = [episode["r"] for episode in self.model.ep_info_buffer]
        row = {"step": self.num_timesteps, "seconds": time.monotonic() - self.start}
        self.file.write(json.dumps(row | {"episodic_reward": sum(rewards) / len(rewards)}) + "\n")


run_dir, steps, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
run_dir.mkdir(parents=True, exist_ok=True)
(run_dir / "config.yaml").write_text(f"library: stable-baselines3\nseed: {seed}\n")  # plot joins runs by their seeds
model = PPO("MlpPolicy", Harvest(), seed=seed, device="cpu")
model.learn(steps, callback=Curve(run_dir))
model.save(run_dir / "model")
