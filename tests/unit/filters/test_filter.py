"""Filters as values, literals next to the values of a column, and rows that pass."""

import datetime as dt
import pickle
from decimal import Decimal
from operator import and_, ge, gt, invert, lt, ne, or_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.errors import OptionError, SchemaError
from arrow_format.filters.filter import bind_filter
from arrow_format.filters.spark_rules import SparkSettings

NAN = float("nan")
IN_UTC = SparkSettings("UTC")
C = pc.field("c")


def passing(filter_, values, type_, settings=IN_UTC):
    """Return the values that pass; rows before and behind show that slices are read right."""
    rows = pa.array([None, *values, None], type_).slice(1, len(values))
    bound = bind_filter(filter_, pa.schema([("c", type_)]), settings=settings)
    mask = bound.mask([rows] * len(bound.columns), len(rows))
    return [value for value, passes in zip(rows.to_pylist(), mask, strict=True) if passes]


@pytest.mark.parametrize(
    ("type_", "values", "filter_", "expected"),
    [
        (pa.int8(), [-128, 2, 3, None], C < 2.5, [-128, 2]),
        (pa.int8(), [2, 3, None], C == 2.5, []),
        (pa.int8(), [2, 3, None], C != 2.5, [2, 3]),
        (pa.int8(), [-128, 127, None], C < 128, [-128, 127]),
        (pa.int8(), [-128, 127, None], C >= 128, []),
        (pa.int8(), [-128, 127, None], -Decimal(10**30) <= C, [-128, 127]),
        (pa.int8(), [-128, 127, None], ~(C <= NAN), [-128, 127]),
        (pa.uint64(), [0, 2**64 - 1], C > -1, [0, 2**64 - 1]),
        (pa.uint64(), [0, 2**64 - 1], C < 2.0**64, [0]),  # its double is 2**64
        (pa.int64(), [2**53, 2**53 + 1, 2**53 + 2], C == 2.0**53, [2**53, 2**53 + 1]),
        (pa.int64(), [2**53, 2**53 + 1, 2**53 + 2], C == 2**53, [2**53]),
        (pa.int64(), [2**53, 2**53 + 1, 5], C.isin([2.0**53, 5.5]), [2**53, 2**53 + 1]),
        (pa.float32(), [0.1, 0.5], C == 0.1, []),
        (pa.float32(), [0.5, 2.0], C.isin(pa.array([0.5, 0.1], pa.float32())), [0.5]),
        (pa.float32(), [1.0, float("inf")], C < 1e300, [1.0]),
        (pa.float64(), [9007199254740992.0], C == 2**53 + 1, [9007199254740992.0]),
        (pa.float64(), [0.1], Decimal("0.1") == C, [0.1]),
        (pa.float16(), [np.float16(1), np.float16(2), None], C > 1.5, [2.0]),
        (pa.decimal128(5, 2), [Decimal("1.50"), Decimal("1.51")], Decimal("1.505") < C,
         [Decimal("1.51")]),
        (pa.decimal128(5, 2), [Decimal("999.99")], C < 1e300, [Decimal("999.99")]),
        (pa.decimal32(5, 2), [Decimal("1.50"), Decimal("2.00")], C.isin([1.5, 2]),
         [Decimal("1.50"), Decimal("2.00")]),
        (pa.decimal256(50, 2), [Decimal("1.50"), None], C == 1.5, [Decimal("1.50")]),
        (pa.string(), ["a", "é", "z", "\U0001f600"], C > "z", ["é", "\U0001f600"]),
        (pa.binary(), [b"\x7f", b"\x80", b""], C > b"\x7f", [b"\x80"]),
        (pa.binary(2), [b"ab", b"ac", None], C > b"ab\x00", [b"ac"]),
        (pa.binary(2), [b"ab", b"ac", None], C.isin([b"ab", b"a"]), [b"ab"]),
        (pa.date32(), [dt.date(2024, 1, 1), dt.date(2024, 1, 2)],
         dt.datetime(2024, 1, 1, 12) < C, [dt.date(2024, 1, 2)]),
        (pa.date64(), [dt.date(2024, 1, 1), dt.date(2024, 1, 2)], dt.date(2024, 1, 1) == C,
         [dt.date(2024, 1, 1)]),
        (pa.timestamp("s"), [dt.datetime(2024, 1, 1)], dt.datetime(2024, 1, 1, 0, 0, 0, 1) > C,
         [dt.datetime(2024, 1, 1)]),
        (pa.timestamp("s"), [dt.datetime(2024, 1, 1)], dt.date(2023, 12, 31) < C,
         [dt.datetime(2024, 1, 1)]),
        (pa.timestamp("us"), [dt.datetime(2024, 1, 1)],
         "c = TIMESTAMP '2024-01-01 00:00:00Z'", [dt.datetime(2024, 1, 1)]),
        (pa.timestamp("ns"), [0], pa.scalar(2**62, pa.timestamp("s")) > C,
         [dt.datetime(1970, 1, 1)]),
        (pa.time32("s"), [dt.time(1), dt.time(2)], dt.time(1, 0, 0, 5) >= C, [dt.time(1)]),
        (pa.duration("s"), [dt.timedelta(1), None], dt.timedelta(1) == C, [dt.timedelta(1)]),
        (pa.bool_(), [True, False, None], C > False, [True]),
        (pa.bool_(), [True, False, None], C.isin([True]), [True]),
        (pa.null(), [None], C == 1, []),
        (pa.null(), [None], C.is_null(), [None]),
        (pa.list_(pa.int8()), [[1], None], C.is_valid(), [[1]]),
    ],
)  # fmt: skip
def test_comparisons_keep_their_meaning(type_, values, filter_, expected):
    assert passing(filter_, values, type_) == expected


