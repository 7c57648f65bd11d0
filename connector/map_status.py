"""Map statuses as rows: what the tasks of a job send to the driver."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from arrow_format.errors import ShuffleError
from arrow_format.log.outputs import MapOutputs, decode_each, encode_outputs
from arrow_format.log.totals import decode_each_totals, encode_totals
from arrow_format.model import MapStatus, Natural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from arrow_format.log.totals import Totals

MAX_TOTALS_BYTES = 64 << 10
"""Most bytes of the totals of one map task in its status; the commit reads the index for others."""

MAX_ALL_TOTALS_BYTES = 256 << 20
"""Most bytes of the totals of all map tasks, a quarter of what Spark's driver takes by default
(``spark.driver.maxResultSize``). A task knows its number and not how many there are, so those send
theirs that stay within this if all before them had as many."""

STATUS_SCHEMA = (
    StructType()
    .add("target", IntegerType(), nullable=False)
    .add("map_task", IntegerType(), nullable=False)
    .add("attempt", IntegerType(), nullable=False)
    .add("num_rows", LongType(), nullable=False)
    .add("num_bytes", LongType(), nullable=False)
    .add("map_output", BinaryType(), nullable=False)
    .add("tombstones", BinaryType(), nullable=True)
    .add("counters", StringType(), nullable=False)
    .add("totals", BinaryType(), nullable=True)
)
"""Columns of a map status as a row: one row per map task and target, of which there may be several,
numbered from 0."""

DECODED_TOGETHER = 1024
"""Map outputs that are decoded by one call."""
DECODED_BYTES = 16 << 20
"""Bytes of the totals that are decoded by one call."""


def status_to_row(status: MapStatus, target: int = 0, num_targets: int = 1) -> dict[str, Any]:
    """Return a status of one of some targets as a row, by column name of :data:`STATUS_SCHEMA`."""
    totals = None
    if status.subpartition_rows is not None and status.subpartition_bytes is not None:
        totals = encode_totals((status.subpartition_rows, status.subpartition_bytes))
        rows = (status.output.map_task + 1) * num_targets
        if len(totals) > min(MAX_TOTALS_BYTES, MAX_ALL_TOTALS_BYTES // rows):
            totals = None
    return {
        "target": target,
        "map_task": status.output.map_task,
        "attempt": status.output.attempt,
        "num_rows": status.output.num_rows,
        "num_bytes": status.output.num_bytes,
        "map_output": encode_outputs(MapOutputs.of([status.output])),
        "tombstones": status.tombstones and encode_outputs(MapOutputs.of([status.tombstones])),
        "counters": msgspec.json.encode({k: v for k, v in status.counters.items() if v}).decode(),
        "totals": totals,
    }


def statuses_from_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[MapStatus]:
    """Yield the statuses of Spark rows, or dicts, in their order: inverse of `status_to_row`.

    Decoding one alone takes longer than decoding a hundred together; but the totals of tens of
    thousands of tasks would take gigabytes.
    Raises ShuffleError where a row is none of a status.
    """
    rest = iter(rows)
    while block := list(islice(rest, DECODED_TOGETHER)):
        try:
            yield from _decoded(block)
        except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
            msg = (
                f"not a map status of ShuffleMapTask ({type(error).__name__}: {error}); pass what "
                "df.mapInArrow(task, task.status_schema).collect() returned"
            )
            raise ShuffleError(msg) from error


def _decoded(rows: Sequence[Mapping[str, Any]]) -> Iterator[MapStatus]:
    outputs = decode_each([bytes(row["map_output"]) for row in rows])
    buried = iter(decode_each([bytes(of) for row in rows if (of := row["tombstones"])]))
    encoded = [row["totals"] for row in rows]
    totals = _decoded_totals(bytes(part) for part in encoded if part is not None)
    for output, part, row in zip(outputs, encoded, rows, strict=True):
        own = (None, None) if part is None else next(totals)
        counters = msgspec.json.decode(row["counters"], type=dict[str, Natural])
        tombstones = replace(next(buried), position=None) if row["tombstones"] else None
        yield MapStatus(replace(output, position=None), own[0], own[1], counters, tombstones)


def _decoded_totals(parts: Iterator[bytes]) -> Iterator[Totals]:
    at_once = 1  # until it is known how many subpartitions there are
    while block := list(islice(parts, at_once)):
        for totals in decode_each_totals(block):
            yield totals
            at_once = max(1, DECODED_BYTES // (2 * totals[0].nbytes))
