"""Change the code at random, and see which tests notice: ``python -m tests.mutants``.

Cosmic Ray makes the changes. Once, all tests that need no JVM are run to learn which lines each
executes; of a change then only those tests run that execute its line, those of its module first.
What no test notices is printed with its diff: it is a missing test, or the change means the same.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pytest
    from coverage import CoverageData

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "mutants"
PACKAGES = ("log", "jobs", "write", "read", "format", "storage")
SECONDS = 120.0
"""Recorded time of the tests that one change is tried by: twice that long, and it hangs."""

LEFT_BEHIND = shutil.ignore_patterns(".*", "__pycache__", "bench-output", "dist", "build")
PYTEST = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", "-m", "not spark"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a module: the n-th place where an operator of Cosmic Ray applies."""

    module: str
    operator: str
    occurrence: int
    line: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant; ``diff`` where it is alive."""

    mutant: Mutant
    is_killed: bool
    num_tests: int
    diff: str = ""


class Executed:
    """Which tests execute a line, and how long each takes."""

    def __init__(self, directory: Path) -> None:
        self._data = directory / "coverage"
        lines = (directory / "seconds.jsonl").read_text().splitlines()
        self._seconds: dict[str, float] = {}
        for name, seconds in map(json.loads, lines):
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    @cached_property
    def _coverage(self) -> CoverageData:
        from coverage import CoverageData

        found = CoverageData(str(self._data))
        found.read()
        return found

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests to try, by what they are likely to tell in a second."""
        # Tests run where their files were, and this clone may have moved since.
        (file,) = (f for f in self._coverage.measured_files() if f.endswith(f"/{mutant.module}"))
        contexts = self._coverage.contexts_by_lineno(file)
        lines = sorted(contexts)
        at = bisect_right(lines, mutant.line) - 1
        names = {c.partition("|")[0] for c in contexts[lines[at]]} if at >= 0 else set()
        own = f"/test_{Path(mutant.module).name}"
        known = [name for name in names if name in self._seconds]
        known.sort(key=lambda name: (own not in name, self._seconds[name], name))
        found, spent = [], 0.0
        for name in known:
            spent += self._seconds[name]
            if found and spent > SECONDS:
                break
            found.append(name)
        return found


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record how long a test took (pytest calls this where it is given ``-p tests.mutants``)."""
    if os.environ.get("PYTEST_XDIST_WORKER") is None:
        with (CACHE / "seconds.jsonl").open("a") as file:
            file.write(json.dumps([report.nodeid, report.duration]) + "\n")


def learn() -> Executed:
    """Run all tests that need no JVM, unless that was done; `make clean` forgets it."""
    if not (CACHE / "coverage").exists():
        shutil.rmtree(CACHE, ignore_errors=True)
        CACHE.mkdir(parents=True)
        environment = os.environ | {"COVERAGE_FILE": str(CACHE / "running")}
        tests = ["tests/unit", "tests/compat", "tests/property", "tests/conformance"]
        subprocess.run(
            [*PYTEST, *tests, "-p", "tests.mutants", "--cov=arrow_format", "--cov-context=test",
             "--cov-report=", "--numprocesses=auto", "--maxprocesses=4", "--dist=worksteal",
             # Memory and times are another's where lines are traced.
             "--ignore-glob=*memory*"],
            env=environment, cwd=ROOT, check=False,
        )  # fmt: skip
        (CACHE / "running").rename(CACHE / "coverage")
    return Executed(CACHE)


class _Bare(ast.NodeTransformer):
    """Takes out what does nothing: annotations (all are postponed) and docstrings."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return ast.Pass()
        return self.generic_visit(node)


def _meaning(code: str) -> str | None:
    try:
        return ast.dump(_Bare().visit(ast.parse(code)))
    except SyntaxError:  # Cosmic Ray takes the star of `def f(*, a)` for a product
        return None


