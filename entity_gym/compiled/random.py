"""Random numbers for compiled environments: splitmix64, whose whole state is one field of the environment's record.

Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", and Vigna's public-domain splitmix64.c.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

#: Marks a module-level function that `reset`, `step` and `observe` may call: compiled there, ordinary Python elsewhere.
kernel = register_jitable(no_cpython_wrapper=True, no_cfunc_wrapper=True)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_11, _27, _30, _31, _32 = (np.uint64(bits) for bits in (11, 27, 30, 31, 32))
_TWO_PI = 2 * math.pi


@kernel
def mix(z: Any) -> Any:
    """64 bits that look unrelated to the uint64 `z`; no two numbers have the same."""
    z = (z ^ (z >> _30)) * _MIX_1
    z = (z ^ (z >> _27)) * _MIX_2
    return z ^ (z >> _31)


@kernel
def next_bits(s: Any) -> Any:
    """64 random bits; advances `s.rng`."""
    s.rng = s.rng + _GOLDEN
    return mix(s.rng)


@kernel
def rand_int(s: Any, n: int) -> int:
    """A whole number from 0 to n - 1, for 1 <= n < 2^32; no number is likelier than another by more than n / 2^32."""
    return np.int64(((next_bits(s) >> _32) * np.uint64(n)) >> _32)  # type: ignore[return-value]


@kernel
def rand_float(s: Any) -> float:
    """A number in [0, 1), a multiple of 2^-53."""
    return np.float64(next_bits(s) >> _11) * (1.0 / 9007199254740992.0)


@kernel
def rand_normal(s: Any) -> float:
    """A number from the standard normal distribution. Source: Box and Muller 1958."""
    radius = math.sqrt(-2.0 * math.log(1.0 - rand_float(s)))
    return radius * math.cos(_TWO_PI * rand_float(s))


@kernel
def new_id(s: Any) -> int:
    """An id that no entity of this episode has had: 0, 1, 2... In worlds with `Entity(..., ids=True)`."""
    s.next_id += 1
    return s.next_id - 1  # type: ignore[no-any-return]


def first_random_states(seed: int, num_envs: int, first_env: int = 0, group_size: int = 1) -> NDArray[np.uint64]:
    """(num_envs,) initial values of `s.rng`: environment i draws from `SeedSequence((seed, (first_env + i) // group_size))`."""
    groups, group_of = np.unique((first_env + np.arange(num_envs)) // group_size, return_inverse=True)
    sequences = [np.random.SeedSequence((seed, group)) for group in groups.tolist()]
    return np.array([sequence.generate_state(1, np.uint64)[0] for sequence in sequences], dtype=np.uint64)[group_of]
