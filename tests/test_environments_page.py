"""docs/environments.md says what the worlds' docstrings say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from entity_gym.registry import list_envs

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "environments.md"


def regenerate(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "scripts" / "regenerate_environments.py"
    return subprocess.run([sys.executable, script, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_page_is_what_the_docstrings_say() -> None:
    result = regenerate("--check")
    assert result.returncode == 0, result.stderr


def test_a_stale_page_is_noticed_and_mended(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    copy = tmp_path / "page.md"
    copy.write_text(page.replace("**Reward.** 1 in every step", "**Reward.** 2 in every step"), encoding="utf-8")
    assert copy.read_text(encoding="utf-8") != page

    result = regenerate("--check", "--page", str(copy))
    assert result.returncode == 1
    assert "stale" in result.stderr
    assert regenerate("--page", str(copy)).returncode == 0
    assert copy.read_text(encoding="utf-8") == page


def test_every_world_says_what_it_shows_takes_and_rewards_when_it_ends_and_what_is_best() -> None:
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    assert [section.split("\n")[0] for section in sections] == list_envs()
    for section in sections[1:]:  # the first, CartPole-v0, refers to CartPole-v1
        for title in ("Observation", "Actions", "Reward", "End", "Best score"):
            assert section.count(f"**{title}.**") == 1, (title, section)
