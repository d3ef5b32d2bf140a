"""Settings of evaluation, by itself and during training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from enn_ppo.settings.schema import plain
from rogue_net.checks import check_bool, check_choice, check_int, check_text

Device = Literal["auto", "cpu", "cuda"]
VIDEO_FORMATS = (".gif", ".mp4")


@dataclass(frozen=True, kw_only=True)
class EpisodesConfig:
    """Settings of the episodes of an evaluation."""

    episodes: int = 100
    """Episodes to play: exactly that many count. At least 1. Default 100."""
    greedy: bool | None = None
    """Whether the likeliest action is taken instead of a sampled one; null: while training, no; of a checkpoint, as its run's
    `eval.greedy` says, which presets set. Default null."""
    seed: int = 1_000_001
    """Seeds the environments and the sampling; the default is no seed that training would use. At least 0. Default
    1,000,001."""
    num_envs: int = 64
    """Environments stepped together. At least 1. Default 64."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment that differ from training's. Default: none."""
    opponent: str | None = None
    """Who plays the other players, where the environment has several: `random`, `past` (earlier policies of the same
    run), or a run directory or checkpoint; the policy then plays every side in turn. `policies`, in runs with `policies`: each
    of them plays its own players, as it was at the same step. null: the policy plays all sides at once; after self-play each
    side by itself, with what its player sees; in evaluations of runs with `policies` while training, as `policies`. Default
    null."""
    max_episode_steps: int = 100_000
    """An episode still running after so many steps ends the evaluation with an error. At least 1. Default 100,000."""
    video: int = 0
    """Episodes to film. At least 0, at most `episodes`. Default 0."""

    _section = ""

    def __post_init__(self) -> None:
        at = self._section
        check_int(f"{at}episodes", self.episodes, 1)
        if self.greedy is not None:
            check_bool(f"{at}greedy", self.greedy)
        check_int(f"{at}seed", self.seed, 0)
        check_int(f"{at}num_envs", self.num_envs, 1)
        if not isinstance(self.env_kwargs, Mapping):
            raise ValueError(f"{at}env_kwargs must be a mapping of argument names to values, got {self.env_kwargs!r}")
        object.__setattr__(self, "env_kwargs", plain(self.env_kwargs, f"{at}env_kwargs"))
        check_text(f"{at}opponent", self.opponent, optional=True)
        check_int(f"{at}max_episode_steps", self.max_episode_steps, 1)
        check_int(f"{at}video", self.video, 0)
        if self.video > self.episodes:
            raise ValueError(f"{at}video must be at most {at}episodes={self.episodes}, got {self.video}")


@dataclass(frozen=True, kw_only=True)
class TrainEvalConfig(EpisodesConfig):
    """Evaluation during training. What is evaluated is a checkpoint, so there is one whenever an evaluation is due."""

    interval: int | None = None
    """Environment steps between two evaluations; the last policy is always evaluated. At least 1; null: no evaluation.
    Default null."""
    process: bool = True
    """Whether a process of its own evaluates while training goes on; otherwise training waits. Default true."""
    niceness: int = 0
    """Of the process: 0 shares the cores evenly with training, 19 leaves to it what nobody else wants, which on a busy machine
    may be nothing. At least 0, at most 19. Default 0."""
    video_format: Literal["gif", "mp4"] = "gif"
    """Of the films in `videos/`. Default `gif`."""

    _section = "eval."

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("eval.interval", self.interval, 1, optional=True)
        check_bool("eval.process", self.process)
        check_int("eval.niceness", self.niceness, 0)
        if self.niceness > 19:
            raise ValueError(f"eval.niceness must be an integer of at least 0 and at most 19, got {self.niceness}")
        check_choice("eval.video_format", self.video_format, ["gif", "mp4"])


@dataclass(frozen=True, kw_only=True)
class EvalConfig(EpisodesConfig):
    """Everything that an evaluation depends on."""

    checkpoint: str
    """A run directory, or one of its checkpoints. Required."""
    device: Device = "auto"
    """`cpu`, `cuda`, or `auto`: cuda where there is one. Default `auto`."""
    output: str | None = None
    """JSON file for the result; null: only printed. Default null."""
    render: str | None = None
    """Film (`.gif` or `.mp4`) of `video` episodes, of one where `video` is 0; null: none. Default null."""
    record: str | None = None
    """File of samples to record, for behavioural cloning; null: none. Default null."""
    record_logits: bool = False
    """Whether the logits of all choices are recorded too. Default false."""
    debug: bool = False
    """Whether a mistake shows its traceback beside the message. Default false."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.checkpoint, str) or not self.checkpoint.strip():
            raise ValueError(f"checkpoint must name a run directory or one of its checkpoints, got {self.checkpoint!r}")
        check_choice("device", self.device, get_args(Device))
        check_text("output", self.output, optional=True)
        check_text("render", self.render, optional=True)
        if self.render is not None and not self.render.lower().endswith(VIDEO_FORMATS):
            raise ValueError(f"render must name a file that ends with .gif or .mp4, got {self.render!r}")
        if self.video and self.render is None:
            raise ValueError(f"video={self.video} needs a file: render=<name>.gif or .mp4")
        check_text("record", self.record, optional=True)
        check_bool("record_logits", self.record_logits)
        if self.record_logits and self.record is None:
            raise ValueError("record_logits=true needs a file: record=<name>")
        check_bool("debug", self.debug)
