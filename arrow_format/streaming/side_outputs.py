"""Outputs of an operator with several results: rows go to one of them, all else to each.

Source: Flink, ``Output.collect(OutputTag, StreamRecord)`` and ``BroadcastingOutputCollector``;
FLIP-365, which leaves side outputs unbuffered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from arrow_format.errors import OptionError
from arrow_format.streaming.elements import Output

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from arrow_format.streaming.elements import LatencyMarker, Watermark, WatermarkStatus


@runtime_checkable
class TaggedOutput(Output, Protocol):
    """An output that takes rows of side results too."""

    def collect_side(self, tag: str, batch: pa.RecordBatch) -> None:
        """Take records of the side output of a tag."""


class SideOutputs:
    """A main output, and side outputs by their tags; what follows an operator of several results.

    .. code-block:: python

        output = BufferOutput(
            SideOutputs(counts, {"late": late_rows}), keys=["page"], max_interval=interval
        )
        output.collect(batch)
        output.collect_side("late", other)

    Watermarks, statuses, markers, flushes and the end go to all, to the main one first. An error of
    one is raised, and those after it do not get that element.

    Parameters
    ----------
    main
        Takes what is collected.
    sides
        Take what is collected with their tags; each may be buffered, or have side outputs, itself.
    """

    def __init__(self, main: Output, sides: Mapping[str, Output]) -> None:
        self._main = main
        self._sides = dict(sides)
        self._all = [main, *self._sides.values()]

    def collect(self, batch: pa.RecordBatch) -> None:
        """Pass records to the main output."""
        self._main.collect(batch)

    def collect_side(self, tag: str, batch: pa.RecordBatch) -> None:
        """Pass records to the side output of a tag; raises OptionError where there is none."""
        if tag not in self._sides:
            raise OptionError.of("tag", tag, f"expected one of {', '.join(self._sides)}")
        self._sides[tag].collect(batch)

    def emit_watermark(self, watermark: Watermark) -> None:
        """Pass a watermark to all."""
        for output in self._all:
            output.emit_watermark(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Pass a watermark status to all."""
        for output in self._all:
            output.emit_watermark_status(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Pass a latency marker to all."""
        for output in self._all:
            output.emit_latency_marker(marker)

    def notify_nothing_available(self) -> None:
        """Notify all that the operator has no input now."""
        for output in self._all:
            output.notify_nothing_available()

    def flush(self) -> None:
        """Flush all."""
        for output in self._all:
            output.flush()

    def close(self) -> None:
        """Close all."""
        for output in self._all:
            output.close()
