"""Section `tests`: all tests that are marked `gpu`. Where those of the kernels pass, `net.backend=auto` takes the kernels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu.processes import run_for
from gpu.results import Section
from rogue_net.kernels.kernel_checks import write_report

ROOT = Path(__file__).resolve().parents[2]
MARK = re.compile(r"\bmark\.gpu\b")
#: Lines of `pytest -v`: a finished test, a collection error, and the final list of failures.
DONE = re.compile(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?: \((.*)\))?(?:\s+\[ *\d+%\])?\s*$")
COLLECTING = re.compile(r"^_+ ERROR collecting (\S+) _+$")
MISSING = re.compile(r"^E +(ModuleNotFoundError: .*)")
#: Tests of the Triton kernels: of attention alone, and of whole networks against float64 on the CPU.
KERNEL_TESTS = ("tests/system/rogue_net/cuda/test_triton_attention.py", "tests/system/rogue_net/test_cuda_parity.py")
PROBLEM = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - (.*))?$")


def measure(section: Section) -> None:
    """Run pytest in a separate process, only on files with such tests: other files may need missing packages."""
    if find_spec("pytest") is None:
        section.put(skipped="pytest is not installed")
        return
    files = files_with_marks()
    if section.tiny:
        files = ["tests/system/rogue_net/test_cuda_parity.py"]
    section.put(files=files)
    reports = section.device.type == "cuda" and not section.tiny
    if reports:  # a crash of this process leaves this
        write_report(section.device, ["the tests did not come to their end"])
    command = [sys.executable, "-m", "pytest", "-v", "-m", "gpu", "--tb=short", "--continue-on-collection-errors"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "300"}
    with tempfile.TemporaryFile("w+") as output:  # keeps the output of a run that is killed
        seconds = section.seconds_left - 2
        command += ["-p", "no:cacheprovider", *files]
        code = run_for(command, seconds, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        section.put(**({"ended_after": seconds} if code is None else {"exit_code": code}))
        output.seek(0)
        printed = output.read()
    print(printed, flush=True)
    section.put(**outcomes(printed.splitlines()))
    if reports:
        problems = kernel_problems(section.found)
        path = write_report(section.device, problems)
        section.put(kernels={"problems": problems, "report": str(path)})


def kernel_problems(found: Mapping[str, Any]) -> list[str]:
    """Return why the tests do not show that the kernels work; empty if they do.

    Args:
        found: results of this section.
    """
    problems = [f"the test {each['test']} failed: {each['message']}" for each in found["failed"]]
    if "ended_after" in found:
        problems.append(
            f"the tests were ended after {found['ended_after']:.0f} s; give gpu_checks.sh a larger --budget"
        )
    elif found["exit_code"] not in (0, 1):  # 1: failed tests, or files that need a missing package
        problems.append(f"pytest ended with exit code {found['exit_code']}")
    for file in KERNEL_TESTS:
        if found["passed_in"].get(file, 0) == 0:
            problems.append(f"no test of {file} was run")
    return problems


def files_with_marks() -> list[str]:
    """Test files with the mark `gpu`, or that import it from a helper module beside them."""
    marked = [path for path in ROOT.glob("tests/**/*.py") if MARK.search(path.read_text())]
    helpers = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in marked if path.stem[:5] != "test_"]

    def imports_one(path: Path) -> bool:
        text = path.read_text()
        return any(f"from {helper} import" in text for helper in helpers)

    files = [path for path in ROOT.glob("tests/**/test_*.py") if path in marked or imports_one(path)]
    # files that compile kernels for many cases come last, since they may exceed the time limit
    return sorted((str(path.relative_to(ROOT)) for path in files), key=lambda path: ("/cuda/" in path, path))


def outcomes(lines: Iterable[str]) -> dict[str, Any]:
    """Parse the output of `pytest -v`, which may be incomplete.

    Args:
        lines: of the output.

    Returns:
        `passed`, a number; `passed_in`, the same by file; `failed` and `skipped`, lists of tests with their messages, if printed.
    """
    passed_in: Counter[str] = Counter()
    failed, skipped = {}, []
    collecting, missing = "", {}  # files that cannot be collected because a module is not installed
    for line in lines:
        if started := COLLECTING.match(line):
            collecting = started[1]
        elif collecting and (found := MISSING.match(line)):
            missing[collecting] = found[1]
        elif done := DONE.match(line):
            name, outcome, why = done.groups()
            if outcome in ("PASSED", "XFAIL"):
                passed_in[name.partition("::")[0]] += 1
            elif outcome == "SKIPPED":
                skipped.append({"test": name, "message": why or ""})
            else:
                failed[name] = ""
        elif problem := PROBLEM.match(line):
            failed[problem[1]] = problem[2] or ""
    skipped += [{"test": name, "message": message} for name, message in missing.items()]
    problems = {name: message for name, message in failed.items() if name not in missing}
    return {
        "passed": passed_in.total(),
        "passed_in": dict(passed_in),
        "failed": [{"test": name, "message": message[:400]} for name, message in problems.items()],
        "skipped": skipped,
    }
