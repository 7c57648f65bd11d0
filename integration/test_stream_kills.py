"""Queries that are killed at any moment and started again: nothing is lost, nothing is there twice.

A night kills more often, STREAM_SEED=7 at other moments.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from arrow_format import ShuffleNotFoundError, collect_garbage, flush_pending, open_shuffle
from arrow_format.log.commit_log import CommitLog
from arrow_format.storage.open import PosixStorage
from integration.programs.cluster import ROOT, die_with_parent
from integration.programs.processes import descendants, is_running, kill
from integration.programs.stream_program import KEYS, expected, windows_in
from tests.support.exhaustive import times
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KILLS = times(1, 10)
SEED = int(os.environ.get("STREAM_SEED", "1"))
PATIENCE_S = 180
"""For a child to start and to come on; on an idle machine ten seconds do."""
WITHIN_S = 3.0
"""A child is killed that long after it has come on in both queries: a few micro-batches of each."""
FOREVER = 1_000_000


@contextmanager
def program(
    directory: Path, what: object, name: str = "stream_program"
) -> Iterator[subprocess.Popen[bytes]]:
    """Run queries in a process of their own, that does not outlive the block."""
    environment = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "SPARK_REMOTE")}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    with (directory / "child.log").open("ab") as log:
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                f"integration.programs.{name}",
                str(directory),
                str(what),
            ],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent,
        )
    try:
        yield child
    finally:
        kill_all(child)


def kill_all(child: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to a process and all below it, JVM and Python workers, and wait for the end."""
    pids = [child.pid, *(one.pid for one in descendants(child.pid))]
    for pid in pids:
        kill(pid)
    child.wait()
    deadline = time.monotonic() + PATIENCE_S
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def newest(path: Path) -> int:
    return CommitLog(PosixStorage(str(path))).newest_version() if path.exists() else 0


def check(path: Path) -> set[int]:
    """Check that each row is right and there once; return the windows that are complete."""
    try:
        shuffle = open_shuffle(path)
    except ShuffleNotFoundError:
        return set()
    rows = shuffle.read().read_all().to_pylist()
    groups = [(row["w"], row["k"]) for row in rows]
    assert len(set(groups)) == len(groups), "a row is there twice"
    windows = {window for window, _ in groups}
    right = expected(max(windows) + 1)
    assert all(right[row["w"], row["k"]] == (row["n"], row["total"]) for row in rows)
    assert len(groups) == KEYS * len(windows), "a row is missing"
    log = CommitLog(PosixStorage(str(path)))
    entries = [log.record(number) for number in range(1, log.newest_version() + 1)]
    batches = [entry.transaction.number for entry in entries if entry.transaction is not None]
    assert batches == sorted(set(batches)), "a batch is there twice"
    return windows


@guarantee("killed queries", "pending batches")
def test_nothing_is_lost_or_doubled_by_kills(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    one, two, three = tmp_path / "one", tmp_path / "two", tmp_path / "three"
    for _ in range(KILLS):
        began = newest(one), newest(two)
        with program(tmp_path, FOREVER) as child:
            deadline = time.monotonic() + PATIENCE_S
            while newest(one) <= began[0] or newest(two) <= began[1]:
                assert child.poll() is None, (tmp_path / "child.log").read_text()[-5000:]
                assert time.monotonic() < deadline, (tmp_path / "child.log").read_text()[-5000:]
                time.sleep(0.02)
            time.sleep(rng.uniform(0, WITHIN_S))
            kill_all(child)
        check(one), check(two), check(three)
    with program(tmp_path, windows_in(one) + 2) as child:
        assert child.wait(PATIENCE_S) == 0, (tmp_path / "child.log").read_text()[-5000:]
    windows = check(one)
    assert windows == set(range(len(windows)))
    assert check(two) == windows
    flush_pending(three)
    assert check(three) == windows
    for path in (one, two, three):
        assert open_shuffle(path).verify().ok
        jobs = {output.job_id for output in open_shuffle(path).map_outputs}
        collect_garbage(path, retention=timedelta(0))
        assert {job.name for job in (path / "map_outputs").iterdir()} <= jobs, "all else is gone"


def killed_where_it_stops(directory: Path, what: str) -> None:
    """Run a program until it says that it has stopped, and kill it there."""
    with program(directory, what, "once_program") as child:
        deadline = time.monotonic() + PATIENCE_S
        while not (directory / "stopped").exists():
            assert child.poll() is None, (directory / "child.log").read_text()[-5000:]
            assert time.monotonic() < deadline, (directory / "child.log").read_text()[-5000:]
            time.sleep(0.02)
        kill_all(child)


def runs_to_its_end(directory: Path, what: str) -> None:
    """Run a program, which goes on where it was killed."""
    with program(directory, what, "once_program") as child:
        assert child.wait(PATIENCE_S) == 0, (directory / "child.log").read_text()[-5000:]


def numbers_in(path: Path) -> list[int]:
    try:
        return sorted(open_shuffle(path).read().read_all()["id"].to_pylist())
    except ShuffleNotFoundError:
        return []


@guarantee("transactions", "killed queries")
def test_a_foreach_batch_that_is_killed_behind_its_append_is_there_once(tmp_path: Path) -> None:
    killed_where_it_stops(tmp_path, "foreach")
    assert len(numbers_in(tmp_path / "s")) == 200
    runs_to_its_end(tmp_path, "foreach")
    calls = (tmp_path / "calls").read_text().split()
    assert calls.count("1") == 2, "the batch that was killed was run again"
    assert numbers_in(tmp_path / "s") == [*range(500)]
    assert open_shuffle(tmp_path / "s").version == 5


@guarantee("overdue rows", "killed queries")
def test_a_query_that_is_killed_flushes_before_its_next_batch(tmp_path: Path) -> None:
    killed_where_it_stops(tmp_path, "pending")
    assert numbers_in(tmp_path / "s") == []
    time.sleep(1)
    runs_to_its_end(tmp_path, "restart")
    assert numbers_in(tmp_path / "s") == [*range(500)]


@guarantee("overdue rows", "killed queries")
def test_a_query_that_is_killed_before_its_last_flush_flushes_at_its_next_end(
    tmp_path: Path,
) -> None:
    killed_where_it_stops(tmp_path, "done")
    assert numbers_in(tmp_path / "s") == []
    runs_to_its_end(tmp_path, "done")
    assert numbers_in(tmp_path / "s") == [*range(500)]
    assert flush_pending(tmp_path / "s") is None
