"""Shuffles over several directories, for the tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import Shuffle, ShuffleReceipt, WriteOptions, open_shuffle
from arrow_format.jobs.job import ShuffleJob, run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.keys.partitioner import ColumnPartitioner
from tests.support import small_shuffles
from tests.support.small_shuffles import is_of_roots, write_rows

if TYPE_CHECKING:
    from arrow_format.model import MapStatus

N = 20
ROWS = 40_000
CODECS = pytest.mark.parametrize("codec", ["none", "zstd"])


def table_of(num_rows: int = ROWS, start: int = 0) -> pa.Table:
    """Rows that do not compress: 100 bytes each."""
    rng = np.random.default_rng(start)
    noise = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(84), num_rows, [None, pa.py_buffer(rng.bytes(84 * num_rows))]
    )
    v = np.arange(start, start + num_rows)
    return pa.table({"p": pa.array(v % N, pa.int32()), "v": v, "noise": noise})


def options_of(*dirs: Path, codec: Literal["none", "zstd"] = "zstd", **more: Any) -> WriteOptions:
    return WriteOptions(
        codec=codec, sync=False, sort_buffer_bytes=1 << 20, local_dirs=tuple(map(str, dirs)), **more
    )


def write(path: Path, rows: pa.Table, options: WriteOptions, **how: Any) -> ShuffleReceipt:
    """Append rows as one map output."""
    return write_rows(
        path, rows, n=N, partitioner=ColumnPartitioner("p"), mode="append", options=options, **how
    )


def begin(path: Path, options: WriteOptions) -> ShuffleJob:
    job = small_shuffles.begin(path, table_of(0).schema, N, options=options)
    open_target(job, "append")
    return replace(job, has_directory=True)


def run_tasks(
    job: ShuffleJob, count: int, num_rows: int = 100, attempt: int = 0
) -> list[MapStatus]:
    """Run so many map tasks, each of the next rows."""
    return [
        run_map_task(job, task, attempt, table_of(num_rows, num_rows * task).to_batches())
        for task in range(count)
    ]


def check_rows(path: Path, num_rows: int) -> Shuffle:
    shuffle = open_shuffle(path)
    assert shuffle.verify().num_rows == num_rows
    assert [shuffle.subpartition(p).read_all()["v"].to_pylist() for p in range(N)] == [
        list(range(p, num_rows, N)) for p in range(N)
    ]
    return shuffle


def files_in(directory: Path) -> list[str]:
    """Files below a directory, but what stays of local directories."""
    return sorted(
        str(path.relative_to(directory))
        for path in Path(directory).rglob("*")
        if path.is_file() and not is_of_roots(path)
    )
