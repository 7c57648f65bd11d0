"""One reader per subpartition and shuffle, from reads of many subpartitions at a time.

A chunk holds the rows of many small subpartitions, so a shuffle is read in long ranges and each
chunk decoded once; here the rows that come in subpartition order are dealt out. Nothing is held but
the run of rows that is being dealt.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Protocol

import numpy as np

from arrow_format.arrays.batch_stream import reader_of
from arrow_format.errors import ClosedError
from arrow_format.keys.co_partitioning import is_broadcast

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    import pyarrow as pa

    from arrow_format.arrays.batch_stream import BatchReader
    from arrow_format.arrays.batches import Rows
    from arrow_format.read.shuffle import Shuffle


class Dealer(Protocol):
    """Gives out the rows of one shuffle, subpartition by subpartition."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches."""

    def batches_of(self, subpartition: int) -> Generator[pa.RecordBatch]:
        """Rows of a subpartition, larger than any asked for before."""

    def close(self) -> None:
        """Stop reading."""


class RowsInOrder:
    """Deals rows that come in subpartition order.

    What was not taken of a subpartition is skipped when a later one is asked for.

    Parameters
    ----------
    schema
        Schema of the batches.
    rows
        Runs of rows whose subpartitions never fall, within a run and from run to run.
    """

    def __init__(self, schema: pa.Schema, rows: Iterable[Rows]) -> None:
        self.schema = schema
        self._rows = iter(rows)
        self._batch: pa.RecordBatch | None = None
        self._pieces: list[tuple[int, int, int]] = []
        """Of the run being dealt: subpartition, first row, number of rows; last one first."""

    def batches_of(self, subpartition: int) -> Generator[pa.RecordBatch]:
        """Rows of a subpartition, one batch for each run that has some."""
        while self._pieces or self._next_run():
            there, first, num_rows = self._pieces[-1]
            if there > subpartition:
                return
            self._pieces.pop()
            if there == subpartition and self._batch is not None:
                yield self._batch.slice(first, num_rows)

    def _next_run(self) -> bool:
        self._batch = None  # before the next one is read
        for run in self._rows:
            ids = run.subpartitions
            if len(ids):
                starts = np.concatenate([[0], np.flatnonzero(np.diff(ids)) + 1])
                sizes = np.diff(starts, append=len(ids))
                pieces = zip(ids[starts].tolist(), starts.tolist(), sizes.tolist(), strict=True)
                self._batch, self._pieces = run.batch, list(pieces)[::-1]
                return True
        return False

    def close(self) -> None:
        """Stop reading."""
        self._batch, self._pieces = None, []
        close = getattr(self._rows, "close", None)
        if close is not None:
            close()


class SameRows:
    """Deals the same rows to every subpartition.

    Parameters
    ----------
    schema
        Schema of the batches.
    read
        Begins to read the rows.
    hold_bytes
        As many raw bytes are kept for the next subpartition; more are read again.
    """

    def __init__(
        self,
        schema: pa.Schema,
        read: Callable[[], Iterator[pa.RecordBatch]],
        hold_bytes: int,
    ) -> None:
        self.schema = schema
        self._read = read
        self._hold_bytes = hold_bytes
        self._held: list[pa.RecordBatch] | None = None
        self._fits = True

    def batches_of(self, subpartition: int) -> Generator[pa.RecordBatch]:
        """All rows."""
        del subpartition
        if self._held is not None:
            yield from self._held
            return
        # Half read, this is closed with the subpartition's turn, and what it kept is let go.
        held: list[pa.RecordBatch] = []
        num_bytes = 0
        for batch in self._read():
            if self._fits:
                num_bytes += batch.nbytes
                held.append(batch)
                if num_bytes > self._hold_bytes:
                    self._fits = False
                    held = []
            yield batch
        if self._fits:
            self._held = held

    def close(self) -> None:
        """Let go of what is kept."""
        self._held = None


class _Turn:
    """Whether the readers of a subpartition may still be read."""

    def __init__(self, subpartition: int) -> None:
        self.subpartition = subpartition
        self.is_over = False
        self._given: list[_Given] = []

    def reader(self, dealer: Dealer) -> BatchReader:
        """Reader of a dealer's rows, until the turn is over."""
        given = _Given(self, dealer.batches_of(self.subpartition))
        self._given.append(given)
        return reader_of(dealer.schema, given)

    def end(self) -> None:
        """Stop the readers, and let go of what half-read ones keep."""
        self.is_over = True
        for given in self._given:
            given.close()
        self._given.clear()

    def check(self) -> None:
        if self.is_over:
            msg = (
                f"the reader of subpartition {self.subpartition} was read after its turn: the "
                "function's result had ended, and the next subpartition has begun. Read it before "
                "that, or keep its batches"
            )
            raise ClosedError(msg)


class _Given:
    """Batches of one dealer for one turn."""

    def __init__(self, turn: _Turn, batches: Iterator[pa.RecordBatch]) -> None:
        self._turn = turn
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        self._turn.check()
        return next(self._batches)

    def close(self) -> None:
        """Close the generator that reads."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            # A thread of the function's own that is reading just now finds the turn over next time.
            with suppress(ValueError):
                close()


def each_subpartition(
    subpartitions: Iterable[int], dealers: Sequence[Dealer]
) -> Generator[tuple[int, tuple[BatchReader, ...]]]:
    """Yield each subpartition with one reader per shuffle, the empty ones too.

    Shuffles advance in step. A reader may be left unread or half read; its turn ends when the next
    subpartition is asked for.

    Parameters
    ----------
    subpartitions
        Ascending without repetition.
    dealers
        One for each shuffle, over those subpartitions; closed at the end, also of an early one.

    Raises
    ------
    ClosedError
        When a reader is read after its turn.
    CorruptShuffleError
        When a damaged file is read.
    """
    with ExitStack() as stack:
        for dealer in dealers:
            stack.enter_context(closing(dealer))
        for subpartition in subpartitions:
            turn = _Turn(subpartition)
            try:
                yield subpartition, tuple(turn.reader(dealer) for dealer in dealers)
            finally:
                turn.end()


def dealer_of(
    shuffle: Shuffle, subpartitions: Sequence[int], columns: Sequence[str] | None
) -> Dealer:
    """Dealer of the rows of a shuffle.

    A broadcast shuffle is read once and not once for each subpartition, and may have another
    number of subpartitions.

    Parameters
    ----------
    shuffle
        What to read.
    subpartitions
        Ascending without repetition.
    columns
        Columns to deliver, in that order; all when None.

    Raises
    ------
    SchemaError
        A column is not there.
    """
    schema = shuffle.schema_of(columns)
    if not is_broadcast(shuffle):
        return RowsInOrder(schema, shuffle.rows(subpartitions, columns))

    def read() -> Iterator[pa.RecordBatch]:
        for run in shuffle.rows([0], columns):
            yield run.batch

    return SameRows(schema, read, shuffle.options.kept_bytes)
