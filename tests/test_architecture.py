"""ARCHITECTURE.md says what the code does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
GOLDEN = json.loads((ROOT / "tests" / "golden" / "minesweeper_internals.json").read_text())


def regenerate(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "scripts" / "regenerate_architecture.py"
    return subprocess.run([sys.executable, script, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def block(name: str) -> str:
    page = PAGE.read_text(encoding="utf-8")
    return page.split(f"<!-- value: {name} -->")[1].split("<!-- end -->")[0]


def test_the_page_is_what_the_code_computes() -> None:
    result = regenerate("--check")
    assert result.returncode == 0, result.stderr


def test_a_stale_page_is_noticed_by_block_and_mended(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    copy = tmp_path / "page.md"
    copy.write_text(page.replace("[5, 7, 12, 13]", "[5, 7, 12, 14]"), encoding="utf-8")
    assert copy.read_text(encoding="utf-8") != page

    result = regenerate("--check", "--page", str(copy))
    assert result.returncode == 1
    assert "stale: layout;" in result.stderr
    assert regenerate("--page", str(copy)).returncode == 0
    assert copy.read_text(encoding="utf-8") == page


def test_a_page_that_lost_a_block_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text(encoding="utf-8").replace("<!-- value: loss -->", ""), encoding="utf-8")
    result = regenerate("--check", "--page", str(copy))
    assert result.returncode == 2
    assert "missing: loss" in result.stderr


def test_the_page_follows_the_golden_batch() -> None:
    """The page is written by the code alone; these values were worked out apart from it."""
    vec_obs, masks = block("vec_obs"), GOLDEN["vec_obs"]["action_masks"]
    assert str(GOLDEN["vec_obs"]["features"]["Robot"]) in vec_obs
    assert str(masks["Move"]["actors"]) in vec_obs
    assert str(masks["Fire Orbital Cannon"]["actees"]) in vec_obs
    assert str(GOLDEN["packing"]["inverse_index"]) in block("packing")
    assert str([*GOLDEN["move_head"]["frame_starts"], sum(GOLDEN["packing"]["lengths"])]) in block("layout")
    assert str(GOLDEN["move_head"]["flat_actor_indices"]) in block("layout")
    assert str(GOLDEN["move_head"]["ragged_actions"]) in block("actions")
    assert str(GOLDEN["fire_head"]["ragged_actions"]) in block("actions")
    for received in GOLDEN["env_actions"]:
        moves = received["Move"]
        actors = [tuple(actor) for actor in moves["actors"]]
        assert f"CategoricalAction(actors={actors}, actions={moves['actions']})" in block("env_actions")
