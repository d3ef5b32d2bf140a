"""enn-trainer's settings and worlds with this project's names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from enn_ppo.checkpoints.trust import code_of_environment
from enn_ppo.settings.config import TrainConfig
from enn_ppo.settings.schema import from_dict, to_dict
from rogue_net.config import RogueNetConfig

# enn-trainer's settings -> this project's
_NAMES = {
    "rollout": {"steps": "rollout.steps", "num_envs": "rollout.num_envs"},
    "optim": {
        "lr": "optim.lr",
        "lr_warmup_steps": "optim.warmup_steps",
        "bs": "optim.batch_size",
        "micro_bs": "optim.micro_batch_size",
        "weight_decay": "optim.weight_decay",
        "anneal_lr": "optim.anneal_lr",
        "update_epochs": "optim.epochs",
        "max_grad_norm": "optim.max_grad_norm",
    },
    "ppo": {
        "gae": "ppo.advantages",
        "gamma": "ppo.gamma",
        "gae_lambda": "ppo.gae_lambda",
        "norm_adv": "ppo.normalize_advantages",
        "clip_coef": "ppo.clip",
        "clip_vloss": "ppo.clip_value",
        "ent_coef": "ppo.ent_coef",
        "vf_coef": "ppo.vf_coef",
        "target_kl": "ppo.target_kl",
        "anneal_entropy": "ppo.anneal_entropy",
    },
    "": {
        "seed": "seed",
        "total_timesteps": "total_timesteps",
        "max_train_time": "max_train_seconds",
        "torch_deterministic": "torch_deterministic",
    },
}
# settings that do nothing here -> their values in which nothing is lost
_LEFT_OUT: dict[str, Any] = {"eval": None, "track": False, "capture_samples": None, "cuda": True}


class World(NamedTuple):
    """How one of entity-gym's environments is called here, where that differs."""

    kwargs: Mapping[str, str] = {}  # argument -> its name here
    fixed: Mapping[str, Any] = {}  # arguments that make the world here what it is there
    choices: Mapping[str, Mapping[str, str]] = {}  # action -> choice -> its name here
    note: str = ""


#: The environments that are called otherwise; the others of entity-gym have the same names here.
WORLDS = {
    "MineSweeper": World(
        kwargs={"nmines": "num_mines", "nrobots": "num_robots"},
        fixed={"max_steps": None},
        choices={"Move": {"Up": "y+1", "Down": "y-1", "Left": "x-1", "Right": "x+1"}},
        note="entity-gym masks Up, Down, Left and Right as if they were x+1, x-1, y+1 and y-1; here masks belong to their "
        "choices, so that the policy meets other masks than in training",
    )
}


class Converted(NamedTuple):
    """Settings of a run."""

    config: TrainConfig
    world: World
    left_out: list[str]  # settings without an effect here, as lines


def convert_settings(
    given: Mapping[str, Any],
    net: RogueNetConfig,
    value_net: RogueNetConfig | None,
    changes: Mapping[str, Any],
    run_dir: str,
) -> Converted:
    """Convert the settings of a run.

    Args:
        given: nested, with enn-trainer's names.
        net: of the policy.
        value_net: of the value function; None: the policy's network has it.
        changes: this project's names, such as `optim.lr`, -> values that replace those of `given`.
        run_dir: where the converted run will be.

    Raises:
        ValueError: a setting cannot be converted, or is not allowed here.
    """
    flat: dict[str, Any] = {}
    for section, names in _NAMES.items():
        own = given.get(section, {}) if section else given
        if not isinstance(own, Mapping):
            raise ValueError(f"config.ron has {section}={own!r:.100}, which must be a section of settings")
        for theirs, ours in names.items():
            if theirs in own:
                flat[ours] = _value(f"{section}.{theirs}".lstrip("."), own[theirs], ours, changes)
    env = given.get("env", {})
    world = WORLDS.get(env.get("id", ""), World())
    settings: dict[str, Any] = {
        "env": {"id": env.get("id", "MoveToOrigin"), "kwargs": _kwargs(env.get("kwargs", "{}"), world)},
        "net": to_dict(net),
        "value_net": None if value_net is None else to_dict(value_net),
    }
    if "env.id" in changes:  # another world has arguments of its own
        settings["env"]["kwargs"], world = {}, World()
    else:
        for named, description in code_of_environment(settings["env"]).items():
            raise ValueError(
                f"config.ron would {description}. Nothing was run. Add {named} if you trust whoever wrote it"
            )
    for name, value in {**flat, **changes, "run_dir": run_dir}.items():
        _put(settings, name, value)
    left_out = [f"{name}={given[name]!r:.60}" for name, none in _LEFT_OUT.items() if given.get(name, none) != none]
    return Converted(from_dict(TrainConfig, settings), world, left_out)


def _value(where: str, value: Any, ours: str, changes: Mapping[str, Any]) -> Any:
    if ours in changes:
        return changes[ours]
    if isinstance(value, str):
        raise ValueError(
            f"config.ron has {where}={value!r}, a schedule over steps, which is not converted; give {ours}=<value> in the "
            "command, a number or a schedule of this project such as '0.001@0 -> 0@1'"
        )
    if where == "ppo.gae":
        return "gae" if value else "n_step"
    if where == "optim.lr_warmup_steps":
        return value or 0
    return value


def _kwargs(given: Any, world: World) -> dict[str, Any]:
    try:
        kwargs = json.loads(given)
        if not isinstance(kwargs, dict):
            raise ValueError("not a mapping")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"config.ron has env.kwargs={given!r:.100}, which must be the JSON of a mapping: {error}"
        ) from None
    return dict(world.fixed) | {world.kwargs.get(name, name): value for name, value in kwargs.items()}


def _put(settings: dict[str, Any], name: str, value: Any) -> None:
    """Set a nested setting by its dotted name."""
    *sections, last = name.split(".")
    for section in sections:
        inner = settings.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ValueError(f"{name} is no setting: {section} is {inner!r}")
        settings = inner
    settings[last] = value
