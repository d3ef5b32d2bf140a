"""What an environment has gained since a policy was trained in it, in words. Pure functions of spaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from entity_gym.errors import nearest
from entity_gym.spaces import (
    ActionSpace,
    Category,
    ContinuousActionSpace,
    FeatureKind,
    ObsSpace,
    SelectEntityActionSpace,
)


def gained_features(before: ObsSpace, now: ObsSpace) -> list[str]:
    """A line for each thing that frames show, and did not.

    Raises:
        ValueError: something that they showed is gone, or is of another kind; names it.
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
    """A line for each thing that can be done, and could not.

    Raises:
        ValueError: something that could be done is gone, or is of another kind; names it.
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
            lines += _options(name, before[name], space)
    return lines


def _options(action: str, before: ActionSpace, now: ActionSpace) -> Iterator[str]:
    if isinstance(before, SelectEntityActionSpace) and isinstance(now, SelectEntityActionSpace):
        if before.nobody and not now.nobody:
            raise ValueError(f"the choice of nobody of the action {action!r} is gone")
        if now.nobody and not before.nobody:
            yield f"action {action!r} may now select nobody: untrained"
        if before.exclude_self != now.exclude_self:
            yield f"action {action!r} may {'no longer' if now.exclude_self else 'now'} select the actor itself"
    elif isinstance(before, ContinuousActionSpace) and isinstance(now, ContinuousActionSpace):
        yield from _numbers(action, before, now)
    else:
        assert not isinstance(before, SelectEntityActionSpace | ContinuousActionSpace)
        assert not isinstance(now, SelectEntityActionSpace | ContinuousActionSpace)
        for choice in before.choices:
            if choice not in now.choices:
                raise ValueError(
                    f"the choice {choice!r} of the action {action!r} is gone; {nearest(choice, now.choices)}"
                )
        for choice in now.choices:
            if choice not in before.choices:
                yield f"choice {choice!r} of action {action!r} is new: at first as likely as the others are on average"


def _numbers(action: str, before: ContinuousActionSpace, now: ContinuousActionSpace) -> Iterator[str]:
    if (before.names is None) != (now.names is None):
        raise ValueError(
            f"the numbers of the action {action!r} were called {before.names and list(before.names)} and are called "
            f"{now.names and list(now.names)}: without names they cannot be told apart"
        )
    bounds_before, bounds_now = _bounds(before), _bounds(now)
    for number, bounds in bounds_before.items():
        if number not in bounds_now:
            raise ValueError(f"{number} of the action {action!r} is gone; {nearest(number, bounds_now)}")
        if bounds != bounds_now[number]:
            raise ValueError(
                f"{number} of the action {action!r} was within {bounds} and is within {bounds_now[number]}"
            )
    for number in bounds_now:
        if number not in bounds_before:
            yield f"{number} of action {action!r} is new: untrained"


def _bounds(space: ContinuousActionSpace) -> dict[str, tuple[float, float]]:
    names = [f"number {name!r}" for name in space.names or map(str, range(space.size))]
    return dict(zip(names, zip(space.low, space.high, strict=True), strict=True))
