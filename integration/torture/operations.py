"""What a round does to a shuffle, and what must be in it afterwards: the model."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import arrow_format
from arrow_format import MergePolicy, WriteOptions
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import ShuffleJob, begin_job, run_map_task
from arrow_format.jobs.merge import plan_merge
from arrow_format.jobs.target import open_target
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.storage.open import PosixStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from arrow_format.options import MergeBy

NUM_SUBPARTITIONS = 13
KEY = "k"
NUM_KEYS = 97
MOST_WORDS = 5
BATCH_ROWS = 2_000
PAUSE_S = 0.005
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string())])

State: TypeAlias = tuple[tuple[int, int], ...] | None
"""Rows of a shuffle in the order of their commits, as ``(first, count)`` of the running number that
distinguishes the rows of a run; None before the first commit."""

PHASES = {
    "append": ("begin", "map", "commit", "published"),
    "overwrite": ("begin", "map", "commit", "published"),
    "read": ("open", "read"),
    "merge": ("merge", "finish"),
    "gc": ("gc",),
}
"""What each kind of operation goes through."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing to do to a shuffle."""

    kind: str
    """A key of :data:`PHASES`."""
    first: int = 0
    """Of a write: number of its first row."""
    count: int = 0
    num_tasks: int = 1
    way: str = "engine"
    """Of a write through Spark: ``hook``, ``function`` or ``df.write``."""
    by: MergeBy = "map_output"
    """Of a merge."""
    local_dirs: tuple[str, ...] = ()

    @property
    def is_write(self) -> bool:
        """Whether it brings rows."""
        return self.count > 0

    def after(self, state: State) -> State:
        """Return what is in the shuffle once it went through."""
        if self.kind == "overwrite":
            return ((self.first, self.count),)
        if self.kind == "append":
            return (*(state or ()), (self.first, self.count))
        return state

    def again(self, first: int) -> Operation:
        """Return the same with other rows, so that both can be distinguished."""
        return replace(self, first=first) if self.is_write else self


def batches(first: int, end: int) -> Iterator[pa.RecordBatch]:
    """Rows ``[first, end)``; all that a row holds follows from its number `v`."""
    for start in range(first, end, BATCH_ROWS):
        yield rows_of(np.arange(start, min(start + BATCH_ROWS, end)))


def rows_of(numbers: np.ndarray) -> pa.RecordBatch:
    """Return the rows with these numbers."""
    v = pa.array(numbers, pa.int64())
    words = pa.array(numbers % MOST_WORDS + 1)
    columns = [pa.array(numbers % NUM_KEYS), v, pc.binary_repeat(pc.cast(v, pa.string()), words)]
    return pa.record_batch(columns, schema=SCHEMA)


IN_SPARK = [
    f"id % {NUM_KEYS} AS k",
    "id AS v",
    f"repeat(cast(id AS string), cast(id % {MOST_WORDS} + 1 AS int)) AS s",
]
"""The same rows of ``spark.range(first, end)``."""


class Announcing(PosixStorage):
    """Tells when an entry of the log is there, and waits a moment.

    What a commit does after that takes a millisecond: no blow that is aimed from outside would ever
    fall there.
    """

    def __init__(self, root: str, announce: Callable[[str], None]) -> None:
        super().__init__(root)
        self._announce = announce

    def put_if_absent(self, path: str, data: bytes, *, sync: bool) -> None:
        super().put_if_absent(path, data, sync=sync)
        if path.endswith(".entry"):
            self._announce("published")
            time.sleep(PAUSE_S)


def options_of(operation: Operation) -> WriteOptions:
    """Return options that make several regions and chunks of few rows, synced as by default."""
    return WriteOptions(
        sort_buffer_bytes=1 << 18, chunk_bytes=1 << 12, local_dirs=operation.local_dirs
    )


def begin(operation: Operation, path: str) -> ShuffleJob:
    """Begin a write, up to where its map tasks may run."""
    job = begin_job(
        path,
        SCHEMA,
        num_subpartitions=NUM_SUBPARTITIONS,
        partitioner=HashPartitioner(KEY),
        options=options_of(operation),
    )
    open_target(job, operation.kind)
    return replace(job, has_directory=True)


def task_batches(operation: Operation, number: int) -> Iterator[pa.RecordBatch]:
    """Rows of one map task of a write."""
    edges = np.linspace(0, operation.count, operation.num_tasks + 1).astype(int).tolist()
    return batches(operation.first + edges[number], operation.first + edges[number + 1])


def perform(operation: Operation, path: str, announce: Callable[[str], None]) -> object:
    """Do it with the engine alone, in this process.

    Parameters
    ----------
    announce
        Called with each of the operation's phases as it begins.

    Returns
    -------
    object
        Of a read, number of rows and sum of their numbers; else None.
    """
    match operation.kind:
        case "append" | "overwrite":
            announce("begin")
            job = begin(operation, path)
            job = replace(job, storage=Announcing(job.storage.root, announce))
            announce("map")
            statuses = [
                run_map_task(job, number, 0, task_batches(operation, number))
                for number in range(operation.num_tasks)
            ]
            announce("commit")
            commit_job(job, statuses, mode=operation.kind)
        case "read":
            announce("open")
            shuffle = arrow_format.open_shuffle(path)
            announce("read")
            numbers = shuffle.read(columns=["v"]).read_all()["v"]
            return len(numbers), pc.sum(numbers).as_py() or 0
        case "merge":
            _merge(operation, path, announce)
        case "gc":
            announce("gc")
            collect_garbage(path)
        case other:
            msg = f"{other}: expected one of {', '.join(PHASES)}"
            raise ValueError(msg)
    return None


REWRITE = MergePolicy(rewrite="always", target_file_bytes=1 << 16)
"""Merges of several tasks."""


def _merge(operation: Operation, path: str, announce: Callable[[str], None]) -> None:
    announce("merge")
    left = plan_merge(arrow_format.open_shuffle(path), REWRITE, operation.by).num_bytes
    last = left // 20

    def count(num_bytes: int) -> None:
        nonlocal left
        if left > last >= left - num_bytes:
            announce("finish")  # what is written is read back and compared, and then committed
        left -= num_bytes

    arrow_format.merge_shuffle(
        path, by=operation.by, policy=REWRITE, options=options_of(operation), on_bytes=count
    )


def collect_garbage(path: str) -> bool:
    """Remove what no version needs, as soon as that is allowed; False where nothing can."""
    collect = getattr(arrow_format, "collect_garbage", None)
    if collect is not None:
        collect(path, retention=timedelta(0))
    return collect is not None