def test_nan_and_zeros_compare_as_in_spark():
    values = [1.0, NAN, -0.0, 0.0, None, float("inf")]

    def bits(found):
        return [np.float64(value).tobytes() for value in found]

    nan = "CAST('NaN' AS DOUBLE)"
    for type_ in (pa.float64(), pa.float32()):
        assert bits(passing(f"c = {nan}", values, type_)) == bits([NAN])
        assert bits(passing("c > 1D", values, type_)) == bits([NAN, float("inf")])
        assert bits(passing(f"c <= {nan}", values, type_)) == bits(
            [1, NAN, -0.0, 0.0, float("inf")]
        )
        assert bits(passing("c = 0D", values, type_)) == bits([-0.0, 0.0])
        listed = f"(0D, {nan})"
        assert bits(passing(f"c IN {listed}", values, type_)) == bits([NAN, -0.0, 0.0])
        assert bits(passing(f"c NOT IN {listed}", values, type_)) == bits([1, float("inf")])


def strict_and(left, right):
    return pc.Expression._call("and", [left, right], None)


@given(st.data())
def test_an_expression_finds_what_it_finds_in_a_table_of_pyarrow(data):
    table = pa.table(
        {
            "x": pa.array([1.0, NAN, None, -0.0, 0.0, float("inf"), 2.5]),
            "y": pa.array([1.0, 1.0, NAN, None, NAN, NAN, 2.0]),
            "f": pa.array([1.0, NAN, None, 0.5, -1.0, 2.0, NAN], pa.float32()),
            "i": pa.array([1, None, 3, 4, 1, 0, -1], pa.int32()),
            "b": pa.array([True, None, False, True, None, False, True]),
        }
    )
    x, y, f, i, b = map(pc.field, table.schema.names)
    numbers = st.sampled_from([1, 1.0, 0.0, NAN, 2.5, pa.scalar(None, pa.float64())])
    compared = st.sampled_from(["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"])
    leaves = st.one_of(
        st.builds(
            lambda column, method, other: getattr(column, method)(other),
            st.sampled_from([x, y, f, i]), compared, numbers | st.sampled_from([x, y, f]),
        ),
        st.sampled_from(
            [
                pc.is_nan(x), pc.is_nan(f), x.is_null(nan_is_null=True), y.is_valid(), b,
                i.isin([1]), i.isin([1, None]), i.isin([None]), i.isin([]),
                pc.is_in(i, pa.array([1, None]), skip_nulls=True), x.isin([1.0, 2.5]),
                x.isin([1.0, None]), x.isin([1]), b.isin([True]), b == False,  # noqa: E712
                pc.scalar(NAN) < x, pc.scalar(1.0) <= x,
            ]
        ),
    )  # fmt: skip
    expression = data.draw(
        st.recursive(
            leaves,
            lambda some: st.one_of(
                st.builds(invert, some),
                *(st.builds(join, some, some) for join in (and_, or_, strict_and)),
                st.builds(lambda one: one.is_null(), some),
            ),
            max_leaves=5,
        )
    )
    bound = bind_filter(expression, table.schema)
    columns = [table[name].combine_chunks() for name in bound.columns]
    found = np.flatnonzero(bound.mask(columns, table.num_rows)).tolist()
    numbered = table.append_column("row", pa.array(range(table.num_rows)))
    assert found == numbered.filter(expression)["row"].to_pylist()


