"""One observation as a text, entity by entity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from entity_gym.actions import ActionMask
from entity_gym.environment import Environment, Observation
from entity_gym.spaces import describe

#: Entities of a type that are printed.
MOST_ENTITIES = 12


def describe_observation(env: Environment, obs: Observation) -> str:
    """Return the entities of an observation with their features, the global features, and who takes which action."""
    return "\n".join(_lines(env, obs))


def _lines(env: Environment, obs: Observation) -> Iterator[str]:
    space = env.obs_space()
    for name, entity in space.entities.items():
        rows = np.asarray(obs.features.get(name, ()), np.float32)
        yield f"{name} ({len(rows)}): {describe(entity.features, entity.kinds) or 'no features'}"
        yield from _table(entity.features, rows[:MOST_ENTITIES], list(obs.ids.get(name, ())))
        if len(rows) > MOST_ENTITIES:
            yield f"  and {len(rows) - MOST_ENTITIES} more"
    if space.global_features:
        yield f"global features: {describe(space.global_features, space.global_kinds)}"
        yield from _table(space.global_features, np.asarray(obs.global_features)[None], ())
    left_out = getattr(env, "left_out", ())
    if left_out:
        yield f"left out ({len(left_out)}): {', '.join(left_out[:20])}" + (", ..." if len(left_out) > 20 else "")
    for action, kind in env.action_space().items():
        mask = obs.actions.get(action)
        yield f"action {action}: {kind}; " + ("nobody takes it now" if mask is None else _actors(mask))


def _table(names: Sequence[str], rows: Any, ids: Sequence[Any]) -> Iterator[str]:
    """Yield a line of names and one for each row, in columns."""
    if not len(names) or not len(rows):
        return
    cells = [["", *names]]
    for k, row in enumerate(rows):
        cells.append([_id(ids[k]) if ids else "", *(f"{value:.4g}" for value in row.tolist())])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  " + "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))


def _id(given: Any) -> str:
    return f"row {given[1]}" if isinstance(given, tuple) else str(given)


def _actors(mask: ActionMask) -> str:
    told = []
    for role in ("actor", "actee"):
        ids, types = getattr(mask, f"{role}_ids", None), getattr(mask, f"{role}_types", None)
        if ids is not None:
            told.append(
                f"{role}s "
                + ", ".join(" ".join(map(str, each)) if isinstance(each, tuple) else str(each) for each in ids)
            )
        elif types is not None:
            told.append(f"{role}s all of {', '.join(types)}")
    closed = getattr(mask, "mask", None)
    if closed is not None:
        told.append(f"{np.asarray(closed).sum()} of {np.asarray(closed).size} open")
    return "; ".join(told)
