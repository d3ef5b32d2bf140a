"""Mutation testing: which small mistakes in the three packages do the tests find?

python tests/nightly/mutants.py map       # runs the in-process tests under coverage: which test executes which line
python tests/nightly/mutants.py list      # draws mutants.json anew
python tests/nightly/mutants.py run --results after.jsonl     # runs each mutant's tests in a copy of the checkout
python tests/nightly/mutants.py report tests/nightly/mutants_before.jsonl after.jsonl     # and those that survive newly

A mutant is one change of one statement in a function: a comparison turned round, a boundary moved, a constant changed, a
statement dropped, or two arguments swapped. The list names it by file, function, statement and change, not by line, so it is
found again in later code, in another file of its package if need be; if it is not, its result is "gone". `map` and `run` go on
where they were interrupted. After an edit, delete build/mutants and make the map again. Coverage and pytest-timeout are needed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import fnmatch
import functools
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

# Before the imports, which read them. With CI, Hypothesis draws the same examples each time.
os.environ.update(OMP_WAIT_POLICY="PASSIVE", OMP_NUM_THREADS="1", CI="1")

import psutil
import pytest

forks = functools.partial(ProcessPoolExecutor, mp_context=multiprocessing.get_context("fork"))
ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutants"  # the map
LIST = Path(__file__).with_suffix(".json")
PACKAGES = ("entity_gym", "rogue_net", "enn_ppo")

# Folders and files of tests that are not in the map: they start commands, Ray, torchrun or browsers, or learn to a threshold, so
# they take most of the suite's time and execute few lines in pytest's own process.
NOT_IN_PROCESS = "system nightly examples test_package.py".split()
# Coverage does not see code that Numba compiles. These tests run for every mutant of such files, besides those of the map.
HANGS = -99
KERNELS = "rogue_net/kernels/cpu/*"
COMPILED = {
    KERNELS: ("test_program.py", "test_backend_parts.py", "test_gaussian.py"),
    "entity_gym/compiled/*": ("tests/entity_gym/compiled/*.py",),
    "entity_gym/envs/*": ("test_{stem}.py", "test_zoo.py"),
}
MESSAGES = {"debug", "info", "warning", "error", "exception", "warn", "print"}  # calls whose text is for people
# Calls whose first two arguments can be swapped without effect, or never.
UNSWAPPED = {"max", "min", "maximum", "minimum", "logical_and", "logical_or", "isclose", "allclose", "isinstance"}
NEGATED: dict[type, type] = {ast.Eq: ast.NotEq, ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.In: ast.NotIn, ast.Is: ast.IsNot}
NEGATED |= {new: old for old, new in NEGATED.items()}
SHIFTED: dict[type, type] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Return whether a path, its file's name or one of its folders matches one of the patterns."""
    return any(fnmatch.fnmatch(part, pattern) for pattern in patterns for part in (path, *path.split("/")))


# --- Mutants


