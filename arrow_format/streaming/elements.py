"""Elements of a stream, the output that takes them, and the event times of its rows.

Source: Flink, ``StreamElement`` with ``Watermark``, ``WatermarkStatus`` and ``LatencyMarker``, and
``Output``; FLIP-365, ``BufferOutput``, for which elements are buffered.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum
from numbers import Integral
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import to_scalar
from arrow_format.arrays.stored_types import missing_column
from arrow_format.errors import OptionError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Watermark:
    """Promise that no record with this event time or an earlier one will follow.

    Parameters
    ----------
    timestamp
        Event time: a number in the unit of the column; for dates and timestamps also a date or
        datetime.
    """

    timestamp: int | date


class WatermarkStatus(Enum):
    """Whether the watermarks of this stream count for operators that combine several streams."""

    ACTIVE = "active"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class LatencyMarker:
    """Element that travels with the records and measures how long they take.

    Parameters
    ----------
    marked_time
        When it was made, by the clock of its subtask; any unit, as long as it is always the same.
    subtask
        Number of the subtask that made it.
    operator
        Operator that the subtask belongs to.
    """

    marked_time: float
    subtask: int
    operator: str = ""


Control: TypeAlias = Watermark | WatermarkStatus | LatencyMarker
"""Elements that are not rows."""

Element: TypeAlias = pa.RecordBatch | Control


class Output(Protocol):
    """What an operator emits its records and other elements to."""

    def collect(self, batch: pa.RecordBatch) -> None:
        """Take records."""

    def emit_watermark(self, watermark: Watermark) -> None:
        """Take a watermark."""

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Take a watermark status."""

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Take a latency marker."""

    def notify_nothing_available(self) -> None:
        """Take notice that the operator has no input now; more may come later."""

    def flush(self) -> None:
        """Emit what is buffered."""

    def close(self) -> None:
        """Emit what is buffered, and take no more."""


class ElementBuffer:
    """The latest watermark, the latest status, and the earliest marker of each subtask."""

    def __init__(self) -> None:
        # By kind; one that is replaced moves to the end, as if only the latest had come.
        self._latest: dict[type, Watermark | WatermarkStatus] = {}
        self._markers: dict[tuple[str, int], LatencyMarker] = {}

    def put(self, element: Control) -> None:
        """Buffer an element, unless a marker of the same subtask is earlier."""
        if isinstance(element, LatencyMarker):
            subtask = element.operator, element.subtask
            earliest = self._markers.get(subtask)
            if earliest is None or element.marked_time < earliest.marked_time:
                self._markers[subtask] = element
            return
        self._latest.pop(type(element), None)
        self._latest[type(element)] = element

    @property
    def watermark(self) -> Watermark | None:
        """The buffered watermark."""
        watermark = self._latest.get(Watermark)
        return watermark if isinstance(watermark, Watermark) else None

    def take_latest(self) -> Iterator[Watermark | WatermarkStatus]:
        """Remove and yield watermark and status, in the order in which they came."""
        latest, self._latest = self._latest, {}
        yield from latest.values()

    def take_markers(self) -> Iterator[LatencyMarker]:
        """Remove and yield the markers."""
        markers, self._markers = self._markers, {}
        yield from markers.values()

    def clear(self) -> None:
        """Remove all elements."""
        self._latest.clear()
        self._markers.clear()


@dataclass(frozen=True, slots=True)
class EventTime:
    """A column of event times: integers, dates or timestamps; a null is earlier than all."""

    name: str

    def check(self, schema: pa.Schema) -> None:
        """Raise SchemaError where the column is missing or has another type."""
        if self.name not in schema.names:
            raise SchemaError(missing_column(self.name, schema.names, "timestamp: column"))
        type_ = schema.field(self.name).type
        if not (pt.is_integer(type_) or pt.is_timestamp(type_) or pt.is_date(type_)):
            msg = (
                f"timestamp={self.name!r}: the column is {type_}; event times are whole numbers, "
                "dates or timestamps"
            )
            raise SchemaError(msg)

    def check_watermark(self, watermark: object) -> None:
        """Raise OptionError where a watermark is not a whole number, a date or a time.

        A fraction would have to be rounded, and no row is comparable to a missing one.
        """
        is_number = isinstance(watermark, Integral) and not isinstance(watermark, bool)
        if not (is_number or isinstance(watermark, date | np.datetime64)):
            msg = (
                f"watermark {watermark!r} cannot be compared with the event times of column "
                f"{self.name!r}: expected a whole number, a date or a time"
            )
            raise OptionError(msg)

    def limit(self, watermark: object, schema: pa.Schema) -> pa.Scalar | None:
        """Return a watermark as a value of the column; None if it is below all values.

        Raises OptionError where it cannot be converted.
        """
        type_ = schema.field(self.name).type
        self.check_watermark(watermark)
        try:
            if isinstance(watermark, Integral):
                # The watermark of the end of a stream is the largest number of 64 bits.
                is_signed = not pt.is_unsigned_integer(type_)
                bits = type_.bit_width - is_signed
                if watermark < (-(1 << bits) if is_signed else 0):
                    return None
                return pa.scalar(min(int(watermark), (1 << bits) - 1), type_)
            return pa.scalar(watermark, type_)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            msg = (
                f"watermark {watermark!r} cannot be compared with the event times of column "
                f"{self.name!r}, which are {type_}: {error}"
            )
            raise OptionError(msg) from error

    def are_later(self, batch: pa.RecordBatch, limit: pa.Scalar | None) -> pa.BooleanArray:
        """Return which rows have an event time above a limit of :meth:`limit`."""
        column = batch.column(self.name)
        if limit is None:
            return column.is_valid()
        return pc.fill_null(pc.greater(column, limit), to_scalar(0, pa.bool_()))
