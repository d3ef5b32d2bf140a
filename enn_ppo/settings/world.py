"""Settings of the world: the environment, how experience is gathered in it, and against whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from enn_ppo.settings.distributions import check_distributions
from enn_ppo.settings.schema import plain
from rogue_net.checks import check_bool, check_choice, check_float, check_int, check_text

Sampling = Literal["uniform", "prioritized"]
Api = Literal["entity", "gymnasium", "dm_env", "pettingzoo", "program"]


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """The world to train in."""

    id: str = "MineSweeper"
    """A registered name, or `package.module:Class` of an importable class or factory; with another `api`, what that calls a
    world, such as Gymnasium's `CartPole-v1`. Default `MineSweeper`."""
    api: Api = "entity"
    """Whose interface the world has: `entity` (this project's), `gymnasium`, `dm_env`, `pettingzoo`, or `program` (one in any
    language, see the page on the protocol). Default `entity`."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of its constructor: numbers, texts, truth values, null, lists and mappings. Default: none."""
    info: dict[str, Any] = field(default_factory=dict)
    """Parameters that each episode draws anew, by name (curricula, domain randomization): a number or a schedule over
    progress (`1@0 -> 5@0.5`), a list of which one is drawn, or `{low: ..., high: ...}`, both ends included, drawn
    uniformly (whole numbers where both are). The environment must take them in `configure`; evaluation does not draw them,
    and plays by `kwargs`. Default: none."""

    def __post_init__(self) -> None:
        check_text("env.id", self.id)
        check_choice("env.api", self.api, get_args(Api))
        if not isinstance(self.kwargs, Mapping):
            raise ValueError(f"env.kwargs must be a mapping of argument names to values, got {self.kwargs!r}")
        object.__setattr__(self, "kwargs", plain(self.kwargs, "env.kwargs"))
        object.__setattr__(self, "info", check_distributions("env.info", self.info))


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """How much experience one update learns from: `num_envs * steps` frames."""

    num_envs: int = 128
    """Environments stepped together. At least 1. Default 128."""
    steps: int = 16
    """Steps of each environment between two updates. At least 1. Default 16."""
    num_threads: int | Literal["auto"] = 1
    """Threads that step environments, the main one included; more than one helps where a step of all takes longer than
    about 150 microseconds, and Python environments only while they release the GIL. At least 1; `auto` measures and picks.
    Default 1."""
    num_processes: int = 0
    """Worker processes that step environments, for slow Python ones. At least 0, at most `num_envs`; 0: none. Default 0."""
    block: int | None = None
    """Environments that the policy acts in at a time; `num_envs` must be a multiple. What a block plays does not depend on the
    others, to the last bit, so runs whose blocks are the same are the same, however many processes or machines these are
    spread over. At least 1; null: all environments at once, which is fastest. Default null."""
    pipeline: int = 1
    """Blocks that are played at a time: with 2, one is stepped, in a thread of its own, while the policy acts in the other;
    without `block` they are the two halves of `num_envs`. What is played is what one block after the other plays, to the last
    bit. Helps where the policy is on a GPU, or environments wait or leave cores idle for about as long as it acts; where both
    need every core, or environments are pure Python outside `num_processes`, nothing is gained. `num_threads` and
    `num_processes` are for each block. At least 1, at most 2. Default 1."""
    freeze_normalization_after: int | None = None
    """Environment steps after which the statistics that normalize the policy's inputs stay as they are; 0: as they are
    after the first rollout, which is played and not learned from. At least 0; null: never. Default null."""

    def __post_init__(self) -> None:
        check_int("rollout.num_envs", self.num_envs, 1)
        check_int("rollout.steps", self.steps, 1)
        if isinstance(self.num_threads, str):
            check_choice("rollout.num_threads", self.num_threads, ["auto"])
        else:
            check_int("rollout.num_threads", self.num_threads, 1)
        check_int("rollout.num_processes", self.num_processes, 0)
        check_int("rollout.block", self.block, 1, optional=True)
        if type(self.pipeline) is not int or self.pipeline not in (1, 2):
            raise ValueError(f"rollout.pipeline must be an integer, 1 or 2, got {self.pipeline!r}")
        check_int("rollout.freeze_normalization_after", self.freeze_normalization_after, 0, optional=True)
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
    """Whether the policy learns as one player of each environment, and the others are played by a pool of its past
    selves; otherwise it plays all sides of a frame. Default false."""
    snapshot_interval: int = 50_000
    """Environment steps between two snapshots that join the pool. At least 1. Default 50,000."""
    pool_size: int = 20
    """Snapshots kept, spread over the run. At least 1. Default 20."""
    latest: float = 0.5
    """Share of the environments in which the others are the policy as it is now. In [0, 1]. Default 0.5."""
    zero_sum: bool = False
    """Whether the policy's reward is its own less the mean of the other players', so that what is good for them is bad for
    it; otherwise its own alone. Default false."""
    sampling: Sampling = "uniform"
    """How snapshots are drawn: `uniform`, or `prioritized`, those the policy loses to more often. Default `uniform`."""

    def __post_init__(self) -> None:
        check_bool("self_play.enabled", self.enabled)
        check_int("self_play.snapshot_interval", self.snapshot_interval, 1)
        check_int("self_play.pool_size", self.pool_size, 1)
        check_float("self_play.latest", self.latest, 0, 1)
        check_bool("self_play.zero_sum", self.zero_sum)
        check_choice("self_play.sampling", self.sampling, get_args(Sampling))
