"""Episodes of a policy as a page for the browser.

python -m enn_ppo.watch outputs/my_run
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import saved_config, select_device
from enn_ppo.checkpoints.trust import check_trust, code_of_environment
from enn_ppo.eval.checkpoint import evaluate_checkpoint
from enn_ppo.eval.replay import Replay
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.settings.schema import to_dict
from enn_ppo.training.files import is_link
from enn_ppo.training.tracking.run_dir import REPLAYS
from enn_ppo.watch.live import follow
from entity_gym.pools.source import EnvFactory
from entity_gym.replay.server import open_in_browser


def watch(config: WatchConfig, env: EnvFactory | None = None) -> Path | None:
    """Write a page of episodes and open it, or with `config.live` serve it until Ctrl-C.

    Args:
        config: every setting.
        env: the environment, if the checkpoint's `env.id` cannot be imported; as in `train`.

    Returns:
        The file; None if the page was served.

    Raises:
        ValueError: a setting, the checkpoint or the environment is invalid, the checkpoint names code and is not trusted, an
            episode does not end, or the file cannot be written.
    """
    path = Path(config.run)
    if config.live:
        follow(path, few_environments(config), env, opened=open_in_browser if config.open else lambda address: None)
        return None
    written = _write_checkpoint(path, config, env)
    if config.open:
        open_in_browser(written.resolve().as_uri()).join()
    return written


def _write_checkpoint(path: Path, config: WatchConfig, env: EnvFactory | None) -> Path:
    checkpoint = load_checkpoint(path)
    if env is None and not config.trust:
        check_trust(checkpoint, code_of_environment(to_dict(saved_config(checkpoint).env)))
    home = checkpoint.path.parent.parent  # of <run>/checkpoints/step_...
    # evaluations write step_...
    output = Path(config.output) if config.output else home / REPLAYS / f"watched_{checkpoint.step:012d}.html"
    if config.output is None and is_link(output.parent):
        raise ValueError(f"{output.parent} is a link, and nothing is written through it: give output=<file>")
    made = Replay(output, config.episodes, f"output={output}")
    result = evaluate_checkpoint(
        checkpoint, few_environments(config), env, select_device(config.device), replay=made, progress=True
    )
    print(result)
    _tell(output, config.episodes)
    return output


def few_environments(config: WatchConfig) -> WatchConfig:
    """The settings with no more environments than episodes."""
    return replace(config, num_envs=min(config.num_envs, config.episodes))


def _tell(output: Path, num_episodes: int) -> None:
    size = output.stat().st_size
    told = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{max(1, round(size / 1e3))} kB"
    print(f"wrote {output} ({told}, {num_episodes} episode{'s' * (num_episodes != 1)})")
