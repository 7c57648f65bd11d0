"""Spark tasks that work on shuffles: one task per group of adjacent subpartitions.

A DataFrame of group numbers goes through ``mapInArrow``; the task that receives a number reads the
subpartitions of that group. No row passes through the JVM before the work is done.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from arrow_format.extras import require
from arrow_format.filters.spark_rules import ANSI, DEFAULTS, SparkSettings
from arrow_format.operators.description import RunSettings
from arrow_format.operators.local_run import memory_of_task
from connector.map_task import NumberedMapTask, begin_spark_job, write_and_commit
from connector.operators.schemas import struct_of
from connector.options.batch import DEFAULT_TARGET_PARTITION_BYTES
from connector.pickling import ChecksOnArrival
from connector.plain_errors import plain_errors
from connector.session import default_parallelism
from connector.spark_types import arrow_schema_of, stored_schema
from connector.task_process import begin_task
from connector.worker_python import check_worker_python

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.operators.description import Description
    from arrow_format.operators.into import Into
    from arrow_format.operators.task_plan import GroupResults, TaskPlan

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


def frame_of(
    spark: SparkSession, description: Description, *, target_partition_bytes: int | None = None
) -> DataFrame:
    """Return the lazy DataFrame of a description; its Spark partitions are in subpartition order.

    A task reads about ``target_partition_bytes`` on disk, of all shuffles together. Where a
    function of the user is called there are at least :data:`TASKS_PER_CORE` a core, however few
    bytes there are: what a function costs, they do not tell. Spark's UI shows the operation and its
    paths as the name of the function in a plan.

    Raises OptionError, SchemaError and ShuffleNotFoundError here, and not at the first action.
    """
    plan, struct, results = _bound(spark, description, target_partition_bytes)
    numbers = _numbers(spark, results)
    return numbers.mapInArrow(GroupTask(results, f"arrow_shuffle {_shown(plan)}"), struct)


def write_in_spark(
    spark: SparkSession,
    description: Description,
    into: Into,
    *,
    target_partition_bytes: int | None = None,
) -> ShuffleReceipt:
    """Let tasks write the rows of a description as a shuffle, and commit it.

    Spark's UI shows the operation and its paths as the name of the job. Raises as
    :func:`frame_of`.
    """
    plan, struct, results = _bound(spark, description, target_partition_bytes)
    stored = stored_schema(struct)

    def begin(storage: Any, _: pa.Schema, **how: Any) -> ShuffleJob:  # noqa: ANN401
        return begin_spark_job(storage, stored, **how)

    job, rows = into.begin(plan, results, arrow_schema_of(stored), begin)
    task = NumberedMapTask([job], rows)
    numbers, count = _numbers(spark, results), len(results.groups)
    what = f"{_shown(plan)} into"
    return write_and_commit(
        task, numbers, into.mode, what=what, num_map_outputs=count, **into.commits
    )


def planned_in_spark(
    spark: SparkSession, description: Description, target_partition_bytes: int | None = None
) -> tuple[TaskPlan, GroupResults]:
    """Return what tasks of Spark do, and the groups that each of them works on."""
    plan, _, results = _bound(spark, description, target_partition_bytes)
    return plan, results


def _bound(
    spark: SparkSession, description: Description, target_partition_bytes: int | None
) -> tuple[TaskPlan, StructType, GroupResults]:
    """Return what tasks do, Spark's schema of the results, and their groups."""
    description.check_runs()
    require("pandas", "df.mapInArrow of PySpark")
    check_worker_python(spark)
    reading = next(description.shuffles).given_options
    memory = memory_of_task(reading, description.num_inputs).shared_by(description.num_inputs)
    zone = session_time_zone(spark)
    settings = session_settings(spark, *description.filters)
    plan = description.bind(
        RunSettings(
            zone,
            settings,
            frames=spark.conf,
            memory=memory,
            num_tasks=partial(default_parallelism, spark),
        )
    )
    struct = struct_of(plan)
    plan = replace(plan, schema=arrow_schema_of(struct))
    results = plan.in_groups(
        target_partition_bytes=(
            DEFAULT_TARGET_PARTITION_BYTES
            if target_partition_bytes is None
            else target_partition_bytes
        ),
        least_groups=TASKS_PER_CORE * default_parallelism(spark)
        if description.calls_function
        else 1,
    )
    return plan, struct, results


def _numbers(spark: SparkSession, results: GroupResults) -> DataFrame:
    """Return a DataFrame with the number of each group, each in a Spark partition of its own."""
    number = len(results.groups)
    return spark.range(0, number, 1, max(number, 1))


def _shown(plan: TaskPlan) -> str:
    return f"{plan.what} {plan.paths}"


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
