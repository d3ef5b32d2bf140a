"""The help page of a command: usage, and every setting with the value that the other arguments give it."""

from __future__ import annotations

from typing import Any

from hydra.core.global_hydra import GlobalHydra

from enn_ppo.command_line.composition import Arguments, Composed, Job, compose, plain_values
from enn_ppo.command_line.options import help_text

_EXAMPLES = {
    "sweep": (
        "sweep=ppo env=Xor total_timesteps=100000 sweep.trials=30 sweep.jobs=2    # + any argument of enn_ppo.train",
        "sweep=my_sweep.yaml sweep.minutes=60 sweep.seeds=3 run_dir=outputs/my_sweep    # the same again goes on",
    ),
    "train": (
        "env=MineSweeper env.kwargs.width=8 total_timesteps=1e6 run_dir=outputs/mines",
        "env=custom env.id=my_pkg.my_env:MyEnv env.kwargs.size=8",
        "env=gymnasium env.id=CartPole-v1    # or dm_env, pettingzoo, program: see configs/env",
        "'optim.lr=0.001@0 -> 0@1' 'env.info.num_mines=[3,4,5]'    # quotes: shells read > and [",
        "--multirun env=Xor,Count seed=1,2,3    # every combination; jobs=2: two at a time",
        "resume=outputs/mines total_timesteps=2e6",
    ),
    "clone": (
        "data=expert.arrow env=MineSweeper run_dir=outputs/clone",
        "'data=[a.arrow,b.arrow]' env=MineSweeper clone.loss=kl clone.patience=3",
    ),
    "eval": (
        "checkpoint=outputs/mines episodes=1000 output=result.json",
        "checkpoint=outputs/mines greedy=true env_kwargs.width=10 video=3 render=mines.gif",
    ),
    "serve": ("checkpoint=outputs/orchard port=5577 greedy=true",),
}


def help_page(name: str, schema: type[Any], arguments: Arguments) -> str:
    """The text for `python -m enn_ppo.<name> --help`.

    Args:
        name: of the command.
        schema: its settings.
        arguments: of the command line: `env=Xor --help` shows the values for Xor.

    Raises:
        ValueError: the arguments hold a mistake.
    """

    def describe(composed: Composed) -> Job[str]:
        loader = GlobalHydra.instance().config_loader()
        names = [group for group in composed.choices if not {"/", "@"} & set(group)]
        groups = {group: loader.get_group_options(group) for group in reversed(names)}  # as the file lists them
        values = plain_values(composed.config, allow_missing=True)
        return Job(help_text(schema, values, groups), composed.typed, composed.job, note="")

    (job,) = compose(name, Arguments(arguments.overrides, config_dir=arguments.config_dir), describe)
    program = f"python -m enn_ppo.{name}"
    return "\n".join(
        [
            f"{program} [name=value ...] [--cfg job] [--config-dir FOLDER] [--multirun] [--help]",
            *(f"  {program} {example}" for example in _EXAMPLES.get(name, ())),
            "",
            job.config,
            "",
            "In full, with types and defaults: docs/options.md; of net, with formulas: docs/network.md.",
            "--cfg job prints the settings as YAML.",
        ]
    )
