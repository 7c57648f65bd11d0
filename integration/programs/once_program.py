"""A streaming query in a process that may be killed, which writes the numbers below 500 once.

``foreach``: the function of ``foreachBatch`` appends, and stops behind the append of its second
batch the first time. ``pending``: a sink with an interval of an hour, which stops behind its last
batch. ``restart``: as that with an interval that has passed, and a batch that fails. ``done``: as
``pending``, with :func:`~arrow_shuffle.flush_when_done`, whose flush stops the first time.
Where a program stops, it puts a file ``stopped`` into its directory, and waits to be killed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import arrow_shuffle
from arrow_format import flush_pending
from connector import stream_end
from tests.support.spark_session import spark_session

if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NUM_ROWS = 500
NUM_BATCHES = 5


def stop_here(directory: Path) -> None:
    """Wait to be killed, unless this has happened here."""
    stopped = directory / "stopped"
    if not stopped.exists():
        stopped.touch()
        time.sleep(600)


def numbers(spark: SparkSession, directory: Path) -> DataFrame:
    """Return the numbers as a stream, a hundred in each batch."""
    source = directory / "numbers"
    if not source.exists():
        spark.range(NUM_ROWS).repartition(NUM_BATCHES).write.parquet(str(source))
    return spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).parquet(str(source))


def foreach(spark: SparkSession, directory: Path) -> None:
    """Append in ``foreachBatch``."""
    append = arrow_shuffle.foreach_batch(str(directory / "s"), keys="id", num_subpartitions=3)

    def write(batch: DataFrame, number: int) -> None:
        with (directory / "calls").open("a") as calls:
            calls.write(f"{number}\n")
        append(batch, number)
        if number == 1:
            stop_here(directory)

    query = (
        numbers(spark, directory)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def sink(spark: SparkSession, directory: Path, interval: str, source: DataFrame) -> StreamingQuery:
    """Start a query that writes through the sink."""
    return (
        source.writeStream.format("arrow_shuffle")
        .options(keys="id", numSubpartitions=3)
        .option("flush.maxInterval", interval)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "s"))
    )


def pending(spark: SparkSession, directory: Path) -> None:
    """Leave all rows pending."""
    sink(spark, directory, "1h", numbers(spark, directory)).awaitTermination()
    stop_here(directory)


def restart(spark: SparkSession, directory: Path) -> None:
    """Begin a batch that fails, some time after the last one."""
    source = numbers(spark, directory)
    spark.range(NUM_ROWS, NUM_ROWS + 1).write.mode("append").parquet(str(directory / "numbers"))
    fails = source.where(F.raise_error(F.lit("this batch fails")).isNull())
    with pytest.raises(StreamingQueryException, match="this batch fails"):
        sink(spark, directory, "1s", fails).awaitTermination()


def done(spark: SparkSession, directory: Path) -> None:
    """Flush when all is written."""
    flush = flush_pending

    def stop_before(*place: Any, **how: Any) -> Any:  # noqa: ANN401
        stop_here(directory)
        return flush(*place, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_end, "flush_pending", stop_before)
        query = sink(spark, directory, "1h", numbers(spark, directory))
        arrow_shuffle.flush_when_done(query, directory / "s").result()


if __name__ == "__main__":
    of_program = Path(sys.argv[1])
    with spark_session(of_program / f"spark-{time.time_ns()}") as session:
        session.sparkContext.setLogLevel("ERROR")
        {"foreach": foreach, "pending": pending, "restart": restart, "done": done}[sys.argv[2]](
            session, of_program
        )
