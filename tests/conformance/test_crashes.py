"""CONFORMANCE, group "Commit": a fault at every single system call of every operation.

Every call below the shuffle's directory is counted, then the operation is repeated for each of them
and each kind of fault. Whatever happens, the newest version is the one before or the one after,
whole; versions before stay; and what failed can be done again.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from itertools import count
from typing import TYPE_CHECKING

import pytest

from arrow_format import (
    MergePolicy,
    OutOfDiskError,
    ShuffleError,
    ShuffleNotFoundError,
    WriteOptions,
    collect_garbage,
    merge_shuffle,
    open_shuffle,
    write_shuffle,
)
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.keys.partitioner import ColumnPartitioner
from arrow_format.log.names import segment_path
from arrow_format.model import Transaction
from tests.support.exhaustive import IS_NIGHT, part
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import begin, files_below, live_files, numbered
from tests.support.system_calls import FAULTS, SystemCalls

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

N = 3
SYNCED = WriteOptions(sort_buffer_bytes=4_096, chunk_bytes=600, threads=2)
EAGER = MergePolicy(rewrite="always")
MOST = 2
"""Calls that meet one fault of one operation; a night tries every call with every fault."""


def rows(start: int, count: int = 90) -> list[pa.RecordBatch]:
    """Batches whose `v` counts from `start`; `p` is the subpartition."""
    return [
        numbered([(v * 7) % N for v in range(at, at + 30)], at)
        for at in range(start, start + count, 30)
    ]


def write(path: Path, start: int, mode: str) -> None:
    write_shuffle(
        rows(start), path, num_subpartitions=N, partitioner=ColumnPartitioner("p"), mode=mode,
        options=replace(SYNCED, threads=1),
    )  # fmt: skip


def job(path: Path, start: int, mode: str) -> None:
    """As Spark does it: directories first, two map tasks of which one is tried twice, a commit."""
    begun = begin(path, n=N, options=SYNCED)
    open_target(begun, mode)
    begun.make_directories()
    try:
        statuses = [
            run_map_task(begun, 0, 0, rows(start, 30)),
            run_map_task(begun, 1, 0, rows(start + 30, 60)),
            run_map_task(begun, 0, 1, rows(start, 30)),
        ]
        commit_job(begun, statuses[1:], mode=mode)
    except Exception:
        abort_job(begun)
        raise


def batch(path: Path, start: int) -> None:
    """As the sink of a stream does it: a job anew each time, and a commit that happens once."""
    begun = begin(path, n=N, options=SYNCED)
    try:
        statuses = [
            run_map_task(begun, 0, 0, rows(start, 30)),
            run_map_task(begun, 1, 0, rows(start + 30, 60)),
        ]
        commit_job(begun, statuses, mode="append", transaction=Transaction("a-query", 5))
    except Exception:
        abort_job(begun)
        raise


@dataclass(frozen=True)
class Operation:
    """Something that makes a version, and what it makes of the rows that are there."""

    run: Callable[[Path], object]
    then: Callable[[list[int]], list[int]]
    keeps_versions: bool = True


def collect(path: Path) -> None:
    collect_garbage(path, retention=timedelta(0))


NEW = [*range(500, 590)]
OPERATIONS = {
    "write": Operation(lambda path: write(path, 500, "overwrite"), lambda _: NEW),
    "append": Operation(lambda path: write(path, 500, "append"), lambda before: [*before, *NEW]),
    "job": Operation(lambda path: job(path, 500, "append"), lambda before: [*before, *NEW]),
    "batch": Operation(
        lambda path: batch(path, 500), lambda before: before if 500 in before else [*before, *NEW]
    ),
    "merge": Operation(
        lambda path: merge_shuffle(path, policy=EAGER, options=SYNCED, by="map_output"), list
    ),
    "collect": Operation(collect, list, keeps_versions=False),
}


def found(path: Path, version: int | None = None) -> list[int]:
    """`v` of all rows, of the newest version verified; none where there is no shuffle."""
    try:
        shuffle = open_shuffle(path, version)
    except ShuffleNotFoundError:
        return []
    assert version is not None or shuffle.verify().ok
    table = shuffle.read().read_all()
    assert table["s"].to_pylist() == [f"row {v}" * (v % 3) for v in table["v"].to_pylist()]
    return sorted(table["v"].to_pylist())


PREPARED_ROWS = [*range(90), *range(100, 190), *range(200, 290)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories to begin with: nothing, and a shuffle of three versions."""
    directory = tmp_path_factory.mktemp("prepared")
    there = directory / "there"
    for number, mode in enumerate(["overwrite", "append", "append"]):
        write(there, 100 * number, mode)
    assert found(there) == PREPARED_ROWS
    return {"nothing": directory / "nothing", "a shuffle": there}


