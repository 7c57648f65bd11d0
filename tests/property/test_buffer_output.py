"""A buffered output against a model of its rules in plain Python: any elements, in any order."""

import math
from datetime import date, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import BufferOutput, LatencyMarker, SideOutputs, Watermark, WatermarkStatus
from tests.support.guarantees import guarantee
from tests.support.recorded_output import Clock, RecordedOutput

INTERVAL = 60
LEAST_MEMORY = 64 << 10
LARGE = 9_000
"""Bytes of a row of which two fill the least memory."""

floats = st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1.5, None])
KEY_TYPES = {
    pa.int64(): st.sampled_from([0, 1, -(2**63), 2**63 - 1, None]),
    pa.int8(): st.sampled_from([0, 1, -128, None]),
    pa.bool_(): st.sampled_from([True, False, None]),
    pa.float64(): floats,
    pa.float32(): floats,
    pa.string(): st.sampled_from(["", "a", "b", None]),
    pa.binary(): st.sampled_from([b"", b"\0", None]),
    pa.date32(): st.sampled_from([date(1960, 1, 1), date(2020, 1, 1), None]),
    pa.decimal128(30, 2): st.sampled_from([Decimal("-1.00"), Decimal(10**20), None]),
    pa.list_(pa.float64()): st.one_of(st.none(), st.lists(floats, max_size=2)),
    pa.struct({"x": pa.float32(), "y": pa.string()}): st.one_of(
        st.none(), st.fixed_dictionaries({"x": floats, "y": st.sampled_from(["", None])})
    ),
}


def canonical(value):
    """Equal exactly for values that are one key."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, list):
        return tuple(map(canonical, value))
    if isinstance(value, dict):
        return tuple(canonical(value[name]) for name in sorted(value))
    return value


class Model:
    """The rules, one record at a time."""

    def __init__(self, has_time):
        self.has_time = has_time
        self.last_flush = 1000.0
        self.rows = {}
        self.controls = []
        self.markers = {}
        self.expected = []

    def collect(self, row):
        self.rows.pop(row["key"], None)
        self.rows[row["key"]] = row

    def control(self, element):
        if not self.rows:
            self.expected.append(element)
        elif isinstance(element, LatencyMarker):
            subtask = element.operator, element.subtask
            held = self.markers.get(subtask, element)
            self.markers[subtask] = min(held, element, key=lambda one: one.marked_time)
        else:
            self.controls = [one for one in self.controls if type(one) is not type(element)]
            self.controls.append(element)

    def flush_when_due(self, now):
        if now - self.last_flush >= INTERVAL:
            self.flush(now)

    def flush(self, now):
        if not self.rows:
            return
        self.last_flush = now
        marks = [one.timestamp for one in self.controls if isinstance(one, Watermark)]
        later = [
            row["id"]
            for row in self.rows.values()
            if self.has_time and marks and row["time"] is not None and row["time"] > marks[0]
        ]
        early = [row["id"] for row in self.rows.values() if row["id"] not in later]
        self.emit(early)
        self.expected += self.controls
        self.emit(later)
        self.expected += self.markers.values()
        self.rows, self.controls, self.markers = {}, [], {}

    def emit(self, ids):
        if not ids:
            return
        if self.expected and isinstance(self.expected[-1], list):
            self.expected[-1] = sorted(self.expected[-1] + ids)
        else:
            self.expected.append(sorted(ids))


@st.composite
def runs(draw):
    """Types of the keys, whether there is an event time, and the steps."""
    types = draw(st.lists(st.sampled_from(list(KEY_TYPES)), max_size=2))
    times = st.one_of(st.none(), st.integers(0, 4))
    row = st.tuples(st.tuples(*(KEY_TYPES[one] for one in types)), times, st.booleans())
    step = st.one_of(
        st.lists(row, max_size=6),
        st.integers(0, 4).map(Watermark),
        st.sampled_from(WatermarkStatus),
        st.builds(LatencyMarker, st.integers(0, 9), st.integers(0, 1), st.sampled_from("ab")),
        st.sampled_from([0.5, 30.0, 60.0]),
        st.sampled_from(["nothing available", "flush", "side"]),
    )
    return types, draw(st.booleans()), draw(st.lists(step, max_size=25))


def batch_of(types, rows):
    """Rows as a batch; each third column name is a key's."""
    columns = {
        f"k{i}": pa.array([row["raw"][i] for row in rows], one) for i, one in enumerate(types)
    }
    columns["time"] = pa.array([row["time"] for row in rows], pa.int32())
    columns["id"] = pa.array([row["id"] for row in rows], pa.int64())
    columns["fill"] = pa.array(["x" * (LARGE if row["large"] else 1) for row in rows], pa.string())
    return pa.record_batch(columns)


