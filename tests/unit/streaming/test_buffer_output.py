"""Buffered outputs, rule by rule; the property test tries them all together."""

import gc
import math
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import (
    BufferOutput,
    ClosedError,
    FlushOptions,
    FlushReason,
    LatencyMarker,
    OperatorAttributes,
    OperatorAttributesBuilder,
    OptionError,
    SchemaError,
    SideOutputs,
    Watermark,
    WatermarkStatus,
    decorated,
)
from arrow_format.streaming.options import is_output_buffered
from tests.support.guarantees import guarantee
from tests.support.recorded_output import Clock, RecordedOutput

MINUTE = timedelta(minutes=1)
ACTIVE, IDLE = WatermarkStatus.ACTIVE, WatermarkStatus.IDLE


def rows(*ids, key=None, time=None):
    keys = list(ids) if key is None else [key] * len(ids)
    times = pa.array(list(ids) if time is None else time, pa.int64())
    return pa.record_batch({"k": keys, "time": times, "id": list(ids)})


class Bench:
    """An output with its clock and what comes after it."""

    def __init__(self, **options):
        self.clock = Clock()
        self.downstream = RecordedOutput()
        settings = {"keys": ["k"], "max_interval": MINUTE, "clock": self.clock}
        self.output = BufferOutput(self.downstream, **settings | options)

    def take(self):
        return self.downstream.take()


@pytest.fixture
def bench():
    return Bench(timestamp="time")


# Rules -------------------------------------------------------------------------------------------


def test_a_flush_is_in_order(bench):
    marker = LatencyMarker(1.0, subtask=0)
    bench.output.collect(rows(9, 1))
    bench.output.emit_latency_marker(marker)
    bench.output.emit_watermark_status(ACTIVE)
    bench.output.emit_watermark(Watermark(5))
    bench.output.collect(rows(5, 6))
    bench.output.flush()
    assert bench.take() == [[1, 5], ACTIVE, Watermark(5), [6, 9], marker, "flush"]


def test_of_markers_the_earliest_of_each_subtask_counts(bench):
    bench.output.collect(rows(1))
    late, early = LatencyMarker(2.0, 0), LatencyMarker(1.0, 0)
    other, elsewhere = LatencyMarker(3.0, 1), LatencyMarker(4.0, 0, "map")
    for marker in (late, other, early, elsewhere, LatencyMarker(9.0, 1)):
        bench.output.emit_latency_marker(marker)
    bench.output.flush()
    assert bench.take() == [[1], early, other, elsewhere, "flush"]


def test_records_without_a_time_are_early_and_without_a_watermark_none_is_late(bench):
    bench.output.collect(rows(1, 2, time=[None, 99]))
    bench.output.emit_watermark(Watermark(5))
    bench.output.flush()
    assert bench.take() == [[1], Watermark(5), [2], "flush"]
    bench.output.collect(rows(1, 2, time=[None, 99]))
    bench.output.emit_watermark_status(IDLE)
    bench.output.flush()
    assert bench.take() == [[1, 2], IDLE, "flush"]


@pytest.mark.parametrize(
    ("type_", "times", "watermark"),
    [
        (
            pa.timestamp("us", "UTC"),
            [1_000_000, 2_000_000],
            datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        ),
        (pa.timestamp("ms"), [1_000, 2_000], datetime(1970, 1, 1, 0, 0, 1)),
        (pa.timestamp("s"), [1, 2], 1),
        (pa.date32(), [1, 2], date(1970, 1, 2)),
        (pa.int8(), [1, 127], 126),
        (pa.uint64(), [1, 2**64 - 1], 2**63),
    ],
)
def test_event_times_of_several_types(type_, times, watermark):
    bench = Bench(timestamp="time")
    batch = pa.record_batch({"k": ["a", "b"], "time": pa.array(times, type_), "id": [1, 2]})
    bench.output.collect(batch)
    bench.output.emit_watermark(Watermark(watermark))
    bench.output.flush()
    assert bench.take() == [[1], Watermark(watermark), [2], "flush"]


@pytest.mark.parametrize(("mark", "early"), [(2**63 - 1, True), (-(2**63), False)])
def test_the_first_and_the_last_watermark_of_a_stream_go_with_small_times(mark, early):
    bench = Bench(timestamp="time")
    times = pa.array([-128, 127], pa.int8())
    bench.output.collect(pa.record_batch({"k": ["a", "b"], "time": times, "id": [1, 2]}))
    bench.output.emit_watermark(Watermark(mark))
    bench.output.flush()
    events = [[1, 2], Watermark(mark)]
    assert bench.take() == [*(events if early else events[::-1]), "flush"]


