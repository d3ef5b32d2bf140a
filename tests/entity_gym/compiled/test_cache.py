"""Compiled code is kept, found again, and made anew when anything changes that it comes from."""

import importlib
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from entity_gym.compiled import CompiledEnvironment
from entity_gym.compiled.build import build, cache_dir
from entity_gym.compiled.slots import CompiledSlots
from entity_gym.pools.slots import SlotOptions
from tests.entity_gym.compiled.comparing import Playing
from tests.entity_gym.compiled.worlds import Watching

FILES = {
    "a_world.py": """
        import numpy as np
        import a_package.deep
        from a_package.rules import Kind, SHAPE, TABLE, doubled, plus
        from a_package import rules
        from entity_gym.compiled import CompiledEnvironment, GlobalCategorical

        STEP = 1

        class World(CompiledEnvironment):
            actions = {"go": GlobalCategorical(["a", "b"])}
            state = [("n", np.int64)]

            def reset(s):
                s.n = 0

            def step(s, act):
                s.n += STEP
                value = doubled(s.n) + rules.BONUS + TABLE[1] + SHAPE[1][0] + plus(1)
                return value + a_package.deep.DEPTH + (10000 if s.n == Kind.BIG else 0), False, False

            def observe(s, obs):
                pass
        """,
    "a_package/__init__.py": "",
    "a_package/rules.py": """
        from enum import IntEnum
        import numpy as np
        from a_package import factors, unused
        from entity_gym.compiled import kernel

        BONUS = 100
        TABLE = np.array([1, 2, 3])
        SHAPE = (0, (5, 6))

        class Kind(IntEnum):
            SMALL = 1
            BIG = 7

        @kernel
        def doubled(n):
            return n * factors.factor()

        @kernel
        def plus(n, more=factors.MORE):
            return n + more
        """,
    "a_package/factors.py": """
        from entity_gym.compiled import kernel

        MORE = 3

        @kernel
        def factor():
            return 2
        """,
    "a_package/deep.py": "import a_package\nDEPTH = 4\n",
    "a_package/unused.py": "NOTHING = 1\n",
}
# In the first step: doubled 2, bonus 100, table 2, shape 5, plus 4, depth 4.
FIRST_REWARD = 117.0

EDITS = {
    "its own function": ("a_world.py", "s.n = 0", "s.n = 5"),
    "its own constant": ("a_world.py", "STEP = 1", "STEP = 2"),
    "a helper in another module": ("a_package/rules.py", "return n *", "return 1 + n *"),
    "a helper of a helper in a third module": ("a_package/factors.py", "return 2", "return 3"),
    "a constant of another module": ("a_package/rules.py", "BONUS = 100", "BONUS = 200"),
    "a constant of a submodule": ("a_package/deep.py", "DEPTH = 4", "DEPTH = 5"),
    "an array": ("a_package/rules.py", "[1, 2, 3]", "[1, 9, 3]"),
    "a nested tuple": ("a_package/rules.py", "(5, 6)", "(8, 6)"),
    "an enumeration": ("a_package/rules.py", "BIG = 7", "BIG = 1"),
    "a default argument from a third module": ("a_package/factors.py", "MORE = 3", "MORE = 4"),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's files, importable, and a cache of their own."""
    folder = tmp_path / "project"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # edits within a second would not be seen
    monkeypatch.setenv("ENTITY_GYM_CACHE_DIR", str(tmp_path / "cache"))
    yield folder
    forget()


def forget() -> None:
    for name in list(sys.modules):
        if name.split(".")[0] in ("a_world", "a_package"):
            del sys.modules[name]
    importlib.invalidate_caches()


def imported() -> Any:
    """The world as a new process would import it."""
    forget()
    return importlib.import_module("a_world").World


def edit(project: Path, edited: str) -> None:
    name, old, new = EDITS[edited]
    text = (project / name).read_text()
    assert text.count(old) == 1
    (project / name).write_text(text.replace(old, new))


def first_reward(world: Any, **options: Any) -> float:
    return float(Playing(CompiledSlots(world, 1, SlotOptions(**options))).step().reward[0])


# --- What belongs to the key (without compiling: the key is the same question in ordinary Python)


def folder_of(world: type[CompiledEnvironment]) -> str:
    folder = build(world, compile=False).folder
    assert folder is not None
    return folder.name


def test_the_same_sources_have_the_same_place(project: Path) -> None:
    world = imported()
    assert first_reward(world, compile=False) == FIRST_REWARD
    again = imported()
    assert again is not world and folder_of(again) == folder_of(world)
    assert folder_of(world).startswith("World_") and (project.parent / "cache" / folder_of(world)).is_dir()


@pytest.mark.parametrize("edited", EDITS)
def test_whatever_is_edited_has_another_place(edited: str, project: Path) -> None:
    before = folder_of(imported())
    edit(project, edited)
    world = imported()
    assert first_reward(world, compile=False) != FIRST_REWARD  # it does matter
    assert folder_of(world) != before


def test_a_constant_that_is_replaced_from_outside_has_another_place(project: Path) -> None:
    world = imported()
    before = folder_of(world)
    sys.modules["a_package.rules"].BONUS = 7  # type: ignore[attr-defined]
    again = type("World", (world,), {})
    assert folder_of(again) != before


def counting_by(amount: int) -> type[CompiledEnvironment]:
    class World(Watching):
        def step(s: Any, act: Any) -> tuple[float, bool, bool]:
            s.t += amount
            return float(s.t), False, False

    return World


def test_what_a_function_closes_over_belongs_to_the_key() -> None:
    assert folder_of(counting_by(1)) == folder_of(counting_by(1)) != folder_of(counting_by(2))


class Up:
    class World(Watching):
        def step(s: Any, act: Any) -> tuple[float, bool, bool]:
            s.t += 1
            return float(s.t), False, False


class Down:
    class World(Watching):
        def step(s: Any, act: Any) -> tuple[float, bool, bool]:
            s.t -= 1
            return float(s.t), False, False


def test_two_classes_of_one_name_in_one_file_are_two() -> None:
    assert folder_of(Up.World) != folder_of(Down.World)


# --- Where it is


def test_the_place_is_the_users_cache_folder_unless_a_variable_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ENTITY_GYM_CACHE_DIR", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"
    if sys.platform == "linux":
        monkeypatch.delenv("ENTITY_GYM_CACHE_DIR")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache_dir() == tmp_path / "entity_gym" / "compiled"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache_dir() == tmp_path / ".cache" / "entity_gym" / "compiled"


# --- In processes of their own, compiled for real


def make_link(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners and modes are those of POSIX")
@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder, monkeypatch: folder.chmod(0o777),
        lambda folder, monkeypatch: folder.chmod(0o770),
        lambda folder, monkeypatch: make_link(folder),
        lambda folder, monkeypatch: monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1),
    ],
    ids=["everybody", "group", "link", "owner"],
)
def test_code_is_kept_where_nobody_else_can_put_any(spoil: Any, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build(imported(), compile=False).folder
    assert folder is not None and folder.stat().st_mode & 0o777 == 0o700
    (folder / "loops.py").write_text("raise AssertionError('code of somebody else is executed')")
    spoil(folder, monkeypatch)
    with pytest.warns(UserWarning, match=f"kept on disk .{re.escape(str(folder))} is a link, or others own it"):
        assert build(imported(), compile=False).folder is None
