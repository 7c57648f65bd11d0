"""Small shuffles and files to merge."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from arrow_format import (
    MergePolicy,
    WriteOptions,
)
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.model import BROADCAST
from arrow_format.read.subpartition_reader import SortMergeSubpartitionReader
from tests.support.small_shuffles import (
    SCHEMA,
    entry_of,
    numbered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from arrow_format import ShuffleReceipt
    from arrow_format.keys.partitioner import Assign
    from arrow_format.model import PartitionedFile
    from arrow_format.read.partitioned_file import PartitionedFileReader
    from arrow_format.read.shuffle import Shuffle

N = 6
TINY = WriteOptions(sync=False, sort_buffer_bytes=4_096, chunk_bytes=300, statistics="all")
CODECS = pytest.mark.parametrize("codec", ["none", "zstd"])
NEVER, ALWAYS = MergePolicy(rewrite="never"), MergePolicy(rewrite="always")
POLICIES = pytest.mark.parametrize("policy", [NEVER, ALWAYS], ids=["append", "rewrite"])
WAYS = pytest.mark.parametrize(
    "how",
    [{"policy": NEVER}, {"policy": ALWAYS}, {"policy": ALWAYS, "by": "subpartition"}],
    ids=["append", "rewrite", "by subpartition"],
)


class FromColumn:
    """Takes the ids from column `p`, BROADCAST among them."""

    def describe(self) -> dict[str, Any]:
        return {"kind": "from_column"}

    def check(self, schema: pa.Schema) -> None:
        schema.field("p")

    def bind(self, schema: pa.Schema, num_subpartitions: int, map_task: int) -> Assign:
        return lambda batch: batch["p"].to_numpy()


def ids_of(num_rows: int, seed: int = 0, n: int = N, broadcast: bool = False) -> list[int]:
    """Return random subpartitions; with ``broadcast`` a third of the rows are for all."""
    ids = np.random.default_rng(seed).integers(0, n, num_rows)
    if broadcast:
        ids[(np.arange(num_rows) // 25) % 3 == 1] = BROADCAST
    return [int(number) for number in ids]


def append_version(
    path: object,
    num_tasks: int = 2,
    rows: int = 150,
    options: WriteOptions = TINY,
    broadcast: bool = False,
    n: int = N,
    sort_by: Sequence[Any] = (),
) -> ShuffleReceipt:
    """Commit one version more: map tasks of several regions each, rotated."""
    job = begin_job(
        str(path),
        SCHEMA,
        num_subpartitions=n,
        partitioner=FromColumn(),
        options=options,
        sort_by=sort_by,
    )
    open_target(job, "append")
    seed = job.base_version * 100
    statuses = [
        run_map_task(
            job,
            task,
            0,
            numbered_batches(ids_of(rows, seed + task, n, broadcast), 1_000 * (seed + task)),
        )
        for task in range(num_tasks)
    ]
    return commit_job(job, statuses, mode="append")


def numbered_batches(ids: list[int], start: int, rows: int = 10) -> list[pa.RecordBatch]:
    """Return numbered rows of these subpartitions, a few in each batch."""
    return [numbered(ids[i : i + rows], start + i) for i in range(0, len(ids), rows)]


def contents(shuffle: Shuffle) -> list[pa.Table]:
    """Rows of each subpartition in reading order, and of a range that is read together."""
    return [
        *(shuffle.subpartition(i).read_all() for i in range(shuffle.num_subpartitions)),
        shuffle.read(range(1, 4), with_subpartition=True).read_all(),
    ]


def files_of(shuffle: Shuffle) -> list[PartitionedFile]:
    """Return the files of a version."""
    return [file for output in shuffle.map_outputs for file in output.files]


def rows_in(*indexes: PartitionedFileReader) -> list[tuple[int, int]]:
    """`(subpartition, v)` by subpartition, in the order a reader gives."""
    rows = []
    for subpartition in range(N):
        for index in indexes:
            entry = entry_of(index.file, N)
            for run in SortMergeSubpartitionReader(
                index.storage, entry, entry.map_outputs, subpartition, subpartition + 1
            ):
                rows += [(subpartition, v) for v in run.batch["v"].to_pylist()]
    return rows


class Failing:
    """Counts calls of `os` functions that change files, and makes one of them fail."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        names: Sequence[str] = ("writev", "fsync", "open", "link"),
    ) -> None:
        self.calls = 0
        self.fails_at: int | None = None
        for name in names:
            monkeypatch.setattr(os, name, self.wrap(getattr(os, name)))

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, which fails at its call."""

        def call(*arguments: Any, **how: Any) -> Any:
            reads = function.__name__ == "open" and not arguments[1] & os.O_CREAT
            if not reads:
                self.calls += 1
                if self.calls == self.fails_at:
                    raise OSError(errno.ENOSPC, "No space left on device")
            return function(*arguments, **how)

        return call
