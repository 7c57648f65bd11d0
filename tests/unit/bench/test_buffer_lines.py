"""Ratios of the part ``buffer`` of the benchmarks, and the updates that it measures."""

import pyarrow as pa
import pytest

from integration.bench.buffer import HELD_ROWS, LABELS, measure_once, updates_of
from integration.bench.buffer_lines import BUFFERED, COUNTED, GATHER, UNBUFFERED, buffer_lines
from integration.bench.results import Timing


def timing(label, seconds, cpu):
    return Timing(label, (seconds,), cpu_seconds=(cpu,))


@pytest.mark.parametrize(("cpu", "verdict"), [(0.15, "pass"), (0.151, "short")])
def test_a_row_may_take_100_ns_and_a_gather_of_processor_time(cpu, verdict):
    timings = {
        COUNTED: timing(COUNTED, 9.0, cpu),
        GATHER: timing(GATHER, 9.0, 0.05),
        BUFFERED: timing(BUFFERED, 2.0, 2.0),
        UNBUFFERED: timing(UNBUFFERED, 3.0, 3.0),
    }
    rows, cost, speed = buffer_lines(
        "c", timings, rows=(1_000_000, 100_000), updates=10, has_cost_target=True
    )
    assert (rows.ratio, rows.verdict) == (0.1, "pass")
    assert (cost.ours_value, cost.other_value) == pytest.approx((cpu * 1_000, 150))
    assert (cost.unit, cost.verdict) == ("ns", verdict)
    assert (speed.ratio, speed.verdict) == (1.5, "")
    rows, cost, _ = buffer_lines(
        "c", timings, rows=(1_000_000, 100_001), updates=10, has_cost_target=False
    )
    assert (rows.verdict, cost.verdict) == ("short", "")


def test_updates_are_as_many_per_key_as_they_say():
    rows = pa.Table.from_batches(updates_of("integers", 10, HELD_ROWS, HELD_ROWS))
    counts = rows["page"].value_counts().flatten()[1]
    assert len(counts) == HELD_ROWS // 10
    assert set(counts.to_pylist()) == {10}


@pytest.mark.parametrize("label", LABELS)
def test_every_contender_runs(label, tmp_path):
    found = measure_once(label, "texts", 10, 20_000, 40_000, str(tmp_path))
    assert found["num_rows"] == (4_000 if label in (COUNTED, BUFFERED) else 40_000)
    assert found["seconds"] > 0
