"""Archives the classes of Spark for the JVMs of tests, which then start in half the time.

``python -m tests.support.spark_archive`` runs a little of everything in one session, and writes
what its JVM had loaded to :data:`~tests.support.spark_session.ARCHIVE`. A JVM maps that instead of
reading, checking and linking ten thousand classes again. One that the archive does not fit (another
Java, other jars) ignores it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.spark_session import ARCHIVE, SERIAL, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def use(spark: SparkSession, directory: Path) -> None:
    """Let a session load the classes that most tests need."""
    rows = spark.range(100).selectExpr("id % 7 AS k", "concat('a', id) AS s", "now() AS t")
    rows.mapInArrow(lambda batches: batches, rows.schema).write.parquet(str(directory / "rows"))
    found = spark.read.parquet(str(directory / "rows"))
    found.groupBy("k").count().orderBy("k").collect()
    found.join(rows, "k").where("k > 2").toArrow()
    stream = spark.readStream.schema(rows.schema).parquet(str(directory / "rows"))
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(directory / "c"))
    writer.trigger(availableNow=True).start().awaitTermination(60)


def main() -> None:
    """Write the archive; where this Java cannot, an empty file, which is ignored, too."""
    from pyspark import SparkContext

    made = ARCHIVE.with_suffix(".new")
    made.unlink(missing_ok=True)
    options = {"spark.driver.extraJavaOptions": f'{SERIAL} -XX:ArchiveClassesAtExit="{made}"'}
    with tempfile.TemporaryDirectory() as directory:
        with spark_session(Path(directory) / "spark", settings=options) as spark:
            use(spark, Path(directory))
            gateway: Any = SparkContext._gateway
            process = gateway.proc
        process.stdin.close()  # by which the JVM ends
        process.wait()
    made.touch()
    made.replace(ARCHIVE)


if __name__ == "__main__":
    main()
