"""A Spark driver that does what standard input asks for, and announces each step.

One JSON object per line each way; a line of its answers begins with ``@``.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import arrow_shuffle
from arrow_shuffle import open_shuffle
from integration.programs.cluster import session_settings
from integration.torture.operations import (
    IN_SPARK,
    KEY,
    NUM_SUBPARTITIONS,
    REWRITE,
    Operation,
    options_of,
)
from tests.support.spark_session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

SPARK_PHASES = {
    ("write", "hook"): ("map", "commit"),
    ("write", "function"): ("write",),
    ("write", "df.write"): ("write",),
    ("read", ""): ("read",),
    ("merge", ""): ("merge",),
}
"""What is seen of each kind and way: Spark runs the commit of ``df.write`` by itself."""


def perform(
    spark: SparkSession, operation: Operation, path: str, announce: Callable[[str], None]
) -> object:
    """Do it through Spark; as :func:`integration.torture.operations.perform`."""
    if operation.kind == "merge":
        announce("merge")
        open_shuffle(path).merge(
            by=operation.by, policy=REWRITE, options=options_of(operation), spark=spark
        )
        return None
    if not operation.is_write:
        announce("read")
        rows = open_shuffle(path).select("v").to_spark(spark, coalesce=False)
        return tuple(rows.selectExpr("count(v)", "coalesce(sum(v), 0)").collect()[0])
    end = operation.first + operation.count
    df = spark.range(operation.first, end, 1, operation.num_tasks).selectExpr(*IN_SPARK)
    {"hook": _by_hook, "function": _by_function, "df.write": _by_data_source}[operation.way](
        df, operation, path, announce
    )
    return None


def _by_hook(
    df: DataFrame, operation: Operation, path: str, announce: Callable[[str], None]
) -> None:
    task = arrow_shuffle.ShuffleMapTask(
        path,
        schema=df.schema,
        keys=KEY,
        num_subpartitions=NUM_SUBPARTITIONS,
        options=options_of(operation),
    )
    try:
        announce("map")
        statuses = df.mapInArrow(task, task.status_schema).collect()
        announce("commit")
        arrow_shuffle.commit_shuffle(
            task, statuses, mode=operation.kind, expected_map_outputs=operation.num_tasks
        )
    except BaseException:
        arrow_shuffle.abort_shuffle(task)
        raise


def _by_function(
    df: DataFrame, operation: Operation, path: str, announce: Callable[[str], None]
) -> None:
    announce("write")
    arrow_shuffle.write_shuffle(
        df,
        path,
        keys=KEY,
        num_subpartitions=NUM_SUBPARTITIONS,
        mode=operation.kind,
        options=options_of(operation),
    )


def _by_data_source(
    df: DataFrame, operation: Operation, path: str, announce: Callable[[str], None]
) -> None:
    announce("write")
    writer = df.write.format("arrow_shuffle").mode(operation.kind)
    writer = writer.options(keys=KEY, numSubpartitions=NUM_SUBPARTITIONS, sortBufferBytes="256k")
    if operation.local_dirs:
        writer = writer.option("localDirs", ",".join(operation.local_dirs))
    writer.save(path)


def _say(kind: str, value: object) -> None:
    line = json.dumps({"kind": kind, "value": value, "at": time.monotonic()})
    sys.stdout.write(f"@{line}\n")
    sys.stdout.flush()


def main(url: str, scratch: Path) -> None:
    """Serve until standard input ends."""
    faulthandler.register(signal.SIGUSR1)  # the log is where standard error goes
    with spark_session(scratch, master=url, settings=session_settings()) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        _say("ready", spark.sparkContext.applicationId)
        for line in sys.stdin:
            order = json.loads(line)
            given = order["operation"]
            operation = Operation(**given | {"local_dirs": tuple(given["local_dirs"])})
            try:
                value = perform(
                    spark, operation, order["path"], lambda phase: _say("phase", phase)
                )  # fmt: skip
            except Exception:
                _say("failed", traceback.format_exc())
            else:
                _say("done", value)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
