"""Settings of learning: the optimizer and the objective."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, Literal

from enn_ppo.settings.schedule import Schedule, Scheduled, ScheduleRange, parse_schedule
from rogue_net.checks import NonNegativeFloat, PositiveFloat, PositiveInt, check_fields

Ratio = Literal["per_actor", "joint"]
Weighting = Literal["actor", "frame"]


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW and its minibatches. A frame is one environment at one step."""

    lr: Annotated[Scheduled, ScheduleRange(0)] = "0.002@0 -> 0@1"
    """Learning rate, a number, which is constant, or a schedule over progress. Rates typically start at 1e-4 to 3e-3."""
    batch_size: PositiveInt = 512
    """Frames per optimizer step, at most the rollout's `num_envs * steps`."""
    micro_batch_size: PositiveInt | None = None
    """Frames per forward pass, at most `batch_size`: gradients are accumulated over the minibatch, which saves memory. null: the
    whole minibatch at once."""
    sequence_length: PositiveInt | None = None
    """Consecutive steps of an environment that stay together in a minibatch: the gradients of a policy that remembers flow back
    through them, to what was remembered in the rollout before them. The length taken is the largest that divides the rollout's
    steps. null: all steps of the rollout if the network remembers, else 1."""
    epochs: PositiveInt = 3
    """Passes over each rollout."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay per unit of learning rate."""
    max_grad_norm: PositiveFloat = 0.5
    """Largest 2-norm of the gradient; a larger gradient is scaled down."""

    def __post_init__(self) -> None:
        check_fields(self, "optim.")
        if self.micro_batch_size is not None and self.micro_batch_size > self.batch_size:
            raise ValueError(
                f"optim.micro_batch_size must be at most optim.batch_size={self.batch_size} frames, "
                f"got {self.micro_batch_size}"
            )

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule of `lr`."""
        return parse_schedule("optim.lr", self.lr)


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Proximal policy optimization."""

    gamma: Annotated[Scheduled, ScheduleRange(-1, 1)] = 0.99
    """Discount per environment step, or a schedule. Negative where one policy plays two opponents in turn and sees what the
    player whose turn it is sees (ConnectFour, `opponent` 5): what follows then counts with the opposite sign."""
    gae_lambda: Annotated[Scheduled, ScheduleRange(0, 1)] = 0.95
    """λ of generalized advantage estimation, or a schedule. 0 is the one-step error, 1 sums rewards to the rollout's end."""
    clip: Annotated[Scheduled, ScheduleRange(0, 1, open_low=True, open_high=True)] = 0.2
    """The probability ratio is clipped to [1 - clip, 1 + clip]; may be a schedule."""
    clip_value: bool = True
    """Whether the value loss clips the change of the value to ±`clip`."""
    ent_coef: Annotated[Scheduled, ScheduleRange(0)] = "0.05@0 -> 0@1"
    """Weight of the entropy bonus, or a schedule."""
    vf_coef: Annotated[Scheduled, ScheduleRange(0)] = 0.5
    """Weight of the value loss, or a schedule."""
    teacher: str | None = None
    """A run directory or checkpoint of a teacher policy, to which the KL divergence is penalized, for example the cloned policy
    that training starts from; null: none."""
    teacher_kl: Annotated[Scheduled, ScheduleRange(0)] = "1@0 -> 0@1"
    """Weight of KL(teacher || policy) in the loss, in nats per actor, or a schedule."""
    target_coef: Annotated[Scheduled, ScheduleRange(0)] = 0.0
    """Weight of the auxiliary loss, the squared error of predicting the environment's targets, or a schedule."""
    target_kl: PositiveFloat | None = None
    """Early stopping: no further epoch begins once the mean KL divergence over an epoch's minibatches is above this, typically
    0.01 to 0.05. null: all epochs."""
    normalize: Literal["none", "returns"] = "none"
    """`returns`: the value head learns returns normalized to mean 0 and standard deviation 1 (PopArt). Checkpoints include the
    statistics."""
    advantages: Literal["gae", "group", "group+value"] = "gae"
    """The baseline of returns. `gae`: the value. `group`: the mean return of the other members of the group
    (`rollout.group_size`) from the same step of the same episode on. `group+value`: the value plus the mean of the others'
    advantages there. Frames that no other member has in the same rollout keep the advantages of `gae`."""
    normalize_advantages: bool = True
    """Whether advantages are normalized to mean 0 and standard deviation 1 within each minibatch."""
    ratio: Ratio = "per_actor"
    """Whether each actor of a frame has a probability ratio (`per_actor`), or the frame has one, their product (`joint`)."""
    weighting: Weighting = "actor"
    """Whether every actor has the same weight in the loss (`actor`), or every frame (`frame`)."""

    def __post_init__(self) -> None:
        check_fields(self, "ppo.")
        if self.teacher is None and self.teacher_kl != PPOConfig.teacher_kl:
            raise ValueError(
                f"ppo.teacher_kl={self.teacher_kl} needs a teacher: ppo.teacher=<run directory or checkpoint>"
            )

    @cached_property
    def schedules(self) -> dict[str, Schedule]:
        """Setting -> its schedule."""
        names = ("gamma", "gae_lambda", "clip", "ent_coef", "vf_coef", "teacher_kl", "target_coef")
        return {name: parse_schedule(f"ppo.{name}", getattr(self, name)) for name in names}


@dataclass(frozen=True)
class PPOSettings:
    """The settings of one update: `PPOConfig` with a number in place of every schedule."""

    gamma: float
    gae_lambda: float
    clip: float
    clip_value: bool
    ent_coef: float
    vf_coef: float
    teacher_kl: float
    target_coef: float
    target_kl: float | None
    normalize_advantages: bool
    ratio: Ratio
    weighting: Weighting

    @staticmethod
    def at(ppo: PPOConfig, progress: float = 0.0) -> PPOSettings:
        """The settings at training progress 0 to 1."""
        scheduled = {name: schedule(progress) for name, schedule in ppo.schedules.items()}
        if not ppo.teacher:
            scheduled["teacher_kl"] = 0.0
        return PPOSettings(**{each.name: getattr(ppo, each.name) for each in fields(PPOSettings)} | scheduled)