# Triggers ----------------------------------------------------------------------------------------


def test_it_flushes_when_the_interval_has_passed_since_the_last_flush(bench):
    bench.output.collect(rows(1))
    bench.clock.now += 59
    bench.output.collect(rows(2))
    assert bench.take() == []
    bench.clock.now += 1
    bench.output.collect(rows(3))
    assert bench.take() == [[1, 2, 3]]
    bench.clock.now += 59
    bench.output.collect(rows(4))
    bench.output.flush()
    assert bench.take() == [[4], "flush"]
    bench.clock.now += 59  # two minutes since the first, less than one since the last
    bench.output.collect(rows(5))
    assert bench.take() == []
    bench.clock.now += 1
    bench.output.emit_watermark(Watermark(7))
    assert bench.take() == [[5], Watermark(7)]
    assert bench.output.flushes == {FlushReason.INTERVAL: 2, FlushReason.ASKED: 1}


def test_it_flushes_when_nothing_is_available_and_when_it_is_closed(bench):
    bench.output.collect(rows(1))
    bench.output.notify_nothing_available()
    assert bench.take() == [[1], "nothing available"]
    bench.output.collect(rows(2))
    bench.output.close()
    bench.output.close()
    assert bench.take() == [[2], "close"]
    assert bench.output.flushes == {FlushReason.NOTHING_AVAILABLE: 1, FlushReason.CLOSE: 1}


def wide(first, last):
    ids = np.arange(first, last)
    return pa.record_batch({"k": ids, "id": ids, "fill": ["x" * 1_000] * len(ids)})


def test_a_full_memory_flushes_where_it_may_not_spill(tmp_path):
    bench = Bench(memory_buffer_only=True, max_buffered_bytes=192 << 10, directory=str(tmp_path))
    for start in range(0, 1_000, 10):
        bench.output.collect(wide(start, start + 10))
        assert bench.output.num_bytes <= 64 << 10
        assert not list(tmp_path.iterdir())
    assert bench.output.flushes[FlushReason.MEMORY_FULL] > 10
    assert bench.output.num_rows_out > 900
    bench.output.collect(wide(1_000, 3_000))  # many times what fits
    bench.output.close()
    emitted = [event for event in bench.take() if event != "close"]
    assert sorted(row for event in emitted for row in event) == list(range(3_000))


def test_rows_that_are_replaced_do_not_fill_the_memory(tmp_path):
    for memory_buffer_only in (True, False):
        bench = Bench(
            memory_buffer_only=memory_buffer_only,
            max_buffered_bytes=192 << 10,
            directory=str(tmp_path),
        )
        for _ in range(100):
            bench.output.collect(wide(0, 20))
        assert bench.output.flushes == {}
        assert not list(tmp_path.iterdir())
        bench.output.close()
        assert bench.take() == [list(range(20)), "close"]


@pytest.mark.slow
@guarantee("spilled rows")
@pytest.mark.parametrize("ending", ["flush", "close", "interval", "release", "drop", "downstream"])
def test_it_spills_in_bounded_memory_and_leaves_nothing(tmp_path, ending):
    bench = Bench(max_buffered_bytes=192 << 10, directory=str(tmp_path))
    for start in [*range(0, 1_000, 50), *range(0, 500, 50)]:
        bench.output.collect(wide(start, start + 50))
        assert bench.output.num_bytes <= 64 << 10
    assert len(list(tmp_path.iterdir())) == 1
    assert bench.take() == []
    emitted = list(range(1_000))
    if ending == "flush":
        bench.output.flush()
        assert bench.take() == [emitted, "flush"]
        assert bench.output.spilled_bytes > 0
    elif ending == "close":
        bench.output.close()
        assert bench.take() == [emitted, "close"]
    elif ending == "interval":
        bench.clock.now += 60
        bench.output.collect(wide(1_000, 1_001))
        assert bench.take() == [[*emitted, 1_000]]
    elif ending == "release":
        bench.output.release()
        assert bench.take() == []
    elif ending == "drop":
        bench.output = None
        gc.collect()
    else:
        bench.downstream._fail_at = 1
        with pytest.raises(RuntimeError, match="downstream broke"):
            bench.output.flush()
        with pytest.raises(ClosedError):
            bench.output.flush()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_later_records_are_found_among_spilled_ones(tmp_path):
    bench = Bench(max_buffered_bytes=192 << 10, directory=str(tmp_path), timestamp="id")
    for start in range(0, 1_000, 50):
        bench.output.collect(wide(start, start + 50))
    bench.output.emit_watermark(Watermark(700))
    bench.output.flush()
    assert bench.take() == [list(range(701)), Watermark(700), list(range(701, 1_000)), "flush"]


