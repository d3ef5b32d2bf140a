"""Compiled code is kept on disk: compiled for real, in processes of their own, and on disks that fail."""

import errno
import json
import subprocess
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core.caching import IndexDataCacheFile

from entity_gym.compiled.build import build
from entity_gym.compiled.compiler import entry
from tests.entity_gym.compiled.test_cache import FIRST_REWARD, edit, first_reward, imported
from tests.entity_gym.compiled.test_cache import project as project
from tests.entity_gym.compiled.worlds import Watching
from tests.processes import start

# --- In processes of their own

SCRIPT = """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from tests.entity_gym.compiled.comparing import Playing
    from entity_gym.compiled.slots import CompiledSlots
    from a_world import World
    slots = CompiledSlots(World, 1)
reward = float(Playing(slots).step().reward[0])
stats = slots.program.module.run.stats
print(json.dumps({
    "reward": reward,
    "hits": sum(stats.cache_hits.values()),
    "misses": sum(stats.cache_misses.values()),
    "folder": str(slots.program.folder),
    "warnings": [str(warning.message) for warning in caught],
}))
"""


def started(project: Path) -> subprocess.Popen[str]:
    return start("-c", SCRIPT, PYTHONPATH=str(project), PYTHONDONTWRITEBYTECODE="1")


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return dict(json.loads(out))


def compiled_files(project: Path) -> list[str]:
    return sorted(str(path) for path in (project.parent / "cache").rglob("*.nbc"))


@pytest.mark.slow
def test_compiled_code_is_loaded_until_a_source_changes_whoever_has_compiled_it(project: Path) -> None:
    both = [started(project), started(project)]  # at the same time
    assert [finished(process)["reward"] for process in both] == [FIRST_REWARD, FIRST_REWARD]
    files = compiled_files(project)
    assert files
    again = finished(started(project))  # what they have left behind is of use
    assert (again["reward"], again["hits"], again["misses"]) == (FIRST_REWARD, 1, 0)
    assert compiled_files(project) == files
    edit(project, "a helper of a helper in a third module")
    edited = finished(started(project))
    assert (edited["reward"], edited["hits"], edited["misses"]) == (FIRST_REWARD + 1, 0, 1)


def test_a_cache_that_cannot_be_written_is_said_and_does_without(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked, temporary = project.parent / "a file", project.parent / "temporary"
    blocked.write_text("no folder")
    temporary.mkdir()
    monkeypatch.setenv("ENTITY_GYM_CACHE_DIR", str(blocked))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with pytest.warns(
        UserWarning, match=r"World cannot be kept on disk .*a file.*set ENTITY_GYM_CACHE_DIR to a folder"
    ):
        program = build(imported())
    assert program.folder is None and program.run is not None
    assert first_reward(imported(), compile=False) == FIRST_REWARD
    assert list(temporary.iterdir()) == []  # where others could put code to be executed


def test_on_a_full_disk_a_world_is_compiled_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    class Full(Watching):
        pass

    def save(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("ENTITY_GYM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(IndexDataCacheFile, "save", save)
    assert build(Full).run is not None
    [warning] = recwarn
    assert str(warning.message).startswith(
        "compiled, Full cannot be kept on disk (No space left on device): each process"
    )


def test_a_world_is_compiled_where_numbas_own_variable_keeps_it(
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "numba"))
    build(imported())
    assert capfd.readouterr().err.count("\n") == 2
    build(imported())
    assert capfd.readouterr().err == ""


# --- Damaged files


def doubled(x: int) -> int:
    return 2 * x


def kept_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_damaged_files_of_compiled_code_are_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    compiled = entry(numba.int64(numba.int64), cache=True)
    compiled(doubled)
    files = kept_files(tmp_path)
    assert sorted(path.suffix for path in files) == [".nbc", ".nbi"]
    for path, whole in files.items():
        cuts = [whole[:size] for size in (0, 1, 10, len(whole) // 3, len(whole) // 2, len(whole) - 1)]
        for content in (*cuts, bytes(len(whole)), b"damaged" + whole):
            path.write_bytes(content)
            assert compiled(doubled)(21) == 42
            again = compiled(doubled)
            assert sum(again.stats.cache_hits.values()) == 1 and again(21) == 42


def test_a_world_is_compiled_again_where_its_files_are_damaged(project: Path) -> None:
    assert first_reward(imported()) == FIRST_REWARD
    folder = build(imported()).folder
    assert folder is not None
    files = {path: content for path, content in kept_files(folder).items() if path.suffix in (".py", ".nbi", ".nbc")}
    assert len(files) == 3
    for content in (b"", None):
        for path, whole in files.items():
            path.write_bytes(whole[: len(whole) // 2] if content is None else content)
        assert first_reward(imported()) == FIRST_REWARD
        program = build(imported())
        assert program.run is not None and sum(program.module.run.stats.cache_hits.values()) == 1
        assert (folder / "loops.py").read_bytes() == files[folder / "loops.py"]
