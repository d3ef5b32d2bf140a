"""Settings of behavioural cloning."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from enn_ppo.settings.config import TrainConfig
from rogue_net.checks import HalfOpenUnitInterval, PositiveInt, check_fields


@dataclass(frozen=True, kw_only=True)
class CloningConfig:
    """Settings of behavioural cloning.

    The loss is the cross entropy of the recorded actions, and `ppo.vf_coef` times the error of the values to recorded returns,
    discounted by `ppo.gamma`. Minibatches are of `optim.batch_size` frames; the schedule of `optim.lr` is over the passes.
    """

    epochs: PositiveInt = 20
    """Passes over the recorded frames."""
    holdout: HalfOpenUnitInterval = 0.1
    """Fraction of the episodes that are held out of training to measure the loss."""

    def __post_init__(self) -> None:
        check_fields(self, "clone.")


@dataclass(frozen=True, kw_only=True)
class CloneConfig(TrainConfig):
    """Settings of cloning, and of later training that starts from the clone."""

    data: str | list[str]
    """Recording, or a list of them."""
    clone: CloningConfig = field(default_factory=CloningConfig)
    """Behavioural cloning."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (
            isinstance(self.files, list) and self.files and all(isinstance(f, str) and f.strip() for f in self.files)
        ):
            raise ValueError(f"data must name a recording, or a list of some, got {self.data!r}")
        if self.resume is not None:
            raise ValueError(f"resume={self.resume} is for training: cloning always starts anew")

    @property
    def files(self) -> list[str]:
        """The recordings."""
        return [self.data] if isinstance(self.data, str) else self.data

    @property
    def training(self) -> TrainConfig:
        """The settings of later training that starts from the clone."""
        return TrainConfig(**{each.name: getattr(self, each.name) for each in dataclasses.fields(TrainConfig)})