# Errors ------------------------------------------------------------------------------------------


def test_an_output_whose_next_one_failed_is_closed(bench):
    bench.downstream._fail_at = 0
    with pytest.raises(RuntimeError, match="downstream broke"):
        bench.output.emit_watermark(Watermark(1))
    with pytest.raises(ClosedError):
        bench.output.emit_watermark(Watermark(2))


def test_a_closed_output_says_so(bench):
    bench.output.close()
    for call in (
        lambda: bench.output.collect(rows(1)),
        lambda: bench.output.emit_watermark(Watermark(1)),
        lambda: bench.output.emit_watermark_status(IDLE),
        lambda: bench.output.emit_latency_marker(LatencyMarker(1, 0)),
        bench.output.flush,
        bench.output.notify_nothing_available,
    ):
        with pytest.raises(ClosedError, match="closed"):
            call()
    assert bench.take() == ["close"]


def test_as_a_context_it_closes_or_after_an_error_releases():
    bench = Bench()
    with bench.output as output:
        output.collect(rows(1))
    assert bench.take() == [[1], "close"]
    bench = Bench()
    bench.output.collect(rows(1))
    with pytest.raises(SchemaError), bench.output as output:
        output.collect(None)
    assert bench.take() == []
    with pytest.raises(ClosedError):
        bench.output.flush()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_interval": None}, "max_interval=None"),
        ({"max_interval": timedelta(0)}, r"max_interval=datetime.timedelta\(0\)"),
        ({"max_interval": "2min"}, "max_interval='2min'"),
        ({"memory_buffer_only": 1}, "memory_buffer_only=1"),
        ({"max_buffered_bytes": 1_000}, r"max_buffered_bytes=1000.*65,536"),
        ({"keys": ["k", "k"]}, r"keys=\['k', 'k'\]: a column is named twice"),
        ({"keys": 5}, "keys=5"),
        ({"timestamp": 5}, "timestamp=5"),
        ({"clock": None}, "clock=None"),
        ({"directory": 5}, "directory=5"),
    ],
)
def test_bad_options_are_named(options, said):
    with pytest.raises(OptionError, match=said):
        Bench(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keys": "nope"}, "'nope' is not there"),
        ({"timestamp": "nope"}, "timestamp: column 'nope' is not there; columns are k, time"),
        ({"timestamp": "s"}, "timestamp='s': the column is string"),
        ({"keys": ["m"]}, "'m' of type map"),
    ],
)
def test_columns_that_do_not_fit_are_named(options, said):
    maps = pa.array([[]], pa.map_(pa.int8(), pa.int8()))
    batch = pa.record_batch({"k": [1], "time": [1], "s": ["x"], "m": maps})
    bench = Bench(**options)
    with pytest.raises(SchemaError, match=said):
        bench.output.collect(batch)


def test_another_schema_is_refused_and_changes_nothing(bench):
    bench.output.collect(rows(1))
    with pytest.raises(SchemaError, match="id"):
        bench.output.collect(rows(2).select(["k", "time"]))
    with pytest.raises(SchemaError, match="RecordBatch, not a Table"):
        bench.output.collect(pa.table(rows(2)))
    bench.output.flush()
    assert bench.take() == [[1], "flush"]


def test_watermarks_that_cannot_be_compared_are_refused(bench):
    bench.output.collect(rows(1))
    for wrong in ("x", None, 1.5, -0.5, True, math.nan):
        with pytest.raises(OptionError, match=r"watermark .* cannot be compared.*'time': expected"):
            bench.output.emit_watermark(Watermark(wrong))
    with pytest.raises(OptionError, match=r"cannot be compared.*'time', which are int64"):
        bench.output.emit_watermark(Watermark(date(2020, 1, 1)))
    with pytest.raises(OptionError, match="5 is a int: expected a Watermark"):
        bench.output.emit_watermark(5)
    with pytest.raises(OptionError, match="expected a WatermarkStatus"):
        bench.output.emit_watermark_status("idle")
    with pytest.raises(OptionError, match="expected a LatencyMarker"):
        bench.output.emit_latency_marker(1.0)
    bench.output.flush()
    assert bench.take() == [[1], "flush"]


