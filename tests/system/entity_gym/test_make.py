"""Imports of `make`, `make_gym` and `make_dm`."""

import pytest

from tests.processes import output_of


def test_importing_the_registry_imports_neither_the_compiler_nor_environments() -> None:
    output_of(
        "import sys, entity_gym.registry as r; r.list_envs(); "
        "heavy = ('numba', 'gymnasium', 'dm_env', 'torch'); "
        "bad = [m for m in sys.modules if m.partition('.')[0] in heavy or 'entity_gym.envs' in m]; "
        "assert not bad, bad"
    )


def test_making_entities_imports_no_other_libraries() -> None:
    output_of(
        "import sys; from entity_gym.registry import make, make_spec; "
        "make('Xor', compile=False).reset(); print(make_spec('CartPole-v1')); "
        "bad = sys.modules.keys() & {'gymnasium', 'dm_env', 'torch'}; assert not bad, bad"
    )


@pytest.mark.parametrize(
    ("function", "library", "other", "extra"),
    [("make_gym", "gymnasium", "dm_env", "gymnasium"), ("make_dm", "dm_env", "gymnasium", "dm")],
)
def test_each_needs_only_its_own_library_and_says_how_to_get_it(
    function: str, library: str, other: str, extra: str
) -> None:
    pytest.importorskip(library)
    make_it = f"import entity_gym; entity_gym.{function}('Xor', compile=False)"
    output_of(f"import sys; sys.modules[{other!r}] = None; {make_it}.reset()")
    refused = f"import sys; sys.modules[{library!r}] = None\ntry: {make_it}\nexcept ImportError as error: print(error)"
    assert f'pip install "enn-ppo[{extra}]"' in output_of(refused)
