"""Kinds of actions in compiled code: what is taken and refused is what ordinary Python takes and refuses."""

import pytest

from entity_gym.compiled import CompiledEnvironment
from entity_gym.pools.pool import ThreadedVecEnv
from tests.entity_gym.actions.depot import Depot
from tests.entity_gym.actions.harbour import Harbour
from tests.entity_gym.actions.test_continuous_actions import check_bounds
from tests.entity_gym.actions.test_contract import NUM_ENVS, as_plain_python, played
from tests.entity_gym.actions.test_select_entity_options import check_selections
from tests.entity_gym.compiled.test_sets import check_refusals, check_rewards


@pytest.mark.parametrize("mute", [True, False])
def test_selections(mute: bool) -> None:
    check_selections(mute, compile_=True)


def test_bounds_of_numbers() -> None:
    check_bounds(compile_=True)


def test_numbers_of_sets() -> None:
    check_rewards(compile=True)


def test_refused_sets() -> None:
    check_refusals(compile=True)


@pytest.mark.parametrize("world", [Harbour, Depot])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_pool_shows_and_pays_the_same(world: type[CompiledEnvironment], num_threads: int) -> None:
    with ThreadedVecEnv(world, NUM_ENVS, num_threads) as env:
        assert played(env) == as_plain_python(world)
