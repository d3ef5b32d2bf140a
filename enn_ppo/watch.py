"""Episodes of a policy as a page for the browser: a file, or served while the policy is trained.

python -m enn_ppo.watch outputs/my_run
python -m enn_ppo.watch outputs/my_run --live
python -m enn_ppo.watch outputs/my_run --play
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import torch

from enn_ppo.checkpoints import Checkpoint, CheckpointError, step_files
from enn_ppo.checkpoints.policy import load_trusted
from enn_ppo.eval.evaluate import EvalResult, evaluate_checkpoint
from enn_ppo.eval.offline import game_page
from enn_ppo.eval.replay import write_page
from enn_ppo.settings.evaluation import EpisodesConfig, PlayConfig, WatchConfig
from enn_ppo.training.files import is_link
from enn_ppo.training.tracking.run_dir import CHECKPOINTS, CONFIG, REPLAYS
from entity_gym.pools.source import EnvFactory
from entity_gym.replay.build import build_replay
from entity_gym.replay.page import page_html, to_json
from entity_gym.replay.server import PageServer, open_in_browser

PAUSE = 1.0  # seconds between two looks at the run directory


def watch(config: WatchConfig, env: EnvFactory | None = None) -> Path | None:
    """Write a page of episodes, or with `config.play` of a game, open it and return its file; `env` as in `train`.

    With `config.live` it is served until Ctrl-C.

    Raises:
        ValueError: a setting, the checkpoint or the environment is invalid, the checkpoint names code and is not trusted, an
            episode does not end, the world of a game has no twin, or the file cannot be written.
    """
    if config.live:
        follow(config, env, opened=open_in_browser if config.open else lambda address: None)
        return None
    checkpoint = load_trusted(config.run, config.trust or env is not None)
    home = checkpoint.path.parent.parent  # of <run>/checkpoints/step_...
    # evaluations write step_...
    name = f"{'play' if config.play else 'watched'}_{checkpoint.step:012d}.html"
    output = Path(config.output) if config.output else home / REPLAYS / name
    if config.output is None and is_link(output.parent):
        raise ValueError(f"{output.parent} is a link, and nothing is written through it: give output=<file>")
    if config.play:
        write_page(output, game_page(checkpoint, greedy=config.greedy, env=env))
    else:
        result = _play(checkpoint, config, env)
        write_page(output, page_html(result.replay or {}))
        print(result)
    print(f"wrote {output}")
    if config.open:
        open_in_browser(output.resolve().as_uri()).join()
    return output


def follow(
    config: WatchConfig,
    env: EnvFactory | None = None,
    opened: Callable[[str], object] = lambda address: None,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Serve episodes of a run's newest checkpoint on 127.0.0.1 until Ctrl-C, or until `stopped`, which is asked once a second.

    `opened` is called with the address of the page.

    Raises:
        ValueError: there is no run, the port is taken, or the checkpoint names code and is not trusted.
    """
    run_dir = Path(config.run)
    if not (run_dir / CONFIG).is_file():
        raise ValueError(f"{run_dir} holds no run that could be followed: it has no {CONFIG}; give a run directory")
    step, replay = -1, build_replay(title=str(run_dir))  # of the checkpoint that is shown

    def listing() -> str:
        newest = {"newest": f"step_{step:012d}", "step": step}
        return json.dumps(newest if step >= 0 else dict.fromkeys(newest))

    pages: dict[str, Callable[[], str]] = {"/": lambda: page_html(replay, mode="live"), "/replays.json": listing}

    def look() -> bool:
        """Play the newest checkpoint, if it is a new one; returns whether it was."""
        nonlocal step, replay
        files = step_files(run_dir / CHECKPOINTS)
        if not files or files[0][0] <= step:
            return False
        try:
            checkpoint = load_trusted(files[0][1], config.trust or env is not None)
        except CheckpointError:
            return False  # it is being removed, or its run has ended: the next look finds another, or the same again
        replay = _play(checkpoint, config, env).replay or {}
        pages.pop(f"/step_{step:012d}.json", None)
        pages[f"/step_{checkpoint.step:012d}.json"] = lambda: to_json(replay)
        step = checkpoint.step
        return True

    look()
    with PageServer(pages, port=config.port) as server:
        print(f"{server.url} shows {run_dir}: episodes of its newest checkpoint. Ctrl-C ends it", flush=True)
        opened(server.url)
        while not stopped():
            time.sleep(PAUSE)
            if look():
                print(f"step {step:,}: played {config.episodes} episodes", flush=True)


def _play(checkpoint: Checkpoint, config: WatchConfig, env: EnvFactory | None) -> EvalResult:
    shared = {each.name: getattr(config, each.name) for each in fields(PlayConfig)}
    return evaluate_checkpoint(checkpoint, EpisodesConfig(**shared), env, torch.device("cpu"), replay=config.episodes)


if __name__ == "__main__":
    from enn_ppo.settings.command_line.cli import run_watch

    raise SystemExit(run_watch(watch))
