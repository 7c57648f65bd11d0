"""The input: TPC-H ``lineitem``, as Parquet files for Spark and as batches for the engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "bench"
NUM_PARTS = 8
BATCH_ROWS = 10_000
"""Rows of a batch as Spark hands them to Python."""

KEY = "l_orderkey"
TEXT_KEY = "l_comment"


def parquet_parts(scale: float) -> Path:
    """Return the directory with the table in eight Parquet files, made on the first call."""
    directory = CACHE / f"tpch-sf{scale:g}"
    finished = directory / "lineitem"
    if not finished.is_dir():
        made = directory.with_name(directory.name + ".part")
        program = Path(sys.executable).with_name("tpchgen-cli")
        subprocess.run(
            [
                *(str(program), "parquet", "-s", f"{scale:g}", "--tables", "lineitem", "-q"),
                *("--parts", str(NUM_PARTS), "--output-dir", str(made)),
            ],
            check=True,
        )
        directory.mkdir(parents=True, exist_ok=True)
        (made / "lineitem").rename(finished)
        made.rmdir()
    return finished


def ipc_stream(scale: float) -> Path:
    """Return an Arrow IPC stream of the table in batches of 10,000 rows, made on the first call.

    Types are those Spark hands out: plain strings, everything nullable.
    """
    path = CACHE / f"lineitem-sf{scale:g}.arrows"
    if not path.exists():
        source = ds.dataset(parquet_parts(scale), format="parquet")
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


def read_batches(path: Path) -> list[pa.RecordBatch]:
    """Read all batches of an IPC stream: each is one allocation, as when Spark sends them."""
    with pa.OSFile(str(path)) as file:
        return list(pa.ipc.open_stream(file))


def _write(writer: pa.RecordBatchWriter, table: pa.Table) -> None:
    for batch in table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
        writer.write_batch(batch)


def _plain(type_: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_string_view(type_) else type_
