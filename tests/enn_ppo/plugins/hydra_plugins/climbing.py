"""A plugin of Hydra, found like an installed one where this folder is on the path: a sweeper that learns."""

from __future__ import annotations

from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper


class Climbing(Sweeper):
    """Runs batches of two jobs, the learning rate doubled and halved around the better of the batch before."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.launcher: Any = None

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        rate = 0.01
        for batch in range(self.batches):
            rates = [rate * 2, rate / 2]
            jobs = [[*arguments, f"optim.lr={value}"] for value in rates]
            results = self.launcher.launch(jobs, initial_job_idx=2 * batch)
            rewards = [result.return_value for result in results]
            rate = rates[rewards.index(max(rewards))]


ConfigStore.instance().store(
    group="hydra/sweeper", name="climbing", node={"_target_": "hydra_plugins.climbing.Climbing", "batches": 2}
)
