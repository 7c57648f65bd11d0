"""One reader per subpartition and shuffle, over reads of many subpartitions at a time.

A chunk holds the rows of many small subpartitions, so a shuffle is read in long ranges and each
chunk is decoded once. The rows come in subpartition order and are distributed to the readers of the
subpartitions; only the current run of rows is kept in memory.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Protocol

import numpy as np

from arrow_format.arrays.batch_stream import BatchReader
from arrow_format.errors import ClosedError
from arrow_format.keys.co_partitioning import is_broadcast

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    import pyarrow as pa

    from arrow_format.operators.inputs import Input
    from arrow_format.read.rows import Rows


class RowSource(Protocol):
    """Returns the rows of one shuffle, subpartition by subpartition."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches."""

    def batches_of(self, subpartition: int) -> Generator[pa.RecordBatch]:
        """Yield the rows of a subpartition; each call names a larger one than the last."""

    def close(self) -> None:
        """Stop reading and free what is buffered."""


class RowsInOrder:
    """Rows that come in subpartition order, in one pass.

    The rest of a subpartition is skipped when a later one is asked for. The subpartitions of
    ``rows`` never fall, within a run and from run to run.
    """

    def __init__(self, schema: pa.Schema, rows: Iterable[Rows]) -> None:
        self.schema = schema
        self._rows = iter(rows)
        self._batch: pa.RecordBatch | None = None
        self._slices: list[tuple[int, int, int]] = []
        """Of the current run: subpartition, first row, number of rows; in reverse order."""

    def batches_of(self, subpartition: int) -> Generator[pa.RecordBatch]:
        """Yield the rows of a subpartition, one batch for each run that has some."""
        while self._slices or self._next_run():
            next_subpartition, first, num_rows = self._slices[-1]
            if next_subpartition > subpartition:
                return
            self._slices.pop()
            if next_subpartition == subpartition and self._batch is not None:
                yield self._batch.slice(first, num_rows)

    def _next_run(self) -> bool:
        self._batch = None  # before the next one is read
        for run in self._rows:
            ids = run.subpartitions
            if len(ids):
                starts = np.concatenate([[0], np.flatnonzero(np.diff(ids)) + 1])
                sizes = np.diff(starts, append=len(ids))
                slices = zip(ids[starts].tolist(), starts.tolist(), sizes.tolist(), strict=True)
                self._batch, self._slices = run.batch, list(slices)[::-1]
                return True
        return False

    def close(self) -> None:
        """Stop reading and free what is buffered."""
        self._batch, self._slices = None, []
        _close(self._rows)


class SameRows:
    """The same rows for every subpartition: those of a broadcast shuffle.

    Up to ``max_bytes`` of raw bytes are kept for the next subpartition; more are read again.
    """

    def __init__(
        self, schema: pa.Schema, read: Callable[[], Iterator[pa.RecordBatch]], max_bytes: int
    ) -> None:
        self.schema = schema
        self._read = read
        self._max_bytes = max_bytes
        self._kept: list[pa.RecordBatch] | None = None
        self._fits = True

    def batches_of(self, subpartition: int) -> Generator[pa.RecordBatch]:
        """Yield all rows."""
        del subpartition
        if self._kept is not None:
            yield from self._kept
            return
        # A half-read generator is closed with the subpartition's turn, which frees this list.
        kept: list[pa.RecordBatch] = []
        num_bytes = 0
        for batch in self._read():
            if self._fits:
                num_bytes += batch.nbytes
                kept.append(batch)
                if num_bytes > self._max_bytes:
                    self._fits = False
                    kept = []
            yield batch
        if self._fits:
            self._kept = kept

    def close(self) -> None:
        """Free what is buffered."""
        self._kept = None


class _Turn:
    """The time in which the readers of a subpartition may be read."""

    def __init__(self, subpartition: int) -> None:
        self.subpartition = subpartition
        self._is_over = False
        self._readers: list[_TurnBatches] = []

    def reader(self, source: RowSource) -> BatchReader:
        batches = _TurnBatches(self, source.batches_of(self.subpartition))
        self._readers.append(batches)
        return BatchReader(source.schema, batches)

    def end(self) -> None:
        """Stop the readers, and free what half-read ones keep."""
        self._is_over = True
        for reader in self._readers:
            reader.close()
        self._readers.clear()

    def check(self) -> None:
        if self._is_over:
            msg = (
                f"the reader of subpartition {self.subpartition} was read after its turn: the "
                "function's result had ended, and the next subpartition has begun. Read it before "
                "that, or keep its batches"
            )
            raise ClosedError(msg)


class _TurnBatches:
    """Batches of one shuffle for one turn."""

    def __init__(self, turn: _Turn, batches: Iterator[pa.RecordBatch]) -> None:
        self._turn = turn
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        self._turn.check()
        return next(self._batches)

    def close(self) -> None:
        # If a thread of the user's function is in the generator, it cannot be closed; the thread
        # finds the turn over at its next batch.
        with suppress(ValueError):
            _close(self._batches)


def _close(iterator: object) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


def each_subpartition(
    subpartitions: Iterable[int], sources: Sequence[RowSource]
) -> Generator[tuple[int, tuple[BatchReader, ...]]]:
    """Yield each subpartition, the empty ones too, with one reader per shuffle.

    A reader may be left unread or half read. Its turn ends when the next subpartition is asked for;
    to read it later raises ClosedError. Sources are closed at the end, also of an early one.
    """
    with ExitStack() as stack:
        for source in sources:
            stack.enter_context(closing(source))
        for subpartition in subpartitions:
            turn = _Turn(subpartition)
            try:
                yield subpartition, tuple(turn.reader(source) for source in sources)
            finally:
                turn.end()


def row_source(
    rows: Input, subpartitions: Sequence[int], columns: Sequence[str] | None
) -> RowSource:
    """Return the rows of an input by subpartition.

    A broadcast shuffle is read once, not once per subpartition, and may have another number of
    subpartitions. ``subpartitions`` ascend; ``columns`` are delivered in their order, all when
    None. Raises SchemaError where one is missing.
    """
    schema = rows.schema_of(columns)
    if not is_broadcast(rows):
        return RowsInOrder(schema, rows.rows(subpartitions, columns))

    def read() -> Iterator[pa.RecordBatch]:
        for run in rows.rows([0], columns):
            yield run.batch

    return SameRows(schema, read, rows.options.kept_bytes)
