"""Settings of the environment, rollouts and self-play."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from enn_ppo.settings.schedule import Distribution, parse_distribution
from enn_ppo.settings.schema import plain
from rogue_net.checks import NumWorkers, PositiveInt, Range, check_fields


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """The environment to train in."""

    id: str = "MineSweeper"
    """A registered name, or `package.module:Class` of an importable class or factory; with another `api`, that library's name of
    an environment, such as Gymnasium's `CartPole-v1`."""
    api: Literal["entity", "gymnasium", "dm_env", "pettingzoo", "program"] = "entity"
    """Interface of the environment: `entity` (this project's), `gymnasium`, `dm_env`, `pettingzoo`, or `program` (a program in
    any language, see the page on the protocol)."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor: numbers, texts, truth values, null, lists and mappings."""
    view: str | dict[str, Any] | None = None
    """What of a flat observation is an entity, for `gymnasium`, `dm_env` and `pettingzoo`: the name of a view that comes with
    entity_gym (`highway`, `foraging`, ...), a YAML file, or a mapping with its content. null: its spaces decide."""
    wrappers: list[str] = field(default_factory=list)
    """Wrappers around each environment, the innermost first, for `gymnasium` and `pettingzoo`: `my_pkg.my_wrappers:MyWrapper`, or
    with arguments `"gymnasium.wrappers:TimeLimit(max_episode_steps=50)"`."""
    info: dict[str, Any] = field(default_factory=dict)
    """Parameters that are drawn for each episode, by name (curricula, domain randomization): a number or a schedule over progress
    (`1@0 -> 5@0.5`), a list of choices, or a uniform range `{low: ..., high: ...}`, ends included (of whole numbers if both ends
    are). The environment must accept them in `configure`; evaluation uses `kwargs` instead."""

    def __post_init__(self) -> None:
        check_fields(self, "env.")
        named = isinstance(self.view, str) and self.view.strip()
        if self.view is not None and not named and not isinstance(self.view, Mapping):
            raise ValueError(f"env.view must be a name, a YAML file, a mapping or null, got {self.view!r}")
        if not isinstance(self.wrappers, list | tuple) or not all(isinstance(each, str) for each in self.wrappers):
            raise ValueError(
                f"env.wrappers must be a list, such as [my_pkg.my_wrappers:MyWrapper], got {self.wrappers!r}"
            )
        for name in ("kwargs", "view", "wrappers", "info"):
            object.__setattr__(self, name, plain(getattr(self, name), f"env.{name}"))
        _ = self.distributions  # parsing checks the values

    @cached_property
    def distributions(self) -> dict[str, Distribution]:
        """The distributions of `info`."""
        return {name: parse_distribution(f"env.info.{name}", given) for name, given in self.info.items()}


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Settings of rollouts. An update learns from `num_envs * steps` frames."""

    num_envs: PositiveInt = 128
    """Environments stepped together."""
    steps: PositiveInt = 16
    """Steps of each environment between two updates."""
    group_size: PositiveInt = 1
    """Environments in a group: in each rollout, their first new episodes begin with the same seed and parameters, and so do their
    second ones. `num_envs` must be a multiple, for each runner or rank. `ppo.advantages` compares the members of a group."""
    num_threads: NumWorkers = 1
    """Threads that step environments, including the main thread; more than one helps if a step of all environments takes longer
    than about 150 microseconds, and for Python environments only if they release the GIL."""
    num_processes: Annotated[int, Range(0, 1024)] = 0
    """Worker processes that step environments, for slow Python environments; at most `num_envs`. 0: none."""
    block: PositiveInt | None = None
    """Environments in each batch of acting; `num_envs` must be a multiple. Runs with equal blocks are equal, to the last bit, on
    any number of processes or machines. null: all environments at once, which is fastest."""
    pipeline: Annotated[int, Range(1, 2)] = 1
    """Blocks that are played at a time: with 2, a thread steps one block while the policy acts in the other; without `block`, the
    blocks are the two halves of `num_envs`. Results are equal, to the last bit. This helps if the policy is on a GPU, or if
    stepping leaves cores idle. `num_threads` and `num_processes` are per block."""

    def __post_init__(self) -> None:
        check_fields(self, "rollout.")
        unit = (self.block or 1) * self.pipeline
        if self.num_envs % unit:
            raise ValueError(
                f"rollout.num_envs={self.num_envs} must be a multiple of {unit} (rollout.block={self.block}, "
                f"rollout.pipeline={self.pipeline})"
            )
        if self.num_envs % self.group_size:
            raise ValueError(
                f"rollout.num_envs={self.num_envs} must be a multiple of rollout.group_size={self.group_size}"
            )
        if self.num_processes > self.block_size:
            raise ValueError(
                f"rollout.num_processes must be at most the {self.block_size} environments of a block (rollout.num_envs="
                f"{self.num_envs}, rollout.block={self.block}, rollout.pipeline={self.pipeline}), got {self.num_processes}"
            )
        if self.num_processes and self.num_threads != 1:
            raise ValueError(
                f"rollout.num_processes={self.num_processes} and rollout.num_threads={self.num_threads}: use one of them"
            )

    def share(self, number: int, of: str) -> RolloutConfig:
        """The settings of each of several equal shares of the environments.

        Raises:
            ValueError: the environments do not divide into shares of whole blocks and processes; `of` says whose shares they are,
                such as `runners`.
        """
        if number == 1:
            return self
        if self.num_envs % number:
            raise ValueError(f"rollout.num_envs={self.num_envs} must be a multiple of the {number} {of}")
        try:
            return replace(self, num_envs=self.num_envs // number)
        except ValueError as error:
            raise ValueError(f"each of {number} {of} has {self.num_envs // number} environments: {error}") from None

    @property
    def block_size(self) -> int:
        """Number of environments in each batch of acting."""
        return self.block or self.num_envs // self.pipeline


@dataclass(frozen=True, kw_only=True)
class SelfPlayConfig:
    """Self-play against past versions of the policy, in environments with several players (see `entity_gym.pools.players`)."""

    enabled: bool = False
    """Whether the policy trains as one player of each environment, against a pool of snapshots of itself; otherwise it plays all
    players."""
    snapshot_interval: PositiveInt = 50_000
    """Environment steps between two snapshots."""
    pool_size: PositiveInt = 20
    """Largest number of snapshots in the pool, spread over the run."""
    zero_sum: bool = False
    """Whether the mean reward of the other players is subtracted from the policy's reward."""

    def __post_init__(self) -> None:
        check_fields(self, "self_play.")
