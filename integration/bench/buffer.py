"""What buffered outputs cost and save: updates of keys, buffered for an interval. One core."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from arrow_format import (
    BufferOutput,
    HashPartitioner,
    Output,
    SortMergeResultPartition,
    WriteOptions,
)
from arrow_format.model import PartitionedFileMetadata
from arrow_format.storage.open import open_storage
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.inputs import BATCH_ROWS, as_over_ipc
from integration.bench.results import Line, Part, Timing, amount_line, compare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from integration.bench.rounds import Settings

COUNTED = "buffered, then counted"
GATHER = "gather"
BUFFERED = "buffered, then a map output"
UNBUFFERED = "unbuffered, a map output"
LABELS = (COUNTED, GATHER, BUFFERED, UNBUFFERED)

NS_PER_ROW = 100
"""What buffering a row may take in addition to a gather of it."""

UPDATES = (1, 10, 100)
"""Updates per key and interval."""

KINDS = ("integers", "texts")
"""Types of keys."""

HELD_ROWS = 200_000
"""Rows of an interval that fit into memory, whatever their keys."""

SPILLED_ROWS = 1_000_000
"""Rows of an interval that do not, unless keys repeat."""

NUM_SUBPARTITIONS = 200
"""Of the map output that rows are written to."""

ROWS_AT_SCALE_1 = 2_000_000


def updates_of(
    kind: str, updates: int, interval_rows: int, num_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield updates of as many keys as give each so many of them in an interval.

    Keys come in random order, each once in as many rows as there are keys.
    """
    num_keys = interval_rows // updates
    random = np.random.default_rng(7)
    order = np.empty(0, np.int64)
    for start in range(0, num_rows, BATCH_ROWS):
        while len(order) < BATCH_ROWS:
            order = np.append(order, random.permutation(num_keys))
        keys, order = order[:BATCH_ROWS] * 7_919, order[BATCH_ROWS:]
        numbers = np.arange(start, start + BATCH_ROWS)
        batch = pa.record_batch(
            {
                "page": pa.array(keys)
                if kind == "integers"
                else pa.array([f"/page/{key}" for key in keys.tolist()]),
                "views": numbers,
                "at": pa.array(numbers, pa.timestamp("us", "UTC")),
            }
        )
        yield as_over_ipc(batch.serialize(), batch.schema)


class Counted(Output):
    """Takes rows and counts them."""

    def __init__(self) -> None:
        self.num_rows = 0

    def collect(self, batch: pa.RecordBatch) -> None:
        """Count rows."""
        self.num_rows += batch.num_rows


class Written(Counted):
    """Takes rows and writes them as a map output, as a stream writer does with a micro-batch."""

    def __init__(self, root: Path, schema: pa.Schema) -> None:
        super().__init__()
        partitioner = HashPartitioner("page")
        name = uuid.uuid4().hex
        metadata = PartitionedFileMetadata(
            name, name, 0, 0, schema, NUM_SUBPARTITIONS, partitioner.describe()
        )
        self._assign = partitioner.bind(schema, NUM_SUBPARTITIONS, 0)
        self._partition = SortMergeResultPartition(
            open_storage(root), name, metadata, WriteOptions(sync=False)
        )

    def collect(self, batch: pa.RecordBatch) -> None:
        """Write rows."""
        super().collect(batch)
        self._partition.emit(batch, self._assign(batch))

    def close(self) -> None:
        """End the files."""
        self._partition.finish()


