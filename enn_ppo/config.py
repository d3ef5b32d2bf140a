"""Every setting of training and evaluation: frozen, with its unit, range and default, checked when it is made.

`enn_ppo.cli` turns the command line into these; from Python they are made directly. Nothing here knows Hydra.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from entity_gym.errors import nearest
from rogue_net.checks import check_bool, check_choice, check_float, check_int, check_text
from rogue_net.config import RogueNetConfig

Device = Literal["auto", "cpu", "cuda"]
Ratio = Literal["per_actor", "joint"]
Weighting = Literal["actor", "frame"]
WandbMode = Literal["disabled", "offline", "online"]
C = TypeVar("C")


class Interrupted(Exception):
    """The user asked the run to stop, and it stopped in order. The message says where it can be resumed from."""


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """The world to train in."""

    id: str = "MineSweeper"
    """A registered name, or `package.module:Class` of an importable class or factory. Default `MineSweeper`."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of its constructor: numbers, texts, truth values, null, lists and mappings. Default: none."""

    def __post_init__(self) -> None:
        check_text("env.id", self.id)
        if not isinstance(self.kwargs, Mapping):
            raise ValueError(f"env.kwargs must be a mapping of argument names to values, got {self.kwargs!r}")
        object.__setattr__(self, "kwargs", _plain(self.kwargs, "env.kwargs"))


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """How much experience one update learns from: `num_envs * steps` frames."""

    num_envs: int = 128
    """Environments stepped together. At least 1. Default 128."""
    steps: int = 16
    """Steps of each environment between two updates. At least 1. Default 16."""
    num_threads: int | Literal["auto"] = 1
    """Threads that step environments, the main one included; more than one helps where a step of all takes longer than
    about 150 microseconds, and Python environments only while they release the GIL. `auto` measures and picks. Default 1."""
    num_processes: int = 0
    """Worker processes that step environments, for slow Python ones; 0: none. Default 0."""

    def __post_init__(self) -> None:
        check_int("rollout.num_envs", self.num_envs, 1)
        check_int("rollout.steps", self.steps, 1)
        if isinstance(self.num_threads, str):
            check_choice("rollout.num_threads", self.num_threads, ["auto"])
        else:
            check_int("rollout.num_threads", self.num_threads, 1)
        check_int("rollout.num_processes", self.num_processes, 0)
        if self.num_processes > self.num_envs:
            raise ValueError(
                f"rollout.num_processes must be at most rollout.num_envs={self.num_envs}, got {self.num_processes}"
            )
        if self.num_processes and self.num_threads != 1:
            raise ValueError(
                f"rollout.num_processes={self.num_processes} and rollout.num_threads={self.num_threads}: use one of them"
            )


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW and its minibatches. A frame is one environment at one step."""

    lr: float = 2e-3
    """Learning rate at the start. Greater than 0, typically 1e-4 to 3e-3. Default 2e-3."""
    batch_size: int = 512
    """Frames per optimizer step. At least 1, at most the rollout's `num_envs * steps`. Default 512."""
    micro_batch_size: int | None = None
    """Frames per forward pass, for small memories: their gradients add up to the minibatch's. At least 1, at most
    `batch_size`; null: the whole minibatch at once. Default null."""
    epochs: int = 3
    """Passes over each rollout. At least 1. Default 3."""
    weight_decay: float = 0.0
    """Decoupled weight decay per unit of learning rate. At least 0. Default 0."""
    max_grad_norm: float = 0.5
    """The gradient's 2-norm is scaled down to this. Greater than 0. Default 0.5."""
    anneal_lr: bool = True
    """Whether the learning rate falls linearly to 0 over `total_timesteps`. Default true."""

    def __post_init__(self) -> None:
        check_float("optim.lr", self.lr, 0, open_low=True)
        check_int("optim.batch_size", self.batch_size, 1)
        check_int("optim.micro_batch_size", self.micro_batch_size, 1, optional=True)
        check_int("optim.epochs", self.epochs, 1)
        check_float("optim.weight_decay", self.weight_decay, 0)
        check_float("optim.max_grad_norm", self.max_grad_norm, 0, open_low=True)
        check_bool("optim.anneal_lr", self.anneal_lr)
        if self.micro_batch_size is not None and self.micro_batch_size > self.batch_size:
            raise ValueError(
                f"optim.micro_batch_size must be at most optim.batch_size={self.batch_size} frames, "
                f"got {self.micro_batch_size}"
            )


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Proximal policy optimization."""

    gamma: float = 0.99
    """Discount per environment step. In [0, 1]. Default 0.99."""
    gae_lambda: float = 0.95
    """λ of generalized advantage estimation. In [0, 1]; 0 is the one-step error. Default 0.95."""
    clip: float = 0.2
    """The probability ratio is clipped to [1 - clip, 1 + clip]. Greater than 0, below 1. Default 0.2."""
    clip_value: bool = True
    """Whether the value's change is clipped to ±`clip` too. Default true."""
    ent_coef: float = 0.05
    """Weight of the entropy bonus at the start. At least 0. Default 0.05."""
    anneal_entropy: bool = True
    """Whether `ent_coef` falls linearly to 0 over `total_timesteps`. Default true."""
    vf_coef: float = 0.5
    """Weight of the value loss. At least 0. Default 0.5."""
    normalize_advantages: bool = True
    """Whether advantages get mean 0 and deviation 1 within each minibatch. Default true."""
    ratio: Ratio = "per_actor"
    """Whether each actor of a frame has a probability ratio (`per_actor`), or the frame has one, the product (`joint`).
    Default `per_actor`."""
    weighting: Weighting = "actor"
    """Whether every actor counts the same in the loss (`actor`), or every frame (`frame`). Default `actor`."""

    def __post_init__(self) -> None:
        check_float("ppo.gamma", self.gamma, 0, 1)
        check_float("ppo.gae_lambda", self.gae_lambda, 0, 1)
        check_float("ppo.clip", self.clip, 0, 1, open_low=True, open_high=True)
        check_bool("ppo.clip_value", self.clip_value)
        check_float("ppo.ent_coef", self.ent_coef, 0)
        check_bool("ppo.anneal_entropy", self.anneal_entropy)
        check_float("ppo.vf_coef", self.vf_coef, 0)
        check_bool("ppo.normalize_advantages", self.normalize_advantages)
        check_choice("ppo.ratio", self.ratio, get_args(Ratio))
        check_choice("ppo.weighting", self.weighting, get_args(Weighting))