class Run:
    """The output and the model, side by side."""

    def __init__(self, types, has_time, *, memory_buffer_only, max_buffered_bytes):
        self.types = types
        self.clock = Clock()
        self.downstream, self.side = RecordedOutput(), RecordedOutput()
        self.output = BufferOutput(
            SideOutputs(self.downstream, {"late": self.side}),
            keys=[f"k{i}" for i in range(len(types))],
            max_interval=timedelta(seconds=INTERVAL),
            memory_buffer_only=memory_buffer_only,
            max_buffered_bytes=max_buffered_bytes,
            timestamp="time" if has_time else None,
            clock=self.clock,
        )
        self.model = Model(has_time)
        self.num_rows = 0

    def rows(self, drawn):
        numbered = enumerate(drawn, self.num_rows)
        self.num_rows += len(drawn)
        return [
            {"key": tuple(map(canonical, raw)), "raw": raw, "time": time, "large": large, "id": id_}
            for id_, (raw, time, large) in numbered
        ]

    def step(self, step):
        model, output = self.model, self.output
        if isinstance(step, list):
            self.collect(self.rows(step))
        elif isinstance(step, float):
            self.clock.now += step
        elif step == "side":
            self.num_rows += 1
            output.collect_side("late", pa.record_batch({"id": [self.num_rows]}))
            assert self.side.take() == [[self.num_rows]], "it passes at once"
        elif step == "flush":
            output.flush()
            model.flush(self.clock.now)
            model.expected.append(step)
        elif step == "nothing available":
            output.notify_nothing_available()
            model.flush(self.clock.now)
            model.expected.append(step)
        else:
            if isinstance(step, Watermark):
                output.emit_watermark(step)
            elif isinstance(step, WatermarkStatus):
                output.emit_watermark_status(step)
            else:
                output.emit_latency_marker(step)
            model.control(step)
            model.flush_when_due(self.clock.now)
        self.compare()

    def collect(self, rows):
        self.output.collect(batch_of(self.types, rows))
        for row in rows:
            self.model.collect(row)
        self.model.flush_when_due(self.clock.now)

    def close(self):
        self.output.close()
        self.model.flush(self.clock.now)
        self.model.expected.append("close")
        self.compare()

    def compare(self):
        expected, self.model.expected = self.model.expected, []
        assert self.downstream.take() == expected
        assert self.side.take() == [each for each in expected if not isinstance(each, list)]


@guarantee("buffered output")
@pytest.mark.parametrize("max_buffered_bytes", [64 << 20, LEAST_MEMORY], ids=["held", "spilled"])
@given(run=runs())
def test_an_output_does_what_the_rules_say(run, max_buffered_bytes):
    types, has_time, steps = run
    both = Run(types, has_time, memory_buffer_only=False, max_buffered_bytes=max_buffered_bytes)
    for step in steps:
        both.step(step)
    assert both.output.spilled_bytes == 0 or max_buffered_bytes == LEAST_MEMORY
    both.close()


@guarantee("memory buffer only")
@given(runs())
def test_an_output_in_memory_only_loses_and_doubles_nothing(run):
    types, _, steps = run
    clock, downstream = Clock(), RecordedOutput()
    output = BufferOutput(
        downstream,
        keys=[f"k{i}" for i in range(len(types))],
        max_interval=timedelta(seconds=INTERVAL),
        memory_buffer_only=True,
        max_buffered_bytes=LEAST_MEMORY,
        clock=clock,
    )
    helper = Run(types, False, memory_buffer_only=True, max_buffered_bytes=LEAST_MEMORY)
    latest, key_of = {}, {}
    for step in steps:
        if not isinstance(step, list):
            continue
        rows = helper.rows(step)
        for row in rows:
            latest[row["key"]] = row["id"]
            key_of[row["id"]] = row["key"]
        output.collect(batch_of(types, rows))
        assert output.spilled_bytes == 0
    output.close()
    emitted = [number for batch in downstream.events[:-1] for number in batch["id"].to_pylist()]
    assert len(set(emitted)) == len(emitted)
    last = {key_of[number]: number for number in emitted}
    assert last == latest
    # Of one key, rows come out in the order in which they went in.
    for key in latest:
        mine = [number for number in emitted if key_of[number] == key]
        assert mine == sorted(mine)
    assert output.num_rows_in == len(key_of)
    assert output.num_rows_out == len(emitted)


@pytest.mark.parametrize("types", [[], [pa.int64()], [pa.string(), pa.list_(pa.float64())]])
def test_the_model_meets_spilled_rows(types):
    # Random steps may happen to need no disk; these do.
    both = Run(types, True, memory_buffer_only=False, max_buffered_bytes=LEAST_MEMORY)
    raws = {0: [()], 1: [(0,), (1,), (None,)], 2: [("a", [math.nan]), ("a", [None]), (None, None)]}
    for number in range(8):
        drawn = [(raw, number % 5, True) for raw in raws[len(types)]]
        both.step(drawn)
        both.step(Watermark(number % 3))
    both.close()
    assert (both.output.spilled_bytes > 0) == bool(types)
