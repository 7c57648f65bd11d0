"""Small partitioned files and shuffles, written in a few lines, for tests of every module."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from arrow_format.arrays.column_ids import give_ids
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.jobs.write import write_shuffle
from arrow_format.keys.partitioner import ColumnPartitioner, HashPartitioner
from arrow_format.log.delta import Delta
from arrow_format.log.entry import LogEntry
from arrow_format.log.names import IDENTITY_DIRECTORY
from arrow_format.log.outputs import MapOutputs
from arrow_format.log.state import LogState, VersionShape
from arrow_format.model import MapOutput, PartitionedFileMetadata
from arrow_format.options import WriteOptions
from arrow_format.read.shuffle import open_shuffle
from arrow_format.read.subpartition_reader import SortMergeSubpartitionReader
from arrow_format.storage.root_owner import DIRECTORY_ID_NAME
from arrow_format.streaming.collection import collect_garbage
from arrow_format.write.clustering import cluster
from arrow_format.write.partitioned_file import PartitionedFileWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from arrow_format.ingest.source import Given
    from arrow_format.jobs.gc_files import GcReport
    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.model import MapStatus, PartitionedFile, Transaction
    from arrow_format.read.shuffle import Shuffle
    from arrow_format.storage.open import Place, Storage

FAST = WriteOptions(sync=False)
"""Default options without fsync: tests on other subjects need no durability."""

N = 5
"""Subpartitions, where a test does not care how many."""

SCHEMA = pa.schema([("p", pa.int32()), ("v", pa.int64()), ("s", pa.string())])
"""`p` is the subpartition, so that a row says itself where it belongs."""


def numbered(ids: Sequence[int], start: int = 0) -> pa.RecordBatch:
    """One row per id, with `v` counting up from `start` in order of arrival."""
    values = range(start, start + len(ids))
    return pa.record_batch(
        [list(ids), list(values), [f"row {v}" * (v % 3) for v in values]], schema=SCHEMA
    )


def metadata_of(n: int, schema: pa.Schema = SCHEMA, **changes: Any) -> PartitionedFileMetadata:
    known = PartitionedFileMetadata(
        shuffle_id="the-shuffle",
        job_id="the-job",
        map_task=3,
        attempt=1,
        data_schema=schema,
        num_subpartitions=n,
        partitioner={"kind": "column", "column": "p"},
    )
    return replace(known, **changes)


def write_region(
    writer: PartitionedFileWriter,
    batch: pa.RecordBatch,
    ids: Sequence[int],
    n: int,
    first_subpartition: int = 0,
) -> None:
    clustering = cluster(np.array(ids, np.int32), n, first_subpartition)
    if clustering.permutation is not None:
        batch = batch.take(pa.array(clustering.permutation))
    writer.write_region(batch, clustering)


def write_file(
    storage: Storage,
    regions: Iterable[tuple[Sequence[int], int]],
    n: int,
    *,
    options: WriteOptions = FAST,
    path: str = "here/file",
) -> tuple[PartitionedFile, PartitionedFileWriter]:
    """Write `(ids, first_subpartition)` regions whose `v` counts up through the file."""
    start = 0
    with PartitionedFileWriter(storage, path, metadata_of(n), options) as writer:
        for ids, first in regions:
            write_region(writer, numbered(ids, start), ids, n, first)
            start += len(ids)
        return writer.finish(), writer


def entry_of(file: PartitionedFile, n: int, schema: pa.Schema = SCHEMA) -> LogEntry:
    """A log entry, committed nowhere, that names one file of :func:`write_file`."""
    output = MapOutput("the-job", 3, 1, (file,))
    columns = give_ids(schema, [], 0)
    described = {"kind": "column", "column": "p"}
    shape = VersionShape("the-shuffle", schema, None, n, described, columns.ids)
    state = LogState(shape=shape, version=1, content=1, changed=1, last_column_id=max(columns.ids))
    return LogEntry(
        version=1,
        operation="overwrite",
        commit_id="the-commit",
        parent=None,
        committed_at_ms=0,
        state=state,
        job_id="the-job",
        content=Delta(MapOutputs.of([output]).with_columns(columns).at_version(1)),
    )


def read_range(
    storage: Storage, file: PartitionedFile, n: int, first: int, end: int
) -> list[tuple[int, dict[str, Any]]]:
    """`(subpartition, row)` of a range of one file, in the order the reader gives."""
    version = entry_of(file, n)
    reader = SortMergeSubpartitionReader(storage, version, version.map_outputs, first, end)
    return [
        (int(subpartition), row)
        for run in reader
        for subpartition, row in zip(run.subpartitions, run.batch.to_pylist(), strict=True)
    ]


def write_tasks(
    path: Path | str,
    tasks: Sequence[Sequence[pa.RecordBatch]],
    n: int,
    *,
    mode: str = "errorifexists",
    schema: pa.Schema | None = None,
    partitioner: Partitioner | None = None,
    options: WriteOptions = FAST,
    transaction: Transaction | None = None,
    **how: Any,
) -> ShuffleReceipt:
    """Write and commit one map output per task; column `p` is the subpartition, unless told."""
    job = begin_job(
        str(path),
        schema or (tasks[0][0].schema if tasks and tasks[0] else SCHEMA),
        num_subpartitions=n,
        partitioner=partitioner or ColumnPartitioner("p"),
        options=options,
        **how,
    )
    open_target(job, mode)
    statuses = [run_map_task(job, i, 0, batches) for i, batches in enumerate(tasks)]
    return commit_job(job, statuses, mode=mode, transaction=transaction)


def write_rows(
    path: Place, rows: Given, keys: str | Sequence[str] | None = None, *, n: int = N, **how: Any
) -> ShuffleReceipt:
    """Write rows as one map output, by keys or by what else is said."""
    return write_shuffle(rows, path, keys=keys, num_subpartitions=n, **{"options": FAST, **how})


def shuffle_of(
    path: Place, rows: Given, keys: str | Sequence[str] | None = None, *, n: int = N, **how: Any
) -> Shuffle:
    """Write rows as :func:`write_rows` does, and open the shuffle."""
    write_rows(path, rows, keys, n=n, **how)
    return open_shuffle(path)


def live_files(shuffle: Shuffle) -> set[str]:
    """Return the paths of the data files and indexes that a version names, in their roots."""
    return {
        path
        for output in shuffle.map_outputs
        for file in output.files
        for path in (file.data_path, file.index_path)
    }


def root_numbers(files: Iterable[PartitionedFile], *dirs: Path | str) -> list[int]:
    """Return which of the directories each file is in: 0 for the shuffle, 1 for the first other."""
    known = ["", *map(str, dirs)]
    return [known.index(os.path.dirname(file.root)) for file in files]  # noqa: PTH120


def is_of_roots(path: Path) -> bool:
    """Whether a file says whose local roots are; such files stay, whatever becomes of the roots."""
    return path.name == DIRECTORY_ID_NAME or IDENTITY_DIRECTORY in path.as_posix()


def files_below(root: Path) -> list[str]:
    """Everything below a directory but what stays of local directories, sorted."""
    below = (path for path in root.rglob("*") if not is_of_roots(path))
    return sorted(path.relative_to(root).as_posix() for path in below)


def flip(file: Path, place: int | None = None) -> None:
    """Flip a bit of a file: of a byte in its middle, or elsewhere."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 1
    file.write_bytes(content)


