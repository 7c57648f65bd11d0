"""The buffer of an output: elements go in, and each call yields those to emit now, in order.

It calls no other output and never waits. A call has done its work when its generator is exhausted.
:class:`~arrow_format.BufferOutput` pushes the elements to another output; the stage on Spark yields
them.

Source: FLIP-365, ``BufferOutput``.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrow_format.arrays.gather import filtered
from arrow_format.errors import ClosedError, OptionError, SchemaError
from arrow_format.keys.partitioner import key_names
from arrow_format.streaming.elements import ElementBuffer, EventTime, Watermark
from arrow_format.streaming.latest_spilling import LatestPerKey

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from arrow_format.streaming.elements import Control, Element
    from arrow_format.streaming.options import FlushOptions


class FlushReason(Enum):
    """What made a buffer flush."""

    INTERVAL = "the interval since the last flush has passed"
    MEMORY_FULL = "its memory is full and it may not spill"
    NOTHING_AVAILABLE = "there is no input just now"
    ASKED = "it was asked for"
    CLOSE = "it was closed"


class FlushBuffer:
    """The latest row of each key, and the other elements of :class:`ElementBuffer`, until a flush.

    Takes the arguments of :class:`~arrow_format.BufferOutput`; without an interval it flushes for
    the other reasons only. Not safe to share between threads; must not be called by a consumer of
    its rows. An error closes it, and so does :meth:`release`. When closed, it raises ClosedError.
    """

    def __init__(
        self,
        options: FlushOptions,
        *,
        keys: str | Sequence[str] | None = None,
        timestamp: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        directory: str | None = None,
    ) -> None:
        self._options = options
        self._keys = key_names(keys)
        self._event_time: EventTime | None = None
        if timestamp is not None:
            if not isinstance(timestamp, str) or not timestamp:
                msg = f"timestamp={timestamp!r}: expected the name of one column, or None"
                raise OptionError(msg)
            self._event_time = EventTime(timestamp)
        if not callable(clock):
            msg = f"clock={clock!r}: expected a function that returns seconds"
            raise OptionError(msg)
        if directory is not None and not isinstance(directory, str | os.PathLike):
            msg = f"directory={directory!r}: expected a path"
            raise OptionError(msg)
        self._clock = clock
        self._directory = directory
        self._rows: LatestPerKey | None = None
        self._others = ElementBuffer()
        self._last_flush = clock()
        self._is_closed = self._is_flushing = False
        self.flushes: Counter[FlushReason] = Counter()
        """How often it flushed, by reason."""
        self.num_rows_in = 0
        """Rows taken."""
        self.num_rows_out = 0
        """Rows yielded."""

    @property
    def is_empty(self) -> bool:
        """Whether no row is buffered; then no other element is either."""
        return self._rows is None or self._rows.is_empty

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more elements."""
        return self._is_closed

    @property
    def num_bytes(self) -> int:
        """Bytes charged for rows in memory."""
        return 0 if self._rows is None else self._rows.num_bytes

    @property
    def spilled_bytes(self) -> int:
        """Bytes written to disk so far."""
        return 0 if self._rows is None else self._rows.spilled_bytes

    def collect(self, batch: pa.RecordBatch) -> Generator[Element]:
        """Take rows, which are later than all rows before.

        Raises SchemaError where a key or the event time is missing or has a wrong type, or the
        schema differs from the first; then no row was taken, unless there are dictionaries, views
        or runs, which are taken slice by slice. Raises StorageError or OutOfDiskError where rows
        could not be spilled; then all are lost.
        """
        self.check_open()
        if not isinstance(batch, pa.RecordBatch):
            msg = f"collect takes a pyarrow.RecordBatch, not a {type(batch).__name__}"
            raise SchemaError(msg)
        rows = self._rows_of(batch.schema)
        for piece in rows.pieces(batch):
            self.num_rows_in += piece.num_rows
            rest = self._append(rows, piece)
            while rest is not None:
                yield from self._flush(FlushReason.MEMORY_FULL)
                rest = self._append(rows, rest)
        yield from self.flush_when_due()

    def _append(self, rows: LatestPerKey, piece: pa.RecordBatch) -> pa.RecordBatch | None:
        try:
            return rows.append(piece)
        except BaseException:
            self.release()
            raise

    def _rows_of(self, schema: pa.Schema) -> LatestPerKey:
        if self._rows is None:
            rows = LatestPerKey(
                schema,
                self._keys,
                max_bytes=self._options.max_buffered_bytes,
                spills=not self._options.memory_buffer_only,
                directory=self._directory,
            )
            if self._event_time is not None:
                self._event_time.check(rows.schema)
            self._rows = rows
        return self._rows

    def emit(self, element: Control) -> Generator[Element]:
        """Take a watermark, a status or a latency marker; it is buffered if rows are.

        Raises OptionError where a watermark cannot be compared with the event times.
        """
        self.check_open()
        rows, event_time = self._rows, self._event_time
        if isinstance(element, Watermark) and event_time is not None:
            event_time.check_watermark(element.timestamp)
        if rows is None or rows.is_empty:
            yield element
            return
        if isinstance(element, Watermark) and event_time is not None:
            event_time.limit(element.timestamp, rows.schema)
        self._others.put(element)
        yield from self.flush_when_due()

    def flush_when_due(self) -> Generator[Element]:
        """Yield everything that is buffered where the interval has passed since the last flush."""
        interval = self._options.max_interval
        if interval is None:
            return
        now = self._clock()
        self._last_flush = min(self._last_flush, now)  # the clock may have been set back
        if now - self._last_flush >= interval.total_seconds():
            yield from self._flush(FlushReason.INTERVAL)

    def flush(self, reason: FlushReason = FlushReason.ASKED) -> Generator[Element]:
        """Yield everything that is buffered; if nothing is, this does not count as a flush.

        Raises CorruptShuffleError or StorageError where spilled rows cannot be read; all are lost.
        """
        self.check_open()
        return self._flush(reason)

    def close(self) -> Generator[Element]:
        """Yield everything that is buffered, and take no more; calling it again does nothing."""
        if self._is_closed:
            return
        yield from self._flush(FlushReason.CLOSE)
        self.release()

    def release(self) -> None:
        """Drop everything that is buffered, and take no more; calling it again does nothing."""
        self._is_closed = True
        self._others.clear()
        if self._rows is not None:
            self._rows.clear()

    def check_open(self) -> None:
        """Raise ClosedError where it is closed."""
        if self._is_closed:
            msg = "the buffered output is closed; it takes nothing more"
            raise ClosedError(msg)
        if self._is_flushing:
            # An element that came now would be neither emitted by this flush nor buffered after it.
            msg = (
                "the buffered output is flushing and takes nothing until that is done: the "
                "consumer of its rows must not call it back"
            )
            raise ClosedError(msg)

    def _flush(self, reason: FlushReason) -> Generator[Element]:
        rows = self._rows
        if rows is None or rows.is_empty:
            return
        self.check_open()
        self._last_flush = self._clock()
        self.flushes[reason] += 1
        self._is_flushing = True
        try:
            yield from self._in_order(rows)
        except BaseException:  # a consumer that stops in the middle has lost the rest
            self.release()
            raise
        finally:
            self._is_flushing = False
        rows.clear()

    def _in_order(self, rows: LatestPerKey) -> Generator[Element]:
        """Yield rows up to the watermark, status and watermark, later rows, markers."""
        watermark, event_time = self._others.watermark, self._event_time
        if watermark is None or event_time is None:
            # Without a watermark no row is later than it; without event times all are earlier.
            for batch in rows.rows():
                yield self._counted(batch)
            yield from self._others.take_latest()
        else:
            limit = event_time.limit(watermark.timestamp, rows.schema)
            some_are_later = False
            for batch in rows.rows():
                later = event_time.are_later(batch, limit)
                if later.true_count == 0:
                    yield self._counted(batch)
                    continue
                some_are_later = True
                if later.true_count < batch.num_rows:
                    yield self._counted(filtered(batch, pc.invert(later)))
            yield from self._others.take_latest()
            # Later rows are read a second time: keeping them could take any amount of memory.
            for batch in rows.rows() if some_are_later else ():
                later = event_time.are_later(batch, limit)
                if later.true_count:
                    yield self._counted(filtered(batch, later))
        yield from self._others.take_markers()

    def _counted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.num_rows_out += batch.num_rows
        return batch
