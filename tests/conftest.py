"""Settings of every test: quiet threads, reproducible examples, GPU tests only where there is a GPU."""

import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TypeVar

# Compiled code is kept between sessions, but not in the user's home. Its key covers all that it is made from.
os.environ.setdefault("ENTITY_GYM_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "compiled"))
# Reports of the kernels' checks in the user's home do not decide what tests compute with.
os.environ.setdefault("ROGUE_NET_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "rogue_net"))
# Checkpoints are signed with a key of the tests, not with the user's.
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parents[1] / ".pytest_cache" / "config")
# Before torch starts its thread pool: spinning threads make small operations many times slower on shared cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from hypothesis import settings

TESTS = Path(__file__).parent
torch.set_num_threads(1)
# A shell lets jobs in the background ignore Ctrl-C, which tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The first example of a test pays for imports and caches, so a deadline would only find slow machines.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


#: Folders of tests that run only when they are asked for; all others are the specification.
TIERS = ("system", "nightly")
#: Word in REQUIRE -> the words in the reason of a skip that it forbids.
REQUIRED = {
    "chromium": ("chromium",),
    "compiler": ("c compiler",),
    "node": ("node",),
    "ray": ("'ray'",),
    "worlds": ("highway_env", "jumanji", "lbforaging", "mpe2", "pettingzoo.classic", "rware"),
}


@pytest.fixture(scope="module")
def in_line() -> Iterator[None]:
    """Training waits for each evaluation, so that its numbers are always in the row of the same update."""
    from tests.enn_ppo.evaluation_worlds import InLine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("enn_ppo.training.start.Evaluator", InLine)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier", default="specification", choices=["specification", *TIERS], help="the folder of tests that is run"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the folders of the other tiers."""
    tier, inside = (
        config.getoption("--tier"),
        collection_path.relative_to(TESTS).parts if TESTS in collection_path.parents else (),
    )
    if not inside:
        return None
    of = inside[0] if inside[0] in TIERS else "specification"
    return True if of != tier and (of in TIERS or collection_path.is_file()) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test with its tier, and skip those that need a GPU where there is none."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        item.add_marker(folder if folder in TIERS else "specification")
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs CUDA"))


def _forbidden(reason: str) -> str | None:
    """The word of REQUIRE that forbids to skip for this reason; None if none does."""
    words = filter(None, os.environ.get("REQUIRE", "").split(","))
    return next((word for word in words if any(part in reason.lower() for part in REQUIRED[word])), None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a test fail that is skipped for a reason that REQUIRE forbids."""
    report = yield
    return _failed_if_required(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let a file fail that is skipped for a reason that REQUIRE forbids."""
    report = yield
    return _failed_if_required(report)


R = TypeVar("R", pytest.TestReport, pytest.CollectReport)


def _failed_if_required(report: R) -> R:
    reason = _reason(report) if report.skipped and not hasattr(report, "wasxfail") else ""
    if word := _forbidden(reason):
        report.outcome, report.longrepr = "failed", f"REQUIRE={word} forbids to skip: {reason}"
    return report


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr).removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was run, and everything that was not."""
    stats = terminalreporter.stats
    ran = sum(len(stats.get(outcome, ())) for outcome in ("passed", "failed", "xfailed", "xpassed"))
    skipped = Counter(_reason(report) for report in stats.get("skipped", ()))
    tier = config.getoption("--tier")
    others = ", ".join(each for each in ("specification", *TIERS) if each != tier)
    reasons = ", ".join(f"{reason} x {count}" for reason, count in sorted(skipped.items())) or "nothing"
    left_out = len(stats.get("deselected", ()))
    terminalreporter.write_line(
        f"{tier}: ran {ran:,} of {ran + skipped.total() + left_out:,} tests; tiers not run: {others}; skipped: {reasons}"
    )
