"""Three streaming queries, two behind the first, in a process that may be killed at any moment.

A rate source is aggregated into windows and written by the sink; the source follows that shuffle
into another one, and as a consumer into a third, which has a flush interval. What must be in all of
them can be computed (:func:`expected`), since the rate source gives the same rows for a batch
whenever it runs. Killed and started again on the same directory, it goes on from its checkpoints.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from arrow_format import ShuffleNotFoundError, open_shuffle
from connector.spark_version import ADMISSION_CONTROL
from tests.support.spark_session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

ROWS_PER_BATCH = 200
KEYS = 5
SECONDS_PER_BATCH = 10
WATERMARK_S = 20
"""A window is written once all rows have come that are older than this, by the newest row."""
BEGIN_S = 1_700_000_000
POLL_S = 0.1
ENDS_WITHIN_S = 120


def expected(num_batches: int) -> dict[tuple[int, int], tuple[int, int]]:
    """Count and sum of the values by window (number of its batch) and key."""
    found: dict[tuple[int, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for value in range(num_batches * ROWS_PER_BATCH):
        group = value // ROWS_PER_BATCH, value % KEYS
        count, total = found[group]
        found[group] = count + 1, total + value
    return dict(found)


def windows_in(path: Path) -> int:
    """How many windows are complete in a shuffle."""
    try:
        return open_shuffle(path).num_rows // KEYS
    except ShuffleNotFoundError:
        return 0


def main(directory: Path, num_windows: int) -> None:
    """Run until so many windows are in both shuffles."""
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.metricsEnabled": "false",
    }
    with spark_session(directory / f"spark-{time.time_ns()}", settings=settings) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        rates = (
            spark.readStream.format("rate-micro-batch")
            .options(rowsPerBatch=ROWS_PER_BATCH, numPartitions=2)
            .options(startTimestamp=1000 * BEGIN_S, advanceMillisPerBatch=1000 * SECONDS_PER_BATCH)
            .load()
            .withWatermark("timestamp", f"{WATERMARK_S} seconds")
        )
        windows = (
            rates.selectExpr("timestamp", "value", f"value % {KEYS} AS k")
            .groupBy("timestamp", "k")
            .agg({"value": "sum", "k": "count"})
            .selectExpr(
                f"(unix_seconds(timestamp) - {BEGIN_S}) DIV {SECONDS_PER_BATCH} AS w",
                "k",
                "`count(k)` AS n",
                "`sum(value)` AS total",
            )
        )
        first = (
            windows.writeStream.format("arrow_shuffle")
            .options(keys="w,k", numSubpartitions=3)
            .option("checkpointLocation", str(directory / "checkpoint-1"))
            .start(str(directory / "one"))
        )
        _wait(first, lambda: windows_in(directory / "one") > 0)
        limits = {"maxVersionsPerTrigger": 3} if ADMISSION_CONTROL else {}
        second = (
            spark.readStream.format("arrow_shuffle")
            .options(**limits)
            .load(str(directory / "one"))
            .writeStream.format("arrow_shuffle")
            .options(keys="k", numSubpartitions=2)
            .option("checkpointLocation", str(directory / "checkpoint-2"))
            .start(str(directory / "two"))
        )
        third = (
            spark.readStream.format("arrow_shuffle")
            .options(**limits)
            .option("consumer", "third")
            .option("requestTimeout", "2min")
            .load(str(directory / "one"))
            .writeStream.format("arrow_shuffle")
            .options(keys="w,k", numSubpartitions=2)
            .option("flush.maxInterval", "1s")
            .option("checkpointLocation", str(directory / "checkpoint-3"))
            .start(str(directory / "three"))
        )
        _wait(first, lambda: windows_in(directory / "one") >= num_windows)
        first.stop()
        for query in (second, third):
            query.processAllAvailable()
            query.stop()


def _wait(query: StreamingQuery, is_reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ENDS_WITHIN_S
    while not is_reached():
        error = query.exception()
        if error is not None:
            raise error
        if time.monotonic() > deadline:
            msg = f"the query has not come so far: {query.lastProgress}"
            raise TimeoutError(msg)
        time.sleep(POLL_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
