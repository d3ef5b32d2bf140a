"""The evaluation of a checkpoint over a given number of whole episodes.

python -m enn_ppo.eval checkpoint=outputs/my_run episodes=200
"""

from __future__ import annotations

import json
from pathlib import Path

from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import saved_config, select_device
from enn_ppo.checkpoints.trust import check_trust, code_of_environment
from enn_ppo.eval.checkpoint import EvalResult, evaluate_checkpoint
from enn_ppo.eval.episodes import Estimate
from enn_ppo.eval.replay import Replay
from enn_ppo.eval.video import Video
from enn_ppo.settings.config import EvalConfig
from enn_ppo.settings.schema import to_dict
from enn_ppo.training.files import replace_file
from entity_gym.pools.source import EnvFactory

__all__ = ["Estimate", "EvalResult", "evaluate"]


def evaluate(config: EvalConfig, env: EnvFactory | None = None) -> EvalResult:
    """Play `config.episodes` episodes with a checkpoint's policy, print the result, and write the files that the config names.

    Args:
        config: every setting.
        env: the environment, if the checkpoint's `env.id` cannot be imported; as in `train`.

    Raises:
        ValueError: a setting, the checkpoint or the environment is invalid, the checkpoint names code and is not trusted, or an
            episode does not end.
    """
    device = select_device(config.device)
    checkpoint = load_checkpoint(Path(config.checkpoint))
    if env is None and not config.trust:
        check_trust(checkpoint, code_of_environment(to_dict(saved_config(checkpoint).env)))
    video = Video(Path(config.render), max(1, config.video), f"render={config.render}") if config.render else None
    replay = None
    if config.replay_file:
        replay = Replay(Path(config.replay_file), max(1, config.replay), f"replay_file={config.replay_file}")
    record = Path(config.record) if config.record else None
    result = evaluate_checkpoint(
        checkpoint,
        config,
        env,
        device,
        video=video,
        replay=replay,
        record=record,
        record_logits=config.record_logits,
        progress=True,
    )
    print(result)
    for file in (config.render, config.replay_file, config.record):
        if file:
            print(f"wrote {file}")
    if config.output:
        world = checkpoint.config["env"]
        report = {name: vars(estimate) for name, estimate in result.estimates.items()} | {
            "checkpoint": str(checkpoint.path),
            "env": world["id"],
            "env_kwargs": {**world.get("kwargs", {}), **config.env_kwargs},
            "seed": config.seed,
            "greedy": result.greedy,
            "opponent": config.opponent,
        }
        try:
            Path(config.output).parent.mkdir(parents=True, exist_ok=True)
            replace_file(Path(config.output), json.dumps(report, indent=2).encode() + b"\n")
        except OSError as error:
            raise ValueError(f"output {config.output} cannot be written: {error}") from error
    return result
