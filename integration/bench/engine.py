"""The engine on one core, against other writers of partitioned data.

Each round is a fresh process. A contender takes the batches and returns the function that is timed:
whatever it needs to have its input in its own shape happens before. The peers find the subpartition
of each row in a column ``pid``, computed outside of the timed part; ours computes it inside. Only
contenders whose label says so fsync.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from arrow_format import WriteOptions, write_shuffle
from arrow_format.keys.spark_hash import hash_columns, subpartition_ids
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.inputs import BATCH_ROWS, KEY, ipc_stream, read_batches
from integration.bench.results import (
    Line,
    Part,
    Timing,
    amount_line,
    compare,
    fastest,
    megabytes,
)

if TYPE_CHECKING:
    from integration.bench.rounds import Settings

UNPARTITIONED = "unpartitioned IPC"
OURS = {"none": "ours none", "zstd": "ours zstd"}
PYARROW = {"none": "pyarrow dataset IPC", "zstd": "pyarrow dataset IPC zstd"}
PEERS = {
    "none": (PYARROW["none"], "Polars IPC", "DuckDB Parquet", "DuckDB Parquet snappy"),
    "zstd": (PYARROW["zstd"], "Polars IPC zstd", "DuckDB Parquet snappy", "DuckDB Parquet zstd"),
}
"""Partitioned writers that each of our codecs is compared with."""

MAX_PYARROW_DIRECTORIES = 1_000
"""With more, ``write_dataset`` is several times as slow as the others."""

MAX_DUCKDB_SUBPARTITIONS = 2_000
"""With more, DuckDB takes a minute or more, and only its default compression is measured."""

DUCKDB_FORMATS = ("DuckDB Parquet", "DuckDB Parquet zstd")

LONG_ROUND_SECONDS = 20
LONG_ROUNDS = 2
"""Rounds of a peer whose rounds all take longer; a single round may have met a bad moment."""

WARM_BATCHES = 64
"""The first batches are written once before, so that no contender's time has loading of code."""

Batches = list[pa.RecordBatch]
Prepare = Callable[[Batches, Path, int], Callable[[], object]]
"""From batches, a directory that does not exist, and n, to the function that is timed."""


def _ours(
    batches: Batches, out: Path, n: int, *, codec: str, sync: bool = False
) -> Callable[[], object]:
    options = WriteOptions(codec=codec, sync=sync)
    return lambda: write_shuffle(batches, out, num_subpartitions=n, keys=KEY, options=options)


def _pyarrow(
    batches: Batches, out: Path, n: int, *, compression: str | None
) -> Callable[[], object]:
    import pyarrow.dataset as ds

    table = _with_ids(batches, n)
    options = ds.IpcFileFormat().make_write_options(compression=compression)
    return lambda: ds.write_dataset(
        table,
        out,
        format="ipc",
        file_options=options,
        partitioning=["pid"],
        max_partitions=n,
        use_threads=False,
        # Otherwise it writes each batch's few rows of a directory: 5 to 14 times as slow.
        min_rows_per_group=BATCH_ROWS,
        max_rows_per_group=2 * BATCH_ROWS,
    )


def _polars(
    batches: Batches, out: Path, n: int, *, compression: Literal["uncompressed", "zstd"]
) -> Callable[[], object]:
    import polars as pl

    frame = pl.DataFrame(_with_ids(batches, n))
    by_id = pl.PartitionBy(out, key="pid", include_key=False)
    return lambda: frame.lazy().sink_ipc(by_id, compression=compression, mkdir=True)


def _duckdb(batches: Batches, out: Path, n: int, *, compression: str) -> Callable[[], object]:
    import duckdb

    connection = duckdb.connect(config={"threads": 1, "temp_directory": f"{out}.tmp"})
    connection.register("rows", _with_ids(batches, n))
    copy = f"COPY rows TO '{out}' (FORMAT parquet, COMPRESSION {compression}, PARTITION_BY (pid))"
    return lambda: connection.execute(copy)


def _ipc(batches: Batches, out: Path, n: int) -> Callable[[], object]:
    del n

    def write() -> None:
        out.mkdir()
        write_ipc_file(batches, out / "all.arrow")

    return write


def write_ipc_file(batches: Batches, path: Path, compression: str | None = None) -> None:
    """Write an IPC file in input order; ``compression`` is of each buffer."""
    schema, options = batches[0].schema, pa.ipc.IpcWriteOptions(compression=compression)
    with (
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_file(file, schema, options=options) as sink,
    ):
        for batch in batches:
            sink.write_batch(batch)


def _with_ids(batches: Batches, n: int) -> pa.Table:
    def ids(batch: pa.RecordBatch) -> pa.Array:
        return pa.array(subpartition_ids(hash_columns([batch.column(KEY)]), n))

    return pa.Table.from_batches([batch.append_column("pid", ids(batch)) for batch in batches])


CONTENDERS: dict[str, Prepare] = {
    "ours none": partial(_ours, codec="none"),
    "ours zstd": partial(_ours, codec="zstd"),
    "ours none, sync": partial(_ours, codec="none", sync=True),
    "ours zstd, sync": partial(_ours, codec="zstd", sync=True),
    "pyarrow dataset IPC": partial(_pyarrow, compression=None),
    "pyarrow dataset IPC zstd": partial(_pyarrow, compression="zstd"),
    "Polars IPC": partial(_polars, compression="uncompressed"),
    "Polars IPC zstd": partial(_polars, compression="zstd"),
    "DuckDB Parquet": partial(_duckdb, compression="uncompressed"),
    "DuckDB Parquet snappy": partial(_duckdb, compression="snappy"),
    "DuckDB Parquet zstd": partial(_duckdb, compression="zstd"),
    UNPARTITIONED: _ipc,
}
"""Every way of writing, by label."""


