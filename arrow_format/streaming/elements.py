"""What flows through a stream beside rows, and what takes it all: the contract of an output.

Source: Flink, ``StreamElement`` with ``Watermark``, ``WatermarkStatus`` and ``LatencyMarker``, and
``Output``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Watermark:
    """Says that no record with this event time or an earlier one is to be expected any more.

    Parameters
    ----------
    timestamp
        Event time: a number in the unit of the column; of dates and timestamps a date or datetime
        as well.
    """

    timestamp: int | date


class WatermarkStatus(Enum):
    """Whether watermarks of this stream count for those who wait for several."""

    ACTIVE = "active"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class LatencyMarker:
    """Travels with the records to measure how long they take.

    Parameters
    ----------
    marked_time
        When it was made, by the clock of its maker; any unit, as long as it is always the same.
    subtask
        Number of the subtask that made it.
    operator
        Operator whose subtask that is.
    """

    marked_time: float
    subtask: int
    operator: str = ""


Control: TypeAlias = Watermark | WatermarkStatus | LatencyMarker
"""What is no row."""

Element: TypeAlias = "pa.RecordBatch | Control"
"""What an output emits: rows, or one of the others."""


class Output(Protocol):
    """Where an operator puts what it emits."""

    def collect(self, batch: pa.RecordBatch) -> None:
        """Take records."""

    def emit_watermark(self, watermark: Watermark) -> None:
        """Take a watermark."""

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Take a watermark status."""

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Take a latency marker."""

    def notify_nothing_available(self) -> None:
        """Learn that there is no input just now; there may be later."""

    def flush(self) -> None:
        """Pass on what is held back."""

    def close(self) -> None:
        """Pass on what is held back, and take no more."""


class ElementBuffer:
    """The latest watermark, the latest status, and the earliest marker of each subtask.

    Source: FLIP-365, ``BufferOutput``.
    """

    def __init__(self) -> None:
        # By kind; one that is replaced moves to the end, as if only the latest had come.
        self._latest: dict[type, Watermark | WatermarkStatus] = {}
        self._markers: dict[tuple[str, int], LatencyMarker] = {}

    def hold(self, element: Control) -> None:
        """Keep an element, or of two that exclude each other the one that counts."""
        if isinstance(element, LatencyMarker):
            subtask = element.operator, element.subtask
            held = self._markers.get(subtask)
            if held is None or element.marked_time < held.marked_time:
                self._markers[subtask] = element
            return
        self._latest.pop(type(element), None)
        self._latest[type(element)] = element

    @property
    def watermark(self) -> Watermark | None:
        """The watermark that is held."""
        found = self._latest.get(Watermark)
        return found if isinstance(found, Watermark) else None

    def take_latest(self) -> Iterator[Watermark | WatermarkStatus]:
        """Give out watermark and status, in the order in which they came."""
        held, self._latest = self._latest, {}
        yield from held.values()

    def take_markers(self) -> Iterator[LatencyMarker]:
        """Give out the markers."""
        held, self._markers = self._markers, {}
        yield from held.values()

    def clear(self) -> None:
        """Forget all of them."""
        self._latest.clear()
        self._markers.clear()
