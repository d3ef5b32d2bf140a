"""One observation as a text, entity by entity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from entity_gym.environment import Environment, Observation
from entity_gym.spaces import describe

MOST_ENTITIES = 12  # of a type that are printed


def describe_observation(env: Environment, obs: Observation) -> Iterator[str]:
    """Yield lines with the entities and their features, the global features, and who takes which action."""
    space = env.obs_space()
    tables: list[Any] = [
        (name, each.features, each.kinds, obs.features.get(name, ())) for name, each in space.entities.items()
    ]
    if space.global_features:
        tables.append(("global features", space.global_features, space.global_kinds, [obs.global_features]))
    for name, features, kinds, rows in tables:
        yield f"{name} ({len(rows)}): {describe(features, kinds) or 'no features'}"
        values = np.asarray(rows, np.float32)[:MOST_ENTITIES].tolist()
        lines = [list(features), *([f"{value:.4g}" for value in row] for row in values)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines if features and values else ():
            yield "  " + "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        if len(rows) > MOST_ENTITIES:
            yield f"  and {len(rows) - MOST_ENTITIES} more"
    left_out = getattr(env, "left_out", ())
    if left_out:
        yield f"left out ({len(left_out)}): {', '.join(left_out[:20])}" + (", ..." if len(left_out) > 20 else "")
    for action, kind in env.action_space().items():
        offer = vars(obs.actions[action]) if action in obs.actions else {"actors": "nobody"}
        parts = [f"{name}={' '.join(repr(part).split())[:200]}" for name, part in offer.items() if part is not None]
        yield f"action {action}: {kind}; {', '.join(parts)}"