@dataclass(frozen=True, kw_only=True)
class LoggerConfig:
    """Where metrics go beside the run directory."""

    wandb: WandbMode = "disabled"
    """Weights & Biases: `disabled`, `offline` (files in the run directory, no account) or `online`. Default
    `disabled`."""
    project: str = "enn-ppo"
    """Project name in Weights & Biases. Default `enn-ppo`."""

    def __post_init__(self) -> None:
        check_choice("logger.wandb", self.wandb, get_args(WandbMode))
        check_text("logger.project", self.project)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that a training run depends on."""

    env: EnvConfig = field(default_factory=EnvConfig)
    """The world."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """How experience is gathered."""
    net: RogueNetConfig = field(default_factory=RogueNetConfig)
    """The network."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """The optimizer."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """The loss."""
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    """Tracking."""
    seed: int = 1
    """Seeds the environments, the network and the sampling. At least 0. Default 1."""
    total_timesteps: int = 500_000
    """Environment steps in all, counted over all environments. At least `rollout.num_envs`. Default 500,000."""
    device: Device = "auto"
    """`cpu`, `cuda`, or `auto`: cuda where there is one. Default `auto`."""
    num_threads: int | None = None
    """Threads that torch computes with. At least 1; null leaves torch's choice. Default null."""
    run_dir: str | None = None
    """Folder of the run's files; null: `outputs/<env id>/<date>_<time>`. Default null."""
    resume: str | None = None
    """A run directory, or one of its checkpoints, to continue from. Default null: start anew."""
    overwrite: bool = False
    """Whether an existing run directory may be emptied first. Default false."""
    checkpoint_interval: int = 20
    """Updates between two checkpoints. At least 1. Default 20."""
    keep_checkpoints: int = 3
    """Newest checkpoints kept. At least 1. Default 3."""
    debug: bool = False
    """Whether a mistake shows its traceback beside the message. Default false."""

    def __post_init__(self) -> None:
        for name, section in get_type_hints(TrainConfig).items():
            if isinstance(section, type) and dataclasses.is_dataclass(section):
                if not isinstance(getattr(self, name), section):
                    raise ValueError(f"{name} must be a {section.__name__}, got {getattr(self, name)!r}")
        check_int("seed", self.seed, 0)
        check_int("total_timesteps", self.total_timesteps, 1)
        check_choice("device", self.device, get_args(Device))
        check_int("num_threads", self.num_threads, 1, optional=True)
        check_text("run_dir", self.run_dir, optional=True)
        check_text("resume", self.resume, optional=True)
        check_bool("overwrite", self.overwrite)
        check_int("checkpoint_interval", self.checkpoint_interval, 1)
        check_int("keep_checkpoints", self.keep_checkpoints, 1)
        check_bool("debug", self.debug)
        self._check_sizes()

    def _check_sizes(self) -> None:
        num_envs, steps = self.rollout.num_envs, self.rollout.steps
        if self.optim.batch_size > num_envs * steps:
            raise ValueError(
                f"optim.batch_size must be at most the {num_envs * steps} frames of a rollout "
                f"(rollout.num_envs={num_envs} times rollout.steps={steps}), got {self.optim.batch_size}"
            )
        if self.total_timesteps < num_envs:
            raise ValueError(
                f"total_timesteps must be at least rollout.num_envs={num_envs}, one step of each environment, "
                f"got {self.total_timesteps}"
            )


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Everything that an evaluation depends on."""

    checkpoint: str
    """A run directory, or one of its checkpoints. Required."""
    episodes: int = 100
    """Episodes to play: exactly that many count. At least 1. Default 100."""
    greedy: bool = False
    """Whether the likeliest action is taken instead of a sampled one. Default false."""
    seed: int = 1
    """Seeds the environments and the sampling. At least 0. Default 1."""
    num_envs: int = 64
    """Environments stepped together. At least 1. Default 64."""
    device: Device = "auto"
    """`cpu`, `cuda`, or `auto`: cuda where there is one. Default `auto`."""
    output: str | None = None
    """JSON file for the result; null: only printed. Default null."""
    render: str | None = None
    """GIF file (`.gif`) for one episode; null: none. Default null."""
    max_episode_steps: int = 100_000
    """An episode still running after so many steps ends the evaluation with an error. At least 1. Default 100,000."""
    debug: bool = False
    """Whether a mistake shows its traceback beside the message. Default false."""

    def __post_init__(self) -> None:
        if not isinstance(self.checkpoint, str) or not self.checkpoint.strip():
            raise ValueError(f"checkpoint must name a run directory or one of its checkpoints, got {self.checkpoint!r}")
        check_int("episodes", self.episodes, 1)
        check_bool("greedy", self.greedy)
        check_int("seed", self.seed, 0)
        check_int("num_envs", self.num_envs, 1)
        check_choice("device", self.device, get_args(Device))
        check_text("output", self.output, optional=True)
        check_text("render", self.render, optional=True)
        if self.render is not None and not self.render.lower().endswith(".gif"):
            raise ValueError(f"render must name a file that ends with .gif, got {self.render!r}")
        check_int("max_episode_steps", self.max_episode_steps, 1)
        check_bool("debug", self.debug)


def from_dict(cls: type[C], mapping: Mapping[str, Any], path: str = "") -> C:
    """Make a settings class from nested mappings, as they come from YAML.

    Whole numbers pass for numbers and the other way round (`1e6` for a count), and texts like `"1e-3"`, which YAML 1.1
    does not read as a number, for numbers. What is left out has its default.

    Args:
        cls: one of the dataclasses above.
        mapping: field names to values.
        path: dotted name of `cls` itself inside its parent, for messages.

    Raises:
        ValueError: naming the dotted field: unknown, with the nearest that exists, or with a value that is not allowed.
    """
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{path or 'the config'} must be a mapping of settings, got {mapping!r}")
    hints = get_type_hints(cls)
    values = {}
    for name, value in mapping.items():
        dotted = f"{path}.{name}" if path else str(name)
        if name not in hints:
            raise ValueError(unknown_setting(dotted, [f"{path}.{known}" if path else known for known in hints]))
        hint = hints[name]
        values[name] = from_dict(hint, value, dotted) if dataclasses.is_dataclass(hint) else _convert(value, hint)  # type: ignore[arg-type]
    for known in dataclasses.fields(cls):  # type: ignore[arg-type]
        required = known.default is dataclasses.MISSING and known.default_factory is dataclasses.MISSING
        if required and known.name not in values:
            raise ValueError(f"{path + '.' if path else ''}{known.name} has no value, and no default")
    return cls(**values)


def to_dict(config: Any) -> dict[str, Any]:
    """The settings as nested dictionaries of plain values, for YAML and JSON; `from_dict` reads them back."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(config), "")
    return plain


