"""The input: TPC-H ``lineitem`` in batches as Spark hands them to Python.

Such a batch has 10,000 rows that lie in one allocation.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds

from integration.programs.datasets import CACHE, lineitem

if TYPE_CHECKING:
    from pathlib import Path

KEY = "l_orderkey"
BATCH_ROWS = 10_000


def ipc_stream(scale: float) -> Path:
    """Return an Arrow IPC stream of the table in such batches, made on the first call.

    Types are those Spark hands out: plain strings, everything nullable.
    """
    path = CACHE / "bench" / f"lineitem-sf{scale:g}.arrows"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        source = ds.dataset(lineitem(scale), format="parquet")
        schema = pa.schema([pa.field(f.name, _plain(f.type)) for f in source.schema])
        partial_path = path.with_suffix(".part")
        pending = pa.Table.from_batches([], schema)
        with pa.OSFile(str(partial_path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for batch in source.to_batches():
                pending = pa.concat_tables([pending, pa.Table.from_batches([batch]).cast(schema)])
                num_rows = pending.num_rows // BATCH_ROWS * BATCH_ROWS
                _write(writer, pending.slice(0, num_rows))
                pending = pending.slice(num_rows)
            _write(writer, pending)
        partial_path.rename(path)
    return path


def read_batches(path: Path, limit: int | None = None) -> list[pa.RecordBatch]:
    """Read the batches of an IPC stream, or the first ``limit``: each is one allocation."""
    with pa.OSFile(str(path)) as file:
        return list(islice(pa.ipc.open_stream(file), limit))


def as_over_ipc(message: bytes | pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch whose columns all lie in one new allocation, as one that Spark sent."""
    buffer = pa.allocate_buffer(len(message))
    memoryview(buffer).cast("B")[:] = memoryview(message).cast("B")
    return pa.ipc.read_record_batch(buffer, schema)


def _write(writer: pa.RecordBatchWriter, table: pa.Table) -> None:
    for batch in table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
        writer.write_batch(batch)


def _plain(type_: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_string_view(type_) else type_
