"""Very many rows through the lane: the memory of the tasks stays what it is for few."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import arrow_shuffle
from arrow_shuffle import open_shuffle
from tests.support.memory import resident_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_ROWS = 10_000_000
BATCH_ROWS = 1_000_000


@dataclass(frozen=True)
class Lane:
    """Seconds and bytes."""

    rows: int
    parquet_bytes: int
    seconds: float
    num_bytes: int
    """Of the shuffle."""
    peaks: list[int]
    """The largest resident set of any Python worker, in each tenth of the time."""


def write_rows(directory: Path, rows: int) -> int:
    """Write ``rows`` rows of 28 bytes as Parquet, streamed; return how many bytes that took."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.float64()), ("day", pa.int32()),
                        ("n", pa.int64())])  # fmt: skip
    random = np.random.default_rng(0)
    directory.mkdir(parents=True)
    for first in range(0, rows, FILE_ROWS):
        with pq.ParquetWriter(directory / f"{first:012}.parquet", schema) as writer:
            for start in range(first, min(first + FILE_ROWS, rows), BATCH_ROWS):
                count = min(BATCH_ROWS, rows - start)
                writer.write_batch(
                    pa.record_batch(
                        [
                            random.integers(0, 1 << 40, count),
                            random.random(count).round(3),
                            random.integers(0, 3_650, count, np.int32),
                            np.arange(start, start + count),
                        ],
                        schema=schema,
                    )
                )
    return sum(one.stat().st_size for one in directory.iterdir())


class WorkerMemory(threading.Thread):
    """Looks at the Python workers of this process's JVM now and then."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, int]] = []
        self._done = threading.Event()

    def run(self) -> None:
        """Look twice a second until stopped."""
        while not self._done.wait(0.5):
            sizes = [0]
            for one in Path("/proc").glob("[0-9]*"):
                try:
                    if b"pyspark.daemon" in (one / "cmdline").read_bytes():
                        sizes.append(resident_bytes(one.name, peak=False))
                except (OSError, ValueError):
                    continue  # it ended meanwhile
            self.seen.append((time.perf_counter(), max(sizes)))

    def stop(self) -> None:
        """End it."""
        self._done.set()
        self.join()


def run_lane(spark: SparkSession, directory: Path, *, rows: int) -> Lane:
    """Write the rows, then a shuffle of them by 200 subpartitions."""
    parquet_bytes = write_rows(directory / "parquet", rows)
    memory = WorkerMemory()
    memory.start()
    started = time.perf_counter()
    receipt = arrow_shuffle.write_shuffle(
        ds.dataset(directory / "parquet"), directory / "shuffle", num_subpartitions=200, keys="k",
        spark=spark,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    memory.stop()
    assert receipt.num_rows == open_shuffle(directory / "shuffle").num_rows == rows
    tenths = [0] * 10
    for when, size in memory.seen:
        tenth = min(int((when - started) / seconds * 10), 9)
        tenths[tenth] = max(tenths[tenth], size)
    return Lane(rows, parquet_bytes, seconds, receipt.num_bytes, tenths)
