"""A session of Spark, classic or of Spark Connect: which one, and how many tasks it runs at once.

Apart from what uses it: the doctor asks it too, and must not load what tasks need.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

from arrow_format.errors import OptionError
from arrow_format.extras import needed_by

if TYPE_CHECKING:
    from typing import Literal

    from pyspark.sql import SparkSession


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect."""
    return hasattr(type(spark), "session_id")


def session_id(spark: SparkSession) -> str:
    """Return the id of a session; several Python objects may be one session."""
    if is_connect(spark):
        return str(spark.session_id)  # type: ignore[attr-defined]
    return str(spark._jsparkSession.sessionUUID())


def session_of(spark: SparkSession | Literal[True] | None) -> SparkSession | None:
    """Return the session that is asked for, True for the active one; None for this process.

    Raises OptionError where none is active, or ``spark`` is something else.
    """
    if spark is None or hasattr(type(spark), "readStream"):
        return spark  # type: ignore[return-value]
    if spark is True:
        return active_session()
    msg = (
        f"spark={spark!r}: expected a SparkSession, True for the active one, or None for this "
        "process"
    )
    raise OptionError(msg)


def active_session() -> SparkSession:
    """Return the active session, classic or of Spark Connect; OptionError where there is none."""
    with needed_by("spark=True"):
        from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None:
        msg = (
            "no Spark session is active: start one, give it as spark=session, or let this process "
            "do it: .read() and .to_table() in place of .to_spark(), and no spark= elsewhere"
        )
        raise OptionError(msg)
    return session


def is_session_active() -> bool:
    """Whether a session is active; imports nothing."""
    sql = sys.modules.get("pyspark.sql")
    return sql is not None and sql.SparkSession.getActiveSession() is not None


def default_parallelism(spark: SparkSession) -> int:
    """Return how many tasks a session runs concurrently, from the plan of a range of numbers.

    Spark Connect has no other source for it.
    """
    (row,) = spark.sql("EXPLAIN SELECT id FROM range(1)").collect()
    match = re.search(r"splits=(?:Some\()?(\d+)", row[0])
    return max(1, int(match[1])) if match else os.cpu_count() or 1