@dataclass(frozen=True)
class Mutant:
    """One change of a statement. `nth` counts the mutants of a file that are equal otherwise."""

    file: str
    function: str
    statement: str
    kind: str
    before: str
    after: str
    nth: int = 0

    @property
    def id(self) -> str:
        """A short hash of all fields."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:8]

    def __str__(self) -> str:
        change = f"`{self.before}` -> `{self.after}`" + ("" if self.kind == "dropped" else f" in `{self.statement}`")
        return f"{self.id} {self.file} {self.function}: {self.kind}, {change}"


@dataclass(frozen=True)
class Place:
    """Line and byte column of both ends of the text that a mutant replaces, and the lines of its statement."""

    start: tuple[int, int]
    end: tuple[int, int]
    lines: range

    def changed(self, source: bytes, after: str) -> bytes:
        """Return the source with the text at this place replaced."""
        rows = source.splitlines(keepends=True)
        start, end = (sum(map(len, rows[: line - 1])) + column for line, column in (self.start, self.end))
        return source[:start] + after.encode() + source[end:]


@functools.cache
def mutants_of(file: str) -> dict[Mutant, Place]:
    """Return all mutants of a file of the checkout."""
    found: dict[Mutant, Place] = {}
    for function, statement in _statements(ast.parse((ROOT / file).read_bytes())):
        end = statement.body[0].lineno if hasattr(statement, "body") else (statement.end_lineno or 0) + 1
        changes = list(_changes(statement))
        text = ast.unparse(statement).split("\n")[0] if changes else ""  # of a compound statement its head
        for kind, node, after in changes:
            mutant = Mutant(file, function, text, kind, ast.unparse(node), after)
            while mutant in found:
                mutant = replace(mutant, nth=mutant.nth + 1)
            lines = range(statement.lineno, max(end, statement.lineno + 1))
            found[mutant] = Place((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset), lines)
    return found


def _statements(tree: ast.AST, function: str = "", inside: bool = False) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the statements inside functions, each with its function's qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _statements(node, f"{function}.{node.name}".lstrip("."), not isinstance(node, ast.ClassDef))
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            if inside and isinstance(node, ast.stmt):
                yield function, node
            yield from _statements(node, function, inside)


def _changes(statement: ast.stmt) -> Iterator[tuple[str, Any, str]]:
    """Yield the kind, the node that is replaced and the text in its place, for each mutant of a statement."""
    called = statement.value if isinstance(statement, ast.Expr) else None
    if called and (not isinstance(called, ast.Call) or _name(called) in MESSAGES):
        return  # a docstring or a message
    assigns = isinstance(statement, ast.Assign) and not any(isinstance(each, ast.Name) for each in statement.targets)
    if called or assigns or isinstance(statement, ast.AugAssign | ast.Raise | ast.Continue | ast.Break):
        yield "dropped", statement, "pass"
    for node in _expressions(statement):
        if isinstance(node, ast.Compare):
            for kind, table in (("comparison", NEGATED), ("boundary", SHIFTED)):
                if (old := type(node.ops[0])) in table:
                    changed = copy.copy(node)
                    changed.ops = [table[old](), *node.ops[1:]]
                    yield kind, node, ast.unparse(changed)
        elif isinstance(node, ast.BoolOp):
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "comparison", node, f"({ast.unparse(ast.BoolOp(other, node.values))})"
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield "constant", node, repr(not node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield "constant", node, repr(node.value + 1 if node.value in (0, 1) else node.value * 2)
        elif isinstance(node, ast.Call) and len(node.args) > 1 and _name(node) not in UNSWAPPED | MESSAGES:
            first, second, *others = node.args
            alike = all(isinstance(each, ast.Name | ast.Attribute | ast.Subscript) for each in (first, second))
            if alike and not ast.unparse(second).startswith(("np.", "torch.")):  # types, which anything would find
                yield "swapped", node, ast.unparse(ast.Call(node.func, [second, first, *others], node.keywords))


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement's expressions, but not those of statements inside it, of annotations, texts and messages."""
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            kept = isinstance(child, ast.expr | ast.withitem | ast.comprehension | ast.keyword)
            if kept and name not in ("annotation", "msg") and not isinstance(child, ast.JoinedStr):
                yield child
                yield from _expressions(child)


def _name(call: Any) -> str:
    """Return the last part of the name of a called function."""
    return getattr(call.func, "attr", "") or getattr(call.func, "id", "")


def files_of(package: str) -> list[str]:
    """Return the Python files of a package."""
    return [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / package).rglob("*.py"))]


def find(mutant: Mutant) -> tuple[str, Place] | None:
    """Return the file and the place of a mutant: where it was, else in its renamed function, else in another file."""
    files = files_of(mutant.file.split("/")[0])
    here = [file for file in files if file == mutant.file]
    if here and mutant in mutants_of(mutant.file):
        return mutant.file, mutants_of(mutant.file)[mutant]
    for part, searched in (("function", here), ("file", files)):
        wanted = {**asdict(mutant), part: ""}
        alike = [(f, p) for f in searched for each, p in mutants_of(f).items() if {**asdict(each), part: ""} == wanted]
        if len(alike) == 1:
            return alike[0]
    return None