def write_once(contender: str, rows: str, scratch: str, num_subpartitions: int) -> dict[str, Any]:
    """Let one of :data:`CONTENDERS` write the batches of the IPC stream ``rows``, and time it.

    ``scratch`` is a directory that does not exist. The counters of the answer are those of our
    receipt, and ``arrow_bytes``: those of the batches.
    """
    prepare, root = CONTENDERS[contender], Path(scratch)
    root.mkdir(parents=True)
    try:
        batches = read_batches(Path(rows))
        warm = batches[: max(1, min(WARM_BATCHES, len(batches) // 4))]
        prepare(warm, root / "warm", num_subpartitions)()
        shutil.rmtree(root / "warm")
        run = prepare(batches, root / "out", num_subpartitions)
        with timed() as answer:
            receipt = run()
        files = [path for path in (root / "out").rglob("*") if path.is_file()]
        arrow_bytes = sum(batch.nbytes for batch in batches)
        return {
            **answer,
            "num_bytes": sum(path.stat().st_size for path in files),
            "num_files": len(files),
            "num_rows": sum(batch.num_rows for batch in batches),
            "counters": {"arrow_bytes": arrow_bytes, **getattr(receipt, "counters", {})},
        }
    finally:
        shutil.rmtree(root)


def synced(codec: str) -> str:
    """Label of our write with fsync."""
    return f"{OURS[codec]}, sync"


def contenders(n: int, codecs: Iterable[str], *, slow: bool) -> list[str]:
    """Labels of all that write ``n`` subpartitions, in the order in which they first run."""
    labels = [label for codec in codecs for label in (OURS[codec], synced(codec), *PEERS[codec])]
    too_slow: set[str] = set()
    if not slow:
        too_slow |= set(PYARROW.values()) if n > MAX_PYARROW_DIRECTORIES else set()
        too_slow |= set(DUCKDB_FORMATS) if n > MAX_DUCKDB_SUBPARTITIONS else set()
    labels = [label for label in labels if label not in too_slow]
    return list(dict.fromkeys([*labels, UNPARTITIONED]))


def goes_on(label: str, seconds: Sequence[float]) -> bool:
    """Whether a contender takes part in the next round, after rounds of so many ``seconds``."""
    is_peer = any(label in peers for peers in PEERS.values())
    return not is_peer or len(seconds) < LONG_ROUNDS or min(seconds) <= LONG_ROUND_SECONDS


def write_lines(
    case: str, n: int, codecs: Iterable[str], timings: Mapping[str, Timing]
) -> list[Line]:
    """Lines on the time of writing, by the best rounds; the fastest peer carries the target."""
    goals = {"none": targets.ENGINE_NONE_AGAINST_PEERS, "zstd": targets.ENGINE_ZSTD_AGAINST_PEERS}
    plain = timings[UNPARTITIONED]
    lines = []
    for codec in codecs:
        ours = timings[OURS[codec]]
        peers = [timings[label] for label in PEERS[codec] if label in timings]
        first = fastest(peers)
        for peer in peers:
            unit, target = (
                ("fastest peer", goals[codec].get(n)) if peer is first else ("peer", None)
            )
            lines.append(compare(case, "speed", unit, ours, peer, target, best=True))
        target = targets.ENGINE_NONE_AGAINST_IPC.get(n) if codec == "none" else None
        lines += [
            compare(case, "speed", "plain IPC", ours, plain, target, best=True),
            compare(case, "time", "without fsync", timings[synced(codec)], ours, best=True),
        ]
    return lines


def size_lines(case: str, codecs: Iterable[str], timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on bytes on disk, as a multiple of those in memory."""
    same_bytes = {synced(codec) for codec in codecs}
    return [
        amount_line(
            case,
            f"bytes, in memory = 1 (files: {timing.num_files:,})",
            megabytes(timing),
            ("Arrow", timing.counters["arrow_bytes"] / 1e6),
            "MB",
        )
        for label, timing in timings.items()
        if label not in same_bytes
    ]


def run(settings: Settings) -> Part:
    """Measure writing."""
    settings.report("making the input")
    rows = str(ipc_stream(settings.scale))
    part = Part("engine", f"Engine, one core, lineitem by {KEY}, scale {settings.scale:g}")
    part.notes += [
        "one core, a fresh process per round; ratios of the best rounds; peers are given the "
        "subpartition of each row, ours computes it",
        f"without --slow, write_dataset writes at most {MAX_PYARROW_DIRECTORIES:,} directories and "
        f"DuckDB at most {MAX_DUCKDB_SUBPARTITIONS:,} in other formats than Parquet snappy; a peer "
        f"whose rounds take more than {LONG_ROUND_SECONDS} s runs {LONG_ROUNDS} times",
    ]
    for n in settings.numbers:
        case, labels = f"write, n = {n:,}", contenders(n, settings.codecs, slow=settings.slow)
        measures = {
            label: partial(
                run_in_child,
                write_once,
                contender=label,
                rows=rows,
                scratch=str(settings.scratch / "engine"),
                num_subpartitions=n,
            )
            for label in labels
        }
        timings = settings.measure(part, case, measures, goes_on=goes_on)
        part.lines += write_lines(case, n, settings.codecs, timings)
        part.lines += size_lines(f"size, n = {n:,}", settings.codecs, timings)
    return part
