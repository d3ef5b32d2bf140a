"""Episodes of a policy as a page for the browser.

python -m enn_ppo.watch outputs/my_run
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import torch

from enn_ppo.checkpoints.policy import load_trusted
from enn_ppo.eval.evaluate import evaluate_checkpoint
from enn_ppo.eval.replay import write_page
from enn_ppo.settings.evaluation import EpisodesConfig, PlayConfig, WatchConfig
from enn_ppo.training.files import is_link
from enn_ppo.training.tracking.run_dir import REPLAYS
from entity_gym.pools.source import EnvFactory
from entity_gym.replay.server import open_in_browser


def watch(config: WatchConfig, env: EnvFactory | None = None) -> Path:
    """Write a page of episodes, open it and return its file; `env` as in `train`.

    Raises:
        ValueError: a setting, the checkpoint or the environment is invalid, the checkpoint names code and is not trusted, an
            episode does not end, or the file cannot be written.
    """
    checkpoint = load_trusted(config.run, config.trust or env is not None)
    home = checkpoint.path.parent.parent  # of <run>/checkpoints/step_...
    # evaluations write step_...
    output = Path(config.output) if config.output else home / REPLAYS / f"watched_{checkpoint.step:012d}.html"
    if config.output is None and is_link(output.parent):
        raise ValueError(f"{output.parent} is a link, and nothing is written through it: give output=<file>")
    settings = EpisodesConfig(**{each.name: getattr(config, each.name) for each in fields(PlayConfig)})
    result = evaluate_checkpoint(checkpoint, settings, env, torch.device("cpu"), replay=config.episodes)
    write_page(output, result.replay or {})
    print(f"{result}\nwrote {output}")
    if config.open:
        open_in_browser(output.resolve().as_uri()).join()
    return output


if __name__ == "__main__":
    from enn_ppo.settings.command_line.cli import run_watch

    raise SystemExit(run_watch(watch))
