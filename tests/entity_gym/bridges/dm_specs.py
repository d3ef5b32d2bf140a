"""Values that dm's specs describe, in trees of dictionaries."""

from __future__ import annotations

from typing import Any

import numpy as np


def validate(spec: Any, value: Any) -> None:
    """Everything in `value` is as `spec` says, and nothing else is there."""
    if isinstance(spec, dict):
        assert spec.keys() == value.keys()
        for name in spec:
            validate(spec[name], value[name])
    else:
        spec.validate(value)


def random_action(spec: Any, rng: np.random.Generator) -> Any:
    """Any of the actions that `spec` allows."""
    if isinstance(spec, dict):
        return {name: random_action(branch, rng) for name, branch in spec.items()}
    if spec.dtype.kind == "f":
        return rng.uniform(spec.minimum, spec.maximum).astype(spec.dtype)
    return rng.integers(spec.minimum, spec.maximum + 1)
