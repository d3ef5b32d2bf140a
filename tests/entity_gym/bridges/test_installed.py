"""Environments of installed packages that nobody has imported: they are found by their files, and named in messages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

gymnasium = pytest.importorskip("gymnasium")

from entity_gym.bridges.gymnasium.incoming import GymFactory  # noqa: E402
from entity_gym.bridges.installed import packages_using, registered_ids, versioned_modules  # noqa: E402

REGISTERS = """
from gymnasium.envs.registration import register

register(id="lane-keeping-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
register("Roads/Merge-v2", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
"""


@pytest.fixture
def roads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package `roads_env` of the distribution `roads-env`, which registers two ids when it is imported."""
    for name, text in {
        "roads_env/__init__.py": REGISTERS,
        "roads_env/mpe/__init__.py": "",
        "roads_env/mpe/spread_v3.py": "",
        "roads_env/mpe/tag_v12/__init__.py": "",
        "roads_env/mpe/tag_v12/raw_v1.py": "",
        "roads_env/tools.py": 'NOT_AN_ID = "something-v0"',
        "roads_env-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: roads-env\nVersion: 1.0\nRequires-Dist: gymnasium>=1\n",
        "roads_env-1.0.dist-info/top_level.txt": "roads_env\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "roads_env", raising=False)
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))


@pytest.mark.usefixtures("roads")
def test_packages_are_read_and_not_imported() -> None:
    assert "roads_env" in packages_using("gymnasium")
    assert "roads_env" not in packages_using("pettingzoo")
    assert registered_ids("roads_env") == ["lane-keeping-v0", "Roads/Merge-v2"]
    assert versioned_modules("roads_env") == ["roads_env.mpe.spread_v3", "roads_env.mpe.tag_v12"]
    assert registered_ids("json") is None and registered_ids("not_installed") is None
    assert "roads_env" not in sys.modules


@pytest.mark.usefixtures("roads")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("lane-keeping-v0", "; it is an environment of roads_env: roads_env:lane-keeping-v0"),
        ("Roads/Merge-v2", "; it is an environment of roads_env: roads_env:Roads/Merge-v2"),
        ("lane-keepin-v0", "; near are 'roads_env:lane-keeping-v0'"),
        ("CartPoll-v1", "; near are 'CartPole-v1'"),
        ("xyzxyz-v9", "; ids of a package are written package:id, which imports it first; installed are .*roads_env"),
    ],
)
def test_an_unknown_id_is_told_with_the_package_that_has_it(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"'{given}' is no environment that Gymnasium knows: .*{message}"):
        GymFactory(given)
    assert "roads_env" not in sys.modules


@pytest.mark.usefixtures("roads")
@pytest.mark.parametrize("given", ["roads_env:lane-keeping-v0", "roads-env:lane-keeping-v0"])
def test_the_id_of_the_message_is_found(given: str) -> None:
    world = GymFactory(given).as_environment()
    assert world.reset().features
    world.close()
