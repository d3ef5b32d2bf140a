"""Settings of behavioural cloning."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal, get_args

from enn_ppo.config import TrainConfig
from enn_ppo.settings.schedule import Scheduled, check_scheduled
from rogue_net.checks import check_choice, check_float, check_int

Loss = Literal["cross_entropy", "kl", "log_prob"]


@dataclass(frozen=True, kw_only=True)
class CloningConfig:
    """How a policy learns from recordings."""

    loss: Loss = "cross_entropy"
    """What of the recording is imitated: `cross_entropy`: the actions; `kl`: the probabilities of all choices, where logits
    were recorded; `log_prob`: the log-probabilities of the actions, by their squared error. Default `cross_entropy`."""
    epochs: int = 20
    """Passes over the recorded frames. At least 1. Default 20."""
    batch_size: int = 512
    """Frames per optimizer step. At least 1. Default 512."""
    lr: Scheduled = "0.002@0 -> 0@1"
    """Learning rate of AdamW, or a schedule over the passes. At least 0. Default `0.002@0 -> 0@1`."""
    weight_decay: float = 0.0
    """Decoupled weight decay per unit of learning rate. At least 0. Default 0."""
    max_grad_norm: float = 1.0
    """The gradient's 2-norm is scaled down to this. Greater than 0. Default 1."""
    vf_coef: float = 0.5
    """Weight of the value loss: values learn the recorded returns, discounted by `ppo.gamma`. At least 0. Default 0.5."""
    holdout: float = 0.1
    """Share of the episodes that are not learned from, and tell how well the clone does. At least 0, below 1. Default
    0.1."""
    patience: int | None = None
    """Cloning ends after so many passes in which the loss of the held-out episodes has not fallen, and the best pass is
    kept. At least 1; null: all passes, and the last is kept. Default null."""

    def __post_init__(self) -> None:
        check_choice("clone.loss", self.loss, get_args(Loss))
        check_int("clone.epochs", self.epochs, 1)
        check_int("clone.batch_size", self.batch_size, 1)
        check_scheduled("clone.lr", self.lr, 0)
        check_float("clone.weight_decay", self.weight_decay, 0)
        check_float("clone.max_grad_norm", self.max_grad_norm, 0, open_low=True)
        check_float("clone.vf_coef", self.vf_coef, 0)
        check_float("clone.holdout", self.holdout, 0, 1, open_high=True)
        check_int("clone.patience", self.patience, 1, optional=True)
        if self.patience is not None and not self.holdout:
            raise ValueError(f"clone.patience={self.patience} needs episodes that are held out: clone.holdout=0.1")


@dataclass(frozen=True, kw_only=True)
class CloneConfig(TrainConfig):
    """Everything that cloning depends on. What is not about cloning is of the training that may go on from the clone."""

    data: str | list[str]
    """Recorded file, or a list of them. Required."""
    clone: CloningConfig = field(default_factory=CloningConfig)
    """How the policy learns from them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.clone, CloningConfig):
            raise ValueError(f"clone must be a CloningConfig, got {self.clone!r}")
        files = self.files
        if not (isinstance(files, list) and files and all(isinstance(file, str) and file.strip() for file in files)):
            raise ValueError(f"data must name a recorded file, or a list of some, got {self.data!r}")
        if self.resume is not None:
            raise ValueError(f"resume={self.resume} is for training: cloning always starts anew")

    @property
    def files(self) -> list[str]:
        """The recorded files."""
        return [self.data] if isinstance(self.data, str) else self.data

    @property
    def training(self) -> TrainConfig:
        """The settings of the training that may go on from the clone."""
        return TrainConfig(**{each.name: getattr(self, each.name) for each in dataclasses.fields(TrainConfig)})