def places_of(module: str) -> dict[tuple[str, tuple[int, int]], list[Mutant]]:
    """Return the changes of a module, by kind and place: a sum can become ten other operations."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    tree = get_ast_from_path(ROOT / module)
    found: dict[tuple[str, tuple[int, int]], list[Mutant]] = {}
    for name in operator_names():
        if get_operator(name).arguments():
            continue
        operator = get_operator(name)()
        places = (place for node in ast_nodes(tree) for place in operator.mutation_positions(node))
        for occurrence, (start, _) in enumerate(places):
            mutant = Mutant(module, name, occurrence, start[0])
            found.setdefault((name.split("_")[0], start), []).append(mutant)
    return found


def has_effect(mutant: Mutant) -> bool:
    """Whether the changed module is one, and does not mean the same by its syntax alone."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    code = (ROOT / mutant.module).read_text()
    mutated = mutate_code(code, get_operator(mutant.operator)(), mutant.occurrence)
    return mutated is not None and _meaning(mutated) not in (None, _meaning(code))


def drawn(modules: Iterable[str], chance: random.Random) -> Iterator[Mutant]:
    """Yield changes at random: every place once, with one of the changes of its kind."""
    places = [one for module in modules for one in places_of(module).values()]
    chance.shuffle(places)
    return filter(has_effect, map(chance.choice, places))


def tried(mutant: Mutant, tests: list[str], copy: Path) -> Outcome:
    """Run tests on a copy of the project that has the change."""
    from cosmic_ray.mutating import use_mutation
    from cosmic_ray.plugins import get_operator

    operator = get_operator(mutant.operator)()
    environment = os.environ | {"PYTHONPATH": str(copy), "HYPOTHESIS_PROFILE": "quick"}
    with use_mutation(copy / mutant.module, operator, mutant.occurrence):
        diff = subprocess.run(
            ["diff", "--unified=2", f"--label={mutant.module}", f"--label={mutant.operator}",
             ROOT / mutant.module, copy / mutant.module],
            capture_output=True, text=True, check=False,
        ).stdout  # fmt: skip
        if not tests:
            return Outcome(mutant, is_killed=False, num_tests=0, diff=diff)
        try:
            done = subprocess.run(
                [*PYTEST, "-x", *tests], env=environment, cwd=copy, check=False,
                capture_output=True, timeout=60 + 2 * SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Outcome(mutant, is_killed=True, num_tests=len(tests))
    return Outcome(mutant, done.returncode != 0, len(tests), "" if done.returncode else diff)


def run(mutants: Iterable[Mutant], executed: Executed, jobs: int) -> Iterator[Outcome]:
    """Try mutants in as many copies of the project, and yield what became of them in turn."""
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(jobs) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copies.put(
                Path(shutil.copytree(ROOT, Path(directory) / str(number), ignore=LEFT_BEHIND))
            )

        def try_one(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                return tried(mutant, executed.tests_of(mutant), copy)
            finally:
                copies.put(copy)

        yield from pool.map(try_one, mutants)


def main() -> int:
    """Try as many changes as asked for; 1 where one is alive."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "modules", nargs="*", help=f"patterns below arrow_format; default: all of {PACKAGES}"
    )
    parser.add_argument("--count", type=int, default=500, help="how many changes, at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="concurrently")
    arguments = parser.parse_args()
    patterns = arguments.modules or [f"{package}/*.py" for package in PACKAGES]
    below = ROOT / "arrow_format"
    modules = sorted({p.relative_to(ROOT).as_posix() for one in patterns for p in below.glob(one)})
    executed = learn()
    chosen = list(islice(drawn(modules, random.Random(arguments.seed)), arguments.count))
    print(f"{len(chosen)} changes of {len(modules)} modules", flush=True)
    alive = 0
    for number, outcome in enumerate(run(chosen, executed, arguments.jobs), 1):
        if not outcome.is_killed:
            alive += 1
            print(f"-- {number}: alive after {outcome.num_tests} tests\n{outcome.diff}", flush=True)
    print(f"{alive} of {len(chosen)} are alive")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
