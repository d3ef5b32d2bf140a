"""`make`, `make_spec`, `register` and `list_envs`."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from entity_gym import registry
from entity_gym.pools.vec_env import VecEnv
from entity_gym.registry import make
from tests.entity_gym.bridges.form_worlds import Crowd
from tests.entity_gym.pools.processes.thread_workers import threads as threads


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


@pytest.fixture
def closing() -> Iterator[list[VecEnv]]:
    pools: list[VecEnv] = []
    yield pools
    for pool in pools:
        pool.close()


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- names


# ---- options


# ---- registering


# ---- specs


def test_a_pool_with_other_room_for_players_can_be_sent_to_processes(closing: list[VecEnv]) -> None:
    pool = make(Crowd, 2, max_num_players=3, players=3, compile=False, num_processes=2)
    closing.append(pool)
    assert pool.reset().arrays["info:players.strength"].offsets.tolist() == [0, 3, 6]


# ---- what is imported


def test_importing_the_registry_imports_neither_the_compiler_nor_environments() -> None:
    run(
        "import sys, entity_gym.registry as r; r.list_envs(); "
        "heavy = ('numba', 'gymnasium', 'dm_env', 'torch'); "
        "bad = [m for m in sys.modules if m.partition('.')[0] in heavy or 'entity_gym.envs' in m]; "
        "assert not bad, bad"
    )


def test_making_the_entity_form_imports_no_other_forms_libraries() -> None:
    run(
        "import sys; from entity_gym.registry import make, make_spec; "
        "make('Xor', compile=False).reset(); print(make_spec('CartPole-v1')); "
        "bad = sys.modules.keys() & {'gymnasium', 'dm_env', 'torch'}; assert not bad, bad"
    )


@pytest.mark.parametrize(
    ("env_type", "library", "other", "extra"),
    [("gymnasium", "gymnasium", "dm_env", "gymnasium"), ("dm", "dm_env", "gymnasium", "dm")],
)
def test_a_form_needs_only_its_own_library_and_says_how_to_get_it(
    env_type: str, library: str, other: str, extra: str
) -> None:
    pytest.importorskip(library)
    make_it = f"from entity_gym.registry import make; make('Xor', compile=False, env_type={env_type!r})"
    run(f"import sys; sys.modules[{other!r}] = None; {make_it}.reset()")
    refused = f"import sys; sys.modules[{library!r}] = None\ntry: {make_it}\nexcept ImportError as error: print(error)"
    assert f'pip install "enn-ppo[{extra}]"' in run(refused)