def draw(count: int, seed: int, is_run: Callable[[str, range], bool]) -> list[Mutant]:
    """Draw as many mutants of each package: statements that tests run evenly, and of each the kind that is rarest so far."""
    rng, drawn = random.Random(seed), list[Mutant]()
    for number, package in enumerate(PACKAGES):
        statements = defaultdict[tuple[str, range], list[Mutant]](list)
        for file in files_of(package):
            for mutant, place in mutants_of(file).items():
                if is_run(file, place.lines):
                    statements[file, place.lines].append(mutant)
        wanted, kinds, kernels = count * (number + 1) // len(PACKAGES), Counter[str](), 0
        for (file, _), mutants in rng.sample(list(statements.items()), len(statements)):
            kernels += matches(file, [KERNELS])
            is_one_too_many = matches(file, [KERNELS]) and kernels > count // 12  # they take minutes each
            if len(drawn) < wanted and not is_one_too_many:
                rarest = min(sorted({each.kind for each in mutants}), key=lambda kind: kinds[kind])
                drawn.append(rng.choice([each for each in mutants if each.kind == rarest]))
                kinds[rarest] += 1
    return drawn


# --- Which tests run which lines


class Map:
    """The tests that run each line, and the seconds of each test that passes."""

    def __init__(self) -> None:
        self._file = WORK / "map.json"
        self.seconds: dict[str, float] = json.loads(self._file.read_text())["seconds"]
        import coverage  # here and below: `--help` needs no coverage

        self._data = coverage.CoverageData(str(WORK / "map.coverage"))
        self._data.read()
        self._lines = functools.cache(self._data.contexts_by_lineno)

    def is_run(self, file: str, lines: range) -> bool:
        """Return whether any test runs lines of a file."""
        return matches(file, COMPILED) or any(each in self.seconds for each in self._contexts(file, lines))

    def _contexts(self, file: str, lines: range) -> Iterator[str]:
        for line in lines:
            yield from self._lines(str(ROOT / file)).get(line, ())

    def tests(self, file: str, lines: range) -> dict[str, float]:
        """Return the tests that run lines of a file, and their seconds: by test file, the one with the shortest tests first."""
        if (ROOT / file).stat().st_mtime > self._file.stat().st_mtime:
            sys.exit(f"{file} is newer than the map of tests. Delete {WORK}, and make the map again.")
        tests = {test for test in self._contexts(file, lines) if test in self.seconds}
        for pattern, names in COMPILED.items():
            if matches(file, [pattern]):
                names = tuple(name.format(stem=Path(file).stem) for name in names)
                tests |= {test for test in self.seconds if matches(test.split("::")[0], names)}
        of_file = defaultdict[str, list[float]](list)
        for test in tests:
            of_file[test.split("::")[0]].append(self.seconds[test])
        means = {name: sum(seconds) / len(seconds) for name, seconds in of_file.items()}
        order = {test: number for number, test in enumerate(self.seconds)}
        ordered = sorted(tests, key=lambda test: (means[test.split("::")[0]], order[test]))
        return {test: self.seconds[test] for test in ordered}


def make_shard(task: tuple[str, list[str], float]) -> None:
    """Run some files of tests under coverage, unless a map that was interrupted has them already."""
    name, files, until = task
    shard = WORK / "shards" / f"{name}.json"
    if time.time() < until and not shard.exists():
        options = ["-m", "not slow and not learning and not fuzz and not gpu", "--timeout", "60", *files]
        run_pytest(ROOT, options, {"MUTANTS_MAP": str(shard.with_suffix(""))}, until - time.time())
    print(*files, "" if shard.exists() else "NOT FINISHED", flush=True)


