"""An output that writes down what it gets."""

from arrow_format import LatencyMarker, Watermark, WatermarkStatus


class RecordedOutput:
    """Keeps elements in ``events``: batches as they are, the rest as it came or by its name."""

    def __init__(self, fail_at=None):
        self.events = []
        self._fail_at = fail_at

    def _add(self, event):
        if len(self.events) == self._fail_at:
            raise RuntimeError("downstream broke")
        self.events.append(event)

    def collect(self, batch):
        self._add(batch)

    def emit_watermark(self, watermark):
        assert isinstance(watermark, Watermark)
        self._add(watermark)

    def emit_watermark_status(self, status):
        assert isinstance(status, WatermarkStatus)
        self._add(status)

    def emit_latency_marker(self, marker):
        assert isinstance(marker, LatencyMarker)
        self._add(marker)

    def notify_nothing_available(self):
        self._add("nothing available")

    def flush(self):
        self._add("flush")

    def close(self):
        self._add("close")

    def take(self, column="id"):
        """Events so far, a batch as the set of one column's values next to others; then forget."""
        taken, self.events = self.events, []
        joined = []
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
        return [sorted(one) if isinstance(one, list) else one for one in joined]


class Clock:
    """Monotonic seconds that go on when they are told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now
