"""Change the code at random, and see which tests notice: ``python -m tests.mutants``.

Cosmic Ray makes the changes. Once, all tests that need no JVM are run to learn which lines each
executes; of a change then only those tests run that execute its line, those of its module first.
What no test notices is printed with its diff: it is a missing test, or the change means the same.
The tests that noticed one run once more at the end, without a change: they must pass then.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    import pytest

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "mutants"
PACKAGES = ("log", "jobs", "write", "read", "format", "storage")
SECONDS = 30.0
"""Recorded time of the tests that one change is tried by; they take less where none is traced."""

HANGS = 60 + SECONDS
"""Processor time after which they have no end; by the clock, on a busy machine, four times that."""

MEMORY = 8 << 30
"""Address space of a process of tests: a loop without an end may not take the machine's."""

LEFT_BEHIND = shutil.ignore_patterns(".*", "__pycache__", "bench-output", "dist", "build")
PYTEST = [
    *(sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", "-p", "tests.mutants"),
    *("-m", "not spark"),
]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a module: the n-th place where an operator of Cosmic Ray applies."""

    module: str
    operator: str
    occurrence: int
    line: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant; ``killer`` is the test that noticed, or how else the tests ended."""

    mutant: Mutant
    num_tests: int
    diff: str
    killer: str

    def __str__(self) -> str:
        where = f"{self.mutant.module}:{self.mutant.line} {self.mutant.operator}"
        if self.killer:
            return f"killed: {where} by {self.killer}"
        return f"ALIVE: {where} after {self.num_tests} tests\n{self.diff}"


class Executed:
    """Which tests execute a line, and how long each takes."""

    def __init__(self, directory: Path) -> None:
        from coverage import CoverageData

        self._coverage = CoverageData(str(directory / "coverage"))
        self._coverage.read()
        self._lines: dict[str, dict[int, set[str]]] = {}
        self._seconds: Counter[str] = Counter()
        others = set()  # what is skipped, or fails without a change, tells nothing of one
        for line in (directory / "reports.jsonl").read_text().splitlines():
            name, seconds, outcome = json.loads(line)
            self._seconds[name] += seconds
            if outcome != "passed":
                others.add(name)
        for name in others:
            del self._seconds[name]

    def _tests_by_line(self, module: str) -> dict[int, set[str]]:
        if module not in self._lines:
            # Tests ran in a copy of the project.
            (file,) = (f for f in self._coverage.measured_files() if f.endswith(f"/{module}"))
            self._lines[module] = {
                line: {name for c in contexts if (name := c.rpartition("|")[0]) in self._seconds}
                for line, contexts in self._coverage.contexts_by_lineno(file).items()
            }
        return self._lines[module]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests to try, by what they are likely to tell in a second."""
        by_line = self._tests_by_line(mutant.module)
        tree = ast.parse((ROOT / mutant.module).read_text())
        names: set[str] = set()
        for lines in lines_executed(tree, mutant.line):
            names = names or set().union(*(by_line.get(line, ()) for line in lines))
        known = sorted(names, key=lambda name: (self._seconds[name], name))
        # The first case of every test before the second of any: cases of one tell much the same.
        cases: Counter[str] = Counter()
        rank = {}
        for name in known:
            function = name.partition("[")[0]
            rank[name] = cases[function]
            cases[function] += 1
        own = f"/test_{Path(mutant.module).name}"
        known.sort(key=lambda name: (own not in name, rank[name]))
        found, spent = [], 0.0
        for name in known:
            spent += self._seconds[name]
            if found and spent > SECONDS:
                break
            found.append(name)
        return found


def lines_executed(tree: ast.Module, line: int) -> list[Collection[int]]:
    """Return the lines whose tests are those of a line; the next ones where these have none.

    In a function that is the line itself, then its statement. What a module or a class says is
    executed once, whichever test is the first to import it, as are decorators and parameters: the
    tests of such a line are those of all that is in the function, class or module; of a constant
    those of the lines that use it.
    """
    found: list[Collection[int]] = [range(1, (tree.body[-1].end_lineno or 0) + 1)]
    in_function = False
    for node in ast.walk(tree):  # the outer before the inner
        if not isinstance(node, ast.stmt):
            continue
        decorators = getattr(node, "decorator_list", [])
        first = min(part.lineno for part in [node, *decorators])
        end = (node.end_lineno or 0) + 1
        if not first <= line < end:
            continue
        body = node.body[0].lineno if hasattr(node, "body") else end
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            in_function = line >= body
        elif isinstance(node, ast.ClassDef):
            in_function = False
        elif in_function:
            found = [range(line, line + 1), range(first, body)]
            continue
        else:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node in tree.body:
                found = [_lines_using(tree, node), *found]
            continue
        found = [range(line, line + 1)] if in_function else [range(first, end), *found]
    return found


def _lines_using(tree: ast.Module, assignment: ast.Assign | ast.AnnAssign) -> set[int]:
    def names(tree: ast.AST, context: type[ast.expr_context]) -> list[ast.Name]:
        found = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
        return [name for name in found if isinstance(name.ctx, context)]

    assigned = {name.id for name in names(assignment, ast.Store)}
    return {name.lineno for name in names(tree, ast.Load) if name.id in assigned}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record how a test went (pytest calls this where it is given ``-p tests.mutants``)."""
    if os.environ.get("PYTEST_XDIST_WORKER") is None:
        with (CACHE / "reports.jsonl").open("a") as file:
            file.write(json.dumps([report.nodeid, report.duration, report.outcome]) + "\n")


@contextmanager
def project_copy() -> Iterator[Path]:
    """Yield a copy of the project, as it is here, without a recorded report."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(shutil.copytree(ROOT, Path(directory) / "copy", ignore=LEFT_BEHIND))
        (copy / CACHE.relative_to(ROOT)).mkdir(parents=True)
        yield copy


def run_tests(copy: Path, arguments: list[str], *, may_hang: bool = False) -> list[str]:
    """Run tests in a copy of the project, and return what kept them from passing.

    That are the tests that failed, or else how they ended.
    """
    cache = copy / CACHE.relative_to(ROOT)
    reports = cache / "reports.jsonl"
    reports.write_text("")
    environment = os.environ | {
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "",  # most of what a trial takes is imports
        "HYPOTHESIS_PROFILE": "quick",
        "COVERAGE_FILE": str(cache / "coverage"),
    }
    with (cache / "output").open("w") as output:
        process = subprocess.Popen(
            [*PYTEST, *arguments], cwd=copy, env=environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        if may_hang:
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (int(HANGS), int(HANGS)))
        try:
            code = process.wait(4 * HANGS if may_hang else None)
        except subprocess.TimeoutExpired:
            return ["no end of its tests"]
        finally:
            with suppress(ProcessLookupError):  # and what its tests have started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = map(json.loads, reports.read_text().splitlines())
    failed = [name for name, _, outcome in lines if outcome == "failed"]
    # A change may rename the cases of a test: those not found tell nothing.
    if code == 0 or failed or "ERROR: not found" in (cache / "output").read_text():
        return failed
    return [f"exit code {code}"]


def learn() -> Executed:
    """Run all tests that need no JVM, unless that was done; `make clean` forgets it."""
    if not (CACHE / "coverage").exists():
        tests = ["tests/unit", "tests/compat", "tests/property", "tests/conformance"]
        with project_copy() as copy:
            failed = run_tests(copy, [
                *tests, "--cov=arrow_format", "--cov-context=test", "--cov-report=",
                "--numprocesses=auto", "--maxprocesses=4", "--dist=worksteal",
                # Memory and times are another's where lines are traced.
                "--ignore-glob=*memory*",
            ])  # fmt: skip
            print(f"no use is made of what fails without a change: {failed}", flush=True)
            CACHE.mkdir(parents=True, exist_ok=True)
            for name in ("reports.jsonl", "coverage"):
                shutil.move(copy / CACHE.relative_to(ROOT) / name, CACHE / name)
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
        names = [part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)]
        if names == ["TYPE_CHECKING"]:  # `not` of it imports what nothing uses
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
    try:
        mutated = mutate_code(code, get_operator(mutant.operator)(), mutant.occurrence)
    except AttributeError:  # Cosmic Ray does not know `except module.Error`
        return False
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

    path = copy / mutant.module
    with use_mutation(path, get_operator(mutant.operator)(), mutant.occurrence):
        _forget_compiled(path)
        diff = subprocess.run(
            ["diff", "--unified=2", f"--label={mutant.module}", f"--label={mutant.operator}",
             ROOT / mutant.module, path],
            capture_output=True, text=True, check=False,
        ).stdout  # fmt: skip
        failed = run_tests(copy, ["-x", *tests], may_hang=True) if tests else []
    _forget_compiled(path)
    return Outcome(mutant, len(tests), diff, failed[-1] if failed else "")


def _forget_compiled(path: Path) -> None:
    """Remove the bytecode of a module, which is taken for that of any of its second and size."""
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


def run(mutants: list[Mutant], executed: Executed, jobs: int) -> Iterator[Outcome]:
    """Try mutants in as many copies of the project, and yield what became of them as they end."""
    with ExitStack() as stack:
        copies: SimpleQueue[Path] = SimpleQueue()
        for _ in range(jobs):
            copies.put(stack.enter_context(project_copy()))

        def try_one(mutant: Mutant, tests: list[str]) -> Outcome:
            copy = copies.get()
            try:
                return tried(mutant, tests, copy)
            finally:
                copies.put(copy)

        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        stack.callback(pool.shutdown, cancel_futures=True)
        tries = [pool.submit(try_one, mutant, executed.tests_of(mutant)) for mutant in mutants]
        yield from (one.result() for one in as_completed(tries))


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
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    executed = learn()
    chosen = list(islice(drawn(modules, random.Random(arguments.seed)), arguments.count))
    print(f"{len(chosen)} changes of {len(modules)} modules", flush=True)
    outcomes = []
    for outcome in run(chosen, executed, arguments.jobs):
        outcomes.append(outcome)
        print(f"{len(outcomes)} {outcome}", flush=True)
    killers = sorted({outcome.killer for outcome in outcomes if "::" in outcome.killer})
    with project_copy() as copy:
        wrong = run_tests(copy, killers) if killers else []
    print(f"tests that noticed a change, and fail without one too: {wrong}")
    alive = sum(not outcome.killer for outcome in outcomes)
    print(f"{alive} of {len(chosen)} are alive")
    return 1 if alive or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
