"""A session of Spark, classic or of Spark Connect: which one, and how many tasks it runs at once.

Apart from what uses it: the doctor asks it too, and must not load what tasks need.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from arrow_format.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect."""
    return hasattr(type(spark), "session_id")


def active_session(spark: SparkSession | None) -> SparkSession:
    """Return the given session, or the active one, classic or of Spark Connect."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession() if spark is None else spark
    if session is None:
        msg = (
            "source is a pyarrow dataset and no Spark session is active to run the map tasks: give "
            "spark=..., start a session first, or write it in this process with "
            "arrow_format.write_shuffle"
        )
        raise OptionError(msg)
    return session


def default_parallelism(spark: SparkSession) -> int:
    """Return how many tasks a session runs concurrently, from the plan of a range of numbers.

    Spark Connect has no other source for it.
    """
    (row,) = spark.sql("EXPLAIN SELECT id FROM range(1)").collect()
    match = re.search(r"splits=(?:Some\()?(\d+)", row[0])
    return max(1, int(match[1])) if match else os.cpu_count() or 1