@pytest.mark.parametrize("compared", [gt, ge, lt, ne])
def test_a_comparison_with_a_null_is_null_of_a_nan_too(compared):
    """Found at random: what is not greater than a null was a NaN."""
    table = pa.table({"x": [1.0, NAN, None]})
    null = pa.scalar(None, pa.float64())
    for condition in (compared(pc.field("x"), null), compared(pc.scalar(null), pc.field("x"))):
        for expression in (condition, ~condition):
            bound = bind_filter(expression, table.schema)
            columns = [table[name].combine_chunks() for name in bound.columns]
            assert not bound.mask(columns, 3).any()
            assert table.filter(expression).num_rows == 0


def test_in_with_nulls_and_without_values():
    values = [1, 2, None]
    assert passing("c IN (1, NULL)", values, pa.int32()) == [1]
    assert passing("c NOT IN (1, NULL)", values, pa.int32()) == []
    assert passing("c NOT IN (1)", values, pa.int32()) == [2]
    assert passing(C.isin([1, None]), values, pa.int32()) == [1, None]
    assert passing(~C.isin([1]), values, pa.int32()) == [2, None]
    assert passing(C.isin([]), values, pa.int32()) == []
    assert passing(~C.isin([]), values, pa.int32()) == values


def test_dates_and_local_times_are_instants_of_the_time_zone():
    """At 2 o'clock on 2024-03-31 clocks in Berlin were put forward to 3."""
    zoned = pa.timestamp("us", "UTC")
    berlin = SparkSettings("Europe/Berlin")
    midnight = dt.datetime(2024, 3, 30, 23, tzinfo=dt.UTC)
    assert len(passing("c = DATE '2024-03-31'", [midnight], zoned, berlin)) == 1
    skipped = dt.datetime(2024, 3, 31, 1, 30, tzinfo=dt.UTC)
    local = "c = TIMESTAMP_NTZ '2024-03-31 02:30:00'"
    assert len(passing(local, [skipped], zoned, berlin)) == 1
    twice = dt.datetime(2024, 10, 27, 0, 30, tzinfo=dt.UTC)
    local = "c = TIMESTAMP '2024-10-27 02:30:00'"
    assert len(passing(local, [twice], zoned, berlin)) == 1
    day = [dt.date(2024, 3, 31)]
    instant = "c = TIMESTAMP '2024-03-30 23:00:00Z'"
    assert passing(instant, day, pa.date32(), berlin) == day
    assert passing(instant, day, pa.date32()) == []
    later = "c >= TIMESTAMP '2024-03-31 00:00:00Z'"
    assert passing(later, day, pa.date32(), berlin) == []
    assert passing(instant, day, pa.date32(), SparkSettings("+01:00")) == day


@pytest.mark.parametrize(
    ("filter_", "type_"),
    [
        ("c >= TIMESTAMP '2024-06-01 03:00:00'", pa.timestamp("us", "UTC")),
        ("c >= '2024-06-01 03:00:00'", pa.timestamp("us", "UTC")),
        ("c >= DATE '2024-06-01'", pa.timestamp("us", "UTC")),
        ("c IN ('2024-06-01')", pa.timestamp("us", "UTC")),
        ("c >= TIMESTAMP '2024-06-01 03:00:00Z'", pa.date32()),
        ("c >= TIMESTAMP '2024-06-01 03:00:00Z'", pa.timestamp("us")),
        ("c >= CAST(DATE '2024-06-01' AS TIMESTAMP)", pa.timestamp("us", "UTC")),
        (dt.datetime(2024, 1, 1) == C, pa.timestamp("us", "UTC")),
        (dt.date(2024, 1, 1) == C, pa.timestamp("us", "UTC")),
        (dt.datetime(2024, 1, 1, tzinfo=dt.UTC) == C, pa.timestamp("us")),
    ],
)
def test_what_needs_a_time_zone_is_refused_without_one(filter_, type_):
    schema = pa.schema([("c", type_)])
    with pytest.raises(OptionError, match=r"names no time zone .* option timeZone .* time_zone="):
        bind_filter(filter_, schema)
    if isinstance(filter_, str):
        bind_filter(filter_, schema, settings=IN_UTC)


