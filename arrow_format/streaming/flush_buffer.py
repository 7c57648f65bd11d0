"""The buffer between an operator and what comes after it: elements in, those to emit out.

It neither calls anyone nor waits for anything: every method yields what is to be emitted now, in
order, and has done its work when all of that was taken. :class:`~arrow_format.BufferOutput` pushes
it to another output, the stage on Spark yields it.

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
from arrow_format.streaming.elements import ElementBuffer, Watermark
from arrow_format.streaming.event_time import EventTime
from arrow_format.streaming.latest_by_key import LatestPerKey

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from arrow_format.streaming.elements import Control, Element
    from arrow_format.streaming.options import FlushOptions


class FlushReason(Enum):
    """What made a buffer flush."""

    INTERVAL = "the interval since the last flush has passed"
    MEMORY_FULL = "its memory is full and it may not spill"
    NOTHING_AVAILABLE = "there is no input just now"
    ASKED = "it was told to"
    CLOSE = "it was closed"


class FlushBuffer:
    """Holds the latest row of each key, and the other elements that count, until it flushes.

    Not safe to share between threads, nor to be called by whom it gives rows to. After an error,
    and after :meth:`release`, it is closed.

    Parameters
    ----------
    options
        When to flush; without an interval it flushes for the other reasons only.
    keys
        Key columns, of types that can be hash keys; without any, the latest row of all is held.
    timestamp
        Column of event times, integers, dates or timestamps; a null is earlier than all. None:
        rows have no event time.
    clock
        Monotonic time in seconds.
    directory
        Where scratch directories are made; the system's for temporary files when None.

    Raises
    ------
    OptionError
        ``keys`` or ``timestamp`` are no names of columns, ``clock`` is no function, or
        ``directory`` no path.
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
        self._held = ElementBuffer()
        self._last_flush = clock()
        self._is_closed = self._is_flushing = False
        self.flushes: Counter[FlushReason] = Counter()
        """How often it flushed, by reason."""
        self.num_rows_in = 0
        """Rows taken."""
        self.num_rows_out = 0
        """Rows given out."""

    @property
    def is_empty(self) -> bool:
        """Whether no row is held; nothing else is held then either."""
        return self._rows is None or self._rows.is_empty

    @property
    def is_closed(self) -> bool:
        """Whether it takes nothing more."""
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
        """Take rows; all of them have come later than those before.

        Raises
        ------
        SchemaError
            The first batch lacks a key or the event time, or has them of a type that cannot be one;
            or a later one has another schema. The batch was not taken, unless it is one of
            dictionaries, views or runs, which are taken piece by piece.
        StorageError, OutOfDiskError
            Rows could not be spilled; all is lost.
        ClosedError
            It is closed.
        """
        self._check_open()
        if not isinstance(batch, pa.RecordBatch):
            msg = f"collect takes a pyarrow.RecordBatch, not a {type(batch).__name__}"
            raise SchemaError(msg)
        rows = self._rows_of(batch.schema)
        for piece in rows.pieces(batch):
            self.num_rows_in += piece.num_rows
            rest = self._appended(rows, piece)
            while rest is not None:
                yield from self._flush(FlushReason.MEMORY_FULL)
                rest = self._appended(rows, rest)
        yield from self._flush_when_due()

    def _appended(self, rows: LatestPerKey, piece: pa.RecordBatch) -> pa.RecordBatch | None:
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
        """Take a watermark, a status or a latency marker: it is held if there are rows.

        Raises
        ------
        OptionError
            A watermark that cannot be compared with event times, or not with those of the rows.
        ClosedError
            It is closed.
        """
        self._check_open()
        rows, event_time = self._rows, self._event_time
        if isinstance(element, Watermark) and event_time is not None:
            event_time.check_watermark(element.timestamp)
        if rows is None or rows.is_empty:
            yield element
            return
        if isinstance(element, Watermark) and event_time is not None:
            event_time.limit(element.timestamp, rows.schema)
        self._held.hold(element)
        yield from self._flush_when_due()

    def _flush_when_due(self) -> Generator[Element]:
        interval = self._options.max_interval
        if interval is None:
            return
        now = self._clock()
        self._last_flush = min(self._last_flush, now)  # of a clock that was set back
        if now - self._last_flush >= interval.total_seconds():
            yield from self._flush(FlushReason.INTERVAL)

    def flush(self, reason: FlushReason = FlushReason.ASKED) -> Generator[Element]:
        """Give out everything that is held; nothing, and that is no flush, where nothing is.

        Raises
        ------
        StorageError, OutOfDiskError, CorruptShuffleError
            What was spilled could not be read; all is lost.
        ClosedError
            It is closed.
        """
        self._check_open()
        return self._flush(reason)

    def close(self) -> Generator[Element]:
        """Give out everything that is held, and take no more; does nothing when it is closed."""
        if self._is_closed:
            return
        yield from self._flush(FlushReason.CLOSE)
        self.release()

    def release(self) -> None:
        """Forget everything that is held, and take no more; calling it again does nothing."""
        self._is_closed = True
        self._held.clear()
        if self._rows is not None:
            self._rows.clear()

    def _check_open(self) -> None:
        if self._is_closed:
            msg = "the buffered output is closed; it takes nothing more"
            raise ClosedError(msg)
        if self._is_flushing:
            # What came now would be neither among what is given out nor held after it.
            msg = (
                "the buffered output is giving out what it holds, and takes nothing until that is "
                "done: whoever is given rows must not call it back"
            )
            raise ClosedError(msg)

    def _flush(self, reason: FlushReason) -> Generator[Element]:
        rows = self._rows
        if rows is None or rows.is_empty:
            return
        self._check_open()
        self._last_flush = self._clock()
        self.flushes[reason] += 1
        self._is_flushing = True
        try:
            yield from self._in_order(rows)
        except BaseException:  # whoever stops in the middle has lost the rest
            self.release()
            raise
        finally:
            self._is_flushing = False
        rows.clear()

    def _in_order(self, rows: LatestPerKey) -> Generator[Element]:
        """Rows up to the watermark, status and watermark, later rows, markers."""
        watermark, event_time = self._held.watermark, self._event_time
        if watermark is None or event_time is None:
            # Without a watermark none is later; without an event time, a row is earlier than all.
            for batch in rows.rows():
                yield self._counted(batch)
            yield from self._held.take_latest()
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
            yield from self._held.take_latest()
            # They are looked up again: to keep them until now might take any amount of memory.
            for batch in rows.rows() if some_are_later else ():
                later = event_time.are_later(batch, limit)
                if later.true_count:
                    yield self._counted(filtered(batch, later))
        yield from self._held.take_markers()

    def _counted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.num_rows_out += batch.num_rows
        return batch
