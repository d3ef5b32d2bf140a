"""Every setting of training and evaluation: frozen, with its unit, range and default, checked when it is made.

`command_line/cli.py` makes these classes from the command line; Python programs make them directly. Hydra is not imported here.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from enn_ppo.settings.distributed import DistributedConfig as DistributedConfig
from enn_ppo.settings.distributed import check_policies
from enn_ppo.settings.evaluation import Device
from enn_ppo.settings.evaluation import EvalConfig as EvalConfig
from enn_ppo.settings.evaluation import TrainEvalConfig as TrainEvalConfig
from enn_ppo.settings.learning import OptimConfig as OptimConfig
from enn_ppo.settings.learning import PPOConfig as PPOConfig
from enn_ppo.settings.world import EnvConfig as EnvConfig
from enn_ppo.settings.world import RolloutConfig as RolloutConfig
from enn_ppo.settings.world import SelfPlayConfig as SelfPlayConfig
from rogue_net.checks import NonNegativeInt, NumWorkers, PositiveFloat, PositiveInt, check_fields
from rogue_net.config import RogueNetConfig


@dataclass(frozen=True, kw_only=True)
class LoggerConfig:
    """Trackers that receive the metrics in addition to `metrics.jsonl`."""

    wandb: Literal["disabled", "offline", "online"] = "disabled"
    """Weights & Biases: `disabled`, `offline` (files in the run directory, no account) or `online`. Its variables WANDB_PROJECT
    (else `enn-ppo`) and WANDB_ENTITY say where the run is."""
    tensorboard: bool = False
    """Whether TensorBoard's files are written into the run directory."""

    def __post_init__(self) -> None:
        check_fields(self, "logger.")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of a training run."""

    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """Rollouts."""
    net: RogueNetConfig = field(default_factory=RogueNetConfig)
    """The network."""
    value_net: RogueNetConfig | None = None
    """A separate value network, with the settings of `net`; null: the policy's network has a value head."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """The optimizer."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """The loss."""
    eval: TrainEvalConfig = field(default_factory=TrainEvalConfig)
    """Evaluation during training."""
    self_play: SelfPlayConfig = field(default_factory=SelfPlayConfig)
    """Self-play."""
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    """Training in several processes."""
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    """Tracking."""
    policies: dict[str, list[int]] = field(default_factory=dict)
    """In environments with several players: policy -> the players that it plays, such as `{red: [0], blue: [1]}`. Each policy has
    its own learner, and a run directory inside `run_dir`; on Ray, learners train in parallel. If empty, one policy plays all
    players."""
    seed: NonNegativeInt = 1
    """Seeds the environments, the network and the sampling."""
    total_timesteps: PositiveInt = 500_000
    """Total number of environment steps, summed over all environments; at least `rollout.num_envs`."""
    max_train_seconds: PositiveFloat | None = None
    """Limit of the time spent on rollouts and updates, in seconds, without saving and interruptions. Training
    ends, and schedules reach their end, at this limit or at `total_timesteps`, whichever is first. null: no limit."""
    device: Device = "auto"
    """`cpu`, `cuda`, or `auto`: cuda where there is one."""
    num_threads: NumWorkers | None = None
    """Number of threads with which networks act and learn on a CPU. Each thread sums the gradient of its own frames, so that
    another number of threads rounds the sums differently and gives other weights; the same number gives the same weights.
    null: as many as there are cores, at most 8; give a number where runs on different machines are to be equal."""
    torch_deterministic: bool = False
    """Whether torch uses only deterministic algorithms; this makes CUDA slower. On the CPU results are always deterministic."""
    run_dir: str | None = None
    """Folder of the run's files; null: with `resume` that of its run, otherwise `outputs/<env id>/<date>_<time>`, with `_2` and
    so on behind it where that is taken."""
    resume: str | None = None
    """A run directory, or one of its checkpoints, to continue from. null: start anew."""
    trust: bool = False
    """With `resume`: whether to run the code that the checkpoint's settings name, and to restore its environments, although this
    installation of enn-ppo has not written the checkpoint."""
    overwrite: bool = False
    """Whether an existing run in the run directory is removed first."""
    checkpoint_interval: PositiveInt = 20
    """Updates between two checkpoints."""
    keep_last: PositiveInt = 3
    """Number of newest checkpoints to keep. The best is kept too, by evaluation reward, or without evaluations by the mean reward
    of the last 100 training episodes."""

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "policies", check_policies(self.policies))
        self._check_together()
        self._check_needs()
        self._check_sizes()

    def progress(self, step: int, seconds: float) -> float:
        """Fraction of the training that is done: of `total_timesteps` or of `max_train_seconds`, whichever is larger."""
        by_time = seconds / self.max_train_seconds if self.max_train_seconds else 0.0
        return min(1.0, max(step / self.total_timesteps, by_time))

    def _check_together(self) -> None:
        """Refuse what a run cannot have at the same time."""
        rollout, mode = self.rollout, self.distributed.mode
        policies = {f"policies={self.policies}": self.policies}
        blocks = {f"rollout.block={rollout.block}": rollout.block}
        blocks[f"rollout.pipeline={rollout.pipeline}"] = rollout.pipeline > 1
        alone = {"self_play.enabled=true": self.self_play.enabled}
        lag = self.distributed.max_staleness
        grouped = {f"ppo.advantages={self.ppo.advantages}": self.ppo.advantages != "gae"}
        for several, others in (
            ({f"distributed={mode}": mode != "none"} | blocks | policies, alone),
            ({"distributed=ddp": mode == "ddp"}, policies),
            ({f"eval.best_of={self.eval.best_of}": self.eval.best_of > 1}, alone),
            (grouped, alone | policies | {f"distributed.max_staleness={lag}": lag}),
        ):
            for one, other in itertools.product(filter(several.get, several), filter(others.get, others)):
                raise ValueError(f"{one} and {other} do not go together; leave one out")

    def _check_needs(self) -> None:
        """Refuse settings that have no effect without another setting."""
        of_eval, of_self_play = _change(self.eval, but="greedy"), _change(self.self_play)  # presets set eval.greedy
        for is_wrong, message in (
            (
                self.ppo.advantages != "gae" and self.rollout.group_size == 1,
                f"ppo.advantages={self.ppo.advantages} compares environments of a group: rollout.group_size=<2 or more>",
            ),
            (self.trust and self.resume is None, "trust=true needs resume=<run directory>, whose code it allows"),
            (of_self_play and not self.self_play.enabled, f"self_play.{of_self_play} needs self_play.enabled=true"),
            (
                of_eval and self.eval.interval is None,
                f"eval.{of_eval} needs evaluations while training: eval.interval=<steps>",
            ),
            (
                self.eval.opponent == "policies" and not self.policies,
                "eval.opponent=policies needs several policies: policies={<name>: [<player>, ...], ...}",
            ),
        ):
            if is_wrong:
                raise ValueError(message)

    def _check_sizes(self) -> None:
        num_envs, steps = self.rollout.num_envs, self.rollout.steps
        if self.optim.batch_size > num_envs * steps:
            raise ValueError(
                f"optim.batch_size must be at most the {num_envs * steps} frames of a rollout "
                f"(rollout.num_envs={num_envs} times rollout.steps={steps}), got {self.optim.batch_size}"
            )
        if self.optim.batch_size == 1 and self.ppo.normalize_advantages:
            raise ValueError(
                "optim.batch_size=1 learns nothing with ppo.normalize_advantages=true: the one advantage of a minibatch becomes "
                "0. Take a larger optim.batch_size, or ppo.normalize_advantages=false"
            )
        if self.total_timesteps < num_envs:
            raise ValueError(
                f"total_timesteps must be at least rollout.num_envs={num_envs}, one step of each environment, "
                f"got {self.total_timesteps}"
            )
        if self.eval.interval is not None and self.eval.seed == self.seed:
            raise ValueError(
                f"eval.seed={self.eval.seed} is the seed of training, whose first episodes would be those of evaluation: "
                "choose another"
            )
        if self.distributed.mode == "ray":
            self.rollout.share(self.distributed.num_env_runners, "runners")
        if self.policies and self.keep_last < 2:
            raise ValueError(
                f"keep_last={self.keep_last} must be at least 2 with policies={self.policies}: they save one after the other, "
                "and a crash in between must leave a step that all have"
            )


def _change(section: Any, but: str = "") -> str | None:
    """The first setting of a section, except `but`, that differs from its default, as `name=value`; None if there is none."""
    default = vars(type(section)())
    changes = (f"{name}={value}" for name, value in vars(section).items() if name != but and value != default[name])
    return next(changes, None)


def default_run_dir(env_id: str, when: datetime) -> str:
    """The default run directory: `outputs/<env id>/<YYYY-mm-dd_HH-MM-SS>`, as a safe file name."""
    return str(Path("outputs") / re.sub(r"[^\w.-]+", "_", env_id) / when.strftime("%Y-%m-%d_%H-%M-%S"))
