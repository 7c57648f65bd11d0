"""The connector on two local cores, against a drain, against Spark's own writers and readers.

All run in one session, in alternating order, after one round that does not count: the JVM compiles
while it runs, so that a session for each would compare compilers.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import arrow_shuffle
from arrow_format import WriteOptions
from arrow_shuffle import open_shuffle
from integration.bench import targets
from integration.bench.inputs import KEY
from integration.bench.results import (
    Line,
    Part,
    Timing,
    amount_line,
    compare,
    megabytes,
)
from integration.bench.rounds import check_rows
from integration.programs.datasets import LINEITEM_PARTS, lineitem
from integration.programs.processes import processor_seconds

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from integration.bench.rounds import Settings

Action = Callable[[Path], object]
"""What is timed; it may write into the directory it is given, which does not exist."""

BUCKETS_TABLE = "bench_bucketed"
MAX_BUCKETS = 1_000
"""With more, tasks x buckets files make ``bucketBy`` take minutes."""

DRAIN = "mapInArrow drain"
REPARTITION = "repartition, Parquet"
BUCKET_BY = "bucketBy table"
FEW = "l_shipdate BETWEEN '1994-03-01' AND '1994-03-25'"
"""Keeps 1 % of the rows, spread over all subpartitions and chunks."""
OWN_SHUFFLE = "repartition -> noop"
READ_PARQUET = "read.parquet"

NOTE = (
    f"local[2], {LINEITEM_PARTS} input files, one session, one warm-up round; ours fsync unless "
    "the label says otherwise, Spark's writers do not"
)


def write_label(codec: str, *, sync: bool = True) -> str:
    """Label of our write; ``sync`` is the default of the options."""
    return f"ours {codec}" + ("" if sync else ", no fsync")


def read_label(codec: str) -> str:
    """Label of our read."""
    return f"to_spark {codec}"


def filter_label(codec: str) -> str:
    """Label of our read of few rows."""
    return f"select(filter=).to_spark {codec}"


def where_label(codec: str) -> str:
    """Label of our read of all rows, of which Spark keeps few."""
    return f"to_spark.where {codec}"


def round_trip_label(codec: str) -> str:
    """Label of our write and read."""
    return f"write, read -> noop {codec}"


# Measuring ---------------------------------------------------------------------------------------


@contextmanager
def session(
    settings: Settings, configuration: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Start a session on two local cores whose files all lie in the scratch directory."""
    from pyspark.sql import SparkSession

    settings.report("starting Spark")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("arrow-shuffle bench")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "4g")
        .config("spark.local.dir", str(settings.scratch / "local"))
        .config("spark.sql.files.minPartitionNum", str(LINEITEM_PARTS))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(settings.scratch / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    for name, value in (configuration or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def measure_actions(
    settings: Settings,
    part: Part,
    case: str,
    actions: Mapping[str, Action],
    clean: Callable[[], object] = lambda: None,
) -> dict[str, Timing]:
    """Time every action in every round, after one round that does not count.

    Processor time is that of the JVM and of Python's workers too.

    What an action wrote is removed, and ``clean`` called, outside of the timed part.
    """
    out = settings.scratch / "out"

    def run_once(action: Action) -> dict[str, Any]:
        cpu_before, started = processor_seconds(os.getpid()), time.perf_counter()
        action(out)
        seconds = time.perf_counter() - started
        cpu_seconds = processor_seconds(os.getpid()) - cpu_before
        sizes = file_sizes(out)
        shutil.rmtree(out, ignore_errors=True)
        clean()
        return {
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "num_bytes": sum(sizes),
            "num_files": len(sizes),
        }

    measures = {label: partial(run_once, action) for label, action in actions.items()}
    return settings.measure(part, case, measures, warm_up=True)


def file_sizes(directory: Path) -> list[int]:
    """Bytes of each file below a directory; Hadoop's checksum files do not count."""
    return [
        path.stat().st_size
        for path in directory.rglob("*")
        if path.is_file() and not path.name.endswith(".crc")
    ]


def to_noop(rows: DataFrame) -> None:
    """Compute all rows and drop them."""
    rows.write.format("noop").mode("overwrite").save()


def drain(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take every batch and answer with one row: what any writer in mapInArrow costs at least."""
    import pyarrow as pa

    num_rows = sum(batch.num_rows for batch in batches)
    yield pa.record_batch({"num_rows": pa.array([num_rows], pa.int64())})


# Lines -------------------------------------------------------------------------------------------


def size_lines(case: str, ours: Iterable[Timing], parquet: Timing) -> list[Line]:
    """Lines on bytes on disk, against Spark's Parquet files."""
    return [
        amount_line(
            case,
            f"bytes, Parquet = 1 (files: {timing.num_files:,}, {parquet.num_files:,})",
            megabytes(timing),
            megabytes(parquet),
            "MB",
        )
        for timing in ours
    ]


def write_lines(
    case: str, n: int, codecs: Sequence[str], timings: Mapping[str, Timing]
) -> list[Line]:
    """Lines on writing, from the timings of one case."""
    lines, parquet = [], timings[REPARTITION]
    for codec in codecs:
        ours, unsynced = timings[write_label(codec)], timings[write_label(codec, sync=False)]
        target, goal = targets.WRITE_AGAINST_DRAIN[codec], targets.WRITE_AGAINST_PARQUET.get(n)
        lines += [
            compare(case, "time", "drain", ours, timings[DRAIN], target),
            compare(case, "time", "drain", unsynced, timings[DRAIN]),
            compare(case, "time", "without fsync", ours, unsynced),
            compare(case, "speed", "Spark's writer", ours, parquet, goal),
        ]
        if BUCKET_BY in timings:
            lines.append(compare(case, "speed", "Spark's writer", ours, timings[BUCKET_BY]))
    return lines + size_lines(case, [timings[write_label(codec)] for codec in codecs], parquet)


def read_lines(case: str, codecs: Iterable[str], timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on coalesced reading, from the timings of one case."""
    parquet, target = timings[READ_PARQUET], targets.READ_AGAINST_PARQUET
    ours = [timings[read_label(codec)] for codec in codecs]
    return [compare(case, "time", "Parquet", timing, parquet, target) for timing in ours]


def filter_lines(case: str, codecs: Iterable[str], timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on reading few rows, from the timings of one case."""
    pairs = [(timings[filter_label(codec)], timings[where_label(codec)]) for codec in codecs]
    target = targets.FILTER_AGAINST_WHERE
    return [compare(case, "speed", "where", ours, all_rows, target) for ours, all_rows in pairs]


def round_trip_lines(case: str, codecs: Iterable[str], timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on writing and reading once, from the timings of one case."""
    sparks, target = timings[OWN_SHUFFLE], targets.ROUND_TRIP_AGAINST_SHUFFLE
    ours = [timings[round_trip_label(codec)] for codec in codecs]
    return [compare(case, "time", "Spark", timing, sparks, target) for timing in ours]


# Cases -------------------------------------------------------------------------------------------


def run(settings: Settings) -> Part:
    """Measure the connector."""
    settings.report("making the input")
    source = lineitem(settings.scale)
    title = f"Connector, Spark local[2], lineitem SF {settings.scale:g} by {KEY}"
    part = Part("spark", title, notes=[NOTE])
    with session(settings) as spark:
        rows = spark.read.parquet(str(source))
        cases = _Cases(settings, part, spark, rows, rows.count())
        part.notes.append(f"{rows.rdd.getNumPartitions()} map tasks")
        for n in settings.numbers:
            cases.writes(n)
            cases.reads(n)
            cases.round_trips(n)
    return part


@dataclass(frozen=True, slots=True)
class _Cases:
    settings: Settings
    part: Part
    spark: SparkSession
    rows: DataFrame
    num_rows: int

    def measure(
        self, case: str, actions: Mapping[str, Action], clean: Callable[[], object] = lambda: None
    ) -> dict[str, Timing]:
        return measure_actions(self.settings, self.part, case, actions, clean)

    def writer(self, n: int, codec: str, *, sync: bool = True) -> Action:

        def write(out: Path) -> None:
            options = WriteOptions(codec=codec, sync=sync)
            receipt = arrow_shuffle.write_shuffle(
                self.rows, out, num_subpartitions=n, keys=KEY, options=options
            )
            check_rows(receipt.num_rows, self.num_rows)

        return write

    def writes(self, n: int) -> None:
        actions: dict[str, Action] = {
            DRAIN: lambda _: self.rows.mapInArrow(drain, "num_rows long").collect(),
            REPARTITION: lambda out: self.rows.repartition(n, KEY).write.parquet(str(out)),
        }
        for codec in self.settings.codecs:
            for sync in (True, False):
                actions[write_label(codec, sync=sync)] = self.writer(n, codec, sync=sync)
        if n <= MAX_BUCKETS or self.settings.slow:
            actions[BUCKET_BY] = lambda out: (
                self.rows.write.bucketBy(n, KEY).option("path", str(out)).saveAsTable(BUCKETS_TABLE)
            )
        else:
            self.part.notes.append(f"n = {n:,}: bucketBy takes minutes; --slow includes it")
        case = f"write, n = {n:,}"
        timings = self.measure(
            case, actions, lambda: self.spark.sql(f"DROP TABLE IF EXISTS {BUCKETS_TABLE}")
        )
        self.part.lines += write_lines(case, n, self.settings.codecs, timings)

    def reads(self, n: int) -> None:

        kept = self.settings.scratch / f"kept-{n}"
        case = f"read, n = {n:,}"
        self.settings.report(f"spark, {case}: writing what will be read")
        parquet = str(kept / "parquet")
        self.rows.repartition(n, KEY).write.parquet(parquet)
        actions: dict[str, Action] = {
            READ_PARQUET: lambda _: to_noop(self.spark.read.parquet(parquet)),
        }
        for codec in self.settings.codecs:
            path = kept / codec
            self.writer(n, codec)(path)
            check_rows(open_shuffle(path).to_spark(self.spark).count(), self.num_rows)
            actions[read_label(codec)] = lambda _, path=path: to_noop(
                open_shuffle(path).to_spark(self.spark)
            )
            actions[filter_label(codec)] = lambda _, path=path: to_noop(
                open_shuffle(path).select(filter=FEW).to_spark(self.spark)
            )
            actions[where_label(codec)] = lambda _, path=path: to_noop(
                open_shuffle(path).to_spark(self.spark).where(FEW)
            )
        timings = self.measure(case, actions)
        self.part.lines += read_lines(case, self.settings.codecs, timings)
        self.part.lines += filter_lines(case, self.settings.codecs, timings)
        shutil.rmtree(kept)

    def round_trips(self, n: int) -> None:
        """Write and read once, as a shuffle inside a query does."""

        def ours(codec: str) -> Action:
            write = self.writer(n, codec, sync=False)

            def write_and_read(out: Path) -> None:
                write(out)
                to_noop(open_shuffle(out).to_spark(self.spark))

            return write_and_read

        codecs = self.settings.codecs
        actions: dict[str, Action] = {
            OWN_SHUFFLE: lambda _: to_noop(self.rows.repartition(n, KEY)),
            **{round_trip_label(codec): ours(codec) for codec in codecs},
        }
        case = f"round trip, n = {n:,}"
        self.part.lines += round_trip_lines(case, codecs, self.measure(case, actions))
