"""Settings of learning: the optimizer and the objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from enn_ppo.settings.schedule import Scheduled, check_scheduled
from rogue_net.checks import check_bool, check_choice, check_float, check_int, check_text

Ratio = Literal["per_actor", "joint"]
Weighting = Literal["actor", "frame"]
AdvantageKind = Literal["gae", "n_step"]
Normalize = Literal["none", "rewards", "returns"]


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW and its minibatches. A frame is one environment at one step."""

    lr: Scheduled = 2e-3
    """Learning rate, or a schedule over progress: `0.001@0 -> 0@1`. Greater than 0, typically 1e-4 to 3e-3; the values of a
    schedule may be 0, too. Default 2e-3."""
    batch_size: int = 512
    """Frames per optimizer step. At least 1, at most the rollout's `num_envs * steps`. Default 512."""
    micro_batch_size: int | None = None
    """Frames per forward pass, for small memories: their gradients add up to the minibatch's. At least 1, at most
    `batch_size`; null: the whole minibatch at once. Default null."""
    epochs: int = 3
    """Passes over each rollout. At least 1. Default 3."""
    weight_decay: float = 0.0
    """Decoupled weight decay per unit of learning rate. At least 0. Default 0."""
    max_grad_norm: float = 0.5
    """The gradient's 2-norm is scaled down to this. Greater than 0. Default 0.5."""
    anneal_lr: bool = True
    """Whether the learning rate, where it is a plain number, falls linearly to 0 over the training. Default true."""
    warmup_steps: int = 0
    """Environment steps over which the learning rate rises linearly from 0 to what it would be. At least 0. Default 0."""

    def __post_init__(self) -> None:
        check_scheduled("optim.lr", self.lr, 0, open_low=not isinstance(self.lr, str))
        check_int("optim.batch_size", self.batch_size, 1)
        check_int("optim.micro_batch_size", self.micro_batch_size, 1, optional=True)
        check_int("optim.epochs", self.epochs, 1)
        check_float("optim.weight_decay", self.weight_decay, 0)
        check_float("optim.max_grad_norm", self.max_grad_norm, 0, open_low=True)
        check_bool("optim.anneal_lr", self.anneal_lr)
        check_int("optim.warmup_steps", self.warmup_steps, 0)
        if self.micro_batch_size is not None and self.micro_batch_size > self.batch_size:
            raise ValueError(
                f"optim.micro_batch_size must be at most optim.batch_size={self.batch_size} frames, "
                f"got {self.micro_batch_size}"
            )


