"""The connector on two local cores, against a drain, against Spark's own writers and readers.

All run in one session, in turns, after one round that does not count: the JVM compiles while it
runs, so a session of its own for each would compare compilers, and Python workers live on anyway.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from arrow_format import ColumnPartitioner, WriteOptions
from integration.bench import spark_lines as labels
from integration.bench.lineitem import KEY, TEXT_KEY, ipc_stream
from integration.bench.results import Line, Part, Timing, turns
from integration.programs.datasets import LINEITEM_PARTS, lineitem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Action: TypeAlias = "Callable[[Path], object]"
"""What is timed; it may write into the directory it is given, which is not there yet."""

BUCKETS_TABLE = "bench_bucketed"
MOST_BUCKETS = 1_000
"""Beyond, tasks x buckets files make ``bucketBy`` take minutes."""


@dataclass(slots=True)
class _Rounds:
    """Times actions in turns and keeps what came out."""

    scratch: Path
    repeat: int
    step: Callable[[str], None]
    timings: dict[str, tuple[Timing, ...]] = field(default_factory=dict)

    def measure(
        self, case: str, actions: Mapping[str, Action], clean: Callable[[], object] | None = None
    ) -> dict[str, Timing]:
        """Time every action in every round; a first round does not count.

        Directories are removed, and ``clean`` called, outside of the timed part.
        """
        seconds: dict[str, list[float]] = {label: [] for label in actions}
        written: dict[str, tuple[int, int]] = {}
        for number, order in enumerate(turns(list(actions), self.repeat + 1)):
            for label in order:
                self.step(f"Spark, {case}, {f'round {number}' if number else 'warm-up'}: {label}")
                out = self.scratch / f"{number}-{label.translate(_PATH_SAFE)}"
                started = time.perf_counter()
                actions[label](out)
                if number:
                    seconds[label].append(time.perf_counter() - started)
                written[label] = files_below(out)
                shutil.rmtree(out, ignore_errors=True)
                if clean is not None:
                    clean()
        found = {
            label: Timing(
                label, tuple(seconds[label]), *(written[label] if any(written[label]) else ())
            )
            for label in actions
        }
        self.timings[case] = tuple(found.values())
        return found


_PATH_SAFE = str.maketrans({character: "_" for character in ' (),."'})


def files_below(directory: Path) -> tuple[int, int]:
    """Bytes and number of the files below a directory; Hadoop's checksum files do not count."""
    sizes = [
        path.stat().st_size
        for path in directory.rglob("*")
        if path.is_file() and not path.name.endswith(".crc")
    ]
    return sum(sizes), len(sizes)


