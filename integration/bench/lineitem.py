"""The input of the engine: TPC-H ``lineitem`` in batches as Spark hands them to Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds

from integration.bench.ipc import BATCH_ROWS
from integration.programs.datasets import CACHE, lineitem

if TYPE_CHECKING:
    from pathlib import Path

KEY = "l_orderkey"
TEXT_KEY = "l_comment"


def ipc_stream(scale: float) -> Path:
    """Return an Arrow IPC stream of the table in batches of 10,000 rows, made on the first call.

    Types are those Spark hands out: plain strings, everything nullable.
    """
    path = CACHE / "bench" / f"lineitem-sf{scale:g}.arrows"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        source = ds.dataset(lineitem(scale), format="parquet")
        schema = pa.schema([pa.field(f.name, _plain(f.type)) for f in source.schema])
        made = path.with_suffix(".part")
        held = pa.Table.from_batches([], schema)
        with pa.OSFile(str(made), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for batch in source.to_batches():
                held = pa.concat_tables([held, pa.Table.from_batches([batch]).cast(schema)])
                whole = held.num_rows // BATCH_ROWS * BATCH_ROWS
                _write(writer, held.slice(0, whole))
                held = held.slice(whole)
            _write(writer, held)
        made.rename(path)
    return path


def _write(writer: pa.RecordBatchWriter, table: pa.Table) -> None:
    for batch in table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
        writer.write_batch(batch)


def _plain(type_: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_string_view(type_) else type_
