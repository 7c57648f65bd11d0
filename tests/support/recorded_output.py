"""An output that records what it gets, and a clock that tests set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrow_format import LatencyMarker, Watermark, WatermarkStatus

if TYPE_CHECKING:
    import pyarrow as pa


class RecordedOutput:
    """Keeps elements in ``events``: batches as they are, the rest as it came or by its name."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.events: list[Any] = []
        self._fail_at = fail_at

    def _add(self, event: object) -> None:
        if len(self.events) == self._fail_at:
            raise RuntimeError("downstream broke")
        self.events.append(event)

    def collect(self, batch: pa.RecordBatch) -> None:
        self._add(batch)

    def emit_watermark(self, watermark: Watermark) -> None:
        assert isinstance(watermark, Watermark)
        self._add(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        assert isinstance(status, WatermarkStatus)
        self._add(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        assert isinstance(marker, LatencyMarker)
        self._add(marker)

    def notify_nothing_available(self) -> None:
        self._add("nothing available")

    def flush(self) -> None:
        self._add("flush")

    def close(self) -> None:
        self._add("close")

    def take(self, column: str = "id") -> list[Any]:
        """Return the events so far, and forget them.

        Adjacent batches are one list of the sorted values of `column`.
        """
        taken, self.events = self.events, []
        joined: list[Any] = []
        for event in taken:
            if not hasattr(event, "num_rows"):
                joined.append(event)
                continue
            values = event.column(column).to_pylist()
            assert values, "an empty batch was emitted"
            if joined and isinstance(joined[-1], list):
                joined[-1].extend(values)
            else:
                joined.append(values)
        return [sorted(event) if isinstance(event, list) else event for event in joined]


class Clock:
    """Monotonic seconds that only tests advance."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
