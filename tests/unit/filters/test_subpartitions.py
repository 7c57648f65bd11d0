"""Which subpartitions rows that pass are in."""

import datetime as dt

import pyarrow as pa
import pytest

from arrow_format import BroadcastPartitioner, HashPartitioner, RangePartitioner
from arrow_format.filters.filter import bind_filter
from arrow_format.filters.keys import subpartition_of
from arrow_format.filters.subpartitions import MOST_KEYS
from arrow_format.keys.partitioner import ColumnPartitioner, RoundRobinPartitioner

SCHEMA = pa.schema([("k", pa.int32()), ("s", pa.string()), ("d", pa.date32()), ("x", pa.float64())])
N = 100


def found(text, partitioner, n=N):
    subpartitions = bind_filter(text, SCHEMA).subpartitions(partitioner, SCHEMA, n)
    return None if subpartitions is None else subpartitions.tolist()


def of(partitioner, *keys):
    return sorted({subpartition_of(key, partitioner, SCHEMA, N) for key in keys})


def test_a_hash_of_one_key():
    by_k = HashPartitioner("k")
    assert found("k = 1", by_k) == of(by_k, {"k": 1})
    assert found("k IN (1, 2) AND s = 'a'", by_k) == of(by_k, {"k": 1}, {"k": 2})
    assert found("k = 1 OR k IS NULL", by_k) == of(by_k, {"k": 1}, {"k": None})
    assert found("k IN (1, 2, 3) AND k IN (3, 4)", by_k) == of(by_k, {"k": 3}, {"k": 4})
    assert found("k = 2.5", by_k) == []
    assert found("FALSE", by_k) == []
    for text in ("s = 'a'", "k > 1", "k != 1", "NOT k IN (1, 2)", "k = 1 OR s = 'a'", "TRUE"):
        assert found(text, by_k) is None


def test_equal_floats_have_one_hash():
    by_x = HashPartitioner("x")
    assert found("x = -0.0D", by_x) == of(by_x, {"x": 0.0}) == of(by_x, {"x": -0.0})


def test_a_hash_of_two_keys():
    both = HashPartitioner("k", "s")
    keys = [{"k": k, "s": s} for k in (1, 2) for s in ("a", "b")]
    assert found("k IN (1, 2) AND s IN ('a', 'b')", both) == of(both, *keys)
    assert found("(k = 1 AND s = 'a') OR (k = 2 AND s = 'b')", both) == of(both, keys[0], keys[3])
    assert found("(k = 1 OR k = 2) AND s = 'a'", both) == of(both, keys[0], keys[2])
    assert found("k = 1", both) is None
    assert found("(k = 1 AND s = 'a') OR k = 2", both) is None


def test_too_many_keys_are_all():
    many = ", ".join(map(str, range(101)))
    text = f"k IN ({many}) AND s IN ({', '.join(repr(str(i)) for i in range(100))})"
    assert MOST_KEYS == 10_000
    assert found(text, HashPartitioner("k", "s"), 100_000) is None


DATES = [dt.date(2024, 1, 1), dt.date(2024, 6, 1), dt.date(2025, 1, 1)]


@pytest.mark.parametrize(
    ("order", "text", "expected"),
    [
        ("ascending", "d = '2024-01-01'", [0]),
        ("ascending", "d = '2024-01-02'", [1]),
        ("ascending", "d > '2024-06-01'", [2, 3]),
        ("ascending", "d < '2024-01-01'", [0]),
        ("ascending", "d BETWEEN '2024-02-01' AND '2024-03-01'", [1]),
        ("ascending", "d IS NULL", [0]),
        ("ascending", "d IS NOT NULL", None),
        ("ascending", "d > '2024-07-01' OR d IS NULL", [0, 2, 3]),
        ("ascending", "k = 1", None),
        ("ascending nulls last", "d IS NULL", [3]),
        ("descending", "d > '2025-01-01'", [0]),
        ("descending", "d < '2024-01-01'", [3]),
        ("descending", "d IS NULL", [3]),
        ("descending nulls first", "d IS NULL", [0]),
    ],
)
def test_ranges_of_one_key(order, text, expected):
    dates = DATES if order.startswith("ascending") else DATES[::-1]
    ranges = RangePartitioner(("d", order), bounds=dates)
    assert found(text, ranges, 4) == expected


def test_ranges_of_two_keys():
    first, second, _ = DATES
    ranges = RangePartitioner("d", "k", bounds=[(first, 5), (first, 9), (second, 3)])
    assert found("d = '2024-01-01' AND k = 7", ranges) == [1]
    assert found("d = '2024-01-01'", ranges) == [0, 1, 2]
    assert found("d = '2024-01-01' AND k > 9", ranges) == [0, 2]  # of the first range, k is unknown
    assert found("d >= '2024-06-01'", ranges) == [2, 3]
    assert found("d > '2024-06-01'", ranges) == [3]
    # No row is in a subpartition behind the last range.
    assert found("k > 5", ranges) == [0, 1, 2, 3]


def test_bounds_that_are_null():
    ranges = RangePartitioner("k", bounds=pa.table({"k": pa.array([None, 5], pa.int32())}))
    assert found("k IS NULL", ranges, 3) == [0]
    assert found("k < 3", ranges, 3) == [1]
    last = RangePartitioner(
        ("k", "ascending nulls last"), bounds=pa.table({"k": pa.array([5, None], pa.int32())})
    )
    assert found("k IS NULL", last, 3) == [1]
    assert found("k > 9", last, 3) == [1]


def test_ranges_without_bounds():
    ranges = RangePartitioner("k", bounds=pa.table({"k": pa.array([], pa.int32())}))
    assert found("k = 5", ranges, 3) == [0]


def test_a_column_of_subpartitions():
    by_column = ColumnPartitioner("k")
    assert found("k IN (3, 7, 200)", by_column) == [3, 7]
    assert found("k >= 98", by_column) == [98, 99]
    assert found("k >= 0", by_column) is None
    assert found("k < 0", by_column) == []
    assert found("s = 'a'", by_column) is None
    narrow = pa.schema([("k", pa.int8())])
    wide = bind_filter("k > 125", narrow).subpartitions(by_column, narrow, 1_000)
    assert wide.tolist() == [126, 127]


def test_other_partitioners_say_nothing():
    for partitioner in (BroadcastPartitioner(), RoundRobinPartitioner(), {"kind": "own"}, None):
        assert found("k = 1", partitioner) is None