def flatten(nested: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Nested mappings as one with dotted names: `{"env.id": "MineSweeper", ...}`. An empty mapping leaves nothing."""
    flat = {}
    for name, value in nested.items():
        dotted = f"{path}{name}"
        flat.update(flatten(value, dotted + ".") if isinstance(value, Mapping) else {dotted: value})
    return flat


def setting_names(cls: type[Any], path: str = "") -> list[str]:
    """The dotted names of all settings, sections before what they hold: `["env", "env.id", ...]`."""
    names = []
    for name, hint in get_type_hints(cls).items():
        dotted = f"{path}.{name}" if path else name
        names.append(dotted)
        if dataclasses.is_dataclass(hint):
            names.extend(setting_names(hint, dotted))  # type: ignore[arg-type]
    return names


def unknown_setting(key: str, names: Sequence[str]) -> str:
    """Say that `key` is not among the dotted `names`, which of its section are, and which is meant."""
    section, _, last = key.rpartition(".")
    siblings = [name for name in names if name.rpartition(".")[0] == section]
    listing, _, near = nearest(key, siblings or [name for name in names if "." not in name]).partition("; ")
    elsewhere = [name for name in names if name.endswith("." + last)]
    if elsewhere:  # the right name in the wrong section: `lr` or `optm.lr` for `optim.lr`
        near = f"did you mean {elsewhere[0]!r}?"
    return f"{key} is not a setting; {listing}" + (f"; {near}" if near else "")


def default_run_dir(env_id: str, when: datetime, root: str = "outputs") -> str:
    """The run directory where none was given: `<root>/<env id>/<YYYY-mm-dd_HH-MM-SS>`, as a safe file name."""
    return str(Path(root) / re.sub(r"[^\w.-]+", "_", env_id) / when.strftime("%Y-%m-%d_%H-%M-%S"))


def _convert(value: object, hint: object) -> object:
    """Turn YAML's idea of a number into the field's; whatever does not fit is left for the field's own check."""
    kinds = get_args(hint) or (hint,)
    if float in kinds and isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if int in kinds and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _plain(value: Any, where: str) -> Any:
    """A deep copy made of dictionaries, lists and plain values only."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{where} must have texts as names, got {key!r}")
        return {key: _plain(item, f"{where}.{key}" if where else key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{position}]") for position, item in enumerate(value)]
    raise ValueError(
        f"{where} must be a number, a text, true, false, null, a list or a mapping, got {value!r}; "
        "from Python, an environment that needs other arguments can be a factory: train(config, env=lambda: ...)"
    )
