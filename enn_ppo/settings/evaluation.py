"""Settings of evaluation, of a checkpoint and during training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from enn_ppo.settings.schema import plain
from rogue_net.checks import NonNegativeInt, PositiveFloat, PositiveInt, Range, check_fields

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class PlayConfig:
    """Settings of the episodes that a policy plays."""

    episodes: PositiveInt = 100
    """Number of episodes to play."""
    greedy: bool | None = None
    """Whether to take the most likely action instead of a sampled one; null: during training, no; for a checkpoint, the
    `eval.greedy` of its run, which presets set."""
    seed: NonNegativeInt = 1_000_001
    """Seeds the environments and the sampling; the default is unlikely to be a training seed."""
    opponent: str | None = None
    """Policy of the other players, in environments with several: `random`, `past` (earlier policies of the same run), or a run
    directory or checkpoint; the policy then plays every player in turn. `policies`: each policy of a run with several plays its
    own players. null: the policy plays all players, after self-play each with that player's observations; during training of
    several policies, as `policies`."""
    _section = ""

    def __post_init__(self) -> None:
        check_fields(self, self._section)


@dataclass(frozen=True, kw_only=True)
class EpisodesConfig(PlayConfig):
    """Settings of the episodes of an evaluation."""

    num_envs: PositiveInt = 64
    """Environments stepped together."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment that differ from those of training."""
    temperature: PositiveFloat = 1.0
    """Of sampled actions: below 1 bolder, towards the likeliest actions, above 1 more random."""
    best_of: PositiveInt = 1
    """Times that each episode is played, from the same seed, with sampled actions: that with the most reward counts, and
    `episodic_reward_mean` is the mean reward of all. `best_of` times `num_envs` environments are stepped together."""
    max_episode_steps: PositiveInt = 100_000
    """Longest episode in steps; a longer one ends the evaluation with an error."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "env_kwargs", plain(self.env_kwargs, f"{self._section}env_kwargs"))
        section = self._section
        if self.greedy and self.temperature != 1:
            raise ValueError(
                f"{section}temperature={self.temperature} is for sampled actions; leave out {section}greedy=true"
            )
        for name, wrong in (("greedy", self.greedy), ("opponent", self.opponent)):
            if self.best_of > 1 and wrong:
                raise ValueError(
                    f"{section}best_of={self.best_of} and {section}{name}={str(wrong).lower()} do not go together: all tries "
                    "are sampled, by one policy that plays alone"
                )


@dataclass(frozen=True, kw_only=True)
class TrainEvalConfig(EpisodesConfig):
    """Evaluation during training, in a separate process. It uses checkpoints, so one is saved whenever an evaluation is due."""

    interval: PositiveInt | None = None
    """Environment steps between two evaluations; the last policy is always evaluated. null: no evaluation."""
    video: NonNegativeInt = 0
    """Number of episodes to film into `videos/` of the run directory."""
    replay: NonNegativeInt = 0
    """Number of episodes in the replay in `replays/` of the run directory, a page that shows them with the policy's probabilities
    and attention."""

    _section = "eval."


@dataclass(frozen=True, kw_only=True)
class EvalConfig(EpisodesConfig):
    """Settings of an evaluation."""

    checkpoint: str
    """A run directory, one of its checkpoints, or a file that `python -m enn_ppo.export` wrote."""
    device: Device = "auto"
    """`cpu`, `cuda`, or `auto`: cuda where there is one."""
    trust: bool = False
    """Whether to run the code that the checkpoint's settings name, its environment, although this installation of enn-ppo has
    not written the checkpoint."""
    output: str | None = None
    """JSON file for the result; null: only printed."""
    render: str | None = None
    """File (`.gif`) for a film of the first three episodes; null: none."""
    record: str | None = None
    """Folder of samples to record, for behavioural cloning; null: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_file("render", self.render, ".gif")


@dataclass(frozen=True, kw_only=True)
class WatchConfig(PlayConfig):
    """Settings of watching a policy in the browser. It plays on the CPU, in the environment of its run."""

    run: str
    """A run directory, or one of its checkpoints. `python -m enn_ppo.watch outputs/my_run` sets it, too."""
    trust: bool = False
    """Whether to run the code that the checkpoint's settings name, its environment, although this installation of enn-ppo has
    not written the checkpoint."""
    episodes: PositiveInt = 10
    """Number of episodes to play."""
    output: str | None = None
    """File (`.html`) for the page; null: `replays/watched_<12 digits>.html` in the run directory, or with `play`
    `replays/play_<12 digits>.html`."""
    open: bool = True
    """Whether to open the page in the browser, where there is a display or the variable BROWSER names one."""
    live: bool = False
    """Whether to serve the page on 127.0.0.1 and follow a running training: episodes of its newest checkpoint appear by
    themselves. `--live` sets it, too."""
    port: Annotated[int, Range(0, 65_535)] = 0
    """TCP port of the page with `live`; 0: any free one."""
    play: bool = False
    """Whether to write a page in which a person plays with or against the policy, offline, in place of episodes. The world
    needs a twin in JavaScript, as MineSweeper, MultiSnake and Skirmish have. `--play` sets it, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_file("output", self.output, ".html")
        if self.live and self.output is not None:
            raise ValueError(f"live=true serves its pages and writes none: leave out output={self.output}")
        if self.live and self.play:
            raise ValueError("live=true follows a training and play=true writes a game: give one of them")
        if self.port and not self.live:
            raise ValueError(f"port={self.port} is for live=true")


def _check_file(setting: str, file: str | None, ending: str) -> None:
    if file is not None and not file.lower().endswith(ending):
        raise ValueError(f"{setting} must name a file that ends with {ending}, got {file!r}")
