"""Batches as Spark hands them to Python: 10,000 rows that lie in one allocation."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pathlib import Path

BATCH_ROWS = 10_000
"""Rows of a batch as Spark hands them to Python."""


def read_batches(path: Path, most: int | None = None) -> list[pa.RecordBatch]:
    """Read batches of an IPC stream: each is one allocation, as when Spark sends them.

    Parameters
    ----------
    path
        A file that holds the stream.
    most
        How many to read; all when None.
    """
    with pa.OSFile(str(path)) as file:
        return list(islice(pa.ipc.open_stream(file), most))


def as_over_ipc(message: bytes | pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch whose columns all lie in one new allocation, as one that Spark sent."""
    buffer = pa.allocate_buffer(len(message))
    memoryview(buffer).cast("B")[:] = memoryview(message).cast("B")
    return pa.ipc.read_record_batch(buffer, schema)
