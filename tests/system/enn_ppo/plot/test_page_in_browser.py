"""The page of a comparison in a browser."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.enn_ppo.plot.test_plot_page import hostile_page


def test_in_a_browser_nothing_of_a_run_is_executed(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium on this machine")
    page = hostile_page(tmp_path)
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [browser, *flags, "--virtual-time-budget=1000", "--dump-dom", page.as_uri()]
    shown = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | {"HOME": str(tmp_path)}
    )
    assert "<title>Comparison of 2 runs</title>" in shown.stdout
    assert shown.stdout.count("<polyline") == 6
