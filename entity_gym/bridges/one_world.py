"""What bridges to other libraries' environments have in common: each is made of one world."""

from __future__ import annotations

from typing import Any

from entity_gym.environment import Environment


def source_of(env: Any) -> Any:
    """What `make` takes: `env`, or, if it is one `Environment`, a function that returns it."""
    if not isinstance(env, Environment):
        return env

    def the_one() -> Environment:
        return env

    the_one.__name__ = type(env).__name__  # what messages call it
    return the_one
