"""A session that runs ``mapInArrow`` over numbers in this process: tasks without a JVM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from connector.spark_types import arrow_schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql.types import StructType

    Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


DEFAULTS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": "true",
    "spark.sql.execution.pandas.convertToArrowArraySafely": "true",
}
"""Of Spark 4.3; it has no others here, as older versions lack some."""


class Settings:
    """Settings of a session: Spark's own defaults count only where the caller gives none."""

    def __init__(self, **given: str) -> None:
        self._given = given

    def get(self, name: str, *default: str) -> str:
        if name in self._given:
            return self._given[name]
        return default[0] if default else DEFAULTS[name]


@dataclass
class SessionInProcess:
    """Has as much of a session as functions per subpartition ask for."""

    conf: Settings = field(default_factory=Settings)
    cores: int = 2

    def sql(self, _: str) -> PlanInProcess:
        return PlanInProcess(f"Range (0, 1, step=1, splits=Some({self.cores}))")

    session_id = "of this process"
    """As on Spark Connect, no JVM is asked for."""

    readStream = None
    """By which a session is known."""

    def range(self, start: int, end: int, step: int, num_partitions: int) -> FrameInProcess:
        del num_partitions
        return FrameInProcess(list(range(start, end, step)), self)

    def getTags(self) -> set[str]:
        return set()

    def addTag(self, tag: str) -> None:
        assert "," not in tag


@dataclass
class PlanInProcess:
    """What Spark explains of a range of numbers."""

    text: str

    def collect(self) -> list[tuple[str]]:
        return [(self.text,)]


@dataclass
class FrameInProcess:
    """Numbers, and the task that is to run over each of them."""

    numbers: list[int]
    sparkSession: SessionInProcess
    task: Task | None = None
    schema: StructType | None = None

    def mapInArrow(self, task: Task, schema: StructType) -> FrameInProcess:
        return FrameInProcess(self.numbers, self.sparkSession, task, schema)

    def toArrow(self) -> pa.Table:
        assert self.task is not None
        assert self.schema is not None
        batches: list[pa.RecordBatch] = []
        for number in self.numbers:
            batches += self.task(iter([pa.record_batch({"id": [number]})]))
        return pa.Table.from_batches(batches, arrow_schema_of(self.schema))

    def collect(self) -> list[dict[str, Any]]:
        return list(self.toArrow().to_pylist())