CASES = [
    (there, name)
    for there in ("nothing", "a shuffle")
    for name in OPERATIONS
    if there == "a shuffle" or name not in ("merge", "collect")
]


class Tried:
    """One operation on a fresh copy, with a fault at one of its system calls."""

    def __init__(self, path: Path, prepared: Path, operation: Operation) -> None:
        self.path = path
        self.before: list[int] = []
        if prepared.exists():
            shutil.copytree(prepared, path)
            self.before = PREPARED_ROWS
        self.after = sorted(operation.then(self.before))
        self.operation = operation
        # The directory around it too: the shuffle's own name has to be durable.
        self.calls = SystemCalls(path.parent)
        self.error: ShuffleError | None = None

    def run(self) -> None:
        """Carry it out; a death or one of our errors ends it, and nothing else may."""
        with self.calls.installed():
            try:
                self.operation.run(self.path)
            except ShuffleError as error:
                self.error = error

    def check(self) -> None:
        now = found(self.path)
        if self.calls.is_dead:
            assert now in (self.before, self.after)
        elif self.error is None or "committed as version" in str(self.error):
            assert now == self.after
        else:
            assert now == self.before
        if self.before and self.operation.keeps_versions:
            assert found(self.path, 1) == [*range(90)]
            assert found(self.path, 3) == self.before
        # What failed can be done again, on whatever was left.
        self.operation.run(self.path)
        collect(self.path)
        assert found(self.path) == sorted(self.operation.then(now))
        assert files_there(self.path) == live_files(open_shuffle(self.path))


def files_there(path: Path) -> set[str]:
    """Data files and indexes, and whatever stands beside them."""
    below = (path / "map_outputs").rglob("*")
    return {one.relative_to(path).as_posix() for one in below if one.is_file()}


def calls_of(path: Path, prepared: Path, operation: Operation) -> list[tuple[str, str]]:
    """Every call of an operation that meets with no fault."""
    tried = Tried(path, prepared, operation)
    tried.run()
    tried.check()
    assert tried.error is None
    return tried.calls.names


@pytest.fixture(scope="module")
def number_of_calls(
    tmp_path_factory: pytest.TempPathFactory, prepared: dict[str, Path]
) -> Callable[[str, str], int]:
    """Return how many calls an operation makes, each counted once for all faults."""

    @cache
    def counted(there: str, name: str) -> int:
        path = tmp_path_factory.mktemp("counted") / "x"
        return len(calls_of(path, prepared[there], OPERATIONS[name]))

    return counted


