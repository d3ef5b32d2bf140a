"""Settings of training in several processes: environment runners and learners on Ray, or ranks of torchrun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from rogue_net.checks import NonNegativeInt, NumWorkers, Range, check_fields


@dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """Settings of training in more than one process."""

    mode: Literal["none", "ray", "ddp"] = "none"
    """`none`: a single process. `ray`: environment runners collect rollouts and learners train, on a Ray cluster (extra `ray`).
    `ddp`: data parallel ranks of torchrun, each with environments and a learner; gradients are averaged."""
    num_env_runners: NumWorkers = 2
    """With `ray`: number of environment runners, each with an equal share of `rollout.num_envs`."""
    address: str = "local"
    """With `ray`: `local` starts Ray on this machine, `auto` joins this machine's cluster, `ray://host:port` a remote one."""
    max_staleness: NonNegativeInt = 0
    """With `ray`: largest policy lag, in updates, of a rollout's parameters. With 0 every runner waits for the parameters of the
    last update, which makes runs on-policy and reproducible. Otherwise runners continue with older parameters; V-trace weighs
    their rollouts, and those that are older still are dropped."""

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


def check_policies(given: Mapping[str, Any]) -> dict[str, list[int]]:
    """Check the setting `policies`. Returns policy -> its players.

    Raises:
        ValueError: a player is missing or occurs twice.
    """
    policies: dict[str, list[int]] = {}
    for name, players in given.items():
        listed = [players] if isinstance(players, int) and not isinstance(players, bool) else players
        if not isinstance(listed, list | tuple) or not listed:
            raise ValueError(f"policies.{name} must be a player's number or a list of them, got {players!r}")
        for player in listed:
            Range(0).check(f"policies.{name}", player, int)
        policies[str(name)] = list(listed)
    everyone = [player for players in policies.values() for player in players]
    if policies and sorted(everyone) != list(range(len(everyone))):
        raise ValueError(f"policies must have every player of 0 to {max(everyone)} once, got {dict(policies)}")
    return policies
