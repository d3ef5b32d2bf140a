"""Turn a checkpoint of enn-trainer into a run of this project."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from enn_ppo.checkpoints.transfer import Transferred, transfer_from, transfer_optimizer
from enn_ppo.convert.settings import Converted, World, convert_settings
from enn_ppo.convert.source import Source, SourceNet, read_source
from enn_ppo.settings.schema import to_dict
from enn_ppo.training.callbacks import Callbacks
from enn_ppo.training.environment import EnvFactory, bind_environment
from enn_ppo.training.files import replace_file
from enn_ppo.training.learning.learner import Learner
from enn_ppo.training.state import TrainState
from enn_ppo.training.tracking.run_dir import CONFIG, prepare_run_dir
from enn_ppo.training.tracking.run_lock import RunLock
from rogue_net import RogueNet
from rogue_net.transfer.conversion import VALUE, Description, convert, convert_optimizer, read_description

CPU = torch.device("cpu")


class ConvertResult(NamedTuple):
    """A converted checkpoint."""

    run_dir: Path
    checkpoint: Path
    step: int  # environment steps trained
    policy: RogueNet
    converted: list[str]  # what the new run has, as lines
    not_converted: list[str]  # what it has not


class _Net(NamedTuple):
    """A converted network with the spaces of enn-trainer's world, and with this project's names of choices."""

    net: RogueNet
    moments: dict[str, dict[str, torch.Tensor]]  # parameter -> Adam's estimates


def convert_checkpoint(
    source: Path | str,
    run_dir: Path | str,
    changes: Mapping[str, Any] | None = None,
    env: EnvFactory | None = None,
) -> ConvertResult:
    """Convert a checkpoint of enn-trainer 0.1.16 into a run with one checkpoint, which can be evaluated and resumed.

    Args:
        source: the checkpoint's folder, or the folder of a run's checkpoints, of which the newest is taken.
        run_dir: where the new run goes.
        changes: settings of `TrainConfig` by dotted name, such as `env.id`, which replace those of the checkpoint.
        env: the environment, as in `train`; None: `env.id`.

    Raises:
        ValueError: there is no such checkpoint; a setting cannot be converted; the environment does not fit; or the run directory
            cannot be used.
    """
    given, changes = read_source(Path(source)), dict(changes or {})
    description = _describe(given, World())
    value_config = description.config if given.value_net is not None else None
    settings = convert_settings(given.config, description.config, value_config, changes, str(run_dir))
    description = _describe(given, settings.world)
    nets = [_convert_net(given.policy, description)]
    if given.value_net is not None:
        nets.append(_convert_net(given.value_net, description))
    try:
        bound = bind_environment(settings.config.env, env)
    except ValueError as error:
        raise ValueError(
            f"{error} (the checkpoint's world; for one of your own give env.id=<package.module:Class> and env.kwargs.<argument>)"
        ) from error
    with closing(RunLock()) as lock, closing(TrainState(settings.config, bound, CPU, Callbacks(()))) as state:
        lock.take(Path(run_dir))
        learner = state.learner
        assert isinstance(learner, Learner)
        own = [learner.model.policy, *([learner.model.value_net] if learner.model.value_net else [])]
        moved = [
            transfer_from(theirs.net, ours, str(given.path), bound.config.id)
            for theirs, ours in zip(nets, own, strict=True)
        ]
        _transfer_moments(learner, nets, moved)
        state.step = given.step
        rollout = settings.config.rollout
        state.num_updates = given.step // (rollout.num_envs * rollout.steps)
        state.reset()
        prepare_run_dir(Path(run_dir), resume=False, overwrite=settings.config.overwrite)
        try:
            replace_file(Path(run_dir) / CONFIG, yaml.safe_dump(to_dict(settings.config), sort_keys=False).encode())
        except OSError as error:
            raise ValueError(f"{run_dir} cannot be written: {error}") from error
        (checkpoint,) = state.save(Path(run_dir)).values()
    return ConvertResult(
        Path(run_dir),
        checkpoint,
        given.step,
        learner.model.policy,
        _list_converted(given, settings, nets, moved),
        _list_rest(given, settings, nets),
    )


def _describe(given: Source, world: World) -> Description:
    """The networks of a checkpoint, with the names that the world's choices have here."""
    actions = {}
    for name, space in given.action_space.items():
        names = world.choices.get(name, {})
        choices = {"choices": [names.get(choice, choice) for choice in space["choices"]]} if "choices" in space else {}
        actions[name] = space | choices
    net = given.config.get("net", {})
    if not isinstance(net, Mapping):
        raise ValueError(f"{given.path} has the settings net={net!r:.100}, which must be a section")
    try:
        return read_description(
            {"net": net, "obs_space": given.obs_space, "action_space": actions, "regression_heads": {VALUE: 1}}
        )
    except ValueError as error:
        raise ValueError(f"{given.path}: {error}") from error


def _convert_net(given: SourceNet, description: Description) -> _Net:
    with torch.random.fork_rng(devices=[]):  # its initial weights are replaced
        net = description.make_net()
    net.load_state_dict(convert(given.weights, description))
    return _Net(net, convert_optimizer(given.optimizer, given.weights, description))


def _transfer_moments(learner: Learner, nets: list[_Net], moved: list[Transferred]) -> None:
    state, number = {}, 0
    for each in nets:
        for name, _ in each.net.named_parameters():
            if name in each.moments:
                state[number] = each.moments[name]
            number += 1
    transfer_optimizer(learner.optimizer, {"state": state}, moved)


def _list_converted(given: Source, settings: Converted, nets: list[_Net], moved: list[Transferred]) -> list[str]:
    env = settings.config.env
    arguments = ", ".join(f"{name}={value}" for name, value in env.kwargs.items())
    lines = [f"world: {env.id}({arguments})"]
    for action, names in settings.world.choices.items():
        lines.append(f"choices of {action!r}: " + ", ".join(f"{theirs} is {ours}" for theirs, ours in names.items()))
    for title, each in zip(("policy", "value network"), nets, strict=False):
        parameters = [parameter.numel() for parameter in each.net.parameters()]
        lines.append(
            f"{title}: {len(parameters)} parameters with {sum(parameters):,} numbers, and the statistics of the observations"
        )
        lines.append(f"optimizer of the {title}: moments of {len(each.moments)} of {len(parameters)} parameters")
    lines += [line for each in moved for line in each.news]
    lines.append(f"settings: those of config.yaml, and {given.step:,} of {settings.config.total_timesteps:,} steps")
    return lines


def _list_rest(given: Source, settings: Converted, nets: list[_Net]) -> list[str]:
    lines = ["episodes and random numbers, which enn-trainer does not save: new episodes begin"]
    if settings.world.note:
        lines.append(f"masks: {settings.world.note}")
    lines += [
        f"the setting {each}, which has another form here (see the page of options)" for each in settings.left_out
    ]
    if any(not each.moments for each in nets):
        lines.append("moments of the optimizer: the checkpoint has none")
    return lines