def make_map(jobs: int, minutes: float) -> None:
    """Run the in-process tests under coverage, six files at a time, and print the share of each package's lines that run."""
    import coverage

    import_libraries()
    (WORK / "shards").mkdir(parents=True, exist_ok=True)
    files = [file for file in files_of("tests") if matches(file, ["test_*.py"]) and not matches(file, NOT_IN_PROCESS)]
    random.Random(0).shuffle(files)  # so that a map that is not finished knows all packages alike
    until = time.time() + 60 * minutes
    with forks(jobs) as pool:
        list(pool.map(make_shard, [(str(n), files[n : n + 6], until) for n in range(0, len(files), 6)]))
    shards = sorted((WORK / "shards").glob("*.json"), key=lambda path: int(path.stem))
    measured = coverage.Coverage(data_file=str(WORK / "map.coverage"), config_file=False)
    measured.combine([str(shard.with_suffix(".coverage")) for shard in shards], keep=True)
    measured.save()
    seconds = {test: time for shard in shards for test, time in json.loads(shard.read_text()).items()}
    (WORK / "map.json").write_text(json.dumps({"seconds": seconds}, indent=0))
    for package in PACKAGES:
        analyses = [measured.analysis2(str(ROOT / file)) for file in files_of(package)]
        lines, missing = (sum(len(each[part]) for each in analyses) for part in (1, 3))
        print(f"{package}: {1 - missing / lines:.1%} of {lines} lines")
    print(f"{len(seconds)} tests passed")


def import_libraries() -> None:
    """Import once, before the forks, what takes longer to import than most mutants' tests."""
    for name in ("numba", "torch"):
        importlib.import_module(name)


