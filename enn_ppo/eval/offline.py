"""Pages in which a person plays with or against a policy, offline: they hold the policy file, and the world's twin."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from enn_ppo.checkpoints import Checkpoint
from enn_ppo.checkpoints.policy import saved_config
from enn_ppo.checkpoints.policy_file import policy_bytes
from enn_ppo.training.environment import bind_environment
from entity_gym.batch.saving import spaces_difference, spaces_to_dict
from entity_gym.pools.players import players_of
from entity_gym.pools.source import EnvFactory, EnvSource
from entity_gym.replay.build import build_replay, plain
from entity_gym.replay.hints import check_hints
from entity_gym.replay.page import Game, page_html


def game_page(checkpoint: Checkpoint, *, greedy: bool | None = None, env: EnvFactory | None = None) -> str:
    """Return a page in which a person plays beside the policy of a checkpoint; `env` as in `train`.

    Args:
        checkpoint: its environment is made, to see its spaces and how it is drawn.
        greedy: whether the policy takes the likeliest actions; None: the `eval.greedy` of its run.
        env: is used instead of the one that the checkpoint names.

    Raises:
        ValueError: the world has no twin in JavaScript, or other spaces than in training.
    """
    run = saved_config(checkpoint)
    source = bind_environment(run.env, env).source
    twin = twin_of(source)
    obs_space, action_space = source.spaces()
    if news := spaces_difference(checkpoint.spaces, spaces_to_dict(obs_space, action_space)):
        raise ValueError(f"the spaces of {run.env.id} are not those of the checkpoint, which the page needs: {news}")
    mapping = players_of(source)
    game = {
        "values": plain(source.values),
        "drawing": _drawing(source, run.env.id),
        "players": mapping.num_players if mapping is not None and run.self_play.enabled else 1,
        "greedy": bool(run.eval.greedy if greedy is None else greedy),
    }
    replay = build_replay(
        title=f"{run.env.id}: play beside the policy of step {checkpoint.step:,}",
        world=run.env.id,
        settings=run.env.kwargs,
        obs_space=obs_space,
        action_space=action_space,
    )
    policy = policy_bytes(replace(checkpoint, trainer={}, is_own=False))
    return page_html({**replay, "game": game}, "play", game=Game(policy, twin))


def twin_of(source: EnvSource) -> str:
    """Return the source of the twin in JavaScript of a world: the file beside its module, `x.mjs` beside `x.py`.

    Raises:
        ValueError: there is none.
    """
    world = source.world
    module = inspect.getsourcefile(world if inspect.isclass(world) or inspect.isfunction(world) else type(world))
    file = Path(module or source.name).with_suffix(".mjs")
    if not file.is_file():
        raise ValueError(
            f"{source.name} has no twin in JavaScript, {file.name} beside its module, with which a page could play it; "
            "MineSweeper, MultiSnake and Skirmish have one"
        )
    return file.read_text(encoding="utf-8")


def _drawing(source: EnvSource, name: str) -> Mapping[str, Any] | None:
    """How the world is drawn at the beginning of an episode."""
    env = source.as_environment()
    try:
        env.reset()
        return check_hints(env.draw(), env.obs_space(), name)
    finally:
        env.close()
