"""An output that buffers its elements, and emits the latest record of each key at a flush.

Source: FLIP-365, ``BufferOutput``.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from arrow_format.errors import OptionError
from arrow_format.keys.partitioner import key_names
from arrow_format.options import LATEST_ROWS_BYTES
from arrow_format.streaming.elements import LatencyMarker, Watermark, WatermarkStatus
from arrow_format.streaming.flush_buffer import FlushBuffer, FlushReason
from arrow_format.streaming.options import FlushOptions, is_output_buffered
from arrow_format.streaming.side_outputs import TaggedOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from datetime import timedelta
    from types import TracebackType

    from arrow_format.streaming.elements import Element, Output
    from arrow_format.streaming.options import OperatorAttributes

_Control = TypeVar("_Control", Watermark, WatermarkStatus, LatencyMarker)


class BufferOutput:
    """Output that buffers its elements, and emits one row per key and flush instead of all rows.

    .. code-block:: python

        output = BufferOutput(downstream, keys=["page"], max_interval=timedelta(minutes=2))
        for batch in batches:
            output.collect(batch)
        output.close()

    Until a flush it buffers the latest record of each key, the latest watermark, the latest
    watermark status and the earliest latency marker of each subtask. While it has no record, all
    other elements are passed on directly. A flush emits the records up to the watermark, then
    status and watermark in the order in which they came, then later records, then markers. Without
    a watermark, or without event times, all records come first.

    It flushes when it is called and ``max_interval`` has passed since the last flush (it has no
    timer of its own); when its memory is full, with ``memory_buffer_only``; when the operator has
    no input; and when it is closed.

    As a context manager it is closed at the end; after an exception it is released, and emits
    nothing more. Not safe to share between threads.

    Parameters
    ----------
    downstream
        The output that it emits to. Batches have the data schema of those it takes
        (:func:`~arrow_format.arrays.stored_types.data_schema`).
    keys
        Key columns, of types that can be hash keys; without any, all records have the same key.
    max_interval
        Longest time between two flushes.
    memory_buffer_only
        Flush when memory is full, instead of spilling to disk.
    max_buffered_bytes
        Memory to use, in bytes, in addition to the largest batch; at least 64 KiB.
    timestamp
        Column of event times: integers, dates or timestamps; a null is earlier than all.
    clock
        Monotonic time in seconds.
    directory
        Where it makes a scratch directory to spill to, which is removed at the flush, by
        :meth:`release`, or with this object. One that a killed process left behind is removed by
        the next that spills there. The system's directory for temporary files when None.

    Raises
    ------
    OptionError
        An argument has a wrong value; the message names it.
    """

    def __init__(
        self,
        downstream: Output,
        *,
        keys: str | Sequence[str] | None = None,
        max_interval: timedelta | None,
        memory_buffer_only: bool = False,
        max_buffered_bytes: int = LATEST_ROWS_BYTES,
        timestamp: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        directory: str | None = None,
    ) -> None:
        if max_interval is None:
            msg = "max_interval=None: a buffered output needs one; without, use its downstream"
            raise OptionError(msg)
        options = FlushOptions(
            max_interval=max_interval,
            memory_buffer_only=memory_buffer_only,
            max_buffered_bytes=max_buffered_bytes,
        )
        self._downstream = downstream
        self._buffer = FlushBuffer(
            options, keys=keys, timestamp=timestamp, clock=clock, directory=directory
        )

    @property
    def num_rows_in(self) -> int:
        """Rows collected so far."""
        return self._buffer.num_rows_in

    @property
    def num_rows_out(self) -> int:
        """Rows emitted so far."""
        return self._buffer.num_rows_out

    @property
    def num_bytes(self) -> int:
        """Bytes charged for rows in memory."""
        return self._buffer.num_bytes

    @property
    def spilled_bytes(self) -> int:
        """Bytes written to disk so far."""
        return self._buffer.spilled_bytes

    @property
    def flushes(self) -> Mapping[FlushReason, int]:
        """How often it flushed, by reason."""
        return dict(self._buffer.flushes)

    def collect(self, batch: pa.RecordBatch) -> None:
        """Take records; the last of a key replaces those before.

        Raises
        ------
        SchemaError
            The first batch lacks a key or the event time, or has them of a wrong type; or a later
            batch has another schema.
        StorageError, OutOfDiskError
            Records could not be spilled. All that was buffered is lost, and the output closed.
        ClosedError
            The output is closed.
        """
        self._send(self._buffer.collect(batch))

    def collect_side(self, tag: str, batch: pa.RecordBatch) -> None:
        """Pass records of a side result on at once: only the main one is reduced to latest rows.

        They overtake a watermark that is buffered, and so are never later than it says. As with
        each call, what is buffered follows where the interval has passed.

        Raises
        ------
        OptionError
            The next output has no side outputs, or none of that tag.
        ClosedError
            The output is closed.
        """
        self._buffer.check_open()
        downstream = self._downstream
        if not isinstance(downstream, TaggedOutput):
            msg = f"tag={tag!r}: the next output has no side outputs; give SideOutputs(main, sides)"
            raise OptionError(msg)
        try:
            downstream.collect_side(tag, batch)
        except BaseException:
            self.release()
            raise
        self._send(self._buffer.flush_when_due())

    def emit_watermark(self, watermark: Watermark) -> None:
        """Take a watermark; it replaces the one before.

        Raises
        ------
        OptionError
            It is not a watermark, or cannot be compared with the event times.
        ClosedError
            The output is closed.
        """
        self._send(self._buffer.emit(_checked(watermark, Watermark)))

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Take a watermark status; it replaces the one before. Raises as for a watermark."""
        self._send(self._buffer.emit(_checked(status, WatermarkStatus)))

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Take a latency marker; of those of one subtask, the earliest is kept."""
        self._send(self._buffer.emit(_checked(marker, LatencyMarker)))

    def notify_nothing_available(self) -> None:
        """Flush, and notify the next output: the operator has no input now."""
        self._send(self._buffer.flush(FlushReason.NOTHING_AVAILABLE))
        self._downstream.notify_nothing_available()

    def flush(self) -> None:
        """Emit all that is buffered, and flush the next output."""
        self._send(self._buffer.flush())
        self._downstream.flush()

    def close(self) -> None:
        """Emit all that is buffered and close the next output; calling it again does nothing."""
        if self._buffer.is_closed:
            return
        self._send(self._buffer.close())
        self._downstream.close()

    def release(self) -> None:
        """Drop all that is buffered and emit nothing more; calling it again does nothing."""
        self._buffer.release()

    def _send(self, elements: Generator[Element]) -> None:
        downstream = self._downstream
        with closing(elements):
            for element in elements:
                try:
                    if isinstance(element, pa.RecordBatch):
                        downstream.collect(element)
                    elif isinstance(element, Watermark):
                        downstream.emit_watermark(element)
                    elif isinstance(element, WatermarkStatus):
                        downstream.emit_watermark_status(element)
                    else:
                        downstream.emit_latency_marker(element)
                except BaseException:
                    self.release()
                    raise

    def __enter__(self) -> BufferOutput:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.release()


def decorated(
    output: Output,
    attributes: OperatorAttributes,
    options: FlushOptions,
    *,
    keys: str | Sequence[str] | None = None,
    parallelism: int | None = None,
    timestamp: str | None = None,
    clock: Callable[[], float] = time.monotonic,
    directory: str | None = None,
) -> Output:
    """Return the output for an operator: ``output``, buffered if its attributes and options allow.

    Parameters
    ----------
    output
        What follows the operator.
    attributes
        What the operator declares.
    options
        The flush interval, if any, and memory.
    keys
        Key columns of the records that the operator emits.
    parallelism
        How many subtasks of the operator run concurrently; None if unknown. See
        :func:`~arrow_format.streaming.options.is_output_buffered`.
    timestamp, clock, directory
        As :class:`BufferOutput` takes them.

    Raises
    ------
    OptionError
        ``keys`` or ``timestamp`` are not column names.
    """
    if not is_output_buffered(
        attributes,
        max_interval=options.max_interval,
        is_keyed=bool(key_names(keys)),
        parallelism=parallelism,
    ):
        return output
    return BufferOutput(
        output,
        keys=keys,
        max_interval=options.max_interval,
        memory_buffer_only=options.memory_buffer_only,
        max_buffered_bytes=options.max_buffered_bytes,
        timestamp=timestamp,
        clock=clock,
        directory=directory,
    )


def _checked(element: object, kind: type[_Control]) -> _Control:
    if not isinstance(element, kind):
        msg = f"{element!r} is a {type(element).__name__}: expected a {kind.__name__}"
        raise OptionError(msg)
    return element