def measure_once(
    label: str, kind: str, updates: int, interval_rows: int, num_rows: int, scratch: str
) -> dict[str, Any]:
    """Do one of :data:`LABELS` with updates, and time it.

    ``num_rows`` of the answer came out; its counter is ``spilled_bytes``.
    """
    batches = list(updates_of(kind, updates, interval_rows, num_rows))
    root = Path(scratch)
    root.mkdir(parents=True, exist_ok=True)
    work: Callable[[list[pa.RecordBatch]], tuple[int, int]]
    if label == GATHER:
        table = pa.Table.from_batches(batches).combine_chunks()
        orders = [
            pa.array(np.random.default_rng(1).permutation(interval_rows) + start)
            for start in range(0, num_rows, interval_rows)
        ]

        def work(_: list[pa.RecordBatch]) -> tuple[int, int]:
            return sum(table.take(order).num_rows for order in orders), 0
    else:

        def work(batches: list[pa.RecordBatch]) -> tuple[int, int]:
            output: Any = Counted() if label == COUNTED else Written(root, batches[0].schema)
            return _run(output, batches, None if label == UNBUFFERED else interval_rows, root)

    work(batches[:2])  # loads the code
    with timed() as answer:
        emitted, spilled = work(batches)
    return {**answer, "num_rows": emitted, "counters": {"spilled_bytes": spilled}}


def _run(
    downstream: Counted, batches: list[pa.RecordBatch], interval_rows: int | None, scratch: Path
) -> tuple[int, int]:
    """Send batches to an output, buffered if there is an interval; rows and bytes spilled."""
    clock = 0.0
    output: Any = downstream
    if interval_rows is not None:
        # A second for each row.
        output = BufferOutput(
            downstream,
            keys=["page"],
            max_interval=timedelta(seconds=interval_rows),
            clock=lambda: clock,
            directory=str(scratch),
        )
    for batch in batches:
        clock += batch.num_rows
        output.collect(batch)
    output.close()
    return downstream.num_rows, getattr(output, "spilled_bytes", 0)


def buffer_lines(
    case: str, timings: Mapping[str, Timing], *, num_rows: int, updates: int
) -> list[Line]:
    """Lines on ``num_rows`` rows with so many updates per key and interval.

    The target of time takes for granted that what an interval buffers fits into memory.
    """
    counted, gather = timings[COUNTED], timings[GATHER]
    fits = not counted.counters["spilled_bytes"]
    # Processor time in the place of wall time: others use the machine as well.
    ours = replace(
        counted, seconds=tuple(s * 1e9 / num_rows for s in counted.cpu_seconds), cpu_seconds=()
    )
    allowed = Timing(
        f"{NS_PER_ROW} ns and a gather",
        tuple(s * 1e9 / num_rows + NS_PER_ROW for s in gather.cpu_seconds),
    )
    target = targets.BUFFER_AGAINST_ALLOWED if fits else None
    per_row = compare(case, "time per row", allowed.label, ours, allowed, target, best=True)
    rows = ("buffered", counted.num_rows or 0), ("all", num_rows)
    return [
        amount_line(
            case, "rows downstream, all = 1", *rows, "rows", targets.rows_downstream(updates)
        ),
        replace(per_row, unit="ns"),
        compare(case, "speed", "unbuffered", timings[BUFFERED], timings[UNBUFFERED], best=True),
    ]


def run(settings: Settings) -> Part:
    """Measure buffered outputs."""
    part = Part("buffer", f"Buffered outputs, one core, scale {settings.scale:g}")
    part.notes += [
        "one core, a fresh process per round; ratios of the best rounds; time per row is processor "
        "time",
        "a row has a key, a number and a timestamp; keys come in random order; 64 MiB of memory; "
        "cases without a target spilled",
    ]
    for interval_rows, kind, updates in product((HELD_ROWS, SPILLED_ROWS), KINDS, UPDATES):
        intervals = max(round(ROWS_AT_SCALE_1 * settings.scale / interval_rows), 1)
        num_rows = intervals * interval_rows
        case = f"{kind}, {interval_rows:,} rows an interval, {updates} per key"
        measures = {
            label: partial(
                run_in_child,
                measure_once,
                label=label,
                kind=kind,
                updates=updates,
                interval_rows=interval_rows,
                num_rows=num_rows,
                scratch=str(settings.scratch),
            )
            for label in LABELS
        }
        timings = settings.measure(part, case, measures)
        part.lines += buffer_lines(case, timings, num_rows=num_rows, updates=updates)
    return part
