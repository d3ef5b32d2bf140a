"""The random numbers of compiled environments: splitmix64, and what is made from its bits."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from entity_gym.compiled import rand_float, rand_int, rand_normal
from entity_gym.compiled.random import first_random_states, next_bits

# The first outputs of the public-domain splitmix64.c for two seeds.
OUTPUTS = {
    0: [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F],
    1234567: [6457827717110365317, 3203168211198807973, 9817491932198370423],
}
SEEDS = st.integers(0, 2**64 - 1)

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")


def state(seed: int) -> Any:
    return SimpleNamespace(rng=np.uint64(seed))


def outputs(seed: int, count: int) -> list[int]:
    """The same generator in Python's own whole numbers."""
    mask = 2**64 - 1
    result = []
    for k in range(1, count + 1):
        z = (seed + k * 0x9E3779B97F4A7C15) & mask
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        result.append(z ^ (z >> 31))
    return result


@pytest.mark.parametrize("seed", OUTPUTS)
def test_the_bits_are_those_of_splitmix64(seed: int) -> None:
    s = state(seed)
    assert [int(next_bits(s)) for _ in range(3)] == OUTPUTS[seed] == outputs(seed, 3)


@given(SEEDS, st.integers(1, 2**32 - 1))
def test_whole_numbers_are_the_top_bits_times_n(seed: int, n: int) -> None:
    s = state(seed)
    drawn = [int(rand_int(s, n)) for _ in range(4)]
    assert drawn == [(bits >> 32) * n >> 32 for bits in outputs(seed, 4)]
    assert all(0 <= number < n for number in drawn)


@given(SEEDS)
def test_floats_are_the_top_53_bits(seed: int) -> None:
    s = state(seed)
    drawn = [float(rand_float(s)) for _ in range(4)]
    assert drawn == [(bits >> 11) / 2**53 for bits in outputs(seed, 4)]
    assert all(0 <= number < 1 for number in drawn)


@given(SEEDS)
def test_normal_numbers_are_those_of_box_and_muller(seed: int) -> None:
    s = state(seed)
    first, second = ((bits >> 11) / 2**53 for bits in outputs(seed, 2))
    expected = math.sqrt(-2 * math.log(1 - first)) * math.cos(2 * math.pi * second)
    assert float(rand_normal(s)) == pytest.approx(expected, abs=1e-12)
    assert int(s.rng) == (seed + 2 * 0x9E3779B97F4A7C15) % 2**64  # two draws


def test_environment_i_draws_from_the_seed_sequence_of_its_number() -> None:
    states = first_random_states(5, num_envs=3, first_env=2)
    expected = [np.random.SeedSequence((5, i)).generate_state(1, np.uint64)[0] for i in (2, 3, 4)]
    assert states.dtype == np.uint64 and states.tolist() == expected


@njit
def draw(record: Any, n: int) -> tuple[int, float, float]:
    s = record[0]
    return rand_int(s, n), rand_float(s), rand_normal(s)


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_compiled_they_are_the_same_bit_for_bit(seed: int) -> None:
    record = np.array([(seed,)], dtype=[("rng", np.uint64)])
    s = state(seed)
    for n in (1, 6, 1000, 2**32 - 1):
        assert draw(record, n) == (rand_int(s, n), rand_float(s), rand_normal(s))
        assert record["rng"][0] == s.rng