def drain(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take every batch and answer with one row: what any writer in mapInArrow costs at least."""
    import pyarrow as pa

    num_rows = sum(batch.num_rows for batch in batches)
    yield pa.record_batch({"num_rows": pa.array([num_rows], pa.int64())})


@contextmanager
def session(scratch: Path, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Start a session on two local cores whose files all lie under ``scratch``."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("arrow-shuffle bench")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "4g")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.files.minPartitionNum", str(LINEITEM_PARTS))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def run(
    scale: float,
    *,
    numbers: tuple[int, ...],
    codecs: tuple[str, ...],
    repeat: int,
    scratch: Path,
    slow: bool,
    step: Callable[[str], None],
) -> Part:
    """Measure the connector; ``step`` is told what comes next."""
    step("making the input")
    source, stream = lineitem(scale), ipc_stream(scale)
    rounds = _Rounds(scratch, repeat, step)
    lines: list[Line] = []
    notes = [
        f"local[2], {LINEITEM_PARTS} input files, one session, in turns, one warm-up round; ours "
        "fsync unless the label says otherwise, Spark's writers do not",
    ]
    logging.getLogger("py4j").setLevel(logging.ERROR)
    step("starting Spark")
    with session(scratch) as spark:
        rows = spark.read.parquet(str(source))
        num_rows = rows.count()
        notes.append(f"{rows.rdd.getNumPartitions()} map tasks")
        for n in numbers:
            lines += _writes(spark, rows, n, num_rows, codecs, rounds, slow=slow)
            if n > MOST_BUCKETS and not slow:
                notes.append(f"n = {n:,}: bucketBy takes minutes; --slow includes it")
            lines += _reads(spark, rows, n, num_rows, codecs, rounds, stream)
            lines += _round_trips(spark, rows, n, num_rows, codecs, rounds)
        for key in (KEY, TEXT_KEY):
            lines += _ids(rows, numbers[0], key, rounds)
    title = f"Connector, Spark local[2], lineitem SF {scale:g} by l_orderkey"
    return Part("spark", title, tuple(lines), rounds.timings, tuple(notes))


def _writes(
    spark: SparkSession,
    rows: DataFrame,
    n: int,
    num_rows: int,
    codecs: Iterable[str],
    rounds: _Rounds,
    *,
    slow: bool,
) -> list[Line]:
    actions: dict[str, Action] = {
        labels.DRAIN: lambda _: rows.mapInArrow(drain, "num_rows long").collect()
    }
    for codec in codecs:
        for sync in (True, False):
            options = WriteOptions(codec=codec, sync=sync)
            actions[labels.write_label(codec, sync=sync)] = _shuffle(rows, n, num_rows, options)
    actions[labels.REPARTITION] = lambda out: rows.repartition(n, KEY).write.parquet(str(out))
    if n <= MOST_BUCKETS or slow:
        actions[labels.BUCKET_BY] = lambda out: (
            rows.write.bucketBy(n, KEY).option("path", str(out)).saveAsTable(BUCKETS_TABLE)
        )
    case = f"write, n = {n:,}"
    found = rounds.measure(
        case, actions, clean=lambda: spark.sql(f"DROP TABLE IF EXISTS {BUCKETS_TABLE}")
    )
    return labels.write_lines(case, n, codecs, found)


def _shuffle(rows: DataFrame, n: int, num_rows: int, options: WriteOptions) -> Action:
    import connector

    def write(out: Path) -> None:
        receipt = connector.write_shuffle(rows, out, num_subpartitions=n, keys=KEY, options=options)
        _check_rows(receipt.num_rows, num_rows)

    return write


def _reads(
    spark: SparkSession,
    rows: DataFrame,
    n: int,
    num_rows: int,
    codecs: Iterable[str],
    rounds: _Rounds,
    stream: Path,
) -> list[Line]:
    import connector

    kept = rounds.scratch / f"kept-{n}"
    case = f"read, n = {n:,}"
    rounds.step(f"Spark, {case}: writing what will be read")
    rows.repartition(n, KEY).write.parquet(str(kept / "parquet"))
    actions: dict[str, Action] = {
        labels.READ_PARQUET: lambda _: _to_noop(spark.read.parquet(str(kept / "parquet"))),
        labels.READ_FLOOR: lambda _: _to_noop(_floor(spark, rows, num_rows, stream)),
    }
    for codec in codecs:
        path = kept / codec
        options = WriteOptions(codec=codec)
        connector.write_shuffle(rows, path, num_subpartitions=n, keys=KEY, options=options)
        _check_rows(connector.read_shuffle(spark, path).count(), num_rows)
        actions[labels.read_label(codec)] = lambda _, path=path: _to_noop(
            connector.read_shuffle(spark, path)
        )
    found = rounds.measure(case, actions)
    shutil.rmtree(kept)
    return labels.read_lines(case, codecs, found)


def _round_trips(
    spark: SparkSession,
    rows: DataFrame,
    n: int,
    num_rows: int,
    codecs: Iterable[str],
    rounds: _Rounds,
) -> list[Line]:
    """Write and read once, as a shuffle inside a query does."""
    import connector

    def ours(codec: str) -> Action:
        write = _shuffle(rows, n, num_rows, WriteOptions(codec=codec, sync=False))

        def run(out: Path) -> None:
            write(out)
            _to_noop(connector.read_shuffle(spark, out))

        return run

    actions: dict[str, Action] = {
        labels.OWN_SHUFFLE: lambda _: _to_noop(rows.repartition(n, KEY)),
        **{labels.round_trip_label(codec): ours(codec) for codec in codecs},
    }
    case = f"round trip, n = {n:,}"
    return labels.round_trip_lines(case, codecs, rounds.measure(case, actions))


def _floor(spark: SparkSession, rows: DataFrame, num_rows: int, stream: Path) -> DataFrame:
    """As many rows as ``rows`` has, of the same columns, from a source that does nothing else."""
    from integration.bench.floor_source import FloorSource

    spark.dataSource.register(FloorSource)
    return (
        spark.read.format(FloorSource.name())
        .schema(rows.schema)
        .options(numRows=num_rows, partitions=LINEITEM_PARTS)
        .load(str(stream))
    )


def _ids(rows: DataFrame, n: int, key: str, rounds: _Rounds) -> list[Line]:
    """Compare our hash with one that Spark computes and sends along as a column."""
    from pyspark.sql.functions import expr

    import connector

    def ours(out: Path) -> None:
        connector.write_shuffle(rows, out, num_subpartitions=n, keys=key)

    def sparks(out: Path) -> None:
        with_ids = rows.withColumn("pid", expr(f"pmod(hash({key}), {n})"))
        by_column = ColumnPartitioner("pid")
        connector.write_shuffle(with_ids, out, num_subpartitions=n, partitioner=by_column)

    case = f"ids by {key}, n = {n:,}"
    found = rounds.measure(case, {labels.OUR_IDS: ours, labels.SPARK_IDS: sparks})
    return labels.id_lines(case, found)


def _to_noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _check_rows(found: int, expected: int) -> None:
    if found != expected:
        msg = f"{found:,} rows came out of {expected:,}"
        raise RuntimeError(msg)
