"""Settings of training on more than one process: environment runners and learners on Ray, or ranks of torchrun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from rogue_net.checks import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, check_fields, check_int

Mode = Literal["none", "ray", "ddp"]
Stale = Literal["correct", "drop"]


@dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """Settings of training in more than one process."""

    mode: Mode = "none"
    """`none`: this process alone. `ray`: environment runners gather, learners learn, on a Ray cluster (extra `ray`). `ddp`: every
    rank that torchrun has started does both, and gradients are averaged."""
    num_env_runners: PositiveInt = 2
    """Of `ray`: runners, each with an equal share of `rollout.num_envs`."""
    address: str = "local"
    """Of `ray`: `local` starts Ray on this machine, `auto` joins the cluster that runs on it, `ray://host:port` one elsewhere."""
    runner_cpus: PositiveFloat = 1.0
    """Of `ray`: CPUs that Ray sets aside for each runner."""
    learner_cpus: NonNegativeFloat = 1.0
    """Of `ray`: CPUs that Ray sets aside for each learner."""
    learner_gpus: NonNegativeFloat = 0.0
    """Of `ray`: GPUs that Ray sets aside for each learner."""
    sync: bool = True
    """Of `ray`: whether every runner waits for the parameters of the last update, so that runs are exact and can be repeated.
    Otherwise runners go on with those that they have."""
    max_staleness: NonNegativeInt = 2
    """Of `ray` with `sync=false`: updates that parameters may be behind while a rollout is gathered with them; a runner that is
    further ahead waits."""
    stale: Stale = "correct"
    """Of `ray` with `sync=false`: what becomes of rollouts that were gathered with older parameters: `correct` weighs them by
    V-trace, `drop` does not learn from them."""
    min_samples: PositiveInt | None = None
    """Of `ray` with `sync=false`: frames that are gathered before an update. null: as many as one rollout of all runners has."""
    max_env_failures: NonNegativeInt = 3
    """Of `ray`: environments that may raise before training ends; a runner begins again after each."""
    final_episodes: NonNegativeInt = 0
    """Of `ray`: episodes that runners play with the last parameters before they check out, shared between them."""
    initial: str | None = None
    """Of `ray`: a run directory or checkpoint where the first runner is, whose policy training begins with, or what holds run
    directories of `policies`; null: the learner's own."""

    def __post_init__(self) -> None:
        check_fields(self, "distributed.")
        if self.address not in ("local", "auto") and not self.address.startswith("ray://"):
            raise ValueError(f"distributed.address must be local, auto or ray://<host>:<port>, got {self.address!r}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "mode" or value == field.default:
                continue
            if self.mode != "ray":
                raise ValueError(
                    f"distributed.{field.name}={value} needs distributed=ray, got distributed.mode={self.mode}"
                )
            if self.sync and field.name in ("max_staleness", "stale", "min_samples"):
                raise ValueError(f"distributed.{field.name}={value} needs distributed.sync=false")


def check_policies(given: Any) -> dict[str, list[int]]:
    """`policies` as they are: policy -> its players.

    Raises:
        ValueError: they are none, or leave a player out, or have one twice.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"policies must be a mapping of names to players, got {given!r}")
    policies: dict[str, list[int]] = {}
    for name, players in given.items():
        listed = [players] if isinstance(players, int) and not isinstance(players, bool) else players
        if not isinstance(listed, list | tuple) or not listed:
            raise ValueError(f"policies.{name} must be a player's number or a list of them, got {players!r}")
        for player in listed:
            check_int(f"policies.{name}", player, 0)
        policies[str(name)] = list(listed)
    everyone = [player for players in policies.values() for player in players]
    if policies and sorted(everyone) != list(range(len(everyone))):
        raise ValueError(f"policies must have every player of 0 to {max(everyone)} once, got {dict(policies)}")
    return policies
