"""Runs all checks and benchmarks that need a GPU, and writes one JSON file. `scripts/gpu_checks.sh` calls it.

python scripts/gpu_checks.py --output gpu_checks
python scripts/gpu_checks.py --device cpu --tiny    # smoke test with the smallest sizes

Each section is a separate process, so that a crash, full memory or a timeout affects only that section. Time that a section does
not use is left to later ones. docs/benchmarks.md describes the sections.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

#: Sections in order of importance: share of the time, and module.
SECTIONS = {
    "tests": (14.0, "gpu.suite"),
    "machine": (1.0, "gpu.machine"),
    "parity": (1.5, "gpu.parity"),
    "headline": (9.0, "gpu.headline"),
    "policy": (4.0, "gpu.policy"),
    "steps": (2.0, "gpu.steps"),
    "attention": (3.0, "gpu.attention"),
    "glue": (3.0, "gpu.glue"),
    "memory": (1.5, "gpu.memory"),
}
GRACE = 15.0  # seconds over its time after which a section's process is killed
LEAST = 5.0  # least seconds left for starting a section


def main() -> int:
    given = _arguments()
    if given.only:
        return run_section(given)
    given.output.mkdir(parents=True, exist_ok=True)
    path = given.output / "results.json"
    path.unlink(missing_ok=True)
    deadline = time.monotonic() + given.budget
    ended: list[str] = []
    log = (given.output / "log.txt").open("w")
    for number, name in enumerate(given.sections):
        left = deadline - time.monotonic()
        weights = [SECTIONS[each][0] for each in given.sections[number:]]
        ended.append(in_process(given, name, left * weights[0] / sum(weights), log))
        print(
            f"{name}: {ended[-1]}, {given.budget - (deadline - time.monotonic()):.0f} s of {given.budget:.0f}",
            flush=True,
        )
    log.close()
    print(f"results: {path}")
    return int(any(status != "done" for status in ended) or failed_tests(path))


def failed_tests(path: Path) -> bool:
    """Whether the results have failed tests."""
    from gpu.results import Results

    return bool(Results(path).known("tests").get("failed"))


def in_process(given: Namespace, name: str, seconds: float, log: TextIO) -> str:
    """Run one section in a separate process, with its output in the log. Returns how it ended."""
    from gpu.processes import run_for
    from gpu.results import Results

    ended: str | None = f"was not begun, with {seconds:.0f} s left"
    if seconds >= LEAST:
        command = [sys.executable, str(Path(__file__).resolve()), "--only", name, "--until", str(time.time() + seconds)]
        command += ["--device", given.device, "--output", str(given.output), *(["--tiny"] if given.tiny else [])]
        code = run_for(command, seconds + GRACE, stdout=log, stderr=log)
        ended = {0: None, None: f"did not end within {seconds + GRACE:.0f} s"}.get(code, f"ended with exit code {code}")
    results = Results(given.output / "results.json")
    found = results.section(name)
    if ended is not None:
        found["status"] = ended
        results.write()
    return str(found.get("status"))


def run_section(given: Namespace) -> int:
    """Run one section in this process."""
    import torch
    from gpu.results import Results, Section

    results = Results(given.output / "results.json")
    results.content["settings"] |= {"device": given.device, "tiny": given.tiny}
    seconds = given.until - time.time()  # the time of the imports counts
    section = Section(given.only, results, torch.device(given.device), tiny=given.tiny, seconds=seconds)
    # imported inside the section, which records errors: a library may be missing
    section.run(lambda section: importlib.import_module(SECTIONS[given.only][1]).measure(section))
    return 0


def _arguments(arguments: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("OUT") or "gpu_checks"), help="folder")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--budget", type=float, default=480.0, help="seconds for all sections together")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="smoke test with the smallest sizes")
    parser.add_argument("--only", choices=SECTIONS, help="run this section in this process, and nothing else")
    parser.add_argument("--until", type=float, default=time.time() + 480, help="with --only: end at this Unix time")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