@dataclass(frozen=True, kw_only=True)
class ValueOptimConfig:
    """The optimizer of a separate value network; what is null is as in `optim`."""

    lr: Scheduled | None = None
    """Learning rate or schedule, with the annealing and warm-up of `optim`. Greater than 0; the values of a schedule may
    be 0, too. Default null."""
    weight_decay: float | None = None
    """As `optim.weight_decay`. At least 0. Default null."""
    max_grad_norm: float | None = None
    """As `optim.max_grad_norm`, of this network's gradient. Greater than 0. Default null."""

    def __post_init__(self) -> None:
        if self.lr is not None:
            check_scheduled("value_optim.lr", self.lr, 0, open_low=not isinstance(self.lr, str))
        if self.weight_decay is not None:
            check_float("value_optim.weight_decay", self.weight_decay, 0)
        if self.max_grad_norm is not None:
            check_float("value_optim.max_grad_norm", self.max_grad_norm, 0, open_low=True)


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Proximal policy optimization."""

    gamma: Scheduled = 0.99
    """Discount per environment step, or a schedule. In [0, 1]. Default 0.99."""
    advantages: AdvantageKind = "gae"
    """`gae`: generalized advantage estimation; `n_step`: discounted returns of `n_steps` less the value. Default `gae`."""
    gae_lambda: Scheduled = 0.95
    """λ of generalized advantage estimation, or a schedule. In [0, 1]; 0 is the one-step error. Default 0.95."""
    n_steps: int | None = None
    """Rewards that an n-step return adds up before the value of what follows. At least 1; null: to the end of the rollout.
    Default null."""
    clip: Scheduled = 0.2
    """The probability ratio is clipped to [1 - clip, 1 + clip]; may be a schedule. Greater than 0, below 1. Default 0.2."""
    clip_value: bool = True
    """Whether the value's change is clipped to ±`clip` too. Default true."""
    ent_coef: Scheduled = 0.05
    """Weight of the entropy bonus, or a schedule. At least 0. Default 0.05."""
    anneal_entropy: bool = True
    """Whether `ent_coef`, where it is a plain number, falls linearly to 0 over the training. Default true."""
    vf_coef: Scheduled = 0.5
    """Weight of the value loss, or a schedule. At least 0. Default 0.5."""
    teacher: str | None = None
    """A run directory or checkpoint whose policy this one stays close to, for example a clone that it goes on from; null: none.
    Default null."""
    teacher_kl: Scheduled = "1@0 -> 0@1"
    """Weight of KL(teacher || policy) in the loss, in nats per actor, or a schedule. At least 0. Default `1@0 -> 0@1`."""
    target_coef: Scheduled = 0.0
    """Weight of the error with which the network predicts the targets that the world declares, or a schedule. At least 0.
    Default 0."""
    target_kl: float | None = None
    """No further epoch begins once the mean KL divergence over an epoch's minibatches is above this. Greater than 0,
    typically 0.01 to 0.05; null: all epochs. Default null."""
    normalize: Normalize = "none"
    """`rewards`: rewards are divided by the running deviation of their discounted sum; `returns`: the value head learns
    returns with mean 0 and deviation 1 (PopArt). The statistics are part of the run. Default `none`."""
    normalize_advantages: bool = True
    """Whether advantages get mean 0 and deviation 1 within each minibatch. Default true."""
    ratio: Ratio = "per_actor"
    """Whether each actor of a frame has a probability ratio (`per_actor`), or the frame has one, the product (`joint`).
    Default `per_actor`."""
    weighting: Weighting = "actor"
    """Whether every actor counts the same in the loss (`actor`), or every frame (`frame`). Default `actor`."""

    def __post_init__(self) -> None:
        check_scheduled("ppo.gamma", self.gamma, 0, 1)
        check_scheduled("ppo.gae_lambda", self.gae_lambda, 0, 1)
        check_scheduled("ppo.clip", self.clip, 0, 1, open_low=True, open_high=True)
        check_bool("ppo.clip_value", self.clip_value)
        check_scheduled("ppo.ent_coef", self.ent_coef, 0)
        check_bool("ppo.anneal_entropy", self.anneal_entropy)
        check_scheduled("ppo.vf_coef", self.vf_coef, 0)
        check_text("ppo.teacher", self.teacher, optional=True)
        check_scheduled("ppo.teacher_kl", self.teacher_kl, 0)
        check_scheduled("ppo.target_coef", self.target_coef, 0)
        if self.teacher is None and self.teacher_kl != PPOConfig.teacher_kl:
            raise ValueError(
                f"ppo.teacher_kl={self.teacher_kl} needs a teacher: ppo.teacher=<run directory or checkpoint>"
            )
        check_choice("ppo.advantages", self.advantages, get_args(AdvantageKind))
        check_int("ppo.n_steps", self.n_steps, 1, optional=True)
        if self.n_steps is not None and self.advantages != "n_step":
            raise ValueError(f"ppo.n_steps={self.n_steps} needs ppo.advantages=n_step, got {self.advantages!r}")
        if self.target_kl is not None:
            check_float("ppo.target_kl", self.target_kl, 0, open_low=True)
        check_choice("ppo.normalize", self.normalize, get_args(Normalize))
        check_bool("ppo.normalize_advantages", self.normalize_advantages)
        check_choice("ppo.ratio", self.ratio, get_args(Ratio))
        check_choice("ppo.weighting", self.weighting, get_args(Weighting))
