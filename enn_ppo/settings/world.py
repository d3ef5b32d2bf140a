"""Settings of the world: the environment, how experience is gathered in it, and against whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

from enn_ppo.settings.distributions import Distribution, parse_distributions
from enn_ppo.settings.schema import plain
from rogue_net.checks import NonNegativeInt, PositiveInt, Range, UnitInterval, check_fields

Sampling = Literal["uniform", "prioritized"]
Api = Literal["entity", "gymnasium", "dm_env", "pettingzoo", "program"]


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """The world to train in."""

    id: str = "MineSweeper"
    """A registered name, or `package.module:Class` of an importable class or factory; with another `api`, what that calls a
    world, such as Gymnasium's `CartPole-v1`."""
    api: Api = "entity"
    """Whose interface the world has: `entity` (this project's), `gymnasium`, `dm_env`, `pettingzoo`, or `program` (one in any
    language, see the page on the protocol)."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of its constructor: numbers, texts, truth values, null, lists and mappings."""
    info: dict[str, Any] = field(default_factory=dict)
    """Parameters that each episode draws anew, by name (curricula, domain randomization): a number or a schedule over progress
    (`1@0 -> 5@0.5`), a list of which one is drawn, or `{low: ..., high: ...}`, both ends included, drawn uniformly (whole numbers
    where both are). The environment must take them in `configure`; evaluation does not draw them, and plays by `kwargs`."""

    def __post_init__(self) -> None:
        check_fields(self, "env.")
        if not isinstance(self.kwargs, Mapping):
            raise ValueError(f"env.kwargs must be a mapping of argument names to values, got {self.kwargs!r}")
        if not isinstance(self.info, Mapping):
            raise ValueError(f"env.info must be a mapping of parameters to distributions, got {self.info!r}")
        for name in ("kwargs", "info"):
            object.__setattr__(self, name, plain(getattr(self, name), f"env.{name}"))
        _ = self.distributions  # parsed once, which checks them

    @cached_property
    def distributions(self) -> dict[str, Distribution]:
        """The distributions of `info`."""
        return parse_distributions("env.info", self.info)


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Settings of rollouts. An update learns from `num_envs * steps` frames."""

    num_envs: PositiveInt = 128
    """Environments stepped together."""
    steps: PositiveInt = 16
    """Steps of each environment between two updates."""
    num_threads: PositiveInt | Literal["auto"] = 1
    """Threads that step environments, the main one included; more than one helps where a step of all takes longer than about 150
    microseconds, and Python environments only while they release the GIL. `auto` measures and picks."""
    num_processes: NonNegativeInt = 0
    """Worker processes that step environments, for slow Python ones; at most `num_envs`. 0: none."""
    block: PositiveInt | None = None
    """Environments that the policy acts in at a time; `num_envs` must be a multiple. What a block plays does not depend on the
    others, to the last bit, so runs whose blocks are the same are the same, however many processes or machines these are spread
    over. null: all environments at once, which is fastest."""
    pipeline: Annotated[int, Range(1, 2)] = 1
    """Blocks that are played at a time: with 2, one is stepped, in a thread of its own, while the policy acts in the other;
    without `block` they are the two halves of `num_envs`. What is played is what one block after the other plays, to the last
    bit. Helps where the policy is on a GPU, or environments wait or leave cores idle for about as long as it acts; where both
    need every core, or environments are pure Python outside `num_processes`, nothing is gained. `num_threads` and `num_processes`
    are for each block."""
    freeze_normalization_after: NonNegativeInt | None = None
    """Environment steps after which the statistics that normalize the policy's inputs stay as they are; 0: as they are after the
    first rollout, which is played and not learned from. null: never."""

    def __post_init__(self) -> None:
        check_fields(self, "rollout.")
        self._check_blocks()
        if self.num_processes and self.num_threads != 1:
            raise ValueError(
                f"rollout.num_processes={self.num_processes} and rollout.num_threads={self.num_threads}: use one of them"
            )

    def _check_blocks(self) -> None:
        if self.block and self.num_envs % self.block:
            raise ValueError(f"rollout.num_envs={self.num_envs} must be a multiple of rollout.block, got {self.block}")
        if problem := self.halves_problem(self.num_envs):
            raise ValueError(f"rollout.num_envs={self.num_envs} {problem}")
        if self.num_processes > self.block_size:
            of = f"rollout.num_envs={self.num_envs}"
            if self.block or self.pipeline > 1:
                of = f"rollout.block={self.block}" if self.block else f"half of {of}, with rollout.pipeline=2"
            raise ValueError(f"rollout.num_processes must be at most {of}, got {self.num_processes}")

    @property
    def block_size(self) -> int:
        """Environments that the policy acts in at a time."""
        return self.block or self.num_envs // self.pipeline

    def halves_problem(self, num_envs: int) -> str | None:
        """Why `pipeline` cannot have so many environments, in the words that follow on their number; None if it can."""
        if self.pipeline == 1:
            return None
        if self.block is None:
            return "must be even with rollout.pipeline=2, whose blocks are its halves" if num_envs % 2 else None
        number = num_envs // self.block
        if number % 2 == 0:
            return None
        blocks = "1 block" if number == 1 else f"{number} blocks"
        return (
            f"makes {blocks} of rollout.block={self.block}, and rollout.pipeline=2 plays two at a time: their number must "
            "be even"
        )


@dataclass(frozen=True, kw_only=True)
class SelfPlayConfig:
    """Learning against past selves, in worlds with several players (see `entity_gym.pools.players`)."""

    enabled: bool = False
    """Whether the policy learns as one player of each environment, and the others are played by a pool of its past selves;
    otherwise it plays all sides of a frame."""
    snapshot_interval: PositiveInt = 50_000
    """Environment steps between two snapshots that join the pool."""
    pool_size: PositiveInt = 20
    """Snapshots kept, spread over the run."""
    latest: UnitInterval = 0.5
    """Share of the environments in which the others are the policy as it is now."""
    zero_sum: bool = False
    """Whether the policy's reward is its own less the mean of the other players', so that what is good for them is bad for it;
    otherwise its own alone."""
    sampling: Sampling = "uniform"
    """How snapshots are drawn: `uniform`, or `prioritized`, those the policy loses to more often."""

    def __post_init__(self) -> None:
        check_fields(self, "self_play.")
