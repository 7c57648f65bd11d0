"""Many readers, writers that append, one that merges and one that collects, all at the same time.

Every row says which writer wrote it and in which append, so that a reader can say of any version
whether it is whole: of each writer all appends from the first to the last it has, with every row.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format import (
    CommitConflictError,
    ReadOptions,
    ShuffleNotFoundError,
    WriteOptions,
    collect_garbage,
    merge_shuffle,
    open_shuffle,
    write_shuffle,
)
from tests.support.memory import resident_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.process import BaseProcess
    from multiprocessing.queues import Queue
    from pathlib import Path

N = 64
ROWS = 20_000
"""Of one append."""

OPTIONS = WriteOptions(sync=False, sort_buffer_bytes=4 << 20)

PATIENCE_S = 300
"""How long after the end each may take for what it had begun: to read everything takes longest."""


@dataclass(frozen=True)
class Crowd:
    """What came of it."""

    seconds: float
    counts: dict[str, int]
    """Appends, conflicts, merges, collections, and reads of everything and of one subpartition."""
    problems: list[str]
    peak_reader_bytes: int


def append(path: str, writer: int, number: int) -> None:
    """Append the rows of one append of one writer."""
    rows = pa.record_batch(
        {
            "k": np.arange(number * ROWS, (number + 1) * ROWS),
            "writer": np.full(ROWS, writer, np.int32),
            "append": np.full(ROWS, number, np.int32),
        }
    )
    write_shuffle([rows], path, num_subpartitions=N, keys="k", mode="append", options=OPTIONS)


def check_whole(table: pa.Table) -> str | None:
    """Say what is wrong with the rows of a version; None when nothing is."""
    for writer in np.unique(table["writer"].to_numpy()).tolist():
        mine = table.filter(pa.compute.equal(table["writer"], writer))
        counts = np.bincount(mine["append"].to_numpy())
        if not (counts == ROWS).all():
            wrong = np.flatnonzero(counts != ROWS)[0]
            return f"writer {writer}, append {wrong}: {counts[wrong]} rows of {ROWS}"
        if len(np.unique(mine["k"].to_numpy())) != mine.num_rows:
            return f"writer {writer}: rows are there twice"
    return None


def _write(path: str, writer: int, until: float, events: Queue[tuple[str, object]]) -> None:
    number = 0
    while time.time() < until:
        try:
            append(path, writer, number)
        except CommitConflictError:
            events.put(("conflicts", 1))
            continue
        number += 1
        events.put(("appends", 1))
        time.sleep(0.2)


def _keep_house(path: str, until: float, events: Queue[tuple[str, object]]) -> None:
    while time.time() < until:
        time.sleep(2)
        try:
            merge_shuffle(path, options=OPTIONS, by="map_output")
            events.put(("merges", 1))
        except CommitConflictError:
            events.put(("merge conflicts", 1))
        collect_garbage(path, retention=timedelta(seconds=30))
        events.put(("collections", 1))


def _read(path: str, seed: int, until: float, events: Queue[tuple[str, object]]) -> None:
    draw = random.Random(seed)
    versions = 0
    while time.time() < until:
        try:
            shuffle = open_shuffle(path, options=ReadOptions(memory_bytes=96 << 20))
        except ShuffleNotFoundError:
            time.sleep(0.1)
            continue
        if shuffle.version < versions:
            events.put(("problem", f"version {shuffle.version} after {versions}"))
        versions = shuffle.version
        if draw.random() < 0.2:
            wrong = check_whole(shuffle.read().read_all())
            if wrong:
                events.put(("problem", f"version {versions}: {wrong}"))
            events.put(("reads of everything", 1))
        else:
            subpartition = draw.randrange(N)
            num_rows = shuffle.subpartition(subpartition).read_all().num_rows
            expected = shuffle.subpartition_rows[subpartition].as_py()
            if num_rows != expected:
                events.put(
                    ("problem", f"subpartition {subpartition}: {num_rows} rows of {expected}")
                )
            events.put(("reads of one subpartition", 1))
    events.put(("resident", resident_bytes()))


def end_all(processes: Sequence[BaseProcess], patience_s: float) -> list[str]:
    """Kill those processes that still run; say which they were."""
    late = [process for process in processes if process.is_alive()]
    for process in late:
        process.kill()
        process.join()
    return [
        f"{process.name} (process {process.pid}) had not ended {patience_s:g} s after it was to "
        "stop, and was killed"
        for process in late
    ]


def run_crowd(
    directory: Path,
    *,
    seconds: float,
    readers: int = 20,
    writers: int = 2,
    patience_s: float = PATIENCE_S,
) -> Crowd:
    """Let them all work on one shuffle, then check what is there.

    Processes that have not ended ``patience_s`` after they were to stop are killed, and problems;
    then nothing else is checked.
    """
    context = multiprocessing.get_context("spawn")
    events: Queue[tuple[str, object]] = context.Queue()
    path = str(directory / "crowd")
    start = time.time()
    until = start + seconds
    processes: list[BaseProcess] = [
        *(
            context.Process(target=_write, args=(path, i, until, events), name=f"writer {i}")
            for i in range(writers)
        ),
        *(
            context.Process(target=_read, args=(path, i, until, events), name=f"reader {i}")
            for i in range(readers)
        ),
        context.Process(
            target=_keep_house, args=(path, until, events), name="merger and collector"
        ),
    ]
    append(path, writers, 0)
    for process in processes:
        process.start()
    counts: Counter[str] = Counter()
    problems: list[str] = []
    peak = 0
    while any(process.is_alive() for process in processes) or not events.empty():
        if time.time() > until + patience_s:
            late = end_all(processes, patience_s)
            if late:
                # What they still put there may end in the middle: to wait for it might hang.
                return Crowd(time.time() - start, dict(counts), [*problems, *late], peak)
        while not events.empty():
            what, value = events.get()
            if what == "problem":
                problems.append(str(value))
            elif what == "resident":
                peak = max(peak, int(str(value)))
            else:
                counts[what] += 1
        time.sleep(0.1)
    problems += [
        f"{process.name} ended with {process.exitcode}" for process in processes if process.exitcode
    ]
    shuffle = open_shuffle(path)
    expected = (counts["appends"] + 1) * ROWS
    if shuffle.num_rows != expected:
        problems.append(f"{shuffle.num_rows} rows at the end, expected {expected}")
    wrong = check_whole(shuffle.read().read_all())
    if wrong:
        problems.append(wrong)
    return Crowd(time.time() - start, dict(counts), problems, peak)
