"""Starting a run on Ray."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from enn_ppo.settings.config import TrainConfig
from enn_ppo.training.environment import BoundEnvironment
from enn_ppo.training.on_ray.cluster import Cluster
from enn_ppo.training.on_ray.runner import plans
from enn_ppo.training.tracking.run_output import announce

if TYPE_CHECKING:
    from enn_ppo.training.on_ray.group import RunnerGroup
    from enn_ppo.training.on_ray.learners import RemoteLearner


def start_on_ray(config: TrainConfig, env: BoundEnvironment) -> tuple[dict[str, RemoteLearner], RunnerGroup]:
    """Start the runners, and a learner for each policy.

    Returns:
        Policy -> its learner; and the sampler.

    Raises:
        ValueError: Ray is not installed, the cluster is missing or too small, or the environment breaks its contract.
    """
    if config.device == "cuda" and not config.distributed.learner_gpus:
        raise ValueError("device=cuda with distributed=ray needs a GPU for the learner: distributed.learner_gpus=1")
    runners = plans(config, env)
    with ExitStack() as stack:
        players = config.policies or {"": [0]}
        num_policies = len(players)
        announce(
            f"starting Ray, {len(runners)} environment runner{'s' * (len(runners) != 1)} and "
            f"{num_policies} learner{'s' * (num_policies != 1)}: each is a process that imports torch"
        )
        cluster = Cluster(config.distributed, num_policies)
        stack.callback(cluster.close)
        from enn_ppo.training.on_ray.board import Board  # these import Ray
        from enn_ppo.training.on_ray.group import RunnerGroup
        from enn_ppo.training.on_ray.learners import RemoteLearner

        board = Board(num_policies)
        learners: dict[str, RemoteLearner] = {}
        for number, (name, own) in enumerate(players.items()):
            learners[name] = RemoteLearner(config, cluster, board, number, name, len(own))
            stack.callback(learners[name].close)
        sampler = RunnerGroup(config, runners, cluster, board)
        stack.callback(sampler.close)
        for learner in learners.values():
            learner.prepare(sampler.spaces)
        stack.pop_all()
    return learners, sampler
