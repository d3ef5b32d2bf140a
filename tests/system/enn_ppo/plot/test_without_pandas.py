"""What a user without pandas is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.enn_ppo.plot.test_plot import make_run


def test_without_pandas_the_error_says_how_to_install_it(tmp_path: Path) -> None:
    program = "import sys; sys.modules['pandas'] = None; from enn_ppo.plot.plot import main; raise SystemExit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", program, make_run(tmp_path / "a")], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == 'error: a plot needs pandas, which is not installed: pip install "enn-ppo[plot]"\n'
