"""Who writes partitioned data on one core, and how; runs in a fresh process per round.

A contender takes the batches and gives back the function that is timed: whatever it needs to have
its input in its own shape happens before. The peers find the subpartition of each row in a column
``pid``, computed outside of the timed part; ours computes it inside. Nobody fsyncs but those whose
label says so.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from arrow_format import WriteOptions, open_shuffle, write_shuffle
from arrow_format.keys.spark_hash import hash_columns, subpartition_ids
from integration.bench.ipc import BATCH_ROWS, read_batches

Batches = list[pa.RecordBatch]
Prepare = Callable[[Batches, Path, int, str], Callable[[], object]]
"""From batches, a directory that is not there, n and key to the function that is timed."""

WARM_BATCHES = 64
"""The first batches are written once before, so that nobody pays for loading code."""


def _ours(
    batches: Batches, out: Path, n: int, key: str, *, codec: str, sync: bool
) -> Callable[[], object]:
    options = WriteOptions(codec=codec, sync=sync)
    return lambda: write_shuffle(batches, out, num_subpartitions=n, keys=key, options=options)


def _pyarrow(
    batches: Batches, out: Path, n: int, key: str, *, compression: str | None
) -> Callable[[], object]:
    import pyarrow.dataset as ds

    table = pa.Table.from_batches(_with_ids(batches, n, key))
    options = ds.IpcFileFormat().make_write_options(compression=compression)
    return lambda: ds.write_dataset(
        table,
        out,
        format="ipc",
        file_options=options,
        partitioning=["pid"],
        max_partitions=n,
        use_threads=False,
        # Otherwise it writes each batch's few rows of a directory at once: 5 to 14 times as slow.
        min_rows_per_group=BATCH_ROWS,
        max_rows_per_group=2 * BATCH_ROWS,
    )


def _polars(
    batches: Batches, out: Path, n: int, key: str, *, compression: Literal["uncompressed", "zstd"]
) -> Callable[[], object]:
    import polars as pl

    frame = pl.DataFrame(pa.Table.from_batches(_with_ids(batches, n, key)))
    by_id = pl.PartitionBy(out, key="pid", include_key=False)
    return lambda: frame.lazy().sink_ipc(by_id, compression=compression, mkdir=True)


def _duckdb(
    batches: Batches, out: Path, n: int, key: str, *, compression: str
) -> Callable[[], object]:
    import duckdb

    connection = duckdb.connect(config={"threads": 1, "temp_directory": f"{out}.tmp"})
    connection.register("rows", pa.Table.from_batches(_with_ids(batches, n, key)))
    copy = f"COPY rows TO '{out}' (FORMAT parquet, COMPRESSION {compression}, PARTITION_BY (pid))"
    return lambda: connection.execute(copy)


def _ipc(batches: Batches, out: Path, n: int, key: str) -> Callable[[], object]:
    del n, key
    schema = batches[0].schema

    def write() -> None:
        out.mkdir()
        with pa.OSFile(str(out / "all.arrow"), "wb") as file, pa.ipc.new_file(file, schema) as sink:
            for batch in batches:
                sink.write_batch(batch)

    return write


CONTENDERS: dict[str, Prepare] = {
    "ours none": partial(_ours, codec="none", sync=False),
    "ours zstd": partial(_ours, codec="zstd", sync=False),
    "ours none, sync": partial(_ours, codec="none", sync=True),
    "ours zstd, sync": partial(_ours, codec="zstd", sync=True),
    "pyarrow dataset IPC": partial(_pyarrow, compression=None),
    "pyarrow dataset IPC zstd": partial(_pyarrow, compression="zstd"),
    "Polars IPC": partial(_polars, compression="uncompressed"),
    "Polars IPC zstd": partial(_polars, compression="zstd"),
    "DuckDB Parquet": partial(_duckdb, compression="uncompressed"),
    "DuckDB Parquet snappy": partial(_duckdb, compression="snappy"),
    "DuckDB Parquet zstd": partial(_duckdb, compression="zstd"),
    "unpartitioned IPC": _ipc,
}
"""Every way of writing, by label."""


def write_once(
    contender: str,
    rows: str,
    key: str,
    scratch: str,
    num_subpartitions: int,
    *,
    keep: bool = False,
) -> dict[str, Any]:
    """Let one contender write all rows once.

    Parameters
    ----------
    contender
        A key of :data:`CONTENDERS`.
    rows
        The IPC stream to read the batches from, before the clock starts.
    key
        The column whose hash decides the subpartition.
    scratch
        Directory to write to; it must not exist.
    num_subpartitions
        How many there are.
    keep
        Leave what was written.

    Returns
    -------
    dict
        ``seconds``, ``cpu_seconds``; ``num_bytes``, ``num_files`` written; ``raw_bytes`` in memory,
        ``num_rows``; ``counters`` of ours, empty for others.
    """
    prepare, root = CONTENDERS[contender], Path(scratch)
    root.mkdir(parents=True)
    try:
        batches = read_batches(Path(rows))
        raw_bytes = sum(batch.nbytes for batch in batches)
        warm = batches[: max(1, min(WARM_BATCHES, len(batches) // 4))]
        prepare(warm, root / "warm", num_subpartitions, key)()
        shutil.rmtree(root / "warm")
        run = prepare(batches, root / "out", num_subpartitions, key)
        gc.collect()
        cpu_before, started = time.process_time(), time.perf_counter()
        receipt = run()
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_before
        files = [path for path in (root / "out").rglob("*") if path.is_file()]
        return {
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "num_bytes": sum(path.stat().st_size for path in files),
            "num_files": len(files),
            "raw_bytes": raw_bytes,
            "num_rows": sum(batch.num_rows for batch in batches),
            "counters": dict(getattr(receipt, "counters", {})),
        }
    finally:
        if not keep:
            shutil.rmtree(root)


def read_once(contender: str, scratch: str) -> dict[str, Any]:
    """Read all rows that :func:`write_once` kept, batch after batch, keeping none."""
    out = Path(scratch) / "out"

    def read() -> int:
        if contender == "unpartitioned IPC":
            with pa.OSFile(str(out / "all.arrow")) as file:
                reader = pa.ipc.open_file(file)
                return sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
        return sum(batch.num_rows for batch in open_shuffle(out).read())

    cpu_before, started = time.process_time(), time.perf_counter()
    num_rows = read()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_before
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "num_rows": num_rows}


def _with_ids(batches: Batches, n: int, key: str) -> Batches:
    def ids(batch: pa.RecordBatch) -> pa.Array:
        return pa.array(subpartition_ids(hash_columns([batch.column(key)]), n))

    return [batch.append_column("pid", ids(batch)) for batch in batches]
