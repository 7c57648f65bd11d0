"""Work on shuffles inside Spark tasks: one task per group of adjacent subpartitions.

A DataFrame of group numbers goes through ``mapInArrow``; the task that receives a number reads the
subpartitions of that group. No row passes through the JVM before the work is done.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from arrow_format.arrays.batches import rebatched
from arrow_format.arrays.buffers import to_numpy
from arrow_format.arrays.stored_types import conform, data_schema
from arrow_format.errors import OptionError, SchemaError
from arrow_format.extras import require
from arrow_format.keys.co_partitioning import is_broadcast
from arrow_format.options import check_integer, check_read_options
from arrow_format.read.plan import adjacent_ranges, check_subpartitions, cut_evenly
from arrow_format.read.shuffle import Shuffle, open_shuffle
from connector.arrival import Travels
from connector.map_task import write_and_commit
from connector.source.reader import BATCH_BYTES, BATCH_ROWS, partition_bytes
from connector.spark_types import arrow_schema_of, spark_schema_of, stored_schema
from connector.task_process import begin_task

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.model import Int64Array
    from arrow_format.operators.staying_rows import Result
    from arrow_format.options import ReadOptions
    from connector.operators.into import Into

    Groups = tuple[tuple[tuple[int, int], ...], ...]
    """Each group as ranges ``[first, end)`` of subpartitions."""
    Work = Callable[[Sequence[int]], Generator[Result]]
    """Reads subpartitions, ascending, and yields rows with those of them that they came from."""

CALL_BYTES = 4 << 10
"""Weight that every subpartition has besides its bytes, so that empty ones are spread too."""

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

Path = str | os.PathLike[str]


def open_shuffles(
    shuffles: Path | Sequence[Path],
    version: int | Sequence[int | None] | None,
    options: ReadOptions | None,
    storage_options: Mapping[str, str] | None = None,
) -> tuple[Shuffle, ...]:
    """Open one shuffle or several, at versions fixed from here on.

    They share the memory of ``options``. Raises OptionError, or as
    :func:`arrow_format.open_shuffle`.
    """
    is_one = isinstance(shuffles, str | os.PathLike) or not isinstance(shuffles, Iterable)
    paths: list[Any] = [shuffles] if is_one else list(shuffles)  # type: ignore[arg-type]
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            msg = f"shuffle {path!r}: expected the path or URI of a shuffle"
            raise OptionError(msg)
    if not paths:
        msg = "shuffles is empty: expected one path or several"
        raise OptionError(msg)
    versions = list(version) if isinstance(version, Sequence) else [version] * len(paths)
    if len(versions) != len(paths):
        msg = f"version={version!r}: expected one for each of the {len(paths)} shuffles"
        raise OptionError(msg)
    share = check_read_options(options).shared_by(len(paths))
    return tuple(
        open_shuffle(path, number, options=share, storage_options=storage_options)
        for path, number in zip(paths, versions, strict=True)
    )


def where(
    spark: SparkSession,
    shuffle: Shuffle,
    filter: str | pc.Expression | None,
    what: str = "filter",
) -> Shuffle:
    """Return a shuffle restricted to the rows of a filter, in the session's time zone.

    Raises OptionError and SchemaError, which begin with ``what``.
    """
    if filter is None:
        return shuffle
    try:
        return shuffle.where(filter, time_zone=session_time_zone(spark))
    except (OptionError, SchemaError) as error:
        msg = f"{what}: {str(error).removeprefix('filter: ')}"
        raise type(error)(msg) from error


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
    shuffles: Sequence[Shuffle],
    work: Work,
    schema: StructType,
    *,
    subpartitions: int | Iterable[int] | None,
    target_partition_bytes: int,
    candidates: Sequence[int] | None = None,
    into: Into | None = None,
    source: Shuffle | None = None,
    names: Callable[[str], str | None] = str,
) -> DataFrame | ShuffleReceipt:
    """Return the lazy DataFrame of what ``work`` yields, over all groups of subpartitions.

    ``work`` is called in a task with the subpartitions of a group, ascending; it must be picklable.
    A group has about ``target_partition_bytes`` on disk, of all shuffles together. Only those of
    ``candidates``, ascending, yield anything; any may where it is None.

    With ``into`` the tasks write what it yields, and the receipt is returned. ``source`` is the
    shuffle in whose subpartitions the rows are, by default the first that is not broadcast, and
    ``names`` returns the name of a column of it in the result, as
    :func:`~arrow_format.operators.staying_rows.plan_placement` has them.
    """
    require("pandas", "df.mapInArrow of PySpark")
    check_integer("target_partition_bytes", target_partition_bytes, 1, 1 << 62, "bytes")
    weights = group_weights(shuffles)
    wanted = check_subpartitions(subpartitions, len(weights))
    if wanted is not None and not wanted:
        msg = "subpartitions is empty: expected at least one"
        raise OptionError(msg)
    numbers = np.arange(len(weights)) if wanted is None else np.asarray(wanted, np.int64)
    if candidates is not None:
        numbers = np.intersect1d(numbers, np.asarray(candidates, np.int64))
    max_bytes = partition_bytes(int(weights[numbers].sum()), target_partition_bytes)
    groups = balanced_groups(weights, max_bytes, numbers) if len(numbers) else ()
    numbers_of_groups = spark.range(0, len(groups), 1, max(len(groups), 1))
    grouped = GroupResults(groups, work, arrow_schema_of(schema))
    if into is None:
        return numbers_of_groups.mapInArrow(GroupTask(grouped), schema)
    if source is None:
        source = next((each for each in shuffles if not is_broadcast(each)), shuffles[0])
    where = ", ".join(shuffle.path for shuffle in shuffles)
    task = into.begin(stored_schema(schema), grouped, source, names, where)
    return write_and_commit(task, numbers_of_groups, into.mode, num_map_outputs=len(groups))


def balanced_groups(weights: Int64Array, max_weight: int, subpartitions: Int64Array) -> Groups:
    """Cut subpartitions, in order, into the fewest groups of about equal weight.

    So no task is left over with little to do. A group may be heavier than ``max_weight`` by half a
    subpartition at either end. ``weights`` has the weight of every subpartition of the shuffle, 1
    or more; ``subpartitions`` are at least one, ascending without repetition.
    """
    wanted = weights[subpartitions]
    num_groups = -(-int(wanted.sum()) // max_weight)
    cuts = cut_evenly(wanted, num_groups)
    return tuple(adjacent_ranges(subpartitions[start:stop]) for start, stop in cuts)


def group_weights(shuffles: Sequence[Shuffle]) -> Int64Array:
    """Return the bytes that a task reads per subpartition, of all shuffles; shape (n,).

    A broadcast shuffle is read once per task and weighs nothing next to others.
    """
    weighed = [shuffle for shuffle in shuffles if not is_broadcast(shuffle)] or shuffles[:1]
    weights: Int64Array = np.sum([to_numpy(shuffle.read_bytes) for shuffle in weighed], axis=0)
    return weights + CALL_BYTES


@dataclass(frozen=True)
class GroupResults:
    """The results of the work on each group of subpartitions."""

    groups: Groups
    work: Work
    schema: pa.Schema

    def __call__(self, number: int) -> Generator[Result]:
        """Yield the results of a group, as they fit the schema."""
        ranges = self.groups[number]
        subpartitions: Sequence[int] = range(*ranges[0])
        if len(ranges) > 1:
            subpartitions = [number for first, end in ranges for number in range(first, end)]
        # Closed when no more is taken, and not when Python collects garbage.
        with closing(self.work(subpartitions)) as results:
            for origin, batch in results:
                if batch.num_rows:
                    yield origin, conform(batch, self.schema)


@dataclass(frozen=True)
class GroupTask(Travels):
    """Callable for ``mapInArrow``: takes group numbers, yields the results of the work."""

    results: GroupResults

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the groups whose numbers arrive."""
        begin_task()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with closing(self.results(number)) as results:
                    rows = (batch for _, batch in results)
                    yield from rebatched(rows, min_rows=BATCH_ROWS, max_bytes=BATCH_BYTES)


@dataclass(frozen=True)
class WholeGroups:
    """Work that reads adjacent subpartitions together: its rows came from any of them."""

    work: Callable[[Sequence[int]], Generator[pa.RecordBatch]]

    def __call__(self, subpartitions: Sequence[int]) -> Generator[Result]:
        """Yield the rows of the work."""
        with closing(self.work(subpartitions)) as batches:
            for batch in batches:
                yield subpartitions, batch
