"""What buffered outputs cost and save: updates of keys, held back for an interval. One core."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
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
from integration.bench.buffer_lines import (
    BUFFERED,
    COUNTED,
    GATHER,
    UNBUFFERED,
    buffer_lines,
)
from integration.bench.child import run_in_child
from integration.bench.engine import timings_of
from integration.bench.ipc import BATCH_ROWS, as_over_ipc
from integration.bench.results import Line, Part, Timing, turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
LABELS = (COUNTED, GATHER, BUFFERED, UNBUFFERED)


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
    """Do one of :data:`LABELS` with updates; runs in a fresh process.

    Returns
    -------
    dict
        ``seconds``, ``cpu_seconds``; ``num_rows`` that came out; ``spilled_bytes``.
    """
    batches = list(updates_of(kind, updates, interval_rows, num_rows))
    root = Path(scratch)
    root.mkdir(parents=True, exist_ok=True)
    work: Callable[[list[pa.RecordBatch]], tuple[int, int]]
    if label == GATHER:
        table = pa.Table.from_batches(batches).combine_chunks()
        rows = [
            pa.array(np.random.default_rng(1).permutation(interval_rows) + start)
            for start in range(0, num_rows, interval_rows)
        ]

        def work(_: list[pa.RecordBatch]) -> tuple[int, int]:
            return sum(table.take(one).num_rows for one in rows), 0
    else:

        def work(batches: list[pa.RecordBatch]) -> tuple[int, int]:
            output: Any = Counted() if label == COUNTED else Written(root, batches[0].schema)
            return _run(output, batches, None if label == UNBUFFERED else interval_rows, root)

    work(batches[:2])  # loads the code
    cpu_before, started = time.process_time(), time.perf_counter()
    emitted, spilled = work(batches)
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu_before,
        "num_rows": emitted,
        "spilled_bytes": spilled,
    }


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


def run(scale: float, *, repeat: int, scratch: Path, step: Callable[[str], None]) -> Part:
    """Measure buffered outputs; ``step`` is told what comes next."""
    lines: list[Line] = []
    timings: dict[str, tuple[Timing, ...]] = {}
    for interval_rows in (HELD_ROWS, SPILLED_ROWS):
        num_rows = max(round(ROWS_AT_SCALE_1 * scale / interval_rows), 1) * interval_rows
        for kind in KINDS:
            for updates in UPDATES:
                case = f"{kind}, {interval_rows:,} rows an interval, {updates} per key"
                answers: dict[str, list[dict[str, Any]]] = {label: [] for label in LABELS}
                for number, order in enumerate(turns(LABELS, repeat), 1):
                    for label in order:
                        step(f"buffer, {case}, round {number}: {label}")
                        answers[label].append(
                            run_in_child(
                                measure_once,
                                label=label,
                                kind=kind,
                                updates=updates,
                                interval_rows=interval_rows,
                                num_rows=num_rows,
                                scratch=str(scratch),
                            )
                        )
                found = timings_of(answers)
                timings[case] = tuple(found.values())
                counted = answers[COUNTED][0]
                lines += buffer_lines(
                    case,
                    found,
                    rows=(num_rows, counted["num_rows"]),
                    updates=updates,
                    has_cost_target=not counted["spilled_bytes"],
                )
    notes = (
        "one core, a fresh process per round, in turns; ratios of the best rounds; time per row is "
        "processor time",
        "a row has a key, a number and a timestamp; keys come in random order; 64 MiB of memory; "
        "cases without a target spilled",
    )
    return Part(
        "buffer", f"Buffered outputs, one core, scale {scale:g}", tuple(lines), timings, notes
    )