def test_watermarks_are_refused_whether_or_not_rows_are_held(bench):
    with pytest.raises(OptionError, match="watermark 'x' cannot be compared"):
        bench.output.emit_watermark(Watermark("x"))
    assert bench.take() == []


@pytest.mark.parametrize("type_", [pa.date32(), pa.date64(), pa.timestamp("s"), pa.int8()])
@pytest.mark.parametrize(("watermark", "is_early"), [(2**63 - 1, True), (-(2**63), False)])
def test_watermarks_of_the_ends_of_a_stream(type_, watermark, is_early):
    output = RecordedOutput()
    buffer = BufferOutput(output, keys="k", timestamp="t", max_interval=timedelta(days=1))
    day = 86_400_000 if type_ == pa.date64() else 1
    buffer.collect(pa.record_batch({"k": [1, 2], "t": pa.array([day, -day], type_)}))
    buffer.emit_watermark(Watermark(watermark))
    buffer.flush()
    assert [isinstance(event, Watermark) for event in output.events[:2]] == [not is_early, is_early]


@pytest.mark.parametrize("call", ["collect", "flush", "close", "emit_watermark", "notify"])
@pytest.mark.parametrize("num_rows", [1, 2_000], ids=["in memory", "spilled"])
def test_whoever_is_given_rows_cannot_call_back(call, num_rows):
    """A row that came while others are given out would be lost, or they would come twice."""
    emitted_rows = []

    class CallsBack(RecordedOutput):
        def collect(self, batch):
            super().collect(batch)
            calls = {
                "collect": lambda: buffer.collect(many(1)),
                "emit_watermark": lambda: buffer.emit_watermark(Watermark(1)),
                "notify": buffer.notify_nothing_available,
                "flush": buffer.flush,
                "close": buffer.close,
            }
            with pytest.raises(ClosedError, match="is flushing and takes nothing"):
                calls[call]()
            emitted_rows.append(batch.num_rows)

    def many(n):
        return pa.record_batch({"k": np.arange(n), "v": np.arange(n)})

    buffer = BufferOutput(
        CallsBack(), keys="k", max_interval=timedelta(days=1), max_buffered_bytes=64 << 10
    )
    buffer.collect(many(num_rows))
    buffer.flush()
    assert sum(emitted_rows) == num_rows
    assert (buffer.spilled_bytes > 0) == (num_rows > 1)
    buffer.collect(many(1))
    buffer.flush()
    assert sum(emitted_rows) == num_rows + 1


def test_a_clock_that_is_set_back_delays_a_flush_by_an_interval_at_most(bench):
    bench.clock.now = 1e9
    bench.output.collect(rows(1))
    assert bench.take() == [[1]]
    bench.clock.now = 5.0
    bench.output.collect(rows(2))
    assert bench.take() == []
    bench.clock.now = 5.0 + MINUTE.total_seconds()
    bench.output.collect(rows(3))
    assert len(bench.take()) == 1


def test_encodings_come_out_plain(bench):
    batch = rows(1, 2).set_column(0, "k", pa.array(["a", "a"]).dictionary_encode())
    bench.output.collect(batch)
    bench.output.flush()
    assert bench.downstream.events[0].to_pylist() == [{"k": "a", "time": 2, "id": 2}]


# Who is decorated --------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [None, MINUTE])
@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("keys", [None, (), "k", ["k"]])
@pytest.mark.parametrize("parallelism", [None, 1, 2])
def test_only_idempotent_keyed_or_single_streams_with_an_interval(
    interval, idempotent, keys, parallelism
):
    attributes = OperatorAttributesBuilder().set_output_idempotent(idempotent).build()
    assert attributes == OperatorAttributes(is_output_idempotent=idempotent)
    expected = interval is not None and idempotent and (bool(keys) or parallelism == 1)
    decided = is_output_buffered(
        attributes, max_interval=interval, is_keyed=bool(keys), parallelism=parallelism
    )
    assert decided == expected
    downstream = RecordedOutput()
    options = FlushOptions(max_interval=interval)
    output = decorated(downstream, attributes, options, keys=keys, parallelism=parallelism)
    output.collect(rows(1, 2))
    assert bool(downstream.events) != expected
    output.close()
    sent = [2] if expected and not keys else [1, 2]
    assert downstream.take() == [sent, "close"]