def run_pytest(folder: Path, arguments: list[str], variables: dict[str, str], limit: float) -> int | None:
    """Run pytest in a checkout, with this file as a plugin. Return its exit status, or None if the time limit ended it.

    If neither it nor any process that it has started does anything for two minutes, it is ended, and the status is HANGS.
    """
    child = os.fork()
    if not child:
        try:
            os.setpgrp()
            os.chdir(folder)
            os.environ.update({"PYTHONPATH": str(folder), **variables})
            del sys.modules["__main__"].__file__  # or worker processes would import it again
            sys.path[0], sys.dont_write_bytecode = str(folder), "PYTHONDONTWRITEBYTECODE" in variables
            sys.modules["numba"].core.config.reload_config()
            out = os.open("build/pytest.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(out, 1), os.dup2(out, 2)
            os._exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "tests.nightly.mutants", *arguments]))
        finally:
            os._exit(99)
    process, begun, ended, status = psutil.Process(child), time.time(), 0, 0
    busy = begun
    while not ended and time.time() < begun + limit and time.time() < busy + 120:
        time.sleep(0.1)
        with suppress(psutil.NoSuchProcess):
            if any(each.status() != psutil.STATUS_SLEEPING for each in (process, *process.children(recursive=True))):
                busy = time.time()
        ended, status = os.waitpid(child, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # and the processes that its tests have left behind
    if ended:
        return os.waitstatus_to_exitcode(status)
    os.waitpid(child, 0)
    return None if time.time() > begun + limit else HANGS


# --- Running mutants


@dataclass(frozen=True)
class Result:
    """What became of a mutant: "found", "survived", "limit" (survived, but not all tests were run in time) or "gone"."""

    id: str
    result: str
    by: str = ""  # the first test that failed, crashed or hung
    tests: int = 0  # that run its statement
    seconds: float = 0.0  # of CPU time


def run_mutant(mutant: Mutant, tests: dict[str, float], folder: Path, limit: float) -> Result:
    """Change a copy of the checkout, run the tests in their order until one fails, and change the copy back."""
    found = find(mutant)
    if found is None:
        return Result(mutant.id, "gone")
    path, is_kernel = folder / found[0], matches(found[0], [KERNELS])
    source, times, log = path.read_bytes(), path.stat(), folder / "build" / "mutant.log"
    variables = {"MUTANTS_RUN": str(log), "PYTHONDONTWRITEBYTECODE": "1"}
    if is_kernel:  # its own cache, or the kernels that the other mutants use would be replaced
        limit, variables["NUMBA_CACHE_DIR"] = 3 * limit, str(folder / "build" / "numba")
        shutil.rmtree(folder / "build" / "numba", ignore_errors=True)
    hangs = limit if is_kernel else 60
    result, waiting, size, spent = Result(mutant.id, "survived", "", len(tests)), list(tests), 6, 0.0
    try:
        path.write_bytes(found[1].changed(source, mutant.after))
        while waiting and result.result == "survived":
            files = list(dict.fromkeys(test.split("::")[0] for test in waiting))[:size]  # importing all takes long
            chosen, size = {test: tests[test] for test in waiting if test.split("::")[0] in files}, 4 * size
            waiting = waiting[len(chosen) :]
            log.with_name("chosen.json").write_text(
                json.dumps({"tests": chosen, "limit": limit - spent, "hangs": hangs})
            )
            log.write_text("")
            status = run_pytest(folder, ["-x", *files], variables, 20 * limit)
            lines = [line.split("\t") for line in log.read_text().splitlines()] or [["begin", "conftest.py", "0"]]
            spent += float(lines[-1][2])
            if lines[-1][0] == "failed" or (lines[-1][0] != "limit" and status not in (0, 5, None)):
                result = replace(result, result="found", by=lines[-1][1])
            elif lines[-1][0] == "limit" or status is None or (waiting and spent > limit):
                result = replace(result, result="limit")
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # what Python and Numba have cached stays valid
    return replace(result, seconds=round(spent, 1))


def run_all(results: Path, jobs: int, only: list[str], limit: float) -> None:
    """Run the mutants of the list that have no result yet, each job in a copy of the checkout, and append the results."""
    import_libraries()
    done = set(read_results(results)) if results.exists() else set()
    mutants = [each for each in read_list() if each.id not in done and (not only or each.id in only)]
    known, places = Map(), {each: find(each) for each in mutants}
    with tempfile.TemporaryDirectory(prefix="mutants") as temporary, forks(jobs) as pool:
        tests = {each: known.tests(found[0], found[1].lines) if found else {} for each, found in places.items()}
        tasks = [(each, tests[each], Path(temporary), limit) for each in mutants]
        for each in as_completed([pool.submit(in_copy, task) for task in tasks]):
            mutant, result = each.result()
            with results.open("a") as out:
                out.write(json.dumps(asdict(result)) + "\n")
            print(f"{result.result} in {result.seconds:.0f} s: {mutant}, {result.by}", flush=True)


def in_copy(task: tuple[Mutant, dict[str, float], Path, float]) -> tuple[Mutant, Result]:
    """Run a mutant in this process' copy of the checkout."""
    mutant, tests, temporary, limit = task
    folder = temporary / str(os.getpid())
    if not folder.exists():
        skipped = shutil.ignore_patterns(".git", ".venv", "build", ".pytest_cache", ".mypy_cache", ".hypothesis")
        shutil.copytree(ROOT, folder, ignore=skipped)
        (folder / "build").mkdir()
    return mutant, run_mutant(mutant, tests, folder, limit)


def read_list() -> list[Mutant]:
    """Return the mutants of the list."""
    return [Mutant(**each) for each in json.loads(LIST.read_text())]


def read_results(path: Path) -> dict[str, Result]:
    """Return the results in a file by their mutants' ids."""
    return {each.id: each for each in (Result(**json.loads(line)) for line in path.read_text().splitlines())}


def report(paths: list[Path]) -> int:
    """Print counts by package and the mutants not found; of two files, return how many only the first one found."""
    mutants = {each.id: each for each in read_list()}
    outcomes = ("found", "survived", "limit", "gone")
    for path in paths:
        results = [each for each in read_results(path).values() if each.id in mutants]
        print(
            f"\n{path}: {len(results)} of {len(mutants)} mutants\n\n| | {' | '.join(outcomes)} |\n|---|---|---|---|---|"
        )
        for package in PACKAGES:
            counts = Counter(each.result for each in results if mutants[each.id].file.startswith(package))
            print(f"| {package} | {' | '.join(str(counts[each]) for each in outcomes)} |")
        print(
            *(
                f"- {each.result}, {each.tests} tests: {mutants[each.id]}"
                for each in results
                if each.result in outcomes[1:3]
            ),
            sep="\n",
        )
    before, after = read_results(paths[0]), read_results(paths[-1])
    found = {id for id, each in before.items() if each.result == "found"}
    newly = [id for id in mutants if id in found and id in after and after[id].result in outcomes[1:3]]
    print(
        "\nfound before, not found now:",
        *([f"- {mutants[id]}, before by {before[id].by}" for id in newly] or ["none"]),
        sep="\n",
    )
    return len(newly)


# --- The plugin of pytest


def pytest_load_initial_conftests(early_config: Any) -> None:
    """Begin before any conftest imports the packages."""
    if shard := os.environ.get("MUTANTS_MAP"):
        early_config.pluginmanager.register(Mapper(shard))
    if log := os.environ.get("MUTANTS_RUN"):
        early_config.pluginmanager.register(Runner(Path(log)))


class Mapper:
    """Measures which lines each test runs, and the seconds of those that pass. A test that starts Python is skipped there."""

    def __init__(self, shard: str) -> None:
        import coverage

        self._shard, self._seconds, self._failed = shard, Counter[str](), set[str]()
        packages = [str(ROOT / package) for package in PACKAGES]
        self._coverage = coverage.Coverage(data_file=f"{shard}.coverage", source=packages, config_file=False)
        self._coverage.start()
        sys.addaudithook(self._skip_commands)

    def _skip_commands(self, event: str, details: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and "python" in Path(os.fsdecode(details[0])).name:
            pytest.skip("starts a command")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._seconds[report.nodeid] += report.duration
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        passed = {test: round(seconds, 3) for test, seconds in self._seconds.items() if test not in self._failed}
        Path(f"{self._shard}.json").write_text(json.dumps(passed))


class Runner:
    """Runs the chosen tests in their order until the limit of CPU seconds, and logs each that begins, and the first that fails.

    A test hangs that takes far more CPU time than usual; a signal ends the process then.
    """

    def __init__(self, log: Path) -> None:
        self._log, chosen = log, json.loads(log.with_name("chosen.json").read_text())
        self._seconds, self._limit, self._hangs = chosen["tests"], chosen["limit"], chosen["hangs"]
        self._order = {test: number for number, test in enumerate(self._seconds)}

    def _add(self, word: str, test: str) -> None:
        with self._log.open("a") as log:
            log.write(f"{word}\t{test}\t{time.process_time()}\n")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        chosen = [each for each in items if each.nodeid in self._order]
        items[:] = sorted(chosen, key=lambda each: self._order[each.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._add("begin", nodeid)
        signal.setitimer(signal.ITIMER_PROF, self._hangs + 10 * self._seconds[nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._add("failed", report.nodeid)

    pytest_collectreport = pytest_runtest_logreport

    def pytest_runtest_teardown(self, item: Any, nextitem: Any) -> None:
        if nextitem is not None and time.process_time() > self._limit:
            self._add("limit", item.nodeid)
            item.session.shouldstop = "the mutant's time is over"


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("map", "list", "run", "report"))
    parser.add_argument("files", nargs="*", type=Path, help="report: one or two files of results")
    parser.add_argument("--results", type=Path, help="run: the file that results are appended to")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[], metavar="ID", help="run: these mutants alone")
    parser.add_argument(
        "--limit", type=float, default=90, help="run: CPU seconds for a mutant, thrice as many for a kernel's"
    )
    parser.add_argument("--minutes", type=float, default=25, help="map: the longest that it may take")
    parser.add_argument("--count", type=int, default=150, help="list: how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="list: of the draw")
    options = parser.parse_args()
    if options.command == "map":
        make_map(options.jobs, options.minutes)
    elif options.command == "list":
        drawn = draw(options.count, options.seed, Map().is_run)
        LIST.write_text(json.dumps([asdict(each) for each in drawn], indent=1) + "\n")
    elif options.command == "run":
        run_all(options.results, options.jobs, options.only, options.limit)
    elif report(options.files):
        sys.exit(1)


if __name__ == "__main__":
    main()