@guarantee("faults")
@pytest.mark.parametrize(("there", "name"), CASES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_system_call(tmp_path, prepared, number_of_calls, there, name, fault):
    operation = OPERATIONS[name]
    num_calls = number_of_calls(there, name)
    assert num_calls > 10
    numbers = range(num_calls)
    if not IS_NIGHT:  # others meet another fault
        numbers = part(numbers, MOST * len(FAULTS))[FAULTS.index(fault) :: len(FAULTS)]
    for number in numbers:
        tried = Tried(tmp_path / str(number), prepared[there], operation)
        tried.calls.fail(number, fault)
        tried.run()
        if fault == "ENOSPC" and tried.error is not None:
            assert isinstance(tried.error, OutOfDiskError) or "no space" in str(tried.error)
        tried.check()
        shutil.rmtree(tried.path)


# Power failures ----------------------------------------------------------------------------------


@guarantee("power failure")
@pytest.mark.parametrize(("there", "name"), CASES)
def test_what_was_committed_outlives_a_power_failure(tmp_path, prepared, there, name):
    tried = Tried(tmp_path / "x", prepared[there], OPERATIONS[name])
    tried.run()
    tried.calls.lose_power()
    assert found(tried.path) == tried.after


@guarantee("power failure", "restored files")
@pytest.mark.parametrize(("there", "name"), CASES)
def test_a_power_failure_at_any_system_call(tmp_path, prepared, number_of_calls, there, name):
    operation = OPERATIONS[name]
    for number in part(range(number_of_calls(there, name)), 5):
        tried = Tried(tmp_path / str(number), prepared[there], operation)
        tried.calls.fail(number, "dies after")
        tried.run()
        # Any removal may have become durable, or not: now all come back, now some do.
        tried.calls.lose_power(some_come_back(number))
        tried.check()
        shutil.rmtree(tried.path, ignore_errors=True)


@guarantee("restored files")
@pytest.mark.parametrize("ended", ["silent", "expired", "aborted"])
def test_a_power_failure_while_local_roots_are_removed(tmp_path, ended):
    """What comes back in a root must be known to somebody: its list, or an entry."""
    for turn, number in enumerate(count(0, 1 if IS_NIGHT else 4)):
        path, disk = tmp_path / f"{number}" / "s", tmp_path / f"{number}" / "disk"
        begun = begin(path, n=N, options=WriteOptions(local_dirs=(str(disk),)))
        open_target(begun, "append")
        statuses = [run_map_task(begun, task, 0, rows(task * 30, 30)) for task in range(2)]
        assert len({file.root for one in statuses for file in one.output.files}) == 2
        if ended == "expired":
            commit_job(begun, statuses, mode="append")
        write(path, 500, "overwrite")
        calls = SystemCalls(path.parent)
        calls.fail(number, "dies after")
        with calls.installed():
            abort_job(begun) if ended == "aborted" else collect(path)
        calls.lose_power(some_come_back(turn))
        collect(path)
        assert found(path) == NEW
        assert files_there(path) == live_files(open_shuffle(path))
        assert files_below(disk) == [], f"after {calls.names[-1]}"
        shutil.rmtree(path.parent)
        # A call that fails by itself, as a mkdir of what is there, kills nobody.
        if number >= len(calls.names):
            break
    assert number > 10


def some_come_back(seed: int) -> Callable[[], bool]:
    """Of what was removed and not fsynced all come back, for even seeds, or about half."""
    draw = random.Random(seed)
    return lambda: seed % 2 == 0 or draw.random() < 0.5


def test_without_fsync_a_power_failure_takes_what_was_written(tmp_path, prepared, monkeypatch):
    """Or the tests above would prove nothing."""
    monkeypatch.setattr("tests.conformance.test_crashes.SYNCED", replace(SYNCED, sync=False))
    tried = Tried(tmp_path / "x", prepared["a shuffle"], OPERATIONS["append"])
    tried.run()
    tried.calls.lose_power()
    assert found(tried.path) == tried.before != tried.after


@guarantee("power failure")
@pytest.mark.parametrize("name", ["write", "job", "merge"])
def test_data_then_index_then_directory_then_entry_are_fsynced(tmp_path, prepared, name):
    names = calls_of(tmp_path / "x", prepared["a shuffle"], OPERATIONS[name])
    fsyncs = [(number, path) for number, (call, path) in enumerate(names) if call == "fsync"]
    (entry,) = (i for i, (call, path) in enumerate(names) if call == "link" and ".entry-" in path)
    indexes = [(number, path) for number, path in fsyncs if path.endswith(".index")]
    assert len(indexes) >= 1
    for number, path in indexes:
        data, directory = path.replace(".index", ".data"), path.rpartition("/")[0]
        assert min(i for i, one in fsyncs if one == data) < number
        assert any(number < i < entry for i, one in fsyncs if one == directory)
    assert any(i > entry for i, one in fsyncs if one == f"x/{segment_path(0)}")