def test_attributes_have_defaults_and_are_checked():
    assert OperatorAttributesBuilder().build() == OperatorAttributes()
    assert not OperatorAttributes().is_output_idempotent
    with pytest.raises(OptionError, match="is_output_idempotent='yes'"):
        OperatorAttributesBuilder().set_output_idempotent("yes").build()


# Side outputs ------------------------------------------------------------------------------------


def with_sides(**options):
    """An output of three results, and what records each; it is buffered if the options allow."""
    main, late, wrong = RecordedOutput(), RecordedOutput(), RecordedOutput()
    output = decorated(
        SideOutputs(main, {"late": late, "wrong": wrong}),
        OperatorAttributes(is_output_idempotent=True),
        FlushOptions(**options),
        keys="k",
        clock=Clock(),
    )
    return output, main, late, wrong


@guarantee("buffered output")
def test_side_results_pass_at_once_and_all_else_goes_to_every_output():
    output, main, late, wrong = with_sides(max_interval=MINUTE)
    output.collect(rows(1, 2, key=1))
    output.emit_watermark(Watermark(5))
    output.collect_side("late", rows(3, 4, key=1))
    assert (main.take(), late.take(), wrong.take()) == ([], [[3, 4]], [])
    output.flush()
    assert (main.take(), late.take()) == ([[2], Watermark(5), "flush"], [Watermark(5), "flush"])
    output.emit_watermark_status(IDLE)
    output.emit_latency_marker(marker := LatencyMarker(1, 0))
    output.notify_nothing_available()
    output.close()
    expected = [IDLE, marker, "nothing available", "close"]
    assert main.take() == late.take() == expected
    assert wrong.take() == [Watermark(5), "flush", *expected]
    with pytest.raises(ClosedError):
        output.collect_side("late", rows(5))


@guarantee("buffered output")
def test_what_is_due_follows_side_rows():
    main, late, clock = RecordedOutput(), RecordedOutput(), Clock()
    output = BufferOutput(
        SideOutputs(main, {"late": late}), keys="k", max_interval=MINUTE, clock=clock
    )
    output.collect(rows(1, 2, key=1))
    output.emit_watermark(Watermark(5))
    clock.now += 59
    output.collect_side("late", rows(3))
    assert (main.take(), late.take()) == ([], [[3]])
    clock.now += 1
    output.collect_side("late", rows(4))
    assert (main.take(), late.take()) == ([[2], Watermark(5)], [[4], Watermark(5)])
    assert output.flushes == {FlushReason.INTERVAL: 1}


def test_side_outputs_without_a_buffer_and_of_two():
    output, main, late, _ = with_sides(max_interval=None)
    assert isinstance(output, SideOutputs)
    output.collect(rows(1))
    output.collect_side("late", rows(2))
    assert (main.take(), late.take()) == ([[1]], [[2]])
    twice = BufferOutput(
        BufferOutput(output, keys="k", max_interval=MINUTE), keys="k", max_interval=MINUTE
    )
    twice.collect_side("late", rows(3))
    assert late.take() == [[3]]


def test_a_tag_that_no_output_has():
    output, main, *_ = with_sides(max_interval=MINUTE)
    output.collect(rows(1))
    with pytest.raises(OptionError, match="tag='early': expected one of late, wrong"):
        output.collect_side("early", rows(2))
    plain = BufferOutput(main, keys="k", max_interval=MINUTE)
    with pytest.raises(OptionError, match="tag='late': the next output has no side outputs"):
        plain.collect_side("late", rows(2))
    plain.close()


def test_an_error_of_a_side_output_drops_what_is_buffered():
    main, broken = RecordedOutput(), RecordedOutput(fail_at=0)
    output = BufferOutput(SideOutputs(main, {"late": broken}), keys="k", max_interval=MINUTE)
    output.collect(rows(1))
    with pytest.raises(RuntimeError, match="downstream broke"):
        output.collect_side("late", rows(2))
    with pytest.raises(ClosedError):
        output.collect(rows(3))
    assert main.take() == []
