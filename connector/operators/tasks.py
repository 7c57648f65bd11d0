"""Spark tasks that work on shuffles: one task per group of adjacent subpartitions.

A DataFrame of group numbers goes through ``mapInArrow``; the task that receives a number reads the
subpartitions of that group. No row passes through the JVM before the work is done.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from arrow_format.arrays.stored_types import data_schema
from arrow_format.errors import SchemaError
from arrow_format.extras import require
from arrow_format.filters.spark_rules import ANSI, DEFAULTS, SparkSettings
from connector.map_task import NumberedMapTask, begin_spark_job, write_and_commit
from connector.pickling import ChecksOnArrival
from connector.plain_errors import plain_errors
from connector.session import default_parallelism
from connector.spark_types import arrow_schema_of, spark_schema_of, stored_schema
from connector.task_process import begin_task
from connector.worker_python import check_worker_python

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.operators.into import Into
    from arrow_format.operators.tasks import GroupResults, Operation

TASKS_PER_CORE = 2
"""Tasks for each core that Spark has: with one each, all wait for the slowest."""

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::([0-9]{1,2})|([0-9]{2}))?")

_SHORT_ZONES = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns",
    "CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
"""Short names that Spark accepts and Python does not know. Source: Java's ``ZoneId.SHORT_IDS``."""


def spark_struct(spark: SparkSession, schema: StructType | pa.Schema | str) -> StructType:
    """Return the schema of a result; text is DDL, ``k bigint, v double``, that Spark parses."""
    if isinstance(schema, pa.Schema):
        return spark_schema_of(data_schema(schema))
    if isinstance(schema, str):
        require("pandas", "df.mapInArrow of PySpark")
        # On Connect too, where this process has no JVM to parse it.
        return spark.range(0).mapInArrow(lambda batches: batches, schema).schema
    if not isinstance(schema, StructType):
        kind = type(schema).__name__
        msg = f"schema is {kind}: expected a StructType, DDL text or a pyarrow schema"
        raise SchemaError(msg)
    return schema


def session_time_zone(spark: SparkSession) -> str:
    """Return the time zone of the session, spelled as in Arrow and Python."""
    return python_time_zone(str(spark.conf.get("spark.sql.session.timeZone")))


def session_settings(spark: SparkSession, *filters: object) -> SparkSettings:
    """Return what a session says of filters; all of it only where one of them is text."""
    zone = session_time_zone(spark)
    if not any(isinstance(filter, str) for given in filters for filter in _each(given)):
        return SparkSettings(zone)
    # The default of ANSI is one of the environment that started Spark.
    values = {name: spark.conf.get(name, None) for name in DEFAULTS}
    return SparkSettings.of(values | {ANSI: spark.conf.get(ANSI)}, zone)


def _each(given: object) -> Sequence[object]:
    return given if isinstance(given, list | tuple) else [given]


def python_time_zone(zone: str) -> str:
    """Return a time zone of Spark, ``GMT+8``, ``+0530``, ``+5:3``, ``Z``, ``PST``, as in Python."""
    if zone in ("Z", "UT"):
        return "UTC"
    offset = _OFFSET.fullmatch(zone)
    if offset is None:
        return _SHORT_ZONES.get(zone, zone)
    sign, hours, minutes, joined = offset.groups()
    return f"{sign}{int(hours):02}:{int(minutes or joined or 0):02}"


def run_in_groups(
    spark: SparkSession,
    operation: Operation,
    schema: StructType,
    *,
    what: str,
    subpartitions: int | Iterable[int] | None,
    target_partition_bytes: int,
    into: Into | None = None,
    calls_function: bool = False,
) -> DataFrame | ShuffleReceipt:
    """Return the lazy DataFrame of the results of an operation, over all groups of subpartitions.

    A group has about ``target_partition_bytes`` on disk, of all shuffles together. An operation
    that calls a function of the user has at least :data:`TASKS_PER_CORE`, however few bytes there
    are: what a function costs, they do not tell. With ``into`` the tasks write the results, and the
    receipt is returned. Spark's UI shows ``what`` and the paths: as the name of the function in a
    plan, or as that of a job.
    """
    require("pandas", "df.mapInArrow of PySpark")
    check_worker_python(spark)
    what = f"{what} {operation.paths}"
    results = operation.in_groups(
        arrow_schema_of(schema),
        subpartitions=subpartitions,
        target_partition_bytes=target_partition_bytes,
        least_groups=TASKS_PER_CORE * default_parallelism(spark) if calls_function else 1,
    )
    num_groups = len(results.groups)
    numbers = spark.range(0, num_groups, 1, max(num_groups, 1))
    if into is None:
        return numbers.mapInArrow(GroupTask(results, f"arrow_shuffle {what}"), schema)
    stored = stored_schema(schema)

    def begin(storage: Any, _: pa.Schema, **how: Any) -> ShuffleJob:  # noqa: ANN401
        return begin_spark_job(storage, stored, **how)

    task = NumberedMapTask(*into.begin(operation, results, arrow_schema_of(stored), begin))
    return write_and_commit(
        task, numbers, into.mode, what=f"{what} into", num_map_outputs=num_groups
    )


@dataclass(frozen=True)
class GroupTask(ChecksOnArrival):
    """Callable for ``mapInArrow``: takes group numbers, yields the results of the work."""

    results: GroupResults
    name: str

    @property
    def __name__(self) -> str:
        """What Spark calls it in plans."""
        return self.name

    @plain_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the groups whose numbers arrive."""
        begin_task()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with closing(self.results.batches(number)) as results:
                    yield from results
