"""Differences between the spaces of training and those of an environment, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from entity_gym.actions import ActionSpace
from entity_gym.errors import nearest
from entity_gym.spaces import Category, FeatureKind, ObsSpace


def gained_features(before: ObsSpace, now: ObsSpace) -> list[str]:
    """A line for each entity type and feature that is new.

    Raises:
        ValueError: one is missing, or of another kind; the message names it.
    """
    lines: list[str] = []
    for name in before.entities:
        if name not in now.entities:
            raise ValueError(f"the entity type {name!r} is gone; {nearest(name, now.entities)}")
    for name, entity in now.entities.items():
        if name in before.entities:
            known = before.entities[name]
            lines += _features(f" of {name!r}", known.features, known.kinds, entity.features, entity.kinds)
        else:
            lines.append(f"entity type {name!r} is new: untrained, and seen by all others")
    lines += _features(
        " of the whole frame", before.global_features, before.global_kinds, now.global_features, now.global_kinds
    )
    return lines


def _features(
    owner: str,
    before: Sequence[str],
    kinds_before: Mapping[str, FeatureKind],
    now: Sequence[str],
    kinds_now: Mapping[str, FeatureKind],
) -> Iterator[str]:
    for feature in before:
        if feature not in now:
            raise ValueError(f"the feature {feature!r}{owner} is gone; {nearest(feature, now)}")
        was, is_ = kinds_before.get(feature), kinds_now.get(feature)
        if isinstance(was, Category) and isinstance(is_, Category) and was.num < is_.num:
            yield f"feature {feature!r}{owner} has {is_.num} categories, {was.num} before: new ones count as the mean"
        elif was != is_:
            raise ValueError(
                f"the feature {feature!r}{owner} was {was or 'a plain number'} and is {is_ or 'a plain number'}"
            )
    for feature in now:
        if feature not in before:
            yield f"feature {feature!r}{owner} is new: without effect at first"


def gained_actions(before: Mapping[str, ActionSpace], now: Mapping[str, ActionSpace]) -> list[str]:
    """A line for each action and choice that is new.

    Raises:
        ValueError: one is missing, or of another kind; the message names it.
    """
    lines: list[str] = []
    for name in before:
        if name not in now:
            raise ValueError(f"the action {name!r} is gone; {nearest(name, now)}")
    for name, space in now.items():
        if name not in before:
            lines.append(f"action {name!r} is new: untrained")
        elif type(before[name]) is not type(space):
            raise ValueError(f"the action {name!r} was a {type(before[name]).__name__} and is a {type(space).__name__}")
        else:
            lines += space.changes_since(before[name], name)
    return lines
