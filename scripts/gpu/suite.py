"""Section `tests`: every test that is marked `gpu`."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpu.results import Section

ROOT = Path(__file__).resolve().parents[2]
MARK = re.compile(r"\bmark\.gpu\b")


def measure(section: Section) -> None:
    """Run pytest in a process of its own on the files that hold such tests: the others may need what is not installed."""
    if find_spec("pytest") is None:
        section.put(skipped="pytest is not installed")
        return
    files = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py") if MARK.search(path.read_text()))
    if section.tiny:
        files = files[:1]
    section.put(files=files)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--continue-on-collection-errors"]
        command += ["-p", "no:cacheprovider", f"--junitxml={report}", *files]
        try:
            seconds = max(1.0, section.seconds_left - 5)
            done = subprocess.run(command, cwd=ROOT, timeout=seconds, capture_output=True, text=True, check=False)
        except subprocess.TimeoutExpired as error:
            output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
            section.put(out_of_time=True, output=output.splitlines()[-30:])
            return
        print(done.stdout, done.stderr, flush=True)
        section.put(exit_code=done.returncode, output=done.stdout.splitlines()[-30:])
        if report.exists():
            section.put(**outcomes(report.read_text()))


def outcomes(junit: str) -> dict[str, Any]:
    """Counts, and the names of what did not pass with the first lines of why, of a report in JUnit's XML."""
    cases = list(ElementTree.fromstring(junit).iter("testcase"))
    found: dict[str, Any] = {"passed": 0, "failed": [], "skipped": []}
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        problem = next((each for kind in ("failure", "error") if (each := case.find(kind)) is not None), None)
        skipped = case.find("skipped")
        if problem is not None:
            found["failed"].append({"test": name, "message": (problem.get("message") or "")[:600]})
        elif skipped is not None:
            found["skipped"].append({"test": name, "message": (skipped.get("message") or "")[:200]})
        else:
            found["passed"] += 1
    return found