@pytest.mark.parametrize(
    ("filter_", "type_", "says"),
    [
        (C == "1", pa.int32(), "does not compare with '1' of type string"),
        (C == 1, pa.string(), "does not compare with 1 of type int64"),
        (C == b"a", pa.string(), "does not compare with X'61'"),
        (C == True, pa.int32(), "does not compare with TRUE"),  # noqa: E712
        (C == 1, pa.date32(), "does not compare with 1"),
        (pa.scalar([1]) == C, pa.int32(), "does not compare with"),
        (C == 1, pa.list_(pa.int32()), "do not compare"),
        (C == 1, pa.month_day_nano_interval(), "do not compare; leave it out"),
        ("c = TIMESTAMP '2024-01-01 00:00:00Z'", pa.timestamp("us"), "TIMESTAMP_NTZ"),
        (pc.field("d") == 1, pa.int32(), "column 'd' is not there"),
    ],
)
def test_what_does_not_compare(filter_, type_, says):
    with pytest.raises(SchemaError, match=says):
        bind_filter(filter_, pa.schema([("c", type_)]), settings=SparkSettings("Europe/Berlin"))


def test_a_filter_of_another_type():
    with pytest.raises(OptionError, match=r"filter=\[\('a', '=', 1\)\] is list"):
        bind_filter([("a", "=", 1)], pa.schema([("a", pa.int32())]))


def test_a_time_beyond_python_calendar():
    with pytest.raises(OptionError, match="the years 1 to 9999"):
        bind_filter(
            "c > TIMESTAMP '0001-01-01 00:00:00Z'",
            pa.schema([("c", pa.date32())]),
            settings=SparkSettings("Asia/Tokyo"),
        )
    late = pa.scalar(2**62, pa.timestamp("us"))
    assert "4611686018427387904 timestamp[us]" in str(
        bind_filter(late == C, pa.schema([("c", pa.timestamp("us"))]))
    )


def test_filters_are_values():
    schema = pa.schema([("s", pa.string()), ("c", pa.int32()), ("d", pa.int32())])
    bound = bind_filter("c IN (1, 2) AND s = 'a'", schema)
    assert bound.columns == ("s", "c")
    assert bind_filter(bound, schema) is bound
    again = pickle.loads(pickle.dumps(bound))
    assert again == bound
    assert hash(again) == hash(bound)
    assert bound != bind_filter("c IN (1, 3) AND s = 'a'", schema)
    assert bound != bind_filter("c IN (1, 2) AND s = 'a'", schema.set(1, pa.field("c", pa.int64())))
    assert bound != "c IN (1, 2) AND s = 'a'"


def test_long_lists_are_cut_for_people_only():
    schema = pa.schema([("c", pa.int32())])
    bound = [bind_filter(C.isin(range(last)), schema) for last in (1_000, 1_001)]
    assert str(bound[0]) == f"c IN ({', '.join(map(str, range(12)))}, ... 988 more)"
    assert bound[0] != bound[1]


def test_columns_of_different_types():
    schema = pa.schema(
        [("i", pa.int32()), ("l", pa.int64()), ("x", pa.float64()), ("m", pa.decimal128(38, 0)),
         ("w", pa.decimal128(38, 38))]
    )  # fmt: skip
    columns = {
        "i": pa.array([1, 2, None], pa.int32()),
        "l": pa.array([1, 3, 1], pa.int64()),
        "x": pa.array([1.0, NAN, NAN]),
        "m": pa.array([Decimal(1), Decimal(2), Decimal(3)], pa.decimal128(38, 0)),
        "w": pa.array([Decimal(0), Decimal("0.5"), None], pa.decimal128(38, 38)),
    }
    for text, expected in [
        ("i = l", [True, False, False]),
        ("i < x", [False, True, False]),
        ("x >= l", [True, True, True]),
        ("m = i", [True, True, False]),
        ("m <=> i", [True, True, False]),
        ("i != i", [False, False, False]),
        ("i <=> i", [True, True, True]),
    ]:
        bound = bind_filter(text, schema)
        found = bound.mask([columns[name] for name in bound.columns], 3)
        assert found.tolist() == expected, text
