"""Settings of training on more than one process: environment runners and learners on Ray, or ranks of torchrun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rogue_net.checks import check_bool, check_choice, check_float, check_int, check_text

Mode = Literal["none", "ray", "ddp"]
Stale = Literal["correct", "drop"]


@dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """Where experience is gathered and learned from, if that is not one process."""

    mode: Mode = "none"
    """`none`: this process alone. `ray`: environment runners gather, learners learn, on a Ray cluster (extra `ray`). `ddp`:
    every rank that torchrun has started does both, and gradients are averaged. Default `none`."""
    num_env_runners: int = 2
    """Of `ray`: runners, each with an equal share of `rollout.num_envs`. At least 1. Default 2."""
    address: str = "local"
    """Of `ray`: `local` starts Ray on this machine, `auto` joins the cluster that runs on it, `ray://host:port` one
    elsewhere. Default `local`."""
    runner_cpus: float = 1.0
    """Of `ray`: CPUs that Ray sets aside for each runner. Greater than 0. Default 1."""
    learner_cpus: float = 1.0
    """Of `ray`: CPUs that Ray sets aside for each learner. At least 0. Default 1."""
    learner_gpus: float = 0.0
    """Of `ray`: GPUs that Ray sets aside for each learner. At least 0. Default 0."""
    sync: bool = True
    """Of `ray`: whether every runner waits for the parameters of the last update, so that runs are exact and can be repeated.
    Otherwise runners go on with those that they have. Default true."""
    max_staleness: int = 2
    """Of `ray` with `sync=false`: updates that parameters may be behind while a rollout is gathered with them; a runner that is
    further ahead waits. At least 0. Default 2."""
    stale: Stale = "correct"
    """Of `ray` with `sync=false`: what becomes of rollouts that were gathered with older parameters: `correct` weighs them by
    V-trace, `drop` does not learn from them. Default `correct`."""
    min_samples: int | None = None
    """Of `ray` with `sync=false`: frames that are gathered before an update. At least 1; null: as many as one rollout of all
    runners has. Default null."""
    max_env_failures: int = 3
    """Of `ray`: environments that may raise before training ends; a runner begins again after each. At least 0. Default 3."""
    final_episodes: int = 0
    """Of `ray`: episodes that runners play with the last parameters before they check out, shared between them. At least 0.
    Default 0."""
    initial: str | None = None
    """Of `ray`: a run directory or checkpoint where the first runner is, whose policy training begins with, or what holds run
    directories of `policies`; null: the learner's own. Default null."""

    def __post_init__(self) -> None:
        check_choice("distributed.mode", self.mode, get_args(Mode))
        check_int("distributed.num_env_runners", self.num_env_runners, 1)
        check_text("distributed.address", self.address)
        if self.address not in ("local", "auto") and not self.address.startswith("ray://"):
            raise ValueError(f"distributed.address must be local, auto or ray://<host>:<port>, got {self.address!r}")
        check_float("distributed.runner_cpus", self.runner_cpus, 0, open_low=True)
        check_float("distributed.learner_cpus", self.learner_cpus, 0)
        check_float("distributed.learner_gpus", self.learner_gpus, 0)
        check_bool("distributed.sync", self.sync)
        check_int("distributed.max_staleness", self.max_staleness, 0)
        check_choice("distributed.stale", self.stale, get_args(Stale))
        check_int("distributed.min_samples", self.min_samples, 1, optional=True)
        check_int("distributed.max_env_failures", self.max_env_failures, 0)
        check_int("distributed.final_episodes", self.final_episodes, 0)
        check_text("distributed.initial", self.initial, optional=True)
        self._check_needs()

    def _check_needs(self) -> None:
        default = type(self).__dataclass_fields__
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name == "mode" or value == default[name].default:
                continue
            if self.mode != "ray":
                raise ValueError(f"distributed.{name}={value} needs distributed=ray, got distributed.mode={self.mode}")
            if self.sync and name in ("max_staleness", "stale", "min_samples"):
                raise ValueError(f"distributed.{name}={value} needs distributed.sync=false")


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