def begin(
    place: Place,
    schema: pa.Schema = SCHEMA,
    n: int = N,
    partitioner: Partitioner | None = None,
    options: WriteOptions = FAST,
    **how: Any,
) -> ShuffleJob:
    partitioner = partitioner or ColumnPartitioner("p")
    return begin_job(
        place, schema, num_subpartitions=n, partitioner=partitioner, options=options, **how
    )


def begun_with(
    place: Place, rows: pa.Table | pa.RecordBatch, keys: str = "k", mode: str = "append", **how: Any
) -> tuple[ShuffleJob, list[MapStatus]]:
    """Begin a job whose one map task has written some rows, ready to commit.

    ``how`` is that of :func:`begin`; rows are partitioned by the hash of the keys unless it has a
    partitioner.
    """
    job = begin(place, rows.schema, **{"partitioner": HashPartitioner(keys), **how})
    open_target(job, mode)
    batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches()
    return job, [run_map_task(job, 0, 0, batches)]


def run(
    job: ShuffleJob, task: int, ids: Sequence[int], attempt: int = 0, start: int = 0
) -> MapStatus:
    return run_map_task(job, task, attempt, [numbered(ids, start)])


def values(path: Path, version: int | None = None) -> list[int]:
    numbers: list[int] = open_shuffle(path, version).read().read_all()["v"].to_pylist()
    return numbers


def sorted_values(path: Place, version: int | str | None = None, column: str = "v") -> list[Any]:
    """Return the values of a column of a version, in their order."""
    return sorted(open_shuffle(path, version).read().read_all()[column].to_pylist())


def collect(place: Place, times: int = 1, **how: Any) -> GcReport:
    """Collect garbage as often, of all that was superseded by then; return the last report."""
    for _ in range(times):
        report = collect_garbage(place, **{"retention": timedelta(0), **how})
    return report


def make_old(directory: Path, age: timedelta) -> None:
    """Let everything below a directory look as if it was written so long ago."""
    when = time.time() - age.total_seconds()
    for path in (directory, *directory.rglob("*")):
        os.utime(path, (when, when))
